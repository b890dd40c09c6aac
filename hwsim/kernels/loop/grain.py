"""How a range of iterations is cut into Blocks for cores, and into Steps that may interleave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hwsim.kernels.loop.loops import LoopPlan, Range

FEWEST_STEPS, MOST_STEPS = 8, 64
"""Where cores share a level, the Steps of each should be about this many: fine enough to interleave, few
events."""

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
    tiled = [index for index in plan.order if index in plan.tile]
    outer = tiled[0] if tiled else plan.order[0]
    if not fine:
        yield ranges
        return
    unit = step_unit(plan, outer)
    cuts = _cut(ranges[outer], unit, MOST_STEPS)
    deeper = len(cuts) < FEWEST_STEPS and len(tiled) > 1
    for cut in cuts:
        if not deeper:
            yield {**ranges, outer: cut}
            continue
        for inner in _cut(ranges[tiled[1]], plan.tile[tiled[1]], -(-FEWEST_STEPS // len(cuts))):
            yield {**ranges, outer: cut, tiled[1]: inner}


def step_unit(plan: LoopPlan, index: str) -> int:
    """Iterations of a loop that belong together."""
    return plan.tile.get(index) or plan.step(index)


def _cut(whole: Range, unit: int, most: int) -> list[Range]:
    start, extent = whole
    units = -(-extent // unit)
    return [(start + first, count) for first, count in split_static(extent, min(units, most), unit)]
