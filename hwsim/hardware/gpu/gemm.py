"""Matrix products as a library computes them: tiles of the output, one block each, the sum over k perhaps split.

`C = A B` with A of m x k, B of k x n, `batch` times. A quick estimate of every tile and split of the machine's
library picks one; its blocks are then laid out in waves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, sqrt

from hwsim.errors import CapacityError, InputError
from hwsim.hardware.gpu.block import BlockCost, Wave, waves_of
from hwsim.hardware.gpu.cost import KernelCost, bound_of, finish, parts_of
from hwsim.hardware.gpu.device import Device
from hwsim.hardware.gpu.format import element_bytes
from hwsim.hardware.gpu.occupancy import Footprint, Occupancy, check_block, occupancy
from hwsim.hardware.gpu.power import Activity
from hwsim.spec.gpu import TileSpec

OTHER_REGISTERS = 56
"""Registers of a thread beside its sums: operands under way, addresses, counters."""
SUM_BYTES = 4
"""Sums are kept and exchanged in 32 bits."""
EQUAL = 0.03
"""Estimates that differ by less are taken as equal."""
LEAST_STEPS = 2
"""Steps of the main loop that a part of a split sum has at least."""


@dataclass(frozen=True)
class GemmShape:
    """The sizes of a matrix product."""

    m: int
    n: int
    k: int
    batch: int = 1

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k, self.batch) < 1:
            raise InputError(f"a matrix product needs sizes of at least 1, found m={self.m} n={self.n} k={self.k}")

    @property
    def fma(self) -> int:
        return self.batch * self.m * self.n * self.k


@dataclass(frozen=True)
class GemmBytes:
    """Bytes of one element of each operand, and what of A and B lies in the L2 already."""

    a: float
    b: float
    out: float
    warm_a: bool = False
    warm_b: bool = False
    a_bytes: float | None = None
    """Bytes of A in memory where they are not m x k elements, as for the input of a convolution."""
    gather: float = 0.0
    """Integer operations on the lanes for each element of A that is loaded, where it has to be searched for."""


@dataclass(frozen=True)
class Plan:
    """One kernel of the library for one shape: what a block costs, and in which waves the blocks run."""

    tile: TileSpec
    split: int
    count: int
    held: Occupancy
    block: BlockCost
    waves: tuple[Wave, ...]
    reduction_cycles: float

    @property
    def launches(self) -> int:
        return 2 if self.split > 1 else 1

    @property
    def cycles(self) -> float:
        return sum(wave.total_cycles for wave in self.waves) + self.reduction_cycles


def gemm(
    device: Device,
    shape: GemmShape,
    precision: str,
    data: GemmBytes | None = None,
    tile: TileSpec | None = None,
    split: int | None = None,
    unit: str | None = None,
) -> KernelCost:
    """The cost of a matrix product: with the library's best tile and split, or with those that are given."""
    unit = unit or device.unit_for(precision)
    size = element_bytes(precision)
    data = data or GemmBytes(size, size, size if size >= 2 else 2)
    plan = best_plan(device, list(plans(device, shape, precision, unit, data, tile, split)))
    return _cost(device, shape, precision, unit, plan)


def best_plan(device: Device, options: list[Plan]) -> Plan:
    """The quickest; among those that are as good as equal, the largest tile, which moves the fewest bytes."""
    follow_up = device.launch_seconds("graph") * device.clock_hz
    cycles = [plan.cycles + (plan.launches - 1) * follow_up for plan in options]
    limit = min(cycles) * (1 + EQUAL)
    good = [plan for plan, needed in zip(options, cycles, strict=True) if needed <= limit]
    return max(good, key=lambda plan: (plan.tile.m * plan.tile.n, -plan.split, -plan.cycles))


def plans(
    device: Device,
    shape: GemmShape,
    precision: str,
    unit: str,
    data: GemmBytes,
    tile: TileSpec | None = None,
    split: int | None = None,
) -> Iterator[Plan]:
    """Every way in which the library could compute the product."""
    library = device.sm.library
    if tile is not None:
        need = tile_footprint(tile, data)
        check_block(device, need, _tile_name(tile), lambda: _largest_fitting(device, data, tile))
    for each in (tile,) if tile else fitting_tiles(device, precision, unit, data):
        held = occupancy(device, tile_footprint(each, data), _tile_name(each))
        for parts in (split,) if split else library.split_k:
            if split or parts == 1 or _worth_splitting(device, shape, each, parts, held.blocks):
                yield _plan(device, shape, precision, unit, data, each, parts, held)


def fitting_tiles(device: Device, precision: str, unit: str, data: GemmBytes) -> tuple[TileSpec, ...]:
    """The library's kernels for a format that an SM can hold: those made for its width, or those made for none.

    The depth of a tensor-core step is given for 16 bits; wider operands take steps of as many bytes.
    """
    library = device.sm.library
    listed = library.tensor_tiles if unit == "tensor" else library.lane_tiles
    bits = round(8 * element_bytes(precision))
    tiles = [tile for tile in listed if tile.bits == bits] or [tile for tile in listed if tile.bits is None]
    if unit == "tensor" and bits > 16:
        tiles = [tile.model_copy(update={"k": max(1, tile.k * 16 // bits)}) for tile in tiles]
    fitting = tuple(tile for tile in tiles if _fits(device, tile_footprint(tile, data)))
    if not fitting:
        raise InputError(
            f"{device.machine.name} has no {unit} tiles for {precision} in {device.sm.name}.library that fit"
        )
    return fitting


def _fits(device: Device, block: Footprint) -> bool:
    try:
        check_block(device, block, "")
    except CapacityError:
        return False
    return True


def tile_footprint(tile: TileSpec, data: GemmBytes) -> Footprint:
    """Threads, registers and shared memory of a block: its sums in registers, its operands in shared memory."""
    sums = ceil(tile.m * tile.n / tile.threads) * (2 if max(data.a, data.b) > SUM_BYTES else 1)
    operands = tile.stages * tile.k * (tile.m * data.a + tile.n * data.b)
    return Footprint(tile.threads, sums + OTHER_REGISTERS, ceil(operands))


def _worth_splitting(device: Device, shape: GemmShape, tile: TileSpec, parts: int, resident: int) -> bool:
    """A sum is split while its parts keep some steps, and only to fill SMs that would be idle."""
    if not tile.split:
        return False
    steps = ceil(shape.k / tile.k)
    blocks = shape.batch * ceil(shape.m / tile.m) * ceil(shape.n / tile.n)
    return steps >= LEAST_STEPS * parts and blocks * (parts - 1) < 2 * device.count * resident


def _plan(
    device: Device,
    shape: GemmShape,
    precision: str,
    unit: str,
    data: GemmBytes,
    tile: TileSpec,
    parts: int,
    held: Occupancy,
) -> Plan:
    library = device.sm.library
    rows, columns = ceil(shape.m / tile.m), ceil(shape.n / tile.n)
    count = shape.batch * rows * columns * parts
    steps = ceil(ceil(shape.k / parts) / tile.k)
    share = library.tensor_share if unit == "tensor" else library.lane_share
    a_step, b_step = tile.k * min(tile.m, shape.m) * data.a, tile.k * min(tile.n, shape.n) * data.b
    shared = max(a_step, b_step) * (1 - 1 / library.multicast)
    output = shape.batch * shape.m * shape.n
    block = BlockCost(
        steps=steps,
        step_math=tile.m * tile.n * tile.k / (device.fma_rate(precision, unit) * share) + _gather(device, data, tile),
        step_latency=library.step_latency,
        l2_bytes=steps * (a_step + b_step - shared),
        dram_bytes=_dram_read_bytes(device, shape, data, tile, held.blocks, parts) / count,
        write_bytes=output * (parts * SUM_BYTES if parts > 1 else data.out) / count,
        start_cycles=library.block_start,
        flight_bytes=tile.stages * tile.k * (tile.m * data.a + tile.n * data.b),
    )
    reduction = 0.0
    if parts > 1:
        reduction = library.block_start + output * (parts * SUM_BYTES + data.out) / device.l2_rate
    return Plan(tile, parts, count, held, block, waves_of(device, block, count, held.blocks), reduction)


def _gather(device: Device, data: GemmBytes, tile: TileSpec) -> float:
    """Cycles of one step in which the lanes work out where the elements of A lie."""
    return data.gather * tile.m * tile.k / device.fma_rate("int32", "lanes") if data.gather else 0.0


def _dram_read_bytes(
    device: Device, shape: GemmShape, data: GemmBytes, tile: TileSpec, resident: int, parts: int
) -> float:
    """Operands that come from DRAM: once each, or once for every wave that uses them where the L2 cannot keep them.

    A wave's blocks form a rectangle that is as square as can be, as libraries order their blocks.
    """
    a = data.a_bytes if data.a_bytes is not None else shape.batch * shape.m * shape.k * data.a
    b = shape.batch * shape.k * shape.n * data.b
    cold = (0.0 if data.warm_a else a) + (0.0 if data.warm_b else b)
    if (a + b) / shape.batch <= device.l2.size:
        return cold
    rows, columns = ceil(shape.m / tile.m), ceil(shape.n / tile.n)
    at_once = max(1, device.count * resident // parts)
    high = min(rows, max(1, round(sqrt(at_once * tile.n / tile.m))))
    wide = min(columns, max(1, at_once // high))
    high = min(rows, max(1, at_once // wide))
    waves = ceil(rows / high) * ceil(columns / wide)
    panels = (
        waves * shape.batch * shape.k * (min(high * tile.m, shape.m) * data.a + min(wide * tile.n, shape.n) * data.b)
    )
    return max(cold, panels) if data.a_bytes is None else cold


def _cost(device: Device, shape: GemmShape, precision: str, unit: str, plan: Plan) -> KernelCost:
    dram = plan.count * (plan.block.dram_bytes + plan.block.write_bytes)
    activity = Activity(shape.fma, unit, precision, dram)
    seconds, full_clock, power = finish(device, plan.cycles, activity)
    parts = parts_of(plan.waves)
    return KernelCost(
        name=f"gemm {precision} {_tile_name(plan.tile)}" + (f", k split by {plan.split}" if plan.split > 1 else ""),
        seconds=seconds,
        full_clock_seconds=full_clock,
        launches=plan.launches,
        blocks=plan.count,
        resident=plan.held.blocks,
        waves=plan.count / (device.count * plan.held.blocks),
        bound=bound_of(parts, power),
        parts=parts,
        activity=activity,
        l2_bytes=plan.count * plan.block.l2_bytes,
        power=power,
        block=plan.block,
        tile=(plan.tile.m, plan.tile.n, plan.tile.k),
        split_k=plan.split,
        occupancy=plan.held,
    )


def _tile_name(tile: TileSpec) -> str:
    return f"tile {tile.m}x{tile.n}x{tile.k}"


def _largest_fitting(device: Device, data: GemmBytes, like: TileSpec) -> str:
    """The largest of the library's tiles, or of halved versions of this one, that an SM can hold."""
    tile = like
    while tile.m * tile.n * tile.k > 1:
        largest = "k" if tile.k > 16 else "m" if tile.m >= tile.n else "n"
        tile = tile.model_copy(update={largest: max(1, getattr(tile, largest) // 2)})
        threads = min(tile.threads, device.sm.block_threads)
        tile = tile.model_copy(update={"threads": threads})
        if not _fits(device, tile_footprint(tile, data)):
            continue
        return f"tile {tile.m}x{tile.n}x{tile.k} with {tile.stages} stages and {tile.threads} threads would fit"
    return "no tile fits"
