"""A report as one HTML page: data, style and script in one file, and sections about a run around them.

The page of a whole model: its chart and table are over operations; phases, layers and memory follow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from hwsim.engine import BUSY, FEMTOSECONDS, Span, summed
from hwsim.record import ErrorBar, finite
from hwsim.result import RunResult, machine_of, workload_of
from hwsim.results.explanation import explain, peak_words, verdict
from hwsim.results.metrics import energy_split, shown, write
from hwsim.results.plot.diagram import as_svg, draw_machine
from hwsim.results.plot.style import LOOKS, look_of, series_looks
from hwsim.results.plot.timeline import assign_lanes, joined
from hwsim.spec.fields import as_yaml
from hwsim.units import data, digits, joules, percent, seconds, short, watts


@dataclass(frozen=True)
class Column:
    """One column of the table, which is also an axis of the chart."""

    name: str
    title: str
    unit: str = ""
    kind: str = "metric"
    """`axis` for what was chosen, `metric` for what came out."""
    varies: bool = True


@dataclass(frozen=True)
class PageRow:
    """One row: values by column; `at` has numbers for axes whose values are texts such as 64 KiB."""

    values: Mapping[str, Any]
    at: Mapping[str, float] = field(default_factory=dict)
    best: bool = False
    failed: str = ""


@dataclass(frozen=True)
class Page:
    """What a report says."""

    title: str
    subtitle: str
    words: Sequence[str]
    columns: Sequence[Column]
    lines: Sequence[PageRow]
    start: Mapping[str, str]
    """Which columns the chart starts with: x, y, and by for colours."""
    sections: Sequence[tuple[str, str]]
    """Title and HTML of what follows the table."""


def render_page(page: Page) -> str:
    """The whole file: no address in it is fetched."""
    here = files("hwsim.results")
    style = here.joinpath("report.css").read_text(encoding="utf-8")
    script = here.joinpath("report.js").read_text(encoding="utf-8")
    words = "".join(f"<p>{escape(text)}</p>" for text in page.words)
    sections = "".join(f"<section><h2>{escape(title)}</h2>{body}</section>" for title, body in page.sections)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(page.title)}</title><link rel="icon" href="data:,"><style>{style}</style></head><body>
<h1>{escape(page.title)}</h1><p class="faint">{escape(page.subtitle)}</p>
<section id="summary"><h2>In words</h2>{words}</section>
<section><h2>Chart</h2>{_CONTROLS}<div class="chart" id="chart"><div class="tip" id="tip"></div></div>
<div class="legend" id="legend"></div>
<p class="note">Point at a mark to read it; drag a box to look closer; double-click to see all.</p></section>
<section><h2>Table</h2><div class="controls"><input type="search" id="filter" aria-label="filter"
placeholder="filter, such as tile=32 fp32"><span class="note" id="shown"></span>
<span class="note">click a head to sort</span></div>
<div class="scroll"><table id="points"><thead></thead><tbody></tbody></table></div></section>
{sections}
<script type="application/json" id="data">{_data(page)}</script><script>{script}</script></body></html>
"""


_CONTROLS = """<div class="controls">
<label>across <select id="chart-x"></select></label><label>up <select id="chart-y"></select></label>
<label>colour by <select id="chart-by"></select></label>
<label><input type="checkbox" id="log-x" checked> logarithmic across</label>
<label><input type="checkbox" id="log-y" checked> logarithmic up</label>
<button id="whole">show all</button></div>"""


def _data(page: Page) -> str:
    """JSON that may stand inside a script element: nothing in it opens or ends an element or a comment."""
    names = {column.name for column in page.columns}
    told = [metric.name for metric in shown("plot") if metric.name in names]
    data = {
        "columns": [
            {"name": c.name, "title": c.title, "unit": c.unit, "kind": c.kind, "varies": c.varies} for c in page.columns
        ],
        "rows": [
            {"values": dict(line.values)}
            | ({"at": dict(line.at)} if line.at else {})
            | ({"best": True} if line.best else {})
            | ({"failed": line.failed} if line.failed else {})
            for line in page.lines
        ],
        "start": dict(page.start),
        "told": told,
        "colours": {name: look.colour if look.colour != "#F0E442" else "#B8A800" for name, look in LOOKS.items()},
    }
    text = json.dumps(finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1, said: bool = False) -> str:
    """A small table as it is; the first `words` columns are text, and with `said` the last has sentences."""
    kinds = ["word" if i < words else "" for i in range(len(heads))]
    if said:
        kinds[-1] = "said"
    top = "".join(f'<th class="{kind}">{escape(head)}</th>' for kind, head in zip(kinds, heads, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{escape(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def html_bars(shares: Mapping[str, tuple[float, str, str]]) -> str:
    """Bars below each other: share of the whole, what is written beside, colour."""
    most = max((share for share, _, _ in shares.values()), default=1.0) or 1.0
    lines = "".join(
        f"<span>{escape(name)}</span><span>"
        f'<span class="bar" style="--share:{share / most:.3f};background:{colour}"></span>{escape(text)}</span>'
        for name, (share, text, colour) in shares.items()
    )
    return f'<div class="bars">{lines}</div>'


def html_details(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


_FROM = 0.003
_LANES, _BARS = 16, 300


def run_page(result: RunResult, spans: Iterable[Span] = ()) -> Page:
    """A report of one run; its chart and table are over memory levels, those of a whole model over its operations."""
    if "model" in result.work.use:
        return model_page(result, spans)
    names = list(dict.fromkeys(name for counts in result.memory.values() for name in counts.to_dict()))
    units = {name: "B" if name.startswith("bytes") else "" for name in names}
    columns = [Column("level", "level", kind="axis")]
    columns += [Column(name, name.replace("_", " "), units[name]) for name in names]
    columns.append(Column("intensity", "arithmetic intensity"))
    lines = [
        PageRow({"level": level, **counts.to_dict(), "intensity": result.intensity.levels.get(level)})
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
    for metric in shown("html"):
        value = metric.of(result)
        if metric.name == "time_s":
            speed = peak_words(result)
            yield f"It takes {_barred(result.time, seconds)} ({result.cycles:,} cycles)" + (
                f": {speed}." if speed else "."
            )
        elif metric.name == "energy_j" and result.energy_j is not None and result.power_w is not None:
            split = energy_split(result)
            most = next(iter(split), "")
            share = f"; the largest part, {percent(split[most], result.energy_j)}, is {most}" if most else ""
            energy, power = _barred(result.energy_bar, joules), _barred(result.power_bar, watts)
            yield f"It uses {energy}, {power} on average{share}."
        elif value is not None:
            yield f"{metric.title[:1].upper()}{metric.title[1:]}: {write(metric.name, value)}."
    yield from bar_sentences(result)
    yield explain(result).bound.words
    yield verdict(result)[:1].upper() + verdict(result)[1:] + "."
    yield from result.warnings


def _barred(bar: ErrorBar | None, written: Callable[[float], str]) -> str:
    """A number with its error bar, where it has one."""
    assert bar is not None
    return f"{written(bar.value)} {bar.words}" if bar.is_known else written(bar.value)


def bar_sentences(result: RunResult) -> Iterator[str]:
    """What the error bars rest on, and what is exact."""
    for name, bar in (("Time", result.time_bar), ("Energy", result.energy_bar)):
        if bar is not None and bar.ends is not None:
            ends = " to ".join(write("time_s" if bar.unit == "s" else "energy_j", end) for end in bar.ends)
            yield f"{name}: {bar.coverage:.0%} of such measurements lie from {ends} ({bar.source})."
        elif bar is not None:
            yield f"{name}: {bar.source}."
    yield f"Exact: {result.bars.exact}."


def run_sections(result: RunResult, spans: Iterable[Span]) -> Iterator[tuple[str, str]]:
    """Everything about one run, section by section."""
    machine = machine_of(result)
    yield "Where time and energy went", f'<div class="two"><div>{_time(result)}</div><div>{_energy(result)}</div></div>'
    label = f"{result.machine} with the traffic of {result.workload}"
    yield "The machine, and what moved", f'<div class="wide">{as_svg(draw_machine(machine, result), label)}</div>'
    line = timeline_svg(spans)
    if line:
        yield "Timeline", line
    if result.tensors:
        yield "Tensors", _tensors(result)
    if result.formulas:
        rows = [
            (str(row.name), str(row.expression), digits(row.predicted), digits(row.simulated), row.reason)
            for row in result.formulas
        ]
        yield (
            "Predicted and simulated",
            html_table(("formula", "", "predicted", "simulated", "why they differ"), rows, 2, said=True),
        )
    yield (
        "Inputs and sources",
        html_details("the machine, with every default and source", as_yaml(machine))
        + html_details("the workload, with every default", as_yaml(workload_of(result))),
    )


def _time(result: RunResult) -> str:
    why = explain(result)
    together = summed(result.attribution)
    whole = sum(together.values()) or 1
    shares = {
        why.part(name): (cycles / whole, percent(cycles, whole), "#0072B2" if kind == BUSY else "#D55E00")
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
    levels = list(dict.fromkeys(level for facts in result.tensors.values() for level in facts.misses))
    rows = [
        (name, data(facts.bytes), f"{facts.loads:,}", f"{facts.stores:,}",
         *(f"{facts.misses.get(level, 0):,}" for level in levels))
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
    return "".join(['<div class="wide">', *parts, "</svg></div>", more])


MODEL = "model"
"""The key under which a result of a model has what only models have."""
COLUMNS = (
    Column("operation", "operation", kind="axis"),
    Column("phase", "phase", kind="axis"),
    Column("time_s", "time", "s"),
    Column("share", "share of time", "%"),
    Column("energy_j", "energy", "J"),
    Column("energy_share", "share of energy", "%"),
    Column("power_w", "power", "W"),
    Column("times", "times"),
    Column("op", "op", kind="axis"),
    Column("bound", "bound by", kind="axis"),
)
BLUE, ORANGE = "#0072B2", "#D55E00"


def model_page(result: RunResult, spans: Iterable[Span] = ()) -> Page:
    """What a model costs, by phase, layer and operation."""
    about = result.work.use[MODEL]
    active = about["active_parameters"]
    met = f", {short(active)} of them met by a token" if active < 0.9 * about["parameters"] else ""
    held = f"It has {short(about['parameters'])} parameters{met}, and needs {data(about['memory']['total'])} of memory"
    formats = dict.fromkeys((about["weights"], about["activations"], about["kv"]))
    used = f"Batch {about['batch']:,}, {', '.join(formats)}, {about['kernels']} kernels."
    return Page(
        f"{result.workload} on {result.machine}",
        f"hwsim {result.version}, seed {result.seed}",
        [f"{held}: {_fit_words(result, about)}. {used}", *run_words(result)],
        COLUMNS,
        list(_operations(result, about)),
        {"x": "operation", "y": "time_s", "by": "phase"},
        [
            ("Phases", _phases(about)),
            ("Layers", _layers(result, about)),
            ("Memory", _memory(about)),
            *run_sections(result, spans),
        ],
    )


def _fit_words(result: RunResult, about: Mapping[str, Any]) -> str:
    fit = about["fit"]
    if fit["has"] is None:
        return f"{result.machine} does not say how much it has"
    share = f"{percent(about['memory']['total'], fit['has'])} of what {result.machine} has"
    return share if fit["fits"] else f"{share}, so that it does not fit"


def _part(phase: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Forward, backward and update of a step of training are phases to a reader."""
    return str(row["part"] if phase["name"] == "train" else phase["name"])


def _operations(result: RunResult, about: Mapping[str, Any]) -> Iterator[PageRow]:
    rows = [(_part(phase, row), row, phase["joules"]) for phase in about["phases"] for row in phase["operations"]]
    for part, row, priced in sorted(rows, key=lambda each: -each[1]["seconds"]):
        spent = row["joules"] if priced is not None else None
        whole = result.energy_j or 0.0
        yield PageRow({
            "operation": f"{row['block']}.{row['name']}", "phase": part, "op": row["op"], "bound": row["bound"],
            "times": row["repeat"], "time_s": row["seconds"], "share": row["seconds"] / result.time_s,
            "energy_j": spent, "energy_share": None if spent is None or not whole else spent / whole,
            "power_w": None if spent is None or not row["seconds"] else spent / row["seconds"],
        })  # fmt: skip


def _phases(about: Mapping[str, Any]) -> str:
    rows = []
    for phase in about["phases"]:
        steps, spent = max(1.0, phase["steps"]), phase["joules"]
        rows.append((phase["name"], f"{steps:,.0f}", seconds(phase["seconds"] / steps), seconds(phase["seconds"]),
                     "–" if spent is None else joules(spent), f"{phase['kernels']:,}"))  # fmt: skip
    return html_table(("phase", "steps", "time of one", "time", "energy", "kernels of one"), rows)


@dataclass
class _LayerSum:
    """All operations of a block in one phase."""

    repeat: int
    seconds: float = 0.0
    joules: float = 0.0


def _layers(result: RunResult, about: Mapping[str, Any]) -> str:
    sums: dict[tuple[str, str], _LayerSum] = {}
    for phase in about["phases"]:
        for row in phase["operations"]:
            own = sums.setdefault((_part(phase, row), row["block"]), _LayerSum(row["repeat"]))
            own.seconds += row["seconds"]
            own.joules += row["joules"]
    several = len({part for part, _ in sums}) > 1
    names = {key: f"{key[0]}: {key[1]}" if several else key[1] for key in sums}
    time = {names[key]: (own.seconds / result.time_s, seconds(own.seconds), BLUE) for key, own in sums.items()}
    left = "<p><b>Time</b> by layer, all repetitions together</p>" + html_bars(time)
    right = ""
    if result.energy_j:
        spent = {names[key]: (own.joules / result.energy_j, joules(own.joules), ORANGE) for key, own in sums.items()}
        right = "<p><b>Energy</b> by layer</p>" + html_bars(spent)
    rows = [
        (part, block, f"{own.repeat:,}", seconds(own.seconds), seconds(own.seconds / own.repeat),
         percent(own.seconds, result.time_s), joules(own.joules) if result.energy_j else "–",
         percent(own.joules, result.energy_j) if result.energy_j else "–")
        for (part, block), own in sums.items()
    ]  # fmt: skip
    heads = ("phase", "layer", "times", "time", "time of one", "share", "energy", "share")
    return f'<div class="two"><div>{left}</div><div>{right}</div></div>' + html_table(heads, rows, 2)


def _memory(about: Mapping[str, Any]) -> str:
    total = about["memory"]["total"]
    parts = {name: size for name, size in about["memory"].items() if size and name != "total"}
    shares = {
        name.replace("_", " "): (size / total, f"{data(size)}, {percent(size, total)}", BLUE)
        for name, size in parts.items()
    }
    fit, each = about["fit"], about["kv_bytes_per_token"]
    words = f"{data(total)} in all"
    words += f"; {data(each)} of the cache for each token" if each else ""
    words += f"; a batch of up to {fit['largest_batch']:,} fits" if fit["largest_batch"] else ""
    return f"<p>{words}.</p>{html_bars(shares)}"
