"""Loops: operands in strides, the plan by which loops are cut, programs of loops and tiles, and their shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm, prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hwsim.trace.nest import Instructions, Nest, Size

if TYPE_CHECKING:
    from hwsim.program.operation import Operator


Range = tuple[int, int]
"""First position of an index, and how many."""

Stretch = tuple[int, int]
"""Offset and width of one access along an index: a vector, or a single element."""


@dataclass(frozen=True, eq=False)
class Gather:
    """Where an operand is found for each position of an index: bytes from its base, looked up in a table."""

    index: str
    offsets: NDArray[np.int64]
    per_byte: int = 1
    """Offsets count so many parts of a byte, where rows of packed numbers begin inside one."""


def gather(index: str, *moves: tuple[NDArray[np.int64], Size]) -> Gather:
    """A table of places: the sum of positions times the bytes from one position to the next."""
    per_byte = lcm(*(step.denominator for _, step in moves))
    offsets = sum((places.astype(np.int64) * int(step * per_byte) for places, step in moves), np.int64(0))
    return Gather(index, np.asarray(offsets, np.int64), per_byte)


@dataclass(frozen=True)
class Operand:
    """A tensor as the loops see it: how many bytes it moves by for a step of each index that it depends on."""

    tensor: str
    base: Size
    element_bytes: Size
    strides: Mapping[str, Size]
    far: Mapping[str, tuple[int, Size]] = field(default_factory=dict)
    """For tensors stored block by block: elements in a block, and bytes from one block to the next, by index. Scratch
    space for one tile is a block with no distance to the next."""
    gather: Gather | None = None
    """For rows that are looked up; the operand has a stride of zero along that index."""

    def distance(self, index: str, position: int) -> Size:
        """Bytes from the first element to the one at a position of an index."""
        if index not in self.strides:
            return 0
        block, far = self.far.get(index, (0, 0))
        if not block:
            return position * self.strides[index]
        return position // block * far + position % block * self.strides[index]

    def has_neighbours(self, index: str, count: int) -> bool:
        """Whether `count` elements along an index lie side by side, wherever a vector begins."""
        block = self.far.get(index, (0, 0))[0]
        whole = not block or block % count == 0 or self.is_local(index)
        return self.strides[index] == self.element_bytes and whole

    def is_local(self, index: str) -> bool:
        """Whether every tile of an index finds the same memory: scratch space that is used over and over."""
        return index in self.far and self.far[index][1] == 0


@dataclass(frozen=True)
class LoopPlan:
    """In which order the loops run, and how they are cut."""

    order: tuple[str, ...]
    tile: Mapping[str, int] = field(default_factory=dict)
    unroll: Mapping[str, int] = field(default_factory=dict)
    vector: str | None = None
    lanes: int = 1
    accumulate: Literal["register", "memory"] = "register"
    outer: Mapping[str, int] = field(default_factory=dict)
    """Extents of the tiles for the cache behind: loops over them run around those over `tile`."""

    def step(self, index: str) -> int:
        """Iterations that one pass through the body covers."""
        unroll = self.unroll.get(index, 1)
        return max(unroll, self.lanes) if index == self.vector and index == self.order[-1] else unroll

    def completes(self, operation: LoopOperation) -> bool:
        """Whether each output value is finished in a register: all sums run inside the loops of the output, uncut."""
        output = operation.output
        if output is None or self.accumulate == "memory" or self.order[-1] in output.strides:
            return False
        summed = [index for index in self.order if index not in output.strides]
        return self.order[-len(summed) :] == tuple(summed) and not any(index in self.tile for index in summed)

    def runs(self, index: str, count: int) -> list[Stretch]:
        """`count` iterations of an index as vectors and single elements."""
        lanes = self.lanes if index == self.vector else 1
        if 1 < count < lanes:
            lanes = 1 << (count.bit_length() - 1)
        whole = count // lanes
        return [(i * lanes, lanes) for i in range(whole)] + [(i, 1) for i in range(whole * lanes, count)]


@dataclass(frozen=True)
class LoopOperation:
    """``output += f(inputs)`` for each point of the loops, or ``output = …`` where nothing is added up.

    `late` operands are loaded when an output value is finished, just before it is stored: a bias, a residual.
    `stores` are results beside the output: stored in the innermost loop if that moves them, else after it.
    """

    inputs: tuple[Operand, ...]
    output: Operand | None
    accumulates: bool = True
    late: tuple[Operand, ...] = ()
    stores: tuple[Operand, ...] = ()
    continues: bool | None = None
    """Whether the output holds a sum from before the loop, to which the loop adds; if not said, it does where some
    index that is summed over does not begin at 0."""

    @property
    def reads(self) -> tuple[Operand, ...]:
        """What is loaded, but for sums from before the loop."""
        return (*self.inputs, *self.late)

    @property
    def writes(self) -> tuple[Operand, ...]:
        """What is stored, the output last."""
        return self.stores if self.output is None else (*self.stores, self.output)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Everything that is touched."""
        return (*self.reads, *self.writes)


def is_resumed(operation: LoopOperation, ranges: Mapping[str, Range]) -> bool:
    """Whether the output already holds a part of its sums: some index that is summed over does not begin at 0."""
    output = operation.output
    if output is None or not operation.accumulates:
        return False
    if operation.continues is not None:
        return operation.continues
    return any(first > 0 for index, (first, _) in ranges.items() if index not in output.strides)


@dataclass(frozen=True)
class Piece:
    """A Nest and what is computed in it."""

    nest: Nest
    body_runs: int
    """Arithmetic instructions for each operation of the loop body: points of the loops over vector lanes."""
    iterations: int
    """Of the innermost loop."""
    starts: int
    """How often the innermost loop begins."""
    gathered: int
    """Elements that were put into vectors, or taken out of them, one by one."""
    chain: int
    """Dependent operations of one accumulation, over all loops that go on with the same sum in its register; 0 if there
    is no such chain."""
    sums: int
    """How often such an accumulation begins."""
    parallel: int
    loads: int
    stores: int
    results: int
    """Stores of the output alone."""
    operands: tuple[Operand, ...] = ()
    """The operand behind each access of the nest."""

    def repeated(self, times: int) -> Piece:
        """One that stands for so many like it."""
        counts = ("body_runs", "iterations", "starts", "gathered", "sums", "loads", "stores", "results")
        more: dict[str, Any] = {name: times * getattr(self, name) for name in counts}
        return replace(self, nest=replace(self.nest, repeats=times * self.nest.repeats), **more)


FEWEST_STEPS, MOST_STEPS = 8, 64
"""Where cores share a level, the Steps of each should be about this many: fine enough to interleave, few events."""

DYNAMIC_SHARES = 4
"""Pieces for each core under a dynamic split."""


def split_static(extent: int, parts: int, unit: int = 1) -> list[Range]:
    """Equal shares in whole units, the first ones larger by one where they cannot be equal; none is empty."""
    units = -(-extent // unit)
    parts = min(parts, units)
    ranges = []
    first = 0
    for part in range(parts):
        last = first + units // parts + (part < units % parts)
        ranges.append((first * unit, min(last * unit, extent) - first * unit))
        first = last
    return ranges


def split_work(extent: int, cores: int, unit: int, split: str) -> list[Range]:
    """The Blocks of a parallel loop: one for each core, or several to be taken one by one."""
    return split_static(extent, most_shares(cores, split), unit)


def most_shares(cores: int, split: str) -> int:
    """How many Blocks a parallel loop has at most."""
    return cores if split == "static" or cores == 1 else cores * DYNAMIC_SHARES


def first_shared(extents: Mapping[str, int], outputs: Sequence[str]) -> str:
    """The first of the indices of a result that has several positions; where none has, the first of them."""
    return next((index for index in outputs if extents[index] > 1), outputs[0])


def cut_steps(plan: LoopPlan, ranges: Mapping[str, Range], fine: bool) -> Iterator[dict[str, Range]]:
    """The ranges of one Step after the other, in program order: coarse is all at once.

    Fine cuts the outermost loop, which is the first one over tiles if there are tiles; if that gives too few Steps and
    the next loop is over tiles too, then that one as well.
    """
    ranges = dict(ranges)
    sizes = plan.outer or plan.tile
    tiled = [index for index in plan.order if index in sizes]
    outer = tiled[0] if tiled else plan.order[0]
    if not fine:
        yield ranges
        return
    unit = sizes.get(outer) or step_unit(plan, outer)
    cuts = _cut(ranges[outer], unit, MOST_STEPS)
    deeper = len(cuts) < FEWEST_STEPS and len(tiled) > 1
    for cut in cuts:
        if not deeper:
            yield {**ranges, outer: cut}
            continue
        for inner in _cut(ranges[tiled[1]], sizes[tiled[1]], -(-FEWEST_STEPS // len(cuts))):
            yield {**ranges, outer: cut, tiled[1]: inner}


def step_unit(plan: LoopPlan, index: str) -> int:
    """Iterations of a loop that belong together."""
    return plan.tile.get(index) or plan.step(index)


def _cut(whole: Range, unit: int, most: int) -> list[Range]:
    start, extent = whole
    units = -(-extent // unit)
    return [(start + first, count) for first, count in split_static(extent, min(units, most), unit)]


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
class TileRange:
    """Which part of an index is run through, given the tiles around: a causal mask ends at the diagonal."""

    of: frozenset[str]
    """The indices whose tiles decide that. Of tiles of any other, one stands for all of its size."""
    part: Callable[[Ranges], Range]


@dataclass(frozen=True)
class TileLoop:
    """Runs its body for one tile of an index after the other, each time over that part of the index alone."""

    index: str
    extent: int
    tile: int
    body: tuple[Loop | TileLoop, ...]
    span: TileRange | None = None
    """All of the index where there is none."""

    def tiles(self, around: Ranges) -> Iterator[Range]:
        first, count = around.get(self.index, (0, self.extent))
        if self.span is not None:
            start, length = self.span.part(around)
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
    operator: Operator | None = None
    """What its loops compute, for a target that has a kernel of its own for that."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The tensor behind each port of the operator."""


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
        if _spans(item.body, item.index):
            total += sum(summed(item.body, {**around, item.index: tile}, value) for tile in tiles)
            continue
        alike: dict[int, tuple[Range, int]] = {}
        for tile in tiles[:-1]:
            first, count = alike.get(tile[1], (tile, 0))
            alike[tile[1]] = (first, count + 1)
        for tile, count in (*alike.values(), *((last, 1) for last in tiles[-1:])):
            total += count * summed(item.body, {**around, item.index: tile}, value)
    return total


def _spans(items: Sequence[Item], index: str) -> bool:
    """Whether how far a loop over tiles runs depends on the tiles of an index around it."""
    loops = [item for item in items if isinstance(item, TileLoop)]
    return any((loop.span is not None and index in loop.span.of) or _spans(loop.body, index) for loop in loops)


def all_loops(items: Sequence[Item]) -> Iterator[Loop]:
    """Every loop once, in program order."""
    for item in items:
        if isinstance(item, Loop):
            yield item
        else:
            yield from all_loops(item.body)


def extent_and_unit(items: Sequence[Item], index: str) -> tuple[int, int]:
    """How far an index runs in a list of items, and iterations that belong together: a tile, or a step of the innermost
    loops."""
    for item in items:
        if isinstance(item, Loop):
            if index in item.extents:
                return item.extents[index], step_unit(item.plan, index)
        elif item.index == index:
            return item.extent, item.tile
        elif (found := extent_and_unit(item.body, index))[0]:
            return found
    return 0, 1
