"""A core as an agent: takes blocks from the queue, walks their steps, and holds what it needs while it needs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import replace
from time import perf_counter
from typing import Any

import simpy

from hwsim.engine.clock import cycles_to_fs
from hwsim.engine.link import Link
from hwsim.engine.outcome import Pulse, Span
from hwsim.engine.stopwatch import Stopwatch
from hwsim.engine.tally import Tally
from hwsim.hardware.core import CpuCore, Transfer
from hwsim.hardware.hierarchy import Hierarchy
from hwsim.hardware.storage import Storage
from hwsim.kernels.step import Block, Step

Wait = Generator[simpy.Event, Any, None]


class CoreAgent:
    """One core. Shared caches are touched at the simulated time at which a step begins: in the order of time."""

    def __init__(
        self,
        env: simpy.Environment,
        number: int,
        core: CpuCore,
        hierarchy: Hierarchy,
        links: dict[str, Link],
        tally: Tally,
        spans: list[Span] | None,
        storage: Storage | None = None,
    ) -> None:
        self.env = env
        self.number = number
        self.core = core
        self.hierarchy = hierarchy
        self.links = links
        self.tally = tally
        self.spans = spans
        self.storage = storage
        self.watch = Stopwatch(f"{core.unit.name}[{number}]")
        self.pulses: list[Pulse] = []
        self.walk_seconds = self.math_seconds = 0.0

    def run(self, queue: deque[Block], spawn_fs: int) -> Wait:
        """Start, then take blocks until there are none."""
        if spawn_fs:
            self.watch.wait("spawn", spawn_fs)
            yield self.env.timeout(spawn_fs)
        while queue:
            steps = iter(queue.popleft().steps())
            while (step := self._compute(steps)) is not None:
                yield from self._play(step)

    def _compute(self, steps: Any) -> Step | None:
        """The next step; its real math is done on the way."""
        started = perf_counter()
        step = next(steps, None)
        self.math_seconds += perf_counter() - started
        return step

    def _play(self, step: Step) -> Wait:
        """Replay a step's accesses now, then let its time pass."""
        started = perf_counter()
        nests, work = step.nests * step.repeat, step.work.scaled(step.repeat)
        traffic = [self.hierarchy.replay(nest, self.number) for nest in nests]
        self.walk_seconds += perf_counter() - started
        for nest, moved in zip(nests, traffic, strict=True):
            self.tally.add_traffic(nest, moved)
        self.tally.add_work(work, self.core)
        cost = self.core.cost(work, nests, traffic)
        if self.storage is not None and (staged := self.storage.stage(step.nests)):
            cost = replace(cost, transfers=(*cost.transfers, self.storage.transfer(staged, self.core)))
        begin = self.env.now
        durations: dict[str, int] = {}
        overlap = self.core.unit.overlap
        work_fs, chain_fs = self._fs(cost.work_cycles), self._fs(cost.chain_cycles)
        if overlap == "none":
            yield from self._work(step, max(work_fs, chain_fs))
            for transfer in cost.transfers:
                yield self._transfer(step, transfer, durations)
        else:
            moving = simpy.AllOf(self.env, [self._transfer(step, transfer, durations) for transfer in cost.transfers])
            if overlap == "memory":
                yield moving
                yield from self._work(step, max(work_fs, begin + chain_fs - self.env.now))
            else:
                yield from self._work(step, max(work_fs, chain_fs))
                yield moving
        self.watch.step(cost, durations, self.env.now - begin, overlap, self._fs)
        if self.spans is not None:
            self.pulses.append(Pulse(begin, self.env.now, self.tally.ledger_of(work, nests, traffic, self.core)))

    def _work(self, step: Step, duration_fs: int) -> Wait:
        """The core itself is busy, or waits for its own results."""
        self._record(self.watch.name, step, self.env.now, self.env.now + duration_fs)
        yield self.env.timeout(duration_fs)

    def _transfer(self, step: Step, transfer: Transfer, durations: dict[str, int]) -> simpy.Event:
        """Start one transfer; when it ends, its duration is known."""
        begin = self.env.now
        alone = self.env.timeout(self._fs(transfer.cycles))
        link = self.links.get(transfer.level)
        parts = [alone, link.transfer(transfer.shared_bytes)] if link is not None else [alone]
        done = simpy.AllOf(self.env, parts)

        def finish(_: simpy.Event) -> None:
            durations[transfer.link] = self.env.now - begin
            self._record(f"{self.watch.name} {transfer.link}", step, begin, self.env.now)

        done.callbacks.insert(0, finish)
        return done

    def _record(self, lane: str, step: Step, begin: int, end: int) -> None:
        if self.spans is not None:
            self.spans.append(Span(lane, step.name, begin, end))

    def _fs(self, cycles: Any) -> int:
        return cycles_to_fs(cycles, self.core.clock_hz)
