"""Readers of traces: what hand-written traces mean, and that all forms of one trace are the same trace."""

from __future__ import annotations

import gzip
import io
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hwsim.errors import TraceError
from hwsim.trace.reader import TEXT_FORMATS, NpzReader, open_trace
from hwsim.trace.text_trace import LONGEST_LINE, AccessBlock, GzipSource, PlainSource, ReadOptions, TextReader, quoted

Rows = list[tuple[int, bool, int]]


def rows_of(chunks: list[AccessBlock]) -> Rows:
    return [
        (int(address), bool(write), int(size)) for chunk in chunks for address, write, size in zip(*chunk, strict=True)
    ]


def read(path: Path, **options: int) -> Rows:
    with open_trace(path, options=ReadOptions(**options)) as trace:
        return rows_of(list(trace))


def written(folder: Path, text: str | bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def random_accesses(count: int = 3000, seed: int = 5) -> AccessBlock:
    numbers = np.random.default_rng(seed)
    bits = numbers.integers(1, 48, count, dtype=np.uint64)
    return AccessBlock(
        numbers.integers(0, 1 << 48, count, dtype=np.uint64) >> bits,
        numbers.random(count) < 0.4,
        numbers.integers(1, 300, count).astype(np.uint16),
    )


def as_din(rows: Rows) -> str:
    return "".join(f"{int(write)} {address:x} {size:x}\n" for address, write, size in rows)


def as_lackey(rows: Rows) -> str:
    lines = (f" {'S' if write else 'L'} {address:08x},{size}\n" for address, write, size in rows)
    return "==42== Lackey, an example Valgrind tool\n" + "".join(lines) + "==42== \n"


def test_a_block_has_room_for_as_many_accesses_as_its_text_could_hold(tmp_path: Path) -> None:
    """A line of lackey with two accesses has six characters at least: a place for each three."""
    path = written(tmp_path, "0 1\n1 2\n" * 1000)
    with open_trace(path, options=ReadOptions()) as trace:
        blocks = list(trace)
    assert sum(len(block.addresses) for block in blocks) == 2000
    for block in blocks:
        assert block.addresses.base is not None
        assert len(block.addresses) <= len(block.addresses.base) <= 2 * 1000 * 4 // 3 + 1


def test_din_labels_prefixes_sizes_and_comments(tmp_path: Path) -> None:
    text = "0 1000\n1 0x1004\n2 400000\n0 0XaBc 10 and a comment\n\n  1\t20  2\r\nr 8 4\nw 9 1\ni 7 2\nm 6\n"
    path = written(tmp_path, text)
    expected = [
        (0x1000, False, 4),
        (0x1004, True, 4),
        (0xABC, False, 16),
        (0x20, True, 2),
        (8, False, 4),
        (9, True, 1),
        (6, False, 4),
    ]
    with open_trace(path) as trace:
        assert rows_of(list(trace)) == expected
        assert (trace.format, trace.instructions) == ("din", 2)
        assert trace.position == trace.total_bytes == len(text)


def test_the_size_that_a_din_line_does_not_tell_can_be_chosen(tmp_path: Path) -> None:
    path = written(tmp_path, "0 1000\n0 1000 2\n")
    assert read(path, access_bytes=8) == [(0x1000, False, 8), (0x1000, False, 2)]


def test_a_lackey_modify_is_a_load_and_then_a_store(tmp_path: Path) -> None:
    text = "==7== ls\n--7-- note\nI  04001090,3\n L 1ffe7e,8\n S 04222cac,4\n M 0421c7cc,16\n==7== bye\n"
    with open_trace(written(tmp_path, text)) as trace:
        assert rows_of(list(trace)) == [
            (0x1FFE7E, False, 8),
            (0x04222CAC, True, 4),
            (0x0421C7CC, False, 16),
            (0x0421C7CC, True, 16),
        ]
        assert (trace.format, trace.instructions) == ("lackey", 1)


def test_instruction_fetches_may_lie_beyond_the_address_limit(tmp_path: Path) -> None:
    assert read(written(tmp_path, "2 ffffffffff600000\n0 10\n"), address_limit=0x1000) == [(0x10, False, 4)]
    text = "I  ffffffffff600000,4\n L 10,4\n"
    assert read(written(tmp_path, text), address_limit=0x1000) == [(0x10, False, 4)]


def test_random_accesses_are_the_same_through_every_form(tmp_path: Path) -> None:
    accesses = random_accesses()
    rows = rows_of([accesses])
    din, lackey = as_din(rows).encode(), as_lackey(rows).encode()
    address, write, size = accesses
    paths = [
        written(tmp_path, din, "a.din"),
        written(tmp_path, lackey, "a.txt"),
        written(tmp_path, gzip.compress(din), "a.din.gz"),
        written(tmp_path, gzip.compress(lackey), "lackey without a suffix"),
        written(tmp_path, gzip.compress(din[:5003]) + gzip.compress(din[5003:]) + bytes(512), "two members.gz"),
        tmp_path / "stored.npz",
        tmp_path / "packed.npz",
    ]
    np.savez(paths[-2], addr=address, write=write, size=size)
    np.savez_compressed(paths[-1], addr=address, write=write, size=size)
    for path in paths:
        assert read(path) == rows, path.name


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1000])
@pytest.mark.parametrize("form", ["din", "lackey"])
def test_lines_may_be_cut_anywhere_by_blocks(form: str, block_bytes: int) -> None:
    rows = rows_of([random_accesses(200)])
    text = (as_din(rows) if form == "din" else as_lackey(rows)).encode()
    source = PlainSource("trace", io.BytesIO(text))
    reader = TextReader("trace", source, TEXT_FORMATS[form], ReadOptions(), block_bytes=block_bytes)
    assert rows_of(list(reader)) == rows


@pytest.mark.parametrize("block_bytes", [3, 50, 1 << 20])
def test_a_bad_line_is_counted_right_across_blocks(block_bytes: int) -> None:
    text = b"0 10\n" * 100 + b"\n2 14\n" + b"0 1g\n" + b"0 10\n" * 100
    source = PlainSource("t.din", io.BytesIO(text))
    reader = TextReader("t.din", source, TEXT_FORMATS["din"], ReadOptions(), block_bytes=block_bytes)
    with pytest.raises(TraceError, match=r"^t\.din:103: '1g' is not a hexadecimal address"):
        list(reader)


@pytest.mark.parametrize("block_bytes", [1, 10, 1 << 20])
def test_gzip_gives_out_exactly_what_was_packed(block_bytes: int) -> None:
    text = b"0 1000\n" * 2000 + bytes(range(256)) * 4
    packed = gzip.compress(text[:9000]) + gzip.compress(b"") + gzip.compress(text[9000:])
    source = GzipSource(PlainSource("t", io.BytesIO(packed)))
    blocks = list(iter(lambda: source.read(block_bytes), b""))
    assert b"".join(blocks) == text
    assert max(len(block) for block in blocks) <= block_bytes
    assert source.damage is None
    assert source.position == len(packed)


def test_a_highly_compressed_trace_is_unpacked_block_by_block() -> None:
    text = b"0 1000\n" * 1_000_000
    source = GzipSource(PlainSource("t", io.BytesIO(gzip.compress(text))))
    total = 0
    while block := source.read(1 << 16):
        assert len(block) <= 1 << 16
        total += len(block)
    assert (total, source.damage) == (len(text), None)


def test_truncated_gzip_gives_out_all_lines_before_the_cut(tmp_path: Path) -> None:
    rows = rows_of([random_accesses(5000)])
    packed = gzip.compress(as_din(rows).encode())
    path = written(tmp_path, packed[: len(packed) // 2], "cut.gz")
    got: Rows = []
    with open_trace(path) as trace, pytest.raises(TraceError) as caught:
        for chunk in trace:
            got += rows_of([chunk])
    assert len(got) > 2000
    assert got == rows[: len(got)]
    message = str(caught.value)
    assert re.match(rf"{re.escape(str(path))}:{len(got) + 1}: the gzip data is cut short", message)
    assert f"after {len(packed) // 2:,} bytes of the file and {len(got):,} accesses" in message


def test_a_wrong_check_sum_in_gzip_is_noticed(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"0 10\n"))
    packed[-8] ^= 1
    path = written(tmp_path, bytes(packed))
    with pytest.raises(TraceError, match="damaged"), open_trace(path) as trace:
        list(trace)


def test_standard_input_is_read_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (b"0 10\n1 20\n", gzip.compress(b"0 10\n1 20\n")):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        with open_trace("-") as trace:
            assert rows_of(list(trace)) == [(0x10, False, 4), (0x20, True, 4)]
            assert trace.total_bytes is None


@pytest.mark.parametrize("compressed", [False, True])
def test_an_archive_is_read_chunk_by_chunk(tmp_path: Path, compressed: bool) -> None:
    accesses = random_accesses(1000)
    path = tmp_path / "t.npz"
    save = np.savez_compressed if compressed else np.savez
    save(path, addr=accesses.addresses, write=accesses.writes, size=accesses.sizes.astype(np.int64))
    reader = NpzReader("t.npz", path, ReadOptions(), chunk_accesses=300)
    chunks, positions = [], []
    for chunk in reader:
        chunks.append(chunk)
        positions.append(reader.position)
    reader.close()
    assert [len(chunk.addresses) for chunk in chunks] == [300, 300, 300, 100]
    assert positions == sorted(positions)
    assert reader.position == reader.total_bytes
    assert rows_of(chunks) == rows_of([accesses])
    assert [column.dtype for column in chunks[0]] == [np.uint64, np.bool_, np.uint16]


def test_an_archive_without_sizes_takes_the_chosen_size(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", addr=np.array([1, 2], np.uint64), write=np.array([True, False]))
    assert read(tmp_path / "t.npz", access_bytes=8) == [(1, True, 8), (2, False, 8)]


def test_big_endian_addresses_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", addr=np.array([0x1234], ">u8"), write=np.array([True]))
    assert read(tmp_path / "t.npz") == [(0x1234, True, 4)]


@pytest.mark.parametrize(
    ("last_good", "first_bad"),
    [("0 fff\n", "0 1000\n"), (" L fff,4\n", " L 1000,4\n"), ("0 10 1000\n", "0 10 1001\n")],
    ids=["din address", "lackey address", "size"],
)
def test_limits_are_tight(tmp_path: Path, last_good: str, first_bad: str) -> None:
    assert len(read(written(tmp_path, last_good), address_limit=0x1000)) == 1
    with pytest.raises(TraceError, match=r"trace:1: .*(too large|not from 1 to 4096)"):
        read(written(tmp_path, first_bad), address_limit=0x1000)


def test_the_address_limit_of_an_archive_is_tight(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, addr=np.array([3, 0xFFF], np.uint64), write=np.zeros(2, np.bool_))
    assert len(read(path, address_limit=0x1000)) == 2
    np.savez(path, addr=np.array([3, 0x1000], np.uint64), write=np.zeros(2, np.bool_))
    with pytest.raises(TraceError, match=r"addr\[1\] is 0x1000, too large; it must be less than 0x1000"):
        read(path, address_limit=0x1000)


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    source = PlainSource("t", io.BytesIO(b"0 10\n0 " + b"1" * (3 * LONGEST_LINE)))
    reader = TextReader("t", source, TEXT_FORMATS["din"], ReadOptions(), block_bytes=1000)
    with pytest.raises(TraceError, match="t:2: this line has more than"):
        list(reader)
    assert source.position < 2 * LONGEST_LINE


def test_a_long_line_is_cut_in_a_message_and_one_of_sixty_letters_is_not() -> None:
    assert quoted("x" * 60) == repr("x" * 60)
    assert quoted(" " + "x" * 61) == repr("x" * 60 + "…")


def test_lines_may_end_as_windows_ends_them(tmp_path: Path) -> None:
    """An address is followed by a return and a newline, with and without blanks or a size before them."""
    path = written(tmp_path, b"0 10\r\n1 20 \r\n0 30 8\r\n", "made.din")
    assert [row[0] for row in read(path)] == [0x10, 0x20, 0x30]
