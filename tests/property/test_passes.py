"""Repeated passes are counted, not walked: counts, causes and final state are those of the plain walk."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.memory.stream import find_passes
from hwsim.trace.nest import Access, Nest
from tests.property.strategies import cache, nests
from tests.property.test_acceleration import DRAM, assert_same_as_plain_walk, matmul

LINE = 64


@st.composite
def lru_hierarchies(draw):
    levels = []
    sets, ways = draw(st.sampled_from([(1, 4), (2, 2), (4, 1), (2, 8), (8, 2), (3, 2)]))
    for number in range(draw(st.integers(1, 3))):
        levels.append(cache(f"l{number + 1}", sets, ways, LINE))
        sets, ways = draw(st.sampled_from([(sets * 2, ways), (sets, ways * 2), (sets * 3, ways)]))
    return levels


@st.composite
def repeating_nests(draw):
    """Loops i, j, k: j stays on a line for a while, k jumps from line to line; loads and stores in all places."""
    element = draw(st.sampled_from([4, 8, 16]))
    repeats = LINE // element
    accesses = [Access(1 << 20, (draw(st.sampled_from([0, 64, 4096])), element, 256), element)]
    for number in range(1, draw(st.integers(2, 4))):
        base, write, after = (1 << 20) + (number << 14), draw(st.booleans()), draw(st.booleans())
        strides = draw(
            st.sampled_from(
                [
                    (512, 0, element),
                    (0, 0, 64),
                    (512, element),
                    (0, 0),
                    (0, element, 192),
                    (element, 0, 1024),
                ]
            )
        )
        accesses.append(Access(base, strides, element, write=write, after=after))
    trips = (draw(st.integers(1, 3)), repeats * draw(st.integers(1, 2)), draw(st.integers(33, 40)))
    return Nest(trips, tuple(accesses))


@settings(max_examples=150, deadline=None)
@given(lru_hierarchies(), nests(), repeating_nests(), st.sampled_from([None, DRAM]))
def test_repeated_passes_equal_the_plain_walk(specs, before, nest, dram):
    assert find_passes(nest, LINE) is not None
    assert_same_as_plain_walk(specs, [before, nest, nest], dram, compress=True, warp=False)


def test_a_naive_matmul_has_passes_of_one_line_and_a_row_wise_one_has_none():
    passes = find_passes(matmul("ijk", 64), LINE)
    assert passes is not None
    assert (passes.repeats, passes.length) == (8, 2 * 64 + 1)
    assert passes.nest.length * passes.repeats == matmul("ijk", 64).length
    assert find_passes(matmul("ikj", 64), LINE) is None


def test_rows_that_do_not_begin_with_a_line_have_no_passes():
    assert find_passes(matmul("ijk", 36), LINE) is None
