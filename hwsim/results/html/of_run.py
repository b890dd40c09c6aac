"""The parts of a report that are about one run: in words, where time and energy went, the machine, the timeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from hwsim.engine.outcome import FEMTOSECONDS, Span
from hwsim.results.attribution import BUSY, summed
from hwsim.results.diagram import as_svg, draw_machine
from hwsim.results.energy_split import energy_split
from hwsim.results.html.page import Column, Line, Page, html_bars, html_details, html_table
from hwsim.results.metrics import about, metrics_of, write
from hwsim.results.plot.series import series_looks
from hwsim.results.plot.style import look_of
from hwsim.results.plot.timeline import joined
from hwsim.results.resolved import machine_of, workload_of
from hwsim.results.result import RunResult
from hwsim.results.summary import peak_words, verdict
from hwsim.results.text import data, digits, joules, percent, seconds, watts
from hwsim.results.timeline import assign_lanes
from hwsim.results.words import explain_bound, part_words
from hwsim.spec.render import as_yaml

_FROM = 0.003
_LANES, _BARS = 16, 300


def run_page(result: RunResult, spans: Iterable[Span] = ()) -> Page:
    """A report of one run; its chart and table are over memory levels."""
    names = list(dict.fromkeys(name for counts in result.memory.values() for name in counts.to_dict()))
    units = {name: "B" if name.startswith("bytes") else "" for name in names}
    columns = [Column("level", "level", kind="axis")]
    columns += [Column(name, name.replace("_", " "), units[name]) for name in names]
    columns.append(Column("intensity", "operations per byte"))
    lines = [
        Line({"level": level, **counts.to_dict(), "intensity": result.intensity["levels"].get(level)})
        for level, counts in result.memory.items()
    ]
    return Page(
        f"{result.workload} on {result.machine}",
        f"hwsim {result.version}, seed {result.seed}",
        list(run_words(result)),
        columns,
        lines,
        {"x": "level", "y": "bytes_read", "by": "level"},
        list(run_sections(result, spans)),
    )


def run_words(result: RunResult) -> Iterator[str]:
    """What a run cost and why, in sentences."""
    speed = peak_words(result)
    yield f"It takes {seconds(result.time_s)} ({result.cycles:,} cycles)" + (f": {speed}." if speed else ".")
    if result.energy_j is not None and result.power_w is not None:
        split = energy_split(result)
        most = next(iter(split), "")
        share = f"; most of it, {percent(split[most], result.energy_j)}, is {most}" if most else ""
        yield f"It uses {joules(result.energy_j)}, {watts(result.power_w)} on average{share}."
    yield explain_bound(result).words
    yield verdict(result)[:1].upper() + verdict(result)[1:] + "."
    yield from result.warnings


def run_sections(result: RunResult, spans: Iterable[Span]) -> Iterator[tuple[str, str]]:
    """Everything about one run, section by section."""
    machine = machine_of(result)
    yield "Where time and energy went", f'<div class="two"><div>{_time(result)}</div><div>{_energy(result)}</div></div>'
    label = f"{result.machine} with the traffic of {result.workload}"
    yield "The machine, and what moved", as_svg(draw_machine(machine, result), label)
    line = timeline_svg(spans)
    if line:
        yield "Timeline", line
    if result.tensors:
        yield "Tensors", _tensors(result)
    if result.formulas:
        rows = [
            (
                str(row["name"]),
                str(row["expression"]),
                digits(row["predicted"]),
                digits(row["simulated"]),
                row["reason"],
            )
            for row in result.formulas
        ]
        yield (
            "Predicted and simulated",
            html_table(("formula", "", "predicted", "simulated", "why they differ"), rows, 2),
        )
    yield (
        "Inputs and sources",
        html_details("the machine, with every default and source", as_yaml(machine))
        + html_details("the workload, with every default", as_yaml(workload_of(result))),
    )


def metric_table(result: RunResult) -> str:
    rows = [(about(name).title, write(name, value)) for name, value in metrics_of(result).items() if value is not None]
    return html_table(("metric", "value"), rows)


def _time(result: RunResult) -> str:
    together = summed(result.attribution)
    whole = sum(together.values()) or 1
    shares = {
        part_words(name): (cycles / whole, percent(cycles, whole), "#0072B2" if kind == BUSY else "#D55E00")
        for (kind, name), cycles in together.items()
        if cycles >= _FROM * whole
    }
    return f"<p><b>Time</b> {seconds(result.time_s)}; blue: at work, orange: waiting</p>" + html_bars(shares)


def _energy(result: RunResult) -> str:
    split = energy_split(result)
    if not split or not result.energy_j:
        return "<p><b>Energy</b>: this machine has no energy prices.</p>"
    shares = {
        name: (amount / result.energy_j, f"{joules(amount)}, {percent(amount, result.energy_j)}", look_of(name).colour)
        for name, amount in split.items()
        if amount >= _FROM * result.energy_j
    }
    return f"<p><b>Energy</b> {joules(result.energy_j)}</p>" + html_bars(shares)


def _tensors(result: RunResult) -> str:
    levels = list(dict.fromkeys(level for facts in result.tensors.values() for level in facts["misses"]))
    rows = [
        (name, data(facts["bytes"]), f"{facts['loads']:,}", f"{facts['stores']:,}",
         *(f"{facts['misses'].get(level, 0):,}" for level in levels))
        for name, facts in result.tensors.items()
    ]  # fmt: skip
    return html_table(("tensor", "size", "loads", "stores", *(f"misses in {level}" for level in levels)), rows)


def timeline_svg(spans: Iterable[Span]) -> str:
    """What held which resource when; nothing where nothing was recorded."""
    lanes = assign_lanes(spans)
    if not lanes:
        return ""
    shown = dict(list(lanes.items())[:_LANES])
    end = max(span.end_fs for held in lanes.values() for span in held)
    looks = series_looks(dict.fromkeys(span.name for held in shown.values() for span in held))
    left, width, pitch = 190, 760, 24
    height = pitch * len(shown) + 26
    parts = [f'<svg class="timeline" viewBox="0 0 {left + width + 60} {height}" role="img" aria-label="timeline">']
    for row, (lane, held) in enumerate(shown.items()):
        y = row * pitch
        parts.append(f'<text x="{left - 8}" y="{y + 15}" text-anchor="end" font-size="12">{escape(lane)}</text>')
        for name in dict.fromkeys(span.name for span in held):
            for start, stop in joined([span for span in held if span.name == name], end, _BARS):
                words = f"{name}: {seconds(start / FEMTOSECONDS)} to {seconds(stop / FEMTOSECONDS)}"
                parts.append(
                    f'<rect x="{left + width * start / end:.1f}" y="{y + 3}" height="{pitch - 6}" '
                    f'width="{max(0.6, width * (stop - start) / end):.1f}" fill="{looks[name].colour}">'
                    f"<title>{escape(words)}</title></rect>"
                )
        busy = sum(span.end_fs - span.start_fs for span in held)
        parts.append(
            f'<text x="{left + width + 6}" y="{y + 15}" font-size="12" fill="#555">{percent(busy, end)}</text>'
        )
    for tick in range(6):
        x, words = left + width * tick / 5, seconds(end * tick / 5 / FEMTOSECONDS)
        parts.append(
            f'<text x="{x:.0f}" y="{height - 6}" font-size="12" text-anchor="middle" fill="#555">{words}</text>'
        )
    more = f'<p class="note">{len(shown)} of {len(lanes)} lanes</p>' if len(lanes) > len(shown) else ""
    return "".join([*parts, "</svg>", more])
