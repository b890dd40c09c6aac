"""`hwsim validate cache`: exact cache counts against an independent simulator.

The `tb_*` columns of the table hold textbook write-back, write-allocate counts, checked against DineroIV 7.
Every counter of every level has to be equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hwsim.hardware.hierarchy import Hierarchy
from hwsim.spec.memory import CacheSpec
from hwsim.trace.nest import Nest
from hwsim.validation.cache_nest import KERNELS, Sizes, nests
from hwsim.validation.report import Bar, Report, Row, relative_error, report
from hwsim.validation.table import LINE, Record, integer, read_table, sample, shipped, table_error

WHAT = "hits, misses and write-backs per level, against textbook counts checked with DineroIV 7"

_SIZES = ("n", "m", "k", "T", "elem", "base_a", "base_b", "base_c", "lda", "ldb", "ldc")
_COUNTERS = {"reads": "reads", "writes": "writes", "read_miss": "read_misses", "write_miss": "write_misses", "writebacks": "writebacks"}  # fmt: skip  # noqa: E501
_COLUMNS = ("id", "kernel", *_SIZES, "line", "levels", "tb_MEM_reads", "tb_MEM_writes", *(f"tb_L1_{name}" for name in _COUNTERS))  # fmt: skip  # noqa: E501


def validate(data: Path | None = None, count: int | None = None, seed: int = 0) -> Iterator[Row | int | Report]:
    """The number of rows to come, then each row as it is done, then the report."""
    path = data or shipped("cache.csv")
    records = sample(read_table(path, _COLUMNS), lambda record: record["kernel"], count, seed)
    yield len(records)
    rows = []
    for record in records:
        rows.append(_compare(path, record))
        yield rows[-1]
    matched = sum(row.matched for row in rows)
    bar = Bar("every counter of every row", f"{len(rows)} rows", f"{matched} rows", matched == len(rows))
    yield report("cache", WHAT, rows, [bar])


def _compare(path: Path, record: Record) -> Row:
    named = [name for name in record if name.startswith("tb_") and (record[name] or name in _COLUMNS)]
    expected = {name: integer(path, record, name) for name in named}
    found = simulate(path, record)
    errors = {name: relative_error(found.get(name, -1), number) for name, number in expected.items()}
    off = max(errors, key=lambda name: errors[name])
    detail = f"{off}: {found.get(off)} simulated, {expected[off]} expected" if errors[off] else ""
    return Row(record["id"], record["kernel"], errors[off], detail)


def simulate(path: Path, record: Record) -> dict[str, int]:
    """All counters of one row, under the names of the table's columns."""
    if record["kernel"] not in KERNELS:
        message = f"{record['kernel']!r} is not one of {', '.join(KERNELS)}"
        raise table_error(path, int(record[LINE]), "kernel", message)
    hierarchy = Hierarchy(_levels(path, record))
    for nest in _nests(path, record):
        hierarchy.replay(nest)
    found = {"tb_MEM_reads": hierarchy.dram.counters.reads, "tb_MEM_writes": hierarchy.dram.counters.writes}
    for number, (name, counters) in enumerate(hierarchy.counters().items(), start=1):
        for column, field in _COUNTERS.items():
            found[f"tb_L{number}_{column}"] = getattr(counters, field)
        found[f"tb_L{number}_dirty_end"] = sum(dirty for lines in hierarchy.contents(name) for _, dirty in lines)
    return found


def _nests(path: Path, record: Record) -> list[Nest]:
    sizes = {name: integer(path, record, name) for name in _SIZES}
    for name, size in sizes.items():
        if size < 0:
            raise table_error(path, int(record[LINE]), name, f"{size} must not be negative")
    try:
        return list(nests(record["kernel"], Sizes(*sizes.values())))
    except (ValueError, ZeroDivisionError) as error:
        message = f"these sizes make no {record['kernel']}: {error}"
        raise table_error(path, int(record[LINE]), "", message) from None


def _levels(path: Path, record: Record) -> list[CacheSpec]:
    """`64x8:LRU;512x8:LRU` with the line size of the row."""
    line = integer(path, record, "line")
    if line < 1 or line & (line - 1):
        raise table_error(path, int(record[LINE]), "line", f"{line} is not a power of two")
    specs = []
    for number, text in enumerate(record["levels"].split(";"), start=1):
        try:
            shape, policy = text.split(":")
            sets, ways = (int(part) for part in shape.split("x"))
            fields = {"size": f"{sets * ways * line} B", "line": f"{line} B", "replacement": policy.lower()}
            specs.append(CacheSpec.model_validate({"kind": "cache", "name": f"l{number}", "ways": ways, **fields}))
        except ValueError:
            message = f"{text!r} is not of the form 64x8:LRU (sets x ways : policy)"
            raise table_error(path, int(record[LINE]), "levels", message) from None
    return specs
