"""`hwsim sweep`: every combination of values, kept in a store, with the best of each metric and a plot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.arguments import (
    CTRL_C,
    AxisSettings,
    ExecutorName,
    Jobs,
    JsonFile,
    PlotFile,
    Scheduler,
    check_output,
    follow,
    make_request,
    store_files,
    word_completion,
)
from hwsim.cli.console import err, make_table, screen, styled
from hwsim.errors import InputError
from hwsim.record import ALIKE, NEVER_COMPARED
from hwsim.results.metrics import THROUGHPUT, TRAFFIC, about, ends_of, shown, throughput, write
from hwsim.text import ratio

if TYPE_CHECKING:
    from rich.table import Table

    from hwsim.sweep.executor import Tls
    from hwsim.sweep.grid import SweepRequest
    from hwsim.sweep.result_set import ResultSet, Row
    from hwsim.sweep.runner import SweepTally
    from hwsim.sweep.store import ResultStore


SWEEP_EXAMPLE = (
    "Example: [cyan]hwsim sweep course_cpu matmul_tiled tile=4..256:x2 precision=fp32,bf16,int8 --plot tiles.png[/cyan]"
)

DEFAULT_STORE = Path("sweep.db")


def sweep_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MACHINES] [WORKLOADS] [NAME=VALUES]... | FILE.yaml",
            help="Machines and workloads, with commas between several; axes as lists (8,16,32), ranges (1..9:2) or "
            "geometric ranges (8..256:x2); or a file that says the same.",
            autocompletion=word_completion,
            show_default=False,
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
            "--metric", metavar="NAME", help="What to plot: time, energy, edp, error, l1.fills, …; repeatable."
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
    from hwsim.sweep.report import check_picture
    from hwsim.sweep.result_set import load_results
    from hwsim.sweep.runner import run_request
    from hwsim.sweep.store import ResultStore

    request = make_request(words or (), settings, seed, not no_math)
    tls = _tls(tls_ca, tls_cert, tls_key)
    output = check_output(json_file, plot, (*(words or ()), *store_files(out)))
    check_picture(request, kind, x)
    _confirm(request, yes)
    with ResultStore(out) as store:
        with _kept(store):
            news = run_request(request, store, executor, jobs, scheduler, _tell, retry=retry, tls=tls)
            tally = follow(news, request.count, "sweeping")
        results = load_results(store, store.begin(request), request)
        output.show(results.to_dicts, lambda: print_sweep(results, tally, f"kept in {out}"))
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
_REASONS = 5


def print_sweep(results: ResultSet, tally: SweepTally, kept: str) -> None:
    console = screen()
    names = columns(results)
    if len(results) <= _FEW:
        console.print(point_table(results, narrow(names), bound=True))
    if results.done:
        console.print(best_table(results, names))
        if words := near_words(results):
            console.print(words, style="dim", soft_wrap=True)
    console.print(_how_it_went(results, tally, kept), style="dim", soft_wrap=True)
    for reason, count in tally.errors.most_common(_REASONS):
        console.print(styled((f"{count} failed", "red"), f": {reason}"), soft_wrap=True)


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
) -> Table:
    """A row for each point; with what it is `bound` by, which is read from its whole result."""
    from hwsim.results.explanation import explain
    from hwsim.sweep.grid import typed

    best = {name: results.best(name).position for name in names} if results.done else {}
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
            write(name, row.metrics.get(name)) + (f" {ALIKE}" if row.position in results.near_best(name) else "")
            for name in names
        ]
        marked = [styled((c, "bold cyan")) if best[n] == row.position else c for n, c in zip(names, cells, strict=True)]
        table.add_row(*where, *marked, *([explain(results.result(row)).bound.short] if bound else []))
    return table


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
        rows = [row for row in results.done if isinstance(row.metrics.get(name), int | float)]
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
