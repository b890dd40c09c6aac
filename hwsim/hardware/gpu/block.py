"""What one block of a kernel costs, and how long a wave of equal blocks takes.

A block is a loop of steps: each step loads a tile of operands and multiplies it. Loads of later steps run while
this one is multiplied, so a wave's loop takes the longest of its products, its traffic from the L2 and its traffic
from DRAM. What a block does before its first and after its last product does not overlap with its own loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from hwsim.hardware.gpu.device import Device

MATH, LATENCY, L2, DRAM, WRITE, START = "math", "step latency", "l2", "dram", "write", "start"
"""The parts of a wave's time, by name."""


@dataclass(frozen=True)
class BlockCost:
    """One block, without a clock: cycles of work and bytes to move."""

    steps: int
    step_math: float
    """Cycles that one step keeps the SM's units busy."""
    step_latency: float
    """Cycles of one step in which a block alone on its SM keeps them idle."""
    l2_bytes: float
    """Read through the L2, whatever lies there already."""
    dram_bytes: float
    """The part of it that comes from DRAM."""
    write_bytes: float
    start_cycles: float
    flight_bytes: float
    """Bytes that the block can have under way at once."""

    @property
    def math_cycles(self) -> float:
        return self.steps * self.step_math


@dataclass(frozen=True)
class Wave:
    """Blocks that run at the same time, `resident` on each SM; `repeat` such waves follow each other."""

    blocks: int
    resident: int
    repeat: int
    cycles: float
    """Of one wave."""
    parts: Mapping[str, float]
    """What each part alone would take."""

    @cached_property
    def total_cycles(self) -> float:
        return self.repeat * self.cycles


def wave(device: Device, block: BlockCost, blocks: int, resident: int, repeat: int = 1, start: float = 1.0) -> Wave:
    """So many blocks at once; `start` is the share of their start that nothing hides."""
    busy = min(blocks, device.count)
    reach = busy * min(device.sm_rate, resident * block.flight_bytes / max(1.0, device.memory_latency))
    loop = {
        MATH: resident * block.math_cycles,
        LATENCY: block.steps * (block.step_math + block.step_latency),
        L2: blocks * block.l2_bytes / min(device.l2_rate, reach),
        DRAM: blocks * block.dram_bytes / min(device.tile_rate, reach),
    }
    outside = {
        WRITE: blocks * block.write_bytes / min(device.tile_rate, busy * device.sm_rate),
        START: block.start_cycles * start,
    }
    return Wave(blocks, resident, repeat, max(loop.values()) + sum(outside.values()), loop | outside)


def waves_of(device: Device, block: BlockCost, count: int, resident: int) -> tuple[Wave, ...]:
    """Equal blocks, handed out as SMs become free: whole waves, then a tail that is spread thinly.

    Blocks that share an SM share its units, so all of a wave end together and the next one begins. While several
    are resident, one block's start runs under the others' products.
    """
    slots = device.count * resident
    whole = (count - 1) // slots
    left = count - whole * slots
    tail = wave(device, block, left, -(-left // device.count))
    if not whole:
        return (tail,)
    return wave(device, block, slots, resident, whole, 1 / resident), tail
