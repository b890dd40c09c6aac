"""What kernels find in the L1 and the L2: tiles of library kernels, and sectors of hand-written ones.

A library's blocks are handed out in its order, so many at a time as the SMs hold: a turn. The blocks of a turn advance
step by step together, and in each step every block loads one tile of each of its panels: of the rows of A and the
columns of B that meet in its output tile, or of the keys of its head. Blocks that share a panel load the same tile in
the same step, and one of them fetches it.

The L2 forgets the bytes that were used longest ago. A tile is found there if no more than the L2 holds was touched
since its last use (its reuse distance, itself included). All turns walk all steps of their panels, so that the distance
is a straight line over the steps of a panel, and the steps that hit are counted without walking them: tile by tile the
result is that of a full replay. Turns beyond `MOST_TURNS` are taken to be like the later half of those that were
walked, and the result says so.

A hand-written kernel is a grid of equal blocks. A block runs a main loop of equal steps; in a step every warp makes the
same accesses, each of its 32 lanes to an address of its own. Where block, step and repetition shift an access by a
fixed distance, one pattern of lanes and a few strides describe all of them. Loads go through the L1 of their SM into
the shared L2, and on to DRAM. Blocks are handed out round after round over the SMs, and those that run at once advance
together. All SMs do alike: the L1 of one of them is walked, and what it lacks is asked of the L2 by every one, each for
its own blocks. Where all steps of all blocks are too many to walk, the first steps of the first wave stand for the
rest, and the result says so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hwsim.jit import compiled
from hwsim.spec.memory import ScratchpadSpec
from hwsim.targets.gpu.device import Device

MOST_TURNS = 512
"""Turns that are walked before the rest is taken to be alike."""
BEFORE = -1
"""The turn in which operands that lie in the L2 already were used last."""


@dataclass(frozen=True)
class Turn:
    """What the blocks that run at once touch."""

    panels: tuple[int, ...]
    """Each once, in the order of a step: ascending."""
    passing: float = 0.0
    """Bytes that pass the L2 once, and are not found again: results, operands of one block alone."""
    share: float = 1.0
    """Part of each panel that is walked."""


@dataclass(frozen=True)
class Missed:
    """Bytes that the L2 had to fetch, turn by turn."""

    turns: tuple[float, ...]
    walked: float = 1.0
    """Share of the turns that was walked; 1 is a full replay."""

    @property
    def total(self) -> float:
        return sum(self.turns)


def replay_turns(
    turns: int,
    turn_at: Callable[[int], Turn],
    panel_bytes: Callable[[int], float],
    steps: int,
    capacity: float,
    warm: Iterable[int] = (),
    most: int = MOST_TURNS,
) -> Missed:
    """Walk the turns of a kernel through an L2 of so many bytes; panels that are `warm` lie there before it starts."""
    stack = _PanelStack(panel_bytes, steps, capacity)
    if held := tuple(sorted(warm)):
        stack.walk(BEFORE, Turn(held))
    walked = min(turns, most)
    missed = [stack.walk(number, turn_at(number)) for number in range(walked)]
    if walked < turns:
        later = missed[walked // 2 :]
        missed += [sum(later) / len(later)] * (turns - walked)
    return Missed(tuple(missed), walked / turns)


class _PanelStack:
    """Panels in the order of their last use, and the bytes of one step of each."""

    def __init__(self, panel_bytes: Callable[[int], float], steps: int, capacity: float) -> None:
        self._panel_bytes = panel_bytes
        self._steps = steps
        self._capacity = capacity
        self._last: dict[int, int] = {}
        self._used: OrderedDict[int, dict[int, float]] = OrderedDict()
        """The panels that each turn was the last to use, the latest turn at the end; what is lost is left out."""
        self._passed: dict[int, float] = {}

    def walk(self, number: int, turn: Turn) -> float:
        """The bytes that a turn misses."""
        tiles = {panel: self._panel_bytes(panel) / self._steps for panel in turn.panels}
        groups: dict[int, list[int]] = {}
        missed = 0.0
        for panel in turn.panels:
            before = self._last.get(panel)
            if before is not None and before in self._used:
                groups.setdefault(before, []).append(panel)
            else:
                missed += self._steps * tiles[panel]
        newer = passed = 0.0
        for before in reversed(self._used):
            passed += self._passed[before]
            if before in groups:
                missed += self._again(before, groups[before], tiles, newer, passed)
            newer += sum(self._used[before].values())
        self._note(number, turn, tiles)
        return missed * turn.share

    def _again(self, before: int, panels: Sequence[int], tiles: dict[int, float], newer: float, passed: float) -> float:
        """Bytes missed of panels whose last use was one turn; `newer` bytes a step were used after that turn."""
        held = self._used[before]
        whole = sum(held.values())
        upto = dict(zip(held, accumulate(held.values()), strict=True))
        older = 0.0
        missing = []
        wanted = iter(panels)
        panel = next(wanted, None)
        for other, size in tiles.items():
            if other == panel:
                missing.append((size, newer + whole - upto[other] + older))
                panel = next(wanted, None)
            if self._last.get(other, BEFORE - 1) <= before:
                older += size
        early, late, room = newer + whole, newer + older, self._capacity - passed
        return sum(
            (self._steps - _steps_within(self._steps, early, late, room - now - size)) * size for size, now in missing
        )

    def _note(self, number: int, turn: Turn, tiles: dict[int, float]) -> None:
        """These panels were used last by this turn; turns that nothing can be found of any more are forgotten."""
        for panel in turn.panels:
            before = self._last.get(panel)
            if before is not None and before in self._used:
                self._used[before].pop(panel, None)
            self._last[panel] = number
        self._used[number] = tiles
        self._passed[number] = turn.passing
        held = 0.0
        for each in reversed(list(self._used)):
            if held > self._capacity:
                del self._used[each]
            else:
                held += self._passed[each] + self._steps * sum(self._used[each].values())


def _steps_within(steps: int, early: float, late: float, room: float) -> int:
    """Steps s with early * (steps - 1 - s) + late * s <= room."""
    first, last = early * (steps - 1), late * (steps - 1)
    if max(first, last) <= room:
        return steps
    if min(first, last) > room:
        return 0
    slope = abs(late - early)
    return min(steps, int((room - min(first, last)) / slope + 1e-9) + 1)


def whole_bytes(amounts: Iterable[float]) -> tuple[int, ...]:
    """Amounts as whole bytes, whose sum is the sum rounded."""
    edges = [round(total) for total in accumulate(amounts)]
    return tuple(end - begin for begin, end in zip([0, *edges], edges, strict=False))


# The L1 of one SM -----------------------------------------------------------------------------------------------------


class SectorCache:
    """Lines of `line` bytes in sectors, `ways` of them in each set; sets by the bits of the line folded together."""

    def __init__(self, size: int, line: int, sector: int, ways: int) -> None:
        lines = max(1, size // line)
        self.ways = min(ways, lines)
        self.sets = max(1, lines // self.ways)
        self.line, self.sector = line, sector
        self._tags = np.full((self.sets, self.ways), -1, np.int64)
        self._valid = np.zeros((self.sets, self.ways), np.int64)
        self._used = np.zeros((self.sets, self.ways), np.int64)
        self._clock = 0

    def misses(self, addresses: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each address of a sector in turn, whether it had to be fetched."""
        found = np.zeros(len(addresses), np.bool_)
        self._clock = _walk(
            addresses, found, self._tags, self._valid, self._used, self._clock, self.line, self.sector, self.sets
        )
        return found


@compiled
def _walk(
    addresses: NDArray[np.int64],
    found: NDArray[np.bool_],
    tags: NDArray[np.int64],
    valid: NDArray[np.int64],
    used: NDArray[np.int64],
    clock: int,
    line_bytes: int,
    sector_bytes: int,
    sets: int,
) -> int:
    ways = tags.shape[1]
    for number in range(len(addresses)):
        line = addresses[number] // line_bytes
        bit = 1 << (addresses[number] % line_bytes // sector_bytes)
        folded = (line ^ (line >> 7) ^ (line >> 14) ^ (line >> 21)) % sets
        clock += 1
        place = -1
        oldest = 0
        for way in range(ways):
            if tags[folded, way] == line:
                place = way
                break
            if used[folded, way] < used[folded, oldest]:
                oldest = way
        if place < 0:
            place = oldest
            tags[folded, place] = line
            valid[folded, place] = 0
        if not valid[folded, place] & bit:
            valid[folded, place] |= bit
            found[number] = True
        used[folded, place] = clock
    return clock


# What the threads of a kernel do --------------------------------------------------------------------------------------

Space = Literal["global", "shared"]


@dataclass(frozen=True, eq=False)
class WarpAccess:
    """One load or store instruction of every warp of a block."""

    tensor: str
    space: Space
    lanes: NDArray[np.int64]
    """Byte offset of each lane (column) of each warp (row), in the first block and step."""
    nbytes: int
    """Bytes of one lane."""
    write: bool = False
    times: int = 1
    """How often it runs in a step."""
    stride: int = 0
    """Bytes from one time to the next."""
    step: int = 0
    """Bytes from one step of the main loop to the next."""
    block: tuple[int, int] = (0, 0)
    """Bytes from one block to the next along the grid's first and second axis."""


@dataclass(frozen=True)
class ThreadProgram:
    """A grid of blocks, and what one block does in each step of its main loop."""

    name: str
    grid: tuple[int, int]
    """Blocks along the first axis, which is handed out first, and along the second."""
    threads: int
    registers: int
    """Of one thread."""
    shared_bytes: int
    steps: int
    loop: tuple[WarpAccess, ...]
    """Accesses of one step, in program order."""
    last: tuple[WarpAccess, ...]
    """Accesses after the main loop: the results."""
    fma: int
    """Multiply-add instructions of one warp in a step; on tensor cores those of its lanes put together."""
    other: int
    """Instructions of one warp in a step that neither multiply nor move data: addresses, loop control."""
    chain: int
    """Multiply-adds of a step that wait for each other: those of one sum."""
    barriers: int = 0
    """How often the warps of a block wait for each other in a step."""
    unit: Literal["lanes", "tensor"] = "lanes"
    overlapped: bool = False
    """Whether the operands of the next step are fetched while this one is computed (asynchronous copies)."""
    unrolled: int = 1
    """Times of an access whose results a warp waits for together."""
    fmt: str = "fp32"

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def warps(self) -> int:
        return -(-self.threads // 32)

    @property
    def fma_total(self) -> int:
        """Multiply-adds of all threads."""
        return self.blocks * self.steps * self.warps * self.fma * 32

    def block_at(self, number: int) -> tuple[int, int]:
        """The place in the grid of the block that is handed out as the given one."""
        return number % self.grid[0], number // self.grid[0]

    def accesses(self, space: Space) -> Iterator[WarpAccess]:
        """Accesses of the main loop to a memory space."""
        return (access for access in self.loop if access.space == space)


# What one instruction asks for ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WarpRequest:
    """An instruction of an average warp."""

    sectors: float
    """Distinct sectors of global memory; 0 for shared memory."""
    wavefronts: float
    """Passes through the banks of shared memory; 0 for global memory."""
    ideal_wavefronts: float
    """Passes that its bytes would take without bank conflicts."""
    cycles: float
    """Cycles that it holds the load/store unit of an SM."""


def measure(device: Device, access: WarpAccess) -> WarpRequest:
    """A request of a kernel, the mean over the warps of a block."""
    if access.space == "shared":
        return _shared(device, access)
    sector, line = device.l1.sector_bytes, device.l1.line
    sectors = _mean([len(touched(row, access.nbytes, sector)) for row in access.lanes])
    lines = _mean([len(touched(row, access.nbytes, line)) for row in access.lanes])
    data = sectors * sector / device.l1_rate
    return WarpRequest(sectors, 0.0, 0.0, max(_address_cycles(device), lines, data))


def touched(lanes: NDArray[np.int64], nbytes: int, unit: int) -> NDArray[np.int64]:
    """The distinct pieces of `unit` bytes that the lanes touch, in ascending order."""
    first, last = lanes // unit, (lanes + nbytes - 1) // unit
    return np.unique(np.concatenate([first, last]))


def wavefronts(shared: ScratchpadSpec, lanes: NDArray[np.int64], nbytes: int) -> int:
    """Passes through the banks that an instruction takes.

    Lanes of 4 bytes go together; of 8 bytes in two halves and of 16 bytes in four quarters of the warp. Two
    neighbouring parts go together where each lane wants the same as the lane beside it, or as the second beside it. In
    each pass a bank delivers one word, to as many lanes as ask for it.
    """
    width = shared.bank_bytes
    together = max(1, len(lanes) * width // max(nbytes, width))
    if together < len(lanes) and _in_pairs(lanes):
        together *= 2
    groups = (lanes[first : first + together] for first in range(0, len(lanes), together))
    return sum(bank_passes(shared, group, nbytes) for group in groups)


def bank_passes(shared: ScratchpadSpec, lanes: NDArray[np.int64], nbytes: int) -> int:
    """Passes of lanes that go together.

    Lanes in the same bank wait for each other unless they want the same word, which is read once for all.
    """
    width = shared.bank_bytes
    first, last = lanes // width, (lanes + nbytes - 1) // width
    words = first[:, None] + np.arange(int((last - first).max()) + 1)
    wanted = np.unique(words[words <= last[:, None]])
    return int(np.bincount(wanted % shared.bank_count).max())


def _in_pairs(lanes: NDArray[np.int64]) -> bool:
    number = np.arange(len(lanes))
    return any(bool((lanes == lanes[number ^ bit]).all()) for bit in (1, 2))


def _shared(device: Device, access: WarpAccess) -> WarpRequest:
    spec = device.shared
    counts = [wavefronts(spec, row, access.nbytes) for row in access.lanes]
    ideal = max(1.0, access.lanes.shape[1] * access.nbytes / (spec.bank_count * spec.bank_bytes))
    data = _mean([len(np.unique(row)) for row in access.lanes]) * access.nbytes / device.shared_rate
    return WarpRequest(0.0, _mean(counts), ideal, max(_address_cycles(device), _mean(counts), data))


def _address_cycles(device: Device) -> float:
    """Cycles until the addresses of all lanes are known."""
    return device.sm.warp / device.sm.load_store


def _mean(counts: Sequence[int]) -> float:
    return sum(counts) / len(counts)


# Sectors of a hand-written kernel -------------------------------------------------------------------------------------

MOST_SECTORS = 1_000_000
"""Sectors that are asked of the L2 before the rest is taken to be alike."""

TENSOR_SPACING = 1 << 34
"""Distance between tensors in the addresses of a replay."""


@dataclass(frozen=True)
class GlobalTraffic:
    """Bytes of one block over all its steps, and how they were found."""

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
    from hwsim.memory.hierarchy import Hierarchy  # compiled: only where sectors are walked

    loads = [access for access in program.accesses("global") if not access.write]
    if not loads:
        return GlobalTraffic(0.0, 0.0, 0.0, 0.0, 1.0)
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
