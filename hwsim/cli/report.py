"""`hwsim report`: one HTML file about a run or a sweep, which needs nothing but a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.catalog import is_file
from hwsim.cli.arguments import check_place, spinner, store_files
from hwsim.cli.console import err
from hwsim.errors import InputError
from hwsim.files import write_text

if TYPE_CHECKING:
    from hwsim.engine.outcome import Span
    from hwsim.result import RunResult
    from hwsim.results.html.page import Page

REPORT_EXAMPLE = "Example: [cyan]hwsim report sweep.db -o report.html[/cyan]"


def report_command(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RESULT.json|SWEEP.db]",
            help="The JSON of a run, or the store of a sweep; the last run if not given.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    number: Annotated[
        int | None, typer.Option("--sweep", metavar="N", help="Which sweep of a store; the last if not given.")
    ] = None,
    title: Annotated[str, typer.Option("--title", help="What the page is called.")] = "",
) -> None:
    """Write one self-contained HTML page about a run or a sweep: words, tables, charts, the machine, its sources."""
    from hwsim.results.html.page import render_page

    check_place("--output", output, store_files(source))
    with spinner("writing the report"):
        text = render_page(_page(source, number, title))
    write_text(output, text)
    err().print(f"written: {output}", style="dim", soft_wrap=True)


def _page(source: Path | None, number: int | None, title: str) -> Page:
    from hwsim.cli.export import choose_sweep
    from hwsim.cli.last_run import blaming, recall
    from hwsim.results.html.page import run_page
    from hwsim.sweep.report import sweep_page
    from hwsim.sweep.store import ResultStore

    if source is None or not _is_store(source):
        if number is not None:
            raise InputError("--sweep is for stores; this is the result of a single run")
        result = recall(source)
        with blaming(source):
            page = run_page(result, spans_of(result))
        return page if not title else _titled(page, title)
    with ResultStore(source, write=False) as store:
        results = choose_sweep(store, number)
        spans = spans_of(results.result(results.best("time"))) if results.done else ()
        return sweep_page(results, spans, title)


def _is_store(path: Path) -> bool:
    """SQLite files begin with their name. What is no file is none, and is not opened: a pipe would wait for ever."""
    if not is_file(path):
        return path.suffix == ".db"
    try:
        with path.open("rb") as file:
            return file.read(15) == b"SQLite format 3"
    except OSError:
        return path.suffix == ".db"


def _titled(page: Page, title: str) -> Page:
    from dataclasses import replace

    return replace(page, title=title)


def spans_of(result: RunResult) -> tuple[Span, ...]:
    """The timeline of a stored run: simulated once more, without its math."""
    from hwsim.api import run_all
    from hwsim.models.run import model_timeline, run_phases
    from hwsim.ops.model import ModelWorkload
    from hwsim.result import machine_of, workload_of

    if result.resolved.workload.get("op") == "python":
        return ()
    work = workload_of(result)
    if isinstance(work, ModelWorkload):
        return tuple(model_timeline(run_phases(machine_of(result), work)).operations)
    return run_all(machine_of(result), work, math=False, timeline=True).spans
