"""The whole run: a crew does its work on a floor, and what happened there is put together. The home of SimPy.

Agents are generators: they yield what they wait for. A target writes them with what a floor offers (the clock, links,
DMA engines, a timeline), and never imports SimPy itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Protocol, TypeAlias

import simpy

from hwsim.energy import Ledger
from hwsim.engine.outcome import FEMTOSECONDS, Held, Outcome, Pulse, Span


class Link:
    """A connection whose bandwidth is shared fairly by the transfers that are on it.

    n transfers in flight each get 1/n of the bandwidth; when one starts or ends, the others go on at their new share. A
    transfer of weight w stands for w equal ones, and gets the share of w. This is kept as one number, the service that
    a transfer of weight 1 has received since the link was made: one that starts at service s is done at s + bytes / w.
    Service is an exact fraction; a completion is rounded up to a whole femtosecond once. There is one event pending at
    a time, the next completion.
    """

    def __init__(self, env: simpy.Environment, name: str, bytes_per_second: Fraction | None) -> None:
        self.env = env
        self.name = name
        self.moved_bytes: Fraction | int = 0
        self._rate = None if bytes_per_second is None else bytes_per_second / FEMTOSECONDS
        self._service = Fraction(0)
        self._since = 0
        self._waiting: list[tuple[Fraction, int, int, simpy.Event]] = []
        self._weight = 0
        self._arrivals = 0
        self._version = 0

    def transfer(self, nbytes: Fraction | int, weight: int = 1) -> simpy.Event:
        """An event that happens when the bytes (or what takes the link as long) have moved, for so many at once."""
        done = self.env.event()
        self.moved_bytes += nbytes
        if self._rate is None or nbytes == 0:
            return done.succeed()
        self._advance()
        self._arrivals += 1
        heapq.heappush(self._waiting, (self._service + Fraction(nbytes, weight), self._arrivals, weight, done))
        self._weight += weight
        self._schedule()
        return done

    def _advance(self) -> None:
        """Bring the service up to now."""
        if self._waiting and self._rate is not None:
            self._service += (self.env.now - self._since) * self._rate / self._weight
        self._since = self.env.now

    def _schedule(self) -> None:
        """Wait for the next completion; an earlier appointment is void."""
        self._version += 1
        if not self._waiting or self._rate is None:
            return
        exact = (self._waiting[0][0] - self._service) * self._weight / self._rate
        delay = max(0, -(-exact.numerator // exact.denominator))
        version = self._version
        self.env.timeout(delay).callbacks.append(lambda _: self._complete(version))

    def _complete(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        while self._waiting and self._waiting[0][0] <= self._service:
            _, _, weight, done = heapq.heappop(self._waiting)
            self._weight -= weight
            done.succeed()
        if not self._waiting:
            self._service = Fraction(0)  # nobody is left to compare with: short fractions again
        self._schedule()


class DmaEngines:
    """So many engines, each with one transfer at a time: of those that wait, the one for the earliest tile first.

    Requests of one moment are looked at together, so that none gets in by asking first.
    """

    def __init__(self, env: simpy.Environment, engines: int) -> None:
        self._env = env
        self._idle = engines
        self._waiting: list[tuple[int, int, simpy.Event]] = []
        self._asked = 0
        self._called = False

    def request(self, tile: int) -> simpy.Event:
        """An event that happens when an engine is there for a transfer of this tile."""
        granted = self._env.event()
        self._asked += 1
        heapq.heappush(self._waiting, (tile, self._asked, granted))
        self._call()
        return granted

    def release(self) -> None:
        """The engine is free again."""
        self._idle += 1
        self._call()

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._env.timeout(0).callbacks.append(self._serve)

    def _serve(self, _: simpy.Event) -> None:
        self._called = False
        while self._idle and self._waiting:
            self._idle -= 1
            heapq.heappop(self._waiting)[2].succeed()


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


class Crew(Protocol):
    """A kernel laid out for a machine: agents with their steps. Each class of machines has its own."""

    def work(self, floor: Floor) -> None:
        """Do all the work: real math, replays, time. Returns when nothing is left to do."""

    def outcome(self) -> Outcome:
        """What was counted, once the work is done."""


def play(crew: Crew, *, timeline: bool = False) -> Outcome:
    """Let a crew work; `timeline` writes down who was busy when, and what was spent meanwhile."""
    floor = Floor(timeline=timeline)
    crew.work(floor)
    pulses = tuple(sorted(floor.pulses, key=lambda pulse: (pulse.start_fs, pulse.end_fs)))
    return replace(crew.outcome(), events=floor.events, spans=tuple(floor.spans), pulses=pulses)
