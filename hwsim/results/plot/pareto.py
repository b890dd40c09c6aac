"""Two metrics against each other, a third as size: who is beaten by nobody?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.results.metrics import about, write
from hwsim.results.plot.file import save_plot
from hwsim.results.plot.series import series_looks
from hwsim.results.plot.style import FAINT, TEXT, plot_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMED = 14


@dataclass(frozen=True)
class Dot:
    """One point of a sweep."""

    x: float
    y: float
    third: float | None
    label: str
    group: str
    front: bool


def plot_pareto(
    dots: Sequence[Dot], metrics: Sequence[str], path: Path | None = None, title: str = "", groups_are: str = ""
) -> Figure:
    """The front as a line through its points, which are named; all others pale. `metrics`: x, y and perhaps a third."""
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(dot.group for dot in dots))
    looks = series_looks(groups)
    with plot_style():
        figure = Figure(figsize=(7.6, 5.0), layout="constrained")
        axes = figure.subplots()
        sizes = _sizes(dots)
        for group in groups:
            own = [(dot, size) for dot, size in zip(dots, sizes, strict=True) if dot.group == group]
            for front in (False, True):
                chosen = [(dot, size) for dot, size in own if dot.front == front]
                axes.scatter(
                    [dot.x for dot, _ in chosen], [dot.y for dot, _ in chosen], s=[size for _, size in chosen],
                    color=looks[group].colour, marker=looks[group].marker, alpha=0.95 if front else 0.3,
                    edgecolors="white", linewidths=0.7, zorder=4 if front else 2,
                    label=group if chosen and (front or not any(dot.front for dot, _ in own)) else None,
                )  # fmt: skip
        for values, setter in (([d.x for d in dots], axes.set_xscale), ([d.y for d in dots], axes.set_yscale)):
            if values and min(values) > 0 and max(values) / min(values) > 8:
                setter("log")
        _draw_front(axes, [dot for dot in dots if dot.front])
        axes.xaxis.set_major_formatter(lambda value, _: write(metrics[0], value))
        axes.yaxis.set_major_formatter(lambda value, _: write(metrics[1], value))
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
        axes.set_xlabel(about(metrics[0]).title)
        axes.set_ylabel(about(metrics[1]).title)
        axes.grid(color="#EEEEEE", linewidth=0.8)
        axes.set_axisbelow(True)
        if title:
            axes.set_title(title)
        if len(groups) > 1:
            legend = axes.legend(title=groups_are or None, frameon=False, fontsize=9, loc="best")
            for handle in legend.legend_handles:
                if handle is not None and hasattr(handle, "set_sizes"):
                    handle.set_sizes([45])
        if len(metrics) > 2:
            words = f"size: {about(metrics[2]).title}, larger is worse"
            axes.annotate(words, (1, 0), (-4, 6), "axes fraction", "offset points", ha="right", color=FAINT, fontsize=9)
        if path is not None:
            save_plot(figure, path)
    return figure


def _draw_front(axes: Axes, front: Sequence[Dot]) -> None:
    ordered = sorted(front, key=lambda dot: (dot.x, dot.y))
    axes.plot([dot.x for dot in ordered], [dot.y for dot in ordered], color=FAINT, linewidth=1.0, zorder=3)
    distinct: dict[tuple[float, float], list[str]] = {}
    for dot in ordered:
        distinct.setdefault((dot.x, dot.y), []).append(dot.label)
    for number, ((x, y), labels) in enumerate(list(distinct.items())[:_NAMED]):
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        above = number % 2 == 0
        axes.annotate(
            labels[0] + more,
            (x, y),
            (7, 6 if above else -11),
            textcoords="offset points",
            fontsize=8,
            color=TEXT,
            zorder=5,
        )


def _sizes(dots: Sequence[Dot]) -> list[float]:
    """Areas between 30 and 170, by the logarithm of the third metric; zero is smallest."""
    values = [dot.third for dot in dots if dot.third]
    if not values or max(values) == min(values):
        return [55.0] * len(dots)
    low, high = log10(min(values)), log10(max(values))
    return [30.0 if not dot.third else 40 + 130 * (log10(dot.third) - low) / (high - low) for dot in dots]
