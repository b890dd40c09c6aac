"""Whatever machine, workload and split: time is attributed completely, and links neither lose nor invent bytes."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

import hwsim
from hwsim.api import resolve_machine, resolve_workload, run_all, simulate
from hwsim.engine import FEMTOSECONDS, Link, Outcome
from hwsim.program import loops
from hwsim.program.loop_kernel import LoopKernel, build_kernel

# Links ----------------------------------------------------------------------------------------------------------------

Flow = tuple[int, int]
"""Start in femtoseconds, bytes."""

flows = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 300)), min_size=1, max_size=12)
rates = st.fractions(Fraction(1, 7), 9, max_denominator=11)
"""Bytes per femtosecond."""


def finish(rate: Fraction, arrivals: list[Flow]) -> tuple[list[int], int, int]:
    """When each transfer ends, the bytes that the link counted, and the events that it took."""
    env = simpy.Environment()
    link = Link(env, "link", rate * FEMTOSECONDS)
    done = [-1] * len(arrivals)

    def move(number: int, start: int, nbytes: int) -> Iterator[simpy.Event]:
        yield env.timeout(start)
        yield link.transfer(nbytes)
        done[number] = env.now

    for number, (start, nbytes) in enumerate(arrivals):
        env.process(move(number, start, nbytes))
    events = 0
    while env.peek() != float("inf"):
        env.step()
        events += 1
    assert not link._waiting
    return done, link.moved_bytes, events


def fluid(rate: Fraction, arrivals: list[Flow]) -> list[Fraction]:
    """The same in exact time, step by step: at each moment all transfers in flight get an equal share."""
    left = {number: Fraction(nbytes) for number, (_, nbytes) in enumerate(arrivals)}
    ends = {number: Fraction(start) for number, (start, nbytes) in enumerate(arrivals) if nbytes == 0}
    now = Fraction(0)
    while len(ends) < len(arrivals):
        active = [n for n in left if n not in ends and arrivals[n][0] <= now]
        coming = [Fraction(start) for n, (start, _) in enumerate(arrivals) if n not in ends and start > now]
        if not active:
            now = min(coming)
            continue
        share = rate / len(active)
        until = min([now + min(left[n] for n in active) / share, *coming])
        for n in active:
            left[n] -= (until - now) * share
            if left[n] == 0:
                ends[n] = until
        now = until
    return [ends[number] for number in range(len(arrivals))]


@settings(deadline=None)
@given(rates, flows)
def test_a_link_keeps_to_the_exact_fair_shares_up_to_rounding(rate: Fraction, arrivals: list[Flow]) -> None:
    """Never early; late by less than a femtosecond for each completion, its own and those before it."""
    done, moved, _ = finish(rate, arrivals)
    assert moved == sum(nbytes for _, nbytes in arrivals)
    for end, exact in zip(done, fluid(rate, arrivals), strict=True):
        assert exact <= end < exact + len(arrivals) + 1


@settings(deadline=None)
@given(rates, st.lists(st.integers(1, 300), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_arrival_at_equal_times_does_not_matter(rate: Fraction, sizes: list[int], random: Any) -> None:
    order = list(range(len(sizes)))
    random.shuffle(order)
    straight, *_ = finish(rate, [(5, nbytes) for nbytes in sizes])
    shuffled, *_ = finish(rate, [(5, sizes[number]) for number in order])
    assert [straight[number] for number in order] == shuffled


@settings(deadline=None)
@given(rates, st.integers(1, 40), st.integers(1, 500))
def test_equal_transfers_end_together_when_all_bytes_have_moved(rate: Fraction, count: int, nbytes: int) -> None:
    """n transfers of b bytes take n*b over the bandwidth, rounded up once."""
    done, *_ = finish(rate, [(0, nbytes)] * count)
    exact = count * nbytes / rate
    assert set(done) == {-(-exact.numerator // exact.denominator)}


@settings(deadline=None)
@given(rates, flows)
def test_the_larger_of_two_transfers_that_start_together_never_ends_first(rate: Fraction, arrivals: list[Flow]) -> None:
    done, *_ = finish(rate, arrivals)
    for start, nbytes in arrivals:
        same = sorted((b, end) for (s, b), end in zip(arrivals, done, strict=True) if s == start and b >= nbytes)
        assert [end for _, end in same] == sorted(end for _, end in same)


def test_108_transfers_at_once_take_a_few_events_each() -> None:
    """As many as an A100 has SMs: each has its start, its arrival, its appointment, its end."""
    _, moved, events = finish(Fraction(3), [(number % 7, 1000 + number) for number in range(108)])
    assert moved == sum(1000 + number for number in range(108))
    assert events <= 8 * 108


# Whole runs -----------------------------------------------------------------------------------------------------------

workloads = st.sampled_from(
    [
        ("add", {"n": 300}),
        ("fused", {"n": 200}),
        ("matmul_naive", {"n": 12}),
        ("matmul_tiled", {"n": 20, "tile": 8}),
        ("matmul_parallel", {"n": 24, "tile": 4}),
        ("matmul_blocked", {"n": 16}),
        ("sum_columns", {"n": 24, "m": 40}),
        ("stream_read", {"bytes": "2 KiB", "passes": 2}),
        ("triad", {"n": 500}),
    ]
)
machines = st.sampled_from(["course_cpu", "tinytorch_cpu", "zen3", "cortex_a78"])
overlaps = st.sampled_from(["none", "memory", "full"])
shares = st.fixed_dictionaries({"cores": st.integers(1, 4), "split": st.sampled_from(["static", "dynamic"])})
changes = st.lists(
    st.sampled_from(
        [
            "l1.size=1 KiB",
            "l2.bandwidth=3 B/cycle",
            "dram.bandwidth=1 GB/s",
            "core.window=1",
            "l1.mshrs=1",
            "core.ports.fma=0",
            "core.issue_width=1",
            "core.loop_start=0",
            "dram.bandwidth=inf",
        ]
    ),
    max_size=3,
    unique_by=lambda text: text.partition("=")[0],
)


def played(machine: str, workload: tuple[str, dict[str, Any]], share: dict[str, Any], settings: list[str]) -> Outcome:
    name, sizes = workload
    parameters = {**sizes, "parallel": "rows", **share}
    return run_all(machine, name, set=settings, math=False, parameters=parameters).outcome


@settings(max_examples=80, deadline=None)
@given(machines, workloads, shares, overlaps, changes)
def test_every_femtosecond_of_every_core_is_put_down_to_something(
    machine: str, workload: tuple[str, dict[str, Any]], share: dict[str, Any], overlap: str, changed: list[str]
) -> None:
    outcome = played(machine, workload, share, [f"core.overlap={overlap}", *changed])
    assert len(outcome.agents) <= share["cores"]
    for agent in outcome.agents:
        assert sum(agent.busy.values()) + sum(agent.waiting.values()) == agent.elapsed_fs == outcome.elapsed_fs
        assert min([*agent.busy.values(), *agent.waiting.values()]) >= 0


@settings(max_examples=60, deadline=None)
@given(machines, workloads, shares, overlaps, changes)
def test_time_lies_between_the_longest_part_and_the_sum_of_all(
    machine: str, workload: tuple[str, dict[str, Any]], share: dict[str, Any], overlap: str, changed: list[str]
) -> None:
    """Each part is rounded up to a femtosecond in each step, so the sum may be that much larger, never smaller."""
    outcome = played(machine, workload, share, [f"core.overlap={overlap}", *changed])
    assert outcome.lower_fs <= outcome.elapsed_fs <= outcome.upper_fs


@settings(max_examples=25, deadline=None)
@given(machines, workloads, shares, changes)
def test_more_overlap_is_never_slower_on_one_core(
    machine: str, workload: tuple[str, dict[str, Any]], share: dict[str, Any], changed: list[str]
) -> None:
    alone = {**share, "cores": 1}
    full, memory, none = (
        played(machine, workload, alone, [f"core.overlap={mode}", *changed]).elapsed_fs
        for mode in ("full", "memory", "none")
    )
    assert full <= memory <= none


@settings(max_examples=20, deadline=None)
@given(machines, workloads, shares, overlaps)
def test_the_attribution_of_a_result_adds_up_in_cycles(
    machine: str, workload: tuple[str, dict[str, Any]], share: dict[str, Any], overlap: str
) -> None:
    name, sizes = workload
    result = hwsim.run(machine, name, set={"core.overlap": overlap}, math=False, parallel="rows", **sizes, **share)
    for parts in result.attribution.values():
        assert sum(parts["busy"].values()) + sum(parts["waiting"].values()) == result.cycles


@settings(max_examples=15, deadline=None)
@given(machines, workloads, shares)
def test_the_same_run_gives_the_same_bytes(
    machine: str, workload: tuple[str, dict[str, Any]], share: dict[str, Any]
) -> None:
    name, sizes = workload
    first, again = (hwsim.run(machine, name, parallel="rows", **sizes, **share).to_json() for _ in range(2))
    assert first == again


# Granularity ----------------------------------------------------------------------------------------------------------


def counts(machine: str, name: str, parameters: dict[str, Any], fine: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Everything that one core counts, in one step or in many."""
    spec = resolve_machine(machine, ["l1.size=1 KiB", "l2.size=4 KiB"])
    kernel = build_kernel(resolve_workload(name, parameters), lanes=4, math=False)
    assert isinstance(kernel, LoopKernel)
    if fine:
        cut = loops.cut_steps
        monkeypatch.setattr("hwsim.program.loop_kernel.cut_steps", lambda plan, ranges, fine: cut(plan, ranges, True))
    outcome = simulate(spec, kernel)
    monkeypatch.undo()
    return (
        outcome.levels,
        outcome.dram,
        outcome.tensors,
        outcome.instructions,
        outcome.flops,
        outcome.macs,
    ), outcome.events


shapes = st.fixed_dictionaries({name: st.integers(1, 20) for name in "mkn"})
schedules = st.sampled_from(
    [
        {},
        {"order": "kij"},
        {"order": "jki", "accumulate": "memory"},
        {"tile": 4},
        {"tile": 8, "order": "jik"},
        {"tile": 6, "v1": 2, "v2": 3},
        {"b1": 4, "b2": 8, "b_layout": "jk"},
        {"vector": True, "v1": 2, "tile": 8},
        {"vector": True, "order": "ikj"},
    ]
)


@settings(max_examples=60, deadline=None)
@given(shapes, schedules)
def test_a_matmul_cut_into_finer_steps_gives_the_same_counts(shape: dict[str, int], schedule: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        coarse, few = counts("course_cpu", "matmul_naive", shape | schedule, False, patch)
        fine, many = counts("course_cpu", "matmul_naive", shape | schedule, True, patch)
    assert coarse == fine
    assert many >= few


def test_the_finer_cut_really_is_finer() -> None:
    with pytest.MonkeyPatch.context() as patch:
        (_, few), (_, many) = (counts("course_cpu", "matmul_naive", {"n": 16}, fine, patch) for fine in (False, True))
    assert many >= few + 15, "sixteen rows are a step each instead of all together"
