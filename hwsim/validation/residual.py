"""Residuals: what was measured beside what was simulated, row by row; which rows may count; and intervals made of them.

A hash of the shape decides which rows a model may be fitted on, and those never count. The machine is no part of the
shape, so a constant that was fitted on one GPU has not seen the same shape on another. The other rows make the error
bars, in two halves. A row is judged by the intervals of the half that it is not in: they have never seen its shape, and
a draw that makes the bars of one half too wide makes those of the other too narrow.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import StringIO
from math import isfinite, log
from typing import Literal

import numpy as np

from hwsim.results.bar_table import COLUMNS, COVERAGE, LEVELS, TIME, BarGroup, BarTable, decade_of

Purpose = Literal["fit", "first", "second"]
FIT: Purpose = "fit"
FIRST: Purpose = "first"
SECOND: Purpose = "second"

FEWEST = 20
"""Where a family has fewer unfitted rows than this on a machine, they make intervals and none judges."""


def is_held_out(*shape: object) -> bool:
    """Whether rows of this shape are for reporting alone; the others may be fitted on."""
    return _hash(shape)[0] % 2 == 1


def purpose_of(*shape: object) -> Purpose:
    """What rows of this shape are for: to be fitted on, or one of the halves that make error bars and judge them."""
    return unfitted_half(*shape) if is_held_out(*shape) else FIT


def unfitted_half(*shape: object) -> Purpose:
    """The same where nothing is fitted to any row."""
    return FIRST if _hash(shape)[1] % 2 else SECOND


def _hash(shape: tuple[object, ...]) -> bytes:
    return sha256("|".join(str(part) for part in shape).encode()).digest()


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


def judges(residuals: Iterable[Residual]) -> list[Residual]:
    """Rows that judge intervals; where there are few, there are none."""
    groups: defaultdict[tuple[str, str, str], list[Residual]] = defaultdict(list)
    for each in usable(residuals):
        groups[each.quantity, each.family, each.machine].append(each)
    return [each for rows in groups.values() if len(rows) >= FEWEST for each in rows]


def make_table(residuals: Iterable[Residual]) -> BarTable:
    """The quantiles of each group of rows, half by half."""
    groups: defaultdict[tuple[str, str, str, int, str], list[float]] = defaultdict(list)
    for each in usable(residuals):
        groups[each.quantity, each.family, each.machine, each.decade, each.purpose].append(each.log_ratio)
    return BarTable(
        BarGroup(*name[:4], len(values), tuple(float(point) for point in np.quantile(values, LEVELS)), name[4])
        for name, values in sorted(groups.items())
    )


def table_text(table: BarTable) -> str:
    """The table as the CSV that comes with hwsim."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for each in table.groups:
        points = (f"{point:.4f}" for point in each.points)
        writer.writerow([each.quantity, each.family, each.machine, each.decade, each.half, each.rows, *points])
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
    """Each row by the other half of the table; with `unseen`, as if the row's machine had never been measured."""
    other = {FIRST: table.of_half(SECOND), SECOND: table.of_half(FIRST)}
    inside = rows = 0
    widths = 0.0
    for each in residuals:
        seconds = each.simulated if each.seconds is None else each.seconds
        without = each.machine if unseen else ""
        found = other[each.purpose].interval(
            each.quantity, each.family, each.machine, seconds, coverage, without=without
        )
        if found is not None:
            rows += 1
            inside += found.low <= each.log_ratio <= found.high
            widths += (np.exp(found.high) - np.exp(found.low)) / 2
    return Coverage(rows, inside, float(widths) / rows if rows else 0.0)
