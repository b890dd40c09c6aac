"""DMA engines: a few transfers at a time, of those that wait the one for the earliest tile first."""

from __future__ import annotations

import heapq

import simpy


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
