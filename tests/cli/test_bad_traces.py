"""Bad traces, one row each: exit code 2, file and line, what was found and expected, never a traceback."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import Outcome, hwsim, hwsim_process

GOOD = "0 1000\n1 2000 8\n"
PACKED = gzip.compress("".join(f"0 {number * 7919:x}\n" for number in range(5000)).encode())

TEXTS: dict[str, tuple[str | bytes, str]] = {
    "unknown label": (
        GOOD + "5 1000\n" + GOOD,
        "t:3: '5' is not a label; a din line is 'label address [size]'",
    ),
    "escape label": (GOOD + "4 0\n", "t:3: '4' is not a label"),
    "label of two digits": (GOOD + "00 1000\n", "t:3: '00' is not a label"),
    "word for a label": (GOOD + "read 1000\n", "t:3: 'read' is not a label"),
    "bad hexadecimal": (GOOD + "0 10g0\n", "t:3: '10g0' is not a hexadecimal address"),
    "only 0x": (GOOD + "0 0x\n", "t:3: '0x' is not a hexadecimal address"),
    "negative address": (GOOD + "0 -10\n", "t:3: '-10' is not a hexadecimal address"),
    "missing address": (GOOD + "0\n" + GOOD, "t:3: '0' has no address"),
    "missing address and a space": (GOOD + "0 \n" + GOOD, "t:3: '0' has no address"),
    "size of zero": (GOOD + "0 1000 0\n", "t:3: size '0' is not from 1 to 4096 bytes"),
    "size beyond a page": (GOOD + "0 1000 1001\n", "t:3: size '1001' is not from 1 to 4096 bytes"),
    "size that wraps around": (
        GOOD + "0 1000 10000000000000004\n",
        "t:3: size '10000000000000004' is not from",
    ),
    "size that is a word": (GOOD + "0 1000 eight\n", "t:3: 'eight' is not a hexadecimal size"),
    "address too large": (
        GOOD + "0 ffffffffffffffff\n",
        "t:3: address ffffffffffffffff is too large; it must be less",
    ),
    "address of 17 digits": (
        GOOD + "0 10000000000000000\n",
        "t:3: address '10000000000000000' has more than 16",
    ),
    "cut in the middle of a line": (GOOD + "0 10", "t:3: the file ends in the middle of this line, '0 10'"),
    "cut after a label": (GOOD + "1", "t:3: the file ends in the middle of this line, '1'"),
    "din with a lackey line": (GOOD + " L 1000,8\n", "t:3: 'L' is not a label"),
    "lackey with a din line": (" L 10,4\n0 1000\n", "t:2: '0 1000' does not begin with I, L, S or M"),
    "lackey without size": (" L 10,4\n S 1000\n", "t:2: 'S 1000' has no size"),
    "lackey with an empty size": (" L 10,4\n S 1000,\n", "t:2: '' is not a decimal size"),
    "lackey with a hexadecimal size": (" L 10,4\n S 1000,1f\n", "t:2: '1f' is not a decimal size"),
    "lackey with a size of zero": (" L 10,4\n S 1000,0\n", "t:2: size '0' is not from 1 to 4096 bytes"),
    "lackey with a bad address": (" L 10,4\n S xyz,4\n", "t:2: 'xyz' is not a hexadecimal address"),
    "lackey without address": (" L 10,4\n S\n", "t:2: 'S' has no address"),
    "lackey with a program's output": (" L 10,4\nhello\n", "t:2: 'hello' does not begin with I, L, S or M"),
    "lackey cut short": (" L 10,4\n S 10", "t:2: the file ends in the middle of this line, 'S 10'"),
    "only instructions": (
        "2 1000\n2 1004\n",
        "t: there are no reads and writes in this trace; only 2 instruction",
    ),
    "prose": ("\nDear reader,\n", "t:2: 'Dear reader,' begins neither a din line"),
    "not UTF-8": (b"caf\xe9 au lait\n", "t:1: 'caf\ufffd au lait' begins neither"),
    "empty": ("", "t: the file is empty"),
    "blank lines": ("\n\n  \n", "t: there are no accesses in this trace"),
    "binary garbage": (bytes(range(256)) * 20, "t: a binary file; a trace is din text"),
    "garbage in the middle": (GOOD.encode() + b"\x00\xff\x01 10\n", "t:3: '\\x00\ufffd\\x01' is not a label"),
    "truncated gzip": (PACKED[: len(PACKED) // 2], ": the gzip data is cut short here, after"),
    "gzip without its end": (PACKED[:-4], "t:5001: the gzip data is cut short"),
    "gzip header alone": (PACKED[:10], "t:1: the gzip data is cut short"),
    "two bytes of gzip": (PACKED[:2], "t:1: the gzip data is cut short"),
    "damaged gzip": (
        PACKED[:3000] + bytes(50) + PACKED[3050:],
        ": the gzip data is damaged from about here on (",
    ),
    "garbage behind gzip": (
        PACKED + b"hello",
        "t:5001: the gzip data is damaged from about here on (incorrect header check)",
    ),
    "gzip of nothing": (gzip.compress(b""), "t: there are no accesses in this trace"),
    "bad line in gzip": (gzip.compress((GOOD + "0 zz\n").encode()), "t:3: 'zz' is not a hexadecimal address"),
    "archive cut short": (b"PK\x03\x04" + bytes(50), "t: the archive cannot be read, it may be cut short"),
    "empty archive": (b"PK\x05\x06" + bytes(18), "t: there is no array 'addr', only nothing"),
    "single array": (b"\x93NUMPY\x01\x00", "t: this is a single .npy array"),
    "archive inside gzip": (gzip.compress(b"PK\x03\x04"), "t: an .npz archive inside gzip is not read"),
}

ADDR = np.array([16, 32, 48], np.uint64)
WRITE = np.array([True, False, True])
ARCHIVES: dict[str, tuple[dict[str, Any], str]] = {
    "no addr": (
        {"address": ADDR, "write": WRITE},
        "t: there is no array 'addr', only address, write; a trace archive has",
    ),
    "no write": ({"addr": ADDR}, "t: there is no array 'write', only addr"),
    "signed addresses": (
        {"addr": ADDR.astype(np.int64), "write": WRITE},
        "t: 'addr' is int64; a trace archive has addr (uint64)",
    ),
    "floating addresses": ({"addr": ADDR.astype(float), "write": WRITE}, "t: 'addr' is float64"),
    "writes as numbers": ({"addr": ADDR, "write": WRITE.astype(np.uint8)}, "t: 'write' is uint8"),
    "sizes as floats": ({"addr": ADDR, "write": WRITE, "size": np.ones(3)}, "t: 'size' is float64"),
    "fewer writes": ({"addr": ADDR, "write": WRITE[:2]}, "t: 'write' has 2 entries, but 'addr' has 3"),
    "more sizes": (
        {"addr": ADDR, "write": WRITE, "size": np.full(4, 4)},
        "t: 'size' has 4 entries, but 'addr' has 3",
    ),
    "two dimensions": ({"addr": ADDR.reshape(1, 3), "write": WRITE}, "t: 'addr' has 2 dimensions"),
    "a single number": ({"addr": ADDR[0], "write": WRITE}, "t: 'addr' has 0 dimensions"),
    "pickled": (
        {"addr": np.array([1, None], object), "write": WRITE},
        "t: 'addr' holds pickled Python objects",
    ),
    "size of zero": (
        {"addr": ADDR, "write": WRITE, "size": np.array([4, 0, 4])},
        "t: size[1] is 0; it must be from 1 to 4096",
    ),
    "negative size": ({"addr": ADDR, "write": WRITE, "size": np.array([4, 4, -4])}, "t: size[2] is -4"),
    "size beyond a page": (
        {"addr": ADDR, "write": WRITE, "size": np.array([4097, 4, 4])},
        "t: size[0] is 4097",
    ),
    "address too large": (
        {"addr": ADDR << np.uint64(55), "write": WRITE},
        "t: addr[0] is 0x800000000000000, too large",
    ),
    "no accesses": ({"addr": ADDR[:0], "write": WRITE[:0]}, "t: there are no accesses in this trace"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_refused(outcome: Outcome, says: str) -> None:
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err + outcome.out
    assert says in outcome.err, outcome.err
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""


def test_the_lines_before_the_bad_ones_are_right(folder: Path) -> None:
    (folder / "t").write_text(GOOD)
    assert hwsim("replay", "course_cpu", "t").code == 0


@pytest.mark.parametrize("name", TEXTS)
def test_a_bad_trace_is_refused(folder: Path, name: str) -> None:
    content, says = TEXTS[name]
    (folder / "t").write_bytes(content.encode() if isinstance(content, str) else content)
    assert_refused(hwsim("replay", "course_cpu", "t"), says)


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_bad_archive_is_refused(folder: Path, name: str) -> None:
    arrays, says = ARCHIVES[name]
    with (folder / "t").open("wb") as stream:
        np.savez(stream, **arrays)
    assert_refused(hwsim("replay", "course_cpu", "t"), says)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_damaged_archive_is_refused(folder: Path, compressed: bool) -> None:
    addresses = np.random.default_rng(1).integers(0, 1 << 30, 100_000, dtype=np.uint64)
    save = np.savez_compressed if compressed else np.savez
    save(folder / "t.npz", addr=addresses, write=addresses % 2 == 0)
    content = bytearray((folder / "t.npz").read_bytes())
    (folder / "cut").write_bytes(content[: len(content) // 2])
    assert_refused(hwsim("replay", "course_cpu", "cut"), "cut: the archive cannot be read, it may be cut short")
    content[100_000:100_100] = bytes(100)
    (folder / "holed").write_bytes(content)
    assert_refused(hwsim("replay", "course_cpu", "holed"), "holed: 'addr' is damaged after entry")


def test_missing_files_and_folders_are_refused(folder: Path) -> None:
    assert_refused(hwsim("replay", "course_cpu", "gone.din"), "gone.din: no such file")
    assert_refused(hwsim("replay", "course_cpu", "."), ".: this is a folder; give a trace")
    assert_refused(hwsim("replay", "course_cpi", "t"), "did you mean 'course_cpu'?")


def test_an_archive_from_a_pipe_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"PK\x03\x04")))
    outcome = hwsim("replay", "course_cpu", "-")
    assert_refused(outcome, "standard input: an .npz archive cannot be read from a pipe")


def test_a_bad_line_of_standard_input_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"0 10\n0 1z\n")))
    assert_refused(hwsim("replay", "course_cpu", "-"), "standard input:2: '1z' is not a hexadecimal address")


def test_a_form_that_the_file_does_not_have_is_refused(folder: Path) -> None:
    (folder / "t").write_text(GOOD)
    np.savez(folder / "t.npz", addr=ADDR, write=WRITE)
    assert_refused(hwsim("replay", "course_cpu", "t", "--format", "npz"), "t: this is not an .npz archive")
    assert_refused(hwsim("replay", "course_cpu", "t.npz", "--format", "din"), "this is an .npz archive, not din")


@pytest.mark.parametrize(
    "words",
    [
        ("--access-bytes", "0"),
        ("--access-bytes", "4097"),
        ("--limit", "0"),
        ("--format", "elf"),
        ("--seed", "x"),
    ],
)
def test_options_out_of_range_are_refused(folder: Path, words: tuple[str, str]) -> None:
    (folder / "t").write_text(GOOD)
    outcome = hwsim("replay", "course_cpu", "t", *words)
    assert outcome.code == 2
    assert words[0] in outcome.err
    assert "Traceback" not in outcome.err


def test_a_real_process_behaves_the_same(folder: Path) -> None:
    (folder / "t.din").write_text(GOOD + "0 10g0\n")
    done = hwsim_process("replay", "course_cpu", "t.din")
    assert_refused(Outcome(done.returncode, done.stdout, done.stderr), "t.din:3: '10g0' is not a hexadecimal")
