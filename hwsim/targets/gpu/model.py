"""GpuModel: one door to what kernels cost on a GPU.

model = GpuModel(load_machine("a100_80").spec)
cost = model.gemm(GemmShape(4096, 4096, 4096), "bf16")
cost.seconds, cost.waves, cost.bound_in_words
model.seconds(cost, timing="graph")     # with its launch

Convolutions are implicit matrix products: rows of A are output pixels, its columns input channels and filter taps. A is
never written: it comes from the input, whose rows are replayed through the L2 with their overlap, while each tile's
patches pass through it.

Element-wise kernels stream. Kernels over rows read a row more than once: from registers where a warp can keep it,
from the L2 where the rows that are under way fit there, from DRAM otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import TYPE_CHECKING

from hwsim.errors import InputError
from hwsim.program.contraction import GemmShape
from hwsim.spec.machine import MachineSpec
from hwsim.targets.gpu.agent import BlockGrid, Portion, pass_grid, play_kernel
from hwsim.targets.gpu.attention import DECODE, find_kernel, fused
from hwsim.targets.gpu.decode import decode
from hwsim.targets.gpu.device import (
    LATENCY,
    SPECIAL,
    START,
    Activity,
    ClosedForm,
    Device,
    Footprint,
    KernelCost,
    element_bytes,
    moved_bytes,
    occupancy,
)
from hwsim.targets.gpu.gemm import GemmBytes, fitting_tiles, gemm
from hwsim.targets.gpu.knobs import Choices, choose_attention, choose_split, choose_tiles
from hwsim.targets.gpu.replay import Missed, whole_bytes
from hwsim.targets.gpu.spec import AttentionKernelSpec, TileSpec

if TYPE_CHECKING:
    from hwsim.ops.attention_shape import AttentionShape
    from hwsim.program.contraction import ConvShape

LANE_FORMAT = "fp32"
"""What element-wise arithmetic is done in."""
FADE = 0.5
"""Share of the L2 over which hits fade, once the rows under way fill more of it than a kernel's `kept`."""
THREADS = 256
MOST_ROUNDS = 64
"""Rounds in which a stream is played."""
VECTOR_BYTES = 16
"""What tensor-core kernels load at a time, along the channels."""
SOFTMAX_OPERATIONS, NARROW_OPERATIONS, NARROW_VECTORS = 25.0, 11.0, 5.0
"""Instructions of a lane for each number of a softmax: loads, bounds, maximum, sum, scale; of 16 bits more to unpack,
convert and pack it, fewer where a block takes its row in vectors. Half are of integers, which have fewer lanes on some
GPUs (fitted on fp16 rows on A100, alone and in attention, where they and not the bytes decide)."""
QUANTIZE_OPERATIONS = {True: 43.0, False: 14.0}
"""Instructions of a lane for each number that is rounded to 8 bits or more: a load, its magnitude, the largest so far,
a product, bounds and a conversion, number by number; and to fewer bits, where kernels take vectors (fitted on the rows
of 8-bit products on H100 and B200, and of 4-bit ones on B200)."""
LEAST_TILE = {"tensor": 64 * 128, "lanes": 64 * 64}
"""Outputs of the smallest tiles that the library has for convolutions (DeepBench's rows of few pixels show it)."""
FIRST_TILE = 128 * 128
"""Outputs of those for images of few channels."""
SCATTER_OPERATIONS = 20
"""Integer operations for each element of an image whose channels fill no vector: it is loaded alone (fitted on first
layers in fp16 on V100 and T4)."""
GATHER_OPERATIONS = 8
"""Integer operations to find one vector of the input: which pixel, which tap, whether it lies in the padding."""


class GpuModel:
    """The library kernels of a GPU: what their blocks cost, how they fill it, and why that takes so long."""

    def __init__(self, machine: MachineSpec | Device) -> None:
        self.device = machine if isinstance(machine, Device) else Device.of(machine)

    def seconds(self, cost: KernelCost | tuple[KernelCost, ...], timing: str = "graph") -> float:
        """With launches: of one kernel, or of several one after the other."""
        costs = cost if isinstance(cost, tuple) else (cost,)
        follow = sum(each.launches for each in costs) - 1
        alone = sum(each.seconds for each in costs)
        return alone + self.device.launch_seconds(timing) + follow * self.device.launch_seconds("following")

    def gemm(
        self,
        shape: GemmShape,
        precision: str,
        data: GemmBytes | None = None,
        tile: TileSpec | tuple[TileSpec, ...] | None = None,
        split: int | None = None,
    ) -> KernelCost:
        """A matrix product, batched or not; with tiles and a split of your own, or the library's best."""
        return gemm(self.device, shape, precision, data, tile, split)

    def conv(
        self,
        shape: ConvShape,
        precision: str,
        warm: tuple[bool, bool] = (False, False),
        out: float | None = None,
        late: float = 0.0,
        choices: Choices | None = None,
        *,
        channels_last: bool = False,
    ) -> KernelCost:
        """A convolution as an implicit matrix product, its input or filters perhaps `warm` in the L2.

        `out` bytes are written for each result where that is not one element, `late` read. Tensor cores take channels
        in whole vectors of 16 bytes; fewer are padded with zeros, and brought there one by one.
        """
        device, size = self.device, element_bytes(precision)
        unit = "tensor" if precision in device.sm.tensor else "lanes"
        vector = ceil(VECTOR_BYTES / size) if unit == "tensor" else 1
        scattered = size > 1 and (shape.ci // shape.groups) % vector > 0  # those of 8 bits were put in order before
        padded = replace(shape, ci=ceil(shape.ci // shape.groups / vector) * vector * shape.groups)
        product = as_gemm(padded)
        data = GemmBytes(
            size, size, size if out is None else out, *warm, a_bytes=_touched(padded, channels_last) * size,
            gather=SCATTER_OPERATIONS if scattered else GATHER_OPERATIONS / vector, late=late, halo=_halo(padded),
        )  # fmt: skip
        tiles = choose_tiles(device, precision, unit, data, choices or {})
        split = choose_split(choices or {}, product.k, tiles) or 1
        if tiles is None:
            listed = fitting_tiles(device, precision, unit, data, product.batch)
            least = FIRST_TILE if scattered else LEAST_TILE[unit]
            tiles = tuple(tile for tile in listed if tile.m * tile.n >= least) or listed
        return gemm(device, product, precision, data, tiles, split, unit)

    def attention(
        self,
        shape: AttentionShape,
        precision: str,
        kernel: str | None = None,
        choices: Choices | None = None,
        warm: bool = False,
        backward: bool = False,
    ) -> KernelCost:
        """Fused attention over many queries (prefill), whose keys may lie in the L2 (`warm`), or its gradients."""
        names = [each.name for each in self.device.sm.library.attention if each.name != DECODE]
        newest = names[-1] if names else "flash2"
        found = self._fused(shape, precision, kernel or newest, choices)
        return fused(self.device, shape, precision, found, warm, backward)

    def decode(
        self,
        shape: AttentionShape,
        precision: str,
        kernel: str = DECODE,
        split: bool = True,
        choices: Choices | None = None,
        warm: bool = False,
    ) -> KernelCost:
        """Fused attention of a query or a few over many keys, which may lie in the L2 (`warm`)."""
        return decode(self.device, shape, precision, self._fused(shape, precision, kernel, choices), split, warm)

    def _fused(
        self, shape: AttentionShape, precision: str, kernel: str, choices: Choices | None
    ) -> AttentionKernelSpec:
        found = find_kernel(self.device, kernel, shape.d)
        return choose_attention(self.device, found, shape.d, precision, choices or {})

    def attention_unfused(self, shape: AttentionShape, precision: str) -> tuple[KernelCost, ...]:
        """Scores, softmax, weighted values: three kernels with all scores in DRAM between them."""
        streams = shape.batch * shape.heads
        return (
            self.gemm(GemmShape(shape.queries, shape.keys, shape.d, streams), precision),
            self.softmax(streams * shape.queries, shape.keys, precision),
            self.gemm(GemmShape(shape.queries, shape.d, shape.keys, streams), precision),
        )

    def softmax(self, rows: int, columns: int, precision: str) -> KernelCost:
        """Softmax of each row: a warp keeps a row of up to 8 KiB in registers; a block reads a longer one three times.

        Its threads take 16 bytes at a time, or one number where rows do not begin at multiples of 16 bytes.
        """
        sm, size = self.device.sm, element_bytes(precision)
        narrow = size < element_bytes(LANE_FORMAT)
        if columns * size <= 8192 and columns <= sm.library.softmax_columns:
            operations = self._mixed(SOFTMAX_OPERATIONS + narrow * NARROW_OPERATIONS)
            kernel = RowKernel("softmax", 1, 32, 1, special=1.0, operations=operations)
        else:
            taken = VECTOR_BYTES / size if columns * size % VECTOR_BYTES == 0 else 1
            rounds = ceil(columns / (sm.block_threads * taken))
            kept = sm.library.row_kept
            operations = self._mixed(SOFTMAX_OPERATIONS + narrow * NARROW_VECTORS)
            kernel = RowKernel(
                "softmax", 3, sm.block_threads, 3, kept, special=1.0, operations=operations, rounds=rounds
            )
        return rowwise(self.device, rows, columns, precision, kernel)

    def _mixed(self, instructions: float) -> float:
        """As many multiply-adds, where half of them are of integers."""
        lanes = self.device.sm.lanes
        return instructions * (1 + lanes[LANE_FORMAT] / lanes.get("int32", lanes[LANE_FORMAT])) / 2

    def layernorm(self, rows: int, columns: int, precision: str) -> KernelCost:
        """Layer normalisation: mean and variance in one pass over a row, the result in a second."""
        return rowwise(self.device, rows, columns, precision, RowKernel("layernorm", 2, 128, 2, operations=6.0))

    def rmsnorm(self, rows: int, columns: int, precision: str) -> KernelCost:
        """As layer normalisation without the mean: the sum of squares in one pass, the result in a second."""
        return rowwise(self.device, rows, columns, precision, RowKernel("rmsnorm", 2, 128, 2, operations=4.0))

    def quantize(self, rows: int, columns: int, precision: str, to: str, warm: bool = False) -> KernelCost:
        """Rows scaled by their largest element and rounded to a narrower format: one pass to find it, one to round.

        With `warm` rows the L2 has them and keeps what they are rounded to.
        """
        operations = QUANTIZE_OPERATIONS[element_bytes(to) >= 1]
        kernel = RowKernel("quantize", 2, 128, 2, operations=operations, to=to)
        return rowwise(self.device, rows, columns, precision, kernel, warm)

    def elementwise(
        self,
        elements: int,
        precision: str,
        reads: int = 1,
        writes: int = 1,
        operations: float = 1.0,
        special: float = 0.0,
        name: str = "elementwise",
        written: float | None = None,
        warm: bool = False,
        share: float = 1.0,
    ) -> KernelCost:
        """Every element computed on its own from `reads` others; `writes=0` for a reduction to a few numbers.

        `written` says how many of all bytes that are moved are results, where reads and writes do not tell. With `warm`
        operands and results the L2 has all of them; `share` says how much of a stream's bandwidth is reached.
        """
        _check(elements)
        device = self.device
        moved = elements * (reads + writes) * element_bytes(precision)
        work = elements * (special / device.sm.special + operations / _lanes(device))
        start = float(device.sm.library.block_start + device.drain("lanes", special=special > 0))
        blocks = ceil(elements / (THREADS * 4))
        out = elements * writes * element_bytes(precision) if written is None else min(written, moved)
        grid = pass_grid(device, list(_rounds(device, blocks, work, moved - out, out, start, warm)), SPECIAL)
        grid = replace(grid, dram_rate=grid.dram_rate * share)
        cycles = max(moved / (device.l2_stream if warm else grid.dram_rate), work / device.count) + start
        done = Activity(elements * operations, "lanes", LANE_FORMAT, moved_bytes((grid,)), elements * special)
        closed = ClosedForm(cycles / device.clock_hz, 0.0 if warm else moved)
        return _cost(device, f"{name} {precision}", grid, done, closed, blocks, THREADS)


# Convolutions ---------------------------------------------------------------------------------------------------------


def as_gemm(shape: ConvShape) -> GemmShape:
    """The matrix product behind a convolution, one for each group."""
    return GemmShape(shape.batch * prod(shape.out), shape.co // shape.groups, shape.depth, shape.groups)


def _touched(shape: ConvShape, channels_last: bool) -> float:
    """Elements of the input that are read at all: a stride wider than the filter skips some.

    It skips whole rows; columns only where the channels of each lie together, since sectors hold several of a row.
    """
    rows, columns = (min(1.0, window / stride) for window, stride in zip(shape.window, shape.stride, strict=True))
    return shape.batch * shape.ci * prod(shape.image) * rows * (columns if channels_last else 1.0)


def _halo(shape: ConvShape) -> int:
    """Output pixels on either side whose part of the input one pixel needs as well."""
    reach = shape.dilation[0] * (shape.window[0] - 1)
    rows = max(shape.padding[0], reach - shape.padding[0])
    return ceil(rows / shape.stride[0]) * shape.out[1]


# Passes over rows and elements ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowKernel:
    """How a kernel goes over rows."""

    name: str
    passes: int
    """How often a row is read."""
    threads: int
    """That share a row."""
    phases: int
    """Times that the threads of a row wait for each other or for memory."""
    kept: float = 0.85
    """Share of the L2 up to which the rows under way, read and written, are found again."""
    special: float = 0.0
    """Exponentials per element."""
    operations: float = 2.0
    """Other operations per element."""
    to: str | None = None
    """Format of the results; as the operands if not given."""
    rounds: int = 0
    """Loads, one after the other, in which a block goes over a row of its own."""

    def wait(self, device: Device, held: int) -> float:
        """Cycles that the rows under way wait in all: other blocks hide what is not stated for the library."""
        each = device.sm.library.row_latency
        if self.rounds and each is not None:
            return self.phases * self.rounds * float(each)
        return self.phases * device.memory_latency / held


def _rounds(
    device: Device, blocks: int, work: float, read: float, written: float, start: float, warm: bool
) -> Iterator[Portion]:
    """A stream in equal rounds over all SMs, each as many blocks as the SMs hold or a part of the whole.

    Only the first round's start is seen; nothing is read twice, so that all that is read comes from DRAM if the L2 is
    not warm.
    """
    held = occupancy(device, Footprint(THREADS, 32, 0)).blocks
    rounds = min(MOST_ROUNDS, ceil(blocks / (device.count * held)))
    sms = min(device.count, blocks)
    shares = [1 / rounds] * rounds
    reads, results = (whole_bytes(amount * share for share in shares) for amount in (read, written))
    counts = whole_bytes(blocks * share for share in shares)
    for number in range(rounds):
        yield Portion(
            count=sms,
            blocks=counts[number],
            before={} if number else {START: start},
            work=work / rounds / sms,
            l2_bytes=reads[number],
            dram_bytes=0 if warm else reads[number],
            write_bytes=results[number],
            kept_results=warm,
        )


def rowwise(
    device: Device, rows: int, columns: int, precision: str, kernel: RowKernel, warm: bool = False
) -> KernelCost:
    """A kernel that takes rows one by one, so many at a time as the SMs hold."""
    _check(rows * columns)
    row_bytes = columns * element_bytes(precision)
    out_bytes = columns * element_bytes(kernel.to or precision)
    held = occupancy(device, Footprint(max(kernel.threads, 128), 32, 0))
    each = max(1, 128 // kernel.threads)
    at_once = held.blocks * each * device.count
    missed = replay_rows(rows, row_bytes, out_bytes, kernel.passes, at_once, kernel.kept * device.l2.size)
    grid = _row_grid(device, rows, columns, precision, kernel, held.blocks, None if warm else missed)
    done = Activity(
        rows * columns * kernel.operations, "lanes", LANE_FORMAT, moved_bytes((grid,)), rows * columns * kernel.special
    )
    closed = _closed_rows(device, rows, columns, precision, kernel, held.blocks)
    return _cost(device, f"{kernel.name} {precision}", grid, done, closed, ceil(rows / each), max(kernel.threads, 128))


def _row_grid(
    device: Device, rows: int, columns: int, precision: str, kernel: RowKernel, held: int, missed: Missed | None
) -> BlockGrid:
    """Rows in waves, so many as the SMs hold at once; in each the threads of a row wait for each other."""
    row_bytes, out_bytes = columns * element_bytes(precision), columns * element_bytes(kernel.to or precision)
    each = max(1, 128 // kernel.threads)
    at_once = held * each * device.count
    sizes = [min(at_once, rows - first) for first in range(0, rows, at_once)]
    near = whole_bytes(size * row_bytes * kernel.passes for size in sizes)
    far = whole_bytes(missed.turns) if missed else [0] * len(sizes)
    out = whole_bytes(size * out_bytes for size in sizes)
    wait = kernel.wait(device, held)
    portions = []
    for number, size in enumerate(sizes):
        sms = min(device.count, ceil(size / each))
        before = {LATENCY: wait} if number else {START: _row_start(device, kernel), LATENCY: wait}
        work = size * columns * (kernel.special / device.sm.special + kernel.operations / _lanes(device)) / sms
        portions.append(
            Portion(
                sms, ceil(size / each), before, work, l2_bytes=near[number], dram_bytes=far[number],
                write_bytes=out[number], kept_results=missed is None,
            )
        )  # fmt: skip
    return pass_grid(device, portions, SPECIAL)


def _row_start(device: Device, kernel: RowKernel) -> float:
    """Cycles before the first and after the last row of a block."""
    return float(device.sm.library.block_start + device.drain("lanes", special=kernel.special > 0))


def _closed_rows(device: Device, rows: int, columns: int, precision: str, kernel: RowKernel, held: int) -> ClosedForm:
    """The longest part over all rows; second reads miss where the rows under way fill more than a share of the L2."""
    row_bytes, out_bytes = columns * element_bytes(precision), columns * element_bytes(kernel.to or precision)
    each = max(1, 128 // kernel.threads)
    at_once = held * each * device.count
    under_way = min(rows, at_once) * (row_bytes + out_bytes)
    lost = min(1.0, max(0.0, (under_way / device.l2.size - kernel.kept) / FADE))
    moved = rows * (row_bytes * (1 + (kernel.passes - 1) * lost) + out_bytes)
    work = rows * columns * (kernel.special / device.sm.special + kernel.operations / _lanes(device))
    longest = max(
        moved / device.stream_rate,
        rows * (row_bytes * kernel.passes + out_bytes) / device.l2_stream,
        work / min(device.count, ceil(rows / each)),
    )
    waits = ceil(rows / at_once) * kernel.wait(device, held)
    return ClosedForm((longest + waits + _row_start(device, kernel)) / device.clock_hz, moved)


def _lanes(device: Device) -> float:
    return device.fma_rate(LANE_FORMAT, "lanes")


def _check(elements: int) -> None:
    if elements < 1:
        raise InputError(f"a kernel needs at least one element, found {elements}")


def _cost(
    device: Device, name: str, grid: BlockGrid, activity: Activity, closed: ClosedForm, blocks: int, threads: int
) -> KernelCost:
    held = occupancy(device, Footprint(threads, 32, 0))
    return play_kernel(device, name, (grid,), activity, closed, blocks, held.blocks, occupancy=held)


def replay_rows(rows: int, row_bytes: float, out_bytes: float, passes: int, at_once: int, capacity: float) -> Missed:
    """Rows that are read several times by kernels that take so many at once, and written in the last pass.

    Rows under way advance together, sector by sector. From one pass to the next, a sector waits for all rows that are
    under way; before the last pass it also waits for the results that are written meanwhile.
    """
    found = []
    for first in range(0, rows, at_once):
        now = min(at_once, rows - first)
        whole, written = now * row_bytes, now * out_bytes
        middle = max(0, passes - 2) * (whole if whole > capacity else 0.0)
        if passes > 1 and whole + written > capacity:
            middle += whole * min(1.0, (whole + written - capacity) / written if written else 1.0)
        found.append(whole + middle)
    return Missed(tuple(found))
