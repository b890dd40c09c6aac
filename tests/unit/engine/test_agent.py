"""Cores as agents: who takes which block, and when."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

import hwsim
from hwsim.engine import Outcome
from hwsim.trace.nest import Access, Nest
from tests.unit.engine.made import BARRIER_FS, CYCLE_FS, SPAWN_FS, adds, play


def busy_cycles(outcome: Outcome) -> list[int]:
    return [sum(agent.busy.values()) // CYCLE_FS for agent in outcome.agents]


def lines(count: int, base: int = 4096) -> Nest:
    """Reads of so many neighbouring lines."""
    return Nest((count,), (Access(base, (64,), 4),))


def test_steps_of_a_block_follow_each_other() -> None:
    outcome = play([[adds(100), adds(50)]])
    assert outcome.elapsed_fs == 150 * CYCLE_FS
    assert busy_cycles(outcome) == [150]


def test_one_core_pays_for_no_start_and_no_barrier() -> None:
    assert set(play([[adds(100)]]).agents[0].waiting) == set()


def test_blocks_run_side_by_side_between_start_and_barrier() -> None:
    outcome = play([[adds(1000)], [adds(400)]], cores=2)
    assert outcome.elapsed_fs == SPAWN_FS + 1000 * CYCLE_FS + BARRIER_FS
    assert [agent.waiting["barrier"] for agent in outcome.agents] == [BARRIER_FS, BARRIER_FS + 600 * CYCLE_FS]


def test_a_core_that_is_free_takes_the_next_block() -> None:
    """1000 cycles keep the first core; the second does three blocks of 300 meanwhile."""
    outcome = play([[adds(1000)], [adds(300)], [adds(300)], [adds(300)]], cores=2)
    assert busy_cycles(outcome) == [1000, 900]


def test_there_are_no_more_cores_than_blocks_or_than_the_machine_has() -> None:
    assert len(play([[adds(1)]] * 2, cores=4).agents) == 2
    assert len(play([[adds(1)]] * 9, cores=9).agents) == 4


def test_a_dynamic_split_uses_the_cores_that_were_asked_for() -> None:
    """It once used all of the machine, since its blocks are more than its cores."""
    result = hwsim.run("course_cpu", "matmul_parallel", n=32, tile=4, cores=2, split="dynamic")
    assert result.work["cores"] == 2


def test_two_cores_share_the_bandwidth_of_dram() -> None:
    """4,096 lines take 10.24 µs at 25.6 GB/s; two cores with as many each take twice as long."""
    settings = ("l1.mshrs=4096", "l2.mshrs=4096", "core.spawn=0 us", "core.barrier=0 us")
    alone = play([[adds(1, lines(4096))]], *settings).elapsed_fs
    both = play([[adds(1, lines(4096))], [adds(1, lines(4096, 2**24))]], *settings, cores=2).elapsed_fs
    assert alone == pytest.approx(4096 * 64 / 25.6e9 * 1e15, rel=1e-3)
    assert both == pytest.approx(2 * alone, rel=1e-3)


@pytest.mark.parametrize("overlap", ["none", "memory", "full"])
def test_events_of_one_lane_of_the_timeline_do_not_overlap(overlap: str) -> None:
    blocks = [[adds(100, lines(64)), adds(50, lines(8)), adds(70)] for _ in range(3)]
    outcome = play(blocks, f"core.overlap={overlap}", cores=2, timeline=True)
    lanes = defaultdict(list)
    for span in outcome.spans:
        assert 0 <= span.start_fs <= span.end_fs <= outcome.elapsed_fs
        lanes[span.lane].append((span.start_fs, span.end_fs))
    assert len(lanes) >= 4
    for spans in lanes.values():
        ordered = sorted(spans)
        assert all(first[1] <= second[0] for first, second in pairwise(ordered))


def test_nothing_is_recorded_unless_asked_for() -> None:
    assert play([[adds(10)]]).spans == ()


def test_a_step_takes_a_few_events() -> None:
    few, many = (play([[adds(10, lines(8))] * steps]).events for steps in (10, 20))
    assert (many - few) / 10 <= 8
