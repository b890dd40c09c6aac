"""What a kernel runs: loops, loops over tiles around them, and phases between which all cores wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from hwsim.kernels.loop.grain import step_unit
from hwsim.kernels.loop.loops import LoopOperation, LoopPlan, Range
from hwsim.kernels.step import Instructions

Ranges = Mapping[str, Range]
Compute = Callable[[Ranges], None]


@dataclass(frozen=True)
class Loop:
    """One loop nest: its extents, what it touches, what one point costs, and the math over a range of it."""

    name: str
    extents: Mapping[str, int]
    operation: LoopOperation
    plan: LoopPlan
    body: Instructions
    compute: Compute
    sums_lanes: bool = False
    late_body: Instructions = field(default_factory=Instructions)
    """What is done with a finished output value before it is stored, with the operands of `operation.late`."""
    follows: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Indices that move with another one around this loop, so many times as far: rows of an image with the rows of its
    pooled half."""

    @property
    def flops_per_point(self) -> int:
        return flops_of(self.body)

    def flops(self, ranges: Ranges) -> int:
        """Operations over a range."""
        points = prod(extent for _, extent in ranges.values())
        return points * self.flops_per_point + self.results(ranges) * flops_of(self.late_body)

    def macs(self, ranges: Ranges) -> int:
        points = prod(extent for _, extent in ranges.values())
        return points * self.body.fma + self.results(ranges) * self.late_body.fma

    def results(self, ranges: Ranges) -> int:
        """Output values over a range."""
        output = self.operation.output
        return prod(ranges[index][1] for index in output.strides) if output is not None else 1

    def ranges(self, around: Ranges) -> dict[str, Range]:
        """The range of each index inside the tiles around; an index that no tile cuts runs in full."""
        found = {}
        for index, extent in self.extents.items():
            leader, factor = self.follows.get(index, (index, 1))
            start, count = around.get(leader, (0, extent))
            first, last = min(start * factor, extent), min((start + count) * factor, extent)
            found[index] = (first, last - first)
        return found

    def moves_with(self, index: str) -> bool:
        return index in self.extents or any(leader == index for leader, _ in self.follows.values())


@dataclass(frozen=True)
class TileLoop:
    """Runs its body for one tile of an index after the other, each time over that part of the index alone."""

    index: str
    extent: int
    tile: int
    body: tuple[Loop | TileLoop, ...]
    span: Callable[[Ranges], Range] | None = None
    """Which part of the index is run through, given the tiles around: a causal mask ends at the diagonal."""

    def tiles(self, around: Ranges) -> Iterator[Range]:
        first, count = around.get(self.index, (0, self.extent))
        if self.span is not None:
            start, length = self.span(around)
            first, last = max(first, start), min(first + count, start + length)
        else:
            last = first + count
        for start in range(first, last, self.tile):
            yield start, min(self.tile, last - start)

    def moves_with(self, index: str) -> bool:
        return index == self.index or all(item.moves_with(index) for item in self.body)


Item = Loop | TileLoop


@dataclass
class Phase:
    """Items that a core runs one after the other, without waiting for the others."""

    name: str = ""
    items: list[Item] = field(default_factory=list)
    shared_index: str = ""
    """The index that is shared out among cores; empty where one core does it all."""


def flops_of(body: Instructions) -> int:
    return 2 * body.fma + body.add + body.mul + body.special


def walk(items: Sequence[Item], around: Ranges) -> Iterator[tuple[Loop, dict[str, Range], bool]]:
    """Every loop with its ranges in the order in which they run, and whether a tile loop is around it."""
    yield from _walk(items, around, False)


def _walk(items: Sequence[Item], around: Ranges, tiled: bool) -> Iterator[tuple[Loop, dict[str, Range], bool]]:
    for item in items:
        if isinstance(item, Loop):
            ranges = item.ranges(around)
            if all(extent > 0 for _, extent in ranges.values()):
                yield item, ranges, tiled
            continue
        for tile in item.tiles(around):
            yield from _walk(item.body, {**around, item.index: tile}, True)


def summed(items: Sequence[Item], around: Ranges, value: Callable[[Loop, Ranges], int]) -> int:
    """A number of each run of each loop, added up; tiles of one size are counted and not run through one by one.

    The number must depend on the extents of a range alone, not on where it begins.
    """
    total = 0
    for item in items:
        if isinstance(item, Loop):
            ranges = item.ranges(around)
            if all(extent > 0 for _, extent in ranges.values()):
                total += value(item, ranges)
            continue
        tiles = list(item.tiles(around))
        if _has_span(item.body):
            total += sum(summed(item.body, {**around, item.index: tile}, value) for tile in tiles)
            continue
        alike: dict[int, tuple[Range, int]] = {}
        for tile in tiles[:-1]:
            first, count = alike.get(tile[1], (tile, 0))
            alike[tile[1]] = (first, count + 1)
        for tile, count in (*alike.values(), *((last, 1) for last in tiles[-1:])):
            total += count * summed(item.body, {**around, item.index: tile}, value)
    return total


def _has_span(items: Sequence[Item]) -> bool:
    """Whether how far a loop over tiles runs depends on the tiles around it."""
    return any(isinstance(item, TileLoop) and (item.span is not None or _has_span(item.body)) for item in items)


def all_loops(items: Sequence[Item]) -> Iterator[Loop]:
    """Every loop once, in program order."""
    for item in items:
        if isinstance(item, Loop):
            yield item
        else:
            yield from all_loops(item.body)


def extent_of(items: Sequence[Item], index: str) -> int:
    """How far an index runs in a list of items."""
    for item in items:
        if isinstance(item, TileLoop) and item.index == index:
            return item.extent
        if isinstance(item, Loop) and index in item.extents:
            return item.extents[index]
        if isinstance(item, TileLoop) and (found := extent_of(item.body, index)):
            return found
    return 0


def unit_of(items: Sequence[Item], index: str) -> int:
    """Iterations of an index that belong together: a tile, or a step of the innermost loops."""
    for item in items:
        if isinstance(item, TileLoop) and item.index == index:
            return item.tile
        if isinstance(item, Loop) and index in item.extents:
            return step_unit(item.plan, index)
        if isinstance(item, TileLoop) and extent_of(item.body, index):
            return unit_of(item.body, index)
    return 1
