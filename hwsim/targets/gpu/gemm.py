"""Matrix products as a library computes them: tiles of the output, one block each, the sum over k perhaps split.

`C = A B` with A of m x k, B of k x n, `batch` times. A quick estimate of every tile and split of the machine's
library picks one; its tiles are then replayed through the L2, and its blocks played on the SMs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf, log, sqrt

import numpy as np
from numpy.typing import NDArray

from hwsim.errors import InputError
from hwsim.program.contraction import GemmShape
from hwsim.targets.gpu.agent import BlockGrid, play_kernel, reduce_grid, wave_grid
from hwsim.targets.gpu.device import (
    Activity,
    BlockCost,
    ClosedForm,
    Device,
    Footprint,
    KernelCost,
    SmOccupancy,
    Wave,
    check_block,
    element_bytes,
    fits,
    moved_bytes,
    occupancy,
    waves_of,
)
from hwsim.targets.gpu.replay import Missed, Turn, replay_turns
from hwsim.targets.gpu.spec import TileSpec

OTHER_REGISTERS = 56
"""Registers of a thread beside its sums: operands under way, addresses, counters."""
SUM_BYTES = 4
"""Sums are kept and exchanged in 32 bits."""
EQUAL = 0.03
"""Estimates that differ by less are taken as equal."""
SEEN = 0.5
"""Of the shorter of products and conversions, the part that the other does not hide: warps take turns with both."""
LOAD_OPERATIONS = 4.0
"""Instructions of the lanes that bring one word of an operand to shared memory: its address, whether it lies inside,
the load and the store (fitted on fp32 products on V100, A100 and H100)."""
WORD_BYTES = 4
LARGE_SIDE = 128
"""Of the largest tiles on lanes."""
CONVERTED_PARTS = 2
"""Parts of a sum at most, in kernels that turn weights into another format (fitted on such products on A100)."""
ZEROS, ZEROS_SHARE = 0.65, 0.97
"""What a product of zeros takes of the clock, of one that is none, and the share of the lanes' peak that tiles of many
zeros reach (fitted on fp32 batches on A100)."""
QUEUED = (0.125, 0.25)
"""Share of the bandwidth that is left where rows of an operand begin in one channel of memory, an even or an odd number
of rounds apart: the former also begin in one bank (fitted on fp32 products of 65536 and 32768 columns on MI100 and
MI210)."""
LEAST_STEPS = 2
"""Steps of the main loop that a part of a split sum has at least."""


@dataclass(frozen=True)
class GemmBytes:
    """Bytes of one element of each operand, and what of A and B lies in the L2 already."""

    a: float
    b: float
    out: float
    warm_a: bool = False
    warm_b: bool = False
    kept_out: bool = False
    """Whether the L2 has room for the results, which others overwrite before it has to write them to DRAM."""
    a_bytes: float | None = None
    """Bytes of A in memory where they are not m x k elements, as for the input of a convolution."""
    gather: float = 0.0
    """Integer operations on the lanes for each element of A that is loaded, where it has to be searched for."""
    convert: float = 0.0
    """Instructions of the lanes for each element of B that a block loads, where it is stored in a narrower format."""
    late: float = 0.0
    """Bytes for each element of the output that are read once its sum is there, as of a bias."""
    halo: int = 0
    """Rows of A on either side of a tile that it reads as well, where A are overlapping windows of an image."""


@dataclass(frozen=True)
class GemmKernel:
    """One kernel of the library for one shape: what a block costs, and in which waves the blocks run."""

    tile: TileSpec
    split: int
    count: int
    held: SmOccupancy
    block: BlockCost
    waves: tuple[Wave, ...]
    reduction_cycles: float

    @cached_property
    def cycles(self) -> float:
        return sum(wave.total_cycles for wave in self.waves) + self.reduction_cycles


def gemm(
    device: Device,
    shape: GemmShape,
    precision: str,
    data: GemmBytes | None = None,
    tile: TileSpec | tuple[TileSpec, ...] | None = None,
    split: int | None = None,
    unit: str | None = None,
) -> KernelCost:
    """The cost of a matrix product: with the library's best tile and split, or with those that are given."""
    if min(shape.m, shape.n, shape.k, shape.batch) < 1:
        raise InputError(f"a matrix product needs sizes of at least 1, found m={shape.m} n={shape.n} k={shape.k}")
    unit = unit or device.unit_for(precision)
    size = element_bytes(precision)
    data = data or GemmBytes(size, size, size if size >= 2 else 2)
    device = _one_channel(device, shape.n * data.b)
    kernel = best_kernel(device, _candidates(device, ways(device, shape, precision, unit, data, tile, split)))
    return _cost(device, shape, precision, unit, data, kernel)


def _one_channel(device: Device, row_bytes: float) -> Device:
    """The device as it is for an operand whose rows all begin in one channel: a step's loads queue there."""
    library = device.sm.library
    if library.channel_bytes is None:
        return device
    rounds, beside = divmod(row_bytes, library.channel_bytes * device.dram.channels)
    if beside:
        return device
    share = QUEUED[round(rounds) % 2]
    rates = {name: getattr(library, name) * share for name in ("l2_bandwidth", "tile_bandwidth")}
    return replace(device, sm=device.sm.model_copy(update={"library": library.model_copy(update=rates)}))


def best_kernel(device: Device, options: list[GemmKernel]) -> GemmKernel:
    """The quickest; among those that are as good as equal, the largest tile, which moves the fewest bytes."""
    cycles = [_with_launches(device, kernel) for kernel in options]
    limit = min(cycles) * (1 + EQUAL)
    good = [kernel for kernel, needed in zip(options, cycles, strict=True) if needed <= limit]
    return max(good, key=lambda kernel: (kernel.tile.m * kernel.tile.n, -kernel.split, -kernel.cycles))


def _with_launches(device: Device, kernel: GemmKernel) -> float:
    return kernel.cycles + (kernel.split > 1) * device.launch_seconds("following") * device.clock_hz


def _candidates(device: Device, found: Iterable[GemmWay]) -> list[GemmKernel]:
    """The kernels among which the quickest is: those whose products alone take longer than all of it are left out."""
    kept: list[GemmKernel] = []
    best = inf
    for way in found:
        if way.least_cycles(device) <= best * (1 + EQUAL):
            kept.append(way.kernel(device))
            best = min(best, _with_launches(device, kept[-1]))
    return kept


def ways(
    device: Device,
    shape: GemmShape,
    precision: str,
    unit: str,
    data: GemmBytes,
    tile: TileSpec | tuple[TileSpec, ...] | None = None,
    split: int | None = None,
) -> Iterator[GemmWay]:
    """Every way in which the library could compute the product; with one tile alone, or with some of these."""
    library = device.sm.library
    if isinstance(tile, TileSpec):
        need = tile_footprint(tile, data)
        check_block(device, need, _tile_name(tile), lambda: _largest_fitting(device, data, tile))
    given = (tile,) if isinstance(tile, TileSpec) else tile
    for each in given or tiles_for(fitting_tiles(device, precision, unit, data, shape.batch), shape):
        held = occupancy(device, tile_footprint(each, data), _tile_name(each))
        step_math = _step_math(device, precision, unit, data, each, shape)
        latency = _step_latency(device, each)
        for parts in (split,) if split else library.split_k:
            if data.convert and not split and parts > CONVERTED_PARTS:
                continue
            if split or parts == 1 or _worth_splitting(device, shape, each, parts, held.blocks):
                yield GemmWay(shape, precision, unit, data, each, parts, held, step_math, latency)


def _step_latency(device: Device, tile: TileSpec) -> float:
    """The tile's own, or that of kernels like it."""
    library = device.sm.library
    byte = library.byte_latency if tile in library.byte_tiles else None
    return next(float(each) for each in (tile.step_latency, byte, library.step_latency) if each is not None)


def fitting_tiles(device: Device, precision: str, unit: str, data: GemmBytes, batch: int = 1) -> tuple[TileSpec, ...]:
    """The library's kernels for a format that an SM can hold; for a batch those that it has for batches, if any."""
    listed = library_tiles(device, precision, unit, turns=data.convert > 0)
    fitting = tuple(tile for tile in listed if fits(device, tile_footprint(tile, data)))
    if batch > 1:
        fitting = tuple(tile for tile in fitting if tile.batched) or fitting
    if not fitting:
        raise InputError(
            f"{device.machine.name} has no {unit} tiles for {precision} in {device.sm.name}.library that fit"
        )
    return fitting


def tiles_for(tiles: tuple[TileSpec, ...], shape: GemmShape) -> tuple[TileSpec, ...]:
    """Those that the library takes for so many rows, where it tells them apart; for a batch the one that its table
    has for the nearest size, where it has a table: nearest by ratios of m, n and k."""
    sizes = [(size, tile) for tile in tiles for size in tile.tuned] if shape.batch > 1 else []
    if sizes:
        wanted = (shape.m, shape.n, shape.k)
        apart = [sum(log(a / b) ** 2 for a, b in zip(size, wanted, strict=True)) for size, _ in sizes]
        return (sizes[apart.index(min(apart))][1],)
    taken = tuple(tile for tile in tiles if tile.least_rows <= shape.m <= (tile.most_rows or shape.m))
    return taken or tiles


def library_tiles(device: Device, precision: str, unit: str, *, turns: bool = False) -> tuple[TileSpec, ...]:
    """The library's kernels for a format, or those that turn narrower weights into it, whether or not they fit.

    The depth of a tensor-core step is given for 16 bits; wider operands take steps of as many bytes.
    """
    library, bits = device.sm.library, round(8 * element_bytes(precision))
    if unit != "tensor":
        return library.lane_tiles
    if turns and library.narrow_tiles:
        return library.narrow_tiles
    if bits == 8 and library.byte_tiles:
        return library.byte_tiles
    if bits <= 16:
        return library.tensor_tiles
    return tuple(tile.model_copy(update={"k": max(1, tile.k * 16 // bits)}) for tile in library.tensor_tiles)


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


@dataclass(frozen=True)
class GemmWay:
    """A product in tiles of one size with its sum in so many parts, before anything about it is worked out."""

    shape: GemmShape
    precision: str
    unit: str
    data: GemmBytes
    tile: TileSpec
    parts: int
    held: SmOccupancy
    step_math: float
    step_latency: float

    @property
    def rows(self) -> int:
        return ceil(self.shape.m / self.tile.m)

    @property
    def columns(self) -> int:
        return ceil(self.shape.n / self.tile.n)

    @property
    def blocks(self) -> int:
        return self.shape.batch * self.rows * self.columns * self.parts

    @property
    def steps(self) -> int:
        return ceil(ceil(self.shape.k / self.parts) / self.tile.k)

    def least_cycles(self, device: Device) -> float:
        """What it takes at least: its products, or one block after the other on each slot."""
        turns = ceil(self.blocks / (device.count * self.held.blocks))
        alone = turns * (self.step_math + self.step_latency)
        return self.steps * max(ceil(self.blocks / device.count) * self.step_math, alone)

    def kernel(self, device: Device) -> GemmKernel:
        """What a block costs, and in which waves the blocks run."""
        library, shape, data, tile, parts = device.sm.library, self.shape, self.data, self.tile, self.parts
        count, steps = self.blocks, self.steps
        a_step, b_step = tile.k * min(tile.m, shape.m) * data.a, tile.k * min(tile.n, shape.n) * data.b
        common = max(a_step if self.columns > 1 else 0.0, b_step if self.rows > 1 else 0.0)
        output = shape.batch * shape.m * shape.n
        resident = self.held.blocks
        block = BlockCost(
            steps=steps,
            step_math=self.step_math,
            step_latency=self.step_latency,
            l2_bytes=steps * (a_step + b_step - common * (1 - 1 / library.multicast)),
            dram_bytes=_dram_read_bytes(device, shape, data, tile, resident, parts) / count,
            write_bytes=output * (parts * SUM_BYTES if parts > 1 else data.out + data.late) / count,
            start_cycles=library.block_start + device.drain(self.unit),
            flight_bytes=tile.stages * tile.k * (tile.m * data.a + tile.n * data.b),
            kept_results=data.kept_out,
            writes_beside=self.unit == "lanes",
            double_sums=self.unit == "tensor" and self.precision in library.double_sums,
            store_rate=None if tile.store_rate is None else float(tile.store_rate),
        )
        reduction = 0.0
        if parts > 1:
            reduction = library.block_start + output * (parts * SUM_BYTES + data.out + data.late) / device.l2_rate
        return GemmKernel(tile, parts, count, self.held, block, waves_of(device, block, count, resident), reduction)


def _step_math(device: Device, precision: str, unit: str, data: GemmBytes, tile: TileSpec, shape: GemmShape) -> float:
    """Cycles of one step: products, and beside those of tensor cores the lanes that unpack narrower weights.

    Lanes that multiply also bring the operands to shared memory, which small tiles do more often for each product.
    """
    library = device.sm.library
    share = library.tensor_share if unit == "tensor" else lane_share(device, tile, shape)
    products = tile.m * tile.n * tile.k / (device.fma_rate(precision, unit) * share)
    turning = data.convert * tile.n * tile.k / device.fma_rate("fp32", "lanes")
    if unit == "tensor":
        together = max(products, turning) + SEEN * min(products, turning)
    else:
        words = (tile.m * data.a + tile.n * data.b) * tile.k / WORD_BYTES
        loading = LOAD_OPERATIONS * words / device.fma_rate("fp32", "lanes")
        together = products + turning + loading
    return together + _gather(device, data, tile)


def padded(tile: TileSpec, shape: GemmShape) -> float:
    """Products of whole tiles over those that were asked for."""
    return ceil(shape.m / tile.m) * tile.m * ceil(shape.n / tile.n) * tile.n / (shape.m * shape.n)


def lane_share(device: Device, tile: TileSpec, shape: GemmShape) -> float:
    """Share of the lanes' peak that the main loop of a tile reaches.

    What holds lanes below their peak is mostly the clock. Zeros that fill up the tiles of a batch ask for less of it.
    """
    share = device.sm.library.lane_share
    if shape.batch == 1:
        return share
    whole = padded(tile, shape)
    return min(max(share, ZEROS_SHARE), share * whole / (1 + ZEROS * (whole - 1)))


def lane_loop_share(share: float) -> float:
    """Of the lanes' peak rate, what a main loop of the largest tiles reaches, which also loads its operands."""
    return share / (1 + share * LOAD_OPERATIONS * 2 / LARGE_SIDE)


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
    if (a + b) / shape.batch <= device.kept_bytes:
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


def replay(device: Device, shape: GemmShape, data: GemmBytes, kernel: GemmKernel) -> Missed:
    """The operands of a product through the L2, as its blocks load them."""
    tile = (kernel.tile.m, kernel.tile.n)
    at_once = device.count * kernel.held.blocks
    grid = ProductGrid.of(shape.m, shape.n, shape.batch, tile, kernel.split, at_once)
    a = data.a if data.a_bytes is None else data.a_bytes / (shape.batch * shape.m * shape.k)
    panels = ProductPanels.of(grid, (shape.m, shape.n, shape.k), tile, a, data.b)
    return replay_product(
        panels,
        kernel.block.steps,
        at_once,
        kernel.block.write_bytes,
        device.kept_bytes,
        warm=(data.warm_a, data.warm_b),
        halo=ceil(data.halo / kernel.tile.m),
    )


def _grids(
    device: Device, shape: GemmShape, data: GemmBytes, kernel: GemmKernel, missed: Missed
) -> tuple[BlockGrid, ...]:
    """The product, and where its sum is split the kernel that adds up the parts."""
    output = shape.batch * shape.m * shape.n
    late = output * data.late
    if kernel.split == 1:
        each = late / kernel.count
        grid = wave_grid(device, kernel.block, kernel.count, kernel.held.blocks, missed.turns, late_bytes=each)
        # Rows of images and of their results are long streams, where rows of tiles are short ones.
        return (replace(grid, dram_rate=device.stream_rate) if data.gather else grid,)
    sums = output * kernel.split * SUM_BYTES
    far = late + (sums if sums > device.l2.size else 0)
    return (
        wave_grid(device, kernel.block, kernel.count, kernel.held.blocks, missed.turns),
        reduce_grid(device, device.sm.library.block_start, sums + late, far, output * data.out),
    )


def _cost(
    device: Device, shape: GemmShape, precision: str, unit: str, data: GemmBytes, kernel: GemmKernel
) -> KernelCost:
    missed = replay(device, shape, data, kernel)
    grids = _grids(device, shape, data, kernel, missed)
    turned = data.convert * shape.batch * shape.k * shape.n * ceil(shape.m / kernel.tile.m)
    done = shape.macs * padded(kernel.tile, shape) if unit == "lanes" and shape.batch > 1 else shape.macs
    activity = Activity(done, unit, precision, moved_bytes(grids), lanes=turned)
    split = f", k split by {kernel.split}" if kernel.split > 1 else ""
    return play_kernel(
        device,
        f"gemm {precision} {_tile_name(kernel.tile)}{split}",
        grids,
        activity,
        ClosedForm(
            kernel.cycles / device.clock_hz, kernel.count * (kernel.block.dram_bytes + kernel.block.write_bytes)
        ),
        kernel.count,
        kernel.held.blocks,
        missed.walked,
        kernel.block,
        (kernel.tile.m, kernel.tile.n, kernel.tile.k),
        kernel.split,
        kernel.held,
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
        if not fits(device, tile_footprint(tile, data)):
            continue
        return f"tile {tile.m}x{tile.n}x{tile.k} with {tile.stages} stages and {tile.threads} threads would fit"
    return "no tile fits"


# Tiles through the L2 -------------------------------------------------------------------------------------------------


def distinct(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers in order, each once; `np.unique` would import masked arrays for it."""
    ordered = np.sort(numbers)
    first = np.ones(ordered.size, bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


@dataclass(frozen=True)
class ProductGrid:
    """The output tiles of a matrix product, and the order in which a library hands them to SMs.

    Tiles of a strip of `high` rows follow each other column by column, so that those that run at once are as square as
    can be; strips follow each other, then the parts of a split sum, then the products of a batch.
    """

    rows: int
    columns: int
    parts: int
    batch: int
    high: int

    @classmethod
    def of(cls, m: int, n: int, batch: int, tile: tuple[int, int], parts: int, at_once: int) -> ProductGrid:
        """The grid of a product whose blocks run `at_once` at a time."""
        rows, columns = ceil(m / tile[0]), ceil(n / tile[1])
        high = min(rows, max(1, round(sqrt(at_once * tile[1] / tile[0]))))
        wide = min(columns, max(1, at_once // high))
        return cls(rows, columns, parts, batch, min(rows, max(1, at_once // wide)))

    @property
    def blocks(self) -> int:
        return self.batch * self.parts * self.rows * self.columns

    @property
    def panels(self) -> int:
        """Rows and columns of tiles of one part of one product."""
        return self.rows + self.columns

    def touched(self, first: int, last: int, halo: int = 0) -> tuple[int, ...]:
        """The panels of blocks ``first`` to ``last``: rows of tiles, then columns, of each part in turn.

        `halo` neighbours of each row belong to it, as where windows of an image overlap.
        """
        each, place = np.divmod(np.arange(first, last), self.rows * self.columns)
        strip, inside = np.divmod(place, self.high * self.columns)
        height = np.minimum(self.high, self.rows - strip * self.high)
        row, column = strip * self.high + inside % height, inside // height
        rows = distinct(each * self.panels + row)
        columns = distinct(each * self.panels + self.rows + column)
        if halo:
            rows = self._widened(rows, halo)
        return tuple(distinct(np.concatenate([rows, columns])).tolist())

    def _widened(self, rows: NDArray[np.int64], halo: int) -> NDArray[np.int64]:
        base, row = np.divmod(rows, self.panels)
        near = row[:, None] + np.arange(-halo, halo + 1)
        kept = (near >= 0) & (near < self.rows)
        return distinct((base[:, None] * self.panels + near)[kept])


@dataclass(frozen=True)
class ProductPanels:
    """Bytes of the panels of a product, part by part: rows of A, then columns of B."""

    grid: ProductGrid
    sizes: tuple[float, ...]

    @classmethod
    def of(
        cls, grid: ProductGrid, shape: tuple[int, int, int], tile: tuple[int, int], a: float, b: float
    ) -> ProductPanels:
        """From m, n, k and the bytes of an element of A and B; panels at the edge are smaller."""
        m, n, k = shape
        depth = k / grid.parts
        rows = [min(tile[0], m - at) * depth * a for at in range(0, m, tile[0])]
        columns = [min(tile[1], n - at) * depth * b for at in range(0, n, tile[1])]
        return cls(grid, tuple(rows + columns))

    def size(self, panel: int) -> float:
        return self.sizes[panel % self.grid.panels]

    def warm(self, a: bool, b: bool) -> Iterator[int]:
        """Panels of operands that lie in the L2 already."""
        grid = self.grid
        for each in range(grid.batch * grid.parts if a or b else 0):
            base = each * grid.panels
            yield from range(base if a else base + grid.rows, base + (grid.panels if b else grid.rows))

    def stay(self, steps: int, at_once: int, block_written: float, capacity: float, *, all_of_them: bool) -> bool:
        """Whether every panel is found again until its last use, whatever else is touched and written meanwhile: in
        the turns that its part of a product takes, or, where some are warm from the start, in all of them.

        A part that two turns share is used in both step by step: what lies in between are as many steps as one has.
        """
        grid = self.grid
        each, parts = grid.rows * grid.columns, grid.batch * grid.parts
        if at_once % each == 0 and not all_of_them:
            return True
        turns, overlap = ceil(grid.blocks / at_once), 1.0
        if not all_of_them and each <= at_once:
            turns, overlap = min(turns, 1), 1 + 1 / steps
        elif not all_of_them:
            turns = min(turns, ceil(each / at_once) + 1)
        if not all_of_them:
            parts = min(parts, ceil(turns * at_once / each) + 1)
        written = min(turns * at_once, grid.blocks) * block_written
        return parts * sum(self.sizes) * overlap + written <= capacity

    def first_touched(self, turns: int, at_once: int, warm: tuple[bool, bool]) -> tuple[float, ...]:
        """Bytes of the panels that each turn is the first to touch, but for those that are warm."""
        grid = self.grid
        row, column = np.arange(grid.rows), np.arange(grid.columns)
        inside = np.concatenate([row // grid.high * grid.high * (grid.columns - 1) + row, column * grid.high])
        missed = np.array(self.sizes) * ~np.repeat(warm, [grid.rows, grid.columns])
        parts = np.arange(grid.batch * grid.parts) * (grid.rows * grid.columns)
        when = (parts[:, None] + inside) // at_once
        return tuple(np.bincount(when.ravel(), np.tile(missed, parts.size), turns).tolist())


def replay_product(
    panels: ProductPanels,
    steps: int,
    at_once: int,
    block_written: float,
    capacity: float,
    *,
    warm: tuple[bool, bool] = (False, False),
    halo: int = 0,
) -> Missed:
    """The operands of a matrix product; `at_once` blocks run at a time and write so many bytes each at their end."""
    grid = panels.grid
    turns = ceil(grid.blocks / at_once)
    if not halo and panels.stay(steps, at_once, block_written, capacity, all_of_them=any(warm)):
        return Missed(panels.first_touched(turns, at_once, warm))

    def turn(number: int) -> Turn:
        first, last = number * at_once, min((number + 1) * at_once, grid.blocks)
        return Turn(grid.touched(first, last, halo), (last - first) * block_written)

    return replay_turns(turns, turn, panels.size, steps, capacity, panels.warm(*warm))
