"""Compute units as a machine file describes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hwsim.spec.base import Name, Sourced, Spec
from hwsim.spec.gpu import GpuSpec
from hwsim.spec.grid import GridSpec
from hwsim.spec.number import SumFormat
from hwsim.spec.systolic import SystolicSpec
from hwsim.units import LatencyField

Rate = Annotated[float, Field(gt=0, le=64)]


class CoreFormatSpec(Spec):
    """How a core computes in a number format; a workload may ask for other sums."""

    rate: Rate = Field(1, description="Share of the core's operations per cycle that it reaches in this format.")
    accumulate: SumFormat | None = Field(None, description="Number format of its sums of products.")
    chunk: int | None = Field(None, ge=1, description="Products that it sums before the sum is rounded.")


class SimdSpec(Spec):
    """The vector datapath of a core."""

    bits: int = Field(ge=8, description="Vector width; lanes follow from the precision.", examples=[256])


class MatrixSpec(Spec):
    """What one multiply-add instruction does in each lane: m x n sums of k products. 1 x 1 x 4 is a dot product."""

    m: int = Field(1, ge=1, description="Rows of sums.")
    n: int = Field(1, ge=1, description="Columns of sums.")
    k: int = Field(1, ge=1, description="Products in each sum.")

    @property
    def macs(self) -> int:
        return self.m * self.n * self.k

    @property
    def operands(self) -> int:
        """Values read by one instruction in a lane; m x n of them are written back."""
        return self.m * self.k + self.k * self.n + self.m * self.n


class PortsSpec(Spec):
    """How many operations of each class can start in one cycle."""

    fma: int = Field(1, ge=0, description="Fused multiply-adds; 0 where the core multiplies and adds apart.")
    add: int = Field(1, ge=1, description="Additions, comparisons, maxima.")
    mul: int = Field(1, ge=1, description="Multiplications.")
    special: int = Field(1, ge=1, description="Divisions, square roots, exponentials.")
    load: int = Field(1, ge=1, description="Loads.")
    store: int = Field(1, ge=1, description="Stores.")


class OpLatencySpec(Spec):
    """How many cycles until the result of an operation can be used."""

    fma: int = Field(4, ge=1, description="Fused multiply-add.")
    add: int = Field(3, ge=1, description="Addition.")
    mul: int = Field(3, ge=1, description="Multiplication.")
    special: int = Field(20, ge=1, description="Division, square root, exponential.")


class CpuSpec(Sourced):
    """A CPU core: scalar and vector units in front of a cache hierarchy."""

    kind: Literal["cpu"]
    name: Name = Field(description="How paths and counters call one core.", examples=["core"])
    count: int = Field(1, ge=1, description="Number of cores.")
    clock: Name | None = Field(None, description="Clock domain; the machine's first clock if not given.")
    issue_width: int = Field(ge=1, description="Instructions that can start in one cycle.")
    window: int = Field(
        1,
        ge=1,
        description="Instructions in flight at once (reorder buffer); 1 is an in-order core.",
        examples=[256],
    )
    simd: SimdSpec | None = Field(None, description="Vector unit; none if not given.")
    formats: dict[Name, Rate | CoreFormatSpec] = Field(
        {"fp64": 1, "fp32": 1, "fp16": 1, "bf16": 1, "int32": 1, "int8": 1},
        description="Number formats that the core computes in, with the share of its operations per cycle that it "
        "reaches in each: 1 for all ports with all lanes, 0.5 for half as many. A group instead of a number "
        "also says how sums are kept.",
    )
    matrix: MatrixSpec | None = Field(
        None, description="Multiply-adds of one instruction in each lane; one if not given."
    )
    vliw: bool = Field(
        False,
        description="Whether all that starts in a cycle is one long instruction: fetched, decoded and priced as one.",
    )
    ports: PortsSpec = Field(PortsSpec(), description="Operations that can start in one cycle, by class.")
    latency: OpLatencySpec = Field(OpLatencySpec(), description="Cycles from operands to result, by class.")
    overlap: Literal["none", "memory", "full"] = Field(
        "full",
        description="What runs at the same time. full: everything, a step takes as long as its longest part. memory: "
        "the transfers between levels and chains of dependent operations, but instructions wait for the longest "
        "transfer. none: nothing, all parts add up.",
    )
    loop_start: int = Field(
        2, ge=0, description="Cycles lost whenever an innermost scalar loop begins: a branch not foreseen, a refill."
    )
    vector_loop_start: int = Field(
        6, ge=0, description="The same for a vector loop, which also sets up and folds its vectors."
    )
    spawn: LatencyField | None = Field(None, description="Time to start a parallel loop on all cores.")
    barrier: LatencyField | None = Field(None, description="Time from the last core's end to the next loop.")


ComputeSpec = Annotated[CpuSpec | GpuSpec | SystolicSpec | GridSpec, Field(discriminator="kind")]
