"""A result in a few lines, for a Python prompt and for a notebook."""

from __future__ import annotations

from html import escape

from hwsim.hardware.counters import CacheCounters
from hwsim.results.result import RunResult
from hwsim.results.text import counted, data, joules, percent, rate, seconds, watts
from hwsim.results.verify import BEFORE
from hwsim.results.words import explain_bound

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
    """Whether the answer is right, and how far off it is."""
    if result.verified is None or result.error is None:
        return "not verified: ran without math"
    sizes = f"max rel err {result.error.max_rel:.1e}, rms {result.error.rms_rel:.1e} vs NumPy float64"
    return f"verified: {sizes}" if result.verified else f"WRONG ANSWER: {sizes}"


def accuracy(result: RunResult) -> str:
    """What the precision costs in accuracy, inputs counted in; nothing where they were not rounded."""
    report = result.numeric
    if report is None or report.inputs != BEFORE:
        return ""
    lost = [(report.saturated, "saturated"), (report.flushed, "flushed to zero")]
    words = "".join(f", {100 * share:.2g} % {what}" for share, what in lost if share)
    return f"rms error {report.rms_rel:.1e} with that of the inputs, {report.snr_db:.1f} dB{words}"


def peak_words(result: RunResult) -> str:
    """``2.1 GFLOP/s, 6.6 % of the peak of 1 core (32 GFLOP/s)``; nothing where nothing is computed."""
    if not result.work["flops"]:
        return ""
    speed, peak = result.work["flops_per_s"], result.work["peak_flops_per_s"]
    if "array" in result.work:
        arrays = counted(result.work["array"]["count"], "array")
        return f"{rate(speed, 'OP')}, {percent(speed, peak)} of the peak of {arrays} ({rate(peak, 'OP')})"
    if "gpu" in result.work:
        unit = result.resolved["machine"]["compute"][0]["name"]
        whole = f"{result.work['gpu']['count']} {unit}"
        return f"{rate(speed, 'FLOP')}, {percent(speed, peak)} of the peak of {whole} ({rate(peak, 'FLOP')})"
    cores = counted(result.work["cores"], "core")
    return f"{rate(speed, 'FLOP')}, {percent(speed, peak)} of the peak of {cores} ({rate(peak, 'FLOP')})"


def _rows(result: RunResult) -> list[tuple[str, str]]:
    speed = peak_words(result)
    rows = [
        ("answer", verdict(result)),
        *([("accuracy", accuracy(result))] if accuracy(result) else []),
        ("time", f"{seconds(result.time_s)}, {result.cycles:,} cycles" + (f", {speed}" if speed else "")),
    ]
    if result.energy_j is not None and result.power_w is not None:
        rows.append(("energy", f"{joules(result.energy_j)}, {watts(result.power_w)} on average"))
    rows.append(("memory", ", ".join(_level(name, result) for name in result.memory)))
    rows.append(("why", explain_bound(result).words))
    return rows + [("warning", text) for text in result.warnings]


def _level(name: str, result: RunResult) -> str:
    counts = result.memory[name]
    if isinstance(counts, CacheCounters):
        return f"{name} {percent(counts.hits, counts.accesses)} hits"
    return f"{name} {data(counts.bytes_read + counts.bytes_written)}"
