"""`hwsim validate`: the one door to every comparison with the outside world."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.arguments import check_output
from hwsim.cli.console import err, out, styled
from hwsim.errors import InputError

if TYPE_CHECKING:
    from hwsim.validation.report import Progress, Report, Statistics

VALIDATE_EXAMPLE = (
    "Example: [cyan]hwsim validate cache[/cyan]   [cyan]hwsim validate cache --data mine.csv --json -[/cyan]"
)


def validate_command(
    family: Annotated[
        str | None, typer.Argument(help="What to compare; without it, the list.", show_default=False)
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A table of the same columns instead of the shipped one.")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Compare only so many rows of each group.")] = None,
    seed: Annotated[int, typer.Option(help="Which rows a sample takes.")] = 0,
    here: Annotated[
        bool, typer.Option("--here", help="cpu: against this computer, measured now, instead of the shipped table.")
    ] = False,
    machine: Annotated[
        str | None, typer.Option(help="With --here: the machine file for this computer, such as calibrate writes.")
    ] = None,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON; - is stdout.")] = None,
) -> None:
    """Compare hwsim with independent simulators and measured hardware; exit 1 if a stated bar is missed."""
    from hwsim.validation.report import FAMILIES, start

    if family is None:
        for name, what in FAMILIES.items():
            out().print(styled("  ", (f"hwsim validate {name}", "cyan"), f"  {what}"))
        return
    output = check_output(json_file, None, (data,))
    if here:
        from hwsim.validation.here import validate_here

        if family != "cpu":
            raise InputError(f"--here compares cores with this computer: hwsim validate cpu --here, not {family}")
        report = _follow(validate_here(machine))
    else:
        report = _follow(start(family, data, sample, seed))
    output.show(report.to_dict, lambda: _print_report(report))
    if not report.passed:
        raise typer.Exit(1)


def _follow(progress: Progress) -> Report:
    """Run a comparison with a progress bar on the terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from hwsim.validation.report import Report

    columns = (TextColumn("comparing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=err(), transient=True, disable=not err().is_terminal) as bar:
        task = bar.add_task("rows", total=None)
        for message in progress:
            if isinstance(message, Report):
                return message
            if isinstance(message, int):
                bar.update(task, total=message)
            else:
                bar.advance(task)
    raise AssertionError("a comparison ends with its report")


def _print_report(report: Report) -> None:
    from rich import box
    from rich.table import Table

    console = out()
    table = Table(
        box=box.SIMPLE_HEAD, title=f"validate {report.family}: {report.what}", title_justify="left", title_style="bold"
    )
    for name in ("group", "rows", "matched", "mean error", "median error"):
        table.add_column(name, justify="left" if name == "group" else "right")
    for name, statistics in report.groups.items():
        table.add_row(name, *_cells(statistics))
    table.add_section()
    table.add_row("all", *_cells(report.total), style="bold")
    console.print(table)
    for row in report.worst:
        console.print(f"  off by {row.error:.2%}: {row.id} ({row.group}) {row.detail}")
    for note in report.notes:
        console.print(f"  {note}")
    for bar in report.bars:
        mark = ("holds", "green") if bar.met else ("missed", "red")
        console.print(styled("  ", mark, f": {bar.name}: {bar.value} (bar: {bar.limit})"))


def _cells(statistics: Statistics) -> tuple[str, ...]:
    errors = (f"{number:.2%}" for number in (statistics.mape, statistics.median))
    return (str(statistics.rows), str(statistics.matched), *errors)
