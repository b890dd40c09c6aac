"""Metrics: one row for each number that runs are compared by; screens, pages, plots and searches take it from here.

Errors are those that a user means: the answer against float64 from the inputs before they were rounded. What the
arithmetic adds, inputs taken as they are stored, is a metric of its own.

A new metric is a row of METRICS: its name, what it is called, its unit, how a result gives it, which direction is good,
and where it has a line, a column or a panel of its own. Every metric is in the JSON, CSV and HTML of a sweep, and may
be plotted or tuned for by its name.

Energy from other sides: by cause and level, by tensor, as a table of prices and sources; a power limit in words.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal

from hwsim.energy import MEMORY, Entry
from hwsim.engine import Outcome, Throttle
from hwsim.result import RunResult
from hwsim.units import (
    csv_cell,
    data,
    digits,
    format_frequency,
    joule_seconds,
    joules,
    percent,
    rate,
    seconds,
    short,
    watts,
)

if TYPE_CHECKING:
    from hwsim.memory.counters import CacheCounters
    from hwsim.result import RunResult

Amount = float | int | str | bool | None

Place = Literal["run", "repr", "html", "compare", "sweep", "point", "best", "plot", "bars"]
"""Where a metric is shown by itself.

run, repr, html: a line of the first screen, of a Python prompt, of the words of a report. compare, sweep: a column, of
`sweep` also where points are listed (point), and the best value in words (best). plot: drawn over an axis where nobody
chose. bars: a panel beside each other run.
"""

SPEED_UP, BOUND, TRAFFIC, LAST = 5, 6, 30, 100
"""Places of columns: three that are no metrics of one run alone, and where a metric goes that has none of its own."""


@dataclass(frozen=True)
class Metric:
    """One number of a run: what it is called, how it is written, and which direction is good."""

    name: str
    title: str
    unit: str
    of: Callable[[RunResult], Amount]
    best: Literal["least", "most"] = "least"
    shown: tuple[Place, ...] = ()
    column: int = LAST
    """Its place among columns, from left to right."""
    head: str = ""
    """What a narrow column is called, where that is not the title."""
    typed: str = ""
    """A shorter name that people type."""

    @property
    def higher_is_better(self) -> bool:
        return self.best == "most"


UNITS = {"s": "s", "j": "J", "w": "W"}


def _end(bar: str, end: str) -> Callable[[RunResult], Amount]:
    """One end of an error bar; None where nobody ever compared."""

    def of(result: RunResult) -> Amount:
        found: float | None = getattr(getattr(result, bar), end, None)
        return found

    return of


_ROWS = (
    Metric("time_s", "time", "s", lambda r: r.time_s, column=0, typed="time",
           shown=("run", "repr", "html", "compare", "sweep", "point", "best", "plot", "bars")),
    Metric("energy_j", "energy", "J", lambda r: r.energy_j, column=10, typed="energy",
           shown=("run", "repr", "html", "compare", "sweep", "point", "best", "plot", "bars")),
    Metric("edp_js", "energy × time", "J·s", lambda r: r.edp_js, column=70, typed="edp",
           shown=("compare", "sweep", "best")),
    Metric("power_w", "power", "W", lambda r: r.power_w, typed="power"),
    Metric("cycles", "cycles", "", lambda r: r.cycles),
    Metric("error_max_rel", "largest error", "", lambda r: None if r.numeric is None else r.numeric.max_rel, column=50,
           head="error", typed="error", shown=("compare", "sweep", "point", "best")),
    Metric("error_rms_rel", "rms error", "", lambda r: None if r.numeric is None else r.numeric.rms_rel),
    Metric("error_of_arithmetic", "largest error of the arithmetic, inputs taken as rounded", "",
           lambda r: None if r.error is None else r.error.max_rel),
    Metric("peak_memory_bytes", "peak memory", "B", lambda r: r.peak_memory_bytes, column=40, head="memory",
           shown=("compare",)),
    Metric("utilisation", "of peak", "%", lambda r: r.utilisation, "most", column=60, shown=("compare", "sweep")),
    *(Metric(f"{name}_{end}_{unit}", f"{title}, {words} of its bar", UNITS[unit], _end(f"{name}_bar", end))
      for name, unit, title in (("time", "s", "time"), ("energy", "j", "energy"), ("power", "w", "power"))
      for end, words in (("low", "low end"), ("high", "high end"))),
    Metric("verified", "verified", "", lambda r: r.verified),
    Metric("flops", "operations", "", lambda r: r.work.flops),
    Metric("flops_per_s", "speed", "FLOP/s", lambda r: r.work.flops_per_s, "most"),
    Metric("loads", "loads", "", lambda r: r.work.loads),
    Metric("stores", "stores", "", lambda r: r.work.stores),
)  # fmt: skip

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ROWS}
"""By name, in the order of JSON and CSV."""


@dataclass(frozen=True)
class LevelMetric:
    """One number of each memory level, or of each cache: ``l1.fills``."""

    ending: str
    title: str
    unit: str
    best: Literal["least", "most"] = "least"


MODEL = "model"


MEMORY_SHARE = "memory_share"


def memory_share(result: RunResult) -> float | None:
    """What a model needs of its machine's memory; more than 1 does not fit. None for other runs and where the machine
    does not say what it has."""
    fit = result.work.use.get(MODEL, {}).get("fit", {})
    return fit["needed"] / fit["has"] if fit.get("has") else None


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a run, by its metrics, has room in its machine's memory: one that has not could not be run there."""
    return (row.get(MEMORY_SHARE) or 0.0) <= 1


UNFIT = "✕"
"""Marks a run that does not fit its machine's memory."""


def _of_model(
    name: str, title: str, unit: str, best: Literal["least", "most"] = "least", *shown: Place, column: int = LAST
) -> Metric:
    return Metric(
        name, title, unit, lambda r: r.work.use.get(MODEL, {}).get("metrics", {}).get(name), best, shown, column
    )


MODEL_METRICS = {
    metric.name: metric
    for metric in (
        _of_model("first_token_s", "time to the first token", "s"),
        _of_model("next_token_s", "time for each next token", "s"),
        _of_model("tokens_per_s", "tokens per second", "token/s", "most", "sweep", "point", "best", "plot", column=5),
        _of_model("prompt_tokens_per_s", "tokens of prompt per second", "token/s", "most"),
        _of_model("sequences_per_s", "inputs per second", "input/s", "most"),
        _of_model("joules_per_token", "energy for each token", "J", "least", "sweep", "point", "best", column=15),
        _of_model("joules_per_sequence", "energy for each input", "J"),
        Metric(MEMORY_SHARE, "of memory", "%", lambda r: memory_share(r), shown=("sweep", "point"), column=40),
    )
}
"""Numbers that only whole models have."""

THROUGHPUT = ("tokens_per_s", "prompt_tokens_per_s", "sequences_per_s")
"""What a model is mostly asked for; the first that it has."""

BYTES = LevelMetric(".bytes", "traffic", "B")
CACHE_METRICS: Mapping[LevelMetric, Callable[[CacheCounters], Amount]] = {
    LevelMetric(".fills", "lines filled", ""): lambda cache: cache.misses + cache.prefetches,
    LevelMetric(".misses", "misses", ""): lambda cache: cache.misses,
    LevelMetric(".hit_rate", "hit rate", "%", "most"): lambda cache: (
        cache.hits / cache.accesses if cache.accesses else None
    ),
}


def metrics_of(result: RunResult) -> dict[str, Amount]:
    """Every number of a run that a sweep may compare; levels under their own names."""
    from hwsim.result import bytes_moved
    from hwsim.results.metrics import energy_split

    row: dict[str, Amount] = {name: metric.of(result) for name, metric in METRICS.items()}
    row |= {name + BYTES.ending: bytes_moved(counts) for name, counts in result.memory.items()}
    for name, cache in result.caches.items():
        row |= {name + metric.ending: of(cache) for metric, of in CACHE_METRICS.items()}
    row |= {f"energy.{name}": amount for name, amount in energy_split(result).items()}
    row |= result.work.use.get(MODEL, {}).get("metrics", {})
    if (share := memory_share(result)) is not None:
        row[MEMORY_SHARE] = share
    return row


def ends_of(name: str, row: Mapping[str, Any]) -> tuple[float, float] | None:
    """Both ends of the error bar of a metric, from the metrics of a run; None for what has none."""
    stem, _, unit = name.rpartition("_")
    low, high = row.get(f"{stem}_low_{unit}"), row.get(f"{stem}_high_{unit}")
    return (low, high) if isinstance(low, float) and isinstance(high, float) else None


def shown(place: Place) -> list[Metric]:
    """The metrics that are shown somewhere by themselves, in the order of columns."""
    every = (*METRICS.values(), *MODEL_METRICS.values())
    return sorted((metric for metric in every if place in metric.shown), key=lambda metric: metric.column)


def throughput(row: Mapping[str, Any]) -> str:
    """The name of the metric that says how much of its work a model does in a second; nothing for other runs."""
    return next((name for name in THROUGHPUT if row.get(name) is not None), "")


def far_traffic(result: RunResult) -> str:
    """The name of the metric that says what the level furthest from the compute units moved; nothing without one."""
    return f"{list(result.memory)[-1]}{BYTES.ending}" if result.memory else ""


def full_name(name: str) -> str:
    """``time`` as ``time_s``; any other name as it is."""
    return next((metric.name for metric in METRICS.values() if metric.typed == name), name)


def about(name: str) -> Metric:
    """What is known of a metric, whatever levels a machine has."""
    if known := METRICS.get(name) or MODEL_METRICS.get(name):
        return known

    def of(result: RunResult) -> Amount:
        return metrics_of(result).get(name)

    if name.startswith("energy."):
        return Metric(name, f"energy: {name.removeprefix('energy.')}", "J", of)
    for level in (BYTES, *CACHE_METRICS):
        if name.endswith(level.ending):
            return Metric(name, f"{name.removesuffix(level.ending)} {level.title}", level.unit, of, level.best)
    return Metric(name, name, "", of)


def write(name: str, value: Any) -> str:
    """A value with its unit, as people read it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    unit = about(name).unit
    if unit in _WRITTEN:
        return _WRITTEN[unit](value)
    if name.startswith("error"):
        return f"{value:.2e}".replace("e-0", "e-").replace("e+00", "")
    if abs(value) >= 1e4 or isinstance(value, int):
        return short(value)
    return digits(value)


_WRITTEN: Mapping[str, Callable[[float], str]] = {
    "s": seconds,
    "J": joules,
    "J·s": joule_seconds,
    "W": watts,
    "B": data,
    "%": lambda value: percent(value, 1),
    "FLOP/s": lambda value: rate(value, "FLOP"),
    "token/s": lambda value: rate(value, "token"),
    "input/s": lambda value: rate(value, "input"),
}

COLUMNS = ("component", "action", "cause", "count", "per", "price", "price_unit", "joules", "share", "source")


def energy_by_tensor(entries: Sequence[Entry] | None, outcome: Outcome) -> dict[str, dict[str, float]] | None:
    """Each level's energy, given to tensors by how much of them got there."""
    if entries is None:
        return None
    found: dict[str, dict[str, float]] = {name: {} for name in sorted(outcome.tensors)}
    for level, reached in outcome.reached.items():
        spent = [entry.joules for entry in entries if entry.component == level and entry.cause == MEMORY]
        joules = sum(spent)
        whole = sum(reached.values())
        for tensor, count in reached.items():
            if spent and whole and count:
                found[tensor][level] = joules * count / whole
    return found


def energy_rows(result: RunResult) -> Iterator[dict[str, Any]]:
    """The priced ledger, one row for each line, the dearest first."""
    lines = [
        (cause, name, line)
        for cause, actions in (result.energy_by_cause or {}).items()
        for name, line in actions.items()
    ]
    for cause, name, line in sorted(lines, key=lambda each: (-each[2]["joules"], each[1])):
        component, _, action = name.partition(".")
        static = line.per == "second"
        yield {
            "component": component,
            "action": action,
            "cause": cause,
            "count": result.time_s if static else line.count,
            "per": line.per,
            "price": line.price,
            "price_unit": "W" if static else "pJ",
            "joules": line.joules,
            "share": line.joules / result.energy_j if result.energy_j else 0.0,
            "source": line.source,
        }


def energy_csv(result: RunResult) -> str:
    """Counts, prices and sources in one table. `count` x `price` are the energy; of static power, seconds x watts."""
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in energy_rows(result))
    return text.getvalue()


def throttle_words(throttle: Throttle, drawn_w: float) -> str:
    still = f", and {watts(drawn_w)} are drawn all the same" if drawn_w > throttle.limit_w else ""
    lower = f" at {throttle.voltage:.0%} of the voltage" if throttle.voltage < 1 else ""
    return (
        f"at {format_frequency(throttle.full_clock_hz)} this run would draw {watts(throttle.wanted_w)}, more than the "
        f"machine's limit of {watts(throttle.limit_w)}: the clock was lowered to {throttle.share:.1%}, "
        f"{format_frequency(throttle.clock_hz)}{lower}{still}"
    )


def energy_split(result: RunResult) -> dict[str, float]:
    """Joules by cause, memory level by level; the largest first. Empty without energy prices."""
    shares: dict[str, float] = {}
    for cause, actions in (result.energy_by_cause or {}).items():
        for action, line in actions.items():
            group = action.partition(".")[0] if cause == MEMORY else cause
            shares[group] = shares.get(group, 0.0) + line.joules
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table as lines, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def html_table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for a notebook."""
    head = "".join(f"<th style='text-align:left'>{escape(cell)}</th>" for cell in heads)
    style = "text-align:left;white-space:nowrap"
    lines = ("".join(f"<td style='{style}'>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
