"""A CPU core as a machine file describes it, and what its registers hold.

A value is what one register holds: a scalar, or a whole vector. A value without a register is loaded again at each use,
and stored again each time that it changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from hwsim.errors import CapacityError
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
from hwsim.spec.machine import MachineSpec, RegistersSpec, UnitSpec

if TYPE_CHECKING:
    from hwsim.numerics.format import Format

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
    pays_by_instruction: ClassVar[bool] = True
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
    special_interval: Annotated[float, Field(ge=1, le=10_000)] = Field(
        1, description="Cycles that a division, root or exponential keeps its port; 1 where one starts in every cycle."
    )
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


def lanes_of(unit: CpuSpec, fmt: Format) -> int:
    """Values of a format in one vector; 1 without a vector unit."""
    return max(1, unit.simd.bits // fmt.lane_bits) if unit.simd else 1


# Registers ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spills:
    """Values that do not live in a register, and the accesses that this costs."""

    values: int = 0
    loads: int = 0
    stores: int = 0


class RegisterFile:
    """The registers of one compute unit."""

    def __init__(self, spec: RegistersSpec, name: str | None = None) -> None:
        self.spec = spec
        self.name = name or spec.name

    def fits(self, values: int) -> bool:
        return values <= self.spec.count

    def spills(self, values_needed: int, uses: int, updates: int = 0) -> Spills:
        """What a tile of so many values costs, each used `uses` times and changed `updates` times.

        Operands never change: they lie in memory anyway, and are only loaded again. Refused where the machine
        says so.
        """
        if self.fits(values_needed):
            return Spills()
        if self.spec.spill == "refuse":
            raise CapacityError(
                f"the register tile needs {values_needed} values in {self.name}, "
                f"which holds {self.spec.count}; {_advice(self.spec.count)}"
            )
        spilled = values_needed - self.spec.count
        return Spills(spilled, spilled * uses, spilled * updates)


def matmul_tile_registers(v1: int, v2: int, v3: int) -> int:
    """Values of a register tile of a matrix product: v1 x v3 of A, v2 x v3 of B, v1 x v2 sums."""
    return v1 * v3 + v2 * v3 + v1 * v2


def best_matmul_tile(registers: int) -> tuple[int, int] | None:
    """The tile v1 x v2 (v3 = 1) with the fewest loads, 1/v1 + 1/v2 per product; None if not even 1 x 1 fits.

    v3 changes no load and takes registers, so it is 1. Without whole numbers v1 = v2 = sqrt(registers + 1) -
    1.
    """
    best: tuple[int, int] | None = None
    v1 = 1
    while matmul_tile_registers(v1, v1, 1) <= registers:
        v2 = (registers - v1) // (v1 + 1)
        # v1 * v2 / (v1 + v2) is the reuse; compared without a division, so exactly.
        if best is None or v1 * v2 * sum(best) > best[0] * best[1] * (v1 + v2):
            best = v1, v2
        v1 += 1
    return best


def _advice(registers: int) -> str:
    tile = best_matmul_tile(registers)
    if tile is None:
        return "not even a 1x1 tile of a matrix product fits"
    needed = matmul_tile_registers(*tile, 1)
    return f"the best tile of a matrix product that fits is {tile[0]}x{tile[1]}x1, with {needed} values"
