"""Tensors in another order, or rows of them: transpose, embedding, quantisation by rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from pydantic import Field

from hwsim.numerics.format import Array, Format, find_format
from hwsim.ops.norm import RowSchedule, row_by_row
from hwsim.ops.pointwise import MatrixSizes, VectorSchedule
from hwsim.program.kernel import Formula, Setting
from hwsim.program.loop_kernel import vector_lanes
from hwsim.program.loops import LoopPlan, Operand
from hwsim.program.operation import Operator, Parameter, operation
from hwsim.program.tiling import Group, LoopCuts
from hwsim.spec.base import Extent, ParallelSchedule, Spec


class TransposeSizes(Spec):
    """A row-major matrix; with `n` alone, a square one."""

    m: Extent | None = Field(None, description="Rows; as many as columns where not given.")
    n: Extent = Field(512, description="Columns.")


class TransposeSchedule(ParallelSchedule):
    """Two loops."""

    order: Literal["read", "write"] = Field("read", description="Along the rows of the input, or of the output.")
    tile: Extent | None = Field(None, description="Side of a square tile.")
    vector: bool = Field(False, description="Use the machine's vector unit.")


def _transposed(operator: Operator, schedule: TransposeSchedule, lanes: int) -> LoopCuts:
    """Through the input or the output; a tile cuts both ends, so that the lines of both stay until they are used up."""
    order = ("i", "j") if schedule.order == "read" else ("j", "i")

    def plan(group: Group, extents: Mapping[str, int], operands: Sequence[Operand]) -> LoopPlan:
        tile = {index: min(schedule.tile, extents[index]) for index in order} if schedule.tile else {}
        inner = order[-1]
        width = min(tile.get(inner, extents[inner]), extents[inner])
        chosen = vector_lanes(lanes, inner, width, operands) if schedule.vector else 1
        return LoopPlan(order, tile, vector=inner if chosen > 1 else None, lanes=chosen)

    return LoopCuts(vector=schedule.vector, order=order, plan=plan)


def _each_once(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    elements = prod(operator.inputs[0].shape)
    return (
        Formula("loads", "each element once", elements, "elements", "loads"),
        Formula("stores", "each element once", elements, "elements", "stores"),
    )


@operation(
    "X[m|n,n] -> Y[n,m|n]",
    "transpose: Y[j,i] = X[i,j]",
    sizes=TransposeSizes,
    schedule=TransposeSchedule,
    layout=_transposed,
    formulas=_each_once,
)
def transpose(X: Array) -> Array:
    """A matrix, written to memory with rows and columns exchanged."""
    return np.moveaxis(X, 0, 1)


def _rows_looked_up(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    """Distinct rows come from memory once; a row that comes again may still be in a cache."""
    tokens, width = operator.outputs[0].shape
    return (
        Formula("loads", "t + t·d", tokens * (1 + width), "elements", "loads"),
        Formula("stores", "t·d", tokens * width, "elements", "stores"),
    )


@operation(
    "ids[tokens] W[vocabulary,width] -> Y[tokens,width]",
    "lookup: Y[t,c] = W[ids[t],c]",
    sizes="Y[tokens, width] = W[ids[tokens]], with W[vocabulary, width].",
    tokens=(512, "Rows that are looked up."),
    vocabulary=(8192, "Rows of the table."),
    width=(128, "Elements of a row."),
    schedule=VectorSchedule,
    formulas=_rows_looked_up,
)
def embedding(ids: Array, W: Array) -> Array:
    """Rows of a table by their numbers; by a product with rows that are zero but for a single one."""
    chosen = ids[:, None] == np.arange(W.shape[0])
    return np.asarray(chosen.astype(np.float64) @ W)


def _quantised(shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: Any) -> str:
    return f"""
    largest: scale[...] max= abs(X[...,c])
             scale[...] = scale[...] / {float(find_format(parameters["to"]).largest)!r}
    round:   Q[...,c] = X[...,c] / where(scale[...] > 0, scale[...], 1)
    """


@operation(
    "X[m,n] -> scale[m] Q[m,n]",
    _quantised,
    sizes=MatrixSizes,
    schedule=RowSchedule,
    layout=row_by_row,
    formats={"scale": "fp32", "Q": "=to"},
    floats=True,
    to=Parameter("int8", "The narrow format."),
)
def quantize(X: Array, to: str) -> tuple[Array, Array]:
    """Rows rounded to a narrower format, each with a scale of its own: activations before an 8-bit product."""
    scale = np.abs(X).max(axis=-1) / float(find_format(to).largest)
    return scale, X / np.where(scale > 0, scale, 1)[..., None]
