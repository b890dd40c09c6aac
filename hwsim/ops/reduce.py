"""Reductions: sum, mean and maximum along an axis, and sums of two-dimensional arrays in either order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from pydantic import Field

from hwsim.errors import ShapeError
from hwsim.numerics.format import Array, Format
from hwsim.program.kernel import Formula, Setting
from hwsim.program.operation import Operator, Parameter, operation
from hwsim.program.tiling import LoopCuts
from hwsim.spec.base import Extent, ParallelSchedule, Spec


class ReduceSizes(Spec):
    """A row-major tensor [p, m, n], and the axis that is reduced."""

    n: Extent = Field(512, description="Columns.")
    m: Extent = Field(512, description="Rows.")
    p: Extent = Field(1, description="Planes.")
    axis: int = Field(
        2, ge=-3, le=2, description="0: over planes, 1: over rows, 2: over columns; or from -1 backwards."
    )


class ReduceSchedule(ParallelSchedule):
    """One loop nest."""

    order: Literal["stored", "result"] = Field(
        "stored",
        description="stored: through the tensor as it lies in memory; result: each result in turn, in a register.",
    )
    vector: bool = Field(True, description="Use the machine's vector unit.")


def _axes(shape: Sequence[int], parameters: Mapping[str, Any]) -> tuple[list[int], int]:
    """The axes that stay, and the one that goes."""
    rank, axis = len(shape), parameters["axis"]
    if not -rank <= axis < rank:
        raise ShapeError(f"{axis} is no axis of shape {tuple(shape)}: 0 to {rank - 1}, or from -1 backwards")
    return [each for each in range(rank) if each != axis % rank], axis % rank


def _reduction(sign: str, name: str, finish: str = "") -> Callable[..., str]:
    def text(shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: Any) -> str:
        shape = shapes["X"]
        kept, axis = _axes(shape, parameters)
        target = f"Y[{','.join(f'x{each}' for each in kept) or '0'}]"
        lines = [f"{name}: {target} {sign} X[{','.join(f'x{each}' for each in range(len(shape)))}]"]
        return "\n".join(lines + ([f"{target} = {target} / {shape[axis]}"] if finish else []))

    return text


def _in_order(operator: Operator, schedule: Any, lanes: int) -> LoopCuts:
    rank = len(operator.program.shapes["X"])
    stored = getattr(schedule, "order", "stored") == "stored"
    order = tuple(f"x{axis}" for axis in range(rank)) if stored else ()
    return LoopCuts(vector=getattr(schedule, "vector", True), order=order)


def _one_for_each(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    results = prod(operator.outputs[0].shape) if operator.name in ("mean", "reduce_mean") else 0
    value = prod(operator.inputs[0].shape) + results
    return (Formula("operations", "one for each element", value, "operations", "flops"),)


_AXIS = Parameter(-1, "Which axis goes away; counted from the end if negative.")
_REDUCES: dict[str, Any] = {
    "sizes": ReduceSizes,
    "schedule": ReduceSchedule,
    "layout": _in_order,
    "formulas": _one_for_each,
}


@operation("X[p,m,n] -> Y[p]", _reduction("+=", "reduce_sum"), formats={"Y": "sums"}, axis=_AXIS, **_REDUCES)
def reduce_sum(X: Array, axis: int) -> Array:
    """The sum of a tensor along an axis, one term after the other."""
    return np.asarray(np.add.reduce(np.moveaxis(X, axis, 0), axis=0)).reshape(_result(X, axis))


@operation(
    "X[p,m,n] -> Y[p]",
    _reduction("+=", "reduce_mean", "divide"),
    formats={"Y": "sums"},
    floats=True,
    axis=_AXIS,
    **_REDUCES,
)
def reduce_mean(X: Array, axis: int) -> Array:
    """The mean of a tensor along an axis, one term after the other."""
    return np.asarray(np.add.reduce(np.moveaxis(X, axis, 0), axis=0) / X.shape[axis]).reshape(_result(X, axis))


@operation("X[p,m,n] -> Y[p]", _reduction("max=", "reduce_max"), axis=_AXIS, **_REDUCES)
def reduce_max(X: Array, axis: int) -> Array:
    """The largest element of a tensor along an axis."""
    return np.asarray(np.sort(X, axis=axis).take(-1, axis=axis)).reshape(_result(X, axis))


def _result(X: Array, axis: int) -> tuple[int, ...]:
    return tuple(extent for each, extent in enumerate(X.shape) if each != axis % X.ndim) or (1,)


class ArraySizes(Spec):
    """A row-major array."""

    n: Extent = Field(512, description="Columns; rows too where m is not given.")
    m: Extent | None = Field(None, description="Rows.")


class SumSchedule(ParallelSchedule):
    """In which order the elements are added."""

    order: Literal["rows", "columns"] = Field("rows", description="Row after row, or column after column.")
    result: Literal["total", "each"] = Field("total", description="One sum, or one for each row (or column).")
    vector: bool = Field(False, description="Use the machine's vector unit.")
    ld: Extent | None = Field(None, description="Distance from one row to the next, in elements.")


def _sum_text(shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: SumSchedule) -> str:
    outer = "i" if schedule.order == "rows" else "j"
    return f"sum by {schedule.order}: S[{outer if schedule.result == 'each' else '0'}] += A[i,j]"


def _sum_order(operator: Operator, schedule: SumSchedule, lanes: int) -> LoopCuts:
    order = ("i", "j") if schedule.order == "rows" else ("j", "i")
    total = frozenset("S") if schedule.result == "total" else frozenset[str]()
    return LoopCuts(vector=schedule.vector, order=order, returned=total)


def _lines_read(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    elements = prod(operator.inputs[0].shape)
    if operator.schedule.order == "rows":  # type: ignore[attr-defined]
        lines = elements / (setting.line_bytes // fmt.element_bytes)
        return (Formula("lines read, row by row", "m·n/L", float(lines), "lines", "l1.fills"),)
    return (Formula("lines read, column by column, m lines do not fit", "m·n", elements, "lines", "l1.fills"),)


def _rows_fit(workload: Any) -> str:
    ld, n = workload.schedule.ld, workload.sizes.n
    return f"ld {ld} is less than the {n} elements of a row" if ld is not None and ld < n else ""


@operation(
    "A[m|n,n] -> S[1]",
    _sum_text,
    sizes=ArraySizes,
    schedule=SumSchedule,
    layout=_sum_order,
    formats={"S": "sums"},
    positive=frozenset("A"),
    padded_rows=frozenset("A"),
    formulas=_lines_read,
    check=_rows_fit,
)
def sum2d(A: Array, schedule: SumSchedule) -> Array:
    """The sum of a two-dimensional array, row by row or column by column: one sum, or one for each row or column."""
    if schedule.result == "total":
        return np.asarray(A.sum(keepdims=True).reshape(1))
    return np.asarray(A.sum(axis=1 if schedule.order == "rows" else 0))
