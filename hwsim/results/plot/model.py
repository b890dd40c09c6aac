"""Plots of whole models and of several devices: operations, phases and memory; collectives; the knee of serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.result import RunResult
from hwsim.results.plot.style import BAR, FAINT, TEXT, canvas, series_looks
from hwsim.text import data, joules, percent, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 10
COLOURS = {
    "arithmetic": "#0072B2",
    "starting kernels": "#BBBBBB",
    "overhead inside kernels": "#888888",
}
BANDWIDTH, OTHER = "#D55E00", "#CC79A7"
PARTS = {"weights": "#0072B2", "gradients": "#56B4E9", "optimizer": "#999933", "activations": "#009E73",
         "workspace": "#BBBBBB", "kv_cache": "#D55E00"}  # fmt: skip


def plot_model(result: RunResult, path: Path | None = None) -> Figure:
    """A panel for each phase, and one for memory."""
    about = result.work.use["model"]
    phases = about["phases"]
    rows = [min(MOST_ROWS + 1, len(phase["operations"])) for phase in phases]
    height = 1.6 + 0.30 * max(rows) * 1.0
    with canvas((5.2 * (len(phases) + 1), height + 0.9), path) as figure:
        panels = figure.subplots(1, len(phases) + 1, squeeze=False)[0]
        for axes, phase in zip(panels, phases, strict=False):
            _draw_phase(axes, phase)
        _draw_memory(panels[-1], about)
        energy = f", {joules(result.energy_j)}" if result.energy_j is not None else ""
        figure.suptitle(
            f"{result.workload} on {result.machine}: {seconds(result.time_s)}{energy}", x=0.01, ha="left",
            fontweight="bold",
        )  # fmt: skip
    return figure


def _draw_phase(axes: Axes, phase: dict[str, Any]) -> None:
    """Its operations, the longest first; the colour is what bounds each."""
    ordered = sorted(phase["operations"], key=lambda row: -row["seconds"])
    shown, rest = ordered[:MOST_ROWS], ordered[MOST_ROWS:]
    steps = max(1.0, phase["steps"])
    names = [_name(row) for row in shown]
    values = [row["seconds"] / steps for row in shown]
    colours = [_colour(row["bound"]) for row in shown]
    if rest:
        names.append(f"{len(rest)} more")
        values.append(sum(row["seconds"] for row in rest) / steps)
        colours.append(FAINT)
    places = range(len(names))
    axes.barh(places, [value * 1e3 for value in values], 0.7, color=colours)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    whole = phase["seconds"] / steps
    for place, value in zip(places, values, strict=True):
        axes.annotate(percent(value, whole), (value * 1e3, place), (4, 0), textcoords="offset points", va="center",
                      color=TEXT, fontsize=8)  # fmt: skip
    spent = "" if phase["joules"] is None else f", {joules(phase['joules'] / steps)}"
    what = "a step" if phase["name"] == "decode" else "in all"
    axes.set_title(f"{phase['name']}: {seconds(whole)}{spent} {what}")
    axes.set_xlabel("milliseconds")
    axes.margins(x=0.16)
    handles = _legend(axes, [row["bound"] for row in shown])
    if handles:
        axes.legend(*handles, loc="lower right", frameon=False, fontsize=8, title="bound by", title_fontsize=8)


def _name(row: dict[str, Any]) -> str:
    part = "" if row["part"] == "forward" else f" ({row['part']})"
    return f"{row['block']}.{row['name']}{part}"


def _colour(bound: str) -> str:
    return COLOURS.get(bound) or (BANDWIDTH if bound.startswith("bandwidth") else OTHER)


def _legend(axes: Axes, bounds: list[str]) -> tuple[list[Any], list[str]] | None:
    from matplotlib.patches import Patch

    groups: dict[str, str] = {}
    for bound in bounds:
        name = "bandwidth" if bound.startswith("bandwidth") else bound if bound in COLOURS else "other"
        groups[name] = _colour(bound)
    return [Patch(color=colour) for colour in groups.values()], list(groups)


def _draw_memory(axes: Axes, about: dict[str, Any]) -> None:
    """Weights stay, keys and values grow with every token; of training, the parts as bars."""
    memory, has = about["memory"], about["fit"]["has"]
    parts = {name: size for name, size in memory.items() if size and name != "total"}
    if about["kv_bytes_per_token"] and "kv_cache" in parts:
        first, last = 0, about["prompt"] + about["generate"]
        places = [first, about["prompt"], last]
        share = [0.0, about["prompt"] / last, 1.0]
        below = [0.0] * 3
        for name, size in parts.items():
            tops = [b + size * (s if name == "kv_cache" else 1.0) / 1e9 for b, s in zip(below, share, strict=True)]
            axes.fill_between(places, below, tops, color=PARTS.get(name, BAR), label=name.replace("_", " "),
                              linewidth=0)  # fmt: skip
            below = tops
        axes.set_xlabel(f"tokens of each of {about['batch']:,} sequences")
        axes.set_ylabel("GB")
    else:
        below = [0.0]
        for name, size in parts.items():
            axes.bar(["memory"], [size / 1e9], 0.5, bottom=below, color=PARTS.get(name, BAR),
                     label=name.replace("_", " "))  # fmt: skip
            below = [below[0] + size / 1e9]
        axes.set_ylabel("GB")
    axes.set_title(f"memory: {data(memory['total'])}")
    top = axes.get_ylim()[1]
    if has is not None and has / 1e9 < 3 * top:
        axes.axhline(has / 1e9, color=TEXT, linewidth=1, linestyle="--")
        axes.annotate(f"the machine has {data(has)}", (0.02, has / 1e9), (0, 3), xycoords=("axes fraction", "data"),
                      textcoords="offset points", fontsize=8, color=TEXT)  # fmt: skip
        axes.set_ylim(0, max(top, 1.1 * has / 1e9))
    axes.legend(loc="lower right", facecolor="white", framealpha=0.85, edgecolor="none", fontsize=8)


Points = Sequence[tuple[float, float]]


def plot_collective(lines: Mapping[str, Points], path: Path | None = None, title: str = "") -> Figure:
    """Seconds over bytes, a line for each kernel; the one that is taken lies below them all."""
    looks = series_looks(lines)
    with canvas((7.6, 4.8), path) as figure:
        axes = figure.subplots()
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for name, points in lines.items():
            taken = name == "fastest"
            x, y = zip(*points, strict=True)
            axes.plot(
                x, y, label=name, color=TEXT if taken else looks[name].colour, linewidth=6 if taken else 1.8,
                alpha=0.18 if taken else 1.0, linestyle="-" if taken else looks[name].dash,
                marker="" if taken else looks[name].marker, markersize=5, solid_capstyle="round",
            )  # fmt: skip
        axes.xaxis.set_major_formatter(lambda value, _: data(value))
        axes.yaxis.set_major_formatter(lambda value, _: seconds(value))
        axes.set_xlabel("size of the buffer")
        axes.set_ylabel("time")
        axes.grid(color="#EEEEEE", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=9)
        axes.set_title(title)
    return figure


def plot_knee(
    loads: Sequence[tuple[str, float, float, float]], path: Path | None = None, title: str = "", knee: str = ""
) -> Figure:
    """Time per output token over throughput, a point for each load: (label, tokens/s, p50 s, p99 s)."""
    with canvas((7.6, 4.8), path) as figure:
        axes = figure.subplots()
        x = [rate for _, rate, _, _ in loads]
        middles, tails = [1e3 * middle for _, _, middle, _ in loads], [1e3 * tail for _, _, _, tail in loads]
        for y, name, colour, marker in ((middles, "median", "#0072B2", "o"), (tails, "p99", "#D55E00", "s")):
            axes.plot(x, y, marker=marker, color=colour, label=name, linewidth=1.8)
        for label, rate, middle, _ in loads:
            axes.annotate(
                label, (rate, 1e3 * middle), (7, -11), textcoords="offset points", ha="left", fontsize=8.5,
                color=TEXT if label == knee else FAINT, fontweight="bold" if label == knee else "normal",
            )  # fmt: skip
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.set_xlabel("output tokens per second, all users together")
        axes.set_ylabel("milliseconds per output token")
        axes.grid(color="#EEEEEE", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=9, loc="upper left")
        axes.set_title(title)
    return figure
