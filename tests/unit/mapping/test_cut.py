"""Tiles of a group of indices."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwsim.targets.systolic.tiling import MOST_CUTS, ROW, TILE, WHOLE, Role, Tiling, _thinned, cut_to, cuts, patches

groups = st.lists(st.integers(1, 9), min_size=0, max_size=3).map(
    lambda sizes: {f"i{n}": s for n, s in enumerate(sizes)}
)


@given(groups, st.integers(1, 800))
def test_tiles_cover_every_point_once_and_are_not_too_large(extents: dict[str, int], size: int) -> None:
    cut = cut_to(extents, size)
    assert 1 <= cut.size <= size
    tiles = list(cut.ranges())
    assert len(tiles) == cut.tiles
    assert sum(prod(count for _, count in ranges.values()) for ranges in tiles) == cut.total
    assert sum(points * count for points, count in cut.sizes()) == cut.total
    assert sum(count for _, count in cut.sizes()) == cut.tiles


@given(groups, st.sampled_from([1, 4, 16, 128]))
def test_what_is_tried_includes_everything_at_once_and_never_more_than_a_few(
    extents: dict[str, int], side: int
) -> None:
    found = cuts(extents, side)
    assert found[-1].tiles == 1
    assert len(found) <= MOST_CUTS
    assert [cut.size for cut in found] == sorted({cut.size for cut in found})


def test_inner_indices_stay_whole() -> None:
    assert cut_to({"n": 8, "h": 19, "w": 19}, 800).box == {"n": 2, "h": 19, "w": 19}
    assert cut_to({"n": 8, "h": 19, "w": 19}, 100).box == {"n": 1, "h": 5, "w": 19}


def test_a_group_without_indices_is_one_tile() -> None:
    assert (cut_to({}, 5).size, cut_to({}, 5).tiles, list(cut_to({}, 5).ranges())) == (1, 1, [{}])


def test_patches_are_for_images_more_than_four_times_as_wide_as_the_array() -> None:
    assert patches({"p": 100, "q": 64}, 16) == []
    assert patches({"q": 1000}, 16) == []
    found = [cut.box for cut in patches({"n": 2, "p": 9, "q": 65}, 16)]
    assert found == [{"n": 1, "p": 4, "q": 32}, {"n": 1, "p": 8, "q": 32}]


def test_patches_have_fewer_rows_than_the_image() -> None:
    """4, 8 or 16 rows twice as wide as the array; an image of as many rows is no patch of itself."""
    for high, rows in ((4, []), (5, [4]), (8, [4]), (9, [4, 8]), (16, [4, 8]), (17, [4, 8, 16]), (500, [4, 8, 16])):
        found = patches({"p": high, "q": 65}, 16)
        assert [cut.box for cut in found] == [{"p": each, "q": 32} for each in rows]
    assert patches({"p": 500, "q": 65}, 17) == [], "only where an image is wider than four arrays"


def test_tiles_that_are_too_many_are_thinned_evenly_and_keep_both_ends() -> None:
    numbers = list(range(1, 11))
    assert _thinned(numbers, 4) == [1, 4, 7, 10]
    assert _thinned(numbers, 2) == [1, 10]
    assert _thinned(numbers, 1) == [1]
    assert _thinned(numbers, 10) == numbers


@pytest.mark.parametrize("role", ["input", "weight", "output"])
def test_a_scratchpad_keeps_a_tile_or_the_whole_operand(role: Role) -> None:
    """Along the two loops that the operand depends on; the third does not matter."""
    made = {name: cut_to({name: 64}, 16) for name in "mnk"}
    tiling = Tiling(made, "mnk", {"input": TILE, "weight": TILE, "output": TILE}, 2, 0, 0.0)
    assert [cut.size for cut in tiling.kept(role)] == [16, 16]
    whole = replace(tiling, pieces={**tiling.pieces, role: WHOLE})
    assert [cut.size for cut in whole.kept(role)] == [64, 64]
    row = replace(tiling, pieces={**tiling.pieces, role: ROW})
    assert sorted(cut.size for cut in row.kept(role)) == [16, 64]
