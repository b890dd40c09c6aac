"""Where the time of a GPU goes, without remainder: at work, or waiting for something with a name."""

from __future__ import annotations

from collections import Counter

from hwsim.engine.outcome import FEMTOSECONDS, AgentTime
from hwsim.hardware.gpu.block import MATH, START, WRITE
from hwsim.hardware.gpu.cost import ISSUE, MEMORY_UNIT, POWER, SPECIAL, KernelCost

LAUNCH = "launch"
WORK = (MATH, SPECIAL, MEMORY_UNIT, ISSUE)
OUTSIDE = (WRITE, START)
"""Parts that nothing else of a kernel overlaps with."""


class GpuWatch:
    """Femtoseconds of the whole GPU, put down kernel by kernel."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()

    def wait(self, cause: str, duration_fs: int) -> None:
        self.waiting[cause] += duration_fs

    def kernel(self, cost: KernelCost, duration_fs: int, clock_hz: int) -> None:
        """A kernel: units at work first, then each part with the time by which it is longer than all shorter ones."""
        left = duration_fs
        slower = min(left, round((cost.seconds - cost.full_clock_seconds) * FEMTOSECONDS))
        left -= self._charge(self.waiting, POWER, slower)
        parts = {name: round(cycles * FEMTOSECONDS / clock_hz) for name, cycles in cost.parts.items()}
        covered = 0
        for name, part_fs in sorted(parts.items(), key=lambda part: (part[0] not in WORK, part[1])):
            if name in OUTSIDE:
                continue
            group = self.busy if name in WORK else self.waiting
            share = self._charge(group, name, min(left, max(0, part_fs - covered)))
            covered += share
            left -= share
        for name in OUTSIDE:
            left -= self._charge(self.waiting, name, min(left, parts.get(name, 0)))
        if left:
            self.waiting["tail"] += left

    def _charge(self, group: Counter[str], name: str, share_fs: int) -> int:
        if share_fs > 0:
            group[name] += share_fs
        return max(0, share_fs)

    def result(self) -> AgentTime:
        elapsed = self.busy.total() + self.waiting.total()
        return AgentTime(self.name, elapsed, dict(self.busy), dict(self.waiting))
