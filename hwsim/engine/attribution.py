"""Where time goes: of each agent without remainder, and of each core in whole cycles, with nothing lost in rounding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hwsim.engine.outcome import FEMTOSECONDS, AgentTime

Attribution = dict[str, dict[str, dict[str, int]]]
"""``{"core[0]": {"busy": {"fma": 1200}, "waiting": {"chain": 3600}}}``, in cycles."""

BUSY, WAITING = "busy", "waiting"


def in_cycles(agents: Sequence[AgentTime], clock_hz: int) -> Attribution:
    """Femtoseconds as cycles. The parts of an agent add up to its own cycles, rounded up once."""
    return {agent.name: _agent(agent, clock_hz) for agent in agents}


def total(parts: Mapping[str, Mapping[str, int]]) -> int:
    """The cycles of one agent."""
    return sum(sum(group.values()) for group in parts.values())


def summed(attribution: Attribution) -> dict[tuple[str, str], int]:
    """All agents together: cycles by (busy or waiting, name), the largest first."""
    together: dict[tuple[str, str], int] = {}
    for parts in attribution.values():
        for kind, group in parts.items():
            for name, cycles in group.items():
                together[kind, name] = together.get((kind, name), 0) + cycles
    return dict(sorted(together.items(), key=lambda item: (-item[1], item[0])))


def _agent(agent: AgentTime, clock_hz: int) -> dict[str, dict[str, int]]:
    """Cut its time at the running sums, and count the cycles between two cuts; the last cut is rounded up."""
    parts = [(BUSY, name, fs) for name, fs in sorted(agent.busy.items())]
    parts += [(WAITING, name, fs) for name, fs in sorted(agent.waiting.items())]
    whole = sum(fs for _, _, fs in parts)
    assert whole == agent.elapsed_fs, f"{agent.name}: {whole} fs attributed of {agent.elapsed_fs}"
    found: dict[str, dict[str, int]] = {BUSY: {}, WAITING: {}}
    end_fs = start_cycle = 0
    for number, (kind, name, fs) in enumerate(parts):
        end_fs += fs
        last = number == len(parts) - 1
        end_cycle = -(-end_fs * clock_hz // FEMTOSECONDS) if last else end_fs * clock_hz // FEMTOSECONDS
        if end_cycle > start_cycle:
            found[kind][name] = end_cycle - start_cycle
        start_cycle = end_cycle
    return found


class Watch:
    """Femtoseconds of an agent in the order of time: at work with a unit, or waiting for something with a name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()

    @property
    def elapsed_fs(self) -> int:
        return self.busy.total() + self.waiting.total()

    def work(self, unit: str, duration_fs: int) -> None:
        if duration_fs:
            self.busy[unit] += duration_fs

    def wait(self, cause: str, duration_fs: int) -> None:
        if duration_fs:
            self.waiting[cause] += duration_fs

    def result(self) -> AgentTime:
        return AgentTime(self.name, self.elapsed_fs, dict(self.busy), dict(self.waiting))
