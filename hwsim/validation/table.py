"""CSV tables of reference data: read with the line of every row, and checked for the columns and numbers needed."""

from __future__ import annotations

import csv
import gzip
import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from math import isfinite
from pathlib import Path

from hwsim.errors import Problem, SpecError
from hwsim.files import note_input

Record = dict[str, str]

LINE = "__line__"
"""The line of a record in its file, beside its columns."""


def shipped(name: str) -> Path:
    """A data file that comes with the package."""
    return Path(str(resources.files("hwsim.validation") / "data" / name))


def tables(data: Path | None, own: str, pools: Sequence[str]) -> list[Path]:
    """What to compare with: the shipped table, one of the user's, or those of a family's pools that a folder has."""
    if data is None:
        return [shipped(own)]
    if not data.is_dir():
        return [data]
    return [data / pool for pool in pools if (data / pool).is_file()] or [shipped(own)]


def table_error(path: Path, line: int, column: str, message: str) -> SpecError:
    return SpecError((Problem(str(path), line, column, message),))


def row_error(path: Path, record: Record, column: str, message: str) -> SpecError:
    return table_error(path, int(record[LINE]), column, message)


def read_table(path: Path, columns: Iterable[str]) -> list[Record]:
    """All records of a CSV file (also gzipped) that has at least the given columns."""
    lines_read = 0
    records = []
    try:
        with _open(path) as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or [])]
            if missing:
                needed = ", ".join(columns)
                raise table_error(path, 1, "", f"the column {missing[0]!r} is missing; needed: {needed}")
            for record in reader:
                lines_read = reader.line_num
                if None in record or None in record.values():
                    raise table_error(path, lines_read, "", "this row has not as many fields as the header")
                records.append({**record, LINE: str(lines_read)})
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise table_error(path, lines_read, "", f"cannot be read as a CSV table: {error}") from error
    if not records:
        raise table_error(path, 1, "", "the table has no rows")
    return records


def sample(records: list[Record], key: Callable[[Record], object], count: int | None, seed: int) -> list[Record]:
    """At most `count` records of each group, drawn with a seed, in file order; all without a count."""
    if count is None:
        return records
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for number, record in enumerate(records):
        groups[key(record)].append(number)
    generator = random.Random(seed)
    kept = [
        n for name in sorted(groups, key=str) for n in generator.sample(groups[name], min(count, len(groups[name])))
    ]
    return [records[number] for number in sorted(kept)]


def integer(path: Path, record: Record, column: str) -> int:
    """A whole number of a record, or an error with its line and column."""
    try:
        return int(record[column])
    except ValueError:
        raise row_error(path, record, column, f"{record[column]!r} is not a whole number") from None


def one_of(path: Path, record: Record, column: str, known: Iterable[str]) -> str:
    """A word of a record that has to be one of some."""
    if record[column] not in known:
        raise row_error(path, record, column, f"{record[column]!r} is not one of {', '.join(known)}")
    return record[column]


def number(path: Path, record: Record, column: str) -> float:
    """A finite number of a record, or an error with its line and column."""
    try:
        value = float(record[column])
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise row_error(path, record, column, f"{record[column]!r} is not a number")
    return value


def columns_of(path: Path) -> tuple[str, ...]:
    """The header of a CSV file."""
    read_table(path, ())
    with _open(path) as file:
        return tuple(csv.DictReader(file).fieldnames or ())


def _open(path: Path):  # type: ignore[no-untyped-def]
    note_input(path)
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")
