"""`hwsim export`: the points of a store for other programs: CSV, JSON, Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.console import out, print_json, print_plain
from hwsim.errors import InputError

if TYPE_CHECKING:
    from hwsim.sweep.result_set import ResultSet
    from hwsim.sweep.store import Store

EXAMPLE = "Example: [cyan]hwsim export sweep.db -o points.csv[/cyan]"

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
    from hwsim.cli.run import check_place
    from hwsim.sweep.store import Store

    check_place("--output", output)
    chosen = _format(form, output, whole)
    with Store(store_file, write=False) as store:
        if listed:
            _list(store)
            return
        results = choose_sweep(store, number)
        rows = [row.to_dict() for row in results] if not whole else _whole(results)
        _write(chosen, rows, results, output)


def choose_sweep(store: Store, number: int | None) -> ResultSet:
    """A sweep of a store, by number; the last one without."""
    from hwsim.sweep.result_set import load_results

    sweeps = {each[0]: each[1] for each in store.sweeps()}
    if not sweeps:
        raise InputError(f"{store.name} holds no sweep yet")
    chosen = max(sweeps) if number is None else number
    if chosen not in sweeps:
        raise InputError(f"--sweep {chosen}: {store.name} has {', '.join(str(each) for each in sweeps)}; see --list")
    return load_results(store, chosen, sweeps[chosen])


def _format(form: str | None, output: Path | None, whole: bool) -> str:
    chosen = form or (output.suffix.removeprefix(".").lower() if output is not None else "json" if whole else "csv")
    if chosen not in FORMATS:
        raise InputError(f"'{chosen}' is not one of {', '.join(FORMATS)}; say --format, or end the file's name so")
    if chosen == "parquet" and output is None:
        raise InputError("Parquet is no text: give a file with -o")
    if whole and chosen != "json":
        raise InputError("whole results are nested, so --full is for JSON")
    return chosen


def _list(store: Store) -> None:
    for number, request, model, points in store.sweeps():
        names = f"{','.join(request.machines)} {','.join(request.workloads)}"
        out().print(
            f"  {number}  {names}: {request.size_words()}, {points:,} of {request.count:,} points, model {model}"
        )


def _whole(results: ResultSet) -> list[dict[str, Any]]:
    return [
        {"coordinates": row.coordinates, "status": row.status, "error": row.error,
         "result": results.result(row).to_dict() if row.status == "done" else None}
        for row in results
    ]  # fmt: skip


def _write(form: str, rows: Sequence[dict[str, Any]], results: ResultSet, output: Path | None) -> None:
    if form == "parquet":
        assert output is not None, "checked before"
        _write_parquet(results, output)
    elif form == "json" and output is None:
        print_json(rows)
    elif form == "json" and output is not None:
        from hwsim.cli.console import write_json

        write_json(output, rows)
    elif output is None:
        print_plain(_csv(results.to_dicts()))
    else:
        try:
            output.write_text(_csv(results.to_dicts()), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{output} cannot be written: {error.strerror}") from error


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _write_parquet(results: ResultSet, output: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise InputError("Parquet needs pandas and pyarrow: pip install 'hwsim[frames]'") from None
    frame = results.to_pandas()
    for axis in results.request.all_axes:
        if len({type(value) for value in axis.values}) > 1:
            frame[axis.name] = frame[axis.name].astype(str)
    try:
        frame.to_parquet(output, index=False)
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror}") from error
