"""`hwsim tune`: the best schedule, found by simulating few."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.arguments import (
    AxisSettings,
    Jobs,
    JsonFile,
    PlotFile,
    check_output,
    pairs,
    sort_words,
    store_files,
    word_completion,
)
from hwsim.cli.console import bars, err, screen, styled
from hwsim.errors import InputError
from hwsim.results.metrics import about, write
from hwsim.text import counted, digits

if TYPE_CHECKING:
    from hwsim.sweep.grid import SweepRequest
    from hwsim.sweep.result_set import ResultSet
    from hwsim.sweep.tune import Budget, SearchOutcome

TUNE_EXAMPLE = (
    "Example: [cyan]hwsim tune course_cpu matmul_tiled tile=4..256:x2 precision=fp32,int8 --for energy[/cyan]"
)

_REASONS = 4
_EVERY_S = 2.0
"""How often a line tells how far a search is, where there is no terminal."""


def tune_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MACHINE] [WORKLOAD] [NAME=VALUES]...",
            help="What to search, as for sweep; without any list or range, the usual choices of the operation.",
            autocompletion=word_completion,
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
    no_math: Annotated[
        bool, typer.Option("--no-math", help="Do not compute the answers of the best and the default either.")
    ] = False,
    settings: AxisSettings = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="A store to keep and reuse points in; none if not given."),
    ] = None,
    jobs: Jobs = None,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Find the best schedule for a machine by its own cost model, and tell what it gains over the default, and why."""
    from hwsim.sweep.store import MEMORY, ResultStore
    from hwsim.sweep.tune import parse_budget
    from hwsim.systems.spec import is_system

    limit = parse_budget(budget)
    output = check_output(json_file, plot, (*(words or ()), *store_files(out)))
    if words and is_system(words[0]):
        from hwsim.cli.layout import tune_on_system

        if plot is not None or settings or out is not None:
            raise InputError("--plot, --set and --out are for schedules of one machine; layouts have none of them")
        tune_on_system(words, metric, output)
        return
    request, usual = _request(words or [], settings, not no_math)
    with ResultStore(out if out is not None else MEMORY) as store:
        search = _follow(request, metric, store, limit, jobs, usual)
        output.show(lambda: _data(search), lambda: _print(search))
        if plot is not None:
            search.results.plot("pareto", plot)


def _request(words: list[str], settings: list[str] | None, math: bool) -> tuple[SweepRequest, bool]:
    """What to search, and whether it is the machine's own space, which begins with the default."""
    from hwsim.sweep.grid import make_request
    from hwsim.sweep.search import usual_space

    given = sort_words(words)
    if len(given.machines) > 1 or len(given.workloads) > 1:
        raise InputError("one machine and one workload are tuned at a time; hwsim compare takes several")
    fields = pairs(settings or [], "write a field as path=values, such as l2.size=256KiB,1MiB")
    request = make_request(given.machines, given.workloads, given.parameters, fields, math=math)
    if request.swept:
        return request, False
    changed = [f"{name}={value}" for name, value in fields.items()]
    space = usual_space(given.machines[0], given.workloads[0], given.parameters, changed)
    return make_request(given.machines, given.workloads, space, fields, math=math), True


def _follow(
    request: SweepRequest, metric: str, store: object, limit: Budget, jobs: int | None, usual: bool
) -> SearchOutcome:
    """A bar on a terminal; elsewhere a line at once, and one every few seconds."""
    from time import monotonic

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from hwsim.sweep.store import ResultStore
    from hwsim.sweep.tune import tune

    assert isinstance(store, ResultStore)
    console = err()
    names = ", ".join(axis.name for axis in request.swept) or "nothing"
    told = f"{request.count:,} combinations of {names} on {request.machines[0]}"
    console.print(told, style="dim", soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=bars(), transient=True) as bar:
        task = bar.add_task("checking", total=None)
        last = monotonic()

        def watch(doing: str, done: int, total: int) -> None:
            nonlocal last
            bar.update(task, description=doing, completed=done, total=total)
            if not console.is_terminal and monotonic() - last > _EVERY_S:
                last = monotonic()
                console.print(f"{doing}: {done:,} of {total:,}", style="dim", soft_wrap=True)

        return tune(request, metric, store, budget=limit, jobs=jobs, watch=watch, default_first=usual)


def _print(search: SearchOutcome) -> None:
    from hwsim.cli.sweep import columns, narrow, point_table, where

    console = screen()
    front = _told_apart(search.front)
    shown = narrow(columns(search.results))
    if search.metric not in shown:
        shown = [search.metric, *shown]
    title = about(search.metric).title
    words = ["time", "energy", *([title] if search.metric not in ("time_s", "energy_j") else [])]
    console.print(f"Pareto front of {', '.join(words[:-1])} and {words[-1]}", style="bold")
    console.print(point_table(front.only(front.rows[:12]), shown, _axes(front)))
    best = search.best
    value = write(search.metric, best.metrics[search.metric])
    word = "most" if about(search.metric).higher_is_better else "least"
    console.print(
        styled((f"\n{word} {title}", "bold"), ": ", (value, "bold cyan"), f" at {where(search.results, best)}"),
        soft_wrap=True,
    )
    console.print(f"  {search.command}", style="green", soft_wrap=True)
    console.print(_gain(search), soft_wrap=True)
    if search.left_out:
        console.print("its answer was not computed, which would take long: the command above does it", style="dim")
    fits = search.candidates - sum(search.pruned.values())
    told = (
        f"{search.candidates:,} combinations, {fits:,} fit" if search.pruned else f"{search.candidates:,} combinations"
    )
    estimated = f", {search.estimated:,} estimated" if search.estimated else ""
    console.print(f"{told}{estimated}, {search.simulated:,} simulated: {search.how}", style="dim", soft_wrap=True)
    for rule, count in search.pruned.most_common(_REASONS):
        console.print(f"  {counted(count, 'combination')} left out: {rule}", style="dim", soft_wrap=True)


def _told_apart(front: ResultSet) -> ResultSet:
    """One of those that cost the same, the first."""
    rows = {(row.metrics.get("time_s"), row.metrics.get("energy_j")): row for row in reversed(front.rows)}
    return front.only(row for row in front.rows if row in rows.values())


def _axes(front: ResultSet) -> tuple[str, ...]:
    """The axes along which what is shown differs, or on which something was chosen; all where there are none."""
    values = {name: {row[name] for row in front.rows} for name in front.axis_names}
    return tuple(name for name, found in values.items() if found != {"auto"}) or front.axis_names


def _gain(search: SearchOutcome) -> str:
    """What the best brings over the default, and what decided the time of each."""

    if search.gain is None or search.values is None or search.bounds is None:
        return "there is no default to compare with: without these choices it does not run"
    default = write(search.metric, search.values[0])
    before, after = search.bounds
    decides = f"bound by {before}" if before == after else f"bound by {before} before, by {after} after"
    title = about(search.metric).title
    if search.gain > 1:
        return f"{digits(search.gain)} times better than the default schedule ({title} {default}); {decides}"
    if search.gain == 1:
        return f"the default schedule ({title} {default}) is the best that was found; {decides}"
    return f"the default schedule is better than all of these: {title} {default}; {decides}"


def _data(search: SearchOutcome) -> dict[str, object]:
    return {
        "default": None if search.values is None else search.values[0],
        "gain": search.gain,
        "bounds": search.bounds,
        "verified": None if search.found is None else search.found.verified,
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
