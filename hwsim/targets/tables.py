"""Tables and phrases about a run that several classes of machines share; each takes what it needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hwsim.engine.outcome import BUSY, summed
from hwsim.memory.counters import ScratchpadCounters
from hwsim.result import RunResult, bytes_moved, workload_of
from hwsim.spec.machine import MachineSpec
from hwsim.target import Advice, Knob, Table, find_target
from hwsim.text import bar, data, digits, percent, seconds

FILLED = 0.75
"""A larger array is worth while from this share of cells in use."""
GROWS = ("n", "batch", "tokens", "m", "height")
"""Sizes that make a problem larger without changing its kind, the usual one first."""
FACTOR = 4
"""How much larger a problem is proposed to be."""
MOST_NAMES = 3
"""Tensors that the table lists for a level."""


def bounds_words(result: RunResult) -> str:
    """Where the time lies between everything overlapping and nothing."""
    lower, upper = seconds(result.bounds.lower_s), seconds(result.bounds.upper_s)
    return f"{lower} if all parts overlapped, {upper} if none did"


def longest_part(result: RunResult, usual: str) -> tuple[str, float]:
    """What most cycles went to, and its share of all; the usual part where nothing took any.

    Main memory that has more to do than the usual part is what a run waits for, even where much of that time hides
    behind other work: then the longest wait for what it moves counts.
    """
    together = summed(result.attribution)
    (_, part), cycles = next(iter(together.items()), ((BUSY, usual), 0))
    counts = result.memory[dram_of(result)["name"]]
    operands = ("outputs",) if counts.bytes_written > counts.bytes_read else ("weights", "inputs")
    waits = {name: taken for (kind, name), taken in together.items() if kind != BUSY and name in operands}
    if part == usual and waits and memory_busy(result) * result.time_s > result.bounds.parts.get(usual, math.inf):
        part = max(waits, key=lambda name: waits[name])
        cycles = waits[part]
    return part, cycles / sum(together.values()) if together else 0.0


def memory_busy(result: RunResult) -> float:
    """Share of the time in which main memory moves bytes."""
    return result.bounds.parts.get(dram_of(result)["name"], 0.0) / result.time_s if result.time_s else 0.0


def stream_bounds(result: RunResult, share: float, mapped: float) -> dict[str, tuple[str, str]]:
    """Kind of bound and words, by part, of cells that operands stream through; `mapped` is the share of them in use."""
    array, source = result.work.use["array"], main_memory(result)
    filled = "What it still waits for is in the table; beyond that, only a larger or faster array would help."
    if mapped < FILLED:
        filled = "Tiles that fill the array, or a smaller array, would use it better."
    return {
        "array": (
            "compute",
            f"Bound by the array: values stream into it {percent(share, 1)} of the time, and {percent(mapped, 1)} of "
            f"its {array['rows']} x {array['columns']} cells have something to multiply. {filled}",
        ),
        "weights": (
            "bandwidth",
            f"Bound by weights: the array waits for them to come from {source}. A larger batch uses each weight more "
            "often.",
        ),
        "inputs": (
            "bandwidth",
            f"Bound by inputs: the array waits for them to come from {source}. Larger tiles, or keeping them on the "
            "chip, would move fewer bytes.",
        ),
    }


def main_memory(result: RunResult) -> str:
    """``dram (34 GB/s, busy 91 % of the time)``."""
    dram = dram_of(result)
    if not dram["bandwidth"]:
        return f"{dram['name']} (no limit)"
    amount, _, unit = str(dram["bandwidth"]).partition(" ")
    return f"{dram['name']} ({digits(float(amount))} {unit}, busy {percent(memory_busy(result), 1)} of the time)"


def dram_of(result: RunResult) -> Mapping[str, Any]:
    """The main memory of the machine, as its file says it."""
    found: Mapping[str, Any] = next(lv for lv in result.resolved.machine["memory"] if lv["kind"] == "dram")
    return found


def without_limit(level: str) -> Advice:
    """To see whether a level is what holds a run up."""
    return Advice((), (f"{level}.bandwidth=inf",), f"how fast it would be if {level} kept up")


def factors(rows: Sequence[tuple[str, float]]) -> Table:
    """The factors between the peak and what was reached."""
    shown = tuple((name, percent(share, 1), bar(share, 24)) for name, share in rows)
    return Table(("share of the peak", "", ""), shown, (0, 2))


def pass_table(result: RunResult, loop: str, tiles: str, most: int | None = None) -> Table:
    """Each loop or layer on the array: which unit did it, in which tiles, in which order."""
    passes = result.work.use["array"]["passes"]
    rows = [
        (each["name"], each["unit"], f"{each['tiles']:,}", tile_words(each), each["order"]) for each in passes[:most]
    ]
    if len(passes) > len(rows):
        rows.append((f"and {len(passes) - len(rows)} more", "", "", "", ""))
    return Table((loop, "unit", tiles, "of", "order"), tuple(rows), (0, 1, 3, 4))


def tile_words(each: Mapping[str, Any]) -> str:
    """``m 128 x n 64``."""
    return " x ".join(f"{name} {size}" for name, size in each["tile"].items())


def per_byte(result: RunResult, level: str) -> str:
    """Operations for each byte that a level exchanges with the one above; nothing where it moves none."""
    value = result.intensity.levels[level]
    return "" if value is None else digits(value)


def choices_read(machine: MachineSpec, result: RunResult) -> dict[str, object]:
    """What a schedule chose and the target reads, as it is typed; without loops of a core that mean nothing to it."""
    workload = result.resolved.workload
    found = {}
    for name, knob in find_target(machine).reads(workload_of(result)).items():
        value = _chosen(name, knob, workload)
        if value is not None and (knob.group == "schedule" or str(value) != knob.default):
            found[name] = value
    return found


def _chosen(name: str, knob: Knob, workload: Mapping[str, Any]) -> object:
    """The value of a choice in the group of a workload that keeps it; None where nobody chose."""
    group = workload.get(knob.group, {})
    if knob.group == "choices":
        return next((group[each] for each in (name, *knob.also) if each in group), None)
    value: Any = group
    for part in name.removeprefix(f"{knob.group}.").split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if value == "auto" else value


def larger(sizes: Mapping[str, object]) -> tuple[str, str] | None:
    """The size to type for a problem with more work in it; None where there is no number to raise."""
    numbers = {name: size for name, size in sizes.items() if isinstance(size, int) and not isinstance(size, bool)}
    name = next((each for each in (*GROWS, *numbers) if each in numbers), None)
    return None if name is None else (name, str(FACTOR * numbers[name]))


def scratchpad_levels(result: RunResult, homes: Mapping[str, str]) -> Table:
    """Traffic on the array's side of each level and on the other one; `homes` say in which level a tensor lies."""
    rows = []
    for name, counts in result.memory.items():
        here = _few([tensor for tensor, level in homes.items() if level == name])
        near, entered, left = "", counts.bytes_written, counts.bytes_read
        if isinstance(counts, ScratchpadCounters):
            near = data(bytes_moved(counts))
            entered, left = counts.bytes_filled, counts.bytes_drained
        rows.append((name, near, data(entered), data(left), here, per_byte(result, name)))
    return Table(("level", "traffic of the array", "moved in", "moved out", "holds", "op/byte"), tuple(rows))


def tensor_traffic(result: RunResult, homes: Mapping[str, str] | None = None) -> Table:
    """Elements of each tensor that went to and from main memory, how often each of its own did, and its home level."""
    rows = []
    for name, facts in result.tensors.items():
        moved = facts.loads + facts.stores
        often = f"{moved / facts.elements:.2f}" if facts.elements else ""
        counts = (f"{facts.elements:,}", f"{facts.loads:,}", f"{facts.stores:,}")
        rows.append((name, *counts, often, *([homes.get(name, "")] if homes is not None else [])))
    columns = ("tensor", "elements", "loaded", "stored", "times")
    return Table(columns, tuple(rows)) if homes is None else Table((*columns, "lies in"), tuple(rows), (0, 5))


def _few(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:MOST_NAMES])} and {more} more"
