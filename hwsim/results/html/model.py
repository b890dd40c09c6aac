"""The page of a whole model: its chart and table are over operations; phases, layers and memory follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hwsim.engine.outcome import Span
from hwsim.result import RunResult
from hwsim.results.html.page import Column, Page, PageRow, html_bars, html_table, run_sections, run_words
from hwsim.text import data, joules, percent, seconds, short

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
