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
fill a vector are single accesses after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from hwsim.kernels.loop.assembly import Assembly, Loops, Lowering
from hwsim.kernels.loop.loops import LoopOperation, LoopPlan, Piece, Range, is_resumed


def lower(operation: LoopOperation, plan: LoopPlan, ranges: Mapping[str, Range]) -> Iterator[Piece]:
    """The Nests of an operation over a range of each index, in program order."""
    levels = [(index, True) for index in plan.order if index in plan.tile]
    levels += [(index, False) for index in plan.order]
    start = {index: ranges[index][0] for index in plan.order}
    extent = {index: ranges[index][1] for index in plan.order}
    lowering = Lowering(operation, plan, tuple(levels), start, is_resumed(operation, ranges))
    yield from _walk(lowering, 0, (), start, extent, {})


def _walk(
    lowering: Lowering,
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


def _is_uniform(lowering: Lowering, level: int, extent: Mapping[str, int]) -> bool:
    """Whether the loops from here on, but for the innermost, need no edge pieces."""
    extent = dict(extent)
    for index, tiled in lowering.levels[level:-1]:
        cuts = _cuts(lowering.plan, index, tiled, extent[index])
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
