"""Tiles of library kernels through the L2: examples with known misses, every touch walked, sectors one by one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.memory.hierarchy import Hierarchy
from hwsim.spec.machine import CacheSpec
from hwsim.targets.gpu.attention import replay_heads
from hwsim.targets.gpu.gemm import ProductGrid, ProductPanels, replay_product
from hwsim.targets.gpu.model import replay_rows
from hwsim.targets.gpu.replay import Turn, replay_turns, whole_bytes
from tests.unit.hardware.gpu.made import device

FAR = 1e18


def product(n: int, tile: int, at_once: int) -> ProductPanels:
    """A square product of 2-byte elements in square tiles."""
    grid = ProductGrid.of(n, n, 1, (tile, tile), 1, at_once)
    return ProductPanels.of(grid, (n, n, n), (tile, tile), 2, 2)


def walked(turns: Sequence[Turn], size: Callable[[int], float], steps: int, capacity: float) -> list[float]:
    """Every touch of every tile, one by one: what the replay has to come to."""
    held: OrderedDict[object, float] = OrderedDict()

    def touch(tile: object, nbytes: float) -> float:
        missed = 0.0 if tile in held else nbytes
        held[tile] = nbytes
        held.move_to_end(tile)
        while sum(held.values()) > capacity + 1e-9:
            held.popitem(last=False)
        return missed

    found = []
    for number, turn in enumerate(turns):
        found.append(sum(touch((panel, step), size(panel) / steps) for step in range(steps) for panel in turn.panels))
        touch(f"written {number}", turn.passing)
    return found


panels = st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True).map(lambda each: tuple(sorted(each)))
turn_lists = st.lists(st.builds(Turn, panels, st.sampled_from([0.0, 1.0, 3.0])), min_size=1, max_size=8)


@settings(max_examples=300, deadline=None)
@given(turn_lists, st.lists(st.integers(1, 5), min_size=8, max_size=8), st.integers(1, 6), st.integers(1, 30))
def test_the_replay_misses_what_walking_every_tile_misses(
    turns: list[Turn], sizes: list[int], steps: int, capacity: int
) -> None:
    room = capacity + 0.05
    found = replay_turns(len(turns), lambda number: turns[number], lambda panel: float(sizes[panel]), steps, room)
    assert found.turns == pytest.approx(walked(turns, lambda panel: float(sizes[panel]), steps, room))


def test_where_all_fits_each_operand_is_read_once() -> None:
    found = replay_product(product(1024, 128, 4), 32, 4, 0.0, FAR)
    assert found.total == 2 * 2 * 1024 * 1024
    assert (len(found.turns), found.walked) == (16, 1.0)


@settings(max_examples=200, deadline=None)
@given(
    *[st.integers(1, 70)] * 2, *[st.integers(1, 4)] * 2, st.integers(1, 30), st.sampled_from([0.0, 40.0]),
    st.integers(100, 9_000), st.tuples(st.booleans(), st.booleans()),
)  # fmt: skip
def test_what_stays_until_its_last_use_is_counted_as_a_full_replay_counts_it(
    m: int, n: int, parts: int, batch: int, at_once: int, written: float, room: float, warm: tuple[bool, bool]
) -> None:
    """Tiles of 8 x 16, sums of depth 12 in parts, three steps each."""
    grid = ProductGrid.of(m, n, batch, (8, 16), parts, at_once)
    panels = ProductPanels.of(grid, (m, n, 12), (8, 16), 1, 2)

    def turn(number: int) -> Turn:
        first, last = number * at_once, min((number + 1) * at_once, grid.blocks)
        return Turn(grid.touched(first, last), (last - first) * written)

    turns = -(-grid.blocks // at_once)
    full = replay_turns(turns, turn, panels.size, 3, room, panels.warm(*warm))
    found = replay_product(panels, 3, at_once, written, room, warm=warm)
    assert found.turns == pytest.approx(full.turns)
    assert found.walked == full.walked


def test_an_l2_that_holds_one_tile_misses_in_every_turn() -> None:
    """Turns of 2 x 2 blocks, which touch two panels of A and two of B: 8 x 8 tiles are 16 turns."""
    found = replay_product(product(1024, 128, 4), 32, 4, 0.0, 128 * 32 * 2)
    assert found.total == 16 * 4 * (128 * 1024 * 2)


def test_operands_that_lie_in_the_l2_are_not_missed_as_long_as_they_fit() -> None:
    shape = product(512, 128, 4)
    whole = 512 * 512 * 2
    assert replay_product(shape, 16, 4, 0.0, FAR, warm=(True, True)).total == 0
    assert replay_product(shape, 16, 4, 0.0, FAR, warm=(True, False)).total == whole
    assert replay_product(shape, 16, 4, 0.0, whole / 64, warm=(True, True)).total > 2 * whole


def test_results_that_are_written_take_room_in_the_l2() -> None:
    """The same operands, with and without results of 64 KiB a block between two turns."""
    shape, room = product(1024, 128, 4), 1.1 * 4 * 128 * 1024 * 2
    dry, wet = (replay_product(shape, 32, 4, written, room).total for written in (0.0, 2**16))
    assert dry < wet


def test_windows_that_overlap_are_fetched_once_where_the_l2_keeps_them() -> None:
    shape = product(1024, 128, 4)
    assert replay_product(shape, 32, 4, 0.0, FAR, halo=1).total == replay_product(shape, 32, 4, 0.0, FAR).total
    assert replay_product(shape, 32, 4, 0.0, 1.0, halo=1).total > replay_product(shape, 32, 4, 0.0, 1.0).total


def test_blocks_are_handed_out_strip_by_strip_each_one_once() -> None:
    """3 x 5 tiles in strips of two rows: two rows of five columns, column by column, then the last row."""
    grid = ProductGrid(rows=3, columns=5, parts=1, batch=1, high=2)
    assert grid.touched(0, 4) == (0, 1, 3, 4)  # rows 0 and 1, columns 0 and 1
    assert grid.touched(10, 15) == (2, 3, 4, 5, 6, 7)  # row 2, all columns
    assert grid.touched(0, 2, halo=1) == (0, 1, 2, 3)


def test_a_very_long_kernel_is_walked_in_part_and_says_so() -> None:
    turns = [Turn((number,), 0.0) for number in range(40)]
    part = replay_turns(40, lambda number: turns[number], lambda _: 10.0, 4, 5.0, most=10)
    assert (part.walked, part.total) == (0.25, 400.0)


def test_keys_of_a_head_are_fetched_once_for_all_its_queries_or_once_for_every_tile() -> None:
    """Eight heads of four query tiles, two heads at a time: 100 bytes of keys each."""
    near = replay_heads([1.0] * 4, 8, 1, 100.0, 0.0, 10, 2, FAR)
    far = replay_heads([1.0] * 4, 8, 1, 100.0, 0.0, 10, 2, 1.0)
    assert (near.total, far.total) == (800.0, 1600.0)  # two blocks of a head run at once: two turns each
    assert replay_heads([1.0] * 4, 8, 4, 100.0, 0.0, 10, 2, FAR).total == 200.0  # four heads share their keys
    assert replay_heads([1.0] * 4, 8, 1, 100.0, 0.0, 10, 2, 1.0, whole=True).total == 3200.0
    assert replay_heads([1.0, 0.5], 1, 1, 100.0, 0.0, 10, 1, 1.0).total == 150.0  # the second tile sees half


def test_a_row_is_read_once_where_the_rows_under_way_fit_and_in_every_pass_where_they_do_not() -> None:
    assert replay_rows(10, 100.0, 100.0, 2, 5, FAR).total == 1000
    assert replay_rows(10, 100.0, 100.0, 2, 5, 100.0).total == 2000
    assert replay_rows(10, 100.0, 100.0, 3, 5, 100.0).total == 3000
    between = replay_rows(10, 100.0, 100.0, 2, 5, 750.0).total  # 500 to 1000 bytes lie between two reads
    assert between == 1500


@given(st.lists(st.floats(0, 1e9), max_size=20))
def test_whole_bytes_lose_nothing(amounts: list[float]) -> None:
    assert sum(whole_bytes(amounts)) == round(sum(amounts))


@pytest.mark.parametrize("kib", [24, 64, 100, 512])
def test_tiles_miss_as_sectors_do_one_by_one(kib: int) -> None:
    """A product of 256 x 256 x 256 in tiles of 64 x 64 x 32, four blocks at a time, through an L2 of one set."""
    n, tile, deep, at_once = 256, 64, 32, 4
    shape = product(n, tile, at_once)
    spec = CacheSpec(kind="cache", name="l2", size=f"{kib} KiB", line="64 B", ways=kib * 16)  # type: ignore[arg-type]
    hierarchy = Hierarchy((spec,), device("a100_40").dram, unit="sm")
    for first in range(0, shape.grid.blocks, at_once):
        touched = shape.grid.touched(first, first + at_once)
        for step in range(n // deep):
            lines = np.concatenate([_lines(panel, step, shape.grid.rows, n, tile, deep) for panel in touched])
            hierarchy.feed(lines, np.zeros(len(lines), np.bool_), np.full(len(lines), 64, np.uint16))
    missed = replay_product(shape, n // deep, at_once, 0.0, kib * 1024).total
    assert missed == pytest.approx(hierarchy.dram.counters.bytes_read, rel=0.03)


def _lines(panel: int, step: int, rows: int, n: int, tile: int, deep: int) -> np.ndarray:
    """Addresses of the 64-byte lines of one tile: of A by rows of 32 elements, of B by rows of 64."""
    down, across = np.meshgrid(np.arange(tile if panel < rows else deep), np.arange(1 if panel < rows else 2))
    if panel < rows:
        found = (panel * tile + down) * n * 2 + (step * deep + across * 32) * 2
    else:
        found = 2**30 + (step * deep + down) * n * 2 + ((panel - rows) * tile + across * 32) * 2
    return found.T.ravel().astype(np.uint64)
