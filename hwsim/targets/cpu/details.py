"""What `explain` adds to a run on cores: what a miss costs, which tensor misses, and in which sets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction

from hwsim.memory.set_pressure import Crowding, Pressure, find_crowding, measure_set_pressure
from hwsim.program.kernel import Kernel, rows_of
from hwsim.result import RunResult, workload_of
from hwsim.spec.machine import CacheSpec, DramSpec, MachineSpec
from hwsim.target import Details, Line, Section, Table, find_target
from hwsim.targets.cpu.model import CpuCore, core_spec
from hwsim.units import bar, counted, digits, percent, ratio

MOST_ACCESSES = 400_000_000
"""A longer run is looked at as far as this: some seconds."""


def look_at_sets(
    machine: MachineSpec, kernel: Kernel, misses: Mapping[str, int], most: int = MOST_ACCESSES
) -> Pressure | None:
    """The first block's accesses in the first cache; None where sets mean nothing.

    `misses` of each tensor tell whose rows to look at first.
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
    """A tensor whose rows crowd into few sets of a level; those with the most misses are looked at first."""
    lengths, rows = rows_of(kernel)
    worst_first = sorted(lengths, key=lambda name: -misses.get(name, 0))
    return find_crowding(level, {name: lengths[name] for name in worst_first}, rows)


def _column_sets(level: CacheSpec, kernel: Kernel, crowding: Crowding) -> tuple[int, ...]:
    view = kernel.tensors[crowding.tensor]
    addresses = (view.base + row * crowding.row_bytes for row in range(view.shape[0]))
    return tuple(sorted({address // level.line % level.set_count for address in addresses}))


def crowded_level(result: RunResult, machine: MachineSpec, first: str = "") -> Crowding | None:
    """A cache whose misses come mostly from a tensor that crowds into few of its sets; `first` goes first."""
    for level in sorted(machine.caches, key=lambda cache: cache.name != first):
        tensor = most_missed(result, level.name)
        counts = result.caches.get(level.name)
        if tensor is None or counts is None or not counts.accesses or counts.misses < counts.accesses / 50:
            continue
        facts = result.tensors[tensor]
        if facts.row_bytes and facts.rows:
            found = find_crowding(level, {tensor: facts.row_bytes}, {tensor: facts.rows})
            if found is not None:
                return found
    return None


def most_missed(result: RunResult, level: str) -> str | None:
    """The tensor with the most misses in a level."""
    misses = {name: facts.misses.get(level, 0) for name, facts in result.tensors.items()}
    return max(sorted(misses), key=lambda name: misses[name]) if any(misses.values()) else None


# What explain shows ---------------------------------------------------------------------------------------------------

GROUPS = 16
"""Bars of the set histogram: neighbouring sets are shown together."""
ALIKE = 0.05
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
        sections.append(Section(f"Misses of {pressure.measured.level} by set", tuple(_sets(pressure))))
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
    misses = {name: facts.misses.get(first, 0) for name, facts in result.tensors.items()}
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


def _sets(pressure: Pressure) -> list[Table | Line]:
    """Misses by kind and by set, and what would help."""
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
        Line(_conflict_words(pressure), "strong"),
    ]


def _by_set(pressure: Pressure) -> Table | Line:
    """One line where all sets fare alike, else a histogram."""
    measured = pressure.measured
    low, high = int(measured.misses.min()), int(measured.misses.max())
    if high - low > high * ALIKE:
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


def _conflict_words(pressure: Pressure) -> str:
    measured = pressure.measured
    total = measured.total
    if total and measured.cold > total / 2:
        return "Most lines are fetched once: no cache and no padding saves these; touching fewer bytes does."
    if not total or measured.conflict < total / 20:
        return "Hardly any are set conflicts: padding would not help; smaller tiles or a larger cache would."
    start = f"{percent(measured.conflict, total)} of these are set conflicts."
    crowding = pressure.crowding
    if crowding is None:
        return f"{start} More ways, or another distance between the arrays, would help."
    shown = ", ".join(str(number) for number in pressure.column_sets[:8])
    more = ", …" if len(pressure.column_sets) > 8 else ""
    padded = crowding.better_row_bytes // pressure.element_bytes
    rows = f"Rows of {crowding.tensor} are {crowding.row_bytes:,} B apart"
    return (
        f"{start} {rows}, so its first column falls into {len(pressure.column_sets)} of {crowding.sets} sets "
        f"({shown}{more}), and only {crowding.room_lines} of its lines stay. Other columns crowd likewise. "
        f"Padding helps: with rows of {crowding.better_row_bytes:,} B (ld={padded}) a column uses all sets."
    )
