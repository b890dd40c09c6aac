"""The report of a sweep: all its points in a chart and a table, and the best of them in detail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hwsim.engine.outcome import Span
from hwsim.errors import InputError
from hwsim.results.html.of_run import run_sections, run_words
from hwsim.results.html.page import Column, Line, Page
from hwsim.results.metrics import about, write
from hwsim.results.text import ratio
from hwsim.sweep.axis import as_number, typed
from hwsim.sweep.result_set import BEST_OF, ResultSet, Row


def sweep_page(results: ResultSet, spans: Iterable[Span] = (), title: str = "") -> Page:
    """A page about a sweep; `spans` are the timeline of its fastest point."""
    if not results.done:
        raise InputError("no point of this sweep has a result, so there is nothing to report")
    request = results.request
    best = results.best("time")
    columns = [Column(axis.name, axis.name, kind="axis", varies=axis.swept) for axis in request.all_axes]
    columns += [Column(name, about(name).title, about(name).unit) for name in results.metric_names]
    lines = [
        Line({**row.coordinates, **row.metrics}, _numbers(row), row.position == best.position, row.error or "")
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


def sweep_words(results: ResultSet) -> Iterator[str]:
    """What a sweep found, in sentences."""
    for name in BEST_OF:
        rows = [row for row in results.done if isinstance(row.metrics.get(name), int | float)]
        if not rows:
            continue
        best = results.best(name)
        value, worst = best.metrics[name], max(float(row.metrics[name] or 0.0) for row in rows)
        assert isinstance(value, int | float)
        more = f"; the worst is {ratio(worst / value)} as much" if value and worst > value else ""
        yield f"Least {about(name).title}: {write(name, value)}, at {_where(results, best)}{more}."
    front = results.pareto()
    if len(front) > 1:
        listed = "; ".join(_where(results, row) for row in front.rows[:5])
        yield f"Nothing beats these {len(front)} points in time and energy at once: {listed}."
    yield f"The fastest point, {_where(results, results.best('time'))}:"
    yield from run_words(results.result(results.best("time")))
    if results.failed:
        reasons = dict.fromkeys((row.error or "").splitlines()[0] for row in results.failed)
        yield f"{len(results.failed)} points failed: {'; '.join(list(reasons)[:3])}."


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
