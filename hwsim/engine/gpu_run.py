"""The run of a kernel on a GPU: choose a launch for each of its loops, play them one after the other, collect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from time import perf_counter

import simpy

from hwsim.energy import ARITHMETIC, Ledger
from hwsim.engine.gpu_watch import LAUNCH, GpuWatch
from hwsim.engine.outcome import FEMTOSECONDS, Outcome, Span, StageOutcome, TensorTraffic
from hwsim.hardware.counters import CacheCounters, DramCounters
from hwsim.hardware.gpu.device import Device
from hwsim.hardware.gpu.model import GpuModel
from hwsim.kernels.kernel import Kernel
from hwsim.kernels.loop_kernel import LoopKernel
from hwsim.mapping.launch import Launch, compute, map_launches
from hwsim.spec.machine import MachineSpec
from hwsim.spec.threads import ThreadSchedule
from hwsim.trace.work import Instructions

GPU = "gpu"


def simulate_gpu(
    machine: MachineSpec, kernel: Kernel, threads: ThreadSchedule | None = None, *, timeline: bool = False
) -> Outcome:
    """Compute a kernel for real, and let the time of its launches pass."""
    model = GpuModel(machine)
    device = model.device
    started = perf_counter()
    launches = map_launches(model, kernel, threads)
    map_seconds = perf_counter() - started
    started = perf_counter()
    assert isinstance(kernel, LoopKernel)
    if kernel.setting.math:
        kernel.stages()  # refuses given tensors that the kernel does not have
        compute(kernel)
    math_seconds = perf_counter() - started

    env = simpy.Environment()
    watch = GpuWatch(device.sm.name)
    spans: list[Span] | None = [] if timeline else None
    ends: list[int] = []
    env.process(_play(env, device, launches, watch, spans, ends))
    events = 0
    while env.peek() != float("inf"):
        env.step()
        events += 1

    dram_bytes = sum(launch.cost.dram_bytes for launch in launches)
    written = min(dram_bytes, sum(_stored_bytes(kernel, launch) for launch in launches))
    l2_bytes = round(sum(launch.cost.l2_bytes for launch in launches))
    sector = device.l2.sector_bytes
    far = round(dram_bytes - written)
    levels = {
        device.l2.name: CacheCounters(
            reads=l2_bytes // sector, read_misses=min(l2_bytes, far) // sector, bytes_read=l2_bytes, bytes_fetched=far
        )
    }
    tensors = _tensors(launches)
    return Outcome(
        elapsed_fs=env.now,
        clock_hz=device.clock_hz,
        agents=(watch.result(),),
        parts=_parts(device, launches),
        levels=levels,
        dram=DramCounters(far // 64, round(written) // 64, far, round(written)),
        tensors=tensors,
        stages=_stages(launches, ends),
        instructions=Instructions(),
        flops=sum(launch.flops for launch in launches),
        macs=sum(launch.macs for launch in launches),
        loads=sum(each.loads for each in tensors.values()),
        stores=sum(each.stores for each in tensors.values()),
        ledger=_ledger(device, launches, far, round(written)),
        spans=tuple(spans or ()),
        events=events,
        spilled=0,
        model=GPU,
        accesses=0,
        skipped=0,
        walk_seconds=map_seconds,
        math_seconds=math_seconds,
        gpu=_gpu(device, kernel, launches),
    )


def _play(
    env: simpy.Environment,
    device: Device,
    launches: Sequence[Launch],
    watch: GpuWatch,
    spans: list[Span] | None,
    ends: list[int],
) -> simpy.events.ProcessGenerator:
    """Each launch waits for its start, then holds the whole GPU."""
    for number, launch in enumerate(launches):
        start = device.launch_seconds("stream" if number == 0 else "graph")
        start += (launch.cost.launches - 1) * device.launch_seconds("graph")
        begin = env.now
        yield env.timeout(_fs(start))
        watch.wait(LAUNCH, env.now - begin)
        begin = env.now
        yield env.timeout(_fs(launch.cost.seconds))
        watch.kernel(launch.cost, env.now - begin, device.clock_hz)
        if spans is not None:
            spans.append(Span(device.sm.name, launch.name, begin, env.now))
        ends.append(env.now)


def _fs(seconds: float) -> int:
    return round(seconds * FEMTOSECONDS)


def _stored_bytes(kernel: LoopKernel, launch: Launch) -> float:
    return float(sum(kernel.tensors[name].element_bits * written / 8 for name, (_, written) in launch.tensors.items()))


def _tensors(launches: Sequence[Launch]) -> dict[str, TensorTraffic]:
    """Elements of each tensor that the launches read and write at least."""
    found: dict[str, TensorTraffic] = {}
    for launch in launches:
        for name, (read, written) in launch.tensors.items():
            found[name] = found.get(name, TensorTraffic()) + TensorTraffic(read, written)
    return dict(sorted(found.items()))


def _stages(launches: Sequence[Launch], ends: Sequence[int]) -> tuple[StageOutcome, ...]:
    found = []
    begin = 0
    for name, group in groupby(zip(launches, ends, strict=True), key=lambda pair: pair[0].stage):
        pairs = list(group)
        own = [launch for launch, _ in pairs]
        found.append(StageOutcome(name, pairs[-1][1] - begin, sum(each.flops for each in own), _tensors(own)))
        begin = pairs[-1][1]
    return tuple(found)


def _parts(device: Device, launches: Sequence[Launch]) -> dict[str, int]:
    """What each part of all launches would take alone."""
    found: Counter[str] = Counter()
    for launch in launches:
        for name, cycles in launch.cost.parts.items():
            found[name] += _fs(cycles / device.clock_hz)
        found["power"] += _fs(launch.cost.seconds - launch.cost.full_clock_seconds)
    found[LAUNCH] = _fs(
        device.launch_seconds("stream")
        + (sum(launch.cost.launches for launch in launches) - 1) * device.launch_seconds("graph")
    )
    return dict(+found)


def _ledger(device: Device, launches: Sequence[Launch], read: int, written: int) -> Ledger:
    """Everything that costs energy: multiply-adds by unit and format, special functions, bytes of DRAM."""
    ledger = Ledger()
    name = device.sm.name
    for launch in launches:
        done = launch.cost.activity
        unit = "tensor" if done.unit == "tensor" else "fma"
        ledger.post(name, f"{unit}.{done.precision}", round(done.fma), cause=ARITHMETIC)
        ledger.post(name, "special", round(done.special), cause=ARITHMETIC)
    ledger.post(device.dram.name, "read", read // 64, bits=8 * read)
    ledger.post(device.dram.name, "write", written // 64, bits=8 * written)
    return ledger


def _gpu(device: Device, kernel: Kernel, launches: Sequence[Launch]) -> dict[str, object]:
    unit = device.unit_for(kernel.fmt.name)
    return {
        "count": device.count,
        "unit": unit,
        "peak_macs_per_cycle": device.count * device.fma_rate(kernel.fmt.name, unit),
        "launches": [_launch(device, launch) for launch in launches],
        "power_limited": any(launch.cost.power.limited for launch in launches),
    }


def _launch(device: Device, launch: Launch) -> dict[str, object]:
    """One launch, for people and for JSON."""
    cost = launch.cost
    found: dict[str, object] = {
        "stage": launch.stage,
        "name": cost.name,
        "seconds": cost.seconds,
        "blocks": cost.blocks,
        "resident": cost.resident,
        "waves": cost.waves,
        "bound": cost.bound,
        "bound_in_words": cost.bound_in_words,
        "watts": cost.power.watts,
        "clock_hz": cost.power.clock_hz,
        "power_limited": cost.power.limited,
    }
    if cost.occupancy is not None:
        found |= {"warps": cost.occupancy.warps, "most_warps": cost.occupancy.most_warps, "limit": cost.occupancy.limit}
    if launch.program is not None:
        program = launch.program
        found |= {
            "sectors_per_request": program.sectors_per_request,
            "bank_conflicts": program.bank_conflicts,
            "l1_hit_rate": program.traffic.l1_hit_rate,
            "l2_hit_rate": program.traffic.l2_hit_rate,
            "walked": program.traffic.walked,
        }
    return found
