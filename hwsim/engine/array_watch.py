"""Where the cycles of an array go, without remainder: at work, or waiting for something with a name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hwsim.engine.outcome import FEMTOSECONDS, AgentTime

ARRAY, VECTOR = "array", "vector"
WEIGHTS, INPUTS, OUTPUTS, FILL = "weights", "inputs", "outputs", "fill and drain"
SCRATCHPAD = "scratchpad"


class ArrayWatch:
    """Cycles are put down in the order of time; `now` is the cycle up to which they have been."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.now = 0
        self.busy: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()

    def work(self, unit: str, cycles: int) -> None:
        self.busy[unit] += cycles
        self.now += cycles

    def wait(self, cause: str, until: int) -> None:
        """Everything from now to a cycle; nothing where that is past."""
        if until > self.now:
            self.waiting[cause] += until - self.now
            self.now = until

    def wait_in_turn(self, causes: Sequence[tuple[str, int]], until: int) -> None:
        """Several things that had to happen, each up to its own cycle; what is left goes to the last."""
        for cause, cycle in causes:
            self.wait(cause, min(cycle, until))
        if self.now < until:
            self.wait(causes[-1][0] if causes else FILL, until)

    def result(self, clock_hz: int) -> AgentTime:
        """In femtoseconds, cut so that whole cycles come out again, each part in the order in which they are read."""
        parts = [(self.busy, name) for name in sorted(+self.busy)]
        parts += [(self.waiting, name) for name in sorted(+self.waiting)]
        found: dict[int, dict[str, int]] = {id(self.busy): {}, id(self.waiting): {}}
        cycles = begin_fs = 0
        for number, (group, name) in enumerate(parts):
            cycles += group[name]
            end_fs = cycles * FEMTOSECONDS // clock_hz
            if number < len(parts) - 1:
                end_fs = -(-cycles * FEMTOSECONDS // clock_hz)
            found[id(group)][name] = end_fs - begin_fs
            begin_fs = end_fs
        return AgentTime(self.name, begin_fs, found[id(self.busy)], found[id(self.waiting)])
