"""A result in words: why it took so long, as its target tells it; what passes between operations; a summary."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from importlib import import_module

from hwsim.error_bar import NEVER_MARK, ErrorBar
from hwsim.memory.counters import CacheCounters
from hwsim.numerics.error import BEFORE, NumericError, NumericReport
from hwsim.numerics.format import FORMATS
from hwsim.result import RunResult, bytes_moved, machine_of
from hwsim.results.metrics import about, shown, write
from hwsim.spec.workload import workload_model
from hwsim.target import Why, find_target
from hwsim.text import data, percent, rate


def explain(result: RunResult) -> Why:
    """What decided the time of a run, worked out once for each result."""
    found: Why | None = result.__dict__.get("why")
    if found is None:
        runner = workload_model(result.resolved.workload.get("op")).runner
        found = find_target(machine_of(result)).why(result) if runner is None else import_module(runner).explain(result)
        assert found is not None
        result.__dict__["why"] = found  # beside the fields: not part of the result, of JSON, or of what is compared
    return found


@dataclass(frozen=True)
class Edge:
    """A tensor between two stages."""

    tensor: str
    producer: str
    consumer: str
    bytes: int
    """Size of the tensor."""
    loads: int
    """Elements of it that the consumer loaded."""
    misses: dict[str, int]
    """Lines of it that each cache did not have when the consumer asked for them."""


def find_edges(result: RunResult) -> tuple[Edge, ...]:
    """Every tensor that one stage stored and a later one loaded, in the order of the stages."""
    made: dict[str, str] = {}
    edges = []
    for stage in result.stages:
        for name, traffic in stage.tensors.items():
            if traffic.loads and made.get(name, stage.name) != stage.name:
                size = result.tensors[name].bytes
                misses = {level: traffic.misses[level] for level in result.caches if level in traffic.misses}
                edges.append(Edge(name, made[name], stage.name, size, traffic.loads, misses))
            if traffic.stores:
                made[name] = stage.name
    return tuple(edges)


_LEFT = "style='text-align:left'"


def summary_lines(result: RunResult) -> list[str]:
    """What ran, then one line each for time, energy, memory, and what it is bound by."""
    rows = _rows(result)
    width = max(len(name) for name, _ in rows)
    lines = [f"RunResult: {result.workload} on {result.machine}"]
    return lines + [f"  {name:<{width}}  {text}" for name, text in rows]


def summary_html(result: RunResult) -> str:
    """The same as a small table."""
    head = f"<b>{escape(result.workload)}</b> on <b>{escape(result.machine)}</b>"
    rows = "".join(
        f"<tr><th {_LEFT}>{escape(name)}</th><td {_LEFT}>{escape(text)}</td></tr>" for name, text in _rows(result)
    )
    return f"<div>{head}<table>{rows}</table></div>"


def verdict(result: RunResult) -> str:
    """Whether the answer is right, and how far off it is; the rounding of the inputs counted in."""
    if result.error is None:
        return "not verified: ran without math"
    if result.verified is None:
        return f"computed in part: rms {result.error.rms_rel:.1e} off float64"
    if not result.verified:
        return f"WRONG ANSWER: {_sizes(result.error)} vs NumPy float64{_range_hint(result)}"
    if result.numeric is None or result.numeric.inputs != BEFORE:
        return f"verified: {_sizes(result.error)} vs NumPy float64"
    return f"verified: {_sizes(result.numeric)} vs NumPy float64, input rounding included"


def _sizes(error: NumericError | NumericReport) -> str:
    return f"max rel err {error.max_rel:.1e}, rms {error.rms_rel:.1e}"


def _range_hint(result: RunResult) -> str:
    """Whole numbers without a scale wrap around where a result needs more bits than they have."""
    workload = result.resolved.get("workload", {})
    fmt = FORMATS.get(str(workload.get("precision")))
    if fmt is None or not fmt.is_integer or workload.get("scale") not in (None, "none"):
        return ""
    return f"; results beyond the range of {fmt.name} wrap around: give it a scale, scale=tensor"


def accuracy(result: RunResult) -> str:
    """What the error comes from, where inputs were rounded; nothing where they were not."""
    report = result.numeric
    if report is None or result.error is None or report.inputs != BEFORE:
        return ""
    lost = [(report.saturated, "saturated"), (report.flushed, "flushed to zero")]
    words = "".join(f", {100 * share:.2g} % {what}" for share, what in lost if share)
    return f"of it the arithmetic alone: {_sizes(result.error)}; signal to noise {report.snr_db:.1f} dB{words}"


def peak_words(result: RunResult) -> str:
    """``2.1 GFLOP/s, 6.6 % of the peak of 1 core (32 GFLOP/s)``; nothing where nothing is computed."""
    if not result.work.flops:
        return ""
    speed, peak = result.work.flops_per_s, result.work.peak_flops_per_s
    why = explain(result)
    of_peak = f"{percent(speed, peak)} of the peak of {why.peak}"
    return f"{rate(speed, why.operation)}, {of_peak} ({rate(peak, why.operation)})"


def bar_of(metric: str, result: RunResult) -> ErrorBar | None:
    """The error bar of a metric; None where it has none, as exact counts do."""
    return {"time_s": result.time_bar, "energy_j": result.energy_bar, "power_w": result.power_bar}.get(metric)


def with_bar(metric: str, result: RunResult) -> str:
    """A metric with its error bar where it has one: ``4.24 ms ± 9 %``; with a mark where it was never compared."""
    text, bar = write(metric, about(metric).of(result)), bar_of(metric, result)
    return text if bar is None else f"{text} {bar.words if bar.is_known else NEVER_MARK}"


def bar_sources(result: RunResult) -> str:
    """What the bars of time and energy rest on, once where that is the same."""
    energy = result.energy_bar
    if energy is None or energy.source == result.time.source:
        return result.time.source
    return f"time: {result.time.source}; energy: {energy.source}"


def _barred(metric: str, result: RunResult) -> str:
    """A metric with its error bar where it has one, and without a mark where it was never compared."""
    bar = bar_of(metric, result)
    return with_bar(metric, result) if bar is None or bar.is_known else write(metric, about(metric).of(result))


def _rows(result: RunResult) -> list[tuple[str, str]]:
    rows = [("answer", verdict(result)), *([("accuracy", accuracy(result))] if accuracy(result) else [])]
    for metric in shown("repr"):
        value = metric.of(result)
        if value is not None:
            rows.append((metric.title, ", ".join([_barred(metric.name, result), *_beside(metric.name, result)])))
    rows.append(("memory", ", ".join(_level(name, result) for name in result.memory)))
    rows += [("bars", bar_sources(result)), ("exact", result.bars.exact)]
    rows.append(("why", explain(result).bound.words))
    return rows + [("warning", text) for text in result.warnings]


def _beside(metric: str, result: RunResult) -> list[str]:
    """What is said in one breath with a metric."""
    if metric == "time_s":
        return [f"{result.cycles:,} cycles", *([words] if (words := peak_words(result)) else [])]
    return [f"{_barred('power_w', result)} on average"] if metric == "energy_j" and result.power_w is not None else []


def _level(name: str, result: RunResult) -> str:
    counts = result.memory[name]
    if isinstance(counts, CacheCounters):
        return f"{name} {percent(counts.hits, counts.accesses)} hits"
    return f"{name} {data(bytes_moved(counts))}"
