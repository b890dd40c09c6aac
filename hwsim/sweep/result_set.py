"""ResultSet: what a sweep found, as rows that can be filtered, compared, drawn and handed on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.errors import InputError
from hwsim.results.metrics import Metric, about, full_name, metrics_of, write
from hwsim.results.result import RunResult
from hwsim.sweep.request import Coordinates, Request
from hwsim.sweep.store import Status, Store

if TYPE_CHECKING:
    import pandas

    from hwsim.results.plot.file import Figure

BEST_OF = ("time_s", "energy_j", "edp_js", "error_max_rel")
_SHOWN = 12


@dataclass(frozen=True)
class Row:
    """One point: where it lies, and what came out."""

    position: int
    key: str
    coordinates: Coordinates
    status: Status
    error: str | None
    metrics: dict[str, Metric]

    def __getitem__(self, name: str) -> Any:
        """A coordinate or a metric, by name."""
        if name in self.coordinates:
            return self.coordinates[name]
        return self.metrics.get(full_name(name))

    def to_dict(self) -> dict[str, Any]:
        return {**self.coordinates, "status": self.status, "error": self.error, **self.metrics}


class ResultSet:
    """The rows of a sweep in the order of its grid; failed points are among them, with their reason."""

    def __init__(self, request: Request, rows: Sequence[Row], load: Callable[[str], RunResult]) -> None:
        self.request = request
        self.rows = tuple(rows)
        self._load = load

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

    @property
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

    def pareto(self, *metrics: str) -> ResultSet:
        """The rows that no other beats in every metric at once; time and energy if none is named."""
        names = [self.check_metric(metric) for metric in metrics or ("time", "energy")]
        rows = [row for row in self.done if all(row.metrics.get(name) is not None for name in names)]
        costs = {row.position: tuple(_cost(name, row.metrics[name]) for name in names) for row in rows}
        kept: list[Row] = []
        for row in sorted(rows, key=lambda row: (costs[row.position], row.position)):
            # Whoever beats a row comes before it in this order, and is kept or beaten by one that is kept.
            if not any(_beats(costs[other.position], costs[row.position]) for other in kept):
                kept.append(row)
        return self.only(kept)

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
        from hwsim.sweep.picture import draw

        return draw(self, kind, None if path is None else Path(path), **options)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"ResultSet: {len(self)} points ({self.request.size_words()}), {len(self.failed)} failed"
        for name in BEST_OF:
            if any(row.metrics.get(name) is not None for row in self.done):
                row = self.best(name)
                where = ", ".join(f"{axis}={row[axis]}" for axis in self.axis_names)
                yield f"  least {about(name).title}: {write(name, row.metrics[name])} at {where}"

    def _repr_html_(self) -> str:
        names = [name for name in (*BEST_OF, "utilisation") if name in self.metric_names]
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


def load_results(store: Store, sweep: int, request: Request) -> ResultSet:
    """What a store has of a sweep."""
    members = store.members(sweep)
    rows = []
    for position, coordinates in enumerate(request.coordinates()):
        if position in members:
            rows.append(_row(store, position, members[position], coordinates))
    return ResultSet(request, rows, _Loader(store))


def _row(store: Store, position: int, key: str, coordinates: Coordinates) -> Row:
    stored = store.get(key)
    assert stored is not None, "a member of a sweep is a point of the store"
    metrics = {} if stored.result is None else metrics_of(RunResult.from_json(stored.result))
    return Row(position, key, coordinates, stored.status, stored.error, metrics)


class _Loader:
    """Whole results by key, also after the store was closed."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, key: str) -> RunResult:
        self._store = self._store.for_reading()
        stored = self._store.get(key)
        assert stored is not None and stored.result is not None, "only finished points are asked for"
        return RunResult.from_json(stored.result)


def _number(value: Metric) -> float:
    return float(value) if isinstance(value, int | float) else float("inf")


def _cost(name: str, value: Metric) -> float:
    return -_number(value) if about(name).higher_is_better else _number(value)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
