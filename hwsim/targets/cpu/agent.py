"""A core as an agent: takes blocks from the queue, walks their steps, and holds what it needs while it needs it.

A step may be a whole matrix product. Cut into chunks, each with what its own accesses moved, it shows its phases: cold
caches at first, then tiles that change, then edges; and a chunk that waits for memory is not paid for by one that
computes. Where cores share caches, chunks are also the grain at which their accesses mix.

Within a chunk the machine's `overlap` says what runs side by side. Across chunks, a core whose memory works beside its
arithmetic begins the transfers of the next chunk before the present one is done: as soon as its links are free, and no
earlier than its window, MSHRs and prefetchers can run ahead.

A run finds its inputs in the storage behind main memory, if there is one: each page of them is staged into DRAM once.
Tensors that a run writes are made in DRAM and cost nothing there. Results stay in DRAM.

Whatever is loaded from a tensor narrower than the arithmetic is widened, and rounded back before it is stored: one more
instruction for each such load and store, scalar or vector. Where the machine computes in the tensors' own format there
is nothing to do, but for weights that are stored more narrowly.

The run of a kernel on CPU cores: they take its blocks, replay its accesses, and wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from time import perf_counter
from typing import Any

from hwsim.energy import Ledger
from hwsim.engine import Event, Floor, Link, Outcome, StageOutcome, TensorTraffic, Wait, cycles_to_fs, seconds_to_fs
from hwsim.errors import CapacityError
from hwsim.memory.counters import CacheCounters, DramCounters
from hwsim.memory.hierarchy import Hierarchy, Traffic, build_hierarchy
from hwsim.program.kernel import Kernel, OutputBlock, Stage, Step
from hwsim.program.loops import MOST_STEPS
from hwsim.spec.machine import CacheSpec, DramSpec, Level, MachineSpec, RegistersSpec, StorageSpec
from hwsim.targets.cpu.model import CpuCore, core_spec
from hwsim.targets.cpu.tally import ZERO, Chunk, CoreTally, StepCost, StepTimes, Stopwatch, Transfer
from hwsim.trace.nest import Instructions, Nest, Work
from hwsim.units import Bandwidth, Latency, format_bytes

MOST_OF_A_STEP = 64
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
    begin, done, cuts = Fraction(0), 0, 0
    for nest in nests:
        for moved in replay(nest, max(1, round(Fraction(parts * nest.length, executions)))):
            held.append((nest, moved))
            done += moved.accesses
            passed = done * parts // executions
            if passed > cuts or done == executions:
                some, traffic = zip(*held, strict=True)
                end = Fraction(done, executions)
                yield Chunk(some, traffic, begin, end, executions)
                held, begin, cuts = [], end, passed


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
        if overlap == "full" and self.alone and not self.floor.timeline:
            yield from self._foreseen(task, issue)
            return
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
        for transfer, duration_fs, _ in self._times(issue.cost).transfers:
            yield self._transfer(task, transfer, duration_fs, issue)

    def _memory_first(self, task: CoreStep, issue: Issue) -> Wait:
        """Transfers overlap with each other and with chains of operations, not with the units at work."""
        begin = self.floor.now
        yield self._move(task, issue)
        times = self._times(issue.cost)
        yield from self._work(task, max(times.work_fs, begin + times.chain_fs - self.floor.now))

    def _side_by_side(self, task: CoreStep, issue: Issue, following: list[Issue]) -> Wait:
        """Everything overlaps; the next chunk is put into `following` if its transfers can begin meanwhile."""
        moving = issue.moving or self._move(task, issue)
        work_fs = self._compute_fs(issue.cost)
        if issue.chunk.end < 1:
            self.floor.start(self._run_ahead(task, moving, self.floor.now + work_fs, following))
        yield from self._work(task, work_fs)
        yield moving

    def _foreseen(self, task: CoreStep, issue: Issue | None) -> Wait:
        """The same where no other core is on the links: when a chunk begins, the moment at which it ends is known."""
        begin = needed = early = self.floor.now
        while issue is not None:
            times = self._times(issue.cost)
            moving = []
            for transfer, duration_fs, lead_fs in times.transfers:
                link = self.links.get(transfer.level)
                lasting = max(duration_fs, link.alone_fs(transfer.shared_bytes)) if link is not None else duration_fs
                moving.append((max(early, needed - lead_fs) + lasting, lasting, transfer.link))
            moved = early
            for moved, lasting, name in sorted(moving, key=lambda each: each[0]):
                issue.ends[name], issue.durations[name] = moved, lasting
            needed = begin + max(times.work_fs, times.chain_fs)
            early = max(begin, moved, needed - self._reach_fs)
            following = self._issue(task) if issue.chunk.end < 1 and early < needed else None
            yield self.floor.delay(max(needed, moved) - begin)
            self._note(task, issue, begin)
            begin = self.floor.now
            if following is None:
                following, needed, early = self._issue(task), begin, begin
            issue = following

    @cached_property
    def _reach_fs(self) -> int:
        return self._fs(self.core.reach_cycles)

    def _run_ahead(self, task: CoreStep, moving: Event, end_fs: int, following: list[Issue]) -> Wait:
        """When the links are free before the core is: begin what comes next as early as the machine can know of it."""
        yield moving
        early = end_fs - self._reach_fs - self.floor.now
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
        if self.tally.expected:
            left = task.work.flops * float(1 - issue.chunk.end)
            self.floor.tell(min(1.0, (self.tally.flops - left) / self.tally.expected))
        if task.alone is not None:
            chunk = issue.chunk
            self.floor.pulse(begin, now, task.alone.between(chunk.begin, chunk.end).ledger(self.core, chunk.traffic))

    # What it is made of -----------------------------------------------------------------------------------------------

    def _times(self, cost: StepCost) -> StepTimes:
        return cost.times(self._fs)

    def _compute_fs(self, cost: StepCost) -> int:
        times = self._times(cost)
        return max(times.work_fs, times.chain_fs)

    def _work(self, task: CoreStep, duration_fs: int) -> Wait:
        """The core itself is busy, or waits for its own results."""
        self.floor.record(self.watch.name, task.name, self.floor.now, self.floor.now + duration_fs)
        yield self.floor.delay(duration_fs)

    def _move(self, task: CoreStep, issue: Issue, needed_fs: int = 0) -> Event:
        """Start all transfers, each as early as it can begin before the moment at which the first is needed."""
        started = []
        for transfer, duration_fs, lead_fs in self._times(issue.cost).transfers:
            early = needed_fs - lead_fs - self.floor.now
            if early > 0:
                started.append(self.floor.start(self._later(task, transfer, duration_fs, issue, early)))
            else:
                started.append(self._transfer(task, transfer, duration_fs, issue))
        return self.floor.every(started)

    def _later(self, task: CoreStep, transfer: Transfer, duration_fs: int, issue: Issue, delay_fs: int) -> Wait:
        yield self.floor.delay(delay_fs)
        yield self._transfer(task, transfer, duration_fs, issue)

    def _transfer(self, task: CoreStep, transfer: Transfer, duration_fs: int, issue: Issue) -> Event:
        """Start one transfer, which takes so long alone; when it ends, its duration is known."""
        begin = self.floor.now
        alone = self.floor.delay(duration_fs)
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


class CoreCrew:
    """The cores of a machine and the blocks that they share."""

    def __init__(
        self, machine: MachineSpec, kernel: Kernel, *, seed: int = 0, hierarchy: Hierarchy | None = None
    ) -> None:
        self.machine, self.kernel = machine, kernel
        self.core = CpuCore(machine, core_spec(machine), kernel.registers_needed)
        self.stages = converting_stages(kernel)
        most = max(len(stage.blocks) for stage in self.stages)
        self.cores = min(most, kernel.workers, self.core.unit.count) or 1
        self.hierarchy = hierarchy or build_hierarchy(machine, cores=self.cores, seed=seed)
        self.tally = CoreTally(
            {name: view.element_bytes for name, view in kernel.tensors.items()}, kernel.compute_fmt.bits
        )
        self.tally.expected = kernel.useful_flops
        self.storage = _storage(machine, kernel)
        self.agents: list[CoreAgent] = []
        self.played: list[StageOutcome] = []
        self._before = self.hierarchy.level_counters(), self.hierarchy.dram.counters

    def work(self, floor: Floor) -> None:
        """Stage by stage: cores take blocks until there are none, and wait for each other at the end."""
        links = _links(floor, self.machine, self.hierarchy)
        cutter, alone = Cutter(self.cores), self.cores == 1
        self.agents = [
            CoreAgent(floor, n, self.core, self.hierarchy, links[n], self.tally, cutter, self.storage, alone=alone)
            for n in range(self.cores)
        ]
        self.played = [self._play(floor, stage) for stage in self.stages]

    def _play(self, floor: Floor, stage: Stage) -> StageOutcome:
        agents, core, tally = self.agents, self.core, self.tally
        begin_fs, flops, before = agents[0].watch.elapsed_fs, tally.flops, tally.tensors()
        blocks = deque(stage.blocks)
        working = agents[: len(blocks)]
        many = len(working) > 1
        spawn_fs, barrier_fs = (_fs(core, time) if many else 0 for time in (core.unit.spawn, core.unit.barrier))
        processes = [floor.start(agent.run(blocks, spawn_fs)) for agent in working]
        floor.run()
        assert all(process.processed for process in processes)
        finish_fs = max(agent.watch.elapsed_fs for agent in agents)
        for agent in agents:
            agent.watch.wait("barrier", finish_fs - agent.watch.elapsed_fs + barrier_fs)
        if barrier_fs:
            floor.run(floor.now + barrier_fs)
        moved = {name: now - before.get(name, TensorTraffic()) for name, now in tally.tensors().items()}
        tensors = {name: traffic for name, traffic in moved.items() if traffic.moved}
        return StageOutcome(stage.name, finish_fs + barrier_fs - begin_fs, tally.flops - flops, tensors)

    def outcome(self) -> Outcome:
        agents, tally, core, kernel = self.agents, self.tally, self.core, self.kernel
        slowest = max(agents, key=lambda agent: agent.watch.elapsed_fs - agent.watch.waiting["barrier"])
        levels_before, dram_before = self._before
        levels = {name: now - levels_before[name] for name, now in self.hierarchy.level_counters().items()}
        dram = self.hierarchy.dram.counters - dram_before
        tensors = tally.tensors()
        return Outcome(
            elapsed_fs=slowest.watch.elapsed_fs,
            clock_hz=core.clock_hz,
            agents=tuple(agent.watch.result() for agent in agents),
            parts=dict(slowest.watch.parts),
            levels=levels,
            dram=dram,
            tensors=tensors,
            stages=tuple(self.played),
            flops=tally.flops,
            macs=tally.macs,
            loads=tally.loads,
            stores=tally.stores,
            ledger=self._ledger(levels, dram),
            peak_flops_per_s=float(core.peak_flops_per_cycle(kernel.compute_fmt) * core.clock_hz * len(agents)),
            model=self.hierarchy.model,
            reached=self._reached(tensors),
            instructions=tally.instructions,
            warnings=(*kernel.warnings(), *_spill_words(kernel, core)),
            accesses=tally.accesses,
            skipped=tally.skipped,
            walk_seconds=sum(agent.walk_seconds for agent in agents),
            math_seconds=sum(agent.math_seconds for agent in agents),
        )

    def _reached(self, tensors: Mapping[str, TensorTraffic]) -> dict[str, dict[str, int]]:
        """How often each tensor got as far as a level: all its accesses, then its misses in the cache inside."""
        found = {}
        inner: str | None = None
        for level in (level for level in self.machine.memory if not isinstance(level, RegistersSpec)):
            found[level.name] = {
                name: traffic.loads + traffic.stores if inner is None else traffic.misses.get(inner, 0)
                for name, traffic in tensors.items()
            }
            inner = level.name if isinstance(level, CacheSpec) else inner
        return found

    def _ledger(self, levels: Mapping[str, CacheCounters], dram: DramCounters) -> Ledger:
        ledger = Ledger()
        self.tally.post(ledger, self.core, levels, dram, self.kernel.compute_fmt.bits)
        if self.storage is not None:
            pages = self.storage.staged_pages
            ledger.post(self.storage.spec.name, "read", pages, bits=8 * PAGE_BYTES * pages)
        return ledger


def converting_stages(kernel: Kernel) -> Sequence[Stage]:
    """The stages of a kernel, its arithmetic in the format that the machine computes in, conversions counted."""
    compute = kernel.compute_fmt
    narrow = frozenset(name for name, view in kernel.tensors.items() if view.element_bits < compute.bits)
    stages = kernel.stages()
    if not narrow and compute.name == kernel.fmt.name:
        return stages
    return [
        Stage(stage.name, tuple(_converting(block, narrow, kernel.fmt.name, compute.name) for block in stage.blocks))
        for stage in stages
    ]


def _converting(block: OutputBlock, narrow: frozenset[str], stored: str, compute: str) -> OutputBlock:
    def steps() -> Iterator[Step]:
        for step in block.steps():
            work = step.work
            count = sum(
                nest.count(access) for nest in step.nests for access in nest.accesses if access.tensor in narrow
            )
            fmt = compute if work.fmt == stored else work.fmt
            more = work.instructions + Instructions(convert=count)
            yield replace(step, work=replace(work, fmt=fmt, instructions=more))

    return OutputBlock(block.index, steps)


def _spill_words(kernel: Kernel, core: CpuCore) -> tuple[str, ...]:
    if not core.spilled:
        return ()
    return (
        f"{kernel.registers_needed} values in {kernel.registers_needed - core.spilled} registers: "
        f"{core.spilled} are loaded and stored again in every iteration of the innermost loop",
    )


def _storage(machine: MachineSpec, kernel: Kernel) -> StagedStorage | None:
    spec = next((level for level in machine.memory if isinstance(level, StorageSpec)), None)
    return None if spec is None else StagedStorage(spec, kernel.space.peak_bytes, machine.clock_hz(spec.clock))


def _links(floor: Floor, machine: MachineSpec, hierarchy: Hierarchy) -> list[dict[str, Link]]:
    """For each core, the connections that it shares with others, by the level that they come from."""

    def link(level: Level) -> Link:
        return floor.link(level.name, _bytes_per_second(level.bandwidth, machine.clock_hz(level.clock)))

    topology = hierarchy.topology
    memory = {level.name: link(level) for level in machine.memory if isinstance(level, DramSpec | StorageSpec)}
    caches = [link(topology.specs[instance.level]) for instance in topology.instances]
    return [
        memory | {spec.name: caches[chain[n]] for n, spec in enumerate(topology.specs) if spec.shared_by != 1}
        for chain in topology.chains
    ]


def _bytes_per_second(bandwidth: Bandwidth | None, clock_hz: int) -> Fraction | None:
    rate = None if bandwidth is None else bandwidth.bytes_per_cycle(clock_hz)
    return None if rate is None else rate * clock_hz


def _fs(core: CpuCore, time: Latency | None) -> int:
    return 0 if time is None else seconds_to_fs(time.seconds(core.clock_hz))
