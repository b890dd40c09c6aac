"""`hwsim export`: the points of a store for other programs: CSV, JSON, Parquet."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import check_place, store_files
from hwsim.cli.console import json_text, out, print_chunk, says_everything
from hwsim.errors import InputError
from hwsim.files import written
from hwsim.text import csv_cell

if TYPE_CHECKING:
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
