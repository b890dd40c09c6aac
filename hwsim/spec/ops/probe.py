"""Workloads that measure a machine: its latencies and its bandwidths."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from hwsim.spec.base import Spec
from hwsim.spec.ops.common import Extent, NoSchedule, ParallelSchedule
from hwsim.spec.workload import WorkloadSpec
from hwsim.units import Bytes


class ChaseSizes(Spec):
    """A ring of pointers."""

    bytes: Bytes = Field(64 * 1024, description="Memory that the ring covers.", examples=["64 KiB"])
    stride: Bytes = Field(64, description="Distance between pointers in memory.", examples=["64 B"])
    steps: Extent = Field(100_000, description="How many pointers are followed.")


class ChaseWorkload(WorkloadSpec):
    """Follows pointers around a ring in random order: each load waits for the one before."""

    op: Literal["pointer_chase"] = Field(description="Dependent loads in random order.")
    sizes: ChaseSizes = Field(ChaseSizes(), description="The ring.")
    schedule: NoSchedule = Field(NoSchedule(), description="Nothing to choose.")

    @model_validator(mode="after")
    def _ring_fits(self) -> Self:
        if self.sizes.stride > self.sizes.bytes or self.sizes.stride < 8:
            raise ValueError(f"stride must be between 8 B and the {self.sizes.bytes} B of the ring")
        return self


class StreamSizes(Spec):
    """A stretch of memory."""

    bytes: Bytes = Field(1024 * 1024, description="Memory that is read.", examples=["1 MiB"])
    passes: Extent = Field(4, description="How often it is read from end to end.")


class StreamSchedule(ParallelSchedule):
    """A single loop."""

    vector: bool = Field(True, description="Use the machine's vector unit.")


class StreamWorkload(WorkloadSpec):
    """Reads a stretch of memory again and again in unit stride."""

    op: Literal["stream_read"] = Field(description="Unit-stride reads.")
    sizes: StreamSizes = Field(StreamSizes(), description="What is read.")
    schedule: StreamSchedule = Field(StreamSchedule(), description="How the loop runs.")
