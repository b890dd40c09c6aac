"""Operations made of matrix products."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hwsim.spec.base import Spec
from hwsim.spec.ops.common import Extent, ParallelSchedule
from hwsim.spec.ops.matmul import MatmulSizes, ProductSchedule
from hwsim.spec.workload import WorkloadSpec


class BatchSizes(MatmulSizes):
    """C[batch, m, n] = A[batch, m, k] B[batch, k, n]."""

    n: Extent = Field(64, description="Columns of B and C; rows and inner length too where not given.")
    batch: Extent = Field(16, description="Pairs of matrices.")


class BatchSchedule(ProductSchedule):
    """How each product of a batch is computed."""

    b_layout: Literal["kj", "jk"] = Field("kj", description="B stored as [k][j], or transposed as [j][k].")


class BatchedMatmulWorkload(WorkloadSpec):
    """The products of many pairs of matrices, or of many matrices with the same one."""

    op: Literal["matmul_batched"] = Field(description="Matrix products, one for each index of a batch.")
    shared_b: bool = Field(False, description="Whether every A is multiplied by the same B.")
    sizes: BatchSizes = Field(BatchSizes(), description="Extents of the matrices, and how many there are.")
    schedule: BatchSchedule = Field(BatchSchedule(), description="How each product is computed.")


class MatvecSizes(Spec):
    """y[m] = A[m, n] x[n]."""

    n: Extent = Field(1024, description="Columns of A and length of x; rows too where m is not given.")
    m: Extent | None = Field(None, description="Rows of A and length of y.")


class MatvecSchedule(ParallelSchedule):
    """Two loops."""

    order: Literal["ik", "ki"] = Field("ik", description="ik: row after row of A; ki: column after column.")
    a_layout: Literal["ik", "ki"] = Field("ik", description="A stored row after row, or column after column.")
    v1: Extent = Field(1, description="Rows whose sums are kept in registers together.")
    vector: bool = Field(False, description="Use the machine's vector unit.")


class MatvecWorkload(WorkloadSpec):
    """A matrix times a vector."""

    op: Literal["matvec"] = Field(description="Matrix times vector.")
    sizes: MatvecSizes = Field(MatvecSizes(), description="Extents of the matrix.")
    schedule: MatvecSchedule = Field(MatvecSchedule(), description="How the product is computed.")


class LowRankSizes(MatmulSizes):
    """C[m, n] = (A[m, k] U[k, r]) V[r, n]."""

    rank: Extent = Field(32, description="Columns of U and rows of V.")


class LowRankWorkload(WorkloadSpec):
    """A product with a matrix of low rank, given as two thin factors."""

    op: Literal["matmul_lowrank"] = Field(description="(A U) V instead of A W.")
    sizes: LowRankSizes = Field(LowRankSizes(), description="Extents of the matrices.")
    schedule: ProductSchedule = Field(ProductSchedule(), description="How both products are computed.")


class StrassenSchedule(ProductSchedule):
    """How deep the recursion goes, and how the products at its bottom are computed."""

    cutoff: Extent = Field(128, description="Matrices with a side no larger than this are multiplied as usual.")
    levels: int | None = Field(None, ge=0, description="At most so many levels of recursion.")


class StrassenWorkload(WorkloadSpec):
    """A matrix product by Strassen's recursion: seven products of halves instead of eight, and 18 additions."""

    op: Literal["matmul_strassen"] = Field(description="Matrix product with fewer multiplications.")
    sizes: MatmulSizes = Field(MatmulSizes(), description="Extents of the matrices.")
    schedule: StrassenSchedule = Field(StrassenSchedule(), description="Recursion and products.")


class MatmulBackwardWorkload(WorkloadSpec):
    """The backward pass of C = A B: dA = dC Bᵀ and dB = Aᵀ dC."""

    op: Literal["matmul_backward"] = Field(description="Gradients of both operands of a matrix product.")
    sizes: MatmulSizes = Field(MatmulSizes(), description="Extents of the matrices of the forward product.")
    schedule: ProductSchedule = Field(ProductSchedule(), description="How both products are computed.")


class QkvSizes(Spec):
    """W[d, d] (three of them) and H[d, n]."""

    d: Extent = Field(64, description="Width of the model: rows of H.")
    n: Extent = Field(128, description="Tokens: columns of H.")


class QkvWorkload(WorkloadSpec):
    """Queries, keys and values from the same input: one product with three matrices stacked, or three products."""

    op: Literal["qkv_merged", "qkv_separate"] = Field(description="One product, or three.")
    sizes: QkvSizes = Field(QkvSizes(), description="Extents.")
    schedule: ProductSchedule = Field(ProductSchedule(), description="How each product is computed.")
