"""What a comparison found: rows, matches, error statistics per group, what is furthest off; and the families, by name.

Measurements that a model is judged on are never shown row by row: who has looked at them can fit to them. What is
furthest off is shown by family, machine and size; single rows of exact comparisons, and of a table of the user's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import mean, median
from typing import Any, TypeVar, cast

from hwsim.errors import InputError
from hwsim.sweep.executor import in_parallel
from hwsim.units import seconds
from hwsim.validation.residual import FIT, Residual

WORST_ROWS, WORST_PARTS = 10, 5
FEWEST_ROWS = 5
"""Fewer measured rows are no part of their own."""


@dataclass(frozen=True)
class ComparisonRow:
    """One compared row: which group it belongs to, and by how much (relative, 0.1 is 10 %) it is off."""

    id: str
    group: str
    error: float
    detail: str = ""
    residual: Residual | None = None
    """The measured and the simulated number, where hardware was measured: error bars are made of these."""

    @property
    def matched(self) -> bool:
        return self.error == 0.0

    @classmethod
    def of(
        cls, name: str, group: str, found: float, expected: float, detail: str = "", residual: Residual | None = None
    ) -> ComparisonRow:
        """A row from the number that was found and the one that was expected."""
        return cls(name, group, relative_error(found, expected), detail, residual)


@dataclass(frozen=True)
class Bar:
    """A stated bar: what was promised, what was measured, and whether it holds."""

    name: str
    limit: str
    value: str
    met: bool

    @classmethod
    def at_most(cls, name: str, limit: float, error: float) -> Bar:
        """An error that may not be larger than a limit."""
        return cls(name, f"<= {limit:.0%}", f"{error:.1%}", error <= limit)

    @classmethod
    def every(cls, name: str, met: int, rows: int) -> Bar:
        """Something that has to hold for all rows."""
        return cls(name, f"{rows} rows", f"{met} rows", met == rows)


@dataclass(frozen=True)
class Statistics:
    """Errors of a group of rows, relative."""

    rows: int
    matched: int
    mape: float
    median: float

    @classmethod
    def of(cls, rows: list[ComparisonRow]) -> Statistics:
        errors = [row.error for row in rows]
        return cls(len(rows), sum(row.matched for row in rows), mean(errors), median(errors))


@dataclass(frozen=True)
class ReportPart:
    """Measured rows of one family and machine whose simulated times are alike."""

    family: str
    machine: str
    decade: int
    rows: int
    error: float
    """On average, relative."""
    ratio: float
    """Simulated over measured, in the median."""

    @classmethod
    def of(cls, family: str, machine: str, decade: int, rows: Sequence[Residual]) -> ReportPart:
        ratio = median(row.simulated / row.measured for row in rows)
        return cls(family, machine, decade, len(rows), mean(row.error for row in rows), ratio)

    def __str__(self) -> str:
        size = f"{seconds(10.0**self.decade)} to {seconds(10.0 ** (self.decade + 1))}"
        return (
            f"{self.family} on {self.machine}, {size}: off by {self.error:.1%} on average over {self.rows} rows, "
            f"{self.ratio:.2f} of what was measured in the median"
        )


@dataclass(frozen=True)
class Report:
    """The result of `hwsim validate FAMILY`."""

    family: str
    what: str
    """One sentence: what is compared with what."""
    results: tuple[ComparisonRow, ...]
    bars: tuple[Bar, ...] = ()
    notes: tuple[str, ...] = field(default=())
    for_fits: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Rows of each family and machine that were not simulated because models may have been fitted on them."""

    @property
    def passed(self) -> bool:
        return all(bar.met for bar in self.bars)

    @property
    def total(self) -> Statistics:
        return Statistics.of(list(self.results))

    @property
    def groups(self) -> dict[str, Statistics]:
        rows: defaultdict[str, list[ComparisonRow]] = defaultdict(list)
        for row in self.results:
            rows[row.group].append(row)
        return {name: Statistics.of(rows[name]) for name in sorted(rows)}

    @property
    def parts(self) -> list[ReportPart]:
        """Measured rows by family, machine and size, the worst first."""
        found: defaultdict[tuple[str, str, int], list[Residual]] = defaultdict(list)
        for row in self.results:
            if row.residual is not None and row.residual.is_usable and row.residual.purpose != FIT:
                found[row.residual.family, row.residual.machine, row.residual.decade].append(row.residual)
        parts = (ReportPart.of(*name, rows) for name, rows in found.items() if len(rows) >= FEWEST_ROWS)
        return sorted(parts, key=lambda part: -part.error)[:WORST_PARTS]

    def worst(self, *, own: bool) -> tuple[ComparisonRow, ...]:
        """The rows that are furthest off, without those that match; measured ones where the table is the user's own."""
        shown = (row for row in self.results if not row.matched and (own or row.residual is None))
        return tuple(sorted(shown, key=lambda row: (-row.error, row.id))[:WORST_ROWS])

    def to_dict(self, *, own: bool = False) -> dict[str, Any]:
        return {
            "family": self.family,
            **asdict(self.total),
            "groups": {name: asdict(statistics) for name, statistics in self.groups.items()},
            "worst_parts": [asdict(part) for part in self.parts],
            "worst": [
                {"id": row.id, "group": row.group, "error": row.error, "detail": row.detail}
                for row in self.worst(own=own)
            ],
            "bars": [asdict(bar) for bar in self.bars],
            "notes": list(self.notes),
            "passed": self.passed,
        }


def relative_error(found: float, expected: float) -> float:
    """|found - expected| / |expected|; any difference from an expected 0 counts as 1."""
    if found == expected:
        return 0.0
    return abs(found - expected) / abs(expected) if expected else 1.0


def report(
    family: str,
    what: str,
    rows: Iterable[ComparisonRow],
    bars: Iterable[Bar] = (),
    notes: Iterable[str] = (),
    for_fits: Mapping[tuple[str, str], int] | None = None,
) -> Report:
    return Report(family, what, tuple(rows), tuple(bars), tuple(notes), for_fits or {})


Progress = Iterator[ComparisonRow | int | Report]
"""The number of rows to come, then each row as it is done, then the report."""

_Case = TypeVar("_Case")


def each_row(
    cases: Collection[_Case], compare: Callable[[_Case], ComparisonRow]
) -> Generator[ComparisonRow | int | Report, None, list[ComparisonRow]]:
    """One case after the other: says how many there are, then each row as it is done, and gives all of them."""
    yield len(cases)
    rows = []
    for case in cases:
        rows.append(compare(case))
        yield rows[-1]
    return rows


FAMILIES = {
    "cache": "exact hits, misses and write-backs against an independent cache simulator",
    "dram": "reads of main memory in patterns against Ramulator",
    "energy": "energy of Eyeriss layers and GPUs against measurements, and counts against other programs",
    "cpu": "time of matmuls over tile size against a measured Zen 3 core",
    "gpu": "time of library kernels against measured GPUs",
    "models": "time of whole models against PyTorch on measured GPUs and a serving engine",
    "collectives": "collectives of several devices against measured ones",
    "serving": "time to first token and time per token of served models against measured ones",
    "systolic": "folds of a systolic array against SCALE-Sim, exactly",
    "gemmini": "layers on Gemmini against its clocked RTL",
    "tpu_v6e": "products and attention of Llama-3.1-8B against a measured TPU v6e",
    "tpu": "speed and stalls of the first TPU against what Google published",
}


LONGEST = ("serving", "cpu", "tpu_v6e", "gemmini", "models", "gpu")
"""Comparisons that take longest come first where several run at a time."""


def compare_all(
    families: Sequence[str], data: Path | None, count: int | None, seed: int
) -> Iterator[tuple[str, Report]]:
    """Every comparison in a process of its own, as many at a time as there are processors; each as it is done."""
    ordered = sorted(families, key=lambda name: LONGEST.index(name) if name in LONGEST else len(LONGEST))
    return in_parallel(partial(compare, data=data, count=count, seed=seed), ordered)


def compare(family: str, data: Path | None, count: int | None, seed: int) -> Report:
    """One comparison from beginning to end."""
    for message in start(family, data, count, seed):
        if isinstance(message, Report):
            return message
    raise AssertionError("a comparison ends with its report")


def start(family: str, data: Path | None, count: int | None, seed: int) -> Progress:
    """Begin a comparison; its module is imported only now."""
    if family not in FAMILIES:
        raise InputError(f"there is no family {family!r} to validate; known: {', '.join(FAMILIES)}")
    validate = import_module(f"hwsim.validation.{family}").validate
    return cast(Callable[[Path | None, int | None, int], Progress], validate)(data, count, seed)
