"""`hwsim sweep`: every combination of values, kept in a store, with the best of each metric and a plot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.console import err, print_json, write_json
from hwsim.cli.sweep_words import AxisSettings, ExecutorName, Jobs, JsonFile, PlotFile, Scheduler, follow, make_request

if TYPE_CHECKING:
    from hwsim.sweep.request import Request
    from hwsim.sweep.store import Store

EXAMPLE = (
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
    from hwsim.cli.run import check_place
    from hwsim.cli.sweep_screen import print_sweep
    from hwsim.results.plot.file import check_plot_file
    from hwsim.sweep.api import run_request
    from hwsim.sweep.picture import check_picture
    from hwsim.sweep.result_set import load_results
    from hwsim.sweep.store import Store

    request = make_request(words or (), settings, seed, not no_math)
    target = None if json_file in (None, "-") else Path(str(json_file)).expanduser()
    for option, path in (("--json", target), ("--plot", plot)):
        check_place(option, path)
    check_plot_file(plot)
    check_picture(request, kind, x)
    _confirm(request, yes)
    with Store(out) as store:
        with _kept(store):
            news = run_request(request, store, executor, jobs, scheduler, _tell)
            tally = follow(news, request.count, "sweeping")
        results = load_results(store, store.begin(request), request)
        if json_file == "-":
            print_json(results.to_dicts())
        else:
            print_sweep(results, tally, f"kept in {out}")
        if target is not None:
            write_json(target, results.to_dicts())
        if plot is not None:
            results.plot(kind, plot, x=x, metrics=metric or ())
            _tell(f"drawn: {plot}")
    if tally.failed and tally.failed == request.count:
        raise typer.Exit(1)


def _tell(words: str) -> None:
    err().print(words, style="dim", soft_wrap=True)


def _confirm(request: Request, yes: bool) -> None:
    """On a terminal one is asked; elsewhere --yes has to be said."""
    from hwsim.sweep.request import CONFIRM_FROM

    if request.count >= CONFIRM_FROM and not yes and err().is_terminal:
        yes = typer.confirm(f"{request.count:,} points ({request.size_words()}). Run them all?", err=True)
    request.check_size(yes)


@contextmanager
def _kept(store: Store) -> Iterator[None]:
    """Whoever interrupts a sweep is told that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        _tell(f"{store.count():,} points are kept in {store.name}; the same command goes on from there")
        raise
