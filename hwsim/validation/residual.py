"""Residuals: what was measured beside what was simulated, row by row; and intervals made of them.

Rows that a constant may have been fitted on never count. Of the others, one half by a hash of the shape makes the
intervals, and the other half judges them: `hwsim/validation/split.py` decides.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from math import isfinite, log

import numpy as np

from hwsim.results.bar_table import COLUMNS, COVERAGE, LEVELS, TIME, BarGroup, BarTable, decade_of
from hwsim.validation.split import FIT, INTERVAL, JUDGE, Purpose

FEWEST = 20
"""Where a family has fewer unfitted rows than this on a machine, all of them make intervals and none judges."""


@dataclass(frozen=True)
class Residual:
    """A measured number, and what hwsim says to the same."""

    family: str
    """As a target names the parts of its runs."""
    machine: str
    simulated: float
    measured: float
    purpose: Purpose
    quantity: str = TIME
    seconds: float | None = None
    """The simulated time, where the quantity is another one."""

    @property
    def log_ratio(self) -> float:
        return log(self.measured / self.simulated)

    @property
    def decade(self) -> int:
        return decade_of(self.simulated if self.seconds is None else self.seconds)

    @property
    def error(self) -> float:
        """Relative, as rows of a report have it."""
        return abs(self.simulated / self.measured - 1)

    @property
    def is_usable(self) -> bool:
        return self.measured > 0 and self.simulated > 0 and isfinite(self.log_ratio)


def usable(residuals: Iterable[Residual]) -> list[Residual]:
    """Those that nothing was fitted to and that have a ratio."""
    return [each for each in residuals if each.purpose != FIT and each.is_usable]


def makers_and_judges(residuals: Iterable[Residual]) -> tuple[list[Residual], list[Residual]]:
    """Rows that make intervals, and rows that judge them; where there are few, there are no judges."""
    groups: defaultdict[tuple[str, str, str], list[Residual]] = defaultdict(list)
    for each in usable(residuals):
        groups[each.quantity, each.family, each.machine].append(each)
    makers: list[Residual] = []
    judges: list[Residual] = []
    for rows in groups.values():
        if len(rows) < FEWEST:
            makers += rows
        else:
            makers += [each for each in rows if each.purpose == INTERVAL]
            judges += [each for each in rows if each.purpose == JUDGE]
    return makers, judges


def make_table(residuals: Iterable[Residual]) -> BarTable:
    """The quantiles of each group of rows."""
    groups: defaultdict[tuple[str, str, str, int], list[float]] = defaultdict(list)
    for each in residuals:
        groups[each.quantity, each.family, each.machine, each.decade].append(each.log_ratio)
    return BarTable(
        BarGroup(*name, rows=len(values), points=tuple(float(point) for point in np.quantile(values, LEVELS)))
        for name, values in sorted(groups.items())
    )


def table_text(table: BarTable) -> str:
    """The table as the CSV that comes with hwsim."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for each in table.groups:
        points = (f"{point:.4f}" for point in each.points)
        writer.writerow([each.quantity, each.family, each.machine, each.decade, each.rows, *points])
    return text.getvalue()


@dataclass(frozen=True)
class Coverage:
    """How many rows lie within their bars, and how wide these are."""

    rows: int = 0
    inside: int = 0
    width: float = 0.0
    """Half of the interval over the simulated number, on average."""

    @property
    def share(self) -> float | None:
        return self.inside / self.rows if self.rows else None


def coverage_of(
    residuals: Sequence[Residual], table: BarTable, coverage: float = COVERAGE, *, unseen: bool = False
) -> Coverage:
    """With `unseen`, as if the machine of each row had never been measured."""
    inside = rows = 0
    widths = 0.0
    for each in residuals:
        seconds = each.simulated if each.seconds is None else each.seconds
        without = each.machine if unseen else ""
        found = table.interval(each.quantity, each.family, each.machine, seconds, coverage, without=without)
        if found is not None:
            rows += 1
            inside += found.low <= each.log_ratio <= found.high
            widths += (np.exp(found.high) - np.exp(found.low)) / 2
    return Coverage(rows, inside, float(widths) / rows if rows else 0.0)
