"""Normalisation: layer norm and RMS norm of rows, group norm and instance norm of images.

Softmax along the rows of a tensor: in three passes, or in two with maximum and sum together (online).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from pydantic import Field

from hwsim.errors import ShapeError
from hwsim.numerics.format import Array, Format
from hwsim.ops.pointwise import MatrixSizes
from hwsim.program.kernel import Formula, Setting
from hwsim.program.loops import LoopPlan
from hwsim.program.operation import Measured, Operation, Operator, Parameter, operation
from hwsim.program.tiling import AxisView, LoopCuts, flops_of
from hwsim.spec.base import Extent, ParallelSchedule, Spec
from hwsim.trace.nest import Instructions

EPSILON = Parameter(1e-5, "Added to the variance or the mean square.", limits={"gt": 0})


class RowSchedule(ParallelSchedule):
    """Loops over rows, several for each row."""

    vector: bool = Field(True, description="Use the machine's vector unit.")
    rows: Extent = Field(1, description="Rows that go through all loops together; all of them: pass after pass.")


def row_by_row(operator: Operator, schedule: RowSchedule, lanes: int) -> LoopCuts:
    """All loops of some rows run before the next rows begin, so that a row is in the cache when it is read again."""
    extents = operator.program.extents
    outer = [index for index in extents if index[0] == "r" and index[1:].isdigit()]
    together = {index: min(schedule.rows, extents[index]) if index == outer[-1] else 1 for index in outer}
    return LoopCuts(vector=schedule.vector, together=together)


def operations(each: int, row: int) -> object:
    """The closed form: so many operations for each element, and for each row."""

    def formulas(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
        *rows, columns = operator.inputs[0].shape
        total = prod(rows) * (each * columns + row)
        return (Formula("operations", f"m({each}n + {row})", total, "operations", "flops"),)

    return formulas


@operation(
    "X[m,n] gamma[n] beta[n] -> Y[m,n]",
    """
    mean:      mean[...] += X[...,c]
               mean[...] = mean[...] / |c|
    variance:  scale[...] += (X[...,c] - mean[...]) ** 2
               scale[...] = rsqrt(scale[...] / |c| + epsilon)
    normalise: Y[...,c] = (X[...,c] - mean[...]) * scale[...] * gamma[c] + beta[c]
    """,
    sizes=MatrixSizes,
    schedule=RowSchedule,
    layout=row_by_row,
    formulas=operations(8, 5),
    epsilon=EPSILON,
)
def layernorm(X: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    """Each row of a matrix less its mean, over its deviation; the variance is the mean square less the squared mean."""
    mean = X.mean(axis=-1, keepdims=True)
    variance = (X * X).mean(axis=-1, keepdims=True) - mean * mean
    return np.asarray((X - mean) / np.sqrt(variance + epsilon) * gamma + beta)


@operation(
    "X[m,n] gamma[n] -> Y[m,n]",
    """
    mean square: scale[...] += X[...,c] ** 2
                 scale[...] = rsqrt(scale[...] / |c| + epsilon)
    normalise:   Y[...,c] = X[...,c] * scale[...] * gamma[c]
    """,
    sizes=MatrixSizes,
    schedule=RowSchedule,
    layout=row_by_row,
    formulas=operations(4, 4),
    epsilon=EPSILON,
)
def rmsnorm(X: Array, gamma: Array, epsilon: float) -> Array:
    """Each row of a matrix over the root of its mean square."""
    length = np.linalg.norm(X, axis=-1, keepdims=True)
    return np.asarray(X * gamma / np.sqrt(length**2 / X.shape[-1] + epsilon))


@operation(
    "X[m,n] -> Y[m,n]",
    """
    length:    scale[...] += X[...,c] ** 2
               scale[...] = reciprocal(max(sqrt(scale[...]), epsilon))
    normalise: Y[...,c] = X[...,c] * scale[...]
    """,
    sizes=MatrixSizes,
    schedule=RowSchedule,
    layout=row_by_row,
    formulas=operations(3, 3),
    epsilon=Parameter(1e-12, "The least length that a row is divided by.", limits={"gt": 0}),
)
def l2_normalize(X: Array, epsilon: float) -> Array:
    """Each row of a matrix over its Euclidean length, as embeddings are before their cosines."""
    length = np.linalg.norm(X, axis=-1, keepdims=True)
    return np.asarray(X / np.clip(length, epsilon, None))


class ImageNormSizes(Spec):
    """Images [batch, channels, height, width]."""

    batch: Extent = Field(1, description="Images.")
    channels: Extent = Field(64, description="Channels.")
    height: Extent = Field(32, description="Rows.")
    width: Extent = Field(32, description="Columns.")


def _by_groups(shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: object) -> Measured:
    """Channels in groups, each with a mean and a variance of its own."""
    _, channels, height, width = shapes["X"]
    groups = parameters["groups"]
    if channels % groups:
        raise ShapeError(f"{channels} channels cannot be divided into {groups} groups")
    each = channels // groups
    count, place = each * height * width, f"{each}*g+c"
    text = f"""
    mean:      mean[r0,g] += X[r0,{place},h,w]
               mean[r0,g] = mean[r0,g] / {count}
    variance:  scale[r0,g] += (X[r0,{place},h,w] - mean[r0,g]) ** 2
               scale[r0,g] = rsqrt(scale[r0,g] / {count} + epsilon)
    normalise: Y[r0,{place},h,w] = (X[r0,{place},h,w] - mean[r0,g]) * scale[r0,g] * gamma[{place}] + beta[{place}]
    """
    return Measured(text, sizes={"g": groups, "c": each})


_IMAGES: dict[str, Any] = {"sizes": ImageNormSizes, "schedule": RowSchedule, "layout": row_by_row, "epsilon": EPSILON}


@operation(
    "X[batch,channels,height,width] gamma[channels] beta[channels] -> Y[batch,channels,height,width]",
    _by_groups,
    groups=Parameter(8, "Groups of channels that are normalised together.", limits={"ge": 1}),
    **_IMAGES,
)
def group_norm(X: Array, gamma: Array, beta: Array, groups: int, epsilon: float) -> Array:
    """Groups of channels of each image less their mean, over their deviation (Wu and He, 2018)."""
    n, c, h, w = X.shape
    rows = X.reshape(n, groups, -1)
    even = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + epsilon)
    return np.asarray(even.reshape(n, c, h, w) * gamma[:, None, None] + beta[:, None, None])


@operation(
    "X[batch,channels,height,width] gamma[channels] beta[channels] -> Y[batch,channels,height,width]",
    """
    mean:      mean[r0,c] += X[r0,c,h,w]
               mean[r0,c] = mean[r0,c] / (|h| * |w|)
    variance:  scale[r0,c] += (X[r0,c,h,w] - mean[r0,c]) ** 2
               scale[r0,c] = rsqrt(scale[r0,c] / (|h| * |w|) + epsilon)
    normalise: Y[r0,c,h,w] = (X[r0,c,h,w] - mean[r0,c]) * scale[r0,c] * gamma[c] + beta[c]
    """,
    **_IMAGES,
)
def instance_norm(X: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    """Each channel of each image less its mean, over its deviation (Ulyanov and others, 2016)."""
    mean, variance = X.mean((2, 3), keepdims=True), X.var((2, 3), keepdims=True)
    return np.asarray((X - mean) / np.sqrt(variance + epsilon) * gamma[:, None, None] + beta[:, None, None])


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


def _layout(operator: Operator, schedule: SoftmaxSchedule, lanes: int) -> LoopCuts:
    lanes = lanes if schedule.vector else 1
    rows = operator.program.extents["i"]
    together = {"i": min(schedule.block, rows)} if schedule.block else {}
    return LoopCuts(
        together=together, plan=lambda group, extents, operands: in_vectors(group, extents, operands, lanes)
    )


def _intensity(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    reads, writes = (2, 1) if operator.schedule.variant == "online" else (3, 2)  # type: ignore[attr-defined]
    work = flops_of(sum((group.body_cost for group in operator.groups), Instructions()))
    name = f"operations per element moved, {reads} reads and {writes} writes of each"
    moved = reads + writes
    return (Formula(name, f"{work}/{moved}", work / moved, "flop", "intensity.element"),)


def _make(
    operation: Operation, shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: Any
) -> Operator:
    """Along the last axis of a tensor of any shape: its other axes are seen as one."""
    port = tuple(shapes["X"])
    view = AxisView(port, (prod(port[:-1]), port[-1]))
    return Operator(operation, shapes, parameters, schedule, views={"X": view, "Y": view})


@operation(
    "X[m|n,n] -> Y[m|n,n]",
    _text,
    sizes="A row-major matrix.",
    n=(512, "Columns, which are summed over; rows too where m is not given."),
    m=(None, "Rows."),
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
