"""A core as an agent: takes blocks from the queue, walks their steps, and holds what it needs while it needs it.

A step may be a whole matrix product. Cut into chunks, each with what its own accesses moved, it shows its phases: cold
caches at first, then tiles that change, then edges; and a chunk that waits for memory is not paid for by one that
computes. Where cores share caches, chunks are also the grain at which their accesses mix.

Within a chunk the machine's `overlap` says what runs side by side. Across chunks, a core whose memory works beside its
arithmetic begins the transfers of the next chunk before the present one is done: as soon as its links are free, and no
earlier than its window, MSHRs and prefetchers can run ahead.

A run finds its inputs in the storage behind main memory, if there is one: each page of them is staged into DRAM once.
Tensors that a run writes are made in DRAM and cost nothing there. Results stay in DRAM.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from time import perf_counter
from typing import Any

from hwsim.engine.outcome import cycles_to_fs
from hwsim.engine.play import Event, Floor, Link, Wait
from hwsim.errors import CapacityError
from hwsim.memory.hierarchy import Hierarchy, Traffic
from hwsim.program.kernel import OutputBlock, Step
from hwsim.program.loops import MOST_STEPS
from hwsim.spec.machine import StorageSpec
from hwsim.targets.cpu.model import ZERO, Chunk, CpuCore, StepCost, Transfer
from hwsim.targets.cpu.tally import CoreTally, Stopwatch
from hwsim.trace.nest import Nest, Work
from hwsim.units import format_bytes

MOST_OF_A_STEP = 256
"""Chunks of one step, if it is the only one."""
MOST_OF_A_RUN = 1536
"""Cuts of all steps together: with some twenty events for each, a run stays below 50,000."""
LEAST_ACCESSES = 1 << 16
"""A chunk is not shorter, so that replaying it takes longer than cutting it off."""

Replay = Callable[[Nest, int], Iterator[Traffic]]
"""Plays a nest in about so many parts."""


class Cutter:
    """Hands out the chunks that a run may have to its steps, as they come: the first ones may have more."""

    def __init__(self, cores: int) -> None:
        self._left = MOST_OF_A_RUN
        # The work of several cores comes in steps that are cut already.
        self._most = MOST_OF_A_STEP if cores == 1 else max(1, MOST_OF_A_RUN // (cores * MOST_STEPS))

    def parts(self, accesses: int) -> int:
        """Into how many chunks a step of so many accesses is cut, about."""
        found = max(1, min(self._most, accesses // LEAST_ACCESSES, self._left // 4))
        self._left -= found - 1
        return found


def cut(nests: Sequence[Nest], parts: int, replay: Replay) -> Iterator[Chunk]:
    """The chunks of a step, each replayed when it is asked for. Short nests are put together, long ones cut."""
    executions = sum(nest.repeats * nest.length for nest in nests)
    if not executions:
        yield Chunk.whole((), ())
        return
    held: list[tuple[Nest, Traffic]] = []
    begin, done = Fraction(0), 0
    for nest in nests:
        for moved in replay(nest, max(1, round(Fraction(parts * nest.length, executions)))):
            held.append((nest, moved))
            done += moved.accesses
            end = Fraction(done, executions)
            if int(end * parts) > int(begin * parts) or done == executions:
                some, traffic = zip(*held, strict=True)
                yield Chunk(some, traffic, begin, end, executions)
                held, begin = [], end


# Storage --------------------------------------------------------------------------------------------------------------

PAGE_BYTES = 4096


class StagedStorage:
    """Which pages are in DRAM already, and what it takes to bring others in."""

    def __init__(self, spec: StorageSpec, needed_bytes: int, storage_hz: int) -> None:
        if spec.size is not None and needed_bytes > spec.size:
            has = format_bytes(spec.size)
            raise CapacityError(f"the run needs {format_bytes(needed_bytes)} from {spec.name}, which has {has}")
        self.spec = spec
        self.staged_pages = 0
        self._hz = storage_hz
        self._present: set[int] = set()

    def stage(self, nests: Sequence[Nest]) -> int:
        """Bytes that these nests read for the first time, in whole pages; from now on they are in DRAM."""
        before = self.staged_pages
        for nest in nests:
            made = {access.tensor for access in nest.accesses if access.write}
            for access in nest.accesses:
                low, high = nest.span(access)
                pages = set(range(low // PAGE_BYTES, (high - 1) // PAGE_BYTES + 1)) - self._present
                self._present |= pages
                self.staged_pages += 0 if access.tensor in made else len(pages)
        return (self.staged_pages - before) * PAGE_BYTES

    def transfer(self, nbytes: int, core: CpuCore) -> Transfer:
        """The latency once, since staging reads ahead, and then the bytes."""
        cycles = self.spec.latency.seconds(self._hz) * core.clock_hz if self.spec.latency else ZERO
        limits = [limit for limit in (self.spec.bandwidth, self.spec.unit_bandwidth) if limit is not None]
        rates = [rate for limit in limits if (rate := limit.bytes_per_cycle(self._hz)) is not None]
        if rates:
            cycles += Fraction(nbytes) / (min(rates) * self._hz / core.clock_hz)
        return Transfer(f"staging from {self.spec.name}", self.spec.name, cycles, nbytes)


# The core -------------------------------------------------------------------------------------------------------------


@dataclass
class Issue:
    """A chunk under way."""

    chunk: Chunk
    cost: StepCost
    durations: dict[str, int] = field(default_factory=dict)
    """Of each transfer that is done."""
    ends: dict[str, int] = field(default_factory=dict)
    moving: Event | None = None
    """Happens when all transfers are done, once they have begun."""


@dataclass(frozen=True)
class CoreStep:
    """A step as a core plays it: all its repetitions."""

    name: str
    work: Work
    nests: tuple[Nest, ...]
    chunks: Iterator[Chunk]
    staging: Transfer | None
    """What storage has to bring in for it."""
    alone: CoreTally | None
    """What it counts by itself, for power over time."""


class CoreAgent:
    """One core. Shared caches are touched at the simulated time at which a chunk begins: in the order of time."""

    def __init__(
        self,
        floor: Floor,
        number: int,
        core: CpuCore,
        hierarchy: Hierarchy,
        links: dict[str, Link],
        tally: CoreTally,
        cutter: Cutter,
        storage: StagedStorage | None = None,
        *,
        alone: bool = True,
    ) -> None:
        self.floor = floor
        self.number = number
        self.core = core
        self.hierarchy = hierarchy
        self.links = links
        self.tally = tally
        self.cutter = cutter
        self.storage = storage
        self.alone = alone
        self.watch = Stopwatch(f"{core.unit.name}[{number}]")
        self.walk_seconds = self.math_seconds = 0.0

    def run(self, queue: deque[OutputBlock], spawn_fs: int) -> Wait:
        """Start, then take blocks until there are none."""
        if spawn_fs:
            self.watch.wait("spawn", spawn_fs)
            yield self.floor.delay(spawn_fs)
        while queue:
            steps = iter(queue.popleft().steps())
            while (step := self._compute(steps)) is not None:
                yield from self._play(self._task(step))

    def _compute(self, steps: Any) -> Step | None:
        """The next step; its real math is done on the way."""
        started = perf_counter()
        step = next(steps, None)
        self.math_seconds += perf_counter() - started
        return step

    def _task(self, step: Step) -> CoreStep:
        nests, work = step.nests, step.work
        self.tally.add_work(work, self.core)
        staged = self.storage.stage(step.nests) if self.storage is not None else 0
        staging = self.storage.transfer(staged, self.core) if self.storage is not None and staged else None
        alone = self.tally.of_step(work, nests, self.core) if self.floor.timeline else None
        parts = self.cutter.parts(sum(nest.length for nest in nests))
        return CoreStep(step.name, work, nests, cut(nests, parts, self._replay), staging, alone)

    def _replay(self, nest: Nest, parts: int) -> Iterator[Traffic]:
        self.tally.add_nest(nest)
        for moved in self.hierarchy.replay_parts(nest, self.number, parts, alone=self.alone):
            self.tally.add_traffic(nest, moved)
            yield moved

    # A chunk after the other ------------------------------------------------------------------------------------------

    def _play(self, task: CoreStep) -> Wait:
        """Replay a chunk's accesses when it begins, then let its time pass, and again."""
        overlap = self.core.unit.overlap
        issue = self._issue(task)
        while issue is not None:
            begin = self.floor.now
            following: list[Issue] = []
            if overlap == "full":
                yield from self._side_by_side(task, issue, following)
            else:
                yield from (self._in_turn if overlap == "none" else self._memory_first)(task, issue)
            self._note(task, issue, begin)
            issue = following[0] if following else self._issue(task)

    def _issue(self, task: CoreStep) -> Issue | None:
        """The next chunk, replayed now; None after the last."""
        started = perf_counter()
        chunk = next(task.chunks, None)
        self.walk_seconds += perf_counter() - started
        if chunk is None:
            return None
        cost = self.core.cost(task.work, chunk)
        if task.staging is not None:
            cost = replace(cost, transfers=(*cost.transfers, task.staging.scaled(chunk.share)))
        return Issue(chunk, cost)

    def _in_turn(self, task: CoreStep, issue: Issue) -> Wait:
        """Nothing overlaps: the core computes, then each transfer has its turn."""
        yield from self._work(task, self._compute_fs(issue.cost))
        for transfer in issue.cost.transfers:
            yield self._transfer(task, transfer, issue)

    def _memory_first(self, task: CoreStep, issue: Issue) -> Wait:
        """Transfers overlap with each other and with chains of operations, not with the units at work."""
        begin = self.floor.now
        yield self._move(task, issue)
        chain_fs = begin + self._fs(issue.cost.chain_cycles) - self.floor.now
        yield from self._work(task, max(self._fs(issue.cost.work_cycles), chain_fs))

    def _side_by_side(self, task: CoreStep, issue: Issue, following: list[Issue]) -> Wait:
        """Everything overlaps; the next chunk is put into `following` if its transfers can begin meanwhile."""
        moving = issue.moving or self._move(task, issue)
        work_fs = self._compute_fs(issue.cost)
        if issue.chunk.end < 1:
            self.floor.start(self._run_ahead(task, moving, self.floor.now + work_fs, following))
        yield from self._work(task, work_fs)
        yield moving

    def _run_ahead(self, task: CoreStep, moving: Event, end_fs: int, following: list[Issue]) -> Wait:
        """When the links are free before the core is: begin what comes next as early as the machine can know of it."""
        yield moving
        early = end_fs - self._fs(self.core.reach_cycles) - self.floor.now
        if early > 0:
            yield self.floor.delay(early)
        if self.floor.now >= end_fs or (issue := self._issue(task)) is None:
            return
        following.append(issue)
        issue.moving = self._move(task, issue, end_fs)

    def _note(self, task: CoreStep, issue: Issue, begin: int) -> None:
        """Where the time of a chunk went, and what it spent."""
        now = self.floor.now
        visible = {link: max(0, end - begin) for link, end in issue.ends.items()}
        self.watch.step(issue.cost, issue.durations, now - begin, self.core.unit.overlap, self._fs, visible)
        if task.alone is not None:
            chunk = issue.chunk
            self.floor.pulse(begin, now, task.alone.between(chunk.begin, chunk.end).ledger(self.core, chunk.traffic))

    # What it is made of -----------------------------------------------------------------------------------------------

    def _compute_fs(self, cost: StepCost) -> int:
        return max(self._fs(cost.work_cycles), self._fs(cost.chain_cycles))

    def _work(self, task: CoreStep, duration_fs: int) -> Wait:
        """The core itself is busy, or waits for its own results."""
        self.floor.record(self.watch.name, task.name, self.floor.now, self.floor.now + duration_fs)
        yield self.floor.delay(duration_fs)

    def _move(self, task: CoreStep, issue: Issue, needed_fs: int = 0) -> Event:
        """Start all transfers, each as early as it can begin before the moment at which the first is needed."""
        started = []
        for transfer in issue.cost.transfers:
            early = needed_fs - self._fs(transfer.lead_cycles) - self.floor.now
            if early > 0:
                started.append(self.floor.start(self._later(task, transfer, issue, early)))
            else:
                started.append(self._transfer(task, transfer, issue))
        return self.floor.every(started)

    def _later(self, task: CoreStep, transfer: Transfer, issue: Issue, delay_fs: int) -> Wait:
        yield self.floor.delay(delay_fs)
        yield self._transfer(task, transfer, issue)

    def _transfer(self, task: CoreStep, transfer: Transfer, issue: Issue) -> Event:
        """Start one transfer; when it ends, its duration is known."""
        begin = self.floor.now
        alone = self.floor.delay(self._fs(transfer.cycles))
        link = self.links.get(transfer.level)
        parts = [alone, link.transfer(transfer.shared_bytes)] if link is not None else [alone]
        done = self.floor.every(parts)

        def finish(_: Event) -> None:
            issue.durations[transfer.link] = self.floor.now - begin
            issue.ends[transfer.link] = self.floor.now
            self.floor.record(f"{self.watch.name} {transfer.link}", task.name, begin, self.floor.now)

        done.callbacks.insert(0, finish)
        return done

    def _fs(self, cycles: Any) -> int:
        return cycles_to_fs(cycles, self.core.clock_hz)
