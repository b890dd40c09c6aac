"""A nest that is replayed in parts: every part has its own counts, and together they are those of the whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.memory.hierarchy import Hierarchy
from tests.property.strategies import cache, general_hierarchies, nests, plain_hierarchies
from tests.property.test_acceleration import DRAM, matmul, periodic_nests


def assert_parts_are_the_whole(specs, program, parts, dram=None, **how):
    """The counts of all parts, their sum, and the state that they leave; returns how many parts there were."""
    whole = Hierarchy(specs, dram, seed=3, compress=False, warp=False)
    cut = Hierarchy(specs, dram, seed=3, **how)
    played = 0
    for nest in program:
        expected = whole.replay(nest)
        first, *more = cut.replay_parts(nest, parts=parts)
        found = sum(more, first)
        played += 1 + len(more)
        assert (found.levels, found.dram, found.misses) == (expected.levels, expected.dram, expected.misses)
        assert found.accesses == nest.length
        assert all(part.accesses >= 0 for part in (first, *more))
    for instance in whole.topology.instances:
        assert whole.contents(instance.name) == cut.contents(instance.name)
    assert (whole.dram.open_rows == cut.dram.open_rows).all()
    return played


@settings(max_examples=100, deadline=None)
@given(
    plain_hierarchies(),
    st.lists(st.one_of(nests(regular=True), periodic_nests()), min_size=1, max_size=3),
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, DRAM]),
)
def test_parts_add_up_whether_walked_compressed_or_warped(specs, program, parts, compress, warp, dram):
    assert_parts_are_the_whole(specs, program, parts, dram, compress=compress, warp=warp, warp_from=0)


@settings(max_examples=60, deadline=None)
@given(general_hierarchies(), st.lists(nests(), min_size=1, max_size=2), st.integers(1, 20))
def test_parts_add_up_where_levels_look_at_each_other(specs, program, parts):
    assert_parts_are_the_whole(specs, program, parts)


@pytest.mark.parametrize("order", ["ijk", "ikj"])
@pytest.mark.parametrize("warp", [False, True])
@pytest.mark.parametrize("sets", [32, 1024], ids=["both levels repeat", "one level behind"])
def test_there_are_about_as_many_parts_as_asked_for(order, warp, sets):
    specs = [cache("l1", 8, 4, 64), cache("l2", sets, 4, 64)]
    played = assert_parts_are_the_whole(specs, [matmul(order, 96)], 50, DRAM, compress=True, warp=warp, warp_from=0)
    assert 25 <= played <= 100


def test_other_cores_may_come_between_two_parts():
    """Two cores with a cache each and one that they share: whoever goes first, what each counts adds up to all."""
    specs = [cache("l1", 8, 4, 64), cache("l2", 32, 4, 64, shared_by="all")]
    both = Hierarchy(specs, DRAM, cores=2)
    walks = [both.replay_parts(matmul(order, 48), core, 8, alone=False) for core, order in enumerate(["ijk", "ikj"])]
    found = [part for pair in zip(*walks, strict=False) for part in pair]
    found += [part for walk in walks for part in walk]
    levels = both.level_counters()
    for name in ("l1", "l2"):
        assert sum(part.levels[name].misses for part in found) == levels[name].misses
    assert sum(part.dram.reads for part in found) == both.dram.counters.reads
    assert len(found) >= 8
