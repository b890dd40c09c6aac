"""Floor: where agents work. The clock, what they share, and what is written down of it; the home of SimPy.

Agents are generators: they yield what they wait for. A target writes them with what a floor offers, and never imports
SimPy itself.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import simpy

from hwsim.energy import Ledger
from hwsim.engine.link import DmaEngines, Link
from hwsim.engine.outcome import Held, Pulse, Span

Event: TypeAlias = simpy.Event
Wait = Generator[Event, Any, None]
"""An agent, or a part of one: it yields what it waits for."""


class Floor:
    """One run: time starts at 0 and passes in femtoseconds."""

    def __init__(self, *, timeline: bool = False) -> None:
        self._env = simpy.Environment()
        self.timeline = timeline
        self.spans: list[Span] = []
        self.pulses: list[Pulse] = []
        self.events = 0

    @property
    def now(self) -> int:
        return int(self._env.now)

    # What agents wait for ---------------------------------------------------------------------------------------------

    def delay(self, duration_fs: int) -> Event:
        return self._env.timeout(duration_fs)

    def event(self) -> Event:
        """Something that happens when somebody calls its `succeed`."""
        return self._env.event()

    def every(self, events: Sequence[Event]) -> Event:
        """Happens when all of them have."""
        return simpy.AllOf(self._env, events)

    def start(self, agent: Wait) -> Event:
        """Let an agent work beside the others; happens when it is done."""
        return self._env.process(agent)

    # What they share --------------------------------------------------------------------------------------------------

    def link(self, name: str, bytes_per_second: Fraction | None) -> Link:
        """A connection whose bandwidth is shared by all transfers on it; without a bandwidth it takes no time."""
        return Link(self._env, name, bytes_per_second)

    def engines(self, count: int) -> DmaEngines:
        return DmaEngines(self._env, count)

    # What is written down ---------------------------------------------------------------------------------------------

    def record(self, lane: str, name: str, begin_fs: int, end_fs: int, held: Held | None = None) -> None:
        """A bar of the timeline, where one was asked for."""
        if self.timeline:
            self.spans.append(Span(lane, name, begin_fs, end_fs, held))

    def pulse(self, begin_fs: int, end_fs: int, ledger: Ledger) -> None:
        """What was spent between two moments: power over time."""
        if self.timeline:
            self.pulses.append(Pulse(begin_fs, end_fs, ledger))

    def run(self, until_fs: int | None = None) -> None:
        """Let time pass until nothing is left to happen, or up to a moment."""
        if until_fs is not None:
            self._env.run(until=until_fs)
            return
        while self._env.peek() != float("inf"):
            self._env.step()
            self.events += 1
