"""From a workload that is one operator to that operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hwsim.kernels.kernel import Setting
from hwsim.kernels.matmul.operator import MatmulOperator
from hwsim.kernels.matmul.products import (
    LowRankOperator,
    MatmulBackwardOperator,
    MatvecOperator,
    QkvMergedOperator,
    QkvSeparateOperator,
)
from hwsim.kernels.matmul.strassen import StrassenOperator, strassen_levels
from hwsim.kernels.operator import Operator, OperatorKernel, run_of
from hwsim.kernels.tensor.element import Element, Extra
from hwsim.kernels.tensor.embedding import EmbeddingOperator
from hwsim.kernels.tensor.losses import CrossEntropyOperator, MseOperator
from hwsim.kernels.tensor.norm import LayerNormOperator, RMSNormOperator
from hwsim.kernels.tensor.pointwise_operator import PointwiseOperator
from hwsim.kernels.tensor.reduction import ReduceOperator
from hwsim.kernels.tensor.transpose import TransposeOperator
from hwsim.numerics.format import Array
from hwsim.spec.ops.pointwise import PointwiseWorkload, StageSpec
from hwsim.spec.ops.product import (
    BatchedMatmulWorkload,
    LowRankWorkload,
    MatmulBackwardWorkload,
    MatvecWorkload,
    QkvWorkload,
    StrassenWorkload,
)
from hwsim.spec.ops.tensor import (
    CrossEntropyWorkload,
    EmbeddingWorkload,
    MseWorkload,
    NormWorkload,
    ReduceWorkload,
    TransposeWorkload,
)
from hwsim.spec.workload import WorkloadSpec


def _pointwise(w: PointwiseWorkload) -> Operator:
    elements = [make_element(stage) for stage in w.stages]
    shape = (w.sizes.m, w.sizes.n)
    s = w.schedule
    return PointwiseOperator(shape, elements, vector=s.vector, fused=s.fused, in_place=w.in_place)


def make_element(spec: StageSpec) -> Element:
    """An operation on the elements of a matrix."""
    axes = {"all": None, "rows": (0,), "columns": (1,)}[spec.along]
    return Element(spec.op, tuple(Extra(name, None if name == "X" else axes) for name in spec.inputs), spec.value)


def _batched(w: BatchedMatmulWorkload) -> Operator:
    m, n, k = w.sizes.extents
    transposed = w.schedule.b_layout == "jk"
    batch = (w.sizes.batch,)
    return MatmulOperator(m, n, k, batch=batch, schedule=w.schedule, b_transposed=transposed, b_batched=not w.shared_b)


def _matvec(w: MatvecWorkload) -> Operator:
    s = w.schedule
    transposed = s.a_layout == "ki"
    m = w.sizes.m or w.sizes.n
    return MatvecOperator(m, w.sizes.n, order=s.order, v1=s.v1, vector=s.vector, a_transposed=transposed)


def _lowrank(w: LowRankWorkload) -> Operator:
    m, n, k = w.sizes.extents
    return LowRankOperator(m, n, k, w.sizes.rank, schedule=w.schedule)


def _strassen(w: StrassenWorkload) -> Operator:
    m, n, k = w.sizes.extents
    levels = strassen_levels(m, n, k, w.schedule.cutoff, w.schedule.levels)
    return StrassenOperator(m, n, k, levels=levels, schedule=w.schedule)


def _qkv(w: QkvWorkload) -> Operator:
    kind = QkvMergedOperator if w.op == "qkv_merged" else QkvSeparateOperator
    return kind(w.sizes.d, w.sizes.n, schedule=w.schedule)


def _norm(w: NormWorkload) -> Operator:
    kind = LayerNormOperator if w.op == "layernorm" else RMSNormOperator
    s = w.schedule
    return kind((w.sizes.m, w.sizes.n), epsilon=w.epsilon, vector=s.vector, rows=s.rows)


def _reduce(w: ReduceWorkload) -> Operator:
    z, s = w.sizes, w.schedule
    kinds = {"reduce_sum": "sum", "reduce_mean": "mean", "reduce_max": "max"}
    kind: Any = kinds[w.op]
    return ReduceOperator((z.p, z.m, z.n), (z.axis,), kind, order=s.order, vector=s.vector)


OPERATORS: dict[type[WorkloadSpec], Callable[[Any], Operator]] = {
    PointwiseWorkload: _pointwise,
    BatchedMatmulWorkload: _batched,
    MatvecWorkload: _matvec,
    LowRankWorkload: _lowrank,
    StrassenWorkload: _strassen,
    MatmulBackwardWorkload: lambda w: MatmulBackwardOperator(*w.sizes.extents, schedule=w.schedule),
    QkvWorkload: _qkv,
    NormWorkload: _norm,
    ReduceWorkload: _reduce,
    TransposeWorkload: lambda w: TransposeOperator(
        (w.sizes.m, w.sizes.n), order=w.schedule.order, tile=w.schedule.tile, vector=w.schedule.vector
    ),
    EmbeddingWorkload: lambda w: EmbeddingOperator(
        w.sizes.tokens, w.sizes.vocabulary, w.sizes.width, vector=w.schedule.vector
    ),
    CrossEntropyWorkload: lambda w: CrossEntropyOperator(
        w.sizes.m, w.sizes.n, vector=w.schedule.vector, rows=w.schedule.rows
    ),
    MseWorkload: lambda w: MseOperator((w.sizes.m, w.sizes.n), vector=w.schedule.vector),
}
"""What makes the operator of each kind of workload."""


def operator_kernel(
    workload: WorkloadSpec, setting: Setting, given: Mapping[str, Array] | None = None
) -> OperatorKernel:
    """The kernel of a workload that is one operator."""
    operator = OPERATORS[type(workload)](workload)
    schedule: Any = getattr(workload, "schedule")  # noqa: B009  (every workload here has one)
    return OperatorKernel(operator, run_of(workload, schedule, given), setting)
