"""`hwsim sweep`: every combination of values, kept in a store, with the best of each metric and a plot.

`hwsim tune`: the best schedule, found by simulating few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.arguments import (
    CTRL_C,
    TELL_EVERY_S,
    AxisSettings,
    ExecutorName,
    Jobs,
    JsonFile,
    PlotFile,
    Scheduler,
    check_output,
    follow,
    make_request,
    pairs,
    sort_words,
    store_files,
    word_argument,
)
from hwsim.cli.console import bars, err, make_table, screen, styled, wrapped
from hwsim.errors import InputError
from hwsim.record import ALIKE, NEVER_COMPARED, interval_words
from hwsim.results.metrics import (
    MEMORY_SHARE,
    MODEL,
    THROUGHPUT,
    TRAFFIC,
    UNFIT,
    about,
    ends_of,
    shown,
    throughput,
    write,
)
from hwsim.units import counted, digits, ratio

if TYPE_CHECKING:
    from rich.table import Table

    from hwsim.cli.console import FittingTable
    from hwsim.result import RunResult
    from hwsim.sweep.executor import Tls
    from hwsim.sweep.grid import SweepRequest
    from hwsim.sweep.result_set import ResultSet, Row
    from hwsim.sweep.runner import SweepTally
    from hwsim.sweep.store import ResultStore
    from hwsim.sweep.tune import Budget, Tuned

SWEEP_EXAMPLE = (
    "Example: [cyan]hwsim sweep course_cpu matmul_tiled tile=4..256:x2 precision=fp32,bf16,int8 --plot tiles.png[/cyan]"
)

DEFAULT_STORE = Path("sweep.db")


def sweep_command(
    words: Annotated[
        list[str] | None,
        word_argument(
            "[MACHINES] [WORKLOADS] [NAME=VALUES]... | FILE.yaml",
            "Machines and workloads, with commas between several; axes as lists (8,16,32), ranges (1..9:2) or "
            "geometric ranges (8..256:x2); or a file that says the same.",
        ),
    ] = None,
    settings: AxisSettings = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The store that keeps every point.")
    ] = DEFAULT_STORE,
    jobs: Jobs = None,
    executor: ExecutorName = "auto",
    scheduler: Scheduler = None,
    tls_ca: Annotated[
        Path | None, typer.Option("--tls-ca", metavar="FILE", help="Who signs the Dask cluster's certificates (PEM).")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Your certificate for the Dask cluster (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="The key of that certificate (PEM).")
    ] = None,
    retry: Annotated[
        bool,
        typer.Option(
            "--retry", help="Try points again that the model refused; those lost to passing faults are in any case."
        ),
    ] = False,
    plot: PlotFile = None,
    kind: Annotated[
        str,
        typer.Option(
            "--kind", metavar="NAME", help="Which plot: lines, heat, pareto, energy, traffic; auto takes what fits."
        ),
    ] = "auto",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="What to plot, and a column more: time, energy, edp, error, l1.fills, …; repeatable.",
        ),
    ] = None,
    x: Annotated[str | None, typer.Option("--x", metavar="AXIS", help="The axis to plot over.")] = None,
    json_file: JsonFile = None,
    seed: Annotated[int | None, typer.Option(min=0, metavar="N", help="For random inputs and replacement.")] = None,
    no_math: Annotated[bool, typer.Option("--no-math", help="Do not compute the answers.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Run a grid of 100,000 points or more without asking.")
    ] = False,
) -> None:
    """Simulate every combination; the same command goes on where it was interrupted."""
    from hwsim.cli.run import LastSearch, remember_search
    from hwsim.sweep.point import check_request
    from hwsim.sweep.result_set import check_picture, load_results
    from hwsim.sweep.runner import run_request
    from hwsim.sweep.store import ResultStore
    from hwsim.sweep.tune import run_command

    request = make_request(words or (), settings, seed, not no_math)
    tls = _tls(tls_ca, tls_cert, tls_key)
    output = check_output(json_file, plot, (*(words or ()), *store_files(out)))
    check_picture(request, kind, x)
    _confirm(request, yes)
    if not out.exists():
        check_request(request)  # a slip leaves no store behind
    with ResultStore(out) as store:
        with _kept(store):
            news = run_request(request, store, executor, jobs, scheduler, _tell, retry=retry, tls=tls)
            tally = follow(news, request.count, "sweeping")
        results = load_results(store, store.begin(request), request)
        if results.fitting:
            best = results.best("time_s")
            remember_search(LastSearch("sweep", run_command(request, best.coordinates)))
        output.show(results.to_dicts, lambda: print_sweep(results, tally, f"kept in {out}", metric or ()))
        if plot is not None:
            results.plot(kind, plot, x=x, metrics=metric or ())
            _tell(f"drawn: {plot}")
    if tally.failed and tally.failed == request.count:
        raise typer.Exit(1)


def _tls(*files: Path | None) -> Tls | None:
    """The certificates, where they are given: all of them, each a file that is there."""
    from hwsim.sweep.executor import Tls

    given = [str(file) for file in files if file is not None]
    if not given:
        return None
    if len(given) < len(files):
        raise InputError("give --tls-ca, --tls-cert and --tls-key together")
    for file in given:
        if not Path(file).is_file():
            raise InputError(f"there is no file {file}")
    return Tls(*given)


def _tell(words: str) -> None:
    err().print(words, style="dim", soft_wrap=True)


def _confirm(request: SweepRequest, yes: bool) -> None:
    """On a terminal one is asked; elsewhere --yes has to be said."""
    from hwsim.sweep.grid import CONFIRM_FROM

    if request.count >= CONFIRM_FROM and not yes and err().is_terminal:
        yes = typer.confirm(f"{request.count:,} points ({request.size_words()}). Run them all?", err=True)
    request.check_size(yes)


@contextmanager
def _kept(store: ResultStore) -> Iterator[None]:
    """Whoever interrupts a sweep is told that nothing is lost."""
    told = f"points are kept in {store.name}; the same command goes on from there"
    CTRL_C.kept = f"the finished {told}"
    try:
        yield
    except KeyboardInterrupt:
        count, CTRL_C.kept = store.count(), ""
        _tell(f"{count:,} {told}")
        raise


_FEW = 30
PEAK = "utilisation"
"""The share of the peak: a column of its own where all points are of one machine and there is room."""
_REASONS = 5


def print_sweep(results: ResultSet, tally: SweepTally, kept: str, metrics: Sequence[str] = ()) -> None:
    from hwsim.results.explanation import about_numbers
    from hwsim.sweep.result_set import unfit_words

    console = screen()
    names = columns(results)
    if len(results) <= _FEW:
        shown_names = narrow(names)
        asked = [results.check_metric(name) for name in metrics]
        shown_names += [name for name in dict.fromkeys(asked) if name not in shown_names]
        table = point_table(results, shown_names, bound=True)
        if PEAK in names and PEAK not in shown_names and "machine" not in results.axis_names:
            wider = point_table(results, [*shown_names, PEAK], bound=True)
            table = wider if wider.fits(console) else table
        console.print(table)
        if len(_time_bars(results)) > len({row["machine"] for row in results.done}):
            wrapped(console, "note  ", _DECADES, style="dim")
        for note in about_numbers([results.result(row) for row in results.done]):
            wrapped(console, "note  ", note, style="dim")
    if words := unfit_words(results):
        console.print(f"{UNFIT} {words}", style="bold red", soft_wrap=True)
    if results.fitting:
        console.print(best_table(results, names))
        if words := near_words(results):
            console.print(words, style="dim", soft_wrap=True)
    console.print(_how_it_went(results, tally, kept), style="dim", soft_wrap=True)
    for reason, count in tally.errors.most_common(_REASONS):
        console.print(styled((f"{count} failed", "red"), f": {reason}"), soft_wrap=True)


_DECADES = (
    "error bars differ where kernels are of another family or decade of time (1 to 10 µs, 10 to 100 µs): each is made "
    "of the rows measured there; see hwsim explain error bar"
)


def _time_bars(results: ResultSet) -> set[tuple[object, str]]:
    """The error bars of all times, as they are written, by machine."""
    found = set()
    for row in results.done:
        ends, value = ends_of("time_s", row.metrics), row.metrics.get("time_s")
        if ends is not None and isinstance(value, float) and value:
            found.add((row["machine"], interval_words(value, ends)))
    return found


def columns(results: ResultSet) -> list[str]:
    """The metrics worth a column: those that some point has, and the bytes of each level."""
    speeds = list(dict.fromkeys(filter(None, (throughput(row.metrics) for row in results.done))))
    endings = ("dram.bytes",) if speeds else (".fills", "dram.bytes")
    traffic = [name for name in results.metric_names if name.endswith(endings)]
    near = [metric.name for metric in shown("sweep") if metric.column < TRAFFIC]
    wanted = [near[0], *speeds, *near[1:], *traffic, *(each.name for each in shown("sweep") if each.name not in near)]
    return [name for name in dict.fromkeys(wanted) if any(row.metrics.get(name) is not None for row in results.done)]


def narrow(names: list[str]) -> list[str]:
    """What fits beside the axes: the first level's lines and the furthest level's bytes stand for all."""
    fills = [name for name in names if name.endswith(".fills")][:1]
    far = [name for name in names if name.endswith(".bytes")][-1:]
    own = [metric.name for metric in shown("point")]
    return [name for name in names if name in (*own, *fills, *far, *THROUGHPUT)]


def point_table(
    results: ResultSet, names: list[str], axes: tuple[str, ...] | None = None, *, bound: bool = False
) -> FittingTable:
    """A row for each point; with what it is `bound` by, which is read from its whole result."""
    from hwsim.sweep.grid import typed

    best = {
        name: results.best(name).position
        for name in names
        if any(row.metrics.get(name) is not None for row in results.fitting)
    }
    axes = axes or results.axis_names
    heads = [*axes, *(about(name).title for name in names), *(["bound by"] if bound else [])]
    table = make_table(*heads, left=[*range(len(axes)), *([len(heads) - 1] if bound else [])])
    table.columns[0].no_wrap = True
    for row in results:
        where = [typed(row[axis]) for axis in axes]
        if row.status != "done":
            table.add_row(*where, styled(("failed", "red")))
            continue
        cells = [
            f"{_with_bar(name, row)} {ALIKE}" if row.position in results.near_best(name) else _with_bar(name, row)
            for name in names
        ]
        looks = {name: "bold cyan" for name in names if best.get(name) == row.position}
        if not row.fits:
            looks[MEMORY_SHARE] = "bold red"
        marked = [styled((c, looks[n])) if n in looks else c for n, c in zip(names, cells, strict=True)]
        table.add_row(*where, *marked, *([_bound_words(results.result(row))] if bound else []))
    return table


def _bound_words(result: RunResult) -> str:
    """What a point is bound by; of a model with several phases, the longest of them and what bounds that one."""
    from hwsim.results.explanation import explain

    phases = result.work.use.get(MODEL, {}).get("phases", ())
    if len(phases) < 2:
        return explain(result).bound.short
    longest = max(phases, key=lambda phase: phase["seconds"])
    return f"{longest['name']}: {next(iter(longest['bounds']))}"


def _with_bar(name: str, row: Row) -> str:
    """A number, and if it is the time its error bar; that of the energy stands in the JSON and in the plot."""
    value = row.metrics.get(name)
    if name == MEMORY_SHARE and not row.fits:
        return f"{write(name, value)} {UNFIT}"
    ends = ends_of(name, row.metrics) if name == "time_s" else None
    if ends is None or not isinstance(value, float) or not value:
        return write(name, value)
    return f"{write(name, value)} {interval_words(value, ends)}"


def near_words(results: ResultSet) -> str:
    """How many points cannot be told from the best by what is known of their errors; what was never compared."""
    said, done = [], len(results.done)
    if count := len(results.near_best("time")):
        said.append(
            f"{ALIKE} {count:,} of {done:,} times lie within the error bars of the best: measured, one could win"
        )
    for name in ("time_s", "energy_j"):
        rows = [row for row in results.done if row.metrics.get(name) is not None]
        missing = sum(ends_of(name, row.metrics) is None for row in rows)
        if missing:
            which = "" if missing == len(rows) else f"{missing:,} of {len(rows):,}: "
            said.append(f"{about(name).title}: {which}{NEVER_COMPARED}")
    return "; ".join(said)


def best_table(results: ResultSet, names: list[str]) -> Table:
    """The best of each metric, where it is, and how much worse the worst is."""
    table = make_table("best", "value", "at", "the worst is", left=(0, 2))
    for name in names:
        rows = [row for row in results.fitting if isinstance(row.metrics.get(name), int | float)]
        if not rows or name == MEMORY_SHARE:
            continue
        best = results.best(name)
        worst = (min if about(name).higher_is_better else max)(rows, key=lambda row: float(row.metrics[name] or 0.0))
        table.add_row(
            about(name).title, write(name, best.metrics[name]), where(results, best), _times(name, best, worst)
        )
    return table


def where(results: ResultSet, row: Row) -> str:
    from hwsim.sweep.grid import typed

    return " ".join(f"{axis}={typed(row[axis])}" for axis in results.axis_names)


def _times(name: str, best: Row, worst: Row) -> str:
    a, b = best.metrics[name], worst.metrics[name]
    if not isinstance(a, int | float) or not isinstance(b, int | float) or not a or not b:
        return ""
    factor = b / a if b > a else a / b
    return "the same" if factor == 1 else f"{ratio(factor)} {'less' if about(name).higher_is_better else 'more'}"


def _how_it_went(results: ResultSet, tally: SweepTally, kept: str) -> str:
    parts = [f"{tally.computed:,} computed"]
    if tally.reused:
        parts.append(f"{tally.reused:,} were here already")
    if tally.failed:
        again = f" ({tally.lost:,} of them by chance: the same command tries again)" if tally.lost else ""
        parts.append(f"{tally.failed:,} failed{again}")
    return f"{len(results):,} points: {', '.join(parts)}; {kept}"


TUNE_EXAMPLE = (
    "Example: [cyan]hwsim tune course_cpu matmul_tiled tile=4..256:x2 precision=fp32,int8 --for energy[/cyan]"
)

_RULES_SHOWN = 4


def tune_command(
    words: Annotated[
        list[str] | None,
        word_argument(
            "[MACHINE] [WORKLOAD] [NAME=VALUES]...",
            "What to search, as for sweep; without any list or range, the usual choices of the operation.",
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
    from hwsim.cli.run import LastSearch, remember_search
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
        remember_search(LastSearch("tune", search.command))
        output.show(lambda: _data(search), lambda: _print(search))
        if plot is not None:
            search.results.plot("pareto", plot)


def _request(words: list[str], settings: list[str] | None, math: bool) -> tuple[SweepRequest, bool]:
    """What to search, and whether it is the machine's own space, which begins with the default."""
    from hwsim.sweep.tune import search_request

    given = sort_words(words)
    if len(given.machines) > 1 or len(given.workloads) > 1:
        raise InputError("one machine and one workload are tuned at a time; hwsim compare takes several")
    fields = pairs(settings or [], "write a field as path=values, such as l2.size=256KiB,1MiB")
    return search_request(given.machines[0], given.workloads[0], given.parameters, fields, math)


def _follow(request: SweepRequest, metric: str, store: object, limit: Budget, jobs: int | None, usual: bool) -> Tuned:
    """A bar on a terminal; elsewhere a line at once, and one every few seconds."""
    from time import monotonic

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from hwsim.sweep.store import ResultStore
    from hwsim.sweep.tune import find_best

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
            if not console.is_terminal and monotonic() - last > TELL_EVERY_S:
                last = monotonic()
                console.print(f"{doing}: {done:,} of {total:,}", style="dim", soft_wrap=True)

        return find_best(request, metric, store, budget=limit, jobs=jobs, watch=watch, default_first=usual)


def _print(search: Tuned) -> None:

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
    for rule, count in search.pruned.most_common(_RULES_SHOWN):
        console.print(f"  {counted(count, 'combination')} left out: {rule}", style="dim", soft_wrap=True)


def _told_apart(front: ResultSet) -> ResultSet:
    """One of those that cost the same, the first."""
    rows: dict[object, Row] = {}
    for row in front.rows:
        rows.setdefault((row.metrics.get("time_s"), row.metrics.get("energy_j")), row)
    return front.only(rows.values())


def _axes(front: ResultSet) -> tuple[str, ...]:
    """The axes along which what is shown differs, or on which something was chosen; all where there are none."""
    values = {name: {row[name] for row in front.rows} for name in front.axis_names}
    return tuple(name for name, found in values.items() if found != {"auto"}) or front.axis_names


def _gain(search: Tuned) -> str:
    """What the best brings over the default, and what decided the time of each."""

    if search.gain is None or search.values is None or search.bounds is None:
        return "there is no default to compare with: without these choices it does not run"
    default = write(search.metric, search.values[0])
    before, after = search.bounds
    decides = f"bound by {before}" if before == after else f"bound by {before} before, by {after} after"
    title = about(search.metric).title
    if search.gain > 1:
        return f"{digits(search.gain)} times better than {search.baseline} ({title} {default}); {decides}"
    if search.gain == 1:
        return f"{search.baseline} ({title} {default}) is the best that was found; {decides}"
    return f"{search.baseline} is better than all of these: {title} {default}; {decides}"


def _data(search: Tuned) -> dict[str, object]:
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
