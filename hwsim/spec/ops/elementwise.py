"""Passes over vectors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hwsim.spec.base import Spec
from hwsim.spec.ops.common import Extent, ParallelSchedule
from hwsim.spec.workload import WorkloadSpec


class VectorSizes(Spec):
    """Vectors of equal length."""

    n: Extent = Field(65536, description="Elements of each vector.")


class VectorSchedule(ParallelSchedule):
    """A single loop."""

    vector: bool = Field(False, description="Use the machine's vector unit.")


class ElementwiseWorkload(WorkloadSpec):
    """One pass over vectors: add C = A + B, mul C = A * B, triad A = B + s * C, copy C = A."""

    op: Literal["add", "mul", "triad", "copy"] = Field(description="What is done with each element.")
    sizes: VectorSizes = Field(VectorSizes(), description="Length of the vectors.")
    schedule: VectorSchedule = Field(VectorSchedule(), description="How the loop runs.")


class FusedSchedule(VectorSchedule):
    """One loop, or one for each operation."""

    fused: bool = Field(True, description="One pass; otherwise three passes, with two vectors between them.")


class FusedWorkload(WorkloadSpec):
    """E = D + (A + B) * C over vectors."""

    op: Literal["fused_add_mul"] = Field(description="E = D + (A + B) * C.")
    sizes: VectorSizes = Field(VectorSizes(), description="Length of the vectors.")
    schedule: FusedSchedule = Field(FusedSchedule(), description="How the loops run.")
