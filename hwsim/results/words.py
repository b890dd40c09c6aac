"""What a run is bound by, in words: the part that decides its time, what that means, and what would help.

Where everything overlaps, the longest part decides. Otherwise parts add up, and the one that the most cycles are put
down to decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hwsim.hardware.core import CpuCore
from hwsim.results.attribution import summed
from hwsim.results.conflict import Crowding, find_crowding
from hwsim.results.resolved import machine_of
from hwsim.results.result import RunResult
from hwsim.results.text import counted, digits, percent, seconds
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import CacheSpec, DramSpec

ARROW = "→"
LATENCY = "latency of "
BANDWIDTH_SHARE = 0.7
"""A transfer that needs this share of its time at full bandwidth is bound by bandwidth, else by latency."""

COMPUTE = ("fma", "add", "special")


@dataclass(frozen=True)
class Bound:
    """The part that decides how long a run takes."""

    part: str
    kind: str
    """chain, compute, port, issue, bandwidth, latency, chase, loop, parallel: what the advice depends on."""
    share: float
    """The part's own time over the time of the run."""
    words: str

    @property
    def short(self) -> str:
        """Two or three words, for a plot."""
        source = self.part.partition(ARROW)[0]
        return {
            "compute": "arithmetic",
            "issue": "instruction issue",
            "bandwidth": f"bandwidth of {source}",
            "latency": f"latency of {source}",
            "parallel": "starting and gathering cores",
        }.get(self.kind, self.part)


def explain_bound(result: RunResult) -> Bound:
    """The longest part, in one or two sentences."""
    if "array" in result.work:
        from hwsim.results.array_words import array_bound

        return array_bound(result)
    if "gpu" in result.work:
        from hwsim.results.gpu_words import gpu_bound

        return gpu_bound(result)
    part, share = _longest(result)
    machine = machine_of(result)
    kind, words = _describe(part, result, machine)
    return Bound(part, kind, share, words)


def explain_bounds(result: RunResult) -> str:
    """Where the time lies between its shortest and its longest: everything overlaps, or nothing does."""
    if "array" in result.work:
        from hwsim.results.array_words import array_bounds

        return array_bounds(result)
    if "gpu" in result.work:
        from hwsim.results.gpu_words import gpu_bounds

        return gpu_bounds(result)
    overlap = result.resolved["machine"]["compute"][0].get("overlap", "full")
    meaning = {
        "full": "this machine overlaps all but loop starts",
        "memory": "this machine overlaps transfers with each other, not with instructions",
        "none": "this machine overlaps nothing",
    }
    lower, upper = seconds(result.bounds["lower_s"]), seconds(result.bounds["upper_s"])
    return f"{lower} if all parts overlapped, {upper} if none did; {meaning[overlap]}"


def part_words(name: str) -> str:
    """A row of the attribution table: what the core did, or what it waited for."""
    if name in COMPUTE:
        return f"{name} unit at work"
    if name.startswith(LATENCY):
        return f"waits for the {name}"
    if ARROW in name:
        source, _, target = name.partition(ARROW)
        return f"waits for {source} {ARROW} {target}"
    return {
        "array": "values stream through the array",
        "math": "multiply-adds on the SMs",
        "special": "special functions and lanes on the SMs",
        "load/store": "loads and stores on the SMs",
        "launch": "starts kernels",
        "start": "starts and ends blocks",
        "step latency": "waits for operands of a step",
        "write": "writes results",
        "power": "slowed by the power limit",
        "tail": "waits for the last blocks",
        "vector": "the vector unit works",
        "fill and drain": "the array fills or drains",
        "outputs": "waits for room for outputs",
        "scratchpad": "waits for a scratchpad to deliver",
        "issue": "issues other instructions",
        "load port": "waits for a load port",
        "store port": "waits for a store port",
        "dependency chain": "waits in a dependency chain",
        "loop start": "starts innermost loops",
        "spawn": "starts the cores",
        "barrier": "waits for other cores",
    }.get(name, f"waits for {name}")


def crowded_level(result: RunResult, machine: MachineSpec, first: str = "") -> Crowding | None:
    """A cache whose misses come mostly from a tensor that crowds into few of its sets; `first` goes first."""
    for level in sorted(machine.caches, key=lambda cache: cache.name != first):
        tensor = _most_missed(result, level.name)
        counts = result.caches.get(level.name)
        if tensor is None or counts is None or not counts.accesses or counts.misses < counts.accesses / 50:
            continue
        facts = result.tensors[tensor]
        if facts["row_bytes"]:
            found = find_crowding(level, {tensor: facts["row_bytes"]}, {tensor: facts["rows"]})
            if found is not None:
                return found
    return None


def _overlaps_all(result: RunResult) -> bool:
    return bool(result.resolved["machine"]["compute"][0].get("overlap", "full") == "full")


def _longest(result: RunResult) -> tuple[str, float]:
    parts = result.bounds["parts"]
    together = summed(result.attribution)
    if _overlaps_all(result) and parts:
        name = max(sorted(parts), key=lambda part: parts[part])
        if name.startswith(LATENCY):
            # Loads that wait for each other: their latencies add up, and the one that the most cycles go to decides.
            name = next((part for _, part in together if part.startswith(LATENCY)), name)
        return name, parts[name] / result.time_s if result.time_s else 0.0
    if not together:
        return "nothing", 0.0
    (_, name), cycles = next(iter(together.items()))
    return name, cycles / sum(together.values())


def _describe(part: str, result: RunResult, machine: MachineSpec) -> tuple[str, str]:
    if part in COMPUTE:
        return "compute", _compute(part, result, machine)
    if part.startswith(LATENCY):
        return "chase", _chase(part.removeprefix(LATENCY), machine)
    if ARROW in part:
        return _transfer(part, result, machine)
    sentences: dict[str, tuple[str, Callable[[RunResult, MachineSpec], str]]] = {
        "dependency chain": ("chain", _chain),
        "issue": ("issue", _issue),
        "load port": ("port", _load_port),
        "store port": ("port", _store_port),
        "loop start": ("loop", _loop_start),
        "spawn": ("parallel", _parallel),
        "barrier": ("parallel", _parallel),
    }
    if part in sentences:
        kind, sentence = sentences[part]
        return kind, sentence(result, machine)
    return "other", f"Bound by {part}."


def _compute(part: str, result: RunResult, machine: MachineSpec) -> str:
    rate = percent(result.utilisation, 1)
    start = f"Bound by arithmetic: the {part} unit never rests, at {rate} of the peak."
    simd = machine.cpu.simd
    if simd is not None and not _vectorised(result):
        return f"{start} One value at a time is computed; vectors of {simd.bits} bits would hold several."
    idle = machine.compute[0].count - result.work["cores"]
    if idle > 0:
        return f"{start} {counted(idle, 'core')} more could share the work."
    return f"{start} Only fewer operations, or a lower precision, would make it faster."


def _chain(result: RunResult, machine: MachineSpec) -> str:
    unit = machine.cpu
    fused = result.work["instructions"]["fma"] > 0 and unit.ports.fma > 0
    latency = unit.latency.fma if fused else unit.latency.add
    return (
        "Bound by the chain of dependent additions: "
        f"each waits {counted(latency, 'cycle')} for the one before. "
        "More sums at a time (a register tile, vectors) would fill the gaps."
    )


def _issue(result: RunResult, machine: MachineSpec) -> str:
    instructions, flops = sum(result.work["instructions"].values()), result.work["flops"]
    each = f"{digits(instructions / flops)} instructions for each operation" if flops else "few operations among them"
    remedy = "A register tile would" if _vectorised(result) else "Vectors or a register tile would"
    width = machine.cpu.issue_width
    start = f"Bound by instruction issue: {each}, {width} of them per cycle."
    return f"{start} {remedy} do more with each instruction."


def _load_port(result: RunResult, machine: MachineSpec) -> str:
    loads, flops = result.work["instructions"]["load"], result.work["flops"]
    ports = counted(machine.cpu.ports.load, "load port")
    each = f"{digits(loads / flops)} loads for each operation on {ports}" if flops else f"{ports} for all loads"
    return f"Bound by loads into registers: {each}. A register tile uses each loaded value several times."


def _store_port(result: RunResult, machine: MachineSpec) -> str:
    ports = counted(machine.cpu.ports.store, "store port")
    return f"Bound by stores: {ports} for all of them. Sums that stay in a register are stored once."


def _loop_start(result: RunResult, machine: MachineSpec) -> str:
    return "Bound by the start of short loops: the innermost loop ends before it is under way. Make it longer."


def _parallel(result: RunResult, machine: MachineSpec) -> str:
    cores = counted(result.work["cores"], "core")
    start = f"Bound by starting and gathering {cores}: there is too little work for so many."
    return f"{start} Use fewer, or a larger problem."


def _chase(level: str, machine: MachineSpec) -> str:
    latency = machine.level(level).latency
    return (
        f"Bound by the latency of {level}, {latency}: the address of each load comes from the load before, "
        "so that no two overlap. Only a smaller working set, nearer to the core, would help."
    )


def _transfer(part: str, result: RunResult, machine: MachineSpec) -> tuple[str, str]:
    """Bandwidth or latency: does the link carry all that it can, or does each line keep the core waiting?"""
    source, _, target = part.partition(ARROW)
    level = machine.level(source)
    assert isinstance(level, CacheSpec | DramSpec)
    tensor = _most_missed(result, target)
    if target not in result.caches or _streams(part, level, result, machine):
        rate = f" ({level.bandwidth})" if level.bandwidth is not None else ""
        remedy = (
            "Keep values in registers (a register tile), or move fewer bytes per value."
            if target not in result.caches
            else "Use each line more often while it is near (tiles, fusion), or move fewer bytes per value."
        )
        return "bandwidth", f"Bound by the bandwidth of {source}{rate}: it delivers all that it can. {remedy}"
    misses = result.caches[target].misses
    whose = f", most of them in {tensor}" if tensor is not None and len(result.tensors) > 1 else ""
    start = (
        f"Bound by the latency of {source} ({level.latency}): {misses:,} misses in {target}{whose}, "
        "and few of them overlap."
    )
    crowding = crowded_level(result, machine, target)
    if crowding is not None:
        return "latency", (
            f"{start} Rows of {crowding.tensor} are {crowding.row_bytes:,} B apart: a column falls into only "
            f"{crowding.used_sets} of the {crowding.sets} sets of {crowding.level}."
        )
    return "latency", f"{start} Another loop order or tiles would make neighbours follow each other."


def _streams(part: str, level: CacheSpec | DramSpec, result: RunResult, machine: MachineSpec) -> bool:
    """Whether bytes over bandwidth explain most of the time of a transfer."""
    core = CpuCore(machine, machine.cpu)
    counts = result.memory[level.name]
    cores = result.work["cores"]
    shared = isinstance(level, DramSpec) or level.shared_by != 1
    own = core.bandwidth_cycles(level, counts.bytes_read // cores, counts.bytes_written // cores)
    all_of_them = core.instance_cycles(level, counts.bytes_read, counts.bytes_written) if shared else own
    alone: float = result.bounds["parts"].get(part, result.time_s)
    return float(max(own, all_of_them)) / core.clock_hz >= BANDWIDTH_SHARE * alone


def _most_missed(result: RunResult, level: str) -> str | None:
    misses = {name: facts["misses"].get(level, 0) for name, facts in result.tensors.items()}
    return max(sorted(misses), key=lambda name: misses[name]) if any(misses.values()) else None


def _vectorised(result: RunResult) -> bool:
    return bool(result.resolved["workload"].get("schedule", {}).get("vector", False))
