"""What a run on cores is bound by: the part that decides its time, what that means, and what to try next.

Where everything overlaps, a part that alone takes nearly all of the time decides: the run cannot be shorter. Otherwise
the one that the most cycles are put down to decides.

`explain` adds to that what a miss costs, which tensor misses, and in which sets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

from hwsim.engine import BUSY, summed
from hwsim.memory.counters import CacheCounters, DramCounters
from hwsim.memory.locality import Crowding, Pressure, find_crowding, measure_set_pressure
from hwsim.numerics.datapath import find_datapath
from hwsim.program.kernel import Kernel, rows_of
from hwsim.result import RunResult, bytes_moved, workload_of
from hwsim.spec.machine import CacheSpec, DramSpec, MachineSpec
from hwsim.target import (
    ARROW,
    Advice,
    Bound,
    Details,
    Line,
    Section,
    Table,
    Why,
    bounds_words,
    find_target,
    intensity_head,
    per_byte,
)
from hwsim.targets.cpu.hazards import can_crowd
from hwsim.targets.cpu.model import CpuCore, core_spec
from hwsim.targets.cpu.spec import CpuSpec
from hwsim.units import bar, counted, data, digits, percent, ratio


def advise(machine: MachineSpec, result: RunResult, bound: Bound) -> Advice:
    """The first change that makes what decides shorter: of the schedule, else of the machine, to see what it costs."""
    return _of_schedule(machine, result, bound) or _of_machine(machine, result, bound)


def _of_schedule(machine: MachineSpec, result: RunResult, bound: Bound) -> Advice | None:
    """A choice that addresses what bounds the run, from what costs most to what is merely interesting."""
    schedule = result.resolved.workload.get("schedule", {})
    cores, idle = result.work.cores, machine.compute[0].count - result.work.cores
    _, arrow, target = bound.part.partition(ARROW)
    near = bool(arrow) and target not in result.caches
    padded = _padding(machine, result, target) if arrow else None
    at_work = bound.kind in ("compute", "issue", "port", "chain")
    few_sums = schedule.get("v1") == 1
    if bound.kind == "latency" and padded is not None:
        return padded
    wider = core_spec(machine).simd is not None and not (few_sums and _one_vector(machine, result))
    if at_work and schedule.get("vector") is False and wider:
        return _change({"vector": "true"}, "several values in each instruction")
    if (at_work or bound.kind == "loop" or bound.part == "store forwarding") and (longer := _longer_rows(result)):
        return _change({"tile": str(longer)}, "longer rows of a tile, along which the innermost loop runs")
    if few_sums and (near or bound.kind in ("chain", "issue", "port", "loop")):
        return _change({"v1": "4"}, "a register tile: several sums at a time, each loaded value used several times")
    if (
        bound.kind in ("latency", "bandwidth")
        and "tile" in schedule
        and not is_tiled(result.resolved.workload)
        and not near
        and not _found_once(machine, result, target)
    ):
        if few_sums and _along_rows(schedule):  # a tile would only cut the innermost loop short
            return _change({"v1": "4"}, "a register tile: each line that comes is used for several rows")
        return _change({"tile": "32"}, "tiles that stay in the cache")
    if bound.kind in ("latency", "bandwidth", "rows") and schedule.get("fused") is False:
        return _change({"fused": "true"}, "one pass over memory instead of three")
    if bound.kind == "parallel" and cores > 1:
        return _change({"cores": str(max(1, cores // 2))}, "fewer cores to start and to wait for")
    if at_work and schedule.get("parallel") == "none" and idle > 0 and _worth_sharing(machine, result):
        return _change({"parallel": "rows"}, "the same work on all cores")
    return padded if bound.kind == "bandwidth" else None


def _found_once(machine: MachineSpec, result: RunResult, target: str) -> bool:
    """Whether a cache misses each line once: tiles bring none of them less often."""
    return target in result.caches and _comes_once(machine, result, target)


def _one_vector(machine: MachineSpec, result: RunResult) -> bool:
    """Whether a row of a tile is no longer than a vector: each would be a loop of its own."""
    tile = result.resolved.workload.get("schedule", {}).get("tile")
    simd, bits = core_spec(machine).simd, find_datapath(str(result.resolved.workload["precision"])).a.bits
    return isinstance(tile, int) and simd is not None and tile * bits <= simd.bits


def _worth_sharing(machine: MachineSpec, result: RunResult) -> bool:
    """Whether starting cores takes far less than the run; products of parts (Strassen's) would start them each time."""
    core = CpuCore(machine, core_spec(machine))
    starting = sum(each.seconds(core.clock_hz) for each in (core.unit.spawn, core.unit.barrier) if each is not None)
    return result.time_s > 2 * starting and "cutoff" not in result.resolved.workload.get("schedule", {})


def _longer_rows(result: RunResult) -> int | None:
    """Four times the tile, where vectors run along its rows and are few; none where the tile has the whole row."""
    schedule, n = result.resolved.workload.get("schedule", {}), result.resolved.workload.get("sizes", {}).get("n", 0)
    tile = schedule.get("tile")
    if not isinstance(tile, int) or schedule.get("v1") != 1 or not _vectorised(result) or not _along_rows(schedule):
        return None
    return min(4 * tile, n) if tile < n else None


def _padding(machine: MachineSpec, result: RunResult, target: str) -> Advice | None:
    """Rows a line longer, where columns crowd into few sets of a level and the workload lets rows be padded."""
    schedule = result.resolved.workload.get("schedule", {})
    if "ld" not in schedule or schedule.get("packed") or schedule["ld"] is not None:
        return None
    crowding = crowding_of(result, machine, target)
    if crowding is None:
        return None
    facts = result.tensors[crowding.tensor]
    ld = crowding.better_row_bytes * facts.elements // facts.bytes
    return _change({"ld": str(ld)}, f"rows a line longer, so that columns of {crowding.tensor} use all sets")


def _change(parameters: dict[str, str], why: str) -> Advice:
    return Advice(tuple(parameters.items()), (), why)


def _of_machine(machine: MachineSpec, result: RunResult, bound: Bound) -> Advice:
    """The part that decides made faster, or left out: what it costs."""
    source, arrow, target = bound.part.partition(ARROW)
    level = source.removeprefix(LATENCY)
    unit, name = core_spec(machine), machine.compute[0].name
    if bound.kind == "rows":
        return Advice((), (f"{level}.timing=null",), "as if no row had to be opened: what that costs")
    if bound.kind == "bandwidth" and target not in result.caches:
        return Advice((), (f"{level}.bandwidth=inf",), f"how fast it would be if {level} kept up")
    if bound.kind == "bandwidth":
        faster = (f"{level}.bandwidth=inf", *_half_latency(machine, level))
        return Advice((), faster, f"how fast it would be if {level} kept up, and answered in half the time")
    halved = _half_latency(machine, level) if bound.kind == "chase" or arrow else ()
    if bound.kind == "chase" and halved:
        return Advice((), halved, "with half the latency: how much of the time is waiting")
    if bound.kind == "chase":
        amount, size = str(result.resolved.workload["sizes"]["bytes"]).split()
        return _change({"bytes": f"{4 * int(amount)} {size}"}, "a chain four times as long: what the next level takes")
    if arrow and halved and target in result.caches and _comes_once(machine, result, target):
        more = "with half the latency: what twice as many lines under way would bring"
        return Advice((), halved, more)
    if bound.part == "short run":
        far = [*machine.caches[2:], machine.dram]
        endless = tuple(f"{each.name}.bandwidth=inf" for each in far)
        return Advice((), endless, "as if no prefetcher came late: what short runs cost")
    if arrow:
        return Advice((), (f"{machine.caches[0].name}.size=inf",), "the same with a perfect cache: what misses cost")
    return _of_core(unit, name, bound.part, result)


def _of_core(unit: CpuSpec, name: str, part: str, result: RunResult) -> Advice:
    """The same of parts of the core itself."""
    ports, latency = unit.ports, unit.latency
    if part in COMPUTE or part in ("load port", "store port"):
        port = part.removesuffix(" port")
        port = "mul" if port == "fma" and not ports.fma else port
        return Advice((), (f"{name}.ports.{port}={2 * getattr(ports, port)}",), f"with twice the {port} ports")
    if part == "issue":
        return Advice((), (f"{name}.issue_width={2 * unit.issue_width}",), "with twice as many instructions per cycle")
    if part == "loop start":
        start = "vector_loop_start" if _vectorised(result) else "loop_start"
        return Advice((), (f"{name}.{start}=0",), "as if loops began at once: what starting them costs")
    if part == "address translation":
        return Advice((), (f"{name}.tlb=null",), "as if every page were known: what looking them up costs")
    if part == "store forwarding":
        return Advice((), (f"{name}.latency.forward=1",), "as if sums in memory hardly waited: what that costs")
    if part == "dependency chain":
        faster = tuple(f"{name}.latency.{each}=1" for each in ("fma", "add") if getattr(latency, each) > 1)
        return Advice((), faster or (f"{name}.window=1024",), "as if each addition took one cycle")
    return _change({"n": str(2 * int(result.resolved.workload.get("sizes", {}).get("n", 128)))}, "twice the size")


def _half_latency(machine: MachineSpec, name: str) -> tuple[str, ...]:
    """The setting that halves the latency of a level, if it has one of more than a cycle."""
    latency = machine.level(name).latency
    if latency is None:
        return ()
    amount, unit = str(latency).split()
    half = float(amount) / 2
    if not unit.startswith("cycle"):
        return (f"{name}.latency={half:g} {unit}",)
    return (f"{name}.latency={counted(int(half), 'cycle')}",) if half >= 1 else ()


# What it is bound by --------------------------------------------------------------------------------------------------

LATENCY = "latency of "
BANDWIDTH_SHARE = 0.7
"""A transfer that needs this share of its time at full bandwidth is bound by bandwidth, else by latency."""

NEARLY = 0.9
"""A part that alone takes this share of the time decides it, where everything overlaps: no run can be shorter."""
ALIKE = 0.99
"""Parts this close to the longest are as long; of them, the one that more cycles went to is named."""
MUCH_LESS = 0.8
"""A unit at work for less than this of what another part takes beside it does not decide, whatever its row says."""
ALWAYS = 0.95
"""A unit that is at work for this share of the time always has work."""
NEAR_PEAK = 0.95
"""A unit that always has work, and reaches less of the peak than this, does something else than the peak counts."""
COMPUTE = ("fma", "add", "special")
PARTS = {
    "issue": "issues other instructions",
    "load port": "waits for a load port",
    "store port": "waits for a store port",
    "dependency chain": "waits in a dependency chain",
    "loop start": "starts innermost loops",
    "short run": "waits for short runs of lines",
    "spawn": "starts the cores",
    "barrier": "waits for other cores",
}
"""Rows of the attribution table that are not simply waits for what they are called."""


def explain(machine: MachineSpec, result: RunResult) -> Why:
    """What decided the time of a run on cores."""
    unit = machine.compute[0]
    cores = result.work.cores
    bound = find_bound(machine, result)
    return Why(
        used=f"{cores} of {counted(unit.count, unit.name)}",
        whole=counted(len(result.attribution), "core"),
        peak=counted(cores, "core"),
        units=int(cores),
        bound=bound,
        bounds=_bounds(result),
        advice=advise(machine, result, bound),
        parts={name: part_words(name) for _, name in summed(result.attribution)},
        levels=_level_table(result),
        look=partial(look, machine, result),
        schedule=result.resolved.workload.get("schedule", {}),
    )


def find_bound(machine: MachineSpec, result: RunResult) -> Bound:
    """The longest part, in one or two sentences."""
    part, share = _deciding(result)
    kind, words = _describe(part, result, machine)
    return Bound(part, kind, share, words + _beside(part, result))


def part_words(name: str) -> str:
    """A row of the attribution table: what the core did, or what it waited for."""
    if name in COMPUTE:
        return f"{name} unit at work"
    if name.startswith(LATENCY):
        return f"waits for the {name}"
    if ARROW in name:
        source, _, target = name.partition(ARROW)
        return f"waits for {source} {ARROW} {target}"
    return PARTS.get(name, f"waits for {name}")


def _bounds(result: RunResult) -> str:
    """Where the time lies between its shortest and its longest: everything overlaps, or nothing does."""
    overlap = result.resolved.machine["compute"][0].get("overlap", "full")
    meaning = {
        "full": "this machine overlaps all but loop starts and short runs",
        "memory": "this machine overlaps transfers with each other, not with instructions",
        "none": "this machine overlaps nothing",
    }
    return f"{bounds_words(result)}; {meaning[overlap]}"


def _level_table(result: RunResult) -> Table:
    """Accesses, hits, traffic towards the core, and operations per byte of it, level by level."""
    rows = []
    for name, counts in result.memory.items():
        cache = counts if isinstance(counts, CacheCounters) else None
        accesses = counts.reads + counts.writes
        rows.append(
            (
                name,
                f"{accesses:,}",
                "" if cache is None else percent(cache.hits, accesses),
                f"{getattr(counts, 'row_hits', 0):,} row hits" if cache is None else f"{cache.misses:,}",
                data(bytes_moved(counts)),
                per_byte(result, name),
            )
        )
    columns = ("level", "accesses", "hit rate", "misses", "memory traffic", intensity_head(result))
    return Table(columns, tuple(rows))


def _overlaps_all(result: RunResult) -> bool:
    return bool(result.resolved.machine["compute"][0].get("overlap", "full") == "full")


def _deciding(result: RunResult) -> tuple[str, float]:
    """A part that alone takes nearly all of the time, where all overlap; else the one that the most cycles went to, or
    one that runs beside it and takes longer."""
    parts = result.bounds.parts
    together = summed(result.attribution)
    if _overlaps_all(result) and parts and result.time_s:
        cycles_of = {part: cycles for (_, part), cycles in together.items()}
        longest = max(parts.values())
        alike = [part for part in sorted(parts) if parts[part] >= ALIKE * longest]
        name = max(alike, key=lambda part: (cycles_of.get(part, 0), parts[part]))
        if parts[name] >= NEARLY * result.time_s or not together:
            if name.startswith(LATENCY):
                # Loads that wait for each other: their latencies add up, and the one with the most cycles decides.
                name = next((part for _, part in together if part.startswith(LATENCY)), name)
            return name, parts[name] / result.time_s
    if not together:
        return "nothing", 0.0
    (_, name), cycles = next(iter(together.items()))
    if _overlaps_all(result) and name in COMPUTE and result.time_s:
        beside = max(parts, key=lambda part: parts[part])
        if parts.get(name, 0.0) < MUCH_LESS * parts[beside]:
            return beside, parts[beside] / result.time_s
    return name, cycles / sum(together.values())


def _beside(part: str, result: RunResult) -> str:
    """Why another row of the table may be larger: what overlaps is put down to the shorter part first."""
    together = summed(result.attribution)
    whole = sum(together.values())
    own = sum(cycles for (_, name), cycles in together.items() if name == part)
    (_, first), most = next(iter(together.items()), (("", part), 0))
    if first == part or most <= own or part not in result.bounds.parts or not result.time_s:
        return ""
    alone = percent(min(1.0, result.bounds.parts[part] / result.time_s), 1)
    overlapped = f"{part_words(first)}, {percent(most, whole)}"
    return f" Alone it takes {alone} of the time; the table puts first what it overlaps with ({overlapped})."


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
        "short run": ("latency", _short_run),
        "spawn": ("parallel", _parallel),
        "barrier": ("parallel", _parallel),
    }
    if part in sentences:
        kind, sentence = sentences[part]
        return kind, sentence(result, machine)
    return "other", f"Bound by {part}."


def _compute(part: str, result: RunResult, machine: MachineSpec) -> str:
    rate = percent(result.utilisation, 1)
    busy = _busy_share(part, result)
    at_work = "always has work" if busy >= ALWAYS else f"is at work {percent(busy, 1)} of the time"
    full = busy < ALWAYS or result.utilisation >= NEAR_PEAK
    reason = "" if full else ", as not all it does is whole vectors of multiply-adds"
    start = f"Bound by arithmetic: the {part} unit {at_work}, and {rate} of the peak is reached{reason}."
    simd = core_spec(machine).simd
    if simd is not None and not _vectorised(result):
        return f"{start} One value at a time is computed; vectors of {simd.bits} bits would hold several."
    idle = machine.compute[0].count - result.work.cores
    if idle > 0:
        if result.resolved.workload.get("schedule", {}).get("parallel", "none") != "none":
            return f"{start} Smaller tiles would leave rows for the {counted(idle, 'core')} that stay idle."
        return f"{start} {counted(idle, 'core')} more could share the work."
    return f"{start} Only fewer operations, or a lower precision, would make it faster."


def _busy_share(part: str, result: RunResult) -> float:
    """Share of the time of all cores in which a unit was at work."""
    together = summed(result.attribution)
    whole = sum(together.values())
    return together.get((BUSY, part), 0) / whole if whole else 0.0


def _chain(result: RunResult, machine: MachineSpec) -> str:
    unit = core_spec(machine)
    fused = result.work.instructions["fma"] > 0 and unit.ports.fma > 0
    whole = str(result.resolved.workload.get("precision")).startswith("int")
    latency = unit.latency.fma if fused else unit.latency.integer if whole else unit.latency.add
    return (
        "Bound by the chain of dependent additions: "
        f"each waits {counted(latency, 'cycle')} for the one before. "
        "More sums at a time (a register tile, vectors) would fill the gaps."
    )


def _issue(result: RunResult, machine: MachineSpec) -> str:
    instructions, flops = sum(result.work.instructions.values()), result.work.flops
    each = f"{digits(instructions / flops)} instructions for each operation" if flops else "few operations among them"
    remedy = "A register tile would" if _vectorised(result) else "Vectors or a register tile would"
    width = core_spec(machine).issue_width
    start = f"Bound by instruction issue: {each}, {width} of them per cycle."
    return f"{start} {remedy} do more with each instruction."


def _load_port(result: RunResult, machine: MachineSpec) -> str:
    loads, flops = result.work.instructions["load"], result.work.flops
    ports = counted(core_spec(machine).ports.load, "load port")
    each = f"{digits(loads / flops)} loads for each operation on {ports}" if flops else f"{ports} for all loads"
    return f"Bound by loads into registers: {each}. A register tile uses each loaded value several times."


def _store_port(result: RunResult, machine: MachineSpec) -> str:
    ports = counted(core_spec(machine).ports.store, "store port")
    return f"Bound by stores: {ports} for all of them. Sums that stay in a register are stored once."


def _loop_start(result: RunResult, machine: MachineSpec) -> str:
    return "Bound by the start of short loops: the innermost loop ends before it is under way. Make it longer."


def _short_run(result: RunResult, machine: MachineSpec) -> str:
    return (
        "Bound by short runs of lines from far away: each ends before a prefetcher has found out about it. Longer rows "
        "of a tile, or a tile that stays in the second cache, would help."
    )


def _parallel(result: RunResult, machine: MachineSpec) -> str:
    cores = counted(result.work.cores, "core")
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
    if isinstance(level, DramSpec) and _opens_rows(part, result, machine):
        return "rows", _rows_words(level, result)
    tensor = most_missed(result, target)
    if target not in result.caches or _streams(part, level, result, machine):
        rate = f" ({level.bandwidth})" if level.bandwidth is not None else ""
        remedy = (
            "Keep values in registers (a register tile), or move fewer bytes per value."
            if target not in result.caches
            else "Use each line more often while it is near (tiles, fusion), or move fewer bytes per value."
        )
        return "bandwidth", f"Bound by the bandwidth of {source}{rate}: {_delivered(part, level, result)}. {remedy}"
    misses = result.caches[target].misses
    whose = f", most of them in {tensor}" if tensor is not None and len(result.tensors) > 1 else ""
    crowding = crowding_of(result, machine, target)
    if crowding is not None:
        waits = ", and those of one set wait for each other" if _sets_wait(machine, target) else ""
        return "latency", (
            f"Bound by filling {target} from {source}: {misses:,} misses in {target}{whose}{waits}. "
            f"Rows of {crowding.tensor} are {crowding.row_bytes:,} B apart: a column falls into only "
            f"{crowding.used_sets} of the {crowding.sets} sets of {crowding.level}."
        )
    if _comes_once(machine, result, target):
        return "latency", (
            f"Bound by the latency of {source} ({level.latency}): each of {misses:,} lines comes once from there, so "
            "that no tile moves fewer, and a core keeps too few of them under way to use the whole bandwidth."
        )
    return "latency", (
        f"Bound by the latency of {source} ({level.latency}): {misses:,} misses in {target}{whose}, and few of them "
        "overlap. Another loop order or tiles would make neighbours follow each other."
    )


def _delivered(part: str, level: CacheSpec | DramSpec, result: RunResult) -> str:
    """All that a level can only where it does so nearly all of the time; else what it did on average."""
    if not isinstance(level, DramSpec) or result.bounds.parts.get(part, result.time_s) >= NEARLY * result.time_s:
        return "it delivers all that it can"
    moved = bytes_moved(result.memory[level.name])
    return f"it delivers {data(moved / result.time_s)}/s over the whole run, and all that it can where it decides"


def _opens_rows(part: str, result: RunResult, machine: MachineSpec) -> bool:
    """Whether opening rows of main memory explains most of a transfer from there, and takes longer than its bytes."""
    core, counts = CpuCore(machine, core_spec(machine)), result.memory[machine.dram.name]
    if not isinstance(counts, DramCounters):
        return False
    opening = core.activate_cycles * counts.activates
    moving = core.instance_cycles(core.dram, counts.bytes_read, counts.bytes_written)
    alone: float = result.bounds.parts.get(part, result.time_s)
    return opening > moving and float(opening) / core.clock_hz >= BANDWIDTH_SHARE * alone


def _rows_words(level: DramSpec, result: RunResult) -> str:
    counts = result.memory[level.name]
    assert isinstance(counts, DramCounters)
    bursts = counts.row_hits + counts.activates
    delivered = data(bytes_moved(counts) / result.time_s) if result.time_s else "nothing"
    whole = f" of its {level.bandwidth}" if level.bandwidth is not None else ""
    return (
        f"Bound by opening rows of {level.name}: {counts.activates:,} of {bursts:,} bursts do not find their row "
        f"open, and while rows are opened it delivers {delivered}/s{whole}. Fewer arrays at a time would use more of "
        "each row while it is open."
    )


ONCE = 1.05
"""Misses that are no more than this above the lines of all tensors bring hardly any line twice."""


def _comes_once(machine: MachineSpec, result: RunResult, target: str) -> bool:
    """Whether a level misses about as many lines as the tensors have: then none is missed again, and tiles have nothing
    to do with it."""
    cache = machine.level(target)
    assert isinstance(cache, CacheSpec)
    lines = sum(-(-facts.bytes // cache.line) for facts in result.tensors.values())
    return result.caches[target].misses <= ONCE * lines


def _sets_wait(machine: MachineSpec, target: str) -> bool:
    """Whether fills of one set of a level wait for each other on this machine."""
    core = CpuCore(machine, core_spec(machine))
    return any(
        cache.name == target and can_crowd(cache) and core.misses.set_refill(number) > 0
        for number, cache in enumerate(core.caches)
    )


def _streams(part: str, level: CacheSpec | DramSpec, result: RunResult, machine: MachineSpec) -> bool:
    """Whether bytes over bandwidth explain most of the time of a transfer."""
    core = CpuCore(machine, core_spec(machine))
    counts = result.memory[level.name]
    cores = result.work.cores
    shared = isinstance(level, DramSpec) or level.shared_by != 1
    own = core.bandwidth_cycles(level, counts.bytes_read // cores, counts.bytes_written // cores)
    all_of_them = core.instance_cycles(level, counts.bytes_read, counts.bytes_written) if shared else own
    alone: float = result.bounds.parts.get(part, result.time_s)
    return float(max(own, all_of_them)) / core.clock_hz >= BANDWIDTH_SHARE * alone


def _vectorised(result: RunResult) -> bool:
    return bool(result.resolved.workload.get("schedule", {}).get("vector", False))


# Sets that are crowded ------------------------------------------------------------------------------------------------

MOST_ACCESSES = 400_000_000
"""A longer run is looked at as far as this: some seconds."""


def look_at_sets(
    machine: MachineSpec, kernel: Kernel, misses: Mapping[str, int], most: int = MOST_ACCESSES
) -> Pressure | None:
    """The first block's accesses in the first cache; None where sets mean nothing.

    `misses` of tensors whose columns are walked tell whose rows to look at first.
    """
    if not machine.caches:
        return None
    level = machine.caches[0]
    block = kernel.blocks()[0]
    nests = [nest for step in block.steps() for nest in step.nests]
    measured = measure_set_pressure(level, nests, most)
    if measured is None:
        return None
    crowding = crowded_rows(level, kernel, misses)
    sets = _column_sets(level, kernel, crowding) if crowding is not None else ()
    return Pressure(measured, not _plain(level), crowding, sets, kernel.fmt.element_bytes)


def _plain(level: CacheSpec) -> bool:
    """Whether the level does what the measurement assumes."""
    return (
        level.replacement == "lru"
        and level.write == "back"
        and level.write_allocate
        and level.prefetch.kind == "none"
        and level.inclusion == "none"
        and level.sector_bytes == level.line
    )


def crowded_rows(level: CacheSpec, kernel: Kernel, misses: Mapping[str, int]) -> Crowding | None:
    """A tensor whose rows crowd into few sets of a level; of those with misses, the one with the most goes first."""
    lengths, rows = rows_of(kernel)
    worst_first = sorted(lengths.keys() & misses.keys(), key=lambda name: (-misses[name], name))
    return find_crowding(level, {name: lengths[name] for name in worst_first}, rows)


def _column_sets(level: CacheSpec, kernel: Kernel, crowding: Crowding) -> tuple[int, ...]:
    view = kernel.tensors[crowding.tensor]
    addresses = (view.base + row * crowding.row_bytes for row in range(view.shape[0]))
    return tuple(sorted({address // level.line % level.set_count for address in addresses}))


def crowding_of(result: RunResult, machine: MachineSpec, target: str) -> Crowding | None:
    """The tensor that a level misses most, where its columns are walked and crowd into few sets of this very level."""
    tensor, counts = most_missed(result, target), result.caches.get(target)
    if tensor is None or counts is None or counts.misses < counts.accesses / 50:
        return None
    facts = result.tensors[tensor]
    if not facts.row_bytes or not facts.rows or not walks_columns(result.resolved.workload, tensor):
        return None
    if _comes_once(machine, result, target) and not _sets_wait(machine, target):
        return None
    level = machine.level(target)
    assert isinstance(level, CacheSpec)
    return find_crowding(level, {tensor: facts.row_bytes}, {tensor: facts.rows})


def is_tiled(workload: Mapping[str, Any]) -> bool:
    """Whether loops are cut: a tile as large as all of them cuts nothing."""
    schedule, n = workload.get("schedule", {}), workload.get("sizes", {}).get("n")
    sizes = (schedule.get(name) for name in ("tile", "b1", "b2"))
    return any(isinstance(size, int) and (n is None or size < n) for size in sizes)


def walks_columns(workload: Mapping[str, Any], tensor: str) -> bool:
    """Whether a loop steps from row to row of a tensor before it is through with a row: not where the innermost loop
    of a product or a sum runs along it, uncut by a tile. Of other loops nothing is known: they may."""
    schedule = workload.get("schedule", {})
    order = schedule.get("order")
    if order in ("rows", "columns"):
        return bool(order == "columns")
    if is_tiled(workload) or not isinstance(order, str) or sorted(order) != ["i", "j", "k"]:
        return True
    if _along_rows(schedule):
        return False
    return tensor == "B" if order[-1] == "k" else tensor != "B"


def _along_rows(schedule: Mapping[str, Any]) -> bool:
    """Whether the innermost loop of a product runs along rows of all that it walks."""
    order = str(schedule.get("order"))
    return len(order) == 3 and order[-1] == {"kj": "j", "jk": "k"}.get(str(schedule.get("b_layout")))


def most_missed(result: RunResult, level: str) -> str | None:
    """The tensor with the most misses in a level."""
    misses = {name: facts.misses.get(level, 0) for name, facts in result.tensors.items()}
    return max(sorted(misses), key=lambda name: misses[name]) if any(misses.values()) else None


# What explain shows ---------------------------------------------------------------------------------------------------

GROUPS = 16
"""Bars of the set histogram: neighbouring sets are shown together."""
EVEN = 0.05
"""Sets whose misses differ by no more than this share fare alike."""
REUSE = (
    "uses per load: multiply-adds for each value loaded into a register; a tensor is reused along the index "
    "that it does not have, as often as the register tile is long there. accesses per line: how often a line "
    "is touched each time that it comes into the first cache; cache tiles raise it."
)


def look(machine: MachineSpec, result: RunResult) -> Details:
    """The accesses once more; a kernel that lives in somebody's Python program cannot be built here."""
    workload = workload_of(result)
    pressure, loaded = None, {}
    if workload.op != "python":
        kernel = find_target(machine).prepare(workload, math=False)
        pressure, loaded = _pressure(machine, kernel, result), elements_loaded(kernel)
    sections = [
        Section("What a miss costs", (_penalty_table(machine),)),
        Section(
            "Which tensor misses, and how often its values are used",
            (_tensor_table(result, loaded), Line(REUSE, "faint")),
        ),
    ]
    if pressure is not None:
        waits = _sets_wait(machine, pressure.measured.level)
        pads = "ld" in result.resolved.workload.get("schedule", {})
        sections.append(
            Section(f"Misses of {pressure.measured.level} by set", tuple(_sets(pressure, waits=waits, pads=pads)))
        )
    return Details(tuple(sections), loaded, pressure)


def elements_loaded(kernel: Kernel) -> dict[str, float]:
    """Elements of each tensor that are loaded into registers, vectors counted by what is in them."""
    loaded: defaultdict[str, float] = defaultdict(float)
    for block in kernel.blocks():
        for step in block.steps():
            for nest in step.nests:
                for access in nest.accesses:
                    if not access.write:
                        loaded[access.tensor] += float(nest.count(access) * access.size)
    sizes = {name: view.element_bits / 8 for name, view in kernel.tensors.items()}
    return {name: count / sizes[name] for name, count in loaded.items() if name in sizes}


def _pressure(machine: MachineSpec, kernel: Kernel, result: RunResult) -> Pressure | None:
    if not machine.caches:
        return None
    first = machine.caches[0].name
    workload = result.resolved.workload
    misses = {n: facts.misses.get(first, 0) for n, facts in result.tensors.items() if walks_columns(workload, n)}
    return look_at_sets(machine, kernel, misses)


def _penalty_table(machine: MachineSpec) -> Table:
    """Latencies from the core, and how many times slower each level is than the one before."""
    core = CpuCore(machine, core_spec(machine))
    levels = [level for level in machine.memory if isinstance(level, CacheSpec | DramSpec)]
    clocks = [machine.clock_hz(level.clock) if level.clock else core.clock_hz for level in levels]
    waits = [
        Fraction(0) if level.latency is None else level.latency.seconds(hz)
        for level, hz in zip(levels, clocks, strict=True)
    ]
    cycles = [float(wait * core.clock_hz) for wait in waits]
    rows = tuple(
        (
            level.name,
            "" if level.latency is None else str(level.latency),
            digits(cycles[number]),
            ratio(cycles[number] / cycles[number - 1]) if number and cycles[number - 1] else "",
            ratio(cycles[number] / cycles[0]) if number and cycles[0] else "",
        )
        for number, level in enumerate(levels)
    )
    return Table(("level", "latency", "cycles", "than the level before", "than the first"), rows)


def _tensor_table(result: RunResult, loaded: Mapping[str, float]) -> Table:
    levels = list(result.caches)
    rows = []
    for name, facts in result.tensors.items():
        misses = [facts.misses.get(level, 0) for level in levels]
        uses = result.work.macs / loaded[name] if loaded.get(name) else 0.0
        rows.append(
            (
                name,
                f"{facts.loads:,}",
                f"{facts.stores:,}",
                *(f"{count:,}" for count in misses),
                digits(uses) if uses else "",
                digits((facts.loads + facts.stores) / misses[0]) if misses and misses[0] else "",
            )
        )
    heads = (f"{level} misses" for level in levels)
    return Table(("tensor", "loads", "stores", *heads, "uses per load", "accesses per line"), tuple(rows))


def _sets(pressure: Pressure, *, waits: bool, pads: bool) -> list[Table | Line]:
    """Misses by kind and by set, and what would help; whether fills of one set wait, and rows can be padded."""
    measured = pressure.measured
    total = measured.total
    partly = "" if measured.complete else f" of the first {measured.accesses:,} accesses"
    as_if = ", counted as if it were a plain LRU cache" if pressure.assumed_lru else ""
    kinds = (
        ("cold", measured.cold, "the first time that a line is touched"),
        ("capacity", measured.capacity, "more lines in use than the whole cache holds"),
        ("conflict", measured.conflict, "there was room, but not in the line's set"),
    )
    rows = tuple((kind, f"{count:,}", percent(count, total), meaning) for kind, count, meaning in kinds)
    return [
        Line(f"{counted(total, 'miss', 'misses')}{partly}{as_if}:"),
        Table(("kind", "misses", "share", "meaning"), rows, (0, 3)),
        _by_set(pressure),
        Line(_conflict_words(pressure, waits=waits, pads=pads), "strong"),
    ]


def _by_set(pressure: Pressure) -> Table | Line:
    """One line where all sets fare alike, else a histogram."""
    measured = pressure.measured
    low, high = int(measured.misses.min()), int(measured.misses.max())
    if high - low > high * EVEN:
        return _histogram(pressure)
    each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    lines = digits(float(measured.lines.mean()))
    return Line(
        f"All {len(measured.misses)} sets fare alike over the whole run: {each} misses in each, and {lines} lines that "
        f"compete for its {measured.ways} ways."
    )


def _histogram(pressure: Pressure) -> Table:
    measured = pressure.measured
    sets = len(measured.misses)
    step = max(1, -(-sets // GROUPS))
    groups = [(first, min(first + step, sets)) for first in range(0, sets, step)]
    most = max(int(measured.misses[a:b].sum()) for a, b in groups) or 1
    rows = []
    for a, b in groups:
        misses = int(measured.misses[a:b].sum())
        name = f"{a}" if b == a + 1 else f"{a}–{b - 1}"
        competing = f"{digits(float(measured.lines[a:b].mean()))} for {measured.ways} ways"
        conflicts = f"{int(measured.conflicts[a:b].sum()):,}"
        rows.append((name, f"{misses:,}", conflicts, competing, bar(misses / most, 20)))
    return Table(("sets", "misses", "conflicts", "lines for each set", ""), tuple(rows), (0, 4))


ALIKE_SETS = 0.25
"""Sets whose misses differ by no more than this share are said to get about as many."""


def _conflict_words(pressure: Pressure, *, waits: bool, pads: bool) -> str:
    """Whether padding would save misses, or let those of one set come at the same time."""
    measured = pressure.measured
    total = measured.total
    if total and measured.cold > total / 2:
        return "Most lines are fetched once: no cache and no padding saves these; touching fewer bytes does."
    crowding = pressure.crowding
    few = not total or measured.conflict < total / 20
    if few and (crowding is None or not waits):
        return "Hardly any are set conflicts: padding would not help; smaller tiles or a larger cache would."
    start = f"{percent(measured.conflict, total)} of these are set conflicts."
    if crowding is None:
        return f"{start} More ways, or another distance between the arrays, would help."
    shown = ", ".join(str(number) for number in pressure.column_sets[:8])
    more = ", …" if len(pressure.column_sets) > 8 else ""
    padded = crowding.better_row_bytes // pressure.element_bytes
    column = (
        f"rows of {crowding.tensor} are {crowding.row_bytes:,} B apart, so its first column falls into "
        f"{len(pressure.column_sets)} of {crowding.sets} sets ({shown}{more})"
    )
    named = f" (ld={padded})" if pads else ""
    spread = f"with rows of {crowding.better_row_bytes:,} B{named} a column uses all sets"
    if few:
        low, high = int(measured.misses.min()), int(measured.misses.max())
        alike = ", and over the whole run every set gets about as many" if high - low <= high * ALIKE_SETS else ""
        return (
            f"Padding saves hardly any of these: as many lines would miss without sets{alike}. But one column is "
            f"walked at a time: {column}, and fills of one set wait for each other. Padding lets them overlap: "
            f"{spread}."
        )
    return (
        f"{start} {column[0].upper()}{column[1:]}, and only {crowding.room_lines} of its lines stay. Other columns "
        f"crowd likewise. Padding helps: {spread}."
    )
