"""The run of a kernel on a machine with arrays: map its loops, play their tiles, collect what happened."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from time import perf_counter

import simpy

from hwsim.engine.array_agent import ArrayAgent
from hwsim.engine.array_counts import (
    count_dram,
    count_scratchpads,
    count_stages,
    count_tensors,
    describe_array,
    parts_alone,
    post_energy,
    vector_flops,
)
from hwsim.engine.array_watch import ARRAY, INPUTS, OUTPUTS, WEIGHTS
from hwsim.engine.link import Link
from hwsim.engine.outcome import Outcome, Span
from hwsim.kernels.kernel import Kernel
from hwsim.mapping.build import Mapped, map_kernel, program_of
from hwsim.mapping.chip import Chip, build_chip
from hwsim.mapping.math import compute
from hwsim.mapping.step import Counts
from hwsim.spec.machine import MachineSpec
from hwsim.spec.mapping import MappingSpec
from hwsim.trace.work import Instructions


def simulate_array(
    machine: MachineSpec, kernel: Kernel, asked: MappingSpec | None = None, *, timeline: bool = False
) -> Outcome:
    """Compute a kernel for real, and let the time of its tiles pass."""
    chip = build_chip(machine, kernel.fmt.name)
    played = _play_best(chip, kernel, asked, timeline)
    mapped, agent = played.mapped, played.agent
    started = perf_counter()
    if kernel.setting.math:
        kernel.stages()  # refuses given tensors that the kernel does not have
        compute(chip, kernel, program_of(chip, kernel))
    math_seconds = perf_counter() - started

    counts = Counts()
    for each in mapped.passes:
        counts += each.counts
    dram = count_dram(chip, agent.moved)
    levels = count_scratchpads(chip, mapped, counts, agent.moved)
    vector = vector_flops(counts)
    watch = agent.watch
    time = watch.result(chip.clock_hz)
    tensors = count_tensors(chip, mapped, agent.moved)
    return Outcome(
        elapsed_fs=time.elapsed_fs,
        clock_hz=chip.clock_hz,
        agents=(time,),
        parts=parts_alone(chip, agent, dram),
        levels=levels,
        dram=dram,
        tensors=tensors,
        stages=count_stages(chip, mapped, agent),
        instructions=Instructions(),
        flops=2 * counts.macs + vector,
        macs=counts.macs,
        loads=sum(each.loads for each in tensors.values()),
        stores=sum(each.stores for each in tensors.values()),
        ledger=post_energy(chip, kernel, counts, levels, dram),
        spans=tuple(played.spans or ()),
        events=played.events,
        spilled=0,
        model=ARRAY,
        accesses=0,
        skipped=0,
        walk_seconds=played.map_seconds,
        math_seconds=math_seconds,
        array=describe_array(chip, mapped, agent, counts),
    )


@dataclass(frozen=True)
class Played:
    """A mapping, and the agent that went through it."""

    mapped: Mapped
    agent: ArrayAgent
    events: int
    spans: list[Span] | None
    map_seconds: float


def _play_best(chip: Chip, kernel: Kernel, asked: MappingSpec | None, timeline: bool) -> Played:
    """Two buffers halve the room for a tile: where data was waited for, larger tiles in one buffer may be faster."""
    played = _play(chip, kernel, asked, 2, timeline)
    if not chip.overlaps or not any(played.agent.watch.waiting[cause] for cause in (WEIGHTS, INPUTS, OUTPUTS)):
        return played
    alone = _play(chip, kernel, asked, 1, timeline)
    return alone if alone.agent.watch.now < played.agent.watch.now else played


def _play(chip: Chip, kernel: Kernel, asked: MappingSpec | None, buffers: int, timeline: bool) -> Played:
    started = perf_counter()
    mapped = map_kernel(chip, kernel, asked, buffers)
    map_seconds = perf_counter() - started
    env = simpy.Environment()
    spans: list[Span] | None = [] if timeline else None
    links = {level.name: Link(env, level.name, _bytes_per_second(chip, level.name)) for level in chip.machine.memory}
    agent = ArrayAgent(env, chip, mapped.passes, links, spans)
    done = agent.start()
    events = 0
    while env.peek() != float("inf"):
        env.step()
        events += 1
    assert done.processed, "an array waits for something that never comes"
    return Played(mapped, agent, events, spans, map_seconds)


def _bytes_per_second(chip: Chip, name: str) -> Fraction | None:
    rate = chip.bytes_per_cycle(chip.machine.level(name))
    return None if rate is None else rate * chip.clock_hz
