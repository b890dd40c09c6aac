"""`hwsim validate`: how far off hwsim is; `hwsim fit`: constants of a GPU from one half of measured kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import check_output
from hwsim.cli.console import bars, err, make_table, out, screen, styled
from hwsim.errors import InputError
from hwsim.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hwsim.results.bar_table import BarTable
    from hwsim.validation.fit import Fit, FitStep
    from hwsim.validation.report import Progress, Report, Statistics
    from hwsim.validation.standing import FamilyStanding, Standing

VALIDATE_EXAMPLE = (
    "Example: [cyan]hwsim validate[/cyan]   [cyan]hwsim validate gpu[/cyan]   "
    "[cyan]hwsim validate cache --data mine.csv --json -[/cyan]"
)


def validate_command(
    family: Annotated[
        str | None,
        typer.Argument(
            help="What to compare, such as cache, cpu, gpu or models; without it, everything.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A table of the same columns instead of the shipped one, or a folder of larger ones."),
    ] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Compare only so many rows of each group.")] = None,
    seed: Annotated[int, typer.Option(help="Which rows a sample takes.")] = 0,
    write: Annotated[
        bool, typer.Option("--write", help="Make the table of error bars anew from rows that were not fitted.")
    ] = False,
    here: Annotated[
        bool, typer.Option("--here", help="cpu: against this computer, measured now, instead of the shipped table.")
    ] = False,
    machine: Annotated[
        str | None, typer.Option(help="With --here: the machine file for this computer, such as calibrate writes.")
    ] = None,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON; - is stdout.")] = None,
) -> None:
    """Compare hwsim with independent simulators and measured hardware; exit 1 if a stated bar is missed."""
    from hwsim.results.bar_table import shipped_table
    from hwsim.validation.report import start

    if family is None and data is not None and not data.is_dir():
        raise InputError(f"--data {data}: a table is for one family, such as hwsim validate gpu --data {data}")
    output = check_output(json_file, None, () if data is None or data.is_dir() else (data,))
    if here:
        reports = {"cpu": _follow("cpu", _measured_here(family, machine, write))}
    elif family is None:
        reports = _follow_all(data, sample, seed)
    else:
        reports = {family: _follow(family, start(family, data, sample, seed))}
    table = _write(reports) if write else shipped_table()
    found = _families(reports, table)
    if family is not None:
        report = reports[family]
        own = data is not None and not data.is_dir()
        output.show(lambda: _data(report, found, own=own), lambda: _print_report(report, found, own=own, sample=sample))
    else:
        output.show(
            lambda: {name: _data(report, found) for name, report in reports.items()},
            lambda: _print_all(reports, found, sample),
        )
    if not all(report.passed for report in reports.values()):
        raise typer.Exit(1)


def _measured_here(family: str | None, machine: str | None, write: bool) -> Progress:
    from hwsim.validation.cpu import validate_here

    if family != "cpu" or write:
        asked = f"not {family or 'all'}" if family != "cpu" else "without --write: error bars are of tables that ship"
        raise InputError(f"--here compares cores with this computer: hwsim validate cpu --here, {asked}")
    return validate_here(machine)


def _follow(family: str, progress: Progress) -> Report:
    """Run a comparison with a progress bar on the terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from hwsim.validation.report import Report

    columns = (TextColumn(f"comparing: {family}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=bars(), transient=True) as bar:
        task = bar.add_task("rows", total=None)
        for message in progress:
            if isinstance(message, Report):
                return message
            if isinstance(message, int):
                bar.update(task, total=message)
            else:
                bar.advance(task)
    raise AssertionError("a comparison ends with its report")


def _follow_all(data: Path | None, sample: int | None, seed: int) -> dict[str, Report]:
    """Every comparison, several at a time, with a line for each that is done."""
    from hwsim.cli.arguments import spinner
    from hwsim.validation.report import FAMILIES, compare_all

    found: dict[str, Report] = {}
    with spinner(f"comparing {', '.join(FAMILIES)}"):
        for name, report in compare_all(list(FAMILIES), data, sample, seed):
            found[name] = report
            rows = f"{len(report.results):,} rows"
            err().print(f"{len(found)} of {len(FAMILIES)}: {name}, {rows}", style="dim", soft_wrap=True)
    return {name: found[name] for name in FAMILIES}


def _write(reports: dict[str, Report]) -> BarTable:
    """New bars for the families that were compared; those of others stay as they are."""
    from hwsim.files import write_text
    from hwsim.results.bar_table import TIME, BarTable, shipped_table, table_file
    from hwsim.validation.residual import make_table, table_text
    from hwsim.validation.standing import read_standings, standing_file, standing_text, standings

    made = make_table(row.residual for each in reports.values() for row in each.results if row.residual is not None)
    renewed = {(each.quantity, each.family, each.machine) for each in made.groups}
    kept = [each for each in shipped_table().groups if (each.quantity, each.family, each.machine) not in renewed]
    table = BarTable(sorted((*kept, *made.groups), key=lambda g: (g.quantity, g.family, g.machine, g.decade, g.half)))
    write_text(table_file(), table_text(table))
    rows = [each for each in read_standings(standing_file()) if each.check not in reports]
    rows += [each for name, report in reports.items() for each in standings(name, report, table)]
    rows.sort(key=lambda each: (each.quantity != TIME, each.quantity, each.check, each.family, each.machine))
    write_text(standing_file(), standing_text(rows))
    err().print(f"written: {table_file()}, {standing_file()}; now: make docs", style="dim", soft_wrap=True)
    return table


def _families(reports: dict[str, Report], table: BarTable) -> list[FamilyStanding]:
    from hwsim.validation.standing import by_family, standings

    return by_family(row for name, report in reports.items() for row in standings(name, report, table))


def _data(report: Report, found: Sequence[FamilyStanding], *, own: bool = False) -> dict[str, Any]:
    """A report with the coverage of its error bars; single rows of measurements where the table is the user's own."""
    families = [each for each in found if report.family in each.checks]
    return {
        **report.to_dict(own=own),
        "error_bars": [
            {
                "quantity": each.quantity,
                "family": each.family,
                "rows": each.rows,
                "mean_error": each.mean_error,
                "judged": each.judged,
                "coverage": each.coverage,
                "coverage_unseen_machine": each.unseen_coverage,
                "half_width": each.width,
                "aims": [
                    {
                        "machine": aim.machine or None,
                        "statistic": aim.statistic,
                        "limit": aim.limit,
                        "error": each.reached(aim),
                    }
                    for aim in each.aims
                ],
                "machines": [_machine_data(row) for row in each.machines],
            }
            for each in families
        ],
    }


def _machine_data(row: Standing) -> dict[str, Any]:
    return {
        "machine": row.machine,
        "rows": row.rows,
        "rows_for_fits": row.for_fits,
        "mean_error": row.mean_error,
        "median_error": row.median_error,
        "judged": row.judged,
        "inside": row.inside,
        "judged_unseen": row.unseen_judged,
        "inside_unseen": row.unseen_inside,
    }


def _print_all(reports: dict[str, Report], found: Sequence[FamilyStanding], sample: int | None) -> None:
    """A line for each family that hardware was measured for; then what else was compared, and every stated bar."""
    console = screen()
    console.width = max(console.width, 120)
    console.print(styled(("rows that nothing was fitted to", "bold"), ": error, aim, and how often bars for 80 % hold"))
    table = make_table(*_HEADS, "compared by", left=(0, len(_HEADS)))
    for each in found:
        table.add_row(*_standing_cells(each, sample), ", ".join(each.checks))
    console.print(table)
    _print_legend(console, sample)
    for name, report in reports.items():
        total, met = report.total, sum(bar.met for bar in report.bars)
        equal = f"{total.matched:,} equal, " if any(row.residual is None for row in report.results) else ""
        words = f"{total.rows:,} rows, {equal}mean error {total.mape:.2%}"
        console.print(
            styled("  ", (name, "cyan"), f": {words}; {met} of {len(report.bars)} stated bars hold"), soft_wrap=True
        )
        for bar in report.bars:
            if not bar.met:
                console.print(styled("    ", ("missed", "red"), f": {bar.name}: {bar.value} (bar: {bar.limit})"))


_HEADS = ("family", "rows", "error", "aim", "", "judged", "within", "unseen machine", "half a bar")


def _standing_cells(each: FamilyStanding, sample: int | None) -> tuple[Any, ...]:
    """A sample is not judged by aims: they are for all rows."""
    aims = [(aim, each.reached(aim)) for aim in each.aims]
    known = [(aim, value) for aim, value in aims if value is not None]
    shown = ", ".join(f"{aim.limit:.1%}{f' {aim.machine}' if aim.machine else ''}" for aim, _ in known)
    held = all(value <= aim.limit for aim, value in known)
    judged = "sample" if sample is not None else _verdict(held)
    mark = judged if known else ""
    name = each.family if each.quantity == "time" else f"{each.family}, {each.quantity}"
    return (
        name, f"{each.rows:,}", f"{each.mean_error:.1%}", shown, mark, f"{each.judged:,}",
        _covered(each.coverage, each.is_calibrated), _covered(each.unseen_coverage, None),
        "–" if each.width is None else f"± {each.width:.0%}",
    )  # fmt: skip


def _verdict(held: bool) -> Any:
    return styled(("holds", "green")) if held else styled(("missed", "red"))


def _covered(share: float | None, good: bool | None) -> Any:
    if share is None:
        return "–"
    text = f"{share:.0%}"
    return text if good is None else styled((text, "green" if good else "red"))


def _print_legend(console: Any, sample: int | None) -> None:
    words = (
        "error: mean over machines; within: share of the judged rows inside their bar (75 to 85 % wanted); unseen "
        "machine: the same with the row's machine left out of the table; aim: for the mean over all machines, those "
        "that stated bars leave out among them"
    )
    console.print(words, style="dim", soft_wrap=True)
    if sample is not None:
        told = f"a sample, {counted(sample, 'row')} of each group: aims are for all rows, and are not judged here"
        console.print(told, style="dim", soft_wrap=True)


def _print_report(report: Report, found: Sequence[FamilyStanding], *, own: bool, sample: int | None = None) -> None:
    from rich import box
    from rich.table import Table

    console = out()
    table = Table(
        box=box.SIMPLE_HEAD, title=f"validate {report.family}: {report.what}", title_justify="left", title_style="bold"
    )
    exact = any(row.residual is None for row in report.results)  # measured times and energies never match to a digit
    for name in ("group", "rows", *(["matched"] if exact else []), "mean error", "median error"):
        table.add_column(name, justify="left" if name == "group" else "right")
    for name, statistics in report.groups.items():
        table.add_row(name, *_cells(statistics, exact=exact))
    table.add_section()
    table.add_row("all", *_cells(report.total, exact=exact), style="bold")
    console.print(table)
    for part in report.parts:
        console.print(f"  {part}", soft_wrap=True)
    for row in report.worst(own=own):
        console.print(f"  off by {row.error:.2%}: {row.id} ({row.group}) {row.detail}")
    for note in report.notes:
        console.print(f"  {note}")
    for bar in report.bars:
        mark = ("holds", "green") if bar.met else ("missed", "red")
        console.print(styled("  ", mark, f": {bar.name}: {bar.value} (bar: {bar.limit})"))
    if found:
        console.print()
        bars = make_table(*_HEADS, left=(0,))
        for each in found:
            bars.add_row(*_standing_cells(each, sample))
        console.print(bars)
        _print_legend(console, sample)


def _cells(statistics: Statistics, *, exact: bool) -> tuple[str, ...]:
    errors = (f"{number:.2%}" for number in (statistics.mape, statistics.median))
    return (str(statistics.rows), *([str(statistics.matched)] if exact else []), *errors)


FIT_EXAMPLE = "Example: [cyan]hwsim fit h100 measured.csv -o my_h100.yaml[/cyan]"


def fit_command(
    machine: Annotated[str, typer.Argument(help="A GPU: the name or the file of a machine.")],
    measured: Annotated[Path, typer.Argument(help="Measured kernels, in the columns of `hwsim validate gpu`.")],
    output_file: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a machine file with what was found.")
    ] = None,
    rows: Annotated[int, typer.Option(min=5, help="Rows of each family to search on.")] = 60,
    seed: Annotated[int, typer.Option(help="Which rows are drawn.")] = 0,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON; - is stdout.")] = None,
) -> None:
    """Fit a GPU's few constants to one half of a table of measured kernels, and report the other half."""
    from hwsim.catalog import find, load_machine, machine_names
    from hwsim.files import check_output_file, note_input, write_text
    from hwsim.validation.fit import as_variant, fit

    spec = load_machine(machine).spec
    source = find("machine", machine)
    output = check_output(json_file, None, (measured,))
    if output_file is not None:
        note_input(source)
        check_output_file(output_file, (measured, source), "-o")
    found = _follow_fit(fit(spec, measured, rows, seed))
    if output_file is not None:
        base = machine if machine in machine_names() else str(source.resolve())
        write_text(output_file, as_variant(found, base, output_file.stem))
    output.show(found.to_dict, lambda: _print(found, output_file))


def _follow_fit(progress: Iterator[FitStep | Fit]) -> Fit:
    """Run the search with a bar that tells how far it is."""
    from hwsim.cli.arguments import spinner
    from hwsim.validation.fit import Fit

    with spinner("fitting:") as say:
        for message in progress:
            if isinstance(message, Fit):
                return message
            say(message.doing, message.share)
    raise AssertionError("a fit ends with what it found")


def _print(found: Fit, output_file: Path | None) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"fit of {found.machine} to {found.table}: mean error on rows that were held out",
        title_justify="left",
        title_style="bold",
    )
    for name in ("family", "rows fitted on", "rows held out", "before", "after"):
        table.add_column(name, justify="left" if name == "family" else "right")
    for family, error in found.after.items():
        counts = str(found.fitted_rows.get(family, 0)), str(found.held_out_rows[family])
        table.add_row(family, *counts, f"{found.before[family]:.1%}", f"{error:.1%}")
    console = out()
    console.print(table)
    for path, text in found.constants.items():
        console.print(f"  {path if path.startswith('energy') else f'{found.unit}.{path}'}: {text}")
    if output_file is not None:
        console.print(f"wrote {output_file}")
