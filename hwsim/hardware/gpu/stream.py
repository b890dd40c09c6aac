"""Kernels that only pass over memory: element-wise operations and reductions, softmax and layer normalisation.

Element-wise kernels stream. Kernels over rows read a row more than once: from registers where a warp can keep it,
from the L2 where the rows that are under way fit there, from DRAM otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hwsim.errors import InputError
from hwsim.hardware.gpu.block import DRAM, L2, LATENCY, START
from hwsim.hardware.gpu.cost import SPECIAL, KernelCost, bound_of, finish
from hwsim.hardware.gpu.device import Device
from hwsim.hardware.gpu.format import element_bytes
from hwsim.hardware.gpu.occupancy import Footprint, occupancy
from hwsim.hardware.gpu.power import Activity

LANE_FORMAT = "fp32"
"""What element-wise arithmetic is done in."""
FADE = 0.5
"""Share of the L2 over which hits fade, once the rows under way fill more of it than a kernel's `kept`."""
THREADS = 256


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


def elementwise(
    device: Device,
    elements: int,
    precision: str,
    reads: int = 1,
    writes: int = 1,
    operations: float = 1.0,
    special: float = 0.0,
    name: str = "elementwise",
) -> KernelCost:
    """Every element computed on its own from `reads` others; `writes=0` for a reduction to a few numbers."""
    _check(elements)
    moved = elements * (reads + writes) * element_bytes(precision)
    parts = {
        DRAM: moved / device.stream_rate,
        SPECIAL: elements * (special / device.sm.special + operations / _lanes(device)) / device.count,
        START: float(device.sm.library.block_start),
    }
    cycles = max(parts[DRAM], parts[SPECIAL]) + parts[START]
    activity = Activity(elements * operations, "lanes", LANE_FORMAT, moved, elements * special)
    blocks = ceil(elements / (THREADS * 4))
    return _cost(device, f"{name} {precision}", cycles, parts, activity, moved, blocks, THREADS)


def reduction(device: Device, elements: int, precision: str) -> KernelCost:
    """A sum over everything: read once, partial sums of each block added by a second, tiny step."""
    return elementwise(device, elements, precision, writes=0, name="reduction")


def softmax(device: Device, rows: int, columns: int, precision: str) -> KernelCost:
    """Softmax of each row: a warp keeps a row of up to 8 KiB in registers, longer rows are read three times."""
    if columns * element_bytes(precision) <= 8192 and columns <= 2048:
        kernel = RowKernel("softmax", passes=1, threads=32, phases=1, special=1.0, operations=4.0)
    else:
        kernel = RowKernel(
            "softmax", 3, _whole_threads(device, columns, precision), 3, 0.35, special=1.0, operations=4.0
        )
    return rowwise(device, rows, columns, precision, kernel)


def layernorm(device: Device, rows: int, columns: int, precision: str) -> KernelCost:
    """Layer normalisation: mean and variance in one pass over a row, the result in a second."""
    return rowwise(device, rows, columns, precision, RowKernel("layernorm", 2, 128, 2, operations=6.0))


def quantize(device: Device, rows: int, columns: int, precision: str, to: str) -> KernelCost:
    """Rows scaled by their largest element and rounded to a narrower format: one pass to find it, one to round."""
    kernel = RowKernel("quantize", 2, 128, 2, operations=2.0, to=to)
    return rowwise(device, rows, columns, precision, kernel)


def rowwise(device: Device, rows: int, columns: int, precision: str, kernel: RowKernel) -> KernelCost:
    """A kernel that takes rows one by one, so many at a time as the SMs hold."""
    _check(rows * columns)
    row_bytes = columns * element_bytes(precision)
    out_bytes = columns * element_bytes(kernel.to or precision)
    held = occupancy(device, Footprint(max(kernel.threads, 128), 32, 0))
    at_once = held.blocks * max(1, 128 // kernel.threads)
    missed = _missed(device, min(rows, at_once * device.count) * (row_bytes + out_bytes), kernel.kept)
    moved = rows * (row_bytes * (1 + (kernel.passes - 1) * missed) + out_bytes)
    through_l2 = rows * (row_bytes * kernel.passes + out_bytes)
    waves = ceil(rows / (at_once * device.count))
    operations = rows * columns
    parts = {
        DRAM: moved / device.stream_rate,
        L2: through_l2 / device.l2_rate,
        LATENCY: waves * kernel.phases * device.memory_latency / held.blocks,
        SPECIAL: operations
        * (kernel.special / device.sm.special + kernel.operations / _lanes(device))
        / min(device.count, ceil(rows / max(1, 128 // kernel.threads))),
        START: float(device.sm.library.block_start),
    }
    cycles = max(parts[DRAM], parts[L2], parts[SPECIAL]) + parts[LATENCY] + parts[START]
    activity = Activity(operations * kernel.operations, "lanes", LANE_FORMAT, moved, operations * kernel.special)
    blocks = ceil(rows / max(1, 128 // kernel.threads))
    name = f"{kernel.name} {precision}"
    return _cost(device, name, cycles, parts, activity, through_l2, blocks, max(kernel.threads, 128))


def _missed(device: Device, working_set: float, kept: float) -> float:
    """Share of second reads that go to DRAM."""
    return min(1.0, max(0.0, (working_set / device.l2.size - kept) / FADE))


def _whole_threads(device: Device, columns: int, precision: str) -> int:
    """A power of two of threads with 16 bytes each, up to a whole block."""
    wanted = columns * element_bytes(precision) / 16
    threads = 128
    while threads < wanted and threads < device.sm.block_threads:
        threads *= 2
    return threads


def _lanes(device: Device) -> float:
    return device.fma_rate(LANE_FORMAT, "lanes")


def _check(elements: int) -> None:
    if elements < 1:
        raise InputError(f"a kernel needs at least one element, found {elements}")


def _cost(
    device: Device,
    name: str,
    cycles: float,
    parts: dict[str, float],
    activity: Activity,
    l2_bytes: float,
    blocks: int,
    threads: int,
) -> KernelCost:
    held = occupancy(device, Footprint(threads, 32, 0))
    seconds, full_clock, power = finish(device, cycles, activity)
    return KernelCost(
        name=name,
        seconds=seconds,
        full_clock_seconds=full_clock,
        launches=1,
        blocks=blocks,
        resident=held.blocks,
        waves=blocks / (device.count * held.blocks),
        bound=bound_of(parts, power),
        parts=parts,
        activity=activity,
        l2_bytes=l2_bytes,
        power=power,
        occupancy=held,
    )
