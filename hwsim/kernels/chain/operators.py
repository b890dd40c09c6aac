"""The operators of a chain: one for each operation, or one for a group of operations that are fused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from hwsim.errors import InputError, ShapeError
from hwsim.kernels.attention.attention import Attention
from hwsim.kernels.attention.shape import AttentionShape
from hwsim.kernels.attention.softmax import Softmax
from hwsim.kernels.chain.group import find_pool, kind, object_to, op_of
from hwsim.kernels.conv.batch_norm import BatchNorm
from hwsim.kernels.conv.conv2d import Conv2d
from hwsim.kernels.conv.pool import Pool, PoolShape
from hwsim.kernels.conv.shape import ConvShape
from hwsim.kernels.matmul.operator import MatmulOperator
from hwsim.kernels.operator import Operator
from hwsim.kernels.tensor.element import Element, Extra
from hwsim.kernels.tensor.norm import LayerNormOperator, RMSNormOperator
from hwsim.kernels.tensor.pointwise_operator import PointwiseOperator
from hwsim.kernels.tensor.reduction import ReduceOperator
from hwsim.spec.ops.attention import AttentionSchedule
from hwsim.spec.ops.chain import (
    AttentionStep,
    BatchNormStep,
    ChainStep,
    ChainWorkload,
    ConvStep,
    MatmulStep,
    NormStep,
    PointwiseStep,
    PoolStep,
    ReduceStep,
    ScaleStep,
    SoftmaxStep,
)
from hwsim.spec.ops.conv import ConvSchedule
from hwsim.spec.ops.matmul import ProductSchedule

Shape = tuple[int, ...]

ROWS_OF_TILE = 4
"""So many rows of what a convolution stores are made with all filters before the next rows come."""


def make_operator(workload: ChainWorkload, step: ChainStep, shapes: Sequence[Shape]) -> Operator:
    """The operator of one operation for inputs of given shapes."""
    return _make(workload, step, shapes, ())


def make_group_operator(workload: ChainWorkload, steps: Sequence[ChainStep], shapes: Mapping[str, Shape]) -> Operator:
    """The operator of operations that run as one: the first makes values, the others change them before they are
    stored."""
    head, *tail = steps
    objection = object_to(steps)
    if objection is not None:
        raise InputError(f"schedule.fuse: {objection.reason}; end the group before {objection.step}")
    own = [shapes[name] for name in head.inputs]
    if isinstance(head, ConvStep):
        return _conv_group(workload, head, tail, own, shapes)
    elements = tuple(
        _element(workload, step, shapes[head.name], [shapes[name] for name in step.inputs[1:]]) for step in tail
    )
    return _make(workload, head, own, elements)


def _conv_group(
    workload: ChainWorkload,
    head: ConvStep,
    tail: Sequence[ChainStep],
    own: Sequence[Shape],
    shapes: Mapping[str, Shape],
) -> Operator:
    """A convolution with its bias, element-wise operations on its outputs, and a max-pool at the end."""
    pool = find_pool((head, *tail))
    bias = ["bias"] if len(own) == 3 else []
    shape = _conv_shape(workload, head, own)
    behind = [
        _element(workload, step, shape.output_shape, [shapes[name] for name in step.inputs[1:]])
        for step in (tail if pool is None else tail[:-1])
    ]
    side = None if pool is None else pool.window
    return Conv2d(shape, _conv_schedule(workload, shape.out[0] // (side or 1), side), [*bias, *behind], side)


def _make(workload: ChainWorkload, step: ChainStep, shapes: Sequence[Shape], after: tuple[Element, ...]) -> Operator:
    maker = _MAKERS[type(step)]
    try:
        return maker(workload, step, shapes, after)
    except ShapeError as error:
        raise ShapeError(f"operation {step.name}: {error}") from error


def _matmul(workload: ChainWorkload, step: MatmulStep, shapes: Sequence[Shape], after: tuple[Element, ...]) -> Operator:
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
    workload: ChainWorkload, step: PointwiseStep | ScaleStep, shapes: Sequence[Shape], after: tuple[Element, ...]
) -> Operator:
    elements = (_element(workload, step, shapes[0], shapes[1:]), *after)
    return PointwiseOperator(shapes[0], elements, vector=workload.schedule.vector)


def _norm(workload: ChainWorkload, step: NormStep, shapes: Sequence[Shape], after: tuple[Element, ...]) -> Operator:
    kind = LayerNormOperator if step.op == "layernorm" else RMSNormOperator
    needed = 3 if step.op == "layernorm" else 2
    x, *weights = _exactly(step, shapes, needed)
    for weight in weights:
        if weight != x[-1:]:
            raise ShapeError(f"the weights have shape {weight}; rows of {x} need {x[-1:]}")
    return kind(x, epsilon=step.epsilon, vector=workload.schedule.vector)


def _conv(workload: ChainWorkload, step: ConvStep, shapes: Sequence[Shape], after: tuple[Element, ...]) -> Operator:
    return _conv_group(workload, step, (), shapes, {})


def _conv_shape(workload: ChainWorkload, step: ConvStep, shapes: Sequence[Shape]) -> ConvShape:
    if len(shapes) not in (2, 3):
        raise InputError(f"operation {step.name}: a conv2d has 2 or 3 inputs, found {len(shapes)}")
    x, w, *bias = shapes
    groups = workload.extent(step.groups)
    if len(x) != 4 or len(w) != 4 or w[1] * groups != x[1]:
        raise ShapeError(
            f"operation {step.name}: images {x} and filters {w} do not fit: "
            f"[n, c, h, w] needs [co, c / {groups}, kh, kw]"
        )
    if bias and bias[0] != w[:1]:
        raise ShapeError(f"operation {step.name}: a bias of shape {bias[0]} does not fit {w[0]} output channels")
    stride, padding, dilation = ((each, each) for each in (step.stride, step.padding, step.dilation))
    return ConvShape(x[1], w[0], (x[2], x[3]), (w[2], w[3]), x[0], stride, padding, dilation, groups)


def _conv_schedule(workload: ChainWorkload, rows: int, pool: int | None) -> ConvSchedule:
    """Rows of outputs in vectors, v1 sums at a time in registers, a few of the rows that are stored in a tile.

    A pool keeps the sums of a whole square (u, v) in registers, so fewer filters have room beside them.
    """
    square = () if pool is None else ("u", "v")
    order = ("n", "co", "h", "w", *square, "kh", "kw", "ci")
    schedule = workload.schedule
    filters = schedule.v1 if pool is None else max(1, schedule.v1 // pool**2)
    tile = {"h": ROWS_OF_TILE} if rows > ROWS_OF_TILE else {}
    return ConvSchedule(order=order, tile=tile, unroll={"co": filters}, vector=schedule.vector)


def _batch_norm(
    workload: ChainWorkload, step: BatchNormStep, shapes: Sequence[Shape], after: tuple[Element, ...]
) -> Operator:
    x, *statistics = _exactly(step, shapes, 5)
    if len(x) != 4 or any(shape != x[1:2] for shape in statistics):
        raise ShapeError(f"images {x} need one number for each of their channels, found {statistics}")
    return BatchNorm(x[0], x[1], (x[2], x[3]), vector=workload.schedule.vector)


def _pool(workload: ChainWorkload, step: PoolStep, shapes: Sequence[Shape], after: tuple[Element, ...]) -> Operator:
    (x,) = _exactly(step, shapes, 1)
    if len(x) != 4 or step.window > min(x[2:]):
        raise ShapeError(f"windows of {step.window} do not fit images {x}")
    side = (step.window, step.window)
    shape = PoolShape(x[0], x[1], (x[2], x[3]), side, side, "nchw")
    return Pool(shape, "max_pool" if step.op == "maxpool" else "avg_pool", vector=workload.schedule.vector)


def _softmax(
    workload: ChainWorkload, step: SoftmaxStep, shapes: Sequence[Shape], after: tuple[Element, ...]
) -> Operator:
    (x,) = _exactly(step, shapes, 1)
    return Softmax(x, vector=workload.schedule.vector)


def _reduce(workload: ChainWorkload, step: ReduceStep, shapes: Sequence[Shape], after: tuple[Element, ...]) -> Operator:
    (x,) = _exactly(step, shapes, 1)
    return ReduceOperator(x, (step.axis,), step.op, vector=workload.schedule.vector)


def _attention(
    workload: ChainWorkload, step: AttentionStep, shapes: Sequence[Shape], after: tuple[Element, ...]
) -> Operator:
    q, k, v = _exactly(step, shapes, 3)
    heads = workload.extent(step.heads)
    kv_heads = heads if step.kv_heads is None else workload.extent(step.kv_heads)
    if len(q) not in (2, 3) or k != v or len(k) != len(q) or q[:-2] != k[:-2]:
        raise ShapeError(f"q {q}, k {k} and v {v} do not belong together")
    if q[-1] % heads or k[-1] % kv_heads or q[-1] // heads != k[-1] // kv_heads:
        raise ShapeError(f"{q[-1]} columns in {heads} heads and {k[-1]} in {kv_heads} are not heads of one size")
    shape = AttentionShape(
        q[-2],
        k[-2],
        q[-1] // heads,
        heads,
        kv_heads,
        batch=q[0] if len(q) == 3 else 1,
        causal=step.causal,
        layout="columns" if len(q) == 3 else "matrix",
    )
    schedule = AttentionSchedule(variant=step.variant, br=step.br, bc=step.bc, vector=workload.schedule.vector)
    return Attention(shape, schedule)


def _element(workload: ChainWorkload, step: ChainStep, value: Shape, extras: Sequence[Shape]) -> Element:
    """An element-wise operation on a value of a certain shape."""
    operands = tuple(
        Extra(f"{step.name}_{number}", _axes(step, value, shape)) for number, shape in enumerate(extras, start=1)
    )
    if isinstance(step, ScaleStep):
        op = "scale_add" if operands else "scale"
        return Element(op, operands, step.factor / prod(map(workload.extent, step.over)))
    return Element(op_of(step), operands)


def _axes(step: ChainStep, value: Shape, extra: Shape) -> tuple[int, ...] | None:
    """The axes of a value that an operand has: all of them, or the last ones."""
    if extra == value:
        return None
    if not extra or extra != value[-len(extra) :]:
        raise ShapeError(f"operation {step.name}: an operand of shape {extra} fits neither {value} nor its last axes")
    return tuple(range(len(value) - len(extra), len(value)))


def _exactly(step: ChainStep, shapes: Sequence[Shape], count: int) -> Sequence[Shape]:
    if len(shapes) != count:
        raise InputError(f"operation {step.name}: {kind(step)} has {count} inputs, found {len(shapes)}")
    return shapes


_MAKERS: dict[type[ChainStep], Callable[[ChainWorkload, Any, Sequence[Shape], tuple[Element, ...]], Operator]] = {
    MatmulStep: _matmul,
    PointwiseStep: _pointwise,
    ScaleStep: _pointwise,
    NormStep: _norm,
    ConvStep: _conv,
    BatchNormStep: _batch_norm,
    PoolStep: _pool,
    SoftmaxStep: _softmax,
    ReduceStep: _reduce,
    AttentionStep: _attention,
}
