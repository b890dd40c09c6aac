"""Attention, softmax(Q Kᵀ / √d) V, and its backward pass."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from hwsim.spec.base import Spec
from hwsim.spec.ops.common import Extent, ParallelSchedule
from hwsim.spec.workload import WorkloadSpec
from hwsim.units import Bytes


class AttentionSizes(Spec):
    """Q and O are [batch, heads, queries, d], K and V [batch, kv_heads, n, d]."""

    n: Extent = Field(512, description="Keys: length of the sequence.")
    d: Extent = Field(64, description="Length of a query, key or value vector of one head.")
    queries: Extent | None = Field(None, description="Queries; as many as keys if not given, 1 when decoding.")
    heads: Extent = Field(1, description="Heads of Q and O.")
    kv_heads: Extent | None = Field(
        None, description="Heads of K and V, each shared by heads / kv_heads query heads; one for each if not given."
    )
    batch: Extent = Field(1, description="Independent sequences.")
    causal: bool = Field(False, description="A query sees no key behind its own position; the last query sees all.")
    scale: float | None = Field(None, gt=0, description="Factor of Q Kᵀ; 1/√d if not given.")

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> Self:
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} query heads cannot share {self.kv_heads} key/value heads evenly; "
                "kv_heads must divide heads"
            )
        if self.causal and self.queries is not None and self.queries > self.n:
            raise ValueError(
                f"with causal, the first of {self.queries} queries would see none of {self.n} keys; "
                "give at most n queries"
            )
        return self


class AttentionProductSchedule(ParallelSchedule):
    """Tiles of the matrix products."""

    br: Extent = Field(32, description="Queries in a tile, of each query head that shares K and V.")
    bc: Extent = Field(32, description="Keys in a tile.")
    vector: bool = Field(True, description="Use the machine's vector unit.")


class AttentionSchedule(AttentionProductSchedule):
    """With or without the matrix of scores in memory."""

    variant: Literal["naive", "fused"] = Field(
        "fused",
        description="naive: S = Q Kᵀ and P = softmax(S) are stored whole; fused: tile by tile with a running maximum "
        "and sum, and no more than a tile of S is ever stored.",
    )
    softmax: Literal["plain", "rows", "online"] | None = Field(
        None,
        description="plain (naive only): each of the passes maximum, exponential and sum, division runs over all of S; "
        "rows (naive only): over br rows at a time; online: maximum and sum in one pass, rescaled when the maximum "
        "grows. If not given, plain for naive and online for fused.",
    )
    scratch: Bytes | None = Field(
        None,
        description="Scratch space that a fused tile has to fit: its pieces of Q, K, V, S, P and O, and four numbers "
        "for each row. Not checked if not given.",
        examples=["32 KiB"],
    )

    @model_validator(mode="after")
    def _whole_rows_need_all_of_s(self) -> Self:
        if self.variant == "fused" and self.softmax in ("plain", "rows"):
            raise ValueError(
                f"softmax: {self.softmax} needs the maximum and the sum of a whole row of S before it can divide, and "
                "a fused tile has seen only a part of the row; take softmax: online, which rescales what it has summed "
                "when the maximum grows, or variant: naive"
            )
        if self.variant == "naive" and self.scratch is not None:
            raise ValueError("scratch is the space of a fused tile; variant: naive stores all of S and P in memory")
        return self


class AttentionWorkload(WorkloadSpec):
    """O = softmax(Q Kᵀ / √d) V for each head."""

    op: Literal["attention"] = Field(description="Attention.")
    sizes: AttentionSizes = Field(AttentionSizes(), description="Extents of Q, K, V and O.")
    schedule: AttentionSchedule = Field(AttentionSchedule(), description="How attention is computed.")


class BackwardSchedule(AttentionProductSchedule):
    """Where the probabilities come from."""

    probabilities: Literal["recompute", "stored"] = Field(
        "recompute",
        description="recompute: P is computed again from Q and K; stored: P is an input, kept from the forward pass.",
    )


class AttentionBackwardWorkload(WorkloadSpec):
    """dQ, dK and dV from dO, with the matrices P and dS stored whole."""

    op: Literal["attention_backward"] = Field(description="Gradients of attention.")
    sizes: AttentionSizes = Field(AttentionSizes(), description="Extents of Q, K, V and O.")
    schedule: BackwardSchedule = Field(BackwardSchedule(), description="How the gradients are computed.")
