"""Whatever the topology, the number of devices and the size: collectives give the right answer, lose no byte, end, and
take what the textbook says where links are not shared."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.systems.collective import FLAT, build_schedule, exchange, pieces_of, wire_fs
from hwsim.systems.communicate import communicate
from hwsim.systems.spec import SystemSpec, as_femtoseconds

ALL_REDUCES = sorted(algorithm for algorithm, op in FLAT if op == "all_reduce")
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")


def system(devices: int, topology: str = "switch", *, node: int | None = None, step: str = "700 ns") -> SystemSpec:
    """Devices with one kernel for each algorithm, all with the same three constants."""
    inside: dict[str, Any] = {"topology": topology, "bandwidth": "123 GB/s", "source": "made up"}
    if topology == "bus":
        inside["shared"] = ({"devices": 2, "bandwidth": "77 GB/s"},)
    if topology == "tree":
        inside |= {"group": 2, "uplink": "31 GB/s"}
    between = {"topology": "switch", "bandwidth": "19 GB/s", "step": "5 us", "source": "made up"}
    ops: dict[str, tuple[str, ...]] = {}
    for algorithm, op in FLAT:
        ops[algorithm] = (*ops.get(algorithm, ()), op)
    ops["hierarchical"] = ("all_reduce",)
    kernels = tuple(
        {"algorithm": each, "ops": done, "start": "3 us", "step": step, "share": 0.7} for each, done in ops.items()
    )
    return SystemSpec.model_validate(
        {
            "format": 1, "name": "made_up", "description": "", "devices": f"{devices} x h100", "inside": inside,
            "node": node, "between": between if node is not None and node < devices else None,
            "libraries": {"lib": {"kernels": kernels, "source": "made up"}},
        }
    )  # fmt: skip


START, STEP, RATE = as_femtoseconds, 700 * 10**6, Fraction(123 * 10**9) * Fraction(7, 10)
START_FS = 3 * 10**9


@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("nbytes", [1, 7, 4096, 10**6 + 1, 1 << 30])
def test_ring_and_tree_take_what_the_textbook_says_to_the_femtosecond(algorithm: str, ranks: int, nbytes: int) -> None:
    """Thakur, Rabenseifner and Gropp, 2005: 2 (n-1) (α + S/n β) and 2 ⌈log2 n⌉ (α + S β)."""
    found = communicate(system(ranks), "all_reduce", nbytes, algorithm=algorithm)
    assert found.elapsed_fs == all_reduce_fs(algorithm, ranks, nbytes, START_FS, STEP, RATE)


@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot", "switch"])
def test_the_others_do_where_pieces_are_equal(algorithm: str, ranks: int) -> None:
    nbytes = 5040 * 1000
    found = communicate(system(ranks), "all_reduce", nbytes, algorithm=algorithm)
    assert found.elapsed_fs == all_reduce_fs(algorithm, ranks, nbytes, START_FS, STEP, RATE)


def test_hierarchical_is_two_rings_inside_and_one_between() -> None:
    found = communicate(system(8, node=4), "all_reduce", 8 * 10**6, algorithm="hierarchical")
    inside, between = (STEP, RATE), (5 * 10**9, Fraction(19 * 10**9))
    assert found.elapsed_fs == hierarchical_fs(2, 4, 8 * 10**6, START_FS, inside, between)


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(2, 9),
    topology=st.sampled_from(["switch", "ring", "tree", "bus"]),
    op=st.sampled_from(OPS),
    nbytes=st.integers(1, 10**7),
)
def test_every_collective_ends_on_every_topology_and_no_byte_is_lost(
    ranks: int, topology: str, op: str, nbytes: int
) -> None:
    ranks = 2 * ((ranks + 1) // 2) if topology == "tree" else ranks
    for algorithm in sorted({each for each, done in FLAT if done == op}):
        if algorithm == "switch" and topology != "switch":
            continue
        schedule = build_schedule(algorithm, op, ranks)
        assert schedule is not None
        found = communicate(system(ranks, topology), op, nbytes, algorithm=algorithm)
        sizes = schedule.sizes(nbytes)
        sent = sum(sum(sizes[m.first : m.last]) for each in schedule.rounds for m in each)
        if topology == "switch":
            left = sum(amount for link, amount in found.moved.items() if link.endswith("out"))
            came = sum(amount for link, amount in found.moved.items() if link.endswith("in"))
            assert (left, came) == ((ranks * nbytes,) * 2 if algorithm == "switch" else (sent, sent))
        if topology == "bus":
            assert found.moved["bus[0]"] == sent
        assert found.elapsed_fs >= START_FS
        if topology == "switch" and algorithm != "switch":
            assert found.elapsed_fs <= found.formula_fs  # nobody waits longer than for the slowest of each round


@settings(max_examples=40, deadline=None)
@given(ranks=st.integers(2, 9), size=st.integers(1, 40), seed=st.integers(0, 99))
def test_what_the_messages_carry_is_the_right_answer(ranks: int, size: int, seed: int) -> None:
    buffers = [np.random.default_rng((seed, rank)).integers(-99, 99, size) for rank in range(ranks)]
    total = np.sum(buffers, axis=0)
    for algorithm in ALL_REDUCES:
        schedule = build_schedule(algorithm, "all_reduce", ranks)
        assert schedule is not None
        assert all((each == total).all() for each in exchange(schedule, "all_reduce", buffers)), algorithm
    for algorithm in ("ring", "direct"):
        scatter, gather = (build_schedule(algorithm, op, ranks) for op in ("reduce_scatter", "all_gather"))
        assert scatter is not None and gather is not None
        for rank, each in enumerate(exchange(scatter, "reduce_scatter", buffers)):
            assert (pieces_of(each, ranks)[rank] == pieces_of(total, ranks)[rank]).all()
        own = [_only(buffer, rank, ranks) for rank, buffer in enumerate(buffers)]
        whole = np.concatenate([pieces_of(buffer, ranks)[rank] for rank, buffer in enumerate(buffers)])
        assert all((each == whole).all() for each in exchange(gather, "all_gather", own))
    spread = build_schedule("tree", "broadcast", ranks)
    assert spread is not None
    assert all((each == buffers[0]).all() for each in exchange(spread, "broadcast", buffers))


def _only(buffer: Any, rank: int, ranks: int) -> Any:
    """A buffer in which only the piece of a rank is known."""
    empty = np.zeros_like(buffer)
    pieces_of(empty, ranks)[rank][:] = pieces_of(buffer, ranks)[rank]
    return empty


@pytest.mark.parametrize("ranks", range(2, 9))
def test_all_to_all_transposes(ranks: int) -> None:
    schedule = build_schedule("direct", "all_to_all", ranks)
    assert schedule is not None
    buffers = [np.array([10 * rank + other for other in range(ranks)]) for rank in range(ranks)]
    for rank, each in enumerate(exchange(schedule, "all_to_all", buffers)):
        assert list(each) == [10 * other + rank for other in range(ranks)]


@pytest.mark.parametrize(("nodes", "size"), [(2, 4), (3, 2), (4, 1), (2, 8)])
def test_hierarchical_gives_the_sum_as_well(nodes: int, size: int) -> None:
    schedule = build_schedule("hierarchical", "all_reduce", nodes * size, nodes)
    if size == 1:
        assert schedule is None  # nobody to reduce with inside
        return
    assert schedule is not None
    buffers = [np.random.default_rng(rank).integers(-9, 9, 37) for rank in range(nodes * size)]
    total = np.sum(buffers, axis=0)
    assert all((each == total).all() for each in exchange(schedule, "all_reduce", buffers))


def test_the_fastest_kernel_is_taken_few_rounds_for_small_and_few_bytes_for_large() -> None:
    small, large = (communicate(system(8), "all_reduce", size, form="int8") for size in (64, 1 << 28))
    assert small.algorithm in ("one_shot", "switch")
    assert large.algorithm in ("ring", "two_shot", "switch")
    every = [communicate(system(8), "all_reduce", 1 << 28, algorithm=each).elapsed_fs for each in ALL_REDUCES]
    assert large.elapsed_fs == min(every)


def test_a_shared_bus_makes_four_slower_than_two() -> None:
    two, four = (communicate(system(4, "bus"), "all_reduce", 10**8, devices=n, algorithm="ring") for n in (2, 4))
    assert four.seconds == pytest.approx(3 * two.seconds, rel=0.01)  # 2 (n-1) S through one medium


# Textbook formulas, for links that nobody shares: a step is α, a byte costs 1/B. They know nothing of messages and
# rounds; the simulation has to agree with them to the femtosecond.


def all_reduce_fs(
    algorithm: str, ranks: int, nbytes: int, start_fs: int, step_fs: int, bytes_per_s: Fraction
) -> int | None:
    """The time of an all-reduce; None for algorithms that have no such formula."""
    levels = (ranks - 1).bit_length()
    part = -(-nbytes // ranks)
    if algorithm == "ring":
        return start_fs + 2 * (ranks - 1) * (step_fs + wire_fs(part, bytes_per_s))
    if algorithm == "tree":
        return start_fs + 2 * levels * (step_fs + wire_fs(nbytes, bytes_per_s))
    if algorithm == "one_shot":
        return start_fs + (ranks - 1) * step_fs + wire_fs((ranks - 1) * nbytes, bytes_per_s)
    if algorithm == "two_shot":
        return start_fs + 2 * ((ranks - 1) * step_fs + wire_fs((ranks - 1) * part, bytes_per_s))
    if algorithm == "switch":
        return start_fs + step_fs + 2 * wire_fs(nbytes, bytes_per_s)
    return None


def hierarchical_fs(
    nodes: int, size: int, nbytes: int, start_fs: int, inside: tuple[int, Fraction], between: tuple[int, Fraction]
) -> int:
    """Once around inside, an all-reduce of a part between, once around inside; `inside`, `between`: step and rate."""
    within = 2 * (size - 1) * (inside[0] + wire_fs(nbytes // size, inside[1]))
    across = 2 * (nodes - 1) * (between[0] + wire_fs(nbytes // (size * nodes), between[1]))
    return start_fs + within + across
