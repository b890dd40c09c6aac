"""What can never happen, whatever the machine and the nest."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.memory.hierarchy import Hierarchy
from tests.property.strategies import cache, general_hierarchies, nests, plain_hierarchies


@settings(max_examples=200, deadline=None)
@given(general_hierarchies() | plain_hierarchies(), st.lists(nests(), min_size=1, max_size=3))
def test_bytes_leaving_a_level_enter_the_next(specs, program):
    hierarchy = Hierarchy(specs)
    for nest in program:
        hierarchy.replay(nest)
    levels = [*hierarchy.counters().values(), hierarchy.dram.counters]
    for inner, outer in pairwise(levels):
        assert inner.bytes_fetched == outer.bytes_read
        assert inner.bytes_evicted == outer.bytes_written
    asked = sum(nest.count(a) * a.nbytes for nest in program for a in nest.accesses)
    assert levels[0].bytes_read + levels[0].bytes_written == asked


@settings(max_examples=100, deadline=None)
@given(plain_hierarchies(), st.lists(nests(regular=True), min_size=1, max_size=3))
def test_hits_and_misses_add_up_to_the_accesses_of_the_program(specs, program):
    hierarchy = Hierarchy(specs)
    for nest in program:
        hierarchy.replay(nest)
    first = next(iter(hierarchy.counters().values()))
    assert first.reads == sum(nest.loads for nest in program)
    assert first.writes == sum(nest.stores for nest in program)
    for counters in hierarchy.counters().values():
        assert 0 <= counters.misses <= counters.accesses
        assert counters.hits + counters.misses == counters.accesses


@settings(max_examples=80, deadline=None)
@given(st.lists(nests(), min_size=1, max_size=3), st.integers(1, 12), st.integers(1, 12))
def test_a_larger_fully_associative_lru_cache_never_misses_more(program, ways, more):
    small, large = (Hierarchy([cache("l1", 1, size, 32)]) for size in (ways, ways + more))
    for nest in program:
        small.replay(nest)
        large.replay(nest)
    assert large.counters()["core[0].l1"].misses <= small.counters()["core[0].l1"].misses
