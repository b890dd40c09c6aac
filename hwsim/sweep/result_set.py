"""ResultSet: what a sweep found, as rows that can be filtered, compared, drawn and handed on.

How a sweep is shown: the plot that fits it, and a page with all its points, and the best of them in detail.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hwsim.engine import Span
from hwsim.errors import InputError
from hwsim.record import within_bars
from hwsim.result import RunResult
from hwsim.results.explanation import CAPACITY, CONFLICT, tile_limits
from hwsim.results.html import Column, Page, PageRow, run_sections, run_words
from hwsim.results.metrics import (
    MEMORY_SHARE,
    UNFIT,
    Amount,
    about,
    ends_of,
    fits,
    full_name,
    html_table,
    metrics_of,
    shown,
    write,
)
from hwsim.results.plot.style import plot_energy, plot_traffic
from hwsim.results.plot.sweep import AxisMark, Curve, Dot, plot_bars, plot_heat, plot_lines, plot_pareto
from hwsim.sweep.grid import MACHINE, WORKLOAD, Axis, Coordinates, SweepRequest, Value, as_number, typed
from hwsim.sweep.store import ResultStore, Status
from hwsim.units import counted, ratio

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

    @property
    def fits(self) -> bool:
        """Whether it could be run: a model may need more memory than its machine has."""
        return fits(self.metrics)

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
    def fitting(self) -> tuple[Row, ...]:
        """Rows that have a result and fit their machine's memory: one of these is the best."""
        return tuple(row for row in self.done if row.fits)

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
        """The row with the least of a metric, or the most where more is better; the first of several equal ones. What
        does not fit its machine's memory is never the best."""
        name = self.check_metric(metric)
        rows = [row for row in self.fitting if row.metrics.get(name) is not None]
        if not rows:
            missing = f"has {name}" if self.fitting else "fits its machine's memory"
            raise InputError(f"no point of this sweep {missing}")
        return (max if about(name).higher_is_better else min)(rows, key=lambda row: _number(row.metrics[name]))

    def near_best(self, metric: str = "time") -> frozenset[int]:
        """Positions of the points that cannot be told from the best one by what is known of their errors."""
        name = full_name(metric)
        if name not in self._near:
            best = self.best(name) if any(ends_of(name, row.metrics) for row in self.fitting) else None
            ends = None if best is None else ends_of(name, best.metrics)
            self._near[name] = frozenset(
                row.position
                for row in self.fitting
                if row is not best and within_bars(ends_of(name, row.metrics), ends)
            )
        return self._near[name]

    def pareto(self, *metrics: str) -> ResultSet:
        """The rows that no other beats in every metric at once; time and energy if none is named."""
        names = [self.check_metric(metric) for metric in metrics or ("time", "energy")]
        rows = [row for row in self.fitting if all(row.metrics.get(name) is not None for name in names)]
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

        return draw(self, kind, None if path is None else Path(path), **options)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"ResultSet: {counted(len(self), 'point')} ({self.request.size_words()}), {len(self.failed)} failed"
        for metric in shown("best"):
            if any(row.metrics.get(metric.name) is not None for row in self.fitting):
                row = self.best(metric.name)
                where = ", ".join(f"{axis}={row[axis]}" for axis in self.axis_names)
                yield f"  {metric.best} {metric.title}: {write(metric.name, row.metrics[metric.name])} at {where}"

    def _repr_html_(self) -> str:
        names = [metric.name for metric in shown("sweep") if metric.name in self.metric_names]
        rows = [
            [*(str(row[axis]) for axis in self.axis_names), *(write(name, row.metrics.get(name)) for name in names)]
            for row in self.rows[:_SHOWN]
        ]
        more = f"<p>and {len(self) - _SHOWN} more</p>" if len(self) > _SHOWN else ""
        return html_table([*self.axis_names, *(about(name).title for name in names)], rows) + more


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


KINDS = ("auto", "lines", "heat", "pareto", "energy", "traffic")

_MOST_LINES, _MOST_BARS = 12, 24


def check_picture(request: SweepRequest, kind: str, x: str | None) -> None:
    """Raises InputError for a plot that cannot be drawn, before anything is simulated for it."""
    if kind not in KINDS:
        from hwsim.spec.fields import did_you_mean

        raise InputError(f"'{kind}' is not one of the plots {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    swept = [axis.name for axis in request.swept]
    if x is not None and x not in swept:
        raise InputError(f"{x} is not swept here; there are {', '.join(swept) or 'no axes'}")


def draw(
    results: ResultSet,
    kind: str = "auto",
    path: Path | None = None,
    *,
    x: str | None = None,
    metrics: Sequence[str] = (),
    title: str | None = None,
) -> Figure:
    """`x` is the axis to draw over, `metrics` what to show; both have sensible defaults."""
    check_picture(results.request, kind, x)
    if not results.done:
        raise InputError("no point of this sweep has a result, so there is nothing to draw")
    words = _title(results) if title is None else title
    chosen = kind if kind != "auto" else "lines" if x is not None else _kind(results)
    names = [results.check_metric(full_name(name)) for name in metrics]
    if chosen == "lines":
        return _lines(results, x, names, path, words)
    if chosen == "heat":
        return _heat(results, x, names, path, words)
    if chosen == "pareto":
        return _pareto(results, names, path, words)
    if names and kind == "auto":
        values = {row_label(results, row): _amounts(row, names) for row in results.done[:_MOST_BARS]}
        return plot_bars(values, names, path, words)
    if names:
        raise InputError(f"--kind {kind} draws where {kind} goes and takes no --metric; leave one of them out")
    runs = {row_label(results, row): results.result(row) for row in results.done[:_MOST_BARS]}
    return (plot_energy if chosen == "energy" else plot_traffic)(runs, path, words)


def _amounts(row: Row, metrics: Sequence[str]) -> dict[str, float | None]:
    found = {name: row.metrics.get(name) for name in metrics}
    return {name: float(value) if isinstance(value, int | float) else None for name, value in found.items()}


def row_label(results: ResultSet, row: Row) -> str:
    """A row in a few words: what was swept, and whether it fits."""
    words = " ".join(_short(name, row[name]) for name in results.axis_names)
    return words if row.fits else f"{words} ({UNFIT} does not fit)"


def _short(name: str, value: Value) -> str:
    return typed(value) if name in (MACHINE, WORKLOAD, "precision") else f"{name}={typed(value)}"


def _kind(results: ResultSet) -> str:
    """Lines over the longest axis of numbers; a map where two axes of numbers are long; else a cloud."""
    numeric = [axis for axis in results.request.swept if _is_numeric(axis) and len(axis.values) > 2]
    others = 1
    for axis in results.request.swept:
        if axis not in numeric[:1]:
            others *= len(axis.values)
    if len(numeric) == 2 and len(results.request.swept) == 2 and min(len(axis.values) for axis in numeric) > 4:
        return "heat"
    if numeric and others <= _MOST_LINES:
        return "lines"
    if not numeric and len(results.done) <= _MOST_BARS:
        return "energy" if "energy_j" in results.metric_names and results.done[0]["energy_j"] is not None else "traffic"
    return "pareto"


def _is_numeric(axis: Axis) -> bool:
    return all(as_number(value) is not None for value in axis.values)


def _title(results: ResultSet) -> str:
    request = results.request
    swept = {axis.name for axis in request.swept}
    fixed = [_short(axis.name, axis.values[0]) for axis in request.axes if axis.name not in swept]
    workload = "" if WORKLOAD in swept else request.workloads[0]
    machine = "" if MACHINE in swept else f"on {request.machines[0]}"
    return " ".join(word for word in (workload, *fixed, machine) if word)


def _default_metrics(results: ResultSet) -> list[str]:
    names = [metric.name for metric in shown("plot")]
    return [name for name in names if any(row.metrics.get(name) is not None for row in results.done)]


def _lines(results: ResultSet, x: str | None, metrics: list[str], path: Path | None, title: str) -> Figure:
    metrics = metrics or _default_metrics(results)
    axis = _axis(results, x)
    others = [each.name for each in results.request.swept if each.name != axis.name]
    groups: dict[str, list[Row]] = {}
    for row in results.done:
        label = " ".join(_short(name, row[name]) for name in others)
        groups.setdefault(label, []).append(row)
    numbers = {value: as_number(value) for value in axis.values}
    if any(number is None for number in numbers.values()):
        numbers = {value: float(place) for place, value in enumerate(axis.values)}
    lines = []
    for label, rows in groups.items():
        ordered = sorted(rows, key=lambda row: numbers[row[axis.name]] or 0.0)
        lines.append(
            Curve(
                label,
                tuple(row[axis.name] for row in ordered),
                tuple(numbers[row[axis.name]] or 0.0 for row in ordered),
                {name: tuple(row.metrics.get(name) for row in ordered) for name in metrics},  # type: ignore[misc]
                {name: tuple(ends_of(name, row.metrics) for row in ordered) for name in metrics},
                tuple(not row.fits for row in ordered),
            )
        )
    marks = _marks(results, groups) if axis.name == "tile" else []
    words = ", ".join(others) if any(name not in ("precision", MACHINE, WORKLOAD) for name in others) else ""
    return plot_lines(lines, metrics, axis.name, path, title=title, marks=marks, lines_are=words)


def _marks(results: ResultSet, groups: dict[str, list[Row]]) -> list[AxisMark]:
    """Where tiles stop fitting the first cache, for each line."""
    marks = []
    for label, rows in groups.items():
        limits = tile_limits(results.result(rows[0]))
        first = limits[0].level if limits else ""
        for limit in limits:
            if limit.level == first:
                row = {CAPACITY: f"3·tile² = {first}", CONFLICT: f"A, B fit sets of {first}"}
                marks.append(AxisMark(label, row.get(limit.kind, f"B fits sets of {first}"), float(limit.tile)))
    return marks


def _axis(results: ResultSet, x: str | None) -> Axis:
    swept = results.request.swept
    if x is not None:
        return next(axis for axis in swept if axis.name == x)
    numeric = [axis for axis in swept if _is_numeric(axis)]
    if not swept:
        raise InputError("a single point has no axis to draw over; sweep something, such as tile=8..64:x2")
    return max(numeric or swept, key=lambda axis: len(axis.values))


def _heat(results: ResultSet, x: str | None, metrics: list[str], path: Path | None, title: str) -> Figure:
    swept = results.request.swept
    if len(swept) < 2:
        raise InputError("a map needs two swept axes")
    across = _axis(results, x) if x is not None else max(swept, key=lambda axis: len(axis.values))
    down = next(axis for axis in swept if axis.name != across.name)
    metric = metrics[0] if metrics else "time_s"
    values: dict[tuple[Any, Any], float | None] = {}
    room = {(row[across.name], row[down.name]) for row in results.fitting}
    unfit = {(row[across.name], row[down.name]) for row in results.done} - room
    for row in results.rows:
        place = (row[across.name], row[down.name])
        value = row.metrics.get(metric) if row.fits or place in unfit else None
        known = values.get(place)
        if isinstance(value, int | float):
            values[place] = float(value) if known is None else min(known, float(value))
        else:
            values.setdefault(place, None)
    hidden = [axis.name for axis in swept if axis not in (across, down)]
    words = f"{title}, best over {', '.join(hidden)}" if hidden else title
    return plot_heat(values, across.values, down.values, metric, (across.name, down.name), path, words, unfit)


def _pareto(results: ResultSet, metrics: list[str], path: Path | None, title: str) -> Figure:
    names = metrics or _default_metrics(results)
    if len(names) == 1:
        names = [*names, next(name for name in ("peak_memory_bytes", "cycles") if name != names[0])]
    errors = {row.metrics.get("error_max_rel") for row in results.done}
    if len(names) == 2 and not metrics and len(errors - {None}) > 1:
        names = [*names, "error_max_rel"]
    front = {row.position for row in results.pareto(*names)}
    group = "precision" if any(axis.name == "precision" for axis in results.request.swept) else results.axis_names[0]
    dots = []
    for row in results.done:
        values = [row.metrics.get(name) for name in names]
        if values[0] is None or values[1] is None:
            continue
        third = float(values[2]) if len(values) > 2 and isinstance(values[2], int | float) else None
        label = row_label(results, row)
        dots.append(
            Dot(float(values[0]), float(values[1]), third, label, str(row[group]), row.position in front, row.fits)
        )
    few = len({dot.group for dot in dots}) <= 9
    dots = dots if few else [replace(d, group="points") for d in dots]
    return plot_pareto(dots, names, path, title, group if few else "")


def sweep_page(results: ResultSet, spans: Iterable[Span] = (), title: str = "") -> Page:
    """A page about a sweep; `spans` are the timeline of its fastest point."""
    if not results.done:
        raise InputError("no point of this sweep has a result, so there is nothing to report")
    request = results.request
    best = results.best("time") if results.fitting else results.done[0]
    columns = [Column(axis.name, axis.name, kind="axis", varies=axis.swept) for axis in request.all_axes]
    columns += [Column(name, about(name).title, about(name).unit) for name in results.metric_names]
    lines = [
        PageRow(
            {**row.coordinates, **row.metrics},
            _numbers(row),
            row.fits and row.position == best.position,
            row.error or _unfit_words(row),
        )
        for row in results
    ]
    names = f"{', '.join(request.workloads)} on {', '.join(request.machines)}"
    return Page(
        title or names,
        f"{len(results):,} of {request.count:,} points: {request.size_words()}",
        list(sweep_words(results)),
        columns,
        lines,
        _start(results),
        [(f"{name}, at {_where(results, best)}", body) for name, body in run_sections(results.result(best), spans)],
    )


def _unfit_words(row: Row) -> str:
    return "" if row.fits else f"does not fit: {write(MEMORY_SHARE, row.metrics[MEMORY_SHARE])} of the machine's memory"


def unfit_words(results: ResultSet) -> str:
    """How many points need more memory than their machine has, and how much more."""
    shares = [row.metrics[MEMORY_SHARE] for row in results.done if not row.fits]
    if not shares:
        return ""
    do, most = "does" if len(shares) == 1 else "do", write(MEMORY_SHARE, max(shares))  # type: ignore[type-var]
    return (
        f"{len(shares):,} of {counted(len(results.done), 'point')} {do} not fit the machine's memory, of which up to "
        f"{most} would be needed: such times are those of a machine with more, and never the best"
    )


def sweep_words(results: ResultSet) -> Iterator[str]:
    """What a sweep found, in sentences."""
    if words := unfit_words(results):
        yield f"{words}."
    if not results.fitting:
        return
    for metric in shown("best"):
        name = metric.name
        rows = [row for row in results.fitting if isinstance(row.metrics.get(name), int | float)]
        if not rows:
            continue
        best = results.best(name)
        value, worst = best.metrics[name], max(float(row.metrics[name] or 0.0) for row in rows)
        assert isinstance(value, int | float)
        more = f"; the worst is {ratio(worst / value)} as much" if value and worst > value else ""
        yield f"{metric.best.capitalize()} {metric.title}: {write(name, value)}, at {_where(results, best)}{more}."
    front = results.pareto()
    if len(front) > 1:
        listed = "; ".join(_where(results, row) for row in front.rows[:5])
        yield f"The Pareto front of time and energy has {len(front)} points: {listed}."
    yield f"The fastest point, {_where(results, results.best('time'))}:"
    yield from run_words(results.result(results.best("time")))
    if near := len(results.near_best("time")):
        yield f"{near:,} further points lie within its error bar and theirs: measured, one of them could win."
    if results.failed:
        reasons = dict.fromkeys((row.error or "").splitlines()[0] for row in results.failed)
        yield f"{counted(len(results.failed), 'point')} failed: {'; '.join(list(reasons)[:3])}."


def _where(results: ResultSet, row: Row) -> str:
    return ", ".join(f"{axis} {typed(row[axis])}" for axis in results.axis_names)


def _numbers(row: Row) -> dict[str, float]:
    found = {name: as_number(value) for name, value in row.coordinates.items() if isinstance(value, str)}
    return {name: number for name, number in found.items() if number is not None}


def _start(results: ResultSet) -> dict[str, str]:
    swept = results.request.swept
    numeric = [axis for axis in swept if all(as_number(value) is not None for value in axis.values)]
    x = max(numeric or swept, key=lambda axis: len(axis.values)).name if swept else "workload"
    others = [axis.name for axis in swept if axis.name != x]
    by = "precision" if "precision" in others else others[0] if others else ""
    return {"x": x, "y": "time_s", "by": by}
