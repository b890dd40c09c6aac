"""Loops as a schedule asks for them: order, tiles, register tiles, and vectors as wide as a nest can describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from hwsim.program.loops import LoopOperation, LoopPlan, Operand
from hwsim.trace.nest import MAX_ACCESSES


def fit_plan(
    order: Sequence[str],
    extents: Mapping[str, int],
    operation: LoopOperation,
    *,
    tile: Mapping[str, int] | None = None,
    unroll: Mapping[str, int] | None = None,
    along: str = "",
    lanes: int = 1,
) -> LoopPlan:
    """The loops of a sum, with vectors along one of them: narrower where too many accesses would have to be made."""
    asked = {index: min(size, extents[index]) for index, size in (unroll or {}).items() if index in extents}
    vector = along if lanes > 1 and along in extents else None
    plan = LoopPlan(
        order=tuple(order),
        tile={index: min(size, extents[index]) for index, size in (tile or {}).items() if index in extents},
        unroll={index: size for index, size in asked.items() if (unroll or {})[index] > 1},
        vector=vector,
        lanes=lanes if vector else 1,
    )
    if vector is None:
        return plan
    while True:
        fitted = _with_vector(plan, extents, unroll or {})
        if fitted.lanes == 1 or accesses(fitted, extents, operation) <= MAX_ACCESSES:
            return fitted if fitted.lanes > 1 else replace(plan, vector=None, lanes=1)
        plan = replace(plan, lanes=plan.lanes // 2)


def _with_vector(plan: LoopPlan, extents: Mapping[str, int], asked: Mapping[str, int]) -> LoopPlan:
    """A loop that is not the innermost one is unrolled by its vectors: by two where others are unrolled too."""
    index = plan.vector
    assert index is not None
    if index == plan.order[-1] or index in asked:
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


def count_registers(plan: LoopPlan, operands: Sequence[Operand]) -> int:
    """Values that the innermost loop holds: of each operand, as many as its loops are unrolled; a vector is one."""
    lanes = {index: plan.lanes if index == plan.vector else 1 for index in plan.order}
    return sum(
        prod(-(-plan.unroll.get(i, 1) // lanes[i]) for i in operand.strides if i in lanes) for operand in operands
    )
