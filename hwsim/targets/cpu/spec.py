"""A CPU core as a machine file describes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from hwsim.spec.base import (
    SMALLEST_SHARE,
    Bits,
    Bytes,
    Cycles,
    Held,
    LatencyField,
    Name,
    PerCycle,
    Products,
    Spec,
    SumFormat,
    Units,
)
from hwsim.spec.fields import Finding
from hwsim.spec.machine import MachineSpec, UnitSpec

CoreRate = Annotated[float, Field(ge=SMALLEST_SHARE, le=64)]


class CoreFormatSpec(Spec):
    """How a core computes in a number format; a workload may ask for other sums."""

    rate: CoreRate = Field(1, description="Share of the core's operations per cycle that it reaches in this format.")
    accumulate: SumFormat | None = Field(None, description="Number format of its sums of products.")
    chunk: Products | None = Field(None, description="Products that it sums before the sum is rounded.")


class SimdSpec(Spec):
    """The vector datapath of a core."""

    bits: Bits = Field(ge=8, description="Vector width; lanes follow from the precision.", examples=[256])
    unit_bits: Bits | None = Field(
        None, ge=8, description="Width of the units that it passes, several times if they are narrower; as `bits`."
    )

    @property
    def passes(self) -> int:
        """How often a vector passes a unit."""
        return -(-self.bits // self.unit_bits) if self.unit_bits else 1


class MatrixSpec(Spec):
    """What one multiply-add instruction does in each lane: m x n sums of k products. 1 x 1 x 4 is a dot product."""

    m: PerCycle = Field(1, ge=1, description="Rows of sums.")
    n: PerCycle = Field(1, ge=1, description="Columns of sums.")
    k: PerCycle = Field(1, ge=1, description="Products in each sum.")

    @property
    def macs(self) -> int:
        return self.m * self.n * self.k

    @property
    def operands(self) -> int:
        """Values read by one instruction in a lane; m x n of them are written back."""
        return self.m * self.k + self.k * self.n + self.m * self.n


class PortsSpec(Spec):
    """How many operations of each class can start in one cycle."""

    fma: PerCycle = Field(1, ge=0, description="Fused multiply-adds; 0 where the core multiplies and adds apart.")
    add: PerCycle = Field(1, ge=1, description="Additions, comparisons, maxima.")
    mul: PerCycle = Field(1, ge=1, description="Multiplications.")
    special: PerCycle = Field(1, ge=1, description="Divisions, square roots, exponentials.")
    load: PerCycle = Field(1, ge=1, description="Loads.")
    store: PerCycle = Field(1, ge=1, description="Stores.")


class OpLatencySpec(Spec):
    """How many cycles until the result of an operation can be used."""

    fma: Cycles = Field(4, ge=1, description="Fused multiply-add.")
    add: Cycles = Field(3, ge=1, description="Addition.")
    mul: Cycles = Field(3, ge=1, description="Multiplication.")
    special: Cycles = Field(20, ge=1, description="Division, square root, exponential.")
    integer: Cycles = Field(1, ge=1, description="Addition of integers.")
    forward: Cycles = Field(5, ge=1, description="From a store to a load of the same place, which waits for it.")


class TlbSpec(Spec):
    """The first-level translation buffer of a core: pages whose address it knows."""

    entries: Held = Field(description="Pages that it holds.", examples=[64])
    page: Bytes = Field(4096, description="Size of a page.", examples=["4 KiB"])
    miss: Annotated[float, Field(ge=0, le=10_000)] = Field(
        2, description="Cycles that a page costs which it does not hold, where many such follow each other."
    )


class CpuSpec(UnitSpec):
    """A CPU core: scalar and vector units in front of a cache hierarchy."""

    kind: Literal["cpu"]
    name: Name = Field(description="How paths and counters call one core.", examples=["core"])
    count: Units = Field(1, description="Number of cores.")
    clock: Name | None = Field(None, description="Clock domain; the machine's first clock if not given.")
    issue_width: PerCycle = Field(ge=1, description="Instructions that can start in one cycle.")
    window: Held = Field(
        1,
        description="Instructions in flight at once (reorder buffer); 1 is an in-order core.",
        examples=[256],
    )
    load_queue: Held | None = Field(
        None, description="Loads in flight at once, where they limit the window; no limit if not given.", examples=[72]
    )
    waiting_loads: Held | None = Field(
        None,
        description="Loads that wait for lines of crowded sets at once; as many as are in flight if not given.",
        examples=[48],
    )
    tlb: TlbSpec | None = Field(None, description="First translation buffer; all pages are known if not given.")
    alias: Bytes | None = Field(
        None,
        description="Loads that lie a multiple of this from a store under way wait for it as if it were to the same "
        "place; none do if not given.",
        examples=["4 KiB"],
    )
    simd: SimdSpec | None = Field(None, description="Vector unit; none if not given.")
    formats: dict[Name, CoreRate | CoreFormatSpec] = Field(
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
    loop_start: Cycles = Field(
        2, ge=0, description="Cycles lost whenever an innermost scalar loop begins: a branch not foreseen, a refill."
    )
    vector_loop_start: Cycles = Field(
        6, ge=0, description="The same for a vector loop, which also sets up and folds its vectors."
    )
    spawn: LatencyField | None = Field(None, description="Time to start a parallel loop on all cores.")
    barrier: LatencyField | None = Field(None, description="Time from the last core's end to the next loop.")


UNIT = CpuSpec


def a_core_has_a_cache(machine: MachineSpec) -> Iterator[Finding]:
    if not machine.caches:
        message = "has no cache, and a CPU core loads through one; give it a small one (size: 64 B, ways: 1) if need be"
        yield Finding(("memory",), message)


RULES = (a_core_has_a_cache,)
