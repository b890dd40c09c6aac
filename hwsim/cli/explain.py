"""`hwsim explain`: the longer version of what `hwsim run` showed last."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import check_output, spinner
from hwsim.cli.console import make_table, print_body, print_json, screen, styled, wrapped
from hwsim.cli.run import formula_table, print_head, print_reasons, stage_table, why_table
from hwsim.errors import InputError
from hwsim.units import bar, data, digits, joules, listed, percent, seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hwsim.memory.locality import Pressure
    from hwsim.result import RunResult
    from hwsim.target import Why


EXPLAIN_EXAMPLE = (
    "Example: [cyan]hwsim run course_cpu matmul_naive n=256[/cyan], then [cyan]hwsim explain[/cyan]; "
    "[cyan]hwsim explain arithmetic intensity[/cyan]"
)


def explain_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RESULT.json|TERM]",
            help="A result that hwsim run wrote, or a word of a screen; the last run if not given.",
            show_default=False,
        ),
    ] = None,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="[-]", help="Print the run and what was found as JSON.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the sets of the first cache, on a GPU the blocks on its SMs: png, svg or pdf.",
        ),
    ] = None,
) -> None:
    """Explain a run (conflicts by set, reuse, stalls, miss penalties, formulas, energy), or a term."""
    from hwsim.cli.run import blaming, last_run, recall
    from hwsim.results.explanation import explain

    as_json = json_to is not None
    if words and not _is_result(words):
        _explain_term(" ".join(words), as_json)
        return
    result_file = Path(words[0]) if words else None
    check_output(None, plot, (result_file,))
    result = recall(result_file)
    with blaming(result_file):
        why = explain(result)
        with spinner("looking at the sets"):
            pressure = why.details.pressure
    if plot is not None and pressure is not None:
        result.plot.sets(pressure, plot)
    elif plot is not None:
        from hwsim.cli.export import spans_of

        result.plot.timeline(spans_of(result), plot)
    with blaming(result_file):
        if as_json:
            print_json({**result.to_dict(), "explanation": _findings(why)})
        else:
            if result_file is None:
                _say_which(last_run()[1])
            print_explanation(result, why)


def _say_which(run: str) -> None:
    """Which run is explained; and where points were simulated after it, how to explain one of those."""
    from hwsim.cli.run import last_search

    search = last_search()
    console = screen()
    if search is None:
        console.print(run, style="dim")
        return
    console.print(f"{run}: from before the last hwsim {search.command}, which this is not about", style="dim")
    console.print(f"its points are explained one by one; for the best: {search.run}", style="dim", soft_wrap=True)


def _is_result(words: list[str]) -> bool:
    """Whether a file is meant: one word that is a file, or that looks like the name of one."""
    return len(words) == 1 and (Path(words[0]).suffix == ".json" or "/" in words[0] or Path(words[0]).exists())


def _explain_term(asked: str, as_json: bool) -> None:
    """A word of the screens, from the glossary."""
    from hwsim.glossary import find_term, near_terms

    term = find_term(asked)
    if term is None:
        near = near_terms(asked)
        hint = f"; did you mean {listed(near, 'or')}?" if near else ""
        raise InputError(f"'{asked}' is no term of the glossary, and no result file{hint}")
    if as_json:
        print_json({"term": term.name, "meaning": term.meaning, "also": list(term.also), "see": list(term.see)})
        return
    console = screen()
    console.print(styled((term.name, "bold")))
    wrapped(console, "", term.meaning, style="")
    if term.see:
        wrapped(console, "see: ", ", ".join(term.see), style="dim")
    if term.lesson:
        wrapped(console, "lesson: ", f"hwsim lesson {term.lesson}", style="cyan")


def _findings(why: Why) -> dict[str, Any]:
    """What the explanation adds to the result."""
    bound, details = why.bound, why.details
    return {
        "bound": {"part": bound.part, "kind": bound.kind, "share": bound.share, "words": bound.words},
        "bounds": why.bounds,
        "elements_loaded": dict(details.loaded),
        "sets": None if details.pressure is None else _sets(details.pressure),
    }


def _sets(pressure: Pressure) -> dict[str, Any]:
    """Misses of the first cache, by kind and by set."""
    from dataclasses import asdict

    measured = pressure.measured
    return {
        "level": measured.level,
        "cold": measured.cold,
        "capacity": measured.capacity,
        "conflict": measured.conflict,
        "complete": measured.complete,
        "assumed_lru": pressure.assumed_lru,
        "misses": measured.misses.tolist(),
        "conflicts": measured.conflicts.tolist(),
        "lines": measured.lines.tolist(),
        "crowding": None if pressure.crowding is None else asdict(pressure.crowding),
    }


def print_explanation(result: RunResult, why: Why) -> None:
    """Section by section."""
    console = screen()
    print_head(console, result, why)
    _section(console, "What it is bound by")
    wrapped(console, "", why.bound.words, style="bold")
    wrapped(console, "", "Its time lies between two bounds: " + why.bounds + ".", style="")
    console.print(_part_table(result))
    from hwsim.engine import FIRST_BYTES

    if result.bounds.parts.get(FIRST_BYTES, 0.0) > result.bounds.lower_s:
        wrapped(console, "", _HIDDEN, style="dim")
    _section(console, "Where the cycles went")
    for name, table in _stall_tables(result, why):
        if name:
            console.print(name, style="dim")
        console.print(table)
    if len(result.stages) > 1:
        _section(console, "What each operation took")
        console.print(stage_table(result))
        _print_edges(console, result)
    for section in why.details.sections:
        _section(console, section.title)
        print_body(console, section.body)
    if result.formulas:
        _section(console, "Predicted and simulated")
        console.print(formula_table(result.formulas))
        print_reasons(console, result.formulas)
    _section(console, "Arithmetic intensity")
    _print_intensity(console, result)
    if result.energy_by_cause:
        _section(console, "Energy, by cause and action")
        console.print(_energy_table(result))
        if why.prices:
            wrapped(console, "", why.prices, style="dim")


def _section(console: Console, title: str) -> None:
    console.print(f"\n{title}", style="bold underline")


def _part_table(result: RunResult) -> Table:
    table = make_table("part", "alone", "of the time", "", left=(0, 3))
    parts = sorted(result.bounds.parts.items(), key=lambda item: (-item[1], item[0]))
    for name, alone in parts:
        if alone:
            share = alone / result.time_s
            table.add_row(name, seconds(alone), percent(share, 1), bar(share, 24))
    return table


_HIDDEN = (
    "first bytes: the waits of all transfers for their first bytes, one after the other. They can hide behind each "
    "other and behind all the rest, so the lower bound leaves them out."
)


def _stall_tables(result: RunResult, why: Why) -> list[tuple[str, Table]]:
    """All cores together; each by itself where they differ."""
    tables = [("", why_table(result, why))]
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


def _print_edges(console: Console, result: RunResult) -> None:
    """What operations leave in memory for each other."""
    from hwsim.results.explanation import find_edges

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


def _print_intensity(console: Console, result: RunResult) -> None:
    """Per element and per byte are different numbers: say which is which."""
    element, byte = result.intensity.element, result.intensity.byte
    if element is not None and byte is not None:
        console.print(f"program: {digits(element)} per element accessed, {digits(byte)} per byte accessed")
    for name, value in result.intensity.levels.items():
        if value is not None:
            console.print(f"{name}: {digits(value)} per byte that it exchanges with the level above")


_COUNTED = {"action": "times", "bit": "bits"}
"""What a count of the energy ledger counts, by what its price is for."""


def _energy_table(result: RunResult) -> Table:
    table = make_table("cause", "action", "count", "energy", "share", left=(0, 1))
    for cause, actions in (result.energy_by_cause or {}).items():
        for action, line in actions.items():
            count = f"{int(line.count):,} {_COUNTED.get(line.per, line.per)}" if line.count else ""
            table.add_row(cause, action, count, joules(line.joules), percent(line.joules, result.energy_j or 0))
            cause = ""
    return table
