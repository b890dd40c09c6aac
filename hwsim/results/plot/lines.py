"""Metrics over one axis, a line for each value of another: time and energy over tile, one line per precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.results.metrics import about, write
from hwsim.results.plot.file import save_plot
from hwsim.results.plot.series import Series, series_looks, spread
from hwsim.results.plot.style import FAINT, plot_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOG_FROM = 8.0
"""An axis whose values differ by more than this factor is logarithmic."""


@dataclass(frozen=True)
class Line:
    """One line: its name, and a value of each metric at each place; places are numbers or words."""

    name: str
    places: tuple[Any, ...]
    numbers: tuple[float, ...]
    values: Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True)
class Mark:
    """A place on the axis that means something for one line, in a named row below the plot."""

    line: str
    row: str
    number: float


def plot_lines(
    lines: Sequence[Line],
    metrics: Sequence[str],
    axis: str,
    path: Path | None = None,
    *,
    title: str = "",
    marks: Sequence[Mark] = (),
    lines_are: str = "",
) -> Figure:
    """A panel for each metric, all over the same axis; `marks` in a strip below."""
    from matplotlib.figure import Figure

    looks = series_looks(line.name for line in lines)
    rows = list(dict.fromkeys(mark.row for mark in marks))
    with plot_style():
        width = 4.7 * len(metrics) + 0.6
        figure = Figure(figsize=(width, 3.9 + 0.3 * len(rows)), layout="constrained")
        heights = [1, 0.085 * len(rows)] if rows else [1]
        grid = figure.subplots(len(heights), len(metrics), squeeze=False, sharex="col", height_ratios=heights)
        for column, metric in enumerate(metrics):
            axes = grid[0][column]
            _draw(axes, lines, metric, looks)
            bottom = axes
            if rows:
                bottom = grid[1][column]
                _draw_marks(axes, bottom, marks, rows, looks, labelled=column == 0)
            _label_axis(bottom, lines, axis)
            if rows:
                axes.tick_params(axis="x", which="both", bottom=False, labelbottom=False)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        if lines_are:
            grid[0][0].annotate(
                f"lines: {lines_are}",
                (1, 1),
                (0, 4),
                "axes fraction",
                "offset points",
                ha="right",
                color=FAINT,
                fontsize=9,
            )
        if path is not None:
            save_plot(figure, path)
    return figure


def _draw(axes: Axes, lines: Sequence[Line], metric: str, looks: Mapping[str, Series]) -> None:
    drawn = []
    for line in lines:
        pairs = [(x, y) for x, y in zip(line.numbers, line.values[metric], strict=True) if y is not None]
        if not pairs:
            continue
        look = looks[line.name]
        axes.plot(
            [x for x, _ in pairs], [y for _, y in pairs], color=look.colour, linestyle=look.dash, marker=look.marker,
            markersize=5, linewidth=1.8, markeredgecolor="white", markeredgewidth=0.6, clip_on=False, zorder=3,
        )  # fmt: skip
        drawn.append((line.name, pairs))
    values = [y for _, pairs in drawn for _, y in pairs]
    positive = [y for y in values if y > 0]
    logarithmic = bool(positive) and len(positive) == len(values) and max(positive) / min(positive) > _LOG_FROM
    if logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(min(positive) / 1.35, max(positive) * 1.35)
        axes.tick_params(axis="y", which="minor", left=False, labelleft=False)
    elif values:
        low, high = min(values), max(values)
        room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
        axes.set_ylim(0 if 0 <= low < 0.6 * high else low - room, high + room)
    axes.yaxis.set_major_formatter(lambda value, _: write(metric, value))
    axes.grid(axis="y", color="#E5E5E5", linewidth=0.8)
    axes.set_title(about(metric).title)
    _name_ends(axes, drawn, looks, logarithmic)
    _mark_best(axes, drawn, metric, looks)


def _name_ends(axes: Axes, drawn: Sequence[tuple[str, Any]], looks: Mapping[str, Series], logarithmic: bool) -> None:
    """The name of each line at its end, moved apart where lines end together."""
    if len(drawn) < 2 or not all(pairs for _, pairs in drawn):
        return
    low, high = axes.get_ylim()
    scale = (lambda y: (log10(y) - log10(low)) / (log10(high) - log10(low))) if logarithmic else (
        lambda y: (y - low) / (high - low)
    )  # fmt: skip
    heights = spread([scale(pairs[-1][1]) for _, pairs in drawn], 0.062)
    for (name, pairs), height in zip(drawn, heights, strict=True):
        axes.annotate(
            name, (pairs[-1][0], height), (9, 0), ("data", "axes fraction"), "offset points",
            color=looks[name].colour, va="center", fontweight="bold", fontsize=9, annotation_clip=False,
        )  # fmt: skip


def _mark_best(axes: Axes, drawn: Sequence[tuple[str, Any]], metric: str, looks: Mapping[str, Series]) -> None:
    """A ring around the best of each line."""
    choose = max if about(metric).higher_is_better else min
    for name, pairs in drawn:
        if len(pairs) > 2:
            x, y = choose(pairs, key=lambda pair: pair[1])
            axes.plot([x], [y], "o", markersize=11, markerfacecolor="none", markeredgecolor=looks[name].colour,
                      markeredgewidth=1.3, clip_on=False, zorder=4)  # fmt: skip


def _draw_marks(
    axes: Axes, strip: Axes, marks: Sequence[Mark], rows: Sequence[str], looks: Mapping[str, Series], labelled: bool
) -> None:
    """A row for each rule: where each line meets it."""
    for mark in marks:
        look = looks[mark.line]
        axes.axvline(mark.number, color=look.colour, linestyle=(0, (1, 3)), linewidth=1.0, zorder=1)
        strip.plot(
            [mark.number], [rows.index(mark.row)], marker=look.marker, color=look.colour, markersize=5.5, clip_on=False
        )
    strip.set_ylim(len(rows) - 0.5, -0.5)
    strip.set_yticks(range(len(rows)), rows if labelled else [""] * len(rows), fontsize=8.5, color=FAINT)
    strip.spines["left"].set_visible(False)
    for number in range(len(rows)):
        strip.axhline(number, color="#E5E5E5", linewidth=0.8, zorder=0)


def _label_axis(axes: Axes, lines: Sequence[Line], axis: str) -> None:
    places = {number: place for line in lines for number, place in zip(line.numbers, line.places, strict=True)}
    numbers = sorted(places)
    words = any(isinstance(place, str) and place == str(place) and not place[:1].isdigit() for place in places.values())
    if not words and numbers[0] > 0 and numbers[-1] / numbers[0] >= _LOG_FROM:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(_no_ticks())
    step = -(-len(numbers) // 12)
    shown = numbers[::step]
    axes.set_xticks(shown, [str(places[number]) for number in shown])
    axes.set_xlabel(axis)


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()
