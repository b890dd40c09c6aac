"""What `hwsim explain` prints: sets, tensors, stalls, penalties, formulas, energy."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from hwsim.cli.run_screen import formula_table, print_head, screen, stage_table, why_table, wrapped
from hwsim.cli.table import make_table
from hwsim.results.text import bar, counted, data, digits, joules, percent, ratio, seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hwsim.results.pressure import Pressure
    from hwsim.results.result import RunResult

_GROUPS = 16
"""Bars of the set histogram: neighbouring sets are shown together."""

_ALIKE = 0.05


def print_explanation(result: RunResult, pressure: Pressure | None, loaded: Mapping[str, float]) -> None:
    """Section by section; `loaded` are the elements of each tensor that went into registers."""
    from hwsim.results.words import explain_bound, explain_bounds

    console = screen()
    print_head(console, result)
    _section(console, "What it is bound by")
    wrapped(console, "", explain_bound(result).words, style="bold")
    wrapped(console, "", "Its time lies between two bounds: " + explain_bounds(result) + ".", style="")
    console.print(_part_table(result))
    _section(console, "Where the cycles went")
    for name, table in _stall_tables(result):
        if name:
            console.print(name, style="dim")
        console.print(table)
    if len(result.stages) > 1:
        _section(console, "What each operation took")
        console.print(stage_table(result))
        _print_edges(console, result)
    if "array" in result.work:
        _print_array(console, result)
    else:
        _section(console, "What a miss costs")
        console.print(_penalty_table(result))
        _section(console, "Which tensor misses, and how often its values are used")
        console.print(_tensor_table(result, loaded))
        wrapped(console, "", _REUSE, style="dim")
    if pressure is not None:
        _section(console, f"Misses of {pressure.measured.level} by set")
        _print_pressure(console, pressure)
    if result.formulas:
        _section(console, "Predicted and simulated")
        console.print(formula_table(result.formulas))
        for row in result.formulas:
            if row["reason"]:
                wrapped(console, f"  {row['name'].partition(',')[0]}: ", row["reason"], style="dim")
    _section(console, "Operations per byte")
    _print_intensity(console, result)
    if result.energy_by_cause:
        _section(console, "Energy, by cause and action")
        console.print(_energy_table(result))


_REUSE = (
    "uses per load: multiply-adds for each value loaded into a register; a tensor is reused along the index "
    "that it does not have, as often as the register tile is long there. accesses per line: how often a line "
    "is touched each time that it comes into the first cache; cache tiles raise it."
)


def _print_array(console: Console, result: RunResult) -> None:
    from hwsim.cli.array_explain import pass_table, print_use, traffic_table

    _section(console, "How the cells were used")
    print_use(console, result)
    _section(console, "Which tiles")
    console.print(pass_table(result))
    _section(console, "What went to and from main memory")
    console.print(traffic_table(result))


def _section(console: Console, title: str) -> None:
    console.print(f"\n[bold underline]{title}[/bold underline]")


def _part_table(result: RunResult) -> Table:
    table = make_table("part", "alone", "of the time", "", left=(0, 3))
    parts = sorted(result.bounds["parts"].items(), key=lambda item: (-item[1], item[0]))
    for name, alone in parts:
        if alone:
            share = alone / result.time_s
            table.add_row(name, seconds(alone), percent(share, 1), bar(share, 24))
    return table


def _stall_tables(result: RunResult) -> list[tuple[str, Table]]:
    """All cores together; each by itself where they differ."""
    tables = [("", why_table(result))]
    agents = result.attribution
    if len({str(parts) for parts in agents.values()}) > 1:
        table = make_table("core", "cycles", "busy", "waits most for", left=(0, 3))
        for name, parts in agents.items():
            cycles = sum(sum(group.values()) for group in parts.values())
            waiting = parts["waiting"]
            longest = max(sorted(waiting), key=lambda n: waiting[n]) if waiting else ""
            most = f"{longest} ({percent(waiting[longest], cycles)})" if longest else ""
            table.add_row(name, f"{cycles:,}", percent(sum(parts["busy"].values()), cycles), most)
        tables.append(("core by core", table))
    return tables


def _penalty_table(result: RunResult) -> Table:
    """Latencies from the core, and how many times slower each level is than the one before."""
    from hwsim.hardware.core import CpuCore
    from hwsim.results.resolved import machine_of
    from hwsim.spec.memory import CacheSpec, DramSpec

    machine = machine_of(result)
    core = CpuCore(machine, machine.cpu)
    levels = [level for level in machine.memory if isinstance(level, CacheSpec | DramSpec)]
    table = make_table("level", "latency", "cycles", "than the level before", "than the first")
    clocks = [machine.clock_hz(level.clock) if level.clock else core.clock_hz for level in levels]
    waits = [
        Fraction(0) if level.latency is None else level.latency.seconds(hz)
        for level, hz in zip(levels, clocks, strict=True)
    ]
    cycles = [float(wait * core.clock_hz) for wait in waits]
    for number, level in enumerate(levels):
        table.add_row(
            level.name,
            "" if level.latency is None else str(level.latency),
            digits(cycles[number]),
            ratio(cycles[number] / cycles[number - 1]) if number and cycles[number - 1] else "",
            ratio(cycles[number] / cycles[0]) if number and cycles[0] else "",
        )
    return table


def _tensor_table(result: RunResult, loaded: Mapping[str, float]) -> Table:
    levels = list(result.caches)
    table = make_table(
        "tensor",
        "loads",
        "stores",
        *(f"{level} misses" for level in levels),
        "uses per load",
        "accesses per line",
    )
    for name, facts in result.tensors.items():
        misses = [facts["misses"].get(level, 0) for level in levels]
        uses = result.work["macs"] / loaded[name] if loaded.get(name) else 0.0
        table.add_row(
            name,
            f"{facts['loads']:,}",
            f"{facts['stores']:,}",
            *(f"{count:,}" for count in misses),
            digits(uses) if uses else "",
            digits((facts["loads"] + facts["stores"]) / misses[0]) if misses and misses[0] else "",
        )
    return table


def _print_edges(console: Console, result: RunResult) -> None:
    """What operations leave in memory for each other."""
    from hwsim.results.edges import find_edges

    edges = find_edges(result)
    if not edges:
        return
    _section(console, "What operations leave in memory for each other")
    table = make_table(
        "tensor", "made by", "read by", "size", "loads", *(f"{name} misses" for name in result.caches), left=(0, 1, 2)
    )
    for edge in edges:
        misses = [f"{edge.misses.get(name, 0):,}" for name in result.caches]
        table.add_row(edge.tensor, edge.producer, edge.consumer, data(edge.bytes), f"{edge.loads:,}", *misses)
    console.print(table)
    wrapped(
        console, "", "Fusing two operations takes the tensor between them out of memory (schedule.fuse).", style="dim"
    )


def _print_pressure(console: Console, pressure: Pressure) -> None:
    measured = pressure.measured
    total = measured.total
    partly = "" if measured.complete else f" of the first {measured.accesses:,} accesses"
    as_if = ", counted as if it were a plain LRU cache" if pressure.assumed_lru else ""
    console.print(f"{counted(total, 'miss', 'misses')}{partly}{as_if}:")
    table = make_table("kind", "misses", "share", "meaning", left=(0, 3))
    for kind, count, meaning in (
        ("cold", measured.cold, "the first time that a line is touched"),
        ("capacity", measured.capacity, "more lines in use than the whole cache holds"),
        ("conflict", measured.conflict, "there was room, but not in the line's set"),
    ):
        table.add_row(kind, f"{count:,}", percent(count, total), meaning)
    console.print(table)
    _print_sets(console, pressure)
    wrapped(console, "", _conflict_words(pressure), style="bold")


def _print_sets(console: Console, pressure: Pressure) -> None:
    """One line where all sets fare alike, else a histogram."""
    measured = pressure.measured
    low, high = int(measured.misses.min()), int(measured.misses.max())
    sets = len(measured.misses)
    if high - low <= high * _ALIKE:
        each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        lines = digits(float(measured.lines.mean()))
        wrapped(
            console,
            "",
            f"All {sets} sets fare alike over the whole run: {each} misses in each, and {lines} lines that "
            f"compete for its {measured.ways} ways.",
            style="",
        )
        return
    console.print(_histogram(pressure))


def _histogram(pressure: Pressure) -> Table:
    measured = pressure.measured
    sets = len(measured.misses)
    step = max(1, -(-sets // _GROUPS))
    table = make_table("sets", "misses", "conflicts", "lines for each set", "", left=(0, 4))
    groups = [(first, min(first + step, sets)) for first in range(0, sets, step)]
    most = max(int(measured.misses[a:b].sum()) for a, b in groups) or 1
    for a, b in groups:
        misses = int(measured.misses[a:b].sum())
        name = f"{a}" if b == a + 1 else f"{a}–{b - 1}"
        competing = f"{digits(float(measured.lines[a:b].mean()))} for {measured.ways} ways"
        table.add_row(name, f"{misses:,}", f"{int(measured.conflicts[a:b].sum()):,}", competing, bar(misses / most, 20))
    return table


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


def _print_intensity(console: Console, result: RunResult) -> None:
    """Per element and per byte are different numbers: say which is which."""
    element, byte = result.intensity["element"], result.intensity["byte"]
    if element is not None and byte is not None:
        console.print(f"program: {digits(element)} per element accessed, {digits(byte)} per byte accessed")
    for name, value in result.intensity["levels"].items():
        if value is not None:
            console.print(f"{name}: {digits(value)} per byte that it exchanges with the level above")


def _energy_table(result: RunResult) -> Table:
    table = make_table("cause", "action", "count", "energy", "share", left=(0, 1))
    for cause, actions in (result.energy_by_cause or {}).items():
        for action, line in actions.items():
            count = f"{int(line['count']):,}" if line["count"] else ""
            table.add_row(cause, action, count, joules(line["joules"]), percent(line["joules"], result.energy_j or 0))
            cause = ""
    return table
