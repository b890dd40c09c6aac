"""Memory levels as a machine file describes them: registers, caches, scratchpads, DRAM, storage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hwsim.spec.base import Name, Sourced, Spec
from hwsim.spec.limits import Banks, Bits, Held, Most
from hwsim.units import BandwidthField, Bytes, LatencyField, format_bytes

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
    wipe_bandwidth: BandwidthField | None = Field(
        None,
        description="How fast a driver wipes memory that a program gave back, before it gives it out again; not waited "
        "for if not given.",
    )


class StorageSpec(Level):
    """What lies behind main memory: a disk or flash drive from which data is staged into DRAM."""

    kind: Literal["storage"]
    size: Bytes | None = Field(None, description="Capacity.")


LevelSpec = Annotated[RegistersSpec | CacheSpec | ScratchpadSpec | DramSpec | StorageSpec, Field(discriminator="kind")]
