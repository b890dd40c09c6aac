"""The operators of a chain: one for each operation, or one for a group of operations that are fused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hwsim.errors import InputError, ShapeError
from hwsim.kernels.matmul_operator import MatmulOperator
from hwsim.kernels.norm import LayerNormOperator, RMSNormOperator
from hwsim.kernels.operator import Operator
from hwsim.kernels.pointwise_operator import PointwiseOperator
from hwsim.kernels.stage import Extra, Stage
from hwsim.spec.ops.chain import (
    ChainStep,
    ChainWorkload,
    MatmulStep,
    NormStep,
    PointwiseStep,
    ScaleStep,
)
from hwsim.spec.ops.matmul import ProductSchedule

Shape = tuple[int, ...]


def make_operator(workload: ChainWorkload, step: ChainStep, shapes: Sequence[Shape]) -> Operator:
    """The operator of one operation for inputs of given shapes."""
    return _make(workload, step, shapes, ())


def make_group_operator(workload: ChainWorkload, steps: Sequence[ChainStep], shapes: Mapping[str, Shape]) -> Operator:
    """The operator of operations that run as one: the first makes values, the others change them before they are
    stored."""
    head, *tail = steps
    for step in tail:
        if not isinstance(step, PointwiseStep | ScaleStep):
            raise InputError(
                f"schedule.fuse: {step.name} is a {_op(step)}, which needs more than one element of "
                f"{step.inputs[0]} at a time; only element-wise operations can follow in a group"
            )
    own = [shapes[name] for name in head.inputs]
    if tail and not isinstance(head, MatmulStep | PointwiseStep | ScaleStep):
        raise InputError(f"schedule.fuse: nothing can be fused with {head.name}, a {_op(head)}")
    stages = tuple(_stage(step, shapes[head.name], [shapes[name] for name in step.inputs[1:]]) for step in tail)
    return _make(workload, head, own, stages)


def _make(workload: ChainWorkload, step: ChainStep, shapes: Sequence[Shape], after: tuple[Stage, ...]) -> Operator:
    maker = _MAKERS[type(step)]
    try:
        return maker(workload, step, shapes, after)
    except ShapeError as error:
        raise ShapeError(f"operation {step.name}: {error}") from error


def _matmul(workload: ChainWorkload, step: MatmulStep, shapes: Sequence[Shape], after: tuple[Stage, ...]) -> Operator:
    a, b = _exactly(step, shapes, 2)
    if len(a) < 2 or len(b) not in (2, len(a)) or (len(b) > 2 and a[:-2] != b[:-2]):
        raise ShapeError(f"{a} and {b} are not matrices, nor batches of as many")
    m, k = (a[-1], a[-2]) if step.transpose_a else (a[-2], a[-1])
    rows, n = (b[-1], b[-2]) if step.transpose_b else (b[-2], b[-1])
    if k != rows:
        raise ShapeError(
            f"{a} cannot be multiplied by {b}: the columns of the first, {k}, must be the rows of the second, {rows}"
        )
    schedule = workload.schedule
    return MatmulOperator(
        m,
        n,
        k,
        batch=a[:-2],
        schedule=ProductSchedule(vector=schedule.vector, v1=schedule.v1, tile=schedule.tile),
        a_transposed=step.transpose_a,
        b_transposed=step.transpose_b,
        b_batched=len(b) > 2,
        epilogue=after,
    )


def _pointwise(
    workload: ChainWorkload, step: PointwiseStep | ScaleStep, shapes: Sequence[Shape], after: tuple[Stage, ...]
) -> Operator:
    stages = (_stage(step, shapes[0], shapes[1:]), *after)
    return PointwiseOperator(shapes[0], stages, vector=workload.schedule.vector)


def _norm(workload: ChainWorkload, step: NormStep, shapes: Sequence[Shape], after: tuple[Stage, ...]) -> Operator:
    kind = LayerNormOperator if step.op == "layernorm" else RMSNormOperator
    needed = 3 if step.op == "layernorm" else 2
    x, *weights = _exactly(step, shapes, needed)
    for weight in weights:
        if weight != x[-1:]:
            raise ShapeError(f"the weights have shape {weight}; rows of {x} need {x[-1:]}")
    return kind(x, epsilon=step.epsilon, vector=workload.schedule.vector)


def _stage(step: ChainStep, value: Shape, extras: Sequence[Shape]) -> Stage:
    """An element-wise operation on a value of a certain shape."""
    operands = tuple(
        Extra(f"{step.name}_{number}", _axes(step, value, shape)) for number, shape in enumerate(extras, start=1)
    )
    if isinstance(step, ScaleStep):
        op = "scale_add" if operands else "scale"
        return Stage(op, operands, step.factor)
    return Stage(_op(step), operands)


def _axes(step: ChainStep, value: Shape, extra: Shape) -> tuple[int, ...] | None:
    """The axes of a value that an operand has: all of them, or the last ones."""
    if extra == value:
        return None
    if not extra or extra != value[-len(extra) :]:
        raise ShapeError(f"operation {step.name}: an operand of shape {extra} fits neither {value} nor its last axes")
    return tuple(range(len(value) - len(extra), len(value)))


def _exactly(step: ChainStep, shapes: Sequence[Shape], count: int) -> Sequence[Shape]:
    if len(shapes) != count:
        raise InputError(f"operation {step.name}: a {_op(step)} has {count} inputs, found {len(shapes)}")
    return shapes


def _op(step: ChainStep) -> str:
    return str(getattr(step, "op"))  # noqa: B009 - declared by each subclass


_MAKERS: dict[type[ChainStep], Callable[[ChainWorkload, Any, Sequence[Shape], tuple[Stage, ...]], Operator]] = {
    MatmulStep: _matmul,
    PointwiseStep: _pointwise,
    ScaleStep: _pointwise,
    NormStep: _norm,
}
