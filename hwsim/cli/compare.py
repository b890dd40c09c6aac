"""`hwsim compare`: machines by workloads, side by side; `hwsim ladder`: the steps of a ladder, in the same table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import (
    JsonFile,
    PlotFile,
    Settings,
    check_output,
    sort_words,
    spinner,
    word_completion,
)
from hwsim.cli.console import err, out, screen, styled
from hwsim.error_bar import ALIKE, ALIKE_WORDS, NEVER_WORDS, within_bars
from hwsim.errors import InputError
from hwsim.results.metrics import SPEED_UP, TRAFFIC, far_traffic, metrics_of, shown, write
from hwsim.text import ratio

if TYPE_CHECKING:
    from hwsim.result import RunResult
    from hwsim.sweep.ladder import Ladder

COMPARE_EXAMPLE = "Example: [cyan]hwsim compare course_cpu,zen3 matmul_naive,matmul_simd,matmul_tiled n=50[/cyan]"


def compare_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MACHINES] [WORKLOADS] [NAME=VALUES]...",
            help="Machines and workloads with commas between; parameters apply to all, and several values of one "
            "(precision=fp32,int8) are compared as well.",
            autocompletion=word_completion,
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    no_math: Annotated[bool, typer.Option("--no-math", help="Do not compute the answers.")] = False,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Compare machines and workloads: every combination, with speed-ups against the first."""
    from hwsim.results.plot.compare import ComparedRun, plot_compare
    from hwsim.sweep.grid import MACHINE, WORKLOAD, make_request
    from hwsim.sweep.ladder import NamedRun, read_by_some, run_named

    given = sort_words(words or ())
    request = make_request(given.machines, given.workloads, given.parameters, {})
    output = check_output(json_file, plot, words or ())
    if request.count > MOST_RUNS:
        raise InputError(
            f"{request.count:,} runs are too many to compare at a glance (up to {MOST_RUNS}); use hwsim sweep"
        )
    axes = [axis.name for axis in request.axes if axis.swept]
    heads = [MACHINE, WORKLOAD, *axes]
    tasks: dict[tuple[str, ...], NamedRun] = {}
    for place in request.coordinates():
        names = tuple(str(place[head]) for head in heads)
        parameters = {axis.name: place[axis.name] for axis in request.axes}
        tasks[names] = NamedRun(" ".join(names), names[0], names[1], parameters, tuple(settings or ()))
    with spinner("simulating"):
        refused: dict[str, str] = {}
        mine, left_out = read_by_some(list(tasks.values()))
        results = run_named(mine, math=not no_math, refused=refused)
    rows = {names: results[task.label] for names, task in tasks.items() if task.label in results}
    for machine, unread in left_out.items():
        err().print(f"{', '.join(unread)} means nothing on {machine}: left out there", style="dim", soft_wrap=True)
    _print_refused(refused)
    output.show(lambda: comparison_data(rows, heads), lambda: print_comparison(rows, heads))
    if plot is not None:
        several = len(given.machines) > 1
        entries = [
            ComparedRun(
                names[0] if several else " ".join(names[1:]), " ".join(names[1:]) if several else names[0], result
            )
            for names, result in rows.items()
        ]
        plot_compare(entries, plot, "" if several else f"on {given.machines[0]}")


MOST_RUNS = 60
"""More runs than this do not fit a table that one looks at."""


def print_comparison(
    rows: Mapping[tuple[str, ...], RunResult], heads: Sequence[str], first: RunResult | None = None
) -> None:
    """`rows` by their names, one for each head; speed-ups are against the first row, or against `first`."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for head in heads:
        table.add_column(head, style="cyan", no_wrap=True)
    baseline = first or next(iter(rows.values()))
    for head in _cells(baseline, baseline):
        table.add_column(head, justify="left" if head == "bound by" else "right", no_wrap=True)
    for names, result in rows.items():
        table.add_row(*names, *_cells(result, baseline).values())
    console = screen()
    console.width = max(console.width, 150)
    console.print(table)
    if any(is_alike(result, baseline) for result in rows.values()):
        console.print(ALIKE_WORDS, style="dim", soft_wrap=True)
    if not all(bar.is_known for result in rows.values() for bar in (result.time, result.energy_bar) if bar is not None):
        console.print(NEVER_WORDS, style="dim", soft_wrap=True)


def is_alike(result: RunResult, baseline: RunResult) -> bool:
    """Whether the times of two runs cannot be told apart by what is known of their errors."""
    return result is not baseline and bool(within_bars(result.time.ends, baseline.time.ends))


def _print_refused(refused: Mapping[str, str]) -> None:
    for label, reason in refused.items():
        err().print(f"left out: {label}: {reason}", style="yellow", soft_wrap=True)


def comparison_data(rows: Mapping[tuple[str, ...], RunResult], heads: Sequence[str]) -> list[dict[str, Any]]:
    """The same as plain data."""
    from hwsim.results.explanation import explain

    baseline = next(iter(rows.values()))
    return [
        {**dict(zip(heads, names, strict=True)), "speed_up": baseline.time_s / result.time_s if result.time_s else None,
         "within_bars": within_bars(result.time.ends, baseline.time.ends) if result is not baseline else None,
         "bound": explain(result).bound.short, **metrics_of(result)}
        for names, result in rows.items()
    ]  # fmt: skip


def _cells(result: RunResult, baseline: RunResult) -> dict[str, str]:
    """What each column says of a run: its metrics, speed-up beside time, traffic among them, and what decides."""
    from hwsim.results.explanation import explain, with_bar

    row, far = metrics_of(result), far_traffic(result)
    cells = {(metric.column, metric.head or metric.title): with_bar(metric.name, result) for metric in shown("compare")}
    mark = f" {ALIKE}" if is_alike(result, baseline) else ""
    cells[SPEED_UP, "speed-up"] = ratio(baseline.time_s / result.time_s) + mark if result.time_s else "–"
    cells[TRAFFIC, "traffic"] = write(far, row.get(far))
    return {head: cells[column, head] for column, head in sorted(cells)} | {"bound by": explain(result).bound.short}


LADDER_EXAMPLE = "Example: [cyan]hwsim ladder matmul --plot ladder.png[/cyan]   [cyan]hwsim ladder fusion[/cyan]"


def ladder_command(
    ladder_name: Annotated[
        str | None, typer.Argument(metavar="[LADDER]", help="Which one; without it, the list.", show_default=False)
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MACHINES] [NAME=VALUE]...",
            help="Other machines than the ladder's own, and parameters to change, such as n=512.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Climb a ladder: the same computation in steps, with what each step brings."""
    from hwsim.sweep.ladder import LADDERS, find_ladder, ladder_runs, run_named

    if ladder_name is None:
        for name, each in LADDERS.items():
            out().print(
                styled("  ", (f"hwsim ladder {name}", "cyan"), f"  {each.title}. {each.question}"), soft_wrap=True
            )
        return
    ladder = find_ladder(ladder_name)
    output = check_output(json_file, plot, words or ())
    machines = [word for word in words or () if "=" not in word]
    changes = sort_words([word for word in words or () if "=" in word]).parameters
    chosen = tuple(name for word in machines for name in word.split(","))
    by_machine = ladder_runs(ladder, chosen, changes, settings or ())
    with spinner("simulating"):
        refused: dict[str, str] = {}
        runs = {machine: run_named(tasks, refused=refused) for machine, tasks in by_machine.items()}
    _print_refused(refused)
    rows: dict[tuple[str, ...], RunResult] = {
        (machine, step): result for machine, steps in runs.items() for step, result in steps.items()
    }
    output.show(lambda: comparison_data(rows, ("machine", "step")), lambda: _print_story(ladder, runs))
    if plot is not None:
        _draw(ladder.title, runs, plot)


def _print_story(ladder: Ladder, runs: Mapping[str, Mapping[str, RunResult]]) -> None:
    out().print(styled((ladder.title, "bold"), f". {ladder.question}"), soft_wrap=True)
    for machine, steps in runs.items():
        if len(runs) > 1:
            out().print(f"\n{machine}")
        print_comparison({(step,): result for step, result in steps.items()}, ("step",))


def _draw(title: str, runs: dict[str, dict[str, RunResult]], plot: Path) -> None:
    from hwsim.results.plot.compare import plot_ladder, plot_steps

    if len(runs) == 1:
        machine, steps = next(iter(runs.items()))
        one = len({result.machine for result in steps.values()}) == 1
        plot_ladder(steps, plot, f"{title}, on {machine}" if one else title)
    else:
        plot_steps(runs, plot, title)
