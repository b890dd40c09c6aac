"""Target: a class of machines, as everything outside its folder sees it.

A target says which choices of a schedule mean something on its machines, what it takes where nobody chose, how a
kernel becomes the work of its agents, what that costs, and why a run took as long as it did. It has no clock and prints
nothing. `find_target` is the only place that asks what class a machine belongs to; the folder of a class is imported
when a machine needs it.

Tables and phrases about a run that several classes of machines share; each takes what it needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from hwsim.catalog import find_workload, shipped_folder
from hwsim.engine import BUSY, Crew, Outcome, summed
from hwsim.errors import OverrideError
from hwsim.memory.counters import ScratchpadCounters
from hwsim.numerics.datapath import SumRule
from hwsim.numerics.format import operation_unit
from hwsim.program.kernel import Kernel
from hwsim.result import Counts, FormulaCheck, Intensity, RunResult, bytes_moved, workload_of
from hwsim.spec.machine import MachineSpec
from hwsim.spec.variant import locate, parameter_keys
from hwsim.spec.workload import LAYOUT, WorkloadSpec
from hwsim.units import bar, data, digits, percent, seconds

if TYPE_CHECKING:
    from hwsim.memory.locality import Pressure

ARROW = "→"


@dataclass(frozen=True)
class Knob:
    """A choice of the schedule that means something to a target."""

    name: str
    """As it is typed: ``tile.shared.m``."""
    meaning: str
    default: str
    """What is taken where nobody chooses."""
    allowed: str = ""
    """Values it may have, in words or as a range: ``16..256:x2``."""
    also: tuple[str, ...] = ()
    """Other names for it: shorthands, or the level that it means."""
    tries: str = ""
    """What `tune` tries, as an axis of a sweep; nothing if it leaves it alone."""
    group: str = "choices"
    """The group of a workload in which it is kept: choices, schedule, mapping, threads."""


@dataclass(frozen=True)
class Rung:
    """One step of a ladder: its name, what runs, and what is different."""

    name: str
    workload: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    machine: str | None = None


def tried(knobs: Mapping[str, Knob]) -> dict[str, str]:
    """The space that a search goes through: what each choice says is worth trying."""
    return {name: knob.tries for name, knob in knobs.items() if knob.tries}


@dataclass(frozen=True)
class Bound:
    """The part that decides how long a run takes."""

    part: str
    kind: str
    """chain, compute, port, issue, bandwidth, latency, chase, loop, parallel, …: what the advice depends on."""
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
            "rows": f"opening rows of {source}" if ARROW in self.part else self.part,
            "latency": "short runs" if source == "short run" else f"latency of {source}",
            "parallel": "starting cores",
        }.get(self.kind, self.part)


MACHINES = "machines"
"""A word of advice: so many of the machine, where one has too little memory."""


@dataclass(frozen=True)
class Advice:
    """Words to add to the command, and what they are meant to show."""

    parameters: tuple[tuple[str, str], ...]
    settings: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Table:
    """Rows of text for people; a screen, a page or a notebook draws them. A row may end before the last column."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)
    """Columns that begin at the left; the others are numbers."""


@dataclass(frozen=True)
class Line:
    """A sentence beside or below a table."""

    text: str
    weight: Literal["plain", "strong", "faint"] = "plain"
    """Strong is what to remember, faint what a word means."""


@dataclass(frozen=True)
class Section:
    """A part of an explanation, under a title of its own."""

    title: str
    body: tuple[Table | Line, ...]


@dataclass(frozen=True)
class Details:
    """What a second, longer look at a run finds."""

    sections: tuple[Section, ...] = ()
    loaded: Mapping[str, float] = field(default_factory=dict)
    """Elements of each tensor that went into registers, where they were counted."""
    pressure: Pressure | None = None
    """Misses of the first cache by set, where the machine has sets and the run can be repeated."""


@dataclass(frozen=True)
class Why:
    """What a run did and what decided its time, as data that is drawn without knowing the class of the machine."""

    used: str
    """The units that it ran on: ``1 of 4 cores``, ``108 sm``, ``1 array of 256 x 256, ws, pipelined``."""
    whole: str
    """Whose cycles they are: ``4 cores``, ``the array``, ``the GPU``."""
    peak: str
    """What its speed is a share of: ``1 core``, ``2 arrays``, ``108 sm``."""
    units: int
    """Compute units that share its work: what a roofline is drawn for."""
    bound: Bound
    bounds: str
    """Where the time lies between everything overlapping and nothing."""
    advice: Advice
    parts: Mapping[str, str]
    """What each part of the attribution means: ``math`` are "multiply-adds on the SMs"."""
    levels: Table
    """Traffic, level by level."""
    lines: tuple[Line, ...] = ()
    """Facts about the use of the units, below the time."""
    body: tuple[Table | Line, ...] = ()
    """What the first screen shows below the levels: the launches of a GPU."""
    look: Callable[[], Details] = Details
    """Takes the second look, which may take some seconds; its findings are kept in `details`."""
    prices: str = ""
    """What the prices of its energy hold that other machines count apart; nothing where they hold no more."""
    schedule: Mapping[str, object] = field(default_factory=dict)
    """The choices that it read, as they were typed or taken."""

    @cached_property
    def details(self) -> Details:
        """What `explain` adds."""
        return self.look()

    def part(self, name: str) -> str:
        """A row of the attribution table: what a unit did, or what it waited for."""
        return self.parts.get(name, f"waits for {name}")


@dataclass(frozen=True)
class ComparedPart:
    """A part of a run as measurements know it: its error bar comes from rows of the same family."""

    family: str
    """As `hwsim validate` names it; a family without rows was never compared."""
    words: str
    """The same for people: ``products on tensor cores``."""
    seconds: float
    power: str = ""
    """The family of measured power, where that was measured apart from time."""
    unmeasured: str = ""
    """A part of the machine whose energy its measured rows leave out."""


@dataclass(frozen=True)
class Starts:
    """What starting kernels took in a run, and what it takes for kernels that follow each other."""

    kernels: int = 0
    seconds: float = 0.0
    """Of the run's own time."""
    each_s: float = 0.0
    """For one of many that were handed over together, as a graph."""
    host_s: float = 0.0
    """For one that the host starts when it comes to it."""
    part: str = ""
    """The row of the attribution table that starting is put down to."""


class Target(Protocol):
    """A class of machines. Every promise here is checked for every target by tests/contract/test_targets.py."""

    machine: MachineSpec
    groups: ClassVar[frozenset[str]] = frozenset()
    """Groups of a workload file that are for this class alone: `mapping`, `threads`."""
    exact: ClassVar[str] = "operations"
    """What its runs count exactly, in words; everything else is modelled."""
    models: ClassVar[str] = ""
    """What families of measured whole models begin with, where some were measured on machines of this class."""

    def reads(self, work: WorkloadSpec) -> Mapping[str, Knob]:
        """The choices that mean something here; any other one is refused by name."""

    def defaults(self, work: WorkloadSpec) -> WorkloadSpec:
        """The workload with the precision and the tiles that nobody named."""

    def space(self, work: WorkloadSpec) -> Mapping[str, str]:
        """What `tune` varies: a range of values for each choice."""
        return tried(self.reads(work))

    def misfit(self, kernel: Kernel, work: WorkloadSpec) -> str | None:
        """The capacity rule that a schedule breaks, in words, where a search need not try it; None if all fits."""
        return None

    def ladder(self, story: str) -> tuple[Rung, ...]:
        """The steps of a story as this class of machines takes them; none where the story's own mean something here."""
        return ()

    def sums(self, precision: str) -> SumRule:
        """How this machine keeps sums of products of a format: the math does the same."""

    def prepare(self, work: WorkloadSpec, *, math: bool = True) -> Kernel:
        """The kernel of a workload for this machine. Refuses what the machine does not compute."""

    def crew(self, kernel: Kernel, work: WorkloadSpec | None = None, *, seed: int = 0) -> Crew:
        """The kernel laid out for this machine as its workload asks: agents with their steps, ready to be played."""

    def estimate(self, kernel: Kernel, work: WorkloadSpec) -> Crew | None:
        """A quicker crew that counts without replaying; None where the real one is as quick."""
        return None

    def formulas(
        self, kernel: Kernel, outcome: Outcome, memory: Mapping[str, Counts], intensity: Intensity
    ) -> tuple[FormulaCheck, ...]:
        """The closed forms of a kernel beside what was simulated, with the reason for a gap; none where none fit."""
        return ()

    def compared(self, kernel: Kernel, outcome: Outcome) -> tuple[ComparedPart, ...]:
        """The parts of a run by the family of measurements that each belongs to; none where nobody measured any."""
        return ()

    def starts(self, result: RunResult) -> Starts:
        """What starting its kernels took; nothing where work needs no start."""
        return Starts()

    def why(self, result: RunResult) -> Why:
        """What decided the time of a run on this machine, and what to try next."""


def find_target(machine: MachineSpec) -> Target:
    """The target of a machine, by the kind of its first unit."""
    found: Target = import_module(f"hwsim.targets.{machine.kind}.target").TARGET(machine)
    return found


_SCHEDULE = ("schedule", "choices", "mapping", "threads")
"""Groups of a workload that say how it is computed; the rest is what is computed."""


def check_choices(target: Target, work: WorkloadSpec, named: Mapping[str, object]) -> None:
    """Raises OverrideError for each choice that somebody named and the target does not read.

    `named` are the parameters that were typed, or written in a file of the user's own. What a stock workload says for
    machines of another class is no one's choice here.
    """
    refused = unread(target, work, {**named, **work.choices})
    if refused:
        raise OverrideError("\n".join(refusal(target, work, refused)))


def unread(target: Target, work: WorkloadSpec, named: Mapping[str, object]) -> dict[str, object]:
    """Those of the named choices that mean nothing to the target."""
    keys = parameter_keys(work)
    asked = {name: key for name, value in named.items() if (key := locate(work, name, value, keys)) is not None}
    chosen = {name: key.path for name, key in asked.items() if key.path[0] in _SCHEDULE and key.path[1] not in LAYOUT}
    if not chosen:
        return {}
    knobs = target.reads(work)
    return {name: named[name] for name, path in chosen.items() if not _is_read(name, path[0], knobs)}


def refusal(target: Target, work: WorkloadSpec, refused: Mapping[str, object]) -> list[str]:
    """What to say: the names that mean nothing, and the list of those that do."""
    machine, knobs = target.machine.name, target.reads(work)
    lines = [f"{_shown(name, value, knobs)} means nothing on {machine}" for name, value in refused.items()]
    listed = ", ".join(f"{name} ({knob.allowed})" if knob.allowed else name for name, knob in knobs.items())
    lines[-1] += f"; for {work.name} it reads {listed or 'nothing'}; see hwsim show {work.name} --on {machine}"
    return lines


def written_choices(workload: str | Path | WorkloadSpec, spec: WorkloadSpec) -> dict[str, object]:
    """What a workload file of the user's own says about the schedule; nothing for a stock file or a spec."""
    if isinstance(workload, WorkloadSpec) or is_stock(workload):
        return {}
    found: dict[str, object] = {}
    for group in ("schedule", "mapping", "threads"):
        data = spec.model_dump(include={group}, exclude_unset=True).get(group, {})
        for name, value in data.items():
            if group != "schedule":
                found[f"{group}.{name}"] = value
            elif isinstance(value, dict):
                found |= {f"{name}.{index}": size for index, size in value.items()}
            else:
                found[name] = value
    return found


def is_stock(workload: str | Path) -> bool:
    """Whether a name or a path means a workload that comes with hwsim."""
    return find_workload(str(workload)).resolve().parent == shipped_folder("workload").resolve()


def _is_read(name: str, group: str, knobs: Mapping[str, Knob]) -> bool:
    knob = knobs.get(name)
    if knob is not None:
        return knob.group == group
    return any(name in knob.also for knob in knobs.values())


def _shown(name: str, value: object, knobs: Mapping[str, Knob]) -> str:
    """With its value where the name alone means something: ``order=ijk`` on an array."""
    return f"{name}={value}" if name in knobs else name


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
        filled = "Tiles that fill the array would use it better."
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
    if not has_limit(dram):
        return f"{dram['name']} (no limit)"
    amount, _, unit = str(dram["bandwidth"]).partition(" ")
    return f"{dram['name']} ({digits(float(amount))} {unit}, busy {percent(memory_busy(result), 1)} of the time)"


def dram_of(result: RunResult) -> Mapping[str, Any]:
    """The main memory of the machine, as its file says it."""
    found: Mapping[str, Any] = next(lv for lv in result.resolved.machine["memory"] if lv["kind"] == "dram")
    return found


def has_limit(level: Mapping[str, Any]) -> bool:
    """Whether a level of a machine file has a bandwidth, and not an endless one."""
    return bool(level["bandwidth"]) and not str(level["bandwidth"]).startswith("inf")


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


def intensity_head(result: RunResult) -> str:
    """``flop/byte``, or ``op/byte`` of integers."""
    return f"{operation_unit(result.resolved.workload['precision']).lower()}/byte"


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
    return Table(
        ("level", "traffic of the array", "moved in", "moved out", "holds", intensity_head(result)), tuple(rows)
    )


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
