"""The cost of a hand-written kernel: its instructions are measured, its memory replayed, its blocks laid out in waves.

In a step of the main loop, an SM is held by whichever is longest: multiply-adds on its lanes or tensor cores, memory
instructions on its load/store unit, or the issue of all instructions. A block alone also waits: for its operands to
arrive, for its warps to meet at barriers. Other blocks on the same SM hide that wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hwsim.hardware.gpu.block import LATENCY, MATH, BlockCost, waves_of
from hwsim.hardware.gpu.cost import ISSUE, MEMORY_UNIT, KernelCost, bound_of, finish, parts_of
from hwsim.hardware.gpu.device import Device
from hwsim.hardware.gpu.occupancy import Footprint, Occupancy, occupancy
from hwsim.hardware.gpu.power import Activity
from hwsim.hardware.gpu.request import Request, measure
from hwsim.hardware.gpu.traffic import MOST_SECTORS, GlobalTraffic, replay
from hwsim.trace.threads import ThreadProgram, WarpAccess

BARRIER_CYCLES = 20
"""From the last warp's arrival at a barrier to the first instruction after it."""


@dataclass(frozen=True)
class StepParts:
    """Cycles of one step of a block, by what holds the SM."""

    fma: float
    memory: float
    issue: float
    wait: float
    """Cycles that a block alone on its SM adds to the longest of them."""

    @property
    def busy(self) -> float:
        return max(self.fma, self.memory, self.issue)

    @property
    def unit(self) -> str:
        """What holds the SM longest."""
        return max((self.fma, MATH), (self.memory, MEMORY_UNIT), (self.issue, ISSUE))[1]


@dataclass(frozen=True)
class ProgramCost:
    """A hand-written kernel on a GPU."""

    cost: KernelCost
    step: StepParts
    requests: tuple[tuple[WarpAccess, Request], ...]
    """Each access of the main loop with what one instruction of it asks for."""
    traffic: GlobalTraffic
    occupancy: Occupancy

    @property
    def sectors_per_request(self) -> float:
        """Sectors of a global load, on average; 4 is the least for 32 words."""
        pairs = [(r.sectors, a.times) for a, r in self.requests if a.space == "global" and not a.write]
        return sum(s * t for s, t in pairs) / max(1, sum(t for _, t in pairs))

    @property
    def bank_conflicts(self) -> float:
        """Passes through shared memory beyond those that the bytes need, as a share of all."""
        pairs = [(r.wavefronts, r.ideal_wavefronts, a.times) for a, r in self.requests if a.space == "shared"]
        total = sum(w * t for w, _, t in pairs)
        return sum((w - i) * t for w, i, t in pairs if w > i) / total if total else 0.0


def program_cost(device: Device, program: ThreadProgram, most_sectors: int = MOST_SECTORS) -> ProgramCost:
    """What a program costs, with its launch left out."""
    footprint = Footprint(program.threads, program.registers, program.shared_bytes)
    held = occupancy(device, footprint, program.name)
    resident = min(held.blocks, ceil(program.blocks / device.count))
    requests = tuple((access, measure(device, access)) for access in program.loop)
    traffic = replay(device, program, resident, most_sectors)
    step = _step(device, program, requests, traffic)
    stored = [(access, measure(device, access)) for access in program.last]
    written = float(sum(access.lanes.size * access.nbytes * access.times for access in program.last))
    after = sum(r.cycles * a.times for a, r in stored) * program.warps
    block = BlockCost(
        steps=program.steps,
        step_math=step.busy,
        step_latency=step.wait,
        l2_bytes=traffic.l2_bytes,
        dram_bytes=traffic.dram_bytes,
        write_bytes=written,
        start_cycles=device.memory_latency + after,
        flight_bytes=_flight_bytes(program),
    )
    waves = waves_of(device, block, program.blocks, held.blocks)
    cycles = sum(wave.total_cycles for wave in waves)
    moved = program.blocks * (traffic.dram_bytes + written)
    activity = Activity(program.fma_total, program.unit, program.fmt, moved)
    seconds, full_clock, power = finish(device, cycles, activity)
    parts = parts_of(waves)
    parts[step.unit] = parts.pop(MATH)
    cost = KernelCost(
        name=program.name,
        seconds=seconds,
        full_clock_seconds=full_clock,
        launches=1,
        blocks=program.blocks,
        resident=held.blocks,
        waves=program.blocks / (device.count * held.blocks),
        bound=bound_of(_exposed(parts, step.unit), power),
        parts=parts,
        activity=activity,
        l2_bytes=program.blocks * traffic.l2_bytes,
        power=power,
        block=block,
        occupancy=held,
    )
    return ProgramCost(cost, step, requests, traffic, held)


def _exposed(parts: dict[str, float], unit: str) -> dict[str, float]:
    """The same parts, with the wait of a block alone counted without the work that it waits between."""
    return {**parts, LATENCY: max(0.0, parts[LATENCY] - parts[unit])}


def _step(
    device: Device, program: ThreadProgram, requests: tuple[tuple[WarpAccess, Request], ...], traffic: GlobalTraffic
) -> StepParts:
    sm, warps = device.sm, program.warps
    memory = warps * sum(request.cycles * access.times for access, request in requests)
    fma = warps * program.fma * sm.warp / device.fma_rate(program.fmt, program.unit)
    instructions = program.other + sum(access.times for access in program.loop)
    instructions += program.fma if program.unit == "lanes" else 0
    issue = warps * instructions / sm.schedulers
    return StepParts(fma, memory, issue, _wait(device, program, requests, traffic))


def _wait(
    device: Device, program: ThreadProgram, requests: tuple[tuple[WarpAccess, Request], ...], traffic: GlobalTraffic
) -> float:
    """Cycles that one block adds to its own work in a step: operands under way, barriers, dependent results."""
    barriers = program.barriers * BARRIER_CYCLES
    if program.overlapped:
        return float(barriers)
    groups = max((ceil(a.times / program.unrolled) for a, _ in requests if a.space == "global"), default=0)
    far = _load_latency(device, traffic)
    if program.barriers:
        # The whole block waits for its operands once in a step, then computes.
        return far + barriers
    # Each warp waits by itself, and meanwhile the others of its block go on.
    return max(0.0, groups * far / max(1, program.warps))


def _load_latency(device: Device, traffic: GlobalTraffic) -> float:
    """Cycles until a load arrives, by where it is found."""
    near = device.latency_of(device.l1)
    middle = device.latency_of(device.l2)
    miss = 1 - traffic.l1_hit_rate
    deep = miss * (1 - traffic.l2_hit_rate)
    return near + miss * (middle - near) + deep * (device.memory_latency - middle)


def _flight_bytes(program: ThreadProgram) -> float:
    """Bytes of loads that a block can have under way."""
    loads = [access for access in program.accesses("global") if not access.write]
    together = program.unrolled if not program.barriers else max((a.times for a in loads), default=1)
    return float(sum(a.lanes.size * a.nbytes * min(a.times, together) for a in loads))
