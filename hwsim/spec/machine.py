"""A whole machine, as one YAML file describes it: compute units, clocks, memory levels, and what actions cost.

Memory levels are registers, caches, scratchpads, DRAM and storage. Each class of machines brings its own spec of a
compute unit, which is found by the unit's `kind`. A class is a folder of `hwsim.targets`; what is in it is imported
when a file names it, and no sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, SerializeAsAny, ValidationInfo, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from hwsim.spec.base import (
    BandwidthField,
    Banks,
    Bits,
    Bytes,
    EnergyField,
    Frequency,
    Held,
    LatencyField,
    Most,
    Name,
    Nanometres,
    Sourced,
    Spec,
    Watts,
)
from hwsim.spec.dram_device import DEVICES, DeviceName
from hwsim.units import format_bytes

Replacement = Literal["fifo", "lru", "plru", "random", "srrip"]
Inclusion = Literal["none", "inclusive", "exclusive"]


class Level(Sourced):
    """What every level has, whatever its kind."""

    name: Name = Field(description="How paths, counters and plots call this level.", examples=["l1"])
    clock: Name | None = Field(None, description="Clock domain; the machine's first clock if not given.")
    shared_by: Banks | Literal["all"] = Field(
        1,
        description="How many compute units use one instance: 1 is private, 'all' one for the whole machine.",
    )
    latency: LatencyField | None = Field(
        None, description="Load-to-use time of a hit in this level, counted from the compute unit."
    )
    bandwidth: BandwidthField | None = Field(
        None, description="What one instance delivers towards the compute unit; no limit if not given."
    )
    unit_bandwidth: BandwidthField | None = Field(
        None, description="What one compute unit can draw from a shared instance; as `bandwidth` if not given."
    )
    write_bandwidth: BandwidthField | None = Field(
        None, description="What one instance takes from the compute unit's side; as `bandwidth` if not given."
    )


class RegistersSpec(Level):
    """The register file of a compute unit."""

    kind: Literal["registers"]
    count: Held = Field(description="Architectural registers that a kernel may hold values in.")
    bits: Bits = Field(ge=8, description="Width of one register.", multiple_of=8)
    spill: Literal["count", "refuse"] = Field(
        "count", description="A register tile that does not fit: count its spills, or refuse the run."
    )


class PrefetchSpec(Spec):
    """A hardware prefetcher in front of a cache."""

    kind: Literal["none", "next_line", "stride"] = Field(
        "none",
        description="next_line: the line after each miss; stride: regions whose last two steps were equal.",
    )
    degree: int = Field(1, ge=1, le=64, description="How many lines ahead are fetched at a time.")
    streams: int = Field(16, ge=1, le=4096, description="stride: how many 4 KiB regions are tracked at once.")


class CacheSpec(Level):
    """A set-associative cache."""

    kind: Literal["cache"]
    size: Bytes = Field(description="Total capacity of one instance; `inf` for a perfect cache.", examples=["32 KiB"])
    line: Bytes = Field(64, description="Line size, a power of two.", examples=["64 B"])
    ways: Held | Literal["full"] = Field(description="Associativity; 1 is direct mapped, 'full' fully associative.")
    sector: Bytes | None = Field(None, description="Bytes fetched and written back at a time; the line if not given.")
    replacement: Replacement = Field("lru", description="Which line leaves a full set.")
    write: Literal["back", "through"] = Field("back", description="When a store goes to the next level.")
    write_allocate: bool = Field(True, description="Whether a store that misses brings its line in.")
    inclusion: Inclusion = Field(
        "none",
        description="Against the levels nearer the compute unit: holds all, none, or any of theirs.",
    )
    index: Literal["modulo", "xor"] = Field(
        "modulo", description="Set of a line: the low bits, or all its bits folded together by exclusive or."
    )
    prefetch: PrefetchSpec = Field(PrefetchSpec(), description="Hardware prefetcher, counted apart from demand.")
    mshrs: Held | None = Field(
        None,
        description="Misses that may be outstanding at once, prefetches counted in; if not given, as many as draw the "
        "bandwidth of the next level, and 16 at least.",
    )

    strided_misses: Annotated[float, Most(1_000_000, "no cache waits for as many")] | None = Field(
        None,
        ge=1,
        description="How many misses overlap whose addresses jump by more than a line, as down a column; "
        "as `mshrs` if not given.",
    )

    set_refill: LatencyField | None = Field(
        None,
        description="Time between two fills of the same set: misses that crowd into a set wait for each other. Of the "
        "first cache, if not given, what the next cache takes longer; of others none.",
    )
    set_hindrance: Annotated[float, Most(16, "no sets hinder each other as much")] = Field(
        1, ge=1, description="How many times as long fills of several sets at the same time take as those of one."
    )
    dual_port: bool = Field(
        True, description="Whether it is read and written in the same cycle; if not, writing takes time from reading."
    )

    @property
    def infinite(self) -> bool:
        return format_bytes(self.size) == "inf"

    @property
    def way_count(self) -> int:
        return self.size // self.line if self.ways == "full" else self.ways

    @property
    def set_count(self) -> int:
        return self.size // (self.line * self.way_count)

    @property
    def sector_bytes(self) -> int:
        return self.sector if self.sector is not None else self.line


class ScratchpadSpec(Level):
    """A software-managed memory: shared memory, a unified buffer, an accumulator memory."""

    kind: Literal["scratchpad"]
    size: Bytes = Field(description="Capacity of one instance.", examples=["164 KiB"])
    banks: Banks | None = Field(
        None, description="Banks that can be read in the same cycle; one, or no limit, if not given."
    )
    bank_width: Bytes | None = Field(
        None, description="Bytes that one bank delivers per cycle; 4, or no limit, if not given.", examples=["4 B"]
    )
    buffers: Literal[1, 2] = Field(
        1,
        description="1: a transfer waits for compute; 2: the next tile moves while this one is computed on.",
    )
    holds: tuple[Literal["input", "weight", "output"], ...] = Field(
        ("input", "weight", "output"), description="Which operands live here."
    )

    @property
    def banked(self) -> bool:
        """Whether its banks are said to limit what it delivers."""
        return self.banks is not None or self.bank_width is not None

    @property
    def bank_count(self) -> int:
        return self.banks or 1

    @property
    def bank_bytes(self) -> int:
        """What one bank delivers in a cycle."""
        return self.bank_width or 4


class DramTiming(Spec):
    """Device timing, in nanoseconds or cycles of the DRAM's clock."""

    cl: LatencyField = Field(description="Column access: from read command to first data.")
    trcd: LatencyField = Field(description="Row activate to column access.")
    trp: LatencyField = Field(description="Precharge: closing a row.")
    tras: LatencyField = Field(description="Shortest time a row stays open.")
    trefi: LatencyField = Field(description="Time between two refreshes.")
    trfc: LatencyField = Field(description="How long one refresh takes.")


class DramSpec(Level):
    """Main memory behind the last cache or scratchpad."""

    kind: Literal["dram"]
    size: Bytes | None = Field(None, description="Capacity; a workload that needs more is refused.")
    device: DeviceName | None = Field(
        None,
        description="Kind of memory chip: brings `bandwidth`, `banks`, `row`, `burst` and `timing` where not given.",
    )
    channels: Banks = Field(1, description="Independent channels.")
    ranks: Banks = Field(1, description="Ranks per channel.")
    banks: Banks = Field(16, description="Banks per rank, bank groups counted in.")
    row: Bytes = Field(8192, description="Bytes of one open row (page) of one bank.", examples=["8 KiB"])
    burst: Bytes = Field(64, description="Bytes of one column access.", examples=["64 B"])
    mapping: str = Field(
        "row:rank:bank:column:channel",
        description="How an address is cut, from its high to its low bits: row first, then each of rank, "
        "bank, column, channel once.",
    )
    page: Literal["open", "closed"] = Field("open", description="Whether a row stays open after an access.")
    timing: DramTiming | None = Field(None, description="Device timing; without it only `latency` counts.")
    latency_of: Literal["any", "conflict"] = Field(
        "any",
        description="Whose latency `latency` is: that of any access, or of one whose bank has another row open. Then "
        "dependent loads that find their row open, or none, take less, as `timing` says.",
    )
    wipe_bandwidth: BandwidthField | None = Field(
        None,
        description="How fast a driver wipes memory that a program gave back, before it gives it out again; not waited "
        "for if not given.",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_its_device(cls, said: Any) -> Any:
        device = DEVICES.get(str(said.get("device"))) if isinstance(said, dict) else None
        if device is None:
            return said
        channels = said.get("channels", 1)
        return device.fields(channels if isinstance(channels, int) else 1) | said

    def mean_latency(self, hits: int, misses: int, conflicts: int, hz: int) -> Fraction:
        """Seconds of one of these column accesses on average: where no row is open none has to be closed, and where
        the right one is open none has to be opened either."""
        whole, accesses = self.latency.seconds(hz) if self.latency else Fraction(0), hits + misses + conflicts
        if self.timing is None or self.latency_of == "any" or not accesses:
            return whole
        closed, opened = self.timing.trp.seconds(hz), self.timing.trcd.seconds(hz)
        return max(Fraction(0), whole - (hits * (closed + opened) + misses * closed) / accesses)


class StorageSpec(Level):
    """What lies behind main memory: a disk or flash drive from which data is staged into DRAM."""

    kind: Literal["storage"]
    size: Bytes | None = Field(None, description="Capacity.")


LevelSpec = Annotated[RegistersSpec | CacheSpec | ScratchpadSpec | DramSpec | StorageSpec, Field(discriminator="kind")]

KINDS = ("cpu", "gpu", "grid", "pim", "systolic")
"""The classes of machines: to add one, add its folder to `hwsim/targets` and its name here."""


class UnitSpec(Sourced):
    """What all compute units have in common."""

    kind: str = Field(description="The class of machines that it belongs to.")
    name: Name = Field(description="How paths and counters call one unit.")

    pays_by_instruction: ClassVar[bool] = False
    """Whether each instruction that it issues costs energy of its own, beside its arithmetic."""

    @property
    def column_bytes(self) -> int | None:
        """What a unit takes from its own bank of main memory in a cycle, past the pins; None where it has no bank."""
        return None

    if TYPE_CHECKING:  # declared by each class, at its own place

        @property
        def count(self) -> int: ...

        @property
        def clock(self) -> str | None: ...


def unit_spec(kind: str) -> type[UnitSpec]:
    """The spec of a class of machines."""
    found: type[UnitSpec] = import_module(f"hwsim.targets.{kind}.spec").UNIT
    return found


def class_rules(kind: str) -> Sequence[Callable[[Any], Iterator[Any]]]:
    """What has to hold between the parts of a machine of a class."""
    found: Sequence[Callable[[Any], Iterator[Any]]] = getattr(import_module(f"hwsim.targets.{kind}.spec"), "RULES", ())
    return found


class ByKind:
    """A unit is checked by the spec that its `kind` names."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(_check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        units = {kind: unit_spec(kind).__pydantic_core_schema__ for kind in KINDS}
        return handler(core_schema.tagged_union_schema(units, discriminator="kind"))


def _check(value: Any, info: ValidationInfo) -> UnitSpec:
    if isinstance(value, UnitSpec):
        return value
    if not isinstance(value, dict):
        raise PydanticCustomError("model_type", "Input should be a valid dictionary")
    kind = value.get("kind")
    if kind is None:
        raise PydanticCustomError("union_tag_not_found", "Unable to extract tag")
    if kind not in KINDS:
        known = ", ".join(f"'{name}'" for name in KINDS)
        raise PydanticCustomError("union_tag_invalid", "Unknown kind", {"tag": str(kind), "expected_tags": known})
    strict = (info.context or {}).get("strict")
    return unit_spec(kind).model_validate(value, strict=strict, context=info.context)


ComputeSpec = Annotated[SerializeAsAny[UnitSpec], ByKind()]


class PriceSpec(Spec):
    """The energy of one action, and where the number comes from."""

    energy: EnergyField = Field(description="Per action, or per bit moved.", examples=["10 pJ", "4 pJ/bit"])
    controller: EnergyField | None = Field(
        None,
        description="For main memory: what its controller and pins add to each action, shown apart; contained in "
        "`energy` if not given.",
    )
    control: EnergyField | None = Field(
        None,
        description="For arithmetic on a machine whose instructions are not counted by themselves: what fetching, "
        "decoding and issuing them adds to each action, put down to control; contained in `energy` if not given.",
    )
    source: str = Field(description="Where the number comes from; 'assumption: …' where it is a choice.")


class StaticSpec(Spec):
    """Power that flows as long as the machine is on."""

    power: Watts = Field(description="Leakage and clock power of all instances together.")
    clock: Watts | None = Field(
        None,
        description="Of the clock tree alone, at the clock of this file, if it is known apart: it comes on top of "
        "`power`, and falls when the clock is lowered.",
    )
    source: str = Field(description="Where the number comes from.")


class LimitSpec(Spec):
    """Power that must not be exceeded for long."""

    power: Watts = Field(description="Average power of a run; above it the clocks of the compute units are lowered.")
    source: str = Field(description="Where the number comes from.")


class EnergySpec(Spec):
    """Prices for counted actions, and static power."""

    node: Nanometres = Field(
        description="Technology node of the prices.",
        examples=["45 nm"],
        json_schema_extra={"descriptive": "what the prices are for: a table of prices for another node is refused"},
    )
    table: Name | None = Field(
        None,
        description="An energy table, found by its name in machines/energy: it prices what `actions` does not. Its "
        "node has to be the machine's.",
        examples=["cmos_45nm"],
    )
    instruction: Name | None = Field(
        None, description="Which of the table's instructions the cores issue.", examples=["in_order"]
    )
    dram: Name | None = Field(
        None, description="Which of the kinds of memory in the table `dram` main memory is.", examples=["ddr4"]
    )
    tdp: LimitSpec | None = Field(None, description="Power limit of the data sheet; no limit if not given.")
    actions: dict[str, PriceSpec] = Field(
        {}, description="Price of each action of a part: `l1.read`, `core.instruction`, `core.fma.fp32`."
    )
    static: dict[Name, StaticSpec] = Field(
        {}, description="Static power by part; `machine` for what belongs to no single part."
    )


class ClockSpec(Sourced):
    """A clock domain."""

    name: Name = Field(description="How levels and units refer to this clock.", examples=["core"])
    frequency: Frequency = Field(description="Frequency that can be sustained.", examples=["2 GHz"])


class MachineSpec(Spec):
    """A machine: clocks, compute units, memory levels from the compute unit outwards, energy."""

    format: Literal[1] = Field(description="Version of this file format.")
    name: Name = Field(description="What the machine is called; the file has the same name.")
    description: str = Field(description="One or two sentences for people.")
    clocks: tuple[ClockSpec, ...] = Field(
        min_length=1, max_length=64, description="Clock domains; the first is the default."
    )
    compute: tuple[ComputeSpec, ...] = Field(min_length=1, max_length=64, description="Compute units.")
    memory: tuple[LevelSpec, ...] = Field(
        min_length=1, max_length=16, description="Memory levels, from the compute unit outwards."
    )
    energy: EnergySpec | None = Field(None, description="Energy prices; without them no energy is reported.")

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        return tuple(level for level in self.memory if isinstance(level, CacheSpec))

    @property
    def scratchpads(self) -> tuple[ScratchpadSpec, ...]:
        return tuple(level for level in self.memory if isinstance(level, ScratchpadSpec))

    @property
    def registers(self) -> RegistersSpec | None:
        return next((level for level in self.memory if isinstance(level, RegistersSpec)), None)

    @property
    def dram(self) -> DramSpec:
        """Main memory: every machine has one."""
        return next(level for level in self.memory if isinstance(level, DramSpec))

    @property
    def kind(self) -> str:
        """The class of machines that it belongs to: that of its first unit."""
        return self.compute[0].kind

    def clock_hz(self, name: str | None) -> int:
        """The frequency of a clock domain; the first one where a part names none."""
        return next(clock.frequency for clock in self.clocks if name is None or clock.name == name)

    def level(self, name: str) -> LevelSpec:
        return next(level for level in self.memory if level.name == name)
