"""Stopwatch: what a step's time is put down to, without remainder."""

from __future__ import annotations

from fractions import Fraction

import pytest

from hwsim.targets.cpu.tally import CostPart, StepCost, Stopwatch


def cost(*compute: CostPart, chain: tuple[CostPart, ...] = (), delays: tuple[CostPart, ...] = ()) -> StepCost:
    return StepCost(compute, chain, delays, ())


def part(name: str, cycles: int, busy: bool = False) -> CostPart:
    return CostPart(name, Fraction(cycles), busy)


def watched(step: StepCost, durations: dict[str, int], elapsed: int, overlap: str = "full") -> Stopwatch:
    """One cycle is one femtosecond."""
    watch = Stopwatch("core[0]")
    watch.step(step, durations, elapsed, overlap, int)
    assert watch.elapsed_fs == elapsed
    return watch


def test_the_unit_with_the_most_work_is_busy_and_the_rest_is_what_others_add() -> None:
    """100 in the unit; the load port needs 50 more, and DRAM another 30."""
    step = cost(part("fma", 100, busy=True), part("add", 20, busy=True), part("load port", 150))
    watch = watched(step, {"dram→l2": 180}, 180)
    assert watch.busy == {"fma": 100}
    assert watch.waiting == {"load port": 50, "dram→l2": 30}


def test_what_is_hidden_behind_something_longer_is_not_waited_for() -> None:
    watch = watched(cost(part("fma", 100, busy=True), part("issue", 60)), {"l2→l1": 80}, 100)
    assert (watch.busy, +watch.waiting) == ({"fma": 100}, {})


def test_a_chain_is_charged_beyond_the_work() -> None:
    step = cost(part("fma", 100, busy=True), chain=(part("dependency chain", 400),))
    assert watched(step, {}, 400).waiting == {"dependency chain": 300}


def test_delays_come_on_top_of_everything() -> None:
    step = cost(part("fma", 100, busy=True), delays=(part("loop start", 8),))
    assert watched(step, {}, 108).waiting == {"loop start": 8}


def test_without_overlap_every_transfer_is_waited_for() -> None:
    watch = watched(cost(part("fma", 100, busy=True)), {"l2→l1": 30, "l3→l2": 50, "dram→l3": 70}, 250, "none")
    assert (watch.busy, watch.waiting) == ({"fma": 100}, {"l2→l1": 30, "l3→l2": 50, "dram→l3": 70})


def test_with_overlap_of_memory_transfers_hide_each_other_but_no_work() -> None:
    watch = watched(cost(part("fma", 100, busy=True)), {"l2→l1": 30, "dram→l2": 70}, 170, "memory")
    assert (watch.busy, watch.waiting) == ({"fma": 100}, {"l2→l1": 30, "dram→l2": 40})


def test_with_overlap_of_memory_a_chain_runs_beside_the_transfers() -> None:
    """Work of 100 waits for 70 of transfers; a chain of 250 began with them and ends 80 later."""
    step = cost(part("fma", 100, busy=True), chain=(part("dependency chain", 250),))
    watch = watched(step, {"dram→l2": 70}, 250, "memory")
    assert watch.busy == {"fma": 100}
    assert watch.waiting == {"dram→l2": 70, "dependency chain": 80}


def test_a_femtosecond_of_rounding_goes_to_the_longest_transfer() -> None:
    assert watched(cost(part("fma", 10, busy=True)), {"dram→l2": 20}, 21).waiting == {"dram→l2": 11}


@pytest.mark.parametrize("duration", [0, 5])
def test_waiting_for_no_time_leaves_no_trace(duration: int) -> None:
    watch = Stopwatch("core[0]")
    watch.wait("barrier", duration)
    assert watch.waiting == watch.parts == ({"barrier": duration} if duration else {})


def test_parts_are_kept_as_long_as_they_are_alone() -> None:
    step = cost(part("fma", 100, busy=True), part("issue", 60), chain=(part("dependency chain", 40),))
    assert watched(step, {"l2→l1": 80}, 100).parts == {"fma": 100, "issue": 60, "dependency chain": 40, "l2→l1": 80}
