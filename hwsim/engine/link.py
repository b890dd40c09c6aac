"""Link: a connection whose bandwidth is shared fairly by the transfers that are on it.

n transfers in flight each get 1/n of the bandwidth; when one starts or ends, the others go on at their new share. A
transfer of weight w stands for w equal ones, and gets the share of w. This is kept as one number, the service that a
transfer of weight 1 has received since the link was made: one that starts at service s is done at s + bytes / w.
Service is an exact fraction; a completion is rounded up to a whole femtosecond once. There is one event pending at a
time, the next completion.

DMA engines serve a few transfers at a time: of those that wait, the one for the earliest tile first.
"""

from __future__ import annotations

import heapq
from fractions import Fraction

import simpy

from hwsim.engine.outcome import FEMTOSECONDS


class Link:
    """A shared connection of a given bandwidth."""

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
    """So many engines. Requests of one moment are looked at together, so that none gets in by asking first."""

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
