"""The ladder: versions of one computation with their time, speed-up, and energy by what it went into."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.energy import STATIC
from hwsim.results.energy_split import energy_split
from hwsim.results.plot.file import save_plot
from hwsim.results.plot.style import BAR, FAINT, TEXT, look_of, plot_style
from hwsim.results.result import RunResult
from hwsim.results.text import joules, ratio, seconds
from hwsim.results.words import explain_bound

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT = 0.62
_ORDER = ("arithmetic", "operand supply", "control", "l1", "l2", "l3", "dram")


def plot_ladder(rungs: Mapping[str, RunResult], path: Path | None = None, title: str = "") -> Figure:
    """Bars of time on a logarithmic axis, and the energy of what happens; the first rung is the baseline."""
    from matplotlib.figure import Figure

    with plot_style():
        figure = Figure(figsize=(9.6, 1.25 + 0.62 * len(rungs)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": [1.15, 1], "wspace": 0.04})
        _draw_time(left, rungs)
        _draw_energy(right, rungs)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        if path is not None:
            save_plot(figure, path)
    return figure


def _draw_time(axes: Axes, rungs: Mapping[str, RunResult]) -> None:
    results = list(rungs.values())
    slowest, fastest = max(r.time_s for r in results), min(r.time_s for r in results)
    start = 10 ** _floor_log(fastest / 3)
    rows = range(len(results))
    axes.barh(rows, [r.time_s - start for r in results], _HEIGHT, left=start, color=BAR)
    axes.set_xscale("log")
    axes.set_xlim(start, slowest * 8)
    for row, result in enumerate(results):
        speedup = ratio(results[0].time_s / result.time_s) if row else "1×"
        beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontweight": "bold"}
        axes.annotate(seconds(result.time_s), (result.time_s, row), (5, 0), **beside)
        axes.annotate(speedup, (start, row), (6, 0), color="white", **beside)
    axes.set_title("Time, and speed-up")
    axes.xaxis.set_major_formatter(lambda value, _: seconds(value))
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.set_yticks(list(rows), [""] * len(results))
    axes.invert_yaxis()
    for row, (name, result) in enumerate(rungs.items()):
        place: dict[str, Any] = {
            "xycoords": ("axes fraction", "data"),
            "textcoords": "offset points",
            "ha": "right",
        }
        axes.annotate(name, (0, row), (-8, 1), va="bottom", fontweight="bold", **place)
        axes.annotate(
            f"bound by {explain_bound(result).short}",
            (0, row),
            (-8, -2),
            va="top",
            fontsize=8,
            color=FAINT,
            **place,
        )


def _draw_energy(axes: Axes, rungs: Mapping[str, RunResult]) -> None:
    """Static power times time would hide everything else: it is written beside the bar."""
    splits = [energy_split(result) for result in rungs.values()]
    names = [name for name in dict.fromkeys((*_ORDER, *(n for split in splits for n in split))) if name != STATIC]
    names = [name for name in names if any(split.get(name) for split in splits)]
    dynamic = [sum(split.get(name, 0.0) for name in names) for split in splits]
    ends = [0.0] * len(splits)
    for name in names:
        look = look_of(name)
        widths = [split.get(name, 0.0) for split in splits]
        axes.barh(
            range(len(splits)), widths, _HEIGHT, left=ends, color=look.colour, hatch=look.hatch,
            edgecolor="white", linewidth=0.4, label=name,
        )  # fmt: skip
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for row, (total, split) in enumerate(zip(dynamic, splits, strict=True)):
        beside: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
        own = axes.annotate(joules(total), (total, row), (5, 0), fontweight="bold", color=TEXT, **beside)
        if STATIC in split:
            words = f"+ {joules(split[STATIC])} static"
            axes.annotate(words, (1, 0.5), (5, 0), xycoords=own, color=FAINT, **beside)
    most = max(dynamic, default=0.0) or 1.0
    axes.set_xlim(0, most * 1.7)
    ticks = [tick for tick in axes.get_xticks() if tick <= most * 1.05]
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(lambda value, _: joules(value))
    axes.tick_params(axis="y", labelleft=False)
    axes.set_title("Dynamic energy")
    axes.legend(loc="lower right", frameon=False, fontsize=8.5, handlelength=1.6, handleheight=1.0, borderaxespad=0)


def _floor_log(value: float) -> int:
    return floor(log10(value))
