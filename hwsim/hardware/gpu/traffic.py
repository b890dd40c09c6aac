"""Global memory as blocks really use it: warps through the L1 of their SM, SMs into the shared L2, and on to DRAM.

Blocks are handed out in the order of the grid, round after round over the SMs, and the blocks that run at once advance
step by step together. All SMs do alike: the L1 of one of them is walked, and what it lacks is asked of the L2 by every
one, each for its own blocks. Where all steps of all blocks are too many to walk, the first steps of the first wave
stand for the rest: the result says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwsim.hardware.gpu.device import Device
from hwsim.hardware.gpu.request import touched
from hwsim.hardware.gpu.sector_cache import SectorCache
from hwsim.hardware.hierarchy import Hierarchy
from hwsim.trace.threads import ThreadProgram, WarpAccess

MOST_SECTORS = 1_000_000
"""Sectors that are asked of the L2 before the rest is taken to be alike."""

TENSOR_SPACING = 1 << 34
"""Distance between tensors in the addresses of a replay."""


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
    sample = _Sample(device, program, loads, resident)
    slots = min(device.count * resident, program.blocks)
    blocks, steps = program.blocks, program.steps
    if sample.least_misses * steps * blocks > most_sectors:
        blocks = slots
        steps = max(1, min(steps, most_sectors // max(1, sample.least_misses * slots)))
    hierarchy = Hierarchy((device.l2,), device.dram, unit=device.sm.name)
    asked = missed = 0
    for first in range(0, blocks, slots):
        l1 = _make_l1(device, program, resident)
        for step in range(steps):
            missing = [
                sample.missing(l1, program.block_at(first + device.count * turn), step) for turn in range(resident)
            ]
            wave = range(first, min(first + slots, blocks))
            here = [sample.moved(missing[n // device.count % resident], program.block_at(n), step) for n in wave]
            asked += sum(sample.per_step for _ in wave)
            missed += sum(map(len, here))
            sectors = np.concatenate(here)
            sizes = np.full(len(sectors), sample.sector, np.uint16)
            hierarchy.feed(sectors.astype(np.uint64), np.zeros(len(sectors), np.bool_), sizes)
    dram = hierarchy.dram.counters.bytes_read
    scale = program.steps / (steps * blocks)
    return GlobalTraffic(
        l1_bytes=asked * sample.sector * scale,
        l2_bytes=missed * sample.sector * scale,
        dram_bytes=dram * scale,
        l1_hit_rate=1 - missed / asked,
        l2_hit_rate=1 - dram / max(1, missed * sample.sector),
        walked=steps * blocks / (program.steps * program.blocks),
    )


class _Sample:
    """The sectors of one step of a block, warp by warp, to be shifted to any block and step."""

    def __init__(self, device: Device, program: ThreadProgram, loads: Sequence[WarpAccess], resident: int) -> None:
        self.sector = device.l1.sector_bytes
        self._loads = loads
        tensors = list(dict.fromkeys(access.tensor for access in loads))
        pieces: list[NDArray[np.int64]] = []
        owners: list[NDArray[np.int64]] = []
        for access, row, time in _requests(program, loads):
            base = (tensors.index(access.tensor) + 1) * TENSOR_SPACING
            found = touched(row + access.stride * time, access.nbytes, self.sector) * self.sector + base
            pieces.append(found)
            owners.append(np.full(len(found), loads.index(access)))
        self._sectors, self._owner = np.concatenate(pieces), np.concatenate(owners)
        self.per_step = len(self._sectors)
        self.least_misses = len(np.unique(self._sectors))

    def missing(self, l1: SectorCache, block: tuple[int, int], step: int) -> NDArray[np.intp]:
        """Which of the sectors of a block's step the L1 does not have."""
        every = np.arange(self.per_step)
        return np.flatnonzero(l1.misses(self.moved(every, block, step)))

    def moved(self, chosen: NDArray[np.intp], block: tuple[int, int], step: int) -> NDArray[np.int64]:
        """Some of the sectors, where a block's step has them."""
        shifts = [a.block[0] * block[0] + a.block[1] * block[1] + a.step * step for a in self._loads]
        moved = self._sectors[chosen] + np.array(shifts, np.int64)[self._owner[chosen]]
        return np.asarray(moved // self.sector * self.sector)


def _make_l1(device: Device, program: ThreadProgram, resident: int) -> SectorCache:
    """L1 and shared memory are one memory: what the blocks do not take of it is cache."""
    spec = device.l1
    shared = resident * (program.shared_bytes + (device.sm.shared_reserved or 0)) if program.shared_bytes else 0
    size = max(spec.size, spec.size + device.shared.size - shared)
    return SectorCache(size, spec.line, spec.sector_bytes, spec.way_count)


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
