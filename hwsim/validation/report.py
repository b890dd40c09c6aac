"""What a comparison found: rows, matches, error statistics per group, and the worst rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

WORST_ROWS = 10


@dataclass(frozen=True)
class Row:
    """One compared row: which group it belongs to, and by how much (relative, 0.1 is 10 %) it is off."""

    id: str
    group: str
    error: float
    detail: str = ""

    @property
    def matched(self) -> bool:
        return self.error == 0.0


@dataclass(frozen=True)
class Bar:
    """A stated bar: what was promised, what was measured, and whether it holds."""

    name: str
    limit: str
    value: str
    met: bool


@dataclass(frozen=True)
class Statistics:
    """Errors of a group of rows, relative."""

    rows: int
    matched: int
    mape: float
    median: float

    @classmethod
    def of(cls, rows: list[Row]) -> Statistics:
        errors = [row.error for row in rows]
        return cls(len(rows), sum(row.matched for row in rows), mean(errors), median(errors))

    def to_dict(self) -> dict[str, float | int]:
        return {"rows": self.rows, "matched": self.matched, "mape": self.mape, "median": self.median}


@dataclass(frozen=True)
class Report:
    """The result of `hwsim validate FAMILY`."""

    family: str
    what: str
    """One sentence: what is compared with what."""
    results: tuple[Row, ...]
    bars: tuple[Bar, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        return all(bar.met for bar in self.bars)

    @property
    def total(self) -> Statistics:
        return Statistics.of(list(self.results))

    @property
    def groups(self) -> dict[str, Statistics]:
        rows: defaultdict[str, list[Row]] = defaultdict(list)
        for row in self.results:
            rows[row.group].append(row)
        return {name: Statistics.of(rows[name]) for name in sorted(rows)}

    @property
    def worst(self) -> tuple[Row, ...]:
        """The rows that are furthest off, those that match left out."""
        off = sorted((row for row in self.results if not row.matched), key=lambda row: (-row.error, row.id))
        return tuple(off[:WORST_ROWS])

    def to_dict(self) -> dict[str, Any]:
        return {
            "family": self.family,
            **self.total.to_dict(),
            "groups": {name: statistics.to_dict() for name, statistics in self.groups.items()},
            "worst": [{"id": r.id, "group": r.group, "error": r.error, "detail": r.detail} for r in self.worst],
            "bars": [{"name": b.name, "limit": b.limit, "value": b.value, "met": b.met} for b in self.bars],
            "notes": list(self.notes),
            "passed": self.passed,
        }


def relative_error(found: float, expected: float) -> float:
    """|found - expected| / |expected|; any difference from an expected 0 counts as 1."""
    if found == expected:
        return 0.0
    return abs(found - expected) / abs(expected) if expected else 1.0


def report(family: str, what: str, rows: Iterable[Row], bars: Iterable[Bar] = (), notes: Iterable[str] = ()) -> Report:
    return Report(family, what, tuple(rows), tuple(bars), tuple(notes))
