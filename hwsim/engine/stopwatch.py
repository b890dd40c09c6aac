"""Stopwatch: where the time of one agent goes, without remainder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from hwsim.engine.outcome import AgentTime
from hwsim.hardware.core import Part, StepCost

Convert = Callable[[Fraction], int]


class Stopwatch:
    """Every femtosecond of an agent is put down to a unit at work or to a resource that it waited for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.parts: Counter[str] = Counter()

    @property
    def elapsed_fs(self) -> int:
        return self.busy.total() + self.waiting.total()

    def wait(self, resource: str, duration_fs: int) -> None:
        """Time in which nothing else happened."""
        if not duration_fs:
            return
        self.waiting[resource] += duration_fs
        self.parts[resource] += duration_fs

    def step(self, cost: StepCost, durations: dict[str, int], elapsed_fs: int, overlap: str, to_fs: Convert) -> None:
        """A step: what it took as a whole, and what each of its transfers took.

        The unit with the most work is busy. Beyond it, each part is charged with the time by which it is longer than
        all shorter ones: that is what would be won if it were gone.
        """
        for part in (*cost.compute, *cost.chain, *cost.delays):
            self.parts[part.name] += to_fs(part.cycles)
        for link, duration in durations.items():
            self.parts[link] += duration
        covered = self._charge_work(cost, elapsed_fs, to_fs)
        if overlap != "memory":
            covered = self._charge_chain(cost, covered, elapsed_fs, to_fs)
        left = elapsed_fs - covered
        if overlap != "full":
            covered = 0
        for link, duration in sorted(durations.items(), key=lambda item: item[1]):
            share = min(left, max(0, duration - covered))
            self.waiting[link] += share
            left -= share
            covered = 0 if overlap == "none" else max(covered, duration)
        if left and overlap == "memory":
            left = elapsed_fs - self._charge_chain(cost, elapsed_fs - left, elapsed_fs, to_fs)
        if left:
            # Fractions of a femtosecond, rounded up part by part.
            self.waiting[max(durations, key=lambda link: durations[link], default="issue")] += left

    def _charge_work(self, cost: StepCost, limit_fs: int, to_fs: Convert) -> int:
        """Units, ports, issue, and delays; returns their time."""
        covered = 0
        busiest = max((part for part in cost.compute if part.busy), key=lambda part: part.cycles, default=None)
        if busiest is not None:
            covered = min(limit_fs, to_fs(busiest.cycles))
            self.busy[busiest.name] += covered
        for part in sorted(cost.compute, key=lambda part: part.cycles):
            if not part.busy:
                covered += self._charge(part, min(limit_fs, to_fs(part.cycles)) - covered)
        for part in cost.delays:
            covered += self._charge(part, min(limit_fs - covered, to_fs(part.cycles)))
        return covered

    def _charge_chain(self, cost: StepCost, covered: int, limit_fs: int, to_fs: Convert) -> int:
        """What operations that wait for each other add to the time covered so far; returns the new sum."""
        chained = sum(to_fs(part.cycles) for part in cost.delays)
        for part in cost.chain:
            chained += to_fs(part.cycles)
            covered += self._charge(part, min(limit_fs, chained) - covered)
        return covered

    def _charge(self, part: Part, share_fs: int) -> int:
        """Put time down to a part, if there is any; returns it."""
        if share_fs <= 0:
            return 0
        self.waiting[part.name] += share_fs
        return share_fs

    def result(self) -> AgentTime:
        return AgentTime(self.name, self.elapsed_fs, dict(self.busy), dict(self.waiting))
