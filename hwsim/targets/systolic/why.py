"""What a run on an array is bound by, in words, and how well its cells were used."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from hwsim.engine import WAITING, Outcome, summed
from hwsim.memory.counters import DramCounters, ScratchpadCounters
from hwsim.result import RunResult, machine_of
from hwsim.spec.machine import MachineSpec, ScratchpadSpec
from hwsim.target import (
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
    longest_part,
    main_memory,
    pass_table,
    scratchpad_levels,
    stream_bounds,
    tensor_traffic,
    tile_words,
    without_limit,
)
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
            "cells. Longer streams (a larger batch) or a smaller array"
            f"{'' if pipelined else ', or pipelined folding,'} would help.",
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
    bound_kind, words = sentences[name]
    return Bound(name, bound_kind, share, words)


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
    if bound.kind == "bandwidth":
        return without_limit(dram_of(result)["name"])
    if bound.kind == "fill" and unit["folding"] == "serial":
        return Advice((), (f"{name}.folding=pipelined",), "the next tile moves in while this one streams")
    if bound.kind == "fill" or result.utilisation < 0.25:
        rows, columns = max(1, unit["rows"] // 2), max(1, unit["columns"] // 2)
        return Advice((), (f"{name}.rows={rows}", f"{name}.columns={columns}"), "a smaller array, better filled")
    if bound.part == "vector":
        return Advice((), (f"{name}.vector.lanes={2 * unit['vector']['lanes']}",), "twice the lanes")
    other = "os" if unit["dataflow"] != "os" else "ws"
    return Advice((), (f"{name}.dataflow={other}",), "the same with another operand staying in the cells")


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
