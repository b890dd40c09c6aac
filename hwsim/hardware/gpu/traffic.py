"""Global memory as blocks really use it: warps through the L1 of their SM, SMs into the shared L2, and on to DRAM.

Blocks are handed out in the order of the grid, round after round over the SMs, and the blocks that run at once advance
step by step together. Where all steps of all blocks are too many to walk, the first steps of the first wave are walked
and stand for the rest: the result says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwsim.hardware.gpu.device import Device
from hwsim.hardware.gpu.request import touched
from hwsim.hardware.hierarchy import Hierarchy
from hwsim.spec.memory import CacheSpec
from hwsim.trace.threads import ThreadProgram, WarpAccess

MOST_SECTORS = 6_000_000
"""Sectors that are walked before the rest is taken to be alike."""

TENSOR_SPACING = 1 << 32
"""Distance between tensors in the addresses of a replay; none is larger."""


@dataclass(frozen=True)
class GlobalTraffic:
    """Bytes of one block over all its steps, and how they were found."""

    l1_bytes: float
    """Sectors that the warps ask for."""
    l2_bytes: float
    """Sectors that the L1 does not have."""
    dram_bytes: float
    """Sectors that the L2 does not have either."""
    l1_hit_rate: float
    l2_hit_rate: float
    walked: float
    """Share of the kernel's steps that was walked; 1 is a full replay."""


def replay(device: Device, program: ThreadProgram, resident: int, most_sectors: int = MOST_SECTORS) -> GlobalTraffic:
    """Walk the loads of the main loop."""
    loads = [access for access in program.accesses("global") if not access.write]
    if not loads:
        return GlobalTraffic(0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    addresses = _Addresses(device, program, loads)
    slots = min(device.count * resident, program.blocks)
    fully = addresses.per_step * program.steps * program.blocks <= most_sectors
    steps = program.steps
    blocks = program.blocks
    if not fully:
        blocks = slots
        steps = max(1, min(program.steps, most_sectors // max(1, addresses.per_step * slots)))
    hierarchy = Hierarchy(_caches(device), device.dram, cores=device.count, unit=device.sm.name)
    for first in range(0, blocks, slots):
        for step in range(steps):
            for number in range(first, min(first + slots, blocks)):
                sectors = addresses.of(program.block_at(number), step)
                hierarchy.feed(sectors, addresses.reads, addresses.sizes, number % device.count)
    levels = hierarchy.level_counters()
    l1, l2 = levels[device.l1.name], levels[device.l2.name]
    dram = hierarchy.dram.counters
    scale = program.steps / (steps * blocks)
    return GlobalTraffic(
        l1_bytes=l1.bytes_read * scale,
        l2_bytes=l2.bytes_read * scale,
        dram_bytes=dram.bytes_read * scale,
        l1_hit_rate=1 - l2.bytes_read / max(1, l1.bytes_read),
        l2_hit_rate=1 - dram.bytes_read / max(1, l2.bytes_read),
        walked=steps * blocks / (program.steps * program.blocks),
    )


class _Addresses:
    """The sectors of one step of a block, warp by warp, to be shifted to any block and step."""

    def __init__(self, device: Device, program: ThreadProgram, loads: Sequence[WarpAccess]) -> None:
        sector = device.l1.sector_bytes
        tensors = list(dict.fromkeys(access.tensor for access in loads))
        pieces: list[NDArray[np.int64]] = []
        owners: list[NDArray[np.int64]] = []
        for access, row, time in _requests(program, loads):
            base = (tensors.index(access.tensor) + 1) * TENSOR_SPACING
            found = touched(row + access.stride * time, access.nbytes, sector) * sector + base
            pieces.append(found)
            owners.append(np.full(len(found), loads.index(access)))
        self._sectors = np.concatenate(pieces)
        self._owner = np.concatenate(owners)
        self._loads = loads
        self.per_step = len(self._sectors)
        self.reads = np.zeros(self.per_step, np.bool_)
        self.sizes = np.full(self.per_step, sector, np.uint16)

    def of(self, block: tuple[int, int], step: int) -> NDArray[np.uint64]:
        shifts = np.array(
            [a.block[0] * block[0] + a.block[1] * block[1] + a.step * step for a in self._loads], np.int64
        )
        moved = self._sectors + shifts[self._owner]
        return (moved // self.sizes[0].astype(np.int64) * self.sizes[0].astype(np.int64)).astype(np.uint64)


def _requests(
    program: ThreadProgram, loads: Sequence[WarpAccess]
) -> Iterator[tuple[WarpAccess, NDArray[np.int64], int]]:
    """Instructions in the order in which the warps of a block take turns: each issues what is unrolled, then waits."""
    most = max(access.times for access in loads)
    for first in range(0, most, program.unrolled):
        for warp in range(program.warps):
            for time in range(first, min(first + program.unrolled, most)):
                for access in loads:
                    if time < access.times:
                        yield access, access.lanes[warp], time


def _caches(device: Device) -> tuple[CacheSpec, CacheSpec]:
    return device.l1, device.l2
