"""What a run on an array is bound by, in words, and how well its cells were used."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from hwsim.engine import FIRST_BYTES, WAITING, Outcome, summed
from hwsim.memory.counters import DramCounters, ScratchpadCounters
from hwsim.result import RunResult, machine_of
from hwsim.spec.machine import DramSpec, MachineSpec, ScratchpadSpec
from hwsim.target import (
    FILLED,
    Advice,
    Bound,
    Details,
    Line,
    Section,
    Why,
    bounds_words,
    choices_read,
    dram_of,
    factors,
    has_limit,
    larger,
    longest_part,
    main_memory,
    memory_busy,
    pass_table,
    scratchpad_levels,
    stream_bounds,
    tensor_traffic,
    tile_words,
    without_limit,
)
from hwsim.targets.systolic.spec import SystolicSpec
from hwsim.units import counted, percent

PARTS = {
    "array": "values stream through the array",
    "vector": "the vector unit works",
    "fill and drain": "the array fills or drains",
    "outputs": "waits for room for outputs",
    "scratchpad": "waits for a scratchpad to deliver",
}
"""Rows of the attribution table that are not simply waits for what they are called."""
MOST_PASSES = 24


def explain(machine: MachineSpec, result: RunResult) -> Why:
    """What decided the time of a run on arrays."""
    unit = result.resolved.machine["compute"][0]
    array = result.work.use["array"]
    count = "1 array" if unit["count"] == 1 else f"{unit['count']} arrays"
    bound = find_bound(result)
    return Why(
        used=f"{count} of {unit['rows']} x {unit['columns']}, {unit['dataflow']}, {unit['folding']}",
        whole="the array",
        peak=counted(array["count"], "array"),
        units=sum(each.count for each in machine.compute),
        bound=bound,
        bounds=bounds_words(result),
        advice=advise(result, bound),
        parts=PARTS,
        levels=scratchpad_levels(result, array["levels"]),
        lines=tuple(_use_lines(result)),
        look=partial(look, result),
        schedule=_schedule(machine, result),
    )


def look(result: RunResult) -> Details:
    """How cells were used, in which tiles, and what was moved for them."""
    used = utilisation(result)
    shares = factors(
        (
            ("cells in use while values stream (mapping)", used.mapping),
            ("streaming, not filling or draining", used.streaming),
            ("at it, not stalled by data or the vector unit", used.running),
            ("all together", used.total),
        )
    )
    return Details(
        (
            Section("How the cells were used", (shares,)),
            Section("Which tiles", (pass_table(result, "loop", "tiles", MOST_PASSES),)),
            Section("What went to and from main memory", (tensor_traffic(result, result.work.use["array"]["levels"]),)),
        )
    )


@dataclass(frozen=True)
class Utilisation:
    """Shares that multiply to the share of the peak: cells used, cycles streaming, cycles not stalled."""

    mapping: float
    """Share of the cells that had something to multiply while values streamed."""
    streaming: float
    """Share of the array's own time in which values entered, and not fills, drains or gaps between folds."""
    running: float
    """Share of all time that was the array's own, and not waiting for data or for the vector unit."""

    @property
    def total(self) -> float:
        return self.mapping * self.streaming * self.running


def array_use(outcome: Outcome) -> dict[str, Any]:
    """How the array was used: cycles that values streamed, that it filled, that it stalled, and its passes."""
    found: dict[str, Any] = outcome.use["array"]
    return found


def utilisation(result: RunResult) -> Utilisation:
    """Where the peak was lost."""
    used = result.work.use["array"]
    streaming, filling = used["streaming_cycles"], used["fill_drain_cycles"]
    peak = streaming * used["peak_macs_per_cycle"]
    own = streaming + filling
    return Utilisation(
        used["macs"] / peak if peak else 0.0,
        streaming / own if own else 0.0,
        own / result.cycles if result.cycles else 0.0,
    )


def find_bound(result: RunResult) -> Bound:
    """What most cycles went to."""
    name, share = longest_part(result, "array")
    starved = summed(result.attribution).get((WAITING, "scratchpad"), 0) / max(1, result.cycles)
    if name == "array" and starved > STARVED * share:  # values stream no faster than they are delivered
        name, share = "scratchpad", share + starved
    pad = _slowest_pad(result)
    array, unit = result.work.use["array"], result.resolved.machine["compute"][0]
    pipelined = unit.get("folding") == "pipelined"
    sentences = stream_bounds(result, share, utilisation(result).mapping) | {
        "vector": (
            "compute",
            "Bound by the vector unit: what the array cannot do takes most of the time. More lanes, or fewer "
            "exponentials and divisions, would help.",
        ),
        "fill and drain": (
            "fill",
            f"Bound by filling and draining the array: the tiles are short for {array['rows']} x {array['columns']} "
            f"cells. Longer streams (a larger batch){'' if pipelined else ', or pipelined folding,'} would help.",
        ),
        "scratchpad": (
            "scratchpad",
            f"Bound by {pad or 'a scratchpad'}: it cannot feed the array in time, whose values stream as slowly as "
            "they are delivered. More banks or bandwidth would help.",
        ),
        "outputs": (
            "bandwidth",
            f"Bound by outputs: the array waits for room, while results go to {main_memory(result)}. A second buffer, "
            "or keeping them on the chip, would help.",
        ),
    }
    if name in ("weights", "inputs") and (results := _results_share(result)) > HALF:
        sentences[name] = (
            "bandwidth",
            f"Bound by main memory: the array waits for {name} from {main_memory(result)}, and {percent(results, 1)} "
            "of the bytes there are results. Keeping them on the chip, or in a narrower format, would help.",
        )
    if name in MOVED and _waits_for_first_bytes(result):
        sentences[name] = "latency", _latency_words(result, name)
    bound_kind, words = sentences[name]
    return Bound(name, bound_kind, share, words)


MOVED = ("weights", "inputs", "outputs")
"""What goes to and from main memory."""
IDLE = 0.25
"""A memory that is busy for less of the time is waited for, and not short of bandwidth."""


def _waits_for_first_bytes(result: RunResult) -> bool:
    """Whether transfers take longer to begin than to move, while main memory has little to do."""
    parts = result.bounds.parts
    return memory_busy(result) < IDLE and parts.get(FIRST_BYTES, 0.0) > parts.get(dram_of(result)["name"], 0.0)


def _latency_words(result: RunResult, name: str) -> str:
    waits = "room for outputs" if name == "outputs" else name
    setup = result.resolved.machine["compute"][0]["dma"]["setup"]
    waits_of = ((setup, "of the DMA engine"), (dram_of(result)["latency"], "of latency"))
    begins = " and ".join(f"{time} {what}" for time, what in waits_of if time)
    return (
        f"Bound by the latency of main memory: the array waits for {waits}, and each transfer takes {begins} to begin; "
        f"{main_memory(result)} has little to do. A larger problem moves more in each transfer."
    )


def _without_latency(result: RunResult) -> Advice:
    """What would be left if transfers began at once: the longer of their two waits is taken away."""
    machine, dram = machine_of(result), dram_of(result)
    unit = next(each for each in machine.compute if isinstance(each, SystolicSpec))
    level = next(each for each in machine.memory if isinstance(each, DramSpec))
    hz = machine.clock_hz(unit.clock)
    setup = 0.0 if unit.dma.setup is None else float(unit.dma.setup.seconds(hz))
    latency = 0.0 if level.latency is None else float(level.latency.seconds(hz))
    change = f"{unit.name}.dma.setup=0 ns" if setup > latency else f"{dram['name']}.latency=0 ns"
    return Advice((), (change,), "how fast it would be if transfers began at once")


HALF, STARVED = 0.5, 0.25
"""Shares of bytes, and of the time in which values stream, from which on results or a scratchpad are to blame."""


def _slowest_pad(result: RunResult) -> str:
    """The scratchpad that takes longest to read or write what the array asks of it; nothing where none has a limit."""
    machine = machine_of(result)
    needed = {}
    for level in machine.memory:
        counts = result.memory.get(level.name)
        if isinstance(level, ScratchpadSpec) and level.bandwidth is not None and isinstance(counts, ScratchpadCounters):
            rate = level.bandwidth.bytes_per_cycle(machine.clock_hz(level.clock))
            if rate:
                needed[level.name] = max(counts.bytes_read, counts.bytes_written) / float(rate)
    return max(needed, key=lambda name: needed[name], default="")


def _results_share(result: RunResult) -> float:
    """How much of what main memory moves goes there."""
    moved = result.memory[dram_of(result)["name"]]
    assert isinstance(moved, DramCounters)
    whole = moved.bytes_read + moved.bytes_written
    return moved.bytes_written / whole if whole else 0.0


def advise(result: RunResult, bound: Bound) -> Advice:
    """One change that the bound suggests."""
    unit = result.resolved.machine["compute"][0]
    name = unit["name"]
    if bound.part == "scratchpad" and (pad := _slowest_pad(result)):
        level = next(each for each in result.resolved.machine["memory"] if each["name"] == pad)
        if level.get("bank_width"):
            more = (f"{pad}.banks={2 * level['banks']}", f"{pad}.bandwidth=inf")
            return Advice((), more, "twice the banks, and nothing else in the way")
        return without_limit(pad)
    if bound.kind == "latency":
        return _without_latency(result)
    if bound.kind == "bandwidth" and has_limit(dram_of(result)):
        return without_limit(dram_of(result)["name"])
    several = any(each["tiles"] > 1 for each in result.work.use["array"]["passes"])
    if bound.kind == "fill" and unit["folding"] == "serial" and several:
        return Advice((), (f"{name}.folding=pipelined",), "the next tile moves in while this one streams")
    if bound.kind == "fill":
        return _longer_streams(result)
    if bound.part == "vector":
        return Advice((), (f"{name}.vector.lanes={2 * unit['vector']['lanes']}",), "twice the lanes")
    if result.throttle is not None:
        limit = f"energy.tdp.power={2 * result.throttle.limit_w:g} W"
        return Advice((), (limit,), "with twice the power, and so at a higher clock")
    if utilisation(result).mapping < FILLED:
        other = "os" if unit["dataflow"] != "os" else "ws"
        return Advice((), (f"{name}.dataflow={other}",), "the same with another operand staying in the cells")
    if unit["count"] > 1:
        return Advice((), (f"{name}.count={2 * unit['count']}",), "the same with twice as many arrays")
    return Advice((), (f"{name}.rows={2 * unit['rows']}",), "the same with twice as many rows of cells")


def _longer_streams(result: RunResult) -> Advice:
    """More rows for the operand that stays: of one product, m; else a larger problem."""
    sizes = result.resolved.workload.get("sizes", {})
    rows = larger({"m": sizes["m"]}) if sizes.get("m") else None
    grown = rows or larger(sizes)
    if grown is None:
        unit = result.resolved.machine["compute"][0]
        return Advice((), (f"{unit['name']}.count={2 * unit['count']}",), "the same with twice as many arrays")
    return Advice((grown,), (), "a larger problem: the array fills and drains no longer for it")


def _schedule(machine: MachineSpec, result: RunResult) -> dict[str, object]:
    """What was chosen: tiles of fused attention, and the mapping."""
    workload = result.resolved.workload
    found = choices_read(machine, result)
    tiles = workload.get("schedule", {})
    if tiles.get("variant") == "fused":
        found |= {name: tiles[name] for name in ("br", "bc") if name in tiles}
    return found | {
        f"mapping.{name}": value for name, value in workload.get("mapping", {}).items() if value not in (None, "auto")
    }


def _use_lines(result: RunResult) -> list[Line]:
    """Where the peak was lost, and the tiles."""
    lines = []
    used = utilisation(result)
    if used.total:
        shares = f"mapping {percent(used.mapping, 1)} × not filling or draining {percent(used.streaming, 1)}"
        lines.append(Line(f"utilisation {percent(used.total, 1)} = {shares} × not stalled {percent(used.running, 1)}"))
    passes = result.work.use["array"]["passes"]
    for each in passes[:1]:
        more = f", and {counted(len(passes) - 1, 'more pass', 'more passes')}" if len(passes) > 1 else ""
        tiles = f"{counted(each['tiles'], 'tile')} of {tile_words(each)}, order {each['order']}"
        lines.append(Line(f"{each['name']}: {tiles}{more}", "faint"))
    return lines
