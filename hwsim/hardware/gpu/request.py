"""What one memory instruction of a warp asks for: sectors and lines of global memory, wavefronts of shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwsim.hardware.gpu.device import Device
from hwsim.hardware.scratchpad import Scratchpad
from hwsim.trace.threads import WarpAccess


@dataclass(frozen=True)
class Request:
    """An instruction of an average warp."""

    sectors: float
    """Distinct sectors of global memory; 0 for shared memory."""
    lines: float
    """Distinct cache lines of global memory; 0 for shared memory."""
    wavefronts: float
    """Passes through the banks of shared memory; 0 for global memory."""
    ideal_wavefronts: float
    """Passes that its bytes would take without bank conflicts."""
    cycles: float
    """Cycles that it holds the load/store unit of an SM."""


def measure(device: Device, access: WarpAccess) -> Request:
    """A request of a kernel, the mean over the warps of a block."""
    if access.space == "shared":
        return _shared(device, access)
    sector, line = device.l1.sector_bytes, device.l1.line
    sectors = _mean([len(touched(row, access.nbytes, sector)) for row in access.lanes])
    lines = _mean([len(touched(row, access.nbytes, line)) for row in access.lanes])
    data = sectors * sector / device.l1_rate
    return Request(sectors, lines, 0.0, 0.0, max(_address_cycles(device), lines, data))


def touched(lanes: NDArray[np.int64], nbytes: int, unit: int) -> NDArray[np.int64]:
    """The distinct pieces of `unit` bytes that the lanes touch, in ascending order."""
    first, last = lanes // unit, (lanes + nbytes - 1) // unit
    return np.unique(np.concatenate([first, last]))


def wavefronts(shared: Scratchpad, lanes: NDArray[np.int64], nbytes: int) -> int:
    """Passes through the banks that an instruction takes.

    Lanes of 4 bytes go together; of 8 bytes in two halves and of 16 bytes in four quarters of the warp. Two
    neighbouring parts go together where each lane wants the same as the lane beside it, or as the second beside it. In
    each pass a bank delivers one word, to as many lanes as ask for it.
    """
    width = shared.spec.bank_width
    together = max(1, len(lanes) * width // max(nbytes, width))
    if together < len(lanes) and _in_pairs(lanes):
        together *= 2
    groups = (lanes[first : first + together] for first in range(0, len(lanes), together))
    return sum(shared.wavefronts(group.tolist(), nbytes) for group in groups)


def _in_pairs(lanes: NDArray[np.int64]) -> bool:
    number = np.arange(len(lanes))
    return any(bool((lanes == lanes[number ^ bit]).all()) for bit in (1, 2))


def _shared(device: Device, access: WarpAccess) -> Request:
    spec = device.shared
    shared = Scratchpad(spec, spec.name)
    counts = [wavefronts(shared, row, access.nbytes) for row in access.lanes]
    ideal = max(1.0, access.lanes.shape[1] * access.nbytes / (spec.banks * spec.bank_width))
    return Request(0.0, 0.0, _mean(counts), ideal, max(_address_cycles(device), _mean(counts)))


def _address_cycles(device: Device) -> float:
    """Cycles until the addresses of all lanes are known."""
    return device.sm.warp / device.sm.load_store


def _mean(counts: Sequence[int]) -> float:
    return sum(counts) / len(counts)
