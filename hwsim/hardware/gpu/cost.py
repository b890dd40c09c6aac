"""KernelCost: what a kernel costs on a GPU, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from hwsim.hardware.gpu.block import DRAM, L2, LATENCY, MATH, START, WRITE, BlockCost, Wave
from hwsim.hardware.gpu.device import Device
from hwsim.hardware.gpu.occupancy import Occupancy
from hwsim.hardware.gpu.power import Activity, Power, under_cap

SPECIAL, POWER, MEMORY_UNIT, ISSUE = "special", "power", "load/store", "issue"

WORDS = {
    MATH: "the multiply-add rate of the SMs",
    SPECIAL: "the multiply-add and special-function rates of the SMs",
    LATENCY: "the latency of each step: too few blocks share an SM",
    L2: "the bandwidth of the L2",
    DRAM: "the bandwidth of DRAM",
    WRITE: "writing the results",
    START: "starting and ending blocks",
    MEMORY_UNIT: "the load/store units of the SMs, which serve shared memory and the L1",
    ISSUE: "the issue of instructions",
    POWER: "the power limit, which lowers the clock",
}
"""What each bound means."""


@dataclass(frozen=True)
class KernelCost:
    """One kernel, or a few that belong together, on a whole GPU."""

    name: str
    """The kernel and its tile."""
    seconds: float
    """From the first block's start to the last one's end, within the power limit."""
    full_clock_seconds: float
    """The same at full clock."""
    launches: int
    """Kernels that are started."""
    blocks: int
    resident: int
    """Blocks that share an SM where there are enough."""
    waves: float
    """Blocks over those that run at once."""
    bound: str
    parts: dict[str, float]
    """Cycles that each part of the longest path alone would take."""
    activity: Activity
    l2_bytes: float
    power: Power
    block: BlockCost | None = None
    """A typical block."""
    tile: tuple[int, ...] = ()
    split_k: int = 1
    occupancy: Occupancy | None = None

    @property
    def dram_bytes(self) -> float:
        return self.activity.dram_bytes

    @property
    def flops(self) -> float:
        return 2 * self.activity.fma

    @property
    def bound_in_words(self) -> str:
        return WORDS[self.bound]

    def total_seconds(self, device: Device, timing: str = "graph") -> float:
        """With the launch that fits the way of timing; kernels after the first are started back to back."""
        follow = (self.launches - 1) * device.launch_seconds("graph")
        return self.seconds + device.launch_seconds(timing) + follow


def parts_of(waves: Iterable[Wave]) -> dict[str, float]:
    """Cycles that each part takes over all waves."""
    total: defaultdict[str, float] = defaultdict(float)
    for each in waves:
        for name, cycles in each.parts.items():
            total[name] += cycles * each.repeat
    return dict(total)


def bound_of(parts: dict[str, float], power: Power) -> str:
    """The part that takes longest; the power limit where that was reached."""
    return POWER if power.limited else max(parts, key=lambda name: parts[name])


def finish(device: Device, cycles: float, activity: Activity) -> tuple[float, float, Power]:
    """Seconds within the power limit, seconds at full clock, and the power drawn."""
    seconds = cycles / device.clock_hz
    capped, power = under_cap(device, seconds, activity.joules(device))
    return capped, seconds, power


def chained(costs: Iterable[KernelCost], device: Device, timing: str = "graph") -> float:
    """Seconds of kernels one after the other, each with its launch."""
    listed = list(costs)
    launches = sum(cost.launches for cost in listed)
    alone = sum(cost.seconds for cost in listed)
    return alone + device.launch_seconds(timing) + (launches - 1) * device.launch_seconds("graph")
