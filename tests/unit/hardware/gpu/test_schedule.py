"""Blocks on slots, against a plain event-by-event schedule."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwsim.targets.gpu.attention import EqualBlocks, makespan


def one_by_one(groups: list[EqualBlocks], slots: int) -> float:
    """Every block by itself takes the slot that is free first."""
    free = [0.0] * slots
    for group in groups:
        for _ in range(group.count):
            heapq.heappush(free, heapq.heappop(free) + group.cycles)
    return max(free)


blocks = st.lists(st.builds(EqualBlocks, st.integers(1, 40), st.integers(1, 9).map(float)), min_size=1, max_size=6)


@given(blocks, st.integers(1, 12))
def test_groups_end_when_blocks_handed_out_one_by_one_end(groups: list[EqualBlocks], slots: int) -> None:
    assert makespan(groups, slots) == one_by_one(groups, slots)


@pytest.mark.parametrize(("count", "waves"), [(1, 1), (108, 1), (109, 2), (216, 2), (217, 3), (10**9, 9_259_260)])
def test_equal_blocks_run_in_whole_waves(count: int, waves: int) -> None:
    assert makespan([EqualBlocks(count, 5.0)], 108) == 5.0 * waves


def test_handing_out_the_longest_first_never_ends_later_than_the_other_way_here() -> None:
    lengths = [EqualBlocks(8, float(cycles)) for cycles in range(1, 33)]
    assert makespan(lengths[::-1], 108) < makespan(lengths, 108)
