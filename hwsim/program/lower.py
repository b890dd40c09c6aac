"""From an operation on strided tensors and a loop schedule to the Nests that a load/store machine walks.

The rules are those of a straightforward compiler:

- tile loops come first, then the loops inside a tile, both in the given order;
- an operand is loaded in the innermost of the loops that it depends on, and kept in a register over the
  loops inside;
- a result that does not depend on the innermost loops is kept in a register over them and stored after
  them; it is loaded before them if an outer loop, or an earlier tile of a sum, has already added to it;
  otherwise it is loaded and stored in the innermost loop;
- an unrolled loop runs in steps of its factor and holds that many copies (register tiling);
- a vectorised loop takes `lanes` neighbours at once where they are neighbours in memory, else one by one (a
  gather).

Edges of tiles are further Nests, in program order; the last few iterations of an innermost loop that do not
fill a vector are single accesses after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from hwsim.errors import CapacityError
from hwsim.program.loops import LoopOperation, LoopPlan, Operand, Piece, Range, Stretch, is_resumed
from hwsim.trace.nest import MAX_ACCESS_BYTES, MAX_ACCESSES, Access, Nest, OffsetTable, Size, make_access


@dataclass(frozen=True)
class Lowering:
    """What stays the same for all Nests of an operation."""

    operation: LoopOperation
    plan: LoopPlan
    levels: tuple[tuple[str, int], ...]
    """All loops, outermost first: the index, and whether it is the loop over tiles of that index."""
    first: Mapping[str, int]
    """Where each index begins."""
    resumed: bool = False
    """Whether a loop over tiles around all of these has already added to the output."""
    sketch: bool = False
    """Whether, of the iterations of a loop that are nests by themselves, the second stands for all further ones."""
    known: dict[object, tuple[Mapping[str, int], Piece]] = field(default_factory=dict, compare=False)
    """Pieces that stand for all that differ only in where they begin, and where that is for them."""


Loops = tuple[tuple[int, str, int, int], ...]
"""The loops of a Nest: level, index, trip count, step."""


@dataclass(frozen=True)
class _Touch:
    """One access of the loop body: where it is relative to the first iteration of all loops around it."""

    operand: Operand
    offset: Size
    nbytes: Size
    write: bool
    gathered: bool = False
    entry: int = 0
    """Its place in the table of an operand that is looked up, relative to the first iteration."""


@dataclass(frozen=True)
class _Placed:
    """A touch and the loops around it: all up to a level; before or after what is deeper."""

    touch: _Touch
    level: int
    after: bool


@dataclass(frozen=True)
class Assembly:
    """Puts the accesses of one Nest together."""

    lowering: Lowering
    loops: Loops
    start: Mapping[str, int]
    runs: Mapping[str, list[Stretch]]
    """Copies of the body along each index but the innermost."""
    step: int
    trips: int
    rest: int

    def piece(self) -> Piece:
        """The Nest with what it counts; of pieces that differ only in where they begin, one is put together."""
        operation, known = self.lowering.operation, self.lowering.known
        if any(operand.gather is not None or operand.element_bytes % 1 for operand in operation.operands):
            return self._piece()  # what is looked up, or packed into parts of a byte, does not simply move
        summed = operation.output is not None and self._has_earlier_sum(operation.output)
        runs = tuple((name, tuple(found)) for name, found in self.runs.items())
        key = self.loops, runs, self.step, self.trips, self.rest, summed
        if key not in known:
            known[key] = self.start, self._piece()
        start, piece = known[key]
        if start == self.start:
            return piece
        shifts = {
            id(operand): self._place_of(operand, self.start) - self._place_of(operand, start)
            for operand in piece.operands
        }
        return replace(piece, nest=piece.nest.moved([shifts[id(operand)] for operand in piece.operands]))

    def _place_of(self, operand: Operand, start: Mapping[str, int]) -> Size:
        """How far from its base an operand lies where the loops begin."""
        return sum(operand.distance(index, first) for index, first in start.items())

    def _piece(self) -> Piece:
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
        chain, parallel, sums = self._chain(len(rest))
        copies = prod(len(runs) for runs in self.runs.values())
        return Piece(
            Nest(trips, tuple(self._access(p) for p in placed)),
            body_runs=copies * (len(self._inner_runs) * self.trips + len(rest)) * self._starts,
            iterations=self._starts * self.trips,
            starts=self._starts,
            gathered=sum(times for touch, times in counts if touch.gathered),
            chain=chain,
            sums=sums,
            parallel=parallel,
            loads=sum(times for touch, times in counts if not touch.write),
            stores=sum(times for touch, times in counts if touch.write),
            results=sum(times for t, times in counts if t.write and t.operand is self.lowering.operation.output),
            operands=tuple(p.touch.operand for p in placed),
        )

    @property
    def is_too_large(self) -> bool:
        accesses = sum(len(part) for part in self._body(self._inner_runs))
        return accesses + sum(len(self._rest_body((i, 1))) for i in range(self.rest)) > MAX_ACCESSES

    def is_even(self, extent: int) -> bool:
        """Whether the innermost loop moves every operand in equal steps of one iteration."""
        operands = self.lowering.operation.operands
        return all(self._index not in op.far or op.far[self._index][0] >= extent for op in operands)

    @property
    def keeps_something(self) -> bool:
        """Whether anything is loaded before the innermost loop or stored after it."""
        before, _, after = self._body([(0, 1)])
        return bool(before or after)

    @property
    def _index(self) -> str:
        return self.lowering.plan.order[-1]

    @property
    def _inner_runs(self) -> list[Stretch]:
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

    def _body(self, inner_runs: list[Stretch]) -> tuple[list[_Touch], list[_Touch], list[_Touch]]:
        """What is touched before, in and after the innermost loop, each in program order."""
        operation, plan = self.lowering.operation, self.lowering.plan
        before: list[_Touch] = []
        inner: list[_Touch] = []
        for operand in operation.inputs:
            here = inner if self._index in operand.strides else before
            here.extend(self._touches(operand, inner_runs, write=False))
        output = operation.output
        more: list[_Touch] = []
        last: list[_Touch] = []
        for operand in operation.stores:
            here = more if self._index in operand.strides else last
            here.extend(self._touches(operand, inner_runs, write=True))
        if output is None:
            return before, inner + more, last
        load = self._touches(output, inner_runs, write=False) if operation.accumulates else []
        store = self._touches(output, inner_runs, write=True)
        has_sum = self._has_earlier_sum(output)
        if self._index in output.strides:
            return before, inner + (load if has_sum else []) + more + store, last
        if plan.accumulate == "memory":
            return before, load + inner + more + store, last
        late = [touch for operand in operation.late for touch in self._touches(operand, inner_runs, write=False)]
        return (load if has_sum else []) + before, inner + more, late + last + store

    def _touches(self, operand: Operand, inner_runs: list[Stretch], write: bool) -> list[_Touch]:
        """All copies of an access; a vector that does not lie in one piece is touched lane by lane."""
        all_runs = {**self.runs, self._index: inner_runs}
        names = [index for index in self.lowering.plan.order if index in operand.strides]
        touches = []
        for combination in product(*(all_runs[name] for name in names)):
            offset = sum(operand.distance(name, run[0]) for name, run in zip(names, combination, strict=True))
            wide = [(name, run[1]) for name, run in zip(names, combination, strict=True) if run[1] > 1]
            name, width = wide[0] if wide else ("", 1)
            looked_up = operand.gather.index if operand.gather is not None else ""
            entry = sum(run[0] for index, run in zip(names, combination, strict=True) if index == looked_up)
            if width == 1 or operand.has_neighbours(name, width):
                touches.append(_Touch(operand, offset, width * operand.element_bytes, write, entry=entry))
                continue
            for lane in range(width):
                place = offset + operand.distance(name, lane)
                number = entry + (lane if name == looked_up else 0)
                touches.append(_Touch(operand, place, operand.element_bytes, write, True, number))
        return touches

    def _has_earlier_sum(self, output: Operand) -> bool:
        """Whether a loop around the place where the output is kept, or a piece before this one, has added to it."""
        around = self.lowering.levels[: max(self._level_of(output), 0)]
        if self.lowering.resumed or any(index not in output.strides for index, _ in around):
            return True
        first = self.lowering.first
        return any(start > first[index] for index, start in self.start.items() if index not in output.strides)

    def _level_of(self, operand: Operand) -> int:
        """The innermost level that moves an operand; -1 if none does."""
        levels = enumerate(self.lowering.levels)
        return max((level for level, (index, _) in levels if index in operand.strides), default=-1)

    def _rest(self, room: int) -> list[list[_Touch]]:
        """The iterations that do not fill a step: one by one or, where that is too many, in halving widths."""
        singles = [self._rest_body((i, 1)) for i in range(self.rest)]
        if sum(map(len, singles)) <= room:
            return singles
        widths = [1 << bit for bit in reversed(range(self.rest.bit_length())) if self.rest >> bit & 1]
        return [self._rest_body((sum(widths[:i]), width)) for i, width in enumerate(widths)]

    def _rest_body(self, run: Stretch) -> list[_Touch]:
        _, inner, _ = self._body([run])
        done = self.trips * self.step
        moved = []
        for t in inner:
            skipped = done if t.operand.gather is not None and t.operand.gather.index == self._index else 0
            offset = t.offset + t.operand.distance(self._index, done)
            moved.append(replace(t, offset=offset, entry=t.entry + skipped))
        return moved

    def _place(
        self, before: list[_Touch], inner: list[_Touch], rest: list[_Touch], after: list[_Touch]
    ) -> list[_Placed]:
        """In program order: what runs first comes first, also where two levels fall together."""
        first = [_Placed(touch, self._level_of(touch.operand), False) for touch in before]
        body = [_Placed(touch, len(self.lowering.levels) - 1, False) for touch in inner]
        edge = [_Placed(touch, len(self.lowering.levels) - 2, True) for touch in rest]
        operation = self.lowering.operation
        stored = self._level_of(operation.output) if operation.output is not None else -1
        beside = {id(operand): self._level_of(operand) for operand in operation.stores}
        last = [_Placed(touch, beside.get(id(touch.operand), stored), True) for touch in after]
        return [
            *sorted(first, key=lambda p: p.level),
            *body,
            *edge,
            *last,
        ]

    def _access(self, placed: _Placed) -> Access:
        touch, operand = placed.touch, placed.touch.operand
        base = operand.base + touch.offset + self._place_of(operand, self.start)
        around = [loop for loop in self._all_loops if loop[0] <= placed.level]
        strides = tuple(operand.distance(index, step) for _, index, _, step in around)
        table = None
        if operand.gather is not None:
            looked_up = operand.gather.index
            first_entry = self.start[looked_up] + touch.entry
            moves = tuple(step if index == looked_up else 0 for _, index, _, step in around)
            table = OffsetTable(operand.gather.offsets[first_entry:], moves)
        parts = 1 if operand.gather is None else operand.gather.per_byte
        return make_access(base, strides, touch.nbytes, touch.write, placed.after, operand.tensor, table, parts)

    def _chain(self, rest: int) -> tuple[int, int, int]:
        """Of sums that stay in registers from one iteration to the next: length, how many side by side, how often."""
        operation, plan = self.lowering.operation, self.lowering.plan
        output = operation.output
        if not operation.accumulates or (output is not None and self._index in output.strides):
            return 0, 1, self._starts
        length = self.trips * len(self._inner_runs) + rest
        if plan.accumulate == "register":
            kept_from = self._level_of(output) if output is not None else -1
            around = prod(loop[2] for loop in self.loops if loop[0] > kept_from)
        else:
            around = 1
        kept = [runs for name, runs in self.runs.items() if output is None or name in output.strides]
        through_memory = 2 if plan.accumulate == "memory" else 1
        return length * around * through_memory, prod(len(runs) for runs in kept), self._starts // around


def _joined(touches: Sequence[_Touch]) -> list[_Touch]:
    """Neighbours in memory as one wide access: the same lines in the same order, with fewer accesses."""
    joined: list[_Touch] = []
    for touch in touches:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.operand is touch.operand
            and last.entry == touch.entry
            and last.write == touch.write
            and last.offset + last.nbytes == touch.offset
            and last.nbytes + touch.nbytes <= MAX_ACCESS_BYTES
        ):
            joined[-1] = replace(last, nbytes=last.nbytes + touch.nbytes)
        else:
            joined.append(touch)
    return joined


INNER, TILE, OUTER = 0, 1, 2
"""Rings of loops: over what is in registers, over tiles, over the tiles of the cache behind."""


def lower(
    operation: LoopOperation, plan: LoopPlan, ranges: Mapping[str, Range], *, sketch: bool = False
) -> Iterator[Piece]:
    """The Nests of an operation over a range of each index, in program order; in a sketch, some stand for many."""
    levels = [(index, OUTER) for index in plan.order if index in plan.outer]
    levels += [(index, TILE) for index in plan.order if index in plan.tile]
    levels += [(index, INNER) for index in plan.order]
    start = {index: ranges[index][0] for index in plan.order}
    extent = {index: ranges[index][1] for index in plan.order}
    lowering = Lowering(operation, plan, tuple(levels), start, is_resumed(operation, ranges), sketch)
    yield from _walk(lowering, 0, (), start, extent, {})


def _walk(
    lowering: Lowering,
    level: int,
    loops: Loops,
    start: Mapping[str, int],
    extent: Mapping[str, int],
    copies: Mapping[str, int],
) -> Iterator[Piece]:
    """Each loop in turn: as one loop of a Nest if all its iterations look the same, else iteration by iteration."""
    if level == len(lowering.levels) - 1:
        yield from _innermost(lowering, loops, start, extent, copies)
        return
    index, ring = lowering.levels[level]
    position = start[index]
    for trips, size in _cuts(lowering.plan, index, ring, extent[index]):
        inner_extent = {**extent, index: size}
        inner_copies = copies if ring != INNER else {**copies, index: size}
        if _is_uniform(lowering, level + 1, inner_extent):
            longer = (*loops, (level, index, trips, size)) if trips > 1 else loops
            inner_start = {**start, index: position}
            yield from _walk(lowering, level + 1, longer, inner_start, inner_extent, inner_copies)
        else:
            for i in range(min(trips, 2) if lowering.sketch else trips):
                inner_start = {**start, index: position + i * size}
                pieces = _walk(lowering, level + 1, loops, inner_start, inner_extent, inner_copies)
                yield from (piece.repeated(trips - 1) for piece in pieces) if lowering.sketch and i else pieces
        position += trips * size


def _cuts(plan: LoopPlan, index: str, ring: int, extent: int) -> list[tuple[int, int]]:
    """(trips, iterations in each) of a loop: the whole steps, then what is left."""
    step = min(_sizes(plan, ring).get(index, 1), extent)
    whole, rest = divmod(extent, step)
    return [(whole, step)] + ([(1, rest)] if rest else [])


def _sizes(plan: LoopPlan, ring: int) -> Mapping[str, int]:
    """What the loops of a ring go on by."""
    return {OUTER: plan.outer, TILE: plan.tile, INNER: plan.unroll}[ring]


def _is_uniform(lowering: Lowering, level: int, extent: Mapping[str, int]) -> bool:
    """Whether the loops from here on, but for the innermost, need no edge pieces."""
    extent = dict(extent)
    for index, ring in lowering.levels[level:-1]:
        cuts = _cuts(lowering.plan, index, ring, extent[index])
        if len(cuts) > 1:
            return False
        extent[index] = cuts[0][1]
    return True


def _innermost(
    lowering: Lowering,
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
    main = Assembly(lowering, loops, start, runs, step, trips, rest)
    if index != plan.vector and step > 1 and main.is_too_large and main.is_even(extent[index]):
        # The same accesses, iteration by iteration instead of all loads of a step together.
        main = Assembly(lowering, loops, start, runs, 1, extent[index], 0)
    if main.rest and not loops and not main.keeps_something:
        edge = {**start, index: start[index] + trips * step}
        yield replace(main, rest=0).piece()
        yield replace(main, start=edge, step=1, trips=rest, rest=0).piece()
    else:
        yield main.piece()
