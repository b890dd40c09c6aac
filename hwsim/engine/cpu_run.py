"""The run of a kernel on CPU cores: they take its blocks, replay its accesses, and wait for each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from fractions import Fraction

import simpy

from hwsim.energy import Ledger
from hwsim.engine.agent import CoreAgent
from hwsim.engine.clock import seconds_to_fs
from hwsim.engine.link import Link
from hwsim.engine.outcome import Outcome, Span, StageOutcome, TensorTraffic
from hwsim.engine.tally import Tally
from hwsim.errors import InputError
from hwsim.hardware.build import build_hierarchy
from hwsim.hardware.core import CpuCore
from hwsim.hardware.hierarchy import Hierarchy
from hwsim.hardware.storage import PAGE_BYTES, Storage
from hwsim.kernels.convert import converting_stages
from hwsim.kernels.kernel import Kernel
from hwsim.kernels.step import Stage
from hwsim.spec.compute import CpuSpec
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import DramSpec, Level, StorageSpec
from hwsim.units import Bandwidth, Latency


def simulate_cores(
    machine: MachineSpec,
    kernel: Kernel,
    *,
    seed: int = 0,
    timeline: bool = False,
    hierarchy: Hierarchy | None = None,
) -> Outcome:
    """Compute a kernel for real while its accesses are replayed and its time passes; cold caches unless given."""
    env = simpy.Environment()
    core = CpuCore(machine, _cpu(machine), kernel.registers_needed)
    stages = converting_stages(kernel)
    cores = min(max(len(stage.blocks) for stage in stages), kernel.workers, core.unit.count) or 1
    if hierarchy is None:
        hierarchy = build_hierarchy(machine, cores=cores, seed=seed)
    levels_before, dram_before = hierarchy.level_counters(), hierarchy.dram.counters
    links = _links(env, machine, hierarchy)
    tally = Tally({name: view.element_bytes for name, view in kernel.tensors.items()}, kernel.compute_fmt.bits)
    spans: list[Span] | None = [] if timeline else None
    storage = _storage(machine, kernel)
    agents = [CoreAgent(env, n, core, hierarchy, links[n], tally, spans, storage) for n in range(cores)]
    played = [_play(env, agents, stage, core, tally) for stage in stages]
    slowest = max(agents, key=lambda agent: agent.watch.elapsed_fs - agent.watch.waiting["barrier"])
    levels = {name: counters - levels_before[name] for name, counters in hierarchy.level_counters().items()}
    dram = hierarchy.dram.counters - dram_before
    ledger = Ledger()
    tally.post(ledger, core, levels, dram, kernel.compute_fmt.bits)
    if storage is not None:
        pages = storage.staged_pages
        ledger.post(storage.spec.name, "read", pages, bits=8 * PAGE_BYTES * pages)
    return Outcome(
        elapsed_fs=slowest.watch.elapsed_fs,
        clock_hz=core.clock_hz,
        agents=tuple(agent.watch.result() for agent in agents),
        parts=dict(slowest.watch.parts),
        levels=levels,
        dram=dram,
        tensors=tally.tensors(),
        stages=tuple(outcome for outcome, _ in played),
        instructions=tally.instructions,
        flops=tally.flops,
        macs=tally.macs,
        loads=tally.loads,
        stores=tally.stores,
        ledger=ledger,
        spans=tuple(spans or ()),
        pulses=tuple(sorted((p for agent in agents for p in agent.pulses), key=lambda p: (p.start_fs, p.end_fs))),
        events=sum(events for _, events in played),
        spilled=core.spilled,
        model=hierarchy.model,
        accesses=tally.accesses,
        skipped=tally.skipped,
        walk_seconds=sum(agent.walk_seconds for agent in agents),
        math_seconds=sum(agent.math_seconds for agent in agents),
    )


def _play(
    env: simpy.Environment, agents: Sequence[CoreAgent], stage: Stage, core: CpuCore, tally: Tally
) -> tuple[StageOutcome, int]:
    """Let the cores take the blocks of a stage and wait for each other at its end; returns the number of events too."""
    begin_fs, flops, before = agents[0].watch.elapsed_fs, tally.flops, tally.tensors()
    blocks = deque(stage.blocks)
    working = agents[: len(blocks)]
    many = len(working) > 1
    spawn_fs, barrier_fs = (_fs(core, time) if many else 0 for time in (core.unit.spawn, core.unit.barrier))
    processes = [env.process(agent.run(blocks, spawn_fs)) for agent in working]
    events = _run(env)
    assert all(process.processed for process in processes)
    finish_fs = max(agent.watch.elapsed_fs for agent in agents)
    for agent in agents:
        agent.watch.wait("barrier", finish_fs - agent.watch.elapsed_fs + barrier_fs)
    if barrier_fs:
        env.run(until=env.now + barrier_fs)
    moved = {name: now - before.get(name, TensorTraffic()) for name, now in tally.tensors().items()}
    tensors = {name: traffic for name, traffic in moved.items() if traffic.moved}
    return StageOutcome(stage.name, finish_fs + barrier_fs - begin_fs, tally.flops - flops, tensors), events


def _run(env: simpy.Environment) -> int:
    """Let all time pass; returns the number of events."""
    events = 0
    while env.peek() != float("inf"):
        env.step()
        events += 1
    return events


def _cpu(machine: MachineSpec) -> CpuSpec:
    for unit in machine.compute:
        if isinstance(unit, CpuSpec):
            return unit
    raise InputError(f"machine {machine.name} has no CPU core to run a kernel on")


def _storage(machine: MachineSpec, kernel: Kernel) -> Storage | None:
    spec = next((level for level in machine.memory if isinstance(level, StorageSpec)), None)
    return None if spec is None else Storage(spec, kernel.space.peak_bytes, machine.clock_hz(spec.clock))


def _links(env: simpy.Environment, machine: MachineSpec, hierarchy: Hierarchy) -> list[dict[str, Link]]:
    """For each core, the connections that it shares with others, by the level that they come from."""

    def link(level: Level) -> Link:
        return Link(env, level.name, _bytes_per_second(level.bandwidth, machine.clock_hz(level.clock)))

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
