"""`hwsim validate cache`: exact cache counts against an independent simulator.

The `tb_*` columns of the table hold textbook write-back, write-allocate counts, checked against DineroIV 7.
Every counter of every level has to be equal.

The kernels of the table stand below as nests, the order of accesses that its counts belong to: `n, m, k` and `T` are
the sizes of a row, `a, b, c` the byte addresses of its arrays, `lda, ldb, ldc` their leading dimensions in elements,
`e` the bytes of an element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from hwsim.memory.hierarchy import Hierarchy
from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import Access, Nest
from hwsim.validation.report import Bar, ComparisonRow, Progress, each_row, relative_error, report
from hwsim.validation.table import Record, integer, one_of, read_table, row_error, sample, tables


@dataclass(frozen=True)
class Sizes:
    """Sizes and places of one row of the table."""

    n: int
    m: int
    k: int
    T: int
    e: int
    a: int
    b: int
    c: int
    lda: int
    ldb: int
    ldc: int

    def load(self, base: int, *strides: int, after: bool = False) -> Access:
        return Access(base, tuple(s * self.e for s in strides), self.e, after=after)

    def store(self, base: int, *strides: int, after: bool = False) -> Access:
        return Access(base, tuple(s * self.e for s in strides), self.e, write=True, after=after)


def nests(kernel: str, sizes: Sizes) -> Iterator[Nest]:
    return KERNELS[kernel](sizes)


def _mm_ijk(s: Sizes) -> Iterator[Nest]:
    accesses = (s.load(s.a, s.lda, 0, 1), s.load(s.b, 0, 1, s.ldb), s.store(s.c, s.ldc, 1, after=True))
    yield Nest((s.n, s.m, s.k), accesses)


def _mm_ijk_rmw(s: Sizes) -> Iterator[Nest]:
    c = (s.ldc, 1, 0)
    yield Nest(
        (s.n, s.m, s.k),
        (s.load(s.c, *c), s.load(s.a, s.lda, 0, 1), s.load(s.b, 0, 1, s.ldb), s.store(s.c, *c)),
    )


def _mm_ijk_bt(s: Sizes) -> Iterator[Nest]:
    accesses = (s.load(s.a, s.lda, 0, 1), s.load(s.b, 0, s.ldb, 1), s.store(s.c, s.ldc, 1, after=True))
    yield Nest((s.n, s.m, s.k), accesses)


def _mm_ikj(s: Sizes) -> Iterator[Nest]:
    c = (s.ldc, 0, 1)
    yield Nest((s.n, s.k, s.m), (s.load(s.a, s.lda, 1), s.load(s.b, 0, s.ldb, 1), s.load(s.c, *c), s.store(s.c, *c)))


def _mm_jki(s: Sizes) -> Iterator[Nest]:
    c = (1, 0, s.ldc)
    yield Nest((s.m, s.k, s.n), (s.load(s.b, 1, s.ldb), s.load(s.a, 0, 1, s.lda), s.load(s.c, *c), s.store(s.c, *c)))


def _mm_tiled_ijk(s: Sizes) -> Iterator[Nest]:
    for trips, a, b, c, outer in _tiled(s, "ijk"):
        over_a, over_b, over_c = outer
        stored = (*over_c, s.ldc, 1)
        accesses = (s.load(c, *stored), s.load(a, *over_a, s.lda, 0, 1), s.load(b, *over_b, 0, 1, s.ldb))
        yield Nest(trips, (*accesses, s.store(c, *stored, after=True)))


def _mm_tiled_ikj(s: Sizes) -> Iterator[Nest]:
    for trips, a, b, c, outer in _tiled(s, "ikj"):
        over_a, over_b, over_c = outer
        stored = (*over_c, s.ldc, 0, 1)
        accesses = (s.load(a, *over_a, s.lda, 1), s.load(b, *over_b, 0, s.ldb, 1), s.load(c, *stored))
        yield Nest(trips, (*accesses, s.store(c, *stored)))


def _tiled(s: Sizes, order: str) -> Iterator[tuple[tuple[int, ...], int, int, int, tuple[tuple[int, ...], ...]]]:
    """Trips, bases of A, B and C, and their strides over tiles: one nest where tiles are whole, else one for each."""
    size, t = {"i": s.n, "j": s.m, "k": s.k}, s.T
    steps = {"i": s.lda, "j": 0, "k": 1}, {"i": 0, "j": 1, "k": s.ldb}, {"i": s.ldc, "j": 1, "k": 0}
    if all(each % t == 0 for each in size.values()):
        outer = tuple(tuple(t * step[axis] for axis in order) for step in steps)
        yield (*(size[axis] // t for axis in order), t, t, t), s.a, s.b, s.c, outer
        return
    for tiles in product(*(range(0, size[axis], t) for axis in order)):
        at = dict(zip(order, tiles, strict=True))
        a, b, c = (
            base + sum(at[axis] * step[axis] for axis in order) * s.e
            for base, step in zip((s.a, s.b, s.c), steps, strict=True)
        )
        yield (1, 1, 1, *(min(t, size[axis] - at[axis]) for axis in order)), a, b, c, ((0, 0, 0),) * 3


def _add(s: Sizes) -> Iterator[Nest]:
    yield Nest((s.n,), (s.load(s.a, 1), s.load(s.b, 1), s.store(s.c, 1)))


def _rowsum(s: Sizes) -> Iterator[Nest]:
    yield Nest((s.n, s.m), (s.load(s.a, s.lda, 1), s.store(s.c, 1, after=True)))


def _colsum(s: Sizes) -> Iterator[Nest]:
    yield Nest((s.m, s.n), (s.load(s.a, 1, s.lda), s.store(s.c, 1, after=True)))


def _transpose(s: Sizes) -> Iterator[Nest]:
    yield Nest((s.n, s.m), (s.load(s.a, s.lda, 1), s.store(s.c, 1, s.ldc)))


def _conv3x3(s: Sizes) -> Iterator[Nest]:
    height, width, channels, filters = s.n, s.m, s.k, s.T
    rows, columns = height - 2, width - 2
    yield Nest(
        (filters, rows, columns, channels, 3, 3),
        (
            s.load(s.a, 0, width, 1, height * width, width, 1),
            s.load(s.b, channels * 9, 0, 0, 9, 3, 1),
            s.store(s.c, rows * columns, columns, 1, after=True),
        ),
    )


def _im2col(s: Sizes) -> Iterator[Nest]:
    height, width, channels = s.n, s.m, s.k
    rows, columns = height - 2, width - 2
    pixels = rows * columns
    yield Nest(
        (channels, 3, 3, rows, columns),
        (
            s.load(s.a, height * width, width, 1, width, 1),
            s.store(s.c, 9 * pixels, 3 * pixels, pixels, columns, 1),
        ),
    )


_ALL = (
    _mm_ijk, _mm_ijk_rmw, _mm_ijk_bt, _mm_ikj, _mm_jki, _mm_tiled_ijk, _mm_tiled_ikj,
    _add, _rowsum, _colsum, _transpose, _conv3x3, _im2col,
)  # fmt: skip
KERNELS: dict[str, Callable[[Sizes], Iterator[Nest]]] = {each.__name__[1:]: each for each in _ALL}

WHAT = "hits, misses and write-backs per level, against textbook counts checked with DineroIV 7"

_SIZES = ("n", "m", "k", "T", "elem", "base_a", "base_b", "base_c", "lda", "ldb", "ldc")
_COUNTERS = {"reads": "reads", "writes": "writes", "read_miss": "read_misses", "write_miss": "write_misses", "writebacks": "writebacks"}  # fmt: skip  # noqa: E501
_COLUMNS = ("id", "kernel", *_SIZES, "line", "levels", "tb_MEM_reads", "tb_MEM_writes", *(f"tb_L1_{name}" for name in _COUNTERS))  # fmt: skip  # noqa: E501


def validate(data: Path | None = None, count: int | None = None, seed: int = 0) -> Progress:
    """The number of rows to come, then each row as it is done, then the report."""
    (path,) = tables(data, "cache.csv", ())
    records = sample(read_table(path, _COLUMNS), lambda record: record["kernel"], count, seed)
    rows = yield from each_row(records, partial(_compare, path))
    bar = Bar.every("every counter of every row", sum(row.matched for row in rows), len(rows))
    yield report("cache", WHAT, rows, [bar])


def _compare(path: Path, record: Record) -> ComparisonRow:
    named = [name for name in record if name.startswith("tb_") and (record[name] or name in _COLUMNS)]
    expected = {name: integer(path, record, name) for name in named}
    found = simulate(path, record)
    errors = {name: relative_error(found.get(name, -1), number) for name, number in expected.items()}
    off = max(errors, key=lambda name: errors[name])
    detail = f"{off}: {found.get(off)} simulated, {expected[off]} expected" if errors[off] else ""
    return ComparisonRow(record["id"], record["kernel"], errors[off], detail)


def simulate(path: Path, record: Record) -> dict[str, int]:
    """All counters of one row, under the names of the table's columns."""
    one_of(path, record, "kernel", KERNELS)
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
            raise row_error(path, record, name, f"{size} must not be negative")
    try:
        return list(nests(record["kernel"], Sizes(*sizes.values())))
    except (ValueError, ZeroDivisionError) as error:
        raise row_error(path, record, "", f"these sizes make no {record['kernel']}: {error}") from None


def _levels(path: Path, record: Record) -> list[CacheSpec]:
    """`64x8:LRU;512x8:LRU` with the line size of the row."""
    line = integer(path, record, "line")
    if line < 1 or line & (line - 1):
        raise row_error(path, record, "line", f"{line} is not a power of two")
    specs = []
    for number, text in enumerate(record["levels"].split(";"), start=1):
        try:
            shape, policy = text.split(":")
            sets, ways = (int(part) for part in shape.split("x"))
            fields = {"size": f"{sets * ways * line} B", "line": f"{line} B", "replacement": policy.lower()}
            specs.append(CacheSpec.model_validate({"kind": "cache", "name": f"l{number}", "ways": ways, **fields}))
        except ValueError:
            message = f"{text!r} is not of the form 64x8:LRU (sets x ways : policy)"
            raise row_error(path, record, "levels", message) from None
    return specs
