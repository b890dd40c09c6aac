"""ResultSet: what a sweep found, as rows that can be filtered, compared, drawn and handed on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hwsim.error_bar import within_bars
from hwsim.errors import InputError
from hwsim.result import RunResult
from hwsim.results.metrics import Amount, about, ends_of, full_name, metrics_of, shown, write
from hwsim.sweep.grid import Coordinates, SweepRequest
from hwsim.sweep.store import ResultStore, Status

if TYPE_CHECKING:
    import pandas

    from hwsim.results.plot.style import Figure

_SHOWN = 12

Costs = tuple[float, ...]
"""The metrics of a point, less is better."""


@dataclass(frozen=True)
class Row:
    """One point: where it lies, and what came out."""

    position: int
    key: str
    coordinates: Coordinates
    status: Status
    error: str | None
    metrics: dict[str, Amount]

    def __getitem__(self, name: str) -> Any:
        """A coordinate or a metric, by name."""
        if name in self.coordinates:
            return self.coordinates[name]
        return self.metrics.get(full_name(name))

    def to_dict(self) -> dict[str, Any]:
        return {**self.coordinates, "status": self.status, "error": self.error, **self.metrics}


class ResultSet:
    """The rows of a sweep in the order of its grid; failed points are among them, with their reason."""

    def __init__(self, request: SweepRequest, rows: Sequence[Row], load: Callable[[str], RunResult]) -> None:
        self.request = request
        self.rows = tuple(rows)
        self._load = load
        self._near: dict[str, frozenset[int]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, number: int) -> Row:
        return self.rows[number]

    @property
    def done(self) -> tuple[Row, ...]:
        """Rows that have a result."""
        return tuple(row for row in self.rows if row.status == "done")

    @property
    def failed(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.status != "done")

    @cached_property
    def metric_names(self) -> tuple[str, ...]:
        """Every number that some row has."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.metrics))

    @property
    def axis_names(self) -> tuple[str, ...]:
        """What was swept, or the workload where nothing was."""
        return tuple(axis.name for axis in self.request.swept) or ("workload",)

    def result(self, row: Row | int) -> RunResult:
        """The whole result of one row."""
        row = self.rows[row] if isinstance(row, int) else row
        if row.status != "done":
            raise InputError(f"this point has no result: {row.error}")
        return self._load(row.key)

    def where(self, **wanted: object) -> ResultSet:
        """The rows with these coordinates; a dot in a name is written as two underscores: `l1__size`."""
        names = {name.replace("__", "."): value for name, value in wanted.items()}
        unknown = [name for name in names if self.rows and name not in self.rows[0].coordinates]
        if unknown:
            known = ", ".join(self.rows[0].coordinates)
            raise InputError(f"{unknown[0]} is not a coordinate of this sweep; there are {known}")
        return self.only(row for row in self if all(row.coordinates[name] == names[name] for name in names))

    def only(self, rows: Iterable[Row]) -> ResultSet:
        return ResultSet(self.request, tuple(rows), self._load)

    def best(self, metric: str = "time") -> Row:
        """The row with the least of a metric, or the most where more is better; the first of several equal ones."""
        name = self.check_metric(metric)
        rows = [row for row in self.done if row.metrics.get(name) is not None]
        if not rows:
            raise InputError(f"no point of this sweep has {name}")
        return (max if about(name).higher_is_better else min)(rows, key=lambda row: _number(row.metrics[name]))

    def near_best(self, metric: str = "time") -> frozenset[int]:
        """Positions of the points that cannot be told from the best one by what is known of their errors."""
        name = full_name(metric)
        if name not in self._near:
            best = self.best(name) if any(ends_of(name, row.metrics) for row in self.done) else None
            ends = None if best is None else ends_of(name, best.metrics)
            self._near[name] = frozenset(
                row.position for row in self.done if row is not best and within_bars(ends_of(name, row.metrics), ends)
            )
        return self._near[name]

    def pareto(self, *metrics: str) -> ResultSet:
        """The rows that no other beats in every metric at once; time and energy if none is named."""
        names = [self.check_metric(metric) for metric in metrics or ("time", "energy")]
        rows = [row for row in self.done if all(row.metrics.get(name) is not None for name in names)]
        costs = {row.position: tuple(_cost(name, row.metrics[name]) for name in names) for row in rows}
        unbeaten = _front(set(costs.values()))
        front = [row for row in rows if costs[row.position] in unbeaten]
        return self.only(sorted(front, key=lambda row: (costs[row.position], row.position)))

    def check_metric(self, metric: str) -> str:
        """The full name of a metric that exists. Raises InputError with those that do."""
        name = full_name(metric)
        if name not in self.metric_names:
            from hwsim.spec.fields import did_you_mean

            known = ", ".join(self.metric_names) or "none, because no point has a result"
            near = did_you_mean(name, self.metric_names)
            raise InputError(f"'{metric}' is not a metric of this sweep{near}; there are: {known}")
        return name

    def to_dicts(self) -> list[dict[str, Any]]:
        """One flat dictionary for each point: coordinates, status, error, metrics."""
        blank = dict.fromkeys(self.metric_names)
        return [{**row.coordinates, "status": row.status, "error": row.error, **blank, **row.metrics} for row in self]

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with one row for each point; needs pandas (`pip install hwsim[frames]`)."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_pandas() needs pandas: pip install 'hwsim[frames]'") from None
        return pandas.DataFrame(self.to_dicts())

    def plot(self, kind: str = "auto", path: Path | str | None = None, **options: Any) -> Figure:
        """Draw the sweep: lines, heat, pareto, energy or traffic; `auto` takes what fits its axes."""
        from hwsim.sweep.report import draw

        return draw(self, kind, None if path is None else Path(path), **options)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"ResultSet: {len(self)} points ({self.request.size_words()}), {len(self.failed)} failed"
        for metric in shown("best"):
            if any(row.metrics.get(metric.name) is not None for row in self.done):
                row = self.best(metric.name)
                where = ", ".join(f"{axis}={row[axis]}" for axis in self.axis_names)
                yield f"  {metric.best} {metric.title}: {write(metric.name, row.metrics[metric.name])} at {where}"

    def _repr_html_(self) -> str:
        names = [metric.name for metric in shown("sweep") if metric.name in self.metric_names]
        head = "".join(f"<th>{escape(title)}</th>" for title in (*self.axis_names, *(about(n).title for n in names)))
        rows = "".join(
            "<tr>"
            + "".join(f"<td>{escape(str(row[axis]))}</td>" for axis in self.axis_names)
            + "".join(f"<td>{escape(write(name, row.metrics.get(name)))}</td>" for name in names)
            + "</tr>"
            for row in self.rows[:_SHOWN]
        )
        more = f"<p>and {len(self) - _SHOWN} more</p>" if len(self) > _SHOWN else ""
        return f"<table><tr>{head}</tr>{rows}</table>{more}"


def load_results(store: ResultStore, sweep: int, request: SweepRequest) -> ResultSet:
    """What a store has of a sweep."""
    members = store.members(sweep)
    rows = []
    for position, coordinates in enumerate(request.coordinates()):
        if position in members:
            rows.append(_row(store, position, members[position], coordinates))
    return ResultSet(request, rows, _Loader(store))


def _row(store: ResultStore, position: int, key: str, coordinates: Coordinates) -> Row:
    stored = store.need(key)
    metrics = {} if stored.data is None else metrics_of(RunResult.from_dict(stored.data))
    return Row(position, key, coordinates, stored.status, stored.error, metrics)


class _Loader:
    """Whole results by key, also after the store was closed."""

    def __init__(self, store: ResultStore) -> None:
        self._store = store

    def __call__(self, key: str) -> RunResult:
        self._store = self._store.for_reading()
        stored = self._store.need(key)
        assert stored.data is not None, "only finished points are asked for"
        return RunResult.from_dict(stored.data)


def _number(value: Amount) -> float:
    return float(value) if isinstance(value, int | float) else float("inf")


def _cost(name: str, value: Amount) -> float:
    return -_number(value) if about(name).higher_is_better else _number(value)


def _front(costs: set[Costs]) -> set[Costs]:
    """Those that no other beats. In order, whoever beats one comes before it, and is kept or beaten by one that is
    kept. With up to three metrics a staircase of the last two tells; with more, all that are kept are asked."""
    if not costs:
        return set()
    if len(next(iter(costs))) > 3:
        return _front_of_many(costs)
    stairs: list[tuple[float, float]] = []
    kept = set()
    for cost in sorted(costs):
        _, second, third = (*cost, 0.0, 0.0)[:3]
        place = bisect_right(stairs, (second, inf))
        if place and stairs[place - 1][1] <= third:
            continue
        kept.add(cost)
        first = bisect_left(stairs, (second, -inf))
        last = first
        while last < len(stairs) and stairs[last][1] >= third:
            last += 1
        stairs[first:last] = [(second, third)]
    return kept


def _front_of_many(costs: set[Costs]) -> set[Costs]:
    table, count = np.empty((len(costs), len(next(iter(costs))))), 0
    for cost in sorted(costs):
        if not bool((table[:count] <= cost).all(axis=1).any()):
            table[count] = cost
            count += 1
    return {tuple(row) for row in table[:count].tolist()}
