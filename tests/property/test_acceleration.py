"""Run compression and warping change nothing: counts, causes of misses and final state are those of the plain walk."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.memory import warp
from hwsim.memory.hierarchy import Hierarchy
from hwsim.memory.row_period import find_rounds
from hwsim.spec.machine import DramSpec
from hwsim.trace.nest import Access, Nest
from tests.property.strategies import cache, nests, plain_hierarchies

DRAM = DramSpec(kind="dram", name="dram", channels=2, banks=4, row="256 B", burst="32 B")


def assert_same_as_plain_walk(specs, program, dram=None, **settings_under_test):
    plain = Hierarchy(specs, dram, seed=3, compress=False, warp=False)
    fast = Hierarchy(specs, dram, seed=3, warp_from=0, **settings_under_test)
    skipped = 0
    for nest in program:
        before, after = plain.replay(nest), fast.replay(nest)
        skipped += after.skipped
        assert before.levels == after.levels
        assert before.dram == after.dram
        assert before.misses == after.misses
    for instance in plain.topology.instances:
        assert plain.contents(instance.name) == fast.contents(instance.name)
    assert (plain.dram.open_rows == fast.dram.open_rows).all()
    return skipped


@settings(max_examples=150, deadline=None)
@given(plain_hierarchies(), st.lists(nests(regular=True), min_size=1, max_size=3))
def test_run_compression_equals_the_plain_walk(specs, program):
    assert_same_as_plain_walk(specs, program, compress=True, warp=False)


@st.composite
def periodic_nests(draw):
    """A long outer loop over tensors that move by steps which soon come back to the same sets."""
    inner = draw(st.integers(1, 12))
    accesses = []
    for number in range(draw(st.integers(1, 3))):
        move = draw(st.sampled_from([0, 8, 16, 32, 64, 128, 256, 512]))
        step = draw(st.sampled_from([0, 8, 32, 64]))
        write, after = draw(st.booleans()), draw(st.booleans())
        base = (1 << 20) + (number << 18) + draw(st.sampled_from([0, 8, 64]))
        accesses.append(Access(base, (move, step)[: draw(st.integers(1, 2))], 8, write=write, after=after))
    return Nest((draw(st.integers(20, 300)), inner), tuple(accesses))


@settings(max_examples=200, deadline=None)
@given(
    plain_hierarchies(),
    st.lists(periodic_nests(), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([None, DRAM]),
)
def test_warping_equals_the_plain_walk(specs, program, compress, dram):
    assert_same_as_plain_walk(specs, program, dram, compress=compress, warp=True)


def matmul(order, n, element=8):
    a, b, c = (1 << 20) + n * n * element * 0, (1 << 20) + (1 << 22), (1 << 20) + (1 << 23)
    row = n * element
    if order == "ijk":
        accesses = (
            Access(a, (row, 0, element), element),
            Access(b, (0, element, row), element),
            Access(c, (row, element), element, write=True, after=True),
        )
    else:
        accesses = (
            Access(a, (row, element), element),
            Access(b, (0, row, element), element),
            Access(c, (row, 0, element), element),
            Access(c, (row, 0, element), element, write=True),
        )
    return Nest((n, n, n), accesses)


@pytest.mark.parametrize("order", ["ijk", "ikj"])
@pytest.mark.parametrize("n", [64, 96, 101])
@pytest.mark.parametrize("policy", ["lru", "fifo"])
@pytest.mark.parametrize("dram", [None, DRAM], ids=["plain memory", "dram rows"])
def test_warping_a_matmul_is_exact_and_really_skips(order, n, policy, dram):
    specs = [cache("l1", 8, 4, 64, replacement=policy), cache("l2", 32, 4, 64, replacement=policy)]
    skipped = assert_same_as_plain_walk(specs, [matmul(order, n)], dram, compress=True, warp=True)
    assert (skipped > 0) == (n != 101)  # rows of 101 doubles: the period is longer than the loop


@st.composite
def neighbours(draw):
    """Tensors that move and tensors that stay, right behind each other: at its end one shares a row with the next."""
    trips, inner, place, accesses = draw(st.integers(200, 600)), 8, 1 << 20, []
    for _ in range(draw(st.integers(2, 4))):
        move, step = draw(st.sampled_from([(64, 0), (128, 64), (64, 64), (0, 64), (0, 128)]))
        accesses.append(Access(place, (move, step), 8, write=draw(st.booleans())))
        place += move * (trips - 1) + step * (inner - 1) + 64
    return Nest((trips, inner), tuple(accesses))


@settings(max_examples=150, deadline=None)
@given(
    neighbours(), st.sampled_from(["row:rank:bank:column:channel", "row:rank:column:bank:channel"]), st.integers(1, 2)
)
def test_rows_that_repeat_after_a_round_of_periods_are_counted_exactly(nest, mapping, levels):
    dram = DramSpec(kind="dram", name="dram", channels=2, banks=4, row="256 B", burst="64 B", mapping=mapping)
    specs = [cache("l1", 2, 2, 64), cache("l2", 4, 2, 64)][:levels]
    assert_same_as_plain_walk(specs, [nest, nest], dram, compress=True, warp=True)


def test_rounds_of_rows_are_found_where_all_caches_are_warped(monkeypatch):
    found = []
    monkeypatch.setattr(warp, "find_rounds", lambda *given: found.append(find_rounds(*given)) or found[-1])
    dram = DramSpec(kind="dram", name="dram", channels=1, banks=4, row="256 B", burst="64 B")
    assert_same_as_plain_walk([cache("l1", 8, 4, 64)], [matmul("ijk", 96)], dram, compress=True, warp=True)
    assert found
    assert len(found[0].meetings) >= 2


def test_a_large_last_level_is_walked_on_the_stream_of_the_warped_ones():
    specs = [cache("l1", 8, 4, 64), cache("l2", 1024, 4, 64)]
    assert assert_same_as_plain_walk(specs, [matmul("ikj", 64)], DRAM, compress=True, warp=True) > 0


def test_random_replacement_is_never_warped():
    specs = [cache("l1", 8, 4, 64, replacement="random")]
    assert assert_same_as_plain_walk(specs, [matmul("ikj", 64)], compress=True, warp=True) == 0


def test_a_store_beside_the_place_just_loaded_is_not_taken_for_an_update_of_it():
    """Loads walk one row and stores the next: only the stored row may end up modified."""
    row = 1 << 20
    nest = Nest((64,), (Access(row, (8,)), Access(row + 4096, (8,), write=True)))
    assert_same_as_plain_walk([cache("l1", 8, 4, 64)], [nest], compress=True, warp=False)
