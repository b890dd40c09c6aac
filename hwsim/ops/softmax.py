"""Softmax along the rows of a tensor: in three passes, or in two with maximum and sum together (online)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from pydantic import Field

from hwsim.numerics.format import Array, Format
from hwsim.program.count import flops_of
from hwsim.program.kernel import Formula, Setting
from hwsim.program.loops import LoopPlan
from hwsim.program.operation import Operation, StatementOperator, operation
from hwsim.program.tiling import AxisView, LoopCuts
from hwsim.spec.base import Spec
from hwsim.spec.schedule import Extent, ParallelSchedule
from hwsim.trace.nest import Instructions

PASSES = """
    max:         max[i] max= X[i,j]
    exp and sum: Y[i,j] = exp(X[i,j] - max[i])
                 sum[i] += Y[i,j]
    divide:      Y[i,j] = Y[i,j] / sum[i]
"""
ONLINE = """
    max and sum: before = max[i]
                 max[i] max= X[i,j]
                 sum[i] = sum[i] * exp(before - max[i]) + exp(X[i,j] - max[i])
    normalise:   Y[i,j] = exp(X[i,j] - max[i]) / sum[i]
"""


class SoftmaxSizes(Spec):
    """A row-major matrix."""

    n: Extent = Field(512, description="Columns, which are summed over; rows too where m is not given.")
    m: Extent | None = Field(None, description="Rows.")


class SoftmaxSchedule(ParallelSchedule):
    """How many passes are made over the rows, and over how many rows at a time."""

    variant: Literal["passes", "online"] = Field(
        "passes",
        description="passes: maximum, then exponentials and their sum, then division; online: maximum and sum in one "
        "pass, then exponentials over the sum.",
    )
    block: Extent | None = Field(
        None, description="Rows that go through all passes before the next ones; all of them if not given."
    )
    vector: bool = Field(True, description="Use the machine's vector unit.")


def _text(shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: SoftmaxSchedule) -> str:
    return ONLINE if schedule.variant == "online" else PASSES


def in_vectors(group: Any, extents: Mapping[str, int], operands: Sequence[Any], lanes: int) -> LoopPlan:
    """Vectors along the last loop."""
    order = tuple(extents)
    return LoopPlan(order, vector=order[-1] if lanes > 1 else None, lanes=lanes)


def _layout(operator: StatementOperator, schedule: SoftmaxSchedule, lanes: int) -> LoopCuts:
    lanes = lanes if schedule.vector else 1
    rows = operator.program.extents["i"]
    together = {"i": min(schedule.block, rows)} if schedule.block else {}
    return LoopCuts(
        together=together, plan=lambda group, extents, operands: in_vectors(group, extents, operands, lanes)
    )


def _intensity(operator: StatementOperator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    reads, writes = (2, 1) if operator.schedule.variant == "online" else (3, 2)  # type: ignore[attr-defined]
    work = flops_of(sum((group.body_cost for group in operator.groups), Instructions()))
    name = f"operations per element moved, {reads} reads and {writes} writes of each"
    moved = reads + writes
    return (Formula(name, f"{work}/{moved}", work / moved, "flop", "intensity.element"),)


def _make(
    operation: Operation, shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: Any
) -> StatementOperator:
    """Along the last axis of a tensor of any shape: its other axes are seen as one."""
    port = tuple(shapes["X"])
    view = AxisView(port, (prod(port[:-1]), port[-1]))
    return StatementOperator(operation, shapes, parameters, schedule, views={"X": view, "Y": view})


@operation(
    "X[m|n,n] -> Y[m|n,n]",
    _text,
    sizes=SoftmaxSizes,
    schedule=SoftmaxSchedule,
    layout=_layout,
    formats={"max": "wide", "sum": "wide"},
    formulas=_intensity,
    make=_make,
)
def softmax(X: Array) -> Array:
    """Y[i,j] = exp(X[i,j] - max_j X[i,j]) / sum_j exp(X[i,j] - max_j X[i,j])."""
    grown = np.exp(X - X.max(axis=-1, keepdims=True))
    return np.asarray(grown / grown.sum(axis=-1, keepdims=True))
