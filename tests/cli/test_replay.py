"""`hwsim replay`: counts against a small oracle, every form of a trace, tables, JSON, progress, Ctrl-C."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import hwsim

import hwsim as package
from hwsim.cli.replay import _uninterrupted

LINE = 64
Row = tuple[int, bool, int]


def replay(*words: str, machine: str = "course_cpu") -> dict[str, Any]:
    outcome = hwsim("replay", machine, *words, "--json", "-")
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    data: dict[str, Any] = json.loads(outcome.out)
    return data


class TextbookCache:
    """Least recently used, write-back, write-allocate, by the textbook rules of the counting conventions."""

    def __init__(self, size: int, ways: int, below: TextbookCache | None, first: bool) -> None:
        self.sets: list[OrderedDict[int, bool]] = [OrderedDict() for _ in range(size // LINE // ways)]
        self.ways, self.below, self.first = ways, below, first
        self.counts = dict.fromkeys(("reads", "writes", "read_misses", "write_misses", "writebacks"), 0)

    def access(self, line: int, write: bool) -> None:
        lines = self.sets[line % len(self.sets)]
        self.counts["writes" if write else "reads"] += 1
        if line in lines:
            lines[line] |= write
            lines.move_to_end(line)
            return
        self.counts["write_misses" if write else "read_misses"] += 1
        if self.below and (self.first or not write):
            self.below.access(line, False)
        lines[line] = write
        if len(lines) > self.ways:
            victim, dirty = lines.popitem(last=False)
            self.counts["writebacks"] += dirty
            if self.below and dirty:
                self.below.access(victim, True)


def textbook_counts(rows: list[Row]) -> dict[str, dict[str, int]]:
    """The caches of course_cpu."""
    l2 = TextbookCache(256 << 10, 8, None, first=False)
    l1 = TextbookCache(32 << 10, 8, l2, first=True)
    for address, write, size in rows:
        for line in range(address // LINE, (address + size - 1) // LINE + 1):
            l1.access(line, write)
    return {"l1": l1.counts, "l2": l2.counts}


def random_rows(count: int = 30_000, seed: int = 3) -> list[Row]:
    """More than L2 holds, with reuse, and sizes that often cross a line."""
    numbers = np.random.default_rng(seed)
    addresses = numbers.integers(0, 600 << 10, count) * (numbers.random(count) < 0.5)
    addresses += numbers.integers(0, 40 << 10, count)
    writes = numbers.random(count) < 0.3
    sizes = numbers.choice([1, 4, 8, 64, 200], count)
    return list(zip(addresses.tolist(), writes.tolist(), sizes.tolist(), strict=True))


def as_din(rows: list[Row]) -> str:
    return "".join(f"{int(write)} {address:x} {size:x}\n" for address, write, size in rows)


def write_trace(folder: Path, text: str, name: str = "t.din") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_counts_equal_the_textbook_caches(tmp_path: Path) -> None:
    rows = random_rows()
    data = replay(write_trace(tmp_path, as_din(rows)))
    expected = textbook_counts(rows)
    assert expected["l2"]["writebacks"] > 100
    for level, counts in expected.items():
        assert {name: data["levels"][level][name] for name in counts} == counts
    assert data["dram"]["reads"] == expected["l2"]["read_misses"]
    assert data["dram"]["writes"] == expected["l2"]["writebacks"]
    assert data["accesses"] == len(rows)


def test_every_form_of_a_trace_gives_the_same_counts(tmp_path: Path) -> None:
    rows = random_rows(5000)
    din = write_trace(tmp_path, as_din(rows))
    lackey = "".join(f" {'S' if write else 'L'} {address:x},{size}\n" for address, write, size in rows)
    (tmp_path / "t.din.gz").write_bytes(gzip.compress(as_din(rows).encode()))
    address, write, size = (np.array(column) for column in zip(*rows, strict=True))
    np.savez_compressed(tmp_path / "t.npz", addr=address.astype(np.uint64), write=write, size=size)
    expected = replay(din)
    forms = {write_trace(tmp_path, lackey, "t.txt"): "lackey"}
    forms |= {str(tmp_path / "t.din.gz"): "din", str(tmp_path / "t.npz"): "npz"}
    for trace, form in forms.items():
        data = replay(trace)
        assert data["format"] == form
        for part in ("accesses", "levels", "dram", "links"):
            assert data[part] == expected[part]


@pytest.mark.parametrize("settings", [(), ("l1.prefetch.kind=next_line",), ("l2.inclusion=inclusive",)])
def test_bytes_that_leave_a_level_enter_the_next(tmp_path: Path, settings: tuple[str, ...]) -> None:
    rows = random_rows(10_000)
    words = [word for setting in settings for word in ("--set", setting)]
    data = replay(write_trace(tmp_path, as_din(rows)), *words)
    l1, l2, dram, links = data["levels"]["l1"], data["levels"]["l2"], data["dram"], data["links"]
    assert links["l1→regs"] == sum(size for _, write, size in rows if not write)
    assert links["regs→l1"] == sum(size for _, write, size in rows if write)
    assert links["l2→l1"] == l1["bytes_fetched"] == l2["bytes_read"] > 0
    assert links["l1→l2"] == l1["bytes_evicted"] == l2["bytes_written"] > 0
    assert links["dram→l2"] == l2["bytes_fetched"] == dram["bytes_read"] > 0
    assert links["l2→dram"] == l2["bytes_evicted"] == dram["bytes_written"] > 0


def test_an_access_across_a_line_is_split(tmp_path: Path) -> None:
    """8 bytes at 0x3c lie on two lines, and so do 66 bytes at 0; 4 bytes at 0x3c lie on one."""
    for text, reads in (("0 3c 8\n", 2), ("0 3c 4\n", 1), ("0 0 42\n", 2), ("0 3f 42\n", 3)):
        data = replay(write_trace(tmp_path, text))
        assert data["accesses"] == 1
        assert data["levels"]["l1"]["reads"] == data["levels"]["l1"]["read_misses"] == reads


def test_accesses_of_a_page_are_split_into_all_their_lines(tmp_path: Path) -> None:
    text = "".join(f"1 {number * 4096:x} 1000\n" for number in range(3000))
    level = replay(write_trace(tmp_path, text))["levels"]["l1"]
    assert level["writes"] == level["write_misses"] == 3000 * 64


def test_access_bytes_is_the_size_where_none_is_told(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, "0 3c\n")
    assert replay(trace)["levels"]["l1"]["reads"] == 1
    assert replay(trace, "--access-bytes", "5")["levels"]["l1"]["reads"] == 2


def test_limit_stops_after_so_many_accesses(tmp_path: Path) -> None:
    rows = random_rows(2000)
    trace = write_trace(tmp_path, as_din(rows))
    data = replay(trace, "--limit", "777")
    assert (data["accesses"], data["complete"]) == (777, True)
    assert data["levels"]["l1"]["reads"] == textbook_counts(rows[:777])["l1"]["reads"]
    assert replay(trace, "--limit", "5000")["accesses"] == 2000


def test_limit_counts_from_the_start_of_the_trace_not_of_a_chunk(tmp_path: Path) -> None:
    rows = random_rows(20_000)
    trace = write_trace(tmp_path, as_din(rows))
    assert (tmp_path / "t.din").stat().st_size > 2 * (1 << 16)
    data = replay(trace, "--limit", "15000")
    assert data["accesses"] == 15_000
    assert data["levels"]["l1"]["reads"] == textbook_counts(rows[:15_000])["l1"]["reads"]


def test_settings_change_the_machine(tmp_path: Path) -> None:
    rows = [(address, False, 4) for _ in range(2) for address in range(0, 64 << 10, 64)]
    trace = write_trace(tmp_path, as_din(rows))
    assert replay(trace)["levels"]["l1"]["read_misses"] == 2048
    assert replay(trace, "--set", "l1.size=64 KiB")["levels"]["l1"]["read_misses"] == 1024


def test_any_core_may_replay_and_the_counts_are_the_same(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, as_din(random_rows(2000)))
    assert replay(trace, "--core", "3")["levels"] == replay(trace)["levels"]
    outcome = hwsim("replay", "course_cpu", trace, "--core", "4")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--core 4: course_cpu has cores 0 to 3" in outcome.err


def test_the_seed_decides_random_replacement(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, as_din(random_rows(20_000)))
    words = (trace, "--set", "l1.replacement=random")
    first = replay(*words, "--seed", "1")
    assert replay(*words, "--seed", "1") == first
    assert replay(*words, "--seed", "2")["levels"] != first["levels"]


def test_the_format_can_be_told(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, "\n0 10\n")
    assert replay(trace, "--format", "din")["format"] == "din"
    outcome = hwsim("replay", "course_cpu", trace, "--format", "lackey")
    assert outcome.code == 2
    assert f"{trace}:2: '0 10' does not begin with I, L, S or M" in outcome.err


def test_standard_input_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"0 10\n2 4\n1 20\n")))
    data = replay("-")
    assert (data["trace"], data["accesses"], data["instructions"]) == ("-", 2, 1)


def test_the_tables_show_levels_memory_and_links(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, "0 0\n1 4\n1 2000\n2 0\n")
    outcome = hwsim("replay", "course_cpu", trace)
    assert outcome.code == 0
    assert "3 accesses, 1 instruction fetch left out" in outcome.out
    cells = [line.split() for line in outcome.out.splitlines()]
    assert ["l1", "1", "1", "2", "1", "0", "66.67%"] in cells
    assert ["l2", "2", "2", "0", "0", "0", "100.00%"] in cells
    assert ["dram", "→", "l2", "128"] in cells
    assert ["regs", "→", "l1", "8"] in cells
    assert "prefetch" not in outcome.out
    ahead = hwsim("replay", "course_cpu", trace, "--set", "l1.prefetch.kind=next_line")
    assert "prefetch hits" in ahead.out


def test_json_goes_to_a_file_beside_the_tables_and_is_the_same_each_time(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, as_din(random_rows(500)))
    target = tmp_path / "counts.json"
    outcome = hwsim("replay", "course_cpu", trace, "--json", str(target))
    assert "miss rate" in outcome.out
    first = target.read_bytes()
    assert json.loads(first) == replay(trace)
    hwsim("replay", "course_cpu", trace, "--json", str(target))
    assert target.read_bytes() == first


def test_a_place_for_json_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, "0 0\n")
    for place, says in ((tmp_path, "this is a folder"), (tmp_path / "no" / "a.json", "there is no folder")):
        outcome = hwsim("replay", "course_cpu", trace, "--json", str(place))
        assert (outcome.code, outcome.out) == (2, "")
        assert says in outcome.err


def test_ctrl_c_prints_what_was_counted_and_says_that_it_is_partial(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = iter([b"0 0\n0 40\n0 0\n1"])

    def read(count: int) -> bytes:
        for block in blocks:
            return block
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=SimpleNamespace(read=read)))
    outcome = hwsim("replay", "course_cpu", "-", "--json", "-")
    assert outcome.code == 130
    data = json.loads(outcome.out)
    assert (data["complete"], data["accesses"], data["levels"]["l1"]["read_misses"]) == (False, 3, 2)
    assert "these counts are of the first 3 accesses only" in outcome.err
    assert "Traceback" not in outcome.err


def test_ctrl_c_waits_until_accesses_are_counted_whole() -> None:
    done, before = False, signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), _uninterrupted():
        signal.raise_signal(signal.SIGINT)  # to this thread and now; os.kill may choose another
        done = True
    assert done
    assert signal.getsignal(signal.SIGINT) is before


def test_a_terminal_sees_progress_and_a_pipe_does_not(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, as_din(random_rows(1000)))
    reader, writer = pty.openpty()
    root = str(Path(package.__file__).resolve().parent.parent)
    command = [sys.executable, "-m", "hwsim", "replay", "course_cpu", trace]
    environment = {**os.environ, "PYTHONPATH": root, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer, env=environment) as process:
        os.close(writer)
        assert process.stdout is not None
        table = process.stdout.read().decode()
        seen = b""
        while block := _read_terminal(reader):
            seen += block
    os.close(reader)
    assert process.returncode == 0
    assert b"M accesses/s" in seen
    assert "miss rate" in table
    assert "\x1b" not in table


def _read_terminal(reader: int) -> bytes:
    try:
        return os.read(reader, 1 << 16)
    except OSError:  # Linux reports the end of a terminal so
        return b""


def test_help_has_an_example() -> None:
    assert "Example: hwsim replay course_cpu trace.din.gz" in " ".join(hwsim("replay", "--help").out.split())
