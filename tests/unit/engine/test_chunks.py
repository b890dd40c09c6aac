"""A step is played in chunks: the same counts, each with the time of what it moved itself."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from hwsim.api import run_all
from hwsim.engine import Outcome
from hwsim.memory.counters import DramCounters
from hwsim.memory.hierarchy import Traffic
from hwsim.program.kernel import Step
from hwsim.targets.cpu.agent import MOST_OF_A_RUN, MOST_OF_A_STEP, Cutter, cut
from hwsim.targets.cpu.model import CpuCore
from hwsim.trace.nest import Access, Instructions, Nest, Work
from tests.unit.engine.made import CYCLE_FS, play

Patch = pytest.MonkeyPatch


def grain(patch: Patch, accesses: int) -> None:
    """Chunks of at least so many accesses."""
    patch.setattr("hwsim.targets.cpu.agent.LEAST_ACCESSES", accesses)


def run(machine: str, workload: str, *changes: str, timeline: bool = False, **parameters: Any) -> Outcome:
    return run_all(machine, workload, set=list(changes), math=False, timeline=timeline, parameters=parameters).outcome


def counts(outcome: Outcome) -> tuple[Any, ...]:
    return (
        outcome.levels, outcome.dram, outcome.tensors, outcome.instructions, outcome.flops, outcome.loads,
        outcome.stores, outcome.accesses, outcome.ledger.counts(),
    )  # fmt: skip


RUNS = [
    ("matmul_tiled", {"n": 48, "tile": 16}),
    ("matmul_naive", {"n": 40, "order": "jki"}),
    ("conv2d", {"height": 24, "ci": 4, "co": 4}),
    ("sum_columns", {"n": 200, "m": 100}),
    ("add", {"n": 100_000}),
]


@pytest.mark.parametrize(("workload", "parameters"), RUNS, ids=[name for name, _ in RUNS])
@pytest.mark.parametrize("machine", ["course_cpu", "zen3"])
def test_chunks_change_no_count(machine: str, workload: str, parameters: dict[str, Any], monkeypatch: Patch) -> None:
    grain(monkeypatch, 10**9)
    coarse = run(machine, workload, **parameters)
    grain(monkeypatch, 256)
    fine = run(machine, workload, **parameters)
    assert fine.events > coarse.events
    assert counts(fine) == counts(coarse)


@pytest.mark.parametrize("overlap", ["none", "memory", "full"])
@pytest.mark.parametrize(("workload", "parameters"), RUNS, ids=[name for name, _ in RUNS])
def test_time_in_chunks_lies_between_the_longest_part_and_the_sum(
    overlap: str, workload: str, parameters: dict[str, Any], monkeypatch: Patch
) -> None:
    grain(monkeypatch, 256)
    outcome = run("course_cpu", workload, f"core.overlap={overlap}", **parameters)
    assert outcome.lower_fs <= outcome.elapsed_fs <= outcome.upper_fs
    for agent in outcome.agents:
        assert sum(agent.busy.values()) + sum(agent.waiting.values()) == agent.elapsed_fs


ACCESSES = 1 << 18


def two_phases(adds: int) -> Step:
    """So many loads of one line, then as many lines of memory; additions all along."""
    near = Nest((ACCESSES,), (Access(4096, (0,), 4),))
    far = Nest((ACCESSES,), (Access(1 << 24, (64,), 4),))
    return Step("phases", Work(adds, 0, Instructions(add=adds)), (near, far))


def memory_cycles(*changes: str) -> int:
    return play([[two_phases(1)]], *changes).parts["dram→l2"] // CYCLE_FS


def test_a_phase_that_computes_does_not_pay_for_one_that_waits_for_memory() -> None:
    """As many cycles of additions as memory needs: half of them run before it is needed, and half beside it."""
    cycles = memory_cycles()
    outcome = play([[two_phases(cycles)]])
    assert outcome.elapsed_fs == pytest.approx(1.5 * cycles * CYCLE_FS, rel=0.02)
    assert outcome.lower_fs == pytest.approx(cycles * CYCLE_FS, rel=0.02)
    assert outcome.agents[0].waiting["dram→l2"] == pytest.approx(0.5 * cycles * CYCLE_FS, rel=0.02)


def test_in_one_chunk_the_same_work_would_hide_its_memory(monkeypatch: Patch) -> None:
    """What a run did before it was cut: the largest of its parts."""
    cycles = memory_cycles()
    grain(monkeypatch, 10**9)
    assert play([[two_phases(cycles)]]).elapsed_fs == pytest.approx(cycles * CYCLE_FS, rel=0.02)


def test_a_kernel_that_is_always_the_same_takes_as_long_in_chunks(monkeypatch: Patch) -> None:
    """But for its beginning: until the L2 is full of changed lines nothing is written back, and those chunks wait for
    the latency of DRAM (2,048 lines, 32 at a time, 100 ns: 6.4 µs) instead of its bandwidth (128 KiB: 5.12 µs). In
    one piece that is hidden behind the write-backs of the rest, so what a longer copy takes more is compared."""
    longer = []
    for accesses in (10**9, 1 << 12):
        grain(monkeypatch, accesses)
        longer.append(run("course_cpu", "copy", n=1 << 19).elapsed_fs - run("course_cpu", "copy", n=1 << 18).elapsed_fs)
    assert longer[1] == pytest.approx(longer[0], rel=0.005)


def alternating() -> list[Step]:
    """One step of many pieces: loads of one line and loads of new lines take turns."""
    nests = []
    for turn in range(16):
        nests.append(Nest((4096,), (Access(4096, (0,), 4),)))
        nests.append(Nest((4096,), (Access((1 << 24) + (turn << 18), (64,), 4),)))
    return [Step("turns", Work(1 << 18, 0, Instructions(add=1 << 18)), tuple(nests))]


def test_transfers_of_the_next_chunk_begin_before_the_present_one_is_done(monkeypatch: Patch) -> None:
    """64 lines can be on their way: each time memory is needed, as much as arrives meanwhile is won, and no more."""
    grain(monkeypatch, 4096)
    ahead = play([alternating()]).elapsed_fs
    monkeypatch.setattr(CpuCore, "reach_cycles", Fraction(0))
    without = play([alternating()]).elapsed_fs
    lines_fs = 64 * 64 / 25.6e9 * 1e15  # 64 lines at the bandwidth of DRAM, or the latency: about as long
    turns = 16
    assert without - turns * 2 * max(lines_fs, 400 * CYCLE_FS) <= ahead < without


@pytest.mark.parametrize("overlap", ["none", "memory"])
def test_a_core_whose_memory_does_not_work_beside_it_does_not_run_ahead(overlap: str, monkeypatch: Patch) -> None:
    grain(monkeypatch, 4096)
    times = [play([alternating()], f"core.overlap={overlap}").elapsed_fs]
    monkeypatch.setattr(CpuCore, "reach_cycles", Fraction(0))
    times.append(play([alternating()], f"core.overlap={overlap}").elapsed_fs)
    assert times[0] == times[1]


def test_the_timeline_shows_dozens_of_chunks_and_the_power_of_each() -> None:
    outcome = run("course_cpu", "matmul_tiled", n=192, tile=32, timeline=True)
    lanes = {span.lane for span in outcome.spans}
    assert {"core[0]", "core[0] l2→l1", "core[0] dram→l2"} <= lanes
    work = [span for span in outcome.spans if span.lane == "core[0]"]
    assert 50 < len(work) <= 1.5 * MOST_OF_A_STEP
    assert len(outcome.pulses) == len(work)
    total: dict[str, int] = {}
    for pulse in outcome.pulses:
        for name, count in pulse.ledger.counts().items():
            total[name] = total.get(name, 0) + count
    assert total == outcome.ledger.counts()


def test_cold_caches_show_at_the_beginning() -> None:
    """The first tiles come from memory; afterwards all three matrices are in L2."""
    outcome = run("course_cpu", "matmul_tiled", n=128, tile=32, timeline=True)
    spans = [span for span in outcome.spans if span.lane == "core[0] dram→l2"]
    half = outcome.elapsed_fs // 2
    early, late = (sum(s.end_fs - s.start_fs for s in spans if (s.start_fs < half) == first) for first in (True, False))
    assert early > 1.2 * late


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_a_run_stays_within_its_events(cores: int, monkeypatch: Patch) -> None:
    """However short chunks may be, and however many steps there are."""
    grain(monkeypatch, 16)
    assert run("course_cpu", "matmul_parallel", n=64, tile=8, cores=cores).events <= 50_000
    assert run("course_cpu", "attention_fused").events <= 50_000


def test_chunks_half_as_long_change_the_time_of_cores_that_share_a_cache_by_little(monkeypatch: Patch) -> None:
    """A chunk is the grain at which cores mix in the shared cache."""
    times, misses = [], []
    for accesses in (1 << 13, 1 << 12):
        grain(monkeypatch, accesses)
        outcome = run("course_cpu", "matmul_parallel", "l2.size=64 KiB", "l2.shared_by=all", n=128, tile=16, cores=4)
        times.append(outcome.elapsed_fs)
        misses.append(outcome.levels["l2"].misses)
    assert times[1] == pytest.approx(times[0], rel=0.02)
    assert misses[1] == pytest.approx(misses[0], rel=0.05)


def test_the_first_steps_of_a_long_run_get_more_chunks_and_the_last_ones_still_run() -> None:
    cutter = Cutter(1)
    parts = [cutter.parts(10**9) for _ in range(200)]
    assert parts[0] == MOST_OF_A_STEP
    assert parts == sorted(parts, reverse=True)
    assert min(parts) >= 1
    assert sum(parts) <= MOST_OF_A_RUN + len(parts)


def test_a_step_is_cut_into_as_many_chunks_as_were_asked_for_and_its_end_is_one() -> None:
    """A nest of 100 accesses in 7 parts of 14 or 15: replayed piece by piece, put together to four chunks."""
    nest = Nest((100,), (Access(0, (8,), 8),))

    def replay(_: Nest, parts: int) -> Iterator[Traffic]:
        assert parts == 4
        done = 0
        for number in range(1, 8):
            until = 100 * number // 7
            yield Traffic({}, DramCounters(), {}, until - done, 0)
            done = until

    chunks = list(cut([nest], 4, replay))
    assert [chunk.end for chunk in chunks] == [Fraction(28, 100), Fraction(57, 100), Fraction(85, 100), Fraction(1)]
    assert [sum(moved.accesses for moved in chunk.traffic) for chunk in chunks] == [28, 29, 28, 15]
