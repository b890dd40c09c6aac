"""From an operation on strided tensors and a loop schedule to the Nests that a load/store machine walks.

The rules are those of a straightforward compiler:

- tile loops come first, then the loops inside a tile, both in the given order;
- an operand is loaded in the innermost of the loops that it depends on, and kept in a register over the
  loops inside;
- a result that does not depend on the innermost loops is kept in a register over them and stored after
  them; it is loaded before them if an outer loop has already added to it; otherwise it is loaded and stored
  in the innermost loop;
- an unrolled loop runs in steps of its factor and holds that many copies (register tiling);
- a vectorised loop takes `lanes` neighbours at once where they are neighbours in memory, else one by one (a
  gather).

Edges of tiles are further Nests, in program order; the last few iterations of an innermost loop that do not
fill a vector are single accesses after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Literal

from hwsim.errors import CapacityError
from hwsim.trace.nest import MAX_ACCESS_BYTES, MAX_ACCESSES, Access, Nest

Range = tuple[int, int]
"""First position of an index, and how many."""

Run = tuple[int, int]
"""Offset and width of one access along an index: a vector, or a single element."""


@dataclass(frozen=True)
class Operand:
    """A tensor as the loops see it: how many bytes it moves by for a step of each index that it depends
    on."""

    tensor: str
    base: int
    element_bytes: int
    strides: Mapping[str, int]
    far: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For tensors stored block by block: elements in a block, and bytes from one block to the next, by
    index."""

    def distance(self, index: str, position: int) -> int:
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
        return self.strides[index] == self.element_bytes and (not block or block % count == 0)


@dataclass(frozen=True)
class LoopPlan:
    """In which order the loops run, and how they are cut."""

    order: tuple[str, ...]
    tile: Mapping[str, int] = field(default_factory=dict)
    unroll: Mapping[str, int] = field(default_factory=dict)
    vector: str | None = None
    lanes: int = 1
    accumulate: Literal["register", "memory"] = "register"

    def step(self, index: str) -> int:
        """Iterations that one pass through the body covers."""
        unroll = self.unroll.get(index, 1)
        return max(unroll, self.lanes) if index == self.vector and index == self.order[-1] else unroll

    def runs(self, index: str, count: int) -> list[Run]:
        """`count` iterations of an index as vectors and single elements."""
        lanes = self.lanes if index == self.vector else 1
        if 1 < count < lanes:
            lanes = 1 << (count.bit_length() - 1)
        whole = count // lanes
        return [(i * lanes, lanes) for i in range(whole)] + [(i, 1) for i in range(whole * lanes, count)]


@dataclass(frozen=True)
class LoopOperation:
    """``output += f(inputs)`` for each point of the loops, or ``output = …`` where nothing is added up."""

    inputs: tuple[Operand, ...]
    output: Operand | None
    accumulates: bool = True


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
    """Dependent operations of one accumulation in one run of the innermost loop; 0 if there is no such
    chain."""
    parallel: int
    loads: int
    stores: int


def lower(operation: LoopOperation, plan: LoopPlan, ranges: Mapping[str, Range]) -> Iterator[Piece]:
    """The Nests of an operation over a range of each index, in program order."""
    levels = [(index, True) for index in plan.order if index in plan.tile]
    levels += [(index, False) for index in plan.order]
    start = {index: ranges[index][0] for index in plan.order}
    extent = {index: ranges[index][1] for index in plan.order}
    yield from _walk(_Lowering(operation, plan, tuple(levels)), 0, (), start, extent, {})


@dataclass(frozen=True)
class _Lowering:
    operation: LoopOperation
    plan: LoopPlan
    levels: tuple[tuple[str, bool], ...]


Loops = tuple[tuple[int, str, int, int], ...]
"""The loops of a Nest: level, index, trip count, step."""


def _walk(
    lowering: _Lowering,
    level: int,
    loops: Loops,
    start: Mapping[str, int],
    extent: Mapping[str, int],
    copies: Mapping[str, int],
) -> Iterator[Piece]:
    """Each loop in turn: as one loop of a Nest if all its iterations look the same, else iteration by
    iteration."""
    if level == len(lowering.levels) - 1:
        yield from _innermost(lowering, loops, start, extent, copies)
        return
    index, tiled = lowering.levels[level]
    position = start[index]
    for trips, size in _cuts(lowering.plan, index, tiled, extent[index]):
        inner_extent = {**extent, index: size}
        inner_copies = copies if tiled else {**copies, index: size}
        if _is_uniform(lowering, level + 1, inner_extent):
            longer = (*loops, (level, index, trips, size)) if trips > 1 else loops
            inner_start = {**start, index: position}
            yield from _walk(lowering, level + 1, longer, inner_start, inner_extent, inner_copies)
        else:
            for i in range(trips):
                inner_start = {**start, index: position + i * size}
                yield from _walk(lowering, level + 1, loops, inner_start, inner_extent, inner_copies)
        position += trips * size


def _cuts(plan: LoopPlan, index: str, tiled: bool, extent: int) -> list[tuple[int, int]]:
    """(trips, iterations in each) of a loop: the whole steps, then what is left."""
    step = min(plan.tile[index] if tiled else plan.unroll.get(index, 1), extent)
    whole, rest = divmod(extent, step)
    return [(whole, step)] + ([(1, rest)] if rest else [])


def _is_uniform(lowering: _Lowering, level: int, extent: Mapping[str, int]) -> bool:
    """Whether the loops from here on, but for the innermost, need no edge pieces."""
    extent = dict(extent)
    for index, tiled in lowering.levels[level:-1]:
        cuts = _cuts(lowering.plan, index, tiled, extent[index])
        if len(cuts) > 1:
            return False
        extent[index] = cuts[0][1]
    return True


@dataclass(frozen=True)
class _Touch:
    """One access of the loop body: where it is relative to the first iteration of all loops around it."""

    operand: Operand
    offset: int
    nbytes: int
    write: bool
    gathered: bool = False


@dataclass(frozen=True)
class _Placed:
    """A touch and the loops around it: all up to a level; before or after what is deeper."""

    touch: _Touch
    level: int
    after: bool


def _innermost(
    lowering: _Lowering,
    loops: Loops,
    start: Mapping[str, int],
    extent: Mapping[str, int],
    copies: Mapping[str, int],
) -> Iterator[Piece]:
    """The Nest itself: all loops around are known, and the innermost is split into full steps and a rest."""
    plan = lowering.plan
    index = plan.order[-1]
    step = plan.step(index)
    trips, rest = divmod(extent[index], step)
    if trips == 0:
        step, trips, rest = 1, extent[index], 0
    runs = {name: plan.runs(name, count) for name, count in copies.items()}
    main = _Assembly(lowering, loops, start, runs, step, trips, rest)
    if index != plan.vector and step > 1 and main.is_too_large:
        # The same accesses, iteration by iteration instead of all loads of a step together.
        main = _Assembly(lowering, loops, start, runs, 1, extent[index], 0)
    if main.rest and not loops and not main.keeps_something:
        edge = {**start, index: start[index] + trips * step}
        yield replace(main, rest=0).piece()
        yield replace(main, start=edge, step=1, trips=rest, rest=0).piece()
    else:
        yield main.piece()


@dataclass(frozen=True)
class _Assembly:
    """Puts the accesses of one Nest together."""

    lowering: _Lowering
    loops: Loops
    start: Mapping[str, int]
    runs: Mapping[str, list[Run]]
    """Copies of the body along each index but the innermost."""
    step: int
    trips: int
    rest: int

    def piece(self) -> Piece:
        before, inner, after = self._body(self._inner_runs)
        rest = self._rest(MAX_ACCESSES - len(before) - len(inner) - len(after))
        placed = self._place(before, inner, [touch for part in rest for touch in part], after)
        counts = [(p.touch, self._times(p.level)) for p in placed]
        if len(placed) > MAX_ACCESSES:
            flat = [touch for part in rest for touch in part]
            placed = self._place(_joined(before), inner, flat, _joined(after))
        if len(placed) > MAX_ACCESSES:
            raise CapacityError(
                f"the body of the innermost loop makes {len(placed)} accesses; at most {MAX_ACCESSES} can be "
                "described; take a smaller register tile (v1, v2, v3)"
            )
        trips = tuple(loop[2] for loop in self._all_loops)
        chain, parallel = self._chain(len(rest))
        copies = prod(len(runs) for runs in self.runs.values())
        return Piece(
            Nest(trips, tuple(self._access(p) for p in placed)),
            body_runs=copies * (len(self._inner_runs) * self.trips + len(rest)) * self._starts,
            iterations=self._starts * self.trips,
            starts=self._starts,
            gathered=sum(times for touch, times in counts if touch.gathered),
            chain=chain,
            parallel=parallel,
            loads=sum(times for touch, times in counts if not touch.write),
            stores=sum(times for touch, times in counts if touch.write),
        )

    @property
    def is_too_large(self) -> bool:
        accesses = sum(len(part) for part in self._body(self._inner_runs))
        return accesses + sum(len(self._rest_body((i, 1))) for i in range(self.rest)) > MAX_ACCESSES

    @property
    def keeps_something(self) -> bool:
        """Whether anything is loaded before the innermost loop or stored after it."""
        before, _, after = self._body([(0, 1)])
        return bool(before or after)

    @property
    def _index(self) -> str:
        return self.lowering.plan.order[-1]

    @property
    def _inner_runs(self) -> list[Run]:
        return self.lowering.plan.runs(self._index, self.step) if self.step > 1 else [(0, 1)]

    @property
    def _all_loops(self) -> Loops:
        last = (len(self.lowering.levels) - 1, self._index, self.trips, self.step)
        return (*self.loops, last) if self.trips > 1 else self.loops

    @property
    def _starts(self) -> int:
        return prod(loop[2] for loop in self.loops)

    def _times(self, level: int) -> int:
        return prod(loop[2] for loop in self._all_loops if loop[0] <= level)

    def _body(self, inner_runs: list[Run]) -> tuple[list[_Touch], list[_Touch], list[_Touch]]:
        """What is touched before, in and after the innermost loop, each in program order."""
        operation, plan = self.lowering.operation, self.lowering.plan
        before: list[_Touch] = []
        inner: list[_Touch] = []
        for operand in operation.inputs:
            here = inner if self._index in operand.strides else before
            here.extend(self._touches(operand, inner_runs, write=False))
        output = operation.output
        if output is None:
            return before, inner, []
        load = self._touches(output, inner_runs, write=False) if operation.accumulates else []
        store = self._touches(output, inner_runs, write=True)
        has_sum = self._has_earlier_sum(output)
        if self._index in output.strides:
            return before, inner + (load if has_sum else []) + store, []
        if plan.accumulate == "memory":
            return before, load + inner + store, []
        return (load if has_sum else []) + before, inner, store

    def _touches(self, operand: Operand, inner_runs: list[Run], write: bool) -> list[_Touch]:
        """All copies of an access; a vector that does not lie in one piece is touched lane by lane."""
        all_runs = {**self.runs, self._index: inner_runs}
        names = [index for index in self.lowering.plan.order if index in operand.strides]
        touches = []
        for combination in product(*(all_runs[name] for name in names)):
            offset = sum(operand.distance(name, run[0]) for name, run in zip(names, combination, strict=True))
            wide = [(name, run[1]) for name, run in zip(names, combination, strict=True) if run[1] > 1]
            name, width = wide[0] if wide else ("", 1)
            if width == 1 or operand.has_neighbours(name, width):
                touches.append(_Touch(operand, offset, width * operand.element_bytes, write))
                continue
            lanes = [offset + operand.distance(name, lane) for lane in range(width)]
            touches += [_Touch(operand, lane, operand.element_bytes, write, gathered=True) for lane in lanes]
        return touches

    def _has_earlier_sum(self, output: Operand) -> bool:
        """Whether a loop around the place where the output is kept has already added to it."""
        around = self.lowering.levels[: self._level_of(output)]
        return any(index not in output.strides for index, _ in around)

    def _level_of(self, operand: Operand) -> int:
        """The innermost level that moves an operand; -1 if none does."""
        levels = enumerate(self.lowering.levels)
        return max((level for level, (index, _) in levels if index in operand.strides), default=-1)

    def _rest(self, room: int) -> list[list[_Touch]]:
        """The iterations that do not fill a step: one by one or, where that is too many, in halving
        widths."""
        singles = [self._rest_body((i, 1)) for i in range(self.rest)]
        if sum(map(len, singles)) <= room:
            return singles
        widths = [1 << bit for bit in reversed(range(self.rest.bit_length())) if self.rest >> bit & 1]
        return [self._rest_body((sum(widths[:i]), width)) for i, width in enumerate(widths)]

    def _rest_body(self, run: Run) -> list[_Touch]:
        _, inner, _ = self._body([run])
        done = self.trips * self.step
        return [replace(t, offset=t.offset + t.operand.distance(self._index, done)) for t in inner]

    def _place(
        self, before: list[_Touch], inner: list[_Touch], rest: list[_Touch], after: list[_Touch]
    ) -> list[_Placed]:
        """In program order: what runs first comes first, also where two levels fall together."""
        first = [_Placed(touch, self._level_of(touch.operand), False) for touch in before]
        body = [_Placed(touch, len(self.lowering.levels) - 1, False) for touch in inner]
        edge = [_Placed(touch, len(self.lowering.levels) - 2, True) for touch in rest]
        last = [_Placed(touch, self._level_of(touch.operand), True) for touch in after]
        return [
            *sorted(first, key=lambda p: p.level),
            *body,
            *edge,
            *sorted(last, key=lambda p: -p.level),
        ]

    def _access(self, placed: _Placed) -> Access:
        touch, operand = placed.touch, placed.touch.operand
        base = operand.base + touch.offset
        base += sum(operand.distance(index, first) for index, first in self.start.items())
        around = [loop for loop in self._all_loops if loop[0] <= placed.level]
        strides = tuple(operand.distance(index, step) for _, index, _, step in around)
        return Access(base, strides, touch.nbytes, touch.write, placed.after, operand.tensor)

    def _chain(self, rest: int) -> tuple[int, int]:
        """Length and number of the sums that the innermost loop carries from one iteration to the next."""
        operation, plan = self.lowering.operation, self.lowering.plan
        output = operation.output
        if not operation.accumulates or (output is not None and self._index in output.strides):
            return 0, 1
        length = self.trips * len(self._inner_runs) + rest
        kept = [runs for name, runs in self.runs.items() if output is None or name in output.strides]
        return length * (2 if plan.accumulate == "memory" else 1), prod(len(runs) for runs in kept)


def _joined(touches: Sequence[_Touch]) -> list[_Touch]:
    """Neighbours in memory as one wide access: the same lines in the same order, with fewer accesses."""
    joined: list[_Touch] = []
    for touch in touches:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.operand is touch.operand
            and last.write == touch.write
            and last.offset + last.nbytes == touch.offset
            and last.nbytes + touch.nbytes <= MAX_ACCESS_BYTES
        ):
            joined[-1] = replace(last, nbytes=last.nbytes + touch.nbytes)
        else:
            joined.append(touch)
    return joined
