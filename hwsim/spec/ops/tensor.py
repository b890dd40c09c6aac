"""Operations on whole tensors: norms, reductions, transposes, lookups and losses."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hwsim.spec.base import Spec
from hwsim.spec.ops.common import Extent, ParallelSchedule
from hwsim.spec.ops.elementwise import VectorSchedule
from hwsim.spec.ops.pointwise import MatrixSizes
from hwsim.spec.workload import WorkloadSpec


class RowSchedule(ParallelSchedule):
    """Loops over rows, several for each row."""

    vector: bool = Field(True, description="Use the machine's vector unit.")
    rows: Extent = Field(1, description="Rows that go through all loops together; all of them: pass after pass.")


class NormWorkload(WorkloadSpec):
    """Each row of a matrix, normalised: layernorm takes mean and variance, rmsnorm the mean square."""

    op: Literal["layernorm", "rmsnorm"] = Field(description="Which norm.")
    epsilon: float = Field(1e-5, gt=0, description="Added to the variance or the mean square.")
    sizes: MatrixSizes = Field(MatrixSizes(), description="Rows, and elements in each.")
    schedule: RowSchedule = Field(RowSchedule(), description="How the loops run.")


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


class ReduceWorkload(WorkloadSpec):
    """The sum, mean or maximum of a tensor along an axis."""

    op: Literal["reduce_sum", "reduce_mean", "reduce_max"] = Field(description="How the elements become one.")
    sizes: ReduceSizes = Field(ReduceSizes(), description="Extents, and the axis.")
    schedule: ReduceSchedule = Field(ReduceSchedule(), description="How the loops run.")


class TransposeSchedule(ParallelSchedule):
    """Two loops."""

    order: Literal["read", "write"] = Field("read", description="Along the rows of the input, or of the output.")
    tile: Extent | None = Field(None, description="Side of a square tile.")
    vector: bool = Field(False, description="Use the machine's vector unit.")


class TransposeWorkload(WorkloadSpec):
    """A matrix, written to memory with rows and columns exchanged."""

    op: Literal["transpose"] = Field(description="Rows become columns.")
    sizes: MatrixSizes = Field(MatrixSizes(), description="Extents of the input.")
    schedule: TransposeSchedule = Field(TransposeSchedule(), description="How the loops run.")


class EmbeddingSizes(Spec):
    """Y[tokens, width] = W[ids[tokens]], with W[vocabulary, width]."""

    tokens: Extent = Field(512, description="Rows that are looked up.")
    vocabulary: Extent = Field(8192, description="Rows of the table.")
    width: Extent = Field(128, description="Elements of a row.")


class EmbeddingWorkload(WorkloadSpec):
    """Rows of a table by their numbers, which are random."""

    op: Literal["embedding"] = Field(description="Rows of a table, looked up.")
    sizes: EmbeddingSizes = Field(EmbeddingSizes(), description="Extents.")
    schedule: VectorSchedule = Field(VectorSchedule(), description="How the loop runs.")


class CrossEntropyWorkload(WorkloadSpec):
    """Softmax and cross-entropy of each row against its label, and the gradient y - t."""

    op: Literal["cross_entropy"] = Field(description="A loss for each row, and its gradient.")
    sizes: MatrixSizes = Field(MatrixSizes(), description="Rows (examples), and columns (classes).")
    schedule: RowSchedule = Field(RowSchedule(), description="How the loops run.")


class MseWorkload(WorkloadSpec):
    """The mean squared difference of two tensors, and its gradient."""

    op: Literal["mse"] = Field(description="A loss, and its gradient.")
    sizes: MatrixSizes = Field(MatrixSizes(), description="Extents of both tensors.")
    schedule: VectorSchedule = Field(VectorSchedule(), description="How the loops run.")
