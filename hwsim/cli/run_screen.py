"""The first screen: what ran where, what it cost, where that went, and what to try next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hwsim.cli.array_screen import array_level_table, array_words, print_utilisation, without_loops
from hwsim.cli.console import out
from hwsim.cli.gpu_screen import gpu_level_table, gpu_words, launch_table, program_words
from hwsim.cli.table import make_table
from hwsim.results.text import (
    bar,
    counted,
    data,
    digits,
    format_title,
    joule_seconds,
    joules,
    percent,
    ratio,
    seconds,
    short,
    watts,
)  # fmt: skip

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hwsim.results.advice import Advice
    from hwsim.results.result import RunResult

WIDTH = 100
_BAR = 24
_INDENT = " " * 17
_MOST_CAUSES = 6
_MOST_FORMULAS = 4
_MOST_STAGES = 14
_FROM = 0.001
"""Shares below this are left out of the tables."""

_OFF: tuple[Any, ...] = (None, False, "none", 1, {}, [])
_USUAL = (("split", "static"), ("accumulate", "register"), ("b_layout", "kj"))
"""Choices that need no mention."""


def print_screen(result: RunResult, words: Sequence[str], settings: Sequence[str]) -> None:
    """About forty lines, a hundred columns wide."""
    from hwsim.results.advice import advise
    from hwsim.results.words import explain_bound, explain_bounds

    console = screen()
    bound = explain_bound(result)
    print_head(console, result)
    _print_costs(console, result)
    console.print()
    console.print(traffic_table(result))
    if "gpu" in result.work:
        console.print()
        console.print(launch_table(result))
        if words_of_program := program_words(result):
            wrapped(console, "", words_of_program, style="dim")
    if len(result.stages) > 1:
        console.print()
        console.print(stage_table(result))
    console.print()
    console.print(why_table(result))
    console.print()
    wrapped(console, "", bound.words, style="bold")
    wrapped(console, "bounds  ", explain_bounds(result), style="dim")
    rows = [row for row in result.formulas if _worth_showing(row)] or list(result.formulas)
    if rows:
        console.print()
        console.print(formula_table(rows[:_MOST_FORMULAS]))
        _print_reasons(console, rows[:_MOST_FORMULAS])
    for warning in result.warnings:
        wrapped(console, "warning  ", warning, style="yellow")
    advice = advise(result, bound)
    console.print(f"\nnext  [cyan]{next_command(words, settings, advice)}[/cyan]", soft_wrap=True)
    wrapped(console, "      ", f"{advice.why}; or: hwsim explain", style="dim")


def screen() -> Console:
    """The usual console, at most as wide as the tables are made for."""
    console = out()
    console.width = min(console.width, WIDTH)
    return console


def print_head(console: Console, result: RunResult) -> None:
    from hwsim.results.summary import accuracy, verdict

    workload = result.resolved["workload"]
    unit = result.resolved["machine"]["compute"][0]
    used = f"{result.work['cores']} of {counted(unit.get('count', 1), unit['name'])}"
    if "array" in result.work:
        used, workload = array_words(unit), without_loops(workload)
    if "gpu" in result.work:
        used, workload = gpu_words(unit), without_loops(workload)
    console.print(f"[bold]{result.workload}[/bold] on [bold]{result.machine}[/bold]: {_choices(workload)}, {used}")
    good = {True: ("green", "✓"), False: ("bold red", "✗"), None: ("yellow", "–")}
    style, mark = good[result.verified]
    console.print(f"{mark} {verdict(result)}", style=style)
    if words := accuracy(result):
        console.print(f"  {words}")


def level_table(result: RunResult) -> Table:
    """Accesses, hits, traffic towards the core, and operations per byte of it, level by level."""
    from hwsim.hardware.counters import CacheCounters

    table = make_table("level", "accesses", "hit rate", "misses", "bytes to and from", "flop per byte")
    for name, counts in result.memory.items():
        moved = counts.bytes_read + counts.bytes_written
        per_byte = result.intensity["levels"][name]
        accesses = counts.reads + counts.writes
        table.add_row(
            name,
            f"{accesses:,}",
            percent(counts.hits, accesses) if isinstance(counts, CacheCounters) else "",
            f"{counts.misses:,}"
            if isinstance(counts, CacheCounters)
            else f"{getattr(counts, 'row_hits', 0):,} row hits",
            data(moved),
            "" if per_byte is None else digits(per_byte),
        )
    return table


def traffic_table(result: RunResult) -> Table:
    """Traffic level by level, as the kind of machine has it."""
    if "array" in result.work:
        return array_level_table(result)
    return gpu_level_table(result) if "gpu" in result.work else level_table(result)


def stage_table(result: RunResult) -> Table:
    """The operations of a chain: what each took, and the lines that it brought from main memory."""
    cache = list(result.caches)[-1] if result.caches else None
    table = make_table(
        "operation", "time", "share", "", "operations", *([f"{cache} misses"] if cache else []), left=(0, 3)
    )
    for stage in result.stages[:_MOST_STAGES]:
        share = stage["time_s"] / result.time_s if result.time_s else 0.0
        misses = sum(traffic["misses"].get(cache, 0) for traffic in stage["tensors"].values())
        far = [f"{misses:,}"] if cache else []
        table.add_row(
            stage["name"], seconds(stage["time_s"]), percent(share, 1), _bar(share, "cyan"), f"{stage['flops']:,}", *far
        )
    rest = result.stages[_MOST_STAGES:]
    if rest:
        time_s = sum(stage["time_s"] for stage in rest)
        share = time_s / result.time_s if result.time_s else 0.0
        flops = sum(stage["flops"] for stage in rest)
        table.add_row(f"{len(rest)} more", seconds(time_s), percent(share, 1), _bar(share, "cyan"), f"{flops:,}", "")
    return table


def why_table(result: RunResult) -> Table:
    """Where the cycles went: all cores together, the largest first."""
    from hwsim.results.attribution import BUSY, summed
    from hwsim.results.words import part_words

    together = summed(result.attribution)
    whole = sum(together.values())
    cores = counted(len(result.attribution), "core")
    if "array" in result.work or "gpu" in result.work:
        cores = "the array" if "array" in result.work else "the GPU"
    table = make_table(f"why: cycles of {cores}", "", "share", "", left=(0, 3))
    rows = [(kind, name, cycles) for (kind, name), cycles in together.items() if cycles >= _FROM * whole]
    for kind, name, cycles in rows[:_MOST_CAUSES]:
        style = "green" if kind == BUSY else "yellow"
        share = cycles / whole if whole else 0.0
        table.add_row(part_words(name), f"{cycles:,}", percent(cycles, whole), _bar(share, style))
    rest = whole - sum(cycles for _, _, cycles in rows[:_MOST_CAUSES])
    if rest > 0:
        table.add_row("everything else", f"{rest:,}", percent(rest, whole), "")
    return table


def formula_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = make_table("formula", "says", "simulated", "ratio", left=(0,))
    for row in rows:
        name = f"{row['name']}: {row['expression']}"
        same = row["ratio"] is not None and not row["reason"]
        table.add_row(
            name,
            _amount(row["predicted"]),
            f"{_amount(row['simulated'])} {row['unit']}",
            "exact" if row["predicted"] == row["simulated"] else "same" if same else ratio(row["ratio"] or 0.0),
        )
    return table


def next_command(words: Sequence[str], settings: Sequence[str], advice: Advice) -> str:
    """The command that was given, with what the advice changes."""
    changed = dict(advice.parameters)
    kept = [word for word in words if word.partition("=")[0] not in changed]
    kept += [f"{name}={value}" for name, value in changed.items()]
    paths = {setting.partition("=")[0] for setting in advice.settings}
    asked = [setting for setting in settings if setting.partition("=")[0] not in paths]
    options = [word for setting in (*asked, *advice.settings) for word in ("--set", setting)]
    return shlex.join(["hwsim", "run", *kept, *options])


def wrapped(console: Console, label: str, text: str, style: str) -> None:
    """Words that go on under themselves, beside a label."""
    from rich.text import Text

    lines = Text(text, style=style).wrap(console, console.width - len(label))
    for number, line in enumerate(lines):
        line.rstrip()
        console.print(Text(label if number == 0 else " " * len(label), style="dim") + line)


def _print_costs(console: Console, result: RunResult) -> None:
    from rich.text import Text

    from hwsim.results.energy_split import energy_split
    from hwsim.results.summary import peak_words

    speed = peak_words(result)
    console.print(f"\n[bold]time[/bold]    [bold cyan]{seconds(result.time_s):<8}[/bold cyan] {result.cycles:,} cycles")
    if speed:
        console.print(f"{_INDENT}{speed}")
    if "array" in result.work:
        print_utilisation(console, result, _INDENT)
    if result.energy_j is None or result.power_w is None:
        console.print("[bold]energy[/bold]  this machine has no energy prices", style="dim")
        return
    flops = result.work["flops"]
    each = f", {joules(result.energy_j / flops)} for each operation" if flops else ""
    each += f", energy × delay {joule_seconds(result.edp_js)}" if result.edp_js else ""
    amount = f"[bold cyan]{joules(result.energy_j):<8}[/bold cyan]"
    console.print(f"[bold]energy[/bold]  {amount} {watts(result.power_w)} on average{each}")
    shares = {name: joule / result.energy_j for name, joule in energy_split(result).items() if result.energy_j}
    shown = {name: share for name, share in shares.items() if share >= _FROM}
    console.print(Text(_INDENT) + _split_bar(shown))
    wrapped(console, _INDENT, ", ".join(f"{name} {percent(share, 1)}" for name, share in shown.items()), style="dim")


def _split_bar(shares: dict[str, float]) -> Text:
    """One bar for the whole, a shade of its own for each share."""
    from rich.text import Text

    width = 60
    text = Text()
    styles = ("cyan", "magenta", "yellow", "green", "blue", "red", "white")
    shades = "█▓▒░"
    for number, share in enumerate(shares.values()):
        length = max(1, round(width * share))
        text.append(shades[number % len(shades)] * length, style=styles[number % len(styles)])
    return text


def _print_reasons(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        if row["reason"]:
            wrapped(console, f"  {row['name'].partition(',')[0]}: ", row["reason"], style="dim")


def _worth_showing(row: dict[str, Any]) -> bool:
    """Totals rather than single tensors."""
    return "." not in row["compare"] or not row["compare"].startswith(("loads.", "stores."))


def _choices(workload: dict[str, Any]) -> str:
    """Sizes and schedule as they would be typed, without what is off or left alone."""
    chosen = {**workload.get("sizes", {}), **workload.get("schedule", {})}
    chosen |= {f"mapping.{name}": value for name, value in workload.get("mapping", {}).items() if value != "auto"}
    shown = [
        _typed(name, value)
        for name, value in chosen.items()
        if value is True or (value not in _OFF and (name, value) not in _USUAL)
    ]
    return " ".join([*shown, *_number_choices(workload)])


def _typed(name: str, value: Any) -> str:
    """A choice as the command line takes it."""
    if isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    if isinstance(value, dict):
        return " ".join(f"{name}.{key}={entry}" for key, entry in value.items())
    if isinstance(value, list):
        parts = ["+".join(part) if isinstance(part, list) else str(part) for part in value]
        return f"{name}={','.join(parts)}"
    return f"{name}={value}"


def _number_choices(workload: dict[str, Any]) -> list[str]:
    """The precision, and what else is said about numbers."""
    names = {
        field: format_title(workload[field]) for field in ("precision", "accumulate") if workload[field] is not None
    }
    usual = {"chunk": None, "scale": "none", "distribution": "uniform"}
    others = {name: workload[name] for name, default in usual.items() if workload.get(name, default) != default}
    said = {**{name: text for name, text in names.items() if name != "precision"}, **others}
    return [names["precision"], *(f"{name}={value}" for name, value in said.items())]


def _amount(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else short(value) if value >= 1e4 else digits(value)


def _bar(share: float, style: str) -> Text:
    from rich.text import Text

    return Text(bar(share, _BAR), style=style)
