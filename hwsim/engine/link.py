"""Link: a connection whose bandwidth is shared fairly by the transfers that are on it.

n transfers in flight each get 1/n of the bandwidth; when one starts or ends, the others go on at their new share. This
is kept as one number, the service that every transfer has received since the link was made: a transfer that starts at
service s is done at service s + bytes. Service is an exact fraction; a completion is rounded up to a whole femtosecond
once. There is one event pending at a time, the next completion.
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
        self._waiting: list[tuple[Fraction, int, simpy.Event]] = []
        self._arrivals = 0
        self._version = 0

    def transfer(self, nbytes: Fraction | int) -> simpy.Event:
        """An event that happens when the bytes (or what takes the link as long) have moved."""
        done = self.env.event()
        self.moved_bytes += nbytes
        if self._rate is None or nbytes == 0:
            return done.succeed()
        self._advance()
        self._arrivals += 1
        heapq.heappush(self._waiting, (self._service + nbytes, self._arrivals, done))
        self._schedule()
        return done

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def _advance(self) -> None:
        """Bring the service up to now."""
        if self._waiting and self._rate is not None:
            self._service += (self.env.now - self._since) * self._rate / len(self._waiting)
        self._since = self.env.now

    def _schedule(self) -> None:
        """Wait for the next completion; an earlier appointment is void."""
        self._version += 1
        if not self._waiting or self._rate is None:
            return
        exact = (self._waiting[0][0] - self._service) * len(self._waiting) / self._rate
        delay = max(0, -(-exact.numerator // exact.denominator))
        version = self._version
        self.env.timeout(delay).callbacks.append(lambda _: self._complete(version))

    def _complete(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        while self._waiting and self._waiting[0][0] <= self._service:
            heapq.heappop(self._waiting)[2].succeed()
        self._schedule()
