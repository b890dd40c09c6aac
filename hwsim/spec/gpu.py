"""A GPU's streaming multiprocessor and what its kernel library brings along, as a machine file describes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hwsim.spec.base import Name, Sourced, Spec
from hwsim.units import Bytes, LatencyField, Watts

Rate = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
FormatName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class GpuLatencySpec(Spec):
    """Cycles from the operands of an instruction to its result: what a warp alone waits, and other warps hide."""

    fma: int = Field(4, ge=1, description="Fused multiply-add, addition or multiplication on the lanes.")
    special: int = Field(18, ge=1, description="Exponential, reciprocal, square root.")
    tensor: int = Field(18, ge=1, description="One tensor-core instruction of a warp.")


class LaunchSpec(Spec):
    """Time around a kernel that is not the kernel's work, by how the kernel is started."""

    graph: LatencyField = Field(description="Per kernel inside a recorded graph: start, drain and hand-over.")
    stream: LatencyField = Field(description="Per kernel in a stream, between two events.")
    host: LatencyField | None = Field(
        None, description="Per call timed by the host, with synchronisation; as `stream` if not given."
    )


class TileSpec(Spec):
    """One kernel of the library: the tile of the output that a block computes, and what the block needs."""

    m: int = Field(ge=1, description="Rows of the output tile.")
    n: int = Field(ge=1, description="Columns of the output tile.")
    k: int = Field(ge=1, description="Depth of one step of the main loop.")
    stages: int = Field(2, ge=1, description="Steps of operands that shared memory holds at once.")
    threads: int = Field(128, ge=32, multiple_of=32, description="Threads of a block.")
    bits: int | None = Field(
        None, ge=1, description="Width of the operands that this kernel is for; any for which no other kernel is."
    )
    split: bool = Field(True, description="Whether its sum over k may be split.")


class AttentionKernelSpec(Spec):
    """One fused attention kernel: rows of queries that a block keeps, and keys that it takes at a time."""

    name: Name = Field(description="Which implementation this is; several entries serve growing head sizes.")
    head_dim: int = Field(ge=1, description="Largest head size that this entry serves.")
    queries: int = Field(ge=1, description="Rows of queries of a block.")
    keys: int = Field(ge=1, description="Keys and values of one step.")
    resident: int = Field(1, ge=1, description="Blocks that run on one SM at once.")
    whole_heads: bool = Field(False, description="One block takes all queries of a head, tile after tile.")
    math_share: Share = Field(description="Share of the tensor cores' peak rate that its products reach.")
    softmax_share: float = Field(
        ge=0, le=1, description="Share of the softmax's time that does not run under the products of other warps."
    )
    step_latency: int = Field(0, ge=0, description="Cycles of one step beyond its products and its softmax.")
    block_start: int = Field(0, ge=0, description="Cycles of a block before its first and after its last step.")


class LibrarySpec(Spec):
    """What the vendor's library would run: its kernels, and the few constants by which it falls short of the peak."""

    tensor_tiles: tuple[TileSpec, ...] = Field((), description="Matrix kernels on tensor cores.")
    lane_tiles: tuple[TileSpec, ...] = Field((), description="Matrix kernels on the ordinary lanes.")
    attention: tuple[AttentionKernelSpec, ...] = Field((), description="Fused attention kernels, smallest head first.")
    split_k: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1,), description="Into how many parts the sum over k may be cut, each a block of its own."
    )
    multicast: int = Field(
        1, ge=1, description="Blocks on neighbouring SMs that one load of an operand from the L2 serves."
    )
    units: dict[FormatName, Literal["tensor", "lanes"]] = Field(
        {}, description="Where matrix products of a format run, if not on tensor cores wherever there are some."
    )
    tensor_share: Share = Field(1.0, description="Share of the tensor cores' peak rate that a main loop reaches.")
    lane_share: Share = Field(1.0, description="Share of the lanes' peak rate that a main loop reaches.")
    step_latency: int = Field(
        0,
        ge=0,
        description="Cycles of one step of the main loop beyond its products, where a block is alone on its SM.",
    )
    block_start: int = Field(
        0, ge=0, description="Cycles from a block's start to its first product, and from its last one to its end."
    )
    tile_bandwidth: Share = Field(1.0, description="Share of the DRAM bandwidth that loads of tiles reach.")
    l2_bandwidth: Share = Field(1.0, description="Share of the L2's bandwidth that loads of tiles reach.")
    stream_bandwidth: Share = Field(1.0, description="Share of the DRAM bandwidth that long streams reach.")


class GpuSpec(Sourced):
    """A streaming multiprocessor (SM); a kernel's blocks are given to SMs."""

    kind: Literal["gpu"]
    name: Name = Field(description="How paths and counters call one SM.", examples=["sm"])
    count: int = Field(ge=1, description="Number of SMs.")
    clock: Name | None = Field(None, description="Clock domain (the boost clock); the first one if not given.")
    warp: int = Field(32, ge=1, description="Threads that run in step.")
    schedulers: int = Field(4, ge=1, description="Warp schedulers; each issues one instruction of a warp per cycle.")
    warps: int = Field(ge=1, description="Warps resident at once.", examples=[64])
    blocks: int = Field(ge=1, description="Blocks resident at once.", examples=[32])
    block_threads: int = Field(1024, ge=32, description="Threads of one block at most.")
    thread_registers: int = Field(255, ge=1, description="Registers of one thread at most.")
    register_unit: int = Field(256, ge=1, description="Registers are given to a warp in multiples of this.")
    shared_reserved: Bytes | None = Field(
        None, description="Shared memory that each block loses to the system; none if not given."
    )
    lanes: dict[FormatName, Rate] = Field(
        description="Fused multiply-adds per cycle on the ordinary lanes, by format.", examples=[{"fp32": 64}]
    )
    tensor: dict[FormatName, Rate] = Field(
        {}, description="Fused multiply-adds per cycle on the tensor cores, by format.", examples=[{"fp16": 1024}]
    )
    special: Rate = Field(16, description="Exponentials and the like per cycle.")
    load_store: Rate = Field(32, description="Threads whose loads or stores can start per cycle.")
    latency: GpuLatencySpec = Field(GpuLatencySpec(), description="Cycles from operands to result, by class.")
    accumulate: dict[FormatName, FormatName] = Field(
        {}, description="Format of sums of products; as the operands where none is given."
    )
    power_limit: Watts | None = Field(
        None, description="Board power at which the clock is lowered; no limit if not given."
    )
    launch: LaunchSpec = Field(description="Time that starting a kernel takes.")
    library: LibrarySpec = Field(LibrarySpec(), description="What `schedule: auto` chooses from.")
