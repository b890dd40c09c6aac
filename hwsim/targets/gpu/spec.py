"""A GPU's streaming multiprocessor and what its kernel library brings along, as a machine file describes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from hwsim.spec.base import (
    Bytes,
    Cycles,
    Held,
    KernelTile,
    LatencyField,
    Name,
    PerCycle,
    Rate,
    Share,
    Spec,
    TakesAway,
    Units,
    Watts,
)
from hwsim.spec.fields import Finding, unknown_format
from hwsim.spec.machine import MachineSpec, UnitSpec

FormatName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class GpuLatencySpec(Spec):
    """Cycles from the operands of an instruction to its result: what a warp alone waits, and other warps hide."""

    fma: Cycles = Field(4, ge=1, description="Fused multiply-add, addition or multiplication on the lanes.")
    special: Cycles = Field(18, ge=1, description="Exponential, reciprocal, square root.")
    tensor: Cycles = Field(18, ge=1, description="One tensor-core instruction of a warp.")


class LaunchSpec(Spec):
    """Time around a kernel that is not the kernel's work, by how the kernel is started."""

    graph: LatencyField = Field(description="Per kernel inside a recorded graph: start, drain and hand-over.")
    stream: LatencyField = Field(description="Per kernel in a stream, between two events.")
    following: LatencyField | None = Field(
        None, description="Per further kernel that waits for the one before it; as `graph` if not given."
    )
    host: LatencyField | None = Field(
        None, description="Per call timed by the host, with synchronisation; as `stream` if not given."
    )


class TileSpec(Spec):
    """One kernel of the library: the tile of the output that a block computes, and what the block needs."""

    m: KernelTile = Field(description="Rows of the output tile.")
    n: KernelTile = Field(description="Columns of the output tile.")
    k: KernelTile = Field(description="Depth of one step of the main loop.")
    stages: PerCycle = Field(2, ge=1, description="Steps of operands that shared memory holds at once.")
    threads: PerCycle = Field(128, ge=32, multiple_of=32, description="Threads of a block.")
    least_rows: KernelTile = Field(1, description="Fewest rows of a product that the library takes it for.")
    most_rows: KernelTile | None = Field(
        None, description="Most rows of a product that the library takes it for; any number if not given."
    )
    split: bool = Field(True, description="Whether its sum over k may be split.")
    step_latency: Cycles | None = Field(
        None, ge=0, description="Cycles of one of its steps beyond its products; as the library's if not given."
    )
    store_rate: Rate | None = Field(
        None,
        description="Bytes of results per cycle that one SM brings from this kernel's sums to the L2; as the library's "
        "other kernels if not given.",
    )
    batched: bool = Field(True, description="Whether the library takes it for batches of products too.")
    tuned: tuple[tuple[KernelTile, KernelTile, KernelTile], ...] = Field(
        (),
        description="Sizes (m, n, k) of batched products for which it stands in the library's table. Where tiles have "
        "some, a batch takes the tile of the nearest size, however many products it has.",
    )


class AttentionKernelSpec(Spec):
    """One fused attention kernel: rows of queries that a block keeps, and keys that it takes at a time."""

    name: Name = Field(description="Which implementation this is; several entries serve growing head sizes.")
    head_dim: KernelTile = Field(description="Largest head size that this entry serves.")
    queries: KernelTile = Field(description="Rows of queries of a block.")
    keys: KernelTile = Field(description="Keys and values of one step.")
    resident: PerCycle = Field(1, ge=1, description="Blocks that run on one SM at once.")
    whole_heads: bool = Field(False, description="One block takes all queries of a head, tile after tile.")
    packs_heads: bool = Field(False, description="A tile has the same queries of all heads that share keys.")
    longest_first: bool = Field(
        True, description="Under a causal mask, blocks that see most keys start first; if not, those of each head last."
    )
    math_share: Share = Field(description="Share of the tensor cores' peak rate that its products reach.")
    softmax_share: float = Field(
        ge=0, le=1, description="Share of the softmax's time that does not run under the products of other warps."
    )
    step_latency: Cycles = Field(0, ge=0, description="Cycles of one step beyond its products and its softmax.")
    block_start: Cycles = Field(0, ge=0, description="Cycles of a block before its first and after its last step.")
    splits_prompts: bool = Field(
        False, description="Keys are split among blocks where many queries are too few as well."
    )
    split_steps: KernelTile = Field(2, description="Steps over the keys from which on they are split among blocks.")
    joins_itself: bool = Field(
        False, description="The last block of a tile joins the parts of split keys; if not, a second kernel does."
    )
    joins_early: bool = Field(
        False, description="The kernel that joins the parts is started while the one before it ends, and waits for it."
    )
    streams_keys: bool = Field(
        False, description="Keys of decoding come at the bandwidth of streams, page by page; if not, as tiles do."
    )
    sequence_wait: Cycles = Field(
        0, ge=0, description="Cycles for each sequence of a batch that a block passes in search of its work."
    )
    join_wait: Cycles = Field(
        0, ge=0, description="Cycles that the kernel or block which joins the parts of split keys waits for each."
    )


class LibrarySpec(Spec):
    """What the vendor's library would run: its kernels, and the few constants by which it falls short of the peak."""

    tensor_tiles: tuple[TileSpec, ...] = Field((), description="Matrix kernels on tensor cores.")
    byte_tiles: tuple[TileSpec, ...] = Field(
        (), description="Matrix kernels on tensor cores for operands of 8 bits; `tensor_tiles` if none are given."
    )
    narrow_tiles: tuple[TileSpec, ...] = Field(
        (),
        description="Matrix kernels on tensor cores that turn weights of fewer bits into the format of the "
        "activations; `tensor_tiles` if none are given.",
    )
    lane_tiles: tuple[TileSpec, ...] = Field((), description="Matrix kernels on the ordinary lanes.")
    attention: tuple[AttentionKernelSpec, ...] = Field((), description="Fused attention kernels, smallest head first.")
    epilogues: Held | None = Field(
        2,
        description="Most operations on single elements that it fuses behind a product or a convolution; `null`: any "
        "number. Two as in cuDNN, whose fused convolutions take two pointwise operators.",
    )
    split_k: tuple[KernelTile, ...] = Field(
        (1,), description="Into how many parts the sum over k may be cut, each a block of its own."
    )
    channel_bytes: Bytes | None = Field(
        None,
        description="Bytes after which addresses pass to the next channel of DRAM, so that rows a whole number of "
        "rounds apart begin in one channel; none where addresses are spread by a hash.",
    )
    multicast: PerCycle = Field(
        1, ge=1, description="Blocks on neighbouring SMs that one load of an operand from the L2 serves."
    )
    units: dict[FormatName, Literal["tensor", "lanes"]] = Field(
        {}, description="Where matrix products of a format run, if not on tensor cores wherever there are some."
    )
    tensor_share: Share = Field(1.0, description="Share of the tensor cores' peak rate that a main loop reaches.")
    lane_share: Share = Field(
        1.0, description="Share of the lanes' peak rate that products of a main loop reach, beside its loads."
    )
    step_latency: Cycles = Field(
        0,
        ge=0,
        description="Cycles of one step of the main loop beyond its products, where a block is alone on its SM.",
    )
    byte_latency: Cycles | None = Field(
        None, ge=0, description="The same in the kernels of `byte_tiles`; as `step_latency` if not given."
    )
    block_start: Cycles = Field(
        0, ge=0, description="Cycles from a block's start to its first product, and from its last one to its end."
    )
    store_rate: Rate | None = Field(
        None,
        description="Bytes of results per cycle that one SM brings from its sums to the L2; as many as it loads from "
        "there if not given.",
    )
    double_sums: tuple[FormatName, ...] = Field(
        (),
        description="Formats in whose products an SM keeps the sums of two tiles of its tensor cores: results of one "
        "leave while the next is multiplied.",
    )
    tile_bandwidth: Share = Field(1.0, description="Share of the DRAM bandwidth that loads of tiles reach.")
    l2_bandwidth: Share = Field(1.0, description="Share of the L2's bandwidth that loads of tiles reach.")
    l2_kept: Share = Field(
        1.0,
        description="Share of the L2 that data fills which all SMs read: half, where each half of it keeps a copy.",
    )
    loaded_latency: Rate = Field(
        1.0, description="Latency of a load among those that tiles have under way, over that of one alone."
    )
    stream_bandwidth: Share = Field(1.0, description="Share of the DRAM bandwidth that long streams reach.")
    softmax_columns: KernelTile = Field(
        2048, description="Longest row of a softmax that one warp keeps in registers; longer ones take a block each."
    )
    row_kept: Share = Field(
        0.35, description="Share of the L2 up to which long rows of a softmax that are under way are found again."
    )
    row_latency: Cycles | None = Field(
        None,
        ge=0,
        description="Cycles of one round of a block over its row, which other blocks do not hide: a load, and the "
        "threads' wait for each other. If not given, a load from DRAM that they do hide.",
    )


class GpuSpec(UnitSpec):
    """A streaming multiprocessor (SM); a kernel's blocks are given to SMs."""

    kind: Literal["gpu"]
    name: Name = Field(description="How paths and counters call one SM.", examples=["sm"])
    count: Units = Field(description="Number of SMs.")
    clock: Name | None = Field(None, description="Clock domain (the boost clock); the first one if not given.")
    warp: PerCycle = Field(32, ge=1, description="Threads that run in step.")
    schedulers: PerCycle = Field(
        4, ge=1, description="Warp schedulers; each issues one instruction of a warp per cycle."
    )
    warps: PerCycle = Field(ge=1, description="Warps resident at once.", examples=[64])
    blocks: PerCycle = Field(ge=1, description="Blocks resident at once.", examples=[32])
    block_threads: PerCycle = Field(1024, ge=32, description="Threads of one block at most.")
    thread_registers: Held = Field(255, ge=1, description="Registers of one thread at most.")
    register_unit: Held = Field(256, ge=1, description="Registers are given to a warp in multiples of this.")
    shared_reserved: Bytes | None = Field(
        None, description="Shared memory that each block loses to the system; none if not given."
    )
    lanes: Annotated[dict[FormatName, Rate], TakesAway()] = Field(
        description="Fused multiply-adds per cycle on the ordinary lanes, by format.", examples=[{"fp32": 64}]
    )
    tensor: Annotated[dict[FormatName, Rate], TakesAway()] = Field(
        {}, description="Fused multiply-adds per cycle on the tensor cores, by format.", examples=[{"fp16": 1024}]
    )
    special: Rate = Field(16, description="Exponentials and the like per cycle.")
    load_store: Rate = Field(32, description="Threads whose loads or stores can start per cycle.")
    latency: GpuLatencySpec = Field(GpuLatencySpec(), description="Cycles from operands to result, by class.")
    accumulate: Annotated[dict[FormatName, FormatName], TakesAway()] = Field(
        {}, description="Format of sums of products; as the operands where none is given."
    )
    power_limit: Watts | None = Field(
        None, description="Board power at which the clock is lowered; no limit if not given."
    )
    launch: LaunchSpec = Field(description="Time that starting a kernel takes.")
    library: LibrarySpec = Field(LibrarySpec(), description="What `schedule: auto` chooses from.")


UNIT = GpuSpec


def a_power_limit_leaves_room_for_work(machine: MachineSpec) -> Iterator[Finding]:
    """What flows whatever happens is no work: below it, no clock is low enough."""
    static = machine.energy.static if machine.energy else {}
    idle = sum(entry.power for entry in static.values())
    for index, unit in enumerate(machine.compute):
        if isinstance(unit, GpuSpec) and unit.power_limit is not None and unit.power_limit <= idle:
            message = (
                f"a limit of {float(unit.power_limit):g} W leaves nothing to work with: "
                f"{float(idle):g} W flow when idle (energy.static); give more than that"
            )
            yield Finding(("compute", index, "power_limit"), message)


def gpu_formats_are_known(machine: MachineSpec) -> Iterator[Finding]:
    for index, unit in enumerate(machine.compute):
        if not isinstance(unit, GpuSpec):
            continue
        for field in ("lanes", "tensor", "accumulate"):
            for name in getattr(unit, field):
                yield from unknown_format(("compute", index, field, name), name)
        for name, total in unit.accumulate.items():
            yield from unknown_format(("compute", index, "accumulate", name), total)


def sums_may_stay_whole(machine: MachineSpec) -> Iterator[Finding]:
    for index, unit in enumerate(machine.compute):
        if isinstance(unit, GpuSpec) and 1 not in unit.library.split_k:
            message = "must have 1 among its numbers, for kernels and sums that are not split"
            yield Finding(("compute", index, "library", "split_k"), message)


RULES = (a_power_limit_leaves_room_for_work, gpu_formats_are_known, sums_may_stay_whole)
