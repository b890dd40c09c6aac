"""From the schedule of a convolution to a plan of its loops: order, tiles, and vectors that a Nest can describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from hwsim.errors import InputError
from hwsim.kernels.conv.shape import ConvShape
from hwsim.kernels.loop.loops import LoopOperation, LoopPlan, Operand
from hwsim.spec.fields import did_you_mean
from hwsim.spec.ops.conv import ConvSchedule
from hwsim.trace.nest import MAX_ACCESSES

OPTIONAL = ("n", "g")
"""Loops that a convolution of one image, or of one group, does not have."""


def loop_order(schedule: ConvSchedule, default: Sequence[str], also: Sequence[str] = ()) -> tuple[str, ...]:
    """The loops in the order that was asked for; a name that belongs nowhere is refused.

    `also` are loops that may be cut, although the order has no place for them.
    """
    asked = [index for index in schedule.order if index in default or index not in OPTIONAL]
    missing = [index for index in OPTIONAL if index in default and index not in asked] if asked else []
    order = (*missing, *asked) if asked else tuple(default)
    if sorted(order) != sorted(default):
        raise InputError(
            f"schedule.order must name each of {', '.join(default)} once, found {', '.join(schedule.order)}"
        )
    known = (*default, *also)
    given = {"tile": schedule.tile, "unroll": schedule.unroll, "along": [schedule.along], "share": [schedule.share]}
    for field, indices in given.items():
        for index in indices:
            if index is not None and index not in (*known, *OPTIONAL):
                near = did_you_mean(index, known)
                names = ", ".join(known)
                raise InputError(
                    f"schedule.{field}: {schedule.algorithm} has no loop {index}; its loops are {names}{near}"
                )
    return order


def shared_loop(schedule: ConvSchedule, plan: LoopPlan, extents: Mapping[str, int], output: Operand) -> str:
    """The loop that cores share: the one asked for, or the outermost over the output that has something to share."""
    loops = sorted(plan.order, key=lambda index: index not in plan.tile)
    free = [index for index in loops if index in output.strides]
    if schedule.share is None or schedule.share in OPTIONAL:
        asked = [schedule.share] if schedule.share in free else []
        return str([*asked, *(index for index in free if extents[index] > 1), *free][0])
    if schedule.share not in free:
        times = extents.get(schedule.share, 1)
        raise InputError(
            f"schedule.share: {schedule.share} runs {times} times over the same outputs, so cores would have to add up "
            f"each other's sums; share one of {', '.join(free)}"
        )
    return schedule.share


def make_plan(
    order: Sequence[str],
    extents: Mapping[str, int],
    schedule: ConvSchedule,
    operation: LoopOperation,
    *,
    lanes: int,
    along: str,
    tile: Mapping[str, int] | None = None,
) -> LoopPlan:
    """The loops of a sum of products; vectors get narrower where too many accesses would have to be made."""
    tile = schedule.tile if tile is None else tile
    unroll = {index: size for index, size in schedule.unroll.items() if index in extents and size > 1}
    vector = along if schedule.vector and lanes > 1 else None
    plan = LoopPlan(
        order=tuple(order),
        tile={index: min(size, extents[index]) for index, size in tile.items() if index in extents},
        unroll={index: min(size, extents[index]) for index, size in unroll.items()},
        vector=vector,
        lanes=lanes if vector else 1,
    )
    if vector is None:
        return plan
    while True:
        fitted = _with_vector(plan, extents, schedule)
        if fitted.lanes == 1 or accesses(fitted, extents, operation) <= MAX_ACCESSES:
            return fitted if fitted.lanes > 1 else replace(plan, vector=None, lanes=1)
        plan = replace(plan, lanes=plan.lanes // 2)


def _with_vector(plan: LoopPlan, extents: Mapping[str, int], schedule: ConvSchedule) -> LoopPlan:
    """A loop that is not the innermost one is unrolled by its vectors: by two where others are unrolled too."""
    index = plan.vector
    assert index is not None
    if index == plan.order[-1] or index in schedule.unroll:
        return plan
    vectors = 2 if any(size > 1 for name, size in plan.unroll.items() if name != index) else 1
    return replace(plan, unroll={**plan.unroll, index: min(vectors * plan.lanes, extents[index])})


def accesses(plan: LoopPlan, extents: Mapping[str, int], operation: LoopOperation) -> int:
    """How many accesses the body of the innermost loop makes at most, over all edges."""
    total = sum(_copies(plan, extents, operand) for operand in (*operation.inputs, *operation.late))
    if operation.output is not None:
        total += 2 * _copies(plan, extents, operation.output, joined=True)
    return total


def _copies(plan: LoopPlan, extents: Mapping[str, int], operand: Operand, joined: bool = False) -> int:
    return prod(_copies_along(plan, extents, operand, index, joined) for index in operand.strides if index in extents)


def _copies_along(plan: LoopPlan, extents: Mapping[str, int], operand: Operand, index: str, joined: bool) -> int:
    step = min(plan.step(index), extents[index])
    if index != plan.vector:
        return step
    neighbours = operand.has_neighbours(index, plan.lanes)
    if index == plan.order[-1]:
        return len(plan.runs(index, step)) + (step - 1).bit_length() if neighbours else 2 * step
    if not neighbours:
        return step
    tile = min(plan.tile.get(index, extents[index]), extents[index])
    counts = {min(step, size) for size in (tile, extents[index] % tile) if size}
    counts |= {size % step for size in (tile, extents[index] % tile) if size % step}
    return 1 if joined else max(len(plan.runs(index, count)) for count in counts)


def count_registers(plan: LoopPlan, operation: LoopOperation) -> int:
    """Values that the innermost loop holds: of each operand, as many as its loops are unrolled; a vector is one."""
    operands = [*operation.inputs, *([operation.output] if operation.output else [])]
    lanes = {index: plan.lanes if index == plan.vector else 1 for index in plan.order}
    return sum(
        prod(-(-plan.unroll.get(i, 1) // lanes[i]) for i in operand.strides if i in lanes) for operand in operands
    )


def default_along(shape: ConvShape, flat: bool) -> str:
    """The loop along which outputs are neighbours or, where filters have none there, the sum itself."""
    if shape.layout == "nchw":
        return "w"
    if shape.groups > 1 and shape.co == shape.groups and not flat:
        return "g"
    return "co" if shape.w_layout == "hwio" else "k" if flat else "ci"
