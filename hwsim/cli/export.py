"""`hwsim export`: the points of a store for other programs: CSV, JSON, Parquet.

`hwsim report`: one HTML file about a run or a sweep, which needs nothing but a browser.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.catalog import is_file
from hwsim.cli.arguments import check_place, spinner, store_files
from hwsim.cli.console import err, json_text, out, print_chunk, says_everything
from hwsim.errors import InputError
from hwsim.files import write_text, written
from hwsim.units import csv_cell

if TYPE_CHECKING:
    from hwsim.engine import Span
    from hwsim.result import RunResult
    from hwsim.results.html import Page
    from hwsim.sweep.grid import SweepRequest
    from hwsim.sweep.result_set import ResultSet
    from hwsim.sweep.store import ResultStore

EXPORT_EXAMPLE = "Example: [cyan]hwsim export sweep.db -o points.csv[/cyan]"

FORMATS = ("csv", "json", "parquet")


def export_command(
    store_file: Annotated[Path, typer.Argument(metavar="STORE", help="A store that hwsim sweep wrote.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; without it, CSV is printed.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="csv, json or parquet; by the file's ending if not given."),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--sweep", metavar="N", help="Which sweep of the store; the last if not given.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--full", help="JSON with whole results, not only one row for each point.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the sweeps of the store.")] = False,
) -> None:
    """Write the points of a sweep as CSV, JSON or Parquet."""
    from hwsim.sweep.store import ResultStore

    check_place("--output", output, store_files(store_file))
    chosen = _format(form, output, whole)
    with ResultStore(store_file, write=False) as store:
        if listed:
            _list(store)
            return
        if whole:
            write_chunks(output, json_chunks(_whole(store, *pick_sweep(store, number)), output))
            return
        results = choose_sweep(store, number)
        if chosen == "parquet":
            assert output is not None, "checked before"
            _write_parquet(results, output)
        elif chosen == "json":
            write_chunks(output, json_chunks((row.to_dict() for row in results), output))
        else:
            write_chunks(output, _csv(results.to_dicts()))


def choose_sweep(store: ResultStore, number: int | None) -> ResultSet:
    """The results of a sweep of a store, by number; of the last one without."""
    from hwsim.sweep.result_set import load_results

    return load_results(store, *pick_sweep(store, number))


def pick_sweep(store: ResultStore, number: int | None) -> tuple[int, SweepRequest]:
    """A sweep of a store, by number; the last one without."""
    sweeps = {each[0]: each[1] for each in store.sweeps()}
    if not sweeps:
        raise InputError(f"{store.name} holds no sweep yet")
    chosen = max(sweeps) if number is None else number
    if chosen not in sweeps:
        raise InputError(f"--sweep {chosen}: {store.name} has {', '.join(str(each) for each in sweeps)}; see --list")
    return chosen, sweeps[chosen]


def _format(form: str | None, output: Path | None, whole: bool) -> str:
    chosen = form or (output.suffix.removeprefix(".").lower() if output is not None else "json" if whole else "csv")
    if chosen not in FORMATS:
        raise InputError(f"'{chosen}' is not one of {', '.join(FORMATS)}; say --format, or end the file's name so")
    if chosen == "parquet" and output is None:
        raise InputError("Parquet is no text: give a file with -o")
    if whole and chosen != "json":
        raise InputError("whole results are nested, so --full is for JSON")
    return chosen


def _list(store: ResultStore) -> None:
    for number, request, model, points in store.sweeps():
        names = f"{','.join(request.machines)} {','.join(request.workloads)}"
        out().print(
            f"  {number}  {names}: {request.size_words()}, {points:,} of {request.count:,} points, model {model}"
        )


def _whole(store: ResultStore, sweep: int, request: SweepRequest) -> Iterator[dict[str, Any]]:
    """One point after the other, so that a store of any size takes the memory of one."""
    members = store.members(sweep)
    for position, coordinates in enumerate(request.coordinates()):
        if position in members:
            stored = store.need(members[position])
            yield {"coordinates": coordinates, "status": stored.status, "error": stored.error, "result": stored.data}


def json_chunks(rows: Iterable[dict[str, Any]], output: Path | None) -> Iterator[str]:
    """A list as indented JSON, row by row; null stands for a number that is none."""
    empty, escapes = True, output is None and not says_everything(sys.stdout)
    for row in rows:
        yield "[\n" if empty else ",\n"
        yield indent(json_text(row, ensure_ascii=escapes).rstrip("\n"), "  ")
        empty = False
    yield "[]\n" if empty else "\n]\n"


def write_chunks(output: Path | None, chunks: Iterable[str]) -> None:
    """Text as it comes: into a file, or to stdout."""
    if output is None:
        for chunk in chunks:
            print_chunk(chunk)
        return
    with written(output) as file:
        file.writelines(chunk.encode() for chunk in chunks)


def _csv(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: csv_cell(value) for name, value in row.items()})
        if text.tell() > _CHUNK:
            yield text.getvalue()
            text.seek(0)
            text.truncate()
    yield text.getvalue()


_CHUNK = 1 << 16


def _write_parquet(results: ResultSet, output: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise InputError("Parquet needs pandas and pyarrow: pip install 'hwsim[frames]'") from None
    frame = results.to_pandas()
    for axis in results.request.all_axes:
        if len({type(value) for value in axis.values}) > 1:
            frame[axis.name] = frame[axis.name].astype(str)
    with written(output) as file:
        frame.to_parquet(file, index=False)


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
    from hwsim.results.html import render_page

    check_place("--output", output, store_files(source))
    with spinner("writing the report"):
        text = render_page(_page(source, number, title))
    write_text(output, text)
    err().print(f"written: {output}", style="dim", soft_wrap=True)


def _page(source: Path | None, number: int | None, title: str) -> Page:
    from hwsim.cli.run import blaming, recall
    from hwsim.results.html import run_page
    from hwsim.sweep.result_set import sweep_page
    from hwsim.sweep.store import ResultStore

    if source is None or not _is_store(source):
        if number is not None:
            raise InputError("--sweep is for stores; this is the result of a single run")
        result = recall(source)
        with blaming(source):
            page = run_page(result, spans_of(result))
        return replace(page, title=title) if title else page
    with ResultStore(source, write=False) as store:
        results = choose_sweep(store, number)
        spans = spans_of(results.result(results.best("time"))) if results.fitting else ()
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
