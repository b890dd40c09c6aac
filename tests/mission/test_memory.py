"""Section 1 of the mission: the memory hierarchy and its latencies, rows M1 to M6."""

from __future__ import annotations

from pathlib import Path

import pytest

import hwsim
from hwsim.catalog import load_machine
from hwsim.spec.machine import CacheSpec, DramSpec
from tests.cli.command_line import hwsim as command

NANO = 1e9


def latency_ns(machine: str, size: str) -> float:
    """Time of one dependent load in a ring of this size, once the caches are warm: that of 4,000 more, over 4,000."""
    short, long = (
        hwsim.run(machine, "pointer_chase", bytes=size, steps=steps, math=False) for steps in (40_000, 44_000)
    )
    return (long.time_s - short.time_s) / 4_000 * NANO


def bandwidth(machine: str, size: str, passes: int, **more: object) -> float:
    """Bytes per second of steady reading: so many passes more over the same memory, over the time that they take."""
    few, many = (
        hwsim.run(machine, "stream_read", bytes=size, passes=times, math=False, **more)
        for times in (passes, 2 * passes)
    )
    moved = many.memory["l1"].bytes_read - few.memory["l1"].bytes_read
    return moved / (many.time_s - few.time_s)


@pytest.mark.parametrize(("size", "expected"), [("16 KiB", 0.5), ("128 KiB", 7.0), ("2 MiB", 200.0)])
def test_m1_a_pointer_chase_reads_back_the_ladder_of_the_course(size: str, expected: float) -> None:
    """M1: L1 0.5 ns, L2 7 ns, DRAM 200 ns."""
    assert latency_ns("course_cpu", size) == pytest.approx(expected, rel=1e-9)


def test_m1_the_ratios_of_the_ladder() -> None:
    """M1: L2 is 14 times slower than L1, DRAM 28.6 times slower than L2 and 400 times slower than L1."""
    l1, l2, dram = (latency_ns("course_cpu", size) for size in ("16 KiB", "128 KiB", "2 MiB"))
    assert (l2 / l1, dram / l1) == (pytest.approx(14), pytest.approx(400))
    assert dram / l2 == pytest.approx(28.6, abs=0.05)


@pytest.mark.parametrize(("size", "cycles"), [("16 KiB", 1), ("128 KiB", 10), ("512 KiB", 50), ("16 MiB", 200)])
def test_m2_a_pointer_chase_reads_back_the_ladder_in_cycles(size: str, cycles: int) -> None:
    """M2: L1 1 cycle, L2 10, L3 50, DRAM 200, at 3 GHz. A ring that fits its level is warm after one round."""
    assert latency_ns("tinytorch_cpu", size) * 3 == pytest.approx(cycles, rel=1e-4)


@pytest.mark.parametrize("name", ["course_cpu", "tinytorch_cpu", "zen3", "skylake_avx512", "cortex_a78"])
def test_m1_m2_every_machine_reads_back_all_its_latencies(name: str) -> None:
    """A ring of half a cache is warm after a round. In a ring of four times the last cache, no line is met twice."""
    machine = load_machine(name).spec
    core_hz = machine.clock_hz(machine.compute[0].clock)
    for level in machine.memory:
        if not isinstance(level, CacheSpec | DramSpec):
            continue
        size = level.size // 2 if isinstance(level, CacheSpec) else 4 * machine.caches[-1].size
        warm = 2 * size // 64 if isinstance(level, CacheSpec) else 0
        short, long = (
            hwsim.run(name, "pointer_chase", bytes=f"{size} B", steps=warm + hops, math=False)
            for hops in (2_000, 6_000)
        )
        assert level.latency is not None
        expected = float(level.latency.seconds(machine.clock_hz(level.clock) if level.clock else core_hz))
        assert (long.time_s - short.time_s) / 4_000 == pytest.approx(expected, rel=0.01), level.name


def test_m3_explain_says_what_a_miss_costs(tmp_path: Path) -> None:
    """M3: 200 cycles against 1."""
    file = tmp_path / "run.json"
    assert command("run", "tinytorch_cpu", "matmul_tiled", "n=32", "--json", str(file)).code == 0
    rows = [line.split() for line in command("explain", str(file)).out.splitlines()]
    assert [row[-1] for row in rows if row[:1] == ["dram"] and row[-1].endswith("×")] == ["200×"]


@pytest.mark.parametrize("workload", ["matmul_naive", "matmul_tiled"])
def test_m4_an_endless_cache_misses_only_what_it_has_never_seen(workload: str) -> None:
    """M4: three matrices of 64 x 64 fp32 are 768 lines; the real cache of 4 KiB beside it misses far more."""
    perfect = hwsim.run("course_cpu", workload, n=64, set={"l1.size": "inf"})
    real = hwsim.run("course_cpu", workload, n=64, set={"l1.size": "4 KiB"})
    assert perfect.memory["l1"].misses == 3 * 64 * 64 // 16 == 768
    assert perfect.memory["l1"].writebacks == 0
    assert real.memory["l1"].misses > 10 * 768
    assert perfect.time_s <= real.time_s
    assert perfect.work["loads"] == real.work["loads"]


def test_m5_a_machine_may_have_more_levels(tmp_path: Path) -> None:
    """M5: registers, four caches, DRAM; a ring of 4 MiB lies in the fourth cache and takes its latency."""
    (tmp_path / "deep.yaml").write_text(
        """
format: 1
name: deep
extends: tinytorch_cpu
description: One level more.
memory:
  - {name: l4, after: l3, kind: cache, shared_by: all, size: 64 MiB, ways: 16, latency: 100 cycles, source: test}
energy:
  actions:
    l4.read: {energy: 8 pJ/bit, source: test}
    l4.write: {energy: 8 pJ/bit, source: test}
"""
    )
    machine = str(tmp_path / "deep.yaml")
    ring = {"bytes": "12 MiB", "math": False}
    short, long = (hwsim.run(machine, "pointer_chase", steps=steps, **ring) for steps in (200_000, 396_608))
    assert list(long.memory) == ["l1", "l2", "l3", "l4", "dram"]
    assert long.memory["l4"].misses == short.memory["l4"].misses == 12 * 2**20 // 64
    assert (long.cycles - short.cycles) / 196_608 == pytest.approx(100, rel=0.01)


def test_m5_a_disk_may_lie_behind_dram(tmp_path: Path) -> None:
    """M5: disk, DRAM, L2, L1, registers. Both inputs come from the disk, once: 512 KiB at 1 GB/s, after 100 µs."""
    (tmp_path / "five.yaml").write_text(
        """
format: 1
name: five
extends: course_cpu
description: All five levels of the notes.
memory:
  - {name: disk, after: dram, kind: storage, shared_by: all, latency: 100 us, bandwidth: 1 GB/s, source: test}
energy:
  actions:
    disk.read: {energy: 100 pJ/bit, source: test}
"""
    )
    result = hwsim.run(str(tmp_path / "five.yaml"), "add", n=65536)
    assert result.bounds["parts"]["staging from disk"] == pytest.approx(100e-6 + 2 * 65536 * 4 / 1e9)
    assert result.time_s == pytest.approx(100e-6 + 2 * 65536 * 4 / 1e9)


@pytest.mark.parametrize(
    ("workload", "sizes"),
    [("add", {"n": 4096}), ("matmul_tiled", {"n": 48}), ("sum_columns", {"n": 128}), ("pointer_chase", {"steps": 500})],
)
def test_m6_time_lies_between_its_longest_part_and_the_sum_of_all(workload: str, sizes: dict[str, int]) -> None:
    """M6: full overlap is never slower than overlap of memory alone, and that never slower than none."""
    runs = {
        mode: hwsim.run("course_cpu", workload, set={"core.overlap": mode}, **sizes)
        for mode in ("full", "memory", "none")
    }
    for result in runs.values():
        parts = result.bounds["parts"].values()
        assert result.bounds["lower_s"] == pytest.approx(max(parts))
        assert result.bounds["upper_s"] == pytest.approx(sum(parts))
        assert result.bounds["lower_s"] <= result.time_s <= result.bounds["upper_s"] * (1 + 1e-12)
    assert runs["full"].time_s <= runs["memory"].time_s <= runs["none"].time_s


def test_m6_both_ends_are_printed() -> None:
    screen = " ".join(command("run", "add", "n=4096", "--set", "core.overlap=none").out.split())
    assert "if all parts overlapped" in screen
    assert "this machine overlaps nothing" in screen


def test_m6_without_overlap_transfers_add_up() -> None:
    """What the units take, and each transfer after it."""
    result = hwsim.run("course_cpu", "add", n=4096, set={"core.overlap": "none"})
    parts = result.bounds["parts"]
    transfers = sum(seconds for name, seconds in parts.items() if name in ("l2→l1", "dram→l2"))
    work = max(seconds for name, seconds in parts.items() if "→l" not in name and name != "loop start")
    assert result.time_s == pytest.approx(transfers + work + parts["loop start"])


WIDE = {"core.ports.add": 4, "core.issue_width": 8}
"""So that the additions of the reading loop do not hide what the first cache can deliver."""


@pytest.mark.parametrize(("size", "passes", "bytes_per_cycle"), [("16 KiB", 100, 64), ("128 KiB", 50, 32)])
def test_m6_reading_again_and_again_reads_back_the_bandwidth_of_a_cache(
    size: str, passes: int, bytes_per_cycle: int
) -> None:
    """L1 64 B and L2 32 B per cycle of 2 GHz; what begins and ends the loop costs L1 2 %."""
    assert bandwidth("course_cpu", size, passes, set=WIDE) == pytest.approx(bytes_per_cycle * 2e9, rel=0.03)


def test_m6_the_adder_bounds_what_a_stock_core_reads_from_l1() -> None:
    """One vector of 32 B is added per cycle."""
    assert bandwidth("course_cpu", "16 KiB", 100) == pytest.approx(32 * 2e9, rel=0.03)


def test_m6_one_core_draws_from_dram_what_its_outstanding_misses_allow() -> None:
    """64 lines of 64 B in 200 ns are 20.48 GB/s; two cores reach the 25.6 GB/s of the memory."""
    assert bandwidth("course_cpu", "1 MiB", 3) == pytest.approx(64 * 64 / 200e-9, rel=0.01)
    assert bandwidth("course_cpu", "2 MiB", 3, parallel="rows", cores=2) == pytest.approx(25.6e9, rel=0.01)


def test_m6_all_cores_together_read_back_the_bandwidth_of_a_shared_cache() -> None:
    """L3 of tinytorch_cpu: 64 B per cycle of 3 GHz for all; each of four cores could draw 32."""
    assert bandwidth("tinytorch_cpu", "4 MiB", 4, parallel="rows", cores=4) == pytest.approx(64 * 3e9, rel=0.03)
