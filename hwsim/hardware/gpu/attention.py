"""Attention: fused in one kernel (prefill and decode), or as the three kernels that came before it.

A fused block keeps a tile of queries and goes over the keys step by step: two matrix products and a softmax each.
With a causal mask, blocks differ in length; the longest are handed out first.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hwsim.errors import InputError
from hwsim.hardware.gpu.block import DRAM, L2, MATH, START
from hwsim.hardware.gpu.cost import SPECIAL, KernelCost, bound_of, finish
from hwsim.hardware.gpu.device import Device
from hwsim.hardware.gpu.format import element_bytes
from hwsim.hardware.gpu.gemm import GemmShape, gemm
from hwsim.hardware.gpu.power import Activity
from hwsim.hardware.gpu.schedule import Group, makespan
from hwsim.hardware.gpu.stream import softmax
from hwsim.spec.gpu import AttentionKernelSpec

VECTOR_OPERATIONS = 4
"""Operations on the lanes for each score: scale and shift, maximum, sum, conversion."""


@dataclass(frozen=True)
class AttentionShape:
    """Queries against keys and values, in heads; several heads of queries may share one of keys."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    causal: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise InputError(f"{self.heads} heads do not share {self.kv_heads} heads of keys evenly")

    def bytes(self, size: float) -> float:
        """Queries, keys, values and results."""
        rows = 2 * self.heads * self.queries + 2 * self.kv_heads * self.keys
        return self.batch * self.head_dim * size * rows


@dataclass(frozen=True)
class _Work:
    """Blocks of a fused kernel by length, with what they do in all."""

    groups: tuple[Group, ...]
    """Cycles without the start, for a block alone on its SM."""
    steps: int
    rows: int
    keys: int


def find_kernel(device: Device, name: str, head_dim: int) -> AttentionKernelSpec:
    """The library's kernel of a name that serves a head size."""
    kernels = [kernel for kernel in device.sm.library.attention if kernel.name == name]
    if not kernels:
        known = sorted({kernel.name for kernel in device.sm.library.attention})
        raise InputError(f"{device.machine.name} has no attention kernel '{name}'; it has {', '.join(known) or 'none'}")
    fitting = [kernel for kernel in kernels if kernel.head_dim >= head_dim]
    if not fitting:
        largest = max(kernel.head_dim for kernel in kernels)
        raise InputError(f"{name} on {device.machine.name} serves heads of up to {largest}, found {head_dim}")
    return min(fitting, key=lambda kernel: kernel.head_dim)


def fused(device: Device, shape: AttentionShape, precision: str, kernel: str) -> KernelCost:
    """One kernel for all of attention; scores never leave the SM."""
    spec = find_kernel(device, kernel, shape.head_dim)
    tiles = ceil(shape.queries / spec.queries)
    step = step_cycles(device, spec, shape.head_dim, precision)
    counts = [ceil(_visible(shape, spec, tile) / spec.keys) for tile in range(tiles)]
    streams = shape.batch * shape.heads
    if spec.whole_heads:
        groups = [Group(streams, step * sum(counts))]
    else:
        groups = [Group(streams, step * count) for count in reversed(counts)]
    work = _Work(_joined(groups), streams * sum(counts), spec.queries, spec.keys)
    size = element_bytes(precision)
    keys_bytes = 2 * shape.kv_heads * shape.batch * shape.keys * shape.head_dim * size
    at_once = max(1.0, device.count * spec.resident / tiles) * keys_bytes / (shape.kv_heads * shape.batch)
    again = (shape.heads // shape.kv_heads) * tiles if min(keys_bytes, at_once) > device.l2.size else 1
    moved = shape.bytes(size) + (again - 1) * keys_bytes
    return _cost(device, shape, precision, spec, work, moved)


def decode(device: Device, shape: AttentionShape, precision: str, kernel: str, split: bool = True) -> KernelCost:
    """A query or a few against many keys: heads that share keys form one tile, and keys are split among blocks.

    A split that is used costs a second kernel, which joins the parts.
    """
    spec = find_kernel(device, kernel, shape.head_dim)
    step = step_cycles(device, spec, shape.head_dim, precision)
    tiles = shape.batch * shape.kv_heads * ceil(shape.queries * shape.heads // shape.kv_heads / spec.queries)
    steps = ceil(shape.keys / spec.keys)
    size = element_bytes(precision)
    options = []
    for parts in _splits(device, tiles, steps) if split else (1,):
        each = ceil(steps / parts)
        work = _Work((Group(tiles * parts, step * each),), tiles * steps, spec.queries, spec.keys)
        partial = tiles * parts * spec.queries * shape.head_dim * 4 if parts > 1 else 0
        options.append(_cost(device, shape, precision, spec, work, shape.bytes(size), partial, 2 if parts > 1 else 1))
    follow_up = device.launch_seconds("graph")
    return min(options, key=lambda cost: cost.seconds + (cost.launches - 1) * follow_up)


def unfused(device: Device, shape: AttentionShape, precision: str) -> tuple[KernelCost, ...]:
    """Scores, softmax, weighted values: three kernels with all scores in DRAM between them."""
    streams = shape.batch * shape.heads
    scores = gemm(device, GemmShape(shape.queries, shape.keys, shape.head_dim, streams), precision)
    weights = softmax(device, streams * shape.queries, shape.keys, precision)
    values = gemm(device, GemmShape(shape.queries, shape.head_dim, shape.keys, streams), precision)
    return scores, weights, values


def step_cycles(device: Device, kernel: AttentionKernelSpec, head_dim: int, precision: str) -> float:
    """Cycles of one step of a block alone on its SM: two products, and what of the softmax they do not hide."""
    scores = kernel.queries * kernel.keys
    products = 2 * scores * head_dim / (device.fma_rate(precision, "tensor") * kernel.math_share)
    vector = scores * (1 / device.sm.special + VECTOR_OPERATIONS / device.fma_rate("fp32", "lanes"))
    return products + kernel.softmax_share * vector + kernel.step_latency


def _visible(shape: AttentionShape, kernel: AttentionKernelSpec, tile: int) -> int:
    """Keys that the last query of a tile may see."""
    if not shape.causal:
        return shape.keys
    last = min(shape.queries, (tile + 1) * kernel.queries)
    return max(1, min(shape.keys, last + shape.keys - shape.queries))


def _splits(device: Device, tiles: int, steps: int) -> tuple[int, ...]:
    """Numbers of parts worth trying: up to two blocks for each SM, and one step for each part."""
    most = max(1, min(steps, 2 * device.count // tiles if tiles < 2 * device.count else 1))
    return tuple(sorted({1, most, *(parts for parts in (2, 4, 8, 16, 32, 64, 128) if parts < most)}))


def _joined(groups: list[Group]) -> tuple[Group, ...]:
    """Groups of equal length become one."""
    joined: list[Group] = []
    for group in groups:
        if joined and joined[-1].cycles == group.cycles:
            joined[-1] = Group(joined[-1].count + group.count, group.cycles)
        else:
            joined.append(group)
    return tuple(joined)


def _cost(
    device: Device,
    shape: AttentionShape,
    precision: str,
    kernel: AttentionKernelSpec,
    work: _Work,
    moved: float,
    partial: float = 0.0,
    launches: int = 1,
) -> KernelCost:
    blocks = sum(group.count for group in work.groups)
    resident = min(kernel.resident, ceil(blocks / device.count))
    start = float(kernel.block_start)
    shared = [Group(group.count, group.cycles * resident + start) for group in work.groups]
    tile_bytes = work.keys * shape.head_dim * 2 * element_bytes(precision)
    busy = min(blocks, device.count)
    reach = busy * min(device.sm_rate, resident * 2 * tile_bytes / max(1.0, device.memory_latency))
    parts = {
        MATH: makespan(shared, device.count * resident),
        L2: work.steps * tile_bytes / min(device.l2_rate, reach),
        DRAM: moved / min(device.tile_rate, reach),
    }
    join = (2 * partial / device.l2_rate + start) if launches > 1 else 0.0
    cycles = max(parts.values()) + join
    parts[START] = start * launches
    scores = work.steps * work.rows * work.keys
    activity = Activity(2 * scores * shape.head_dim, "tensor", precision, moved, scores)
    seconds, full_clock, power = finish(device, cycles, activity)
    bound = bound_of(parts, power)
    return KernelCost(
        name=f"attention {kernel.name} {precision} {kernel.queries} queries x {kernel.keys} keys",
        seconds=seconds,
        full_clock_seconds=full_clock,
        launches=launches,
        blocks=blocks,
        resident=kernel.resident,
        waves=blocks / (device.count * kernel.resident),
        bound=SPECIAL if bound == MATH else bound,
        parts=parts,
        activity=activity,
        l2_bytes=work.steps * tile_bytes,
        power=power,
        tile=(kernel.queries, kernel.keys),
    )
