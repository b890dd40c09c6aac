"""Plots of several devices: a collective over its size, and the knee of a served model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.results.plot.style import FAINT, TEXT, canvas, series_looks
from hwsim.text import data, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
