"""`hwsim tune`: the best schedule, found by simulating few."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.console import err, print_json, write_json
from hwsim.cli.sweep_words import AxisSettings, Jobs, JsonFile, PlotFile, sort_words
from hwsim.errors import InputError

if TYPE_CHECKING:
    from hwsim.sweep.request import Request
    from hwsim.sweep.tune import Budget, Search

EXAMPLE = "Example: [cyan]hwsim tune course_cpu matmul_tiled tile=4..256:x2 precision=fp32,int8 --for energy[/cyan]"

_REASONS = 4


def tune_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MACHINE] [WORKLOAD] [NAME=VALUES]...",
            help="What to search, as for sweep; without any list or range, the usual choices of the operation.",
            show_default=False,
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option("--for", metavar="METRIC", help="time, energy, edp, or any metric, such as l1.fills or loads."),
    ] = "time",
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="60s|200", help="Stop after so long, or after so many simulated points."),
    ] = None,
    settings: AxisSettings = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="A store to keep and reuse points in; none if not given."),
    ] = None,
    jobs: Jobs = None,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Find the best schedule: leave out what does not fit, estimate the rest, simulate the promising ones."""
    from hwsim.cli.run import check_place
    from hwsim.results.plot.file import check_plot_file
    from hwsim.sweep.store import MEMORY, Store
    from hwsim.sweep.tune import parse_budget

    limit = parse_budget(budget)
    target = None if json_file in (None, "-") else Path(str(json_file)).expanduser()
    for option, path in (("--json", target), ("--plot", plot)):
        check_place(option, path)
    check_plot_file(plot)
    request = _request(words or [], settings)
    with Store(out if out is not None else MEMORY) as store:
        search = _follow(request, metric, store, limit, jobs)
        if json_file == "-":
            print_json(_data(search))
        else:
            _print(search)
        if target is not None:
            write_json(target, _data(search))
        if plot is not None:
            search.results.plot("pareto", plot)


def _request(words: list[str], settings: list[str] | None) -> Request:
    from hwsim.cli.sweep_words import pairs
    from hwsim.sweep.request import make_request
    from hwsim.sweep.space import usual_space

    given = sort_words(words)
    if len(given.machines) > 1 or len(given.workloads) > 1:
        raise InputError("one machine and one workload are tuned at a time; hwsim compare takes several")
    fields = pairs(settings or [], "write a field as path=values, such as l2.size=256KiB,1MiB")
    request = make_request(given.machines, given.workloads, given.parameters, fields)
    if request.swept:
        return request
    space = usual_space(given.machines[0], given.workloads[0], given.parameters)
    return make_request(given.machines, given.workloads, space, fields)


def _follow(request: Request, metric: str, store: object, limit: Budget, jobs: int | None) -> Search:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from hwsim.sweep.store import Store
    from hwsim.sweep.tune import tune

    assert isinstance(store, Store)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err(), transient=True, disable=not err().is_terminal) as bar:
        task = bar.add_task("checking", total=None)

        def watch(doing: str, done: int, total: int) -> None:
            bar.update(task, description=doing, completed=done, total=total)

        return tune(request, metric, store, budget=limit, jobs=jobs, watch=watch)


def _print(search: Search) -> None:
    from hwsim.cli.run_screen import screen
    from hwsim.cli.sweep_screen import columns, narrow, point_table, where
    from hwsim.results.metrics import about, write
    from hwsim.results.text import counted

    console = screen()
    front = search.front
    shown = narrow(columns(search.results))
    if search.metric not in shown:
        shown = [search.metric, *shown]
    title = about(search.metric).title
    words = ["time", "energy", *([title] if search.metric not in ("time_s", "energy_j") else [])]
    console.print(f"[bold]What nothing beats in {', '.join(words[:-1])} and {words[-1]} at once[/bold]")
    console.print(point_table(front.only(front.rows[:12]), shown))
    best = search.best
    value = write(search.metric, best.metrics[search.metric])
    word = "most" if about(search.metric).higher_is_better else "least"
    console.print(
        f"\n[bold]{word} {title}[/bold]: [bold cyan]{value}[/bold cyan] at {where(search.results, best)}",
        soft_wrap=True,
    )
    console.print(f"  {search.command}", style="green", soft_wrap=True)
    fits = search.candidates - sum(search.pruned.values())
    told = (
        f"{search.candidates:,} combinations, {fits:,} fit" if search.pruned else f"{search.candidates:,} combinations"
    )
    estimated = f", {search.estimated:,} estimated" if search.estimated else ""
    console.print(f"{told}{estimated}, {search.simulated:,} simulated: {search.how}", style="dim", soft_wrap=True)
    for rule, count in search.pruned.most_common(_REASONS):
        console.print(f"  {counted(count, 'combination')} left out: {rule}", style="dim", soft_wrap=True)


def _data(search: Search) -> dict[str, object]:
    return {
        "metric": search.metric,
        "best": search.best.to_dict(),
        "command": search.command,
        "front": search.front.to_dicts(),
        "combinations": search.candidates,
        "estimated": search.estimated,
        "simulated": search.simulated,
        "left_out": dict(search.pruned),
        "how": search.how,
    }
