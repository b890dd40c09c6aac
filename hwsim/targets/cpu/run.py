"""The run of a kernel on CPU cores: they take its blocks, replay its accesses, and wait for each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from fractions import Fraction

from hwsim.energy import Ledger
from hwsim.engine.outcome import Outcome, StageOutcome, TensorTraffic, seconds_to_fs
from hwsim.engine.play import Floor, Link
from hwsim.memory.counters import CacheCounters, DramCounters
from hwsim.memory.hierarchy import Hierarchy, build_hierarchy
from hwsim.program.kernel import Kernel, Stage
from hwsim.spec.machine import CacheSpec, DramSpec, Level, MachineSpec, RegistersSpec, StorageSpec
from hwsim.targets.cpu.agent import PAGE_BYTES, CoreAgent, Cutter, StagedStorage
from hwsim.targets.cpu.lower import converting_stages
from hwsim.targets.cpu.model import CpuCore, core_spec
from hwsim.targets.cpu.tally import CoreTally
from hwsim.units import Bandwidth, Latency


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
