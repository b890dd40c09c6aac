"""The points of a sweep: metrics as lines over one axis, as a map over two, or against each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.results.metrics import about, write
from hwsim.results.plot.style import (
    BAR,
    FAINT,
    TEXT,
    Series,
    canvas,
    log_title,
    name_places,
    quiet_grid,
    series_looks,
    spread,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_NAMED_AT_ENDS, _SHORT_NAME = 6, 14
"""So many lines with names of so many letters have them at their ends; others have a legend below."""
_LOG_FROM = 8.0
"""An axis whose values differ by more than this factor is logarithmic."""


@dataclass(frozen=True)
class Curve:
    """One line: its name, and a value of each metric at each place; places are numbers or words."""

    name: str
    places: tuple[Any, ...]
    numbers: tuple[float, ...]
    values: Mapping[str, tuple[float | None, ...]]
    ends: Mapping[str, tuple[tuple[float, float] | None, ...]] = field(default_factory=dict)
    """Both ends of the error bar at each place, for metrics that have one."""
    unfit: tuple[bool, ...] = ()
    """Where a run does not fit its machine's memory."""


@dataclass(frozen=True)
class AxisMark:
    """A place on the axis that means something for one line, in a named row below the plot."""

    line: str
    row: str
    number: float


def plot_lines(
    lines: Sequence[Curve],
    metrics: Sequence[str],
    axis: str,
    path: Path | None = None,
    *,
    title: str = "",
    marks: Sequence[AxisMark] = (),
    lines_are: str = "",
) -> Figure:
    """A panel for each metric, all over the same axis; `marks` in a strip below."""
    looks = series_looks(line.name for line in lines)
    rows = list(dict.fromkeys(mark.row for mark in marks))
    width = 4.7 * len(metrics) + 0.6
    with canvas((width, 3.9 + 0.3 * len(rows)), path, title) as figure:
        heights = [1, 0.085 * len(rows)] if rows else [1]
        grid = figure.subplots(len(heights), len(metrics), squeeze=False, sharex="col", height_ratios=heights)
        for column, metric in enumerate(metrics):
            axes = grid[0][column]
            banded = _draw(axes, lines, metric, looks)
            bottom = axes
            if rows:
                bottom = grid[1][column]
                _draw_marks(axes, bottom, marks, rows, looks, labelled=column == 0)
            few = lines_are and _named_at_ends(lines)
            _label_axis(bottom, lines, axis, f"; lines: {lines_are}" if few else "")
            _note_below(bottom, BAND_WORDS if banded else "", any(any(line.unfit) for line in lines))
            if rows:
                axes.tick_params(axis="x", which="both", bottom=False, labelbottom=False)
        if not _named_at_ends(lines):
            _legend_below(figure, lines, looks, lines_are)
    return figure


def _named_at_ends(lines: Sequence[Curve]) -> bool:
    return len(lines) <= _NAMED_AT_ENDS and max(len(line.name) for line in lines) <= _SHORT_NAME


def _legend_below(figure: Figure, lines: Sequence[Curve], looks: Mapping[str, Series], title: str) -> None:
    """Many lines are told apart below the panels, which keep their room."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=look.colour, linestyle=look.dash, marker=look.marker, markersize=5, label=line.name)
        for line, look in ((line, looks[line.name]) for line in lines)
    ]
    longest = max(len(line.name) for line in lines)
    columns = max(1, min(6, int(90 / (longest + 8))))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5, title=title or None,
        title_fontsize=9, handlelength=3,
    )  # fmt: skip


def _draw(axes: Axes, lines: Sequence[Curve], metric: str, looks: Mapping[str, Series]) -> bool:
    """One panel; whether it has bands."""
    drawn, banded = [], False
    for line in lines:
        pairs = [(x, y) for x, y in zip(line.numbers, line.values[metric], strict=True) if y is not None]
        if not pairs:
            continue
        look = looks[line.name]
        axes.plot(
            [x for x, _ in pairs], [y for _, y in pairs], color=look.colour, linestyle=look.dash, marker=look.marker,
            markersize=5, linewidth=1.8, markeredgecolor="white", markeredgewidth=0.6, clip_on=False, zorder=3,
        )  # fmt: skip
        _draw_unfit(axes, [*zip(line.numbers, line.values[metric], line.unfit, strict=False)])
        drawn.append((line.name, pairs))
        banded |= _draw_band(axes, line, metric, look.colour)
    values = [y for _, pairs in drawn for _, y in pairs]
    values += [end for line in lines for ends in line.ends.get(metric, ()) if ends is not None for end in ends]
    positive = [y for y in values if y > 0]
    logarithmic = bool(positive) and len(positive) == len(values) and max(positive) / min(positive) > _LOG_FROM
    if logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(min(positive) / 1.35, max(positive) * 1.35)
        axes.tick_params(axis="y", which="minor", left=False, labelcolor=TEXT)
    elif values:
        low, high = min(values), max(values)
        room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
        axes.set_ylim(0 if 0 <= low < 0.6 * high else low - room, high + room)
    name_places(axes.yaxis, partial(write, metric))
    axes.grid(axis="y", color="#E5E5E5", linewidth=0.8)
    axes.set_title(log_title(about(metric).title, logarithmic))
    if _named_at_ends(lines):
        _name_ends(axes, drawn, looks, logarithmic)
    able = {line.name: line for line in lines}
    _mark_best(axes, [(name, _able(able[name], pairs)) for name, pairs in drawn], metric, looks)
    return banded


def _able(line: Curve, pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of a line that could be run."""
    crossed = {x for x, unfit in zip(line.numbers, line.unfit, strict=False) if unfit}
    return [(x, y) for x, y in pairs if x not in crossed]


UNFIT_WORDS = "does not fit the memory"


def _note_below(axes: Axes, words: str, unfit: bool) -> None:
    """What signs mean, below an axis and its name: inside, there would be marks under it."""
    look: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": 7.5}
    if unfit:
        axes.annotate(f"× {UNFIT_WORDS}", (0, 0), (0, -44), ha="left", color=CROSS, **look)
    if words:
        axes.annotate(words, (1, 0), (0, -44), ha="right", color=FAINT, **look)


def _draw_unfit(axes: Axes, points: Sequence[tuple[float, float | None, bool]]) -> None:
    """A cross through each point that could not be run."""
    crossed = [(x, y) for x, y, unfit in points if unfit and y is not None]
    if crossed:
        xs, ys = [x for x, _ in crossed], [y for _, y in crossed]
        axes.scatter(xs, ys, s=110, marker="x", color=CROSS, linewidths=1.8, clip_on=False, zorder=5)


CROSS = "#B00020"
BAND_WORDS = "bands: 80 % of unseen measurements"


def _draw_band(axes: Axes, line: Curve, metric: str, colour: str) -> bool:
    """The error bars of a line as a light band; whether there are any."""
    found = [(x, ends) for x, ends in zip(line.numbers, line.ends.get(metric, ()), strict=False) if ends is not None]
    if not found:
        return False
    places, lows, highs = [x for x, _ in found], [ends[0] for _, ends in found], [ends[1] for _, ends in found]
    if len(found) == 1:
        axes.vlines(places, lows, highs, color=colour, alpha=0.4, linewidth=4, zorder=2)
    else:
        axes.fill_between(places, lows, highs, color=colour, alpha=0.14, linewidth=0, zorder=1)
    return True


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
    axes: Axes, strip: Axes, marks: Sequence[AxisMark], rows: Sequence[str], looks: Mapping[str, Series], labelled: bool
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


def _label_axis(axes: Axes, lines: Sequence[Curve], axis: str, more: str = "") -> None:
    places = {number: place for line in lines for number, place in zip(line.numbers, line.places, strict=True)}
    numbers = sorted(places)
    words = any(isinstance(place, str) and place == str(place) and not place[:1].isdigit() for place in places.values())
    logarithmic = not words and numbers[0] > 0 and numbers[-1] / numbers[0] >= _LOG_FROM
    if logarithmic:
        from matplotlib.ticker import NullLocator

        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    step = -(-len(numbers) // 12)
    shown = numbers[::step]
    axes.set_xticks(shown, [str(places[number]) for number in shown])
    axes.set_xlabel(log_title(axis, logarithmic) + more)


def plot_bars(
    values: Mapping[str, Mapping[str, float | None]], metrics: Sequence[str], path: Path | None = None, title: str = ""
) -> Figure:
    """Runs below each other, a panel of bars for each metric: `values` by name, then metric."""
    names = list(values)
    with canvas((4.4 * len(metrics) + 1.2, 1.3 + 0.36 * len(names)), path, title) as figure:
        for number, metric in enumerate(metrics):
            axes = figure.add_subplot(1, len(metrics), number + 1)
            _draw_bars(axes, [values[name].get(metric) for name in names], metric)
            axes.set_yticks(range(len(names)), names if number == 0 else [""] * len(names), color=TEXT)
            axes.set_ylim(len(names) - 0.4, -0.6)
    return figure


def _draw_bars(axes: Axes, amounts: Sequence[float | None], metric: str) -> None:
    found = [amount for amount in amounts if amount]
    logarithmic = bool(found) and min(found) > 0 and max(found) / min(found) > _LOG_FROM
    start = 10.0 ** floor(log10(min(found) / 2)) if logarithmic else 0.0
    for row, amount in enumerate(amounts):
        if amount:
            axes.barh(row, amount - start, 0.7, left=start, color=BAR)
        words = write(metric, amount)
        axes.annotate(words, (amount or start, row), (4, 0), textcoords="offset points", va="center", fontsize=9)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(start, max(found) * (max(found) / start) ** 0.3)
        axes.tick_params(axis="x", which="minor", bottom=False)
    elif found:
        axes.set_xlim(min(0.0, *found), max(found) * 1.3)
    axes.xaxis.set_major_formatter(lambda value, _: write(metric, value))
    most: dict[str, Any] = {"numticks": 5} if logarithmic else {"nbins": 4}
    axes.locator_params(axis="x", **most)
    axes.set_title(log_title(about(metric).title, logarithmic))


_NUMBERS_UP_TO = 160


def plot_heat(
    values: Mapping[tuple[Any, Any], float | None],
    columns: Sequence[Any],
    rows: Sequence[Any],
    metric: str,
    names: tuple[str, str],
    path: Path | None = None,
    title: str = "",
    unfit: Collection[tuple[Any, Any]] = (),
) -> Figure:
    """`values` by (column, row); dark is good, the best has a frame, a point that failed a cross, as has a value that
    does not fit its machine's memory."""
    import numpy as np
    from matplotlib.patches import Rectangle

    found = [value for value in values.values() if value is not None]
    better = about(metric).higher_is_better
    field = np.full((len(rows), len(columns)), np.nan)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            value = values.get((column, row))
            if value is not None:
                field[i, j] = _shade(value, found)
    size = (1.9 + max(4.0, 0.78 * len(columns)), 1.5 + max(1.6, 0.42 * len(rows)))
    with canvas(size, path) as figure:
        axes = figure.subplots()
        image = axes.imshow(field, cmap="cividis" if better else "cividis_r", vmin=0, vmax=1, aspect="auto")
        able = [value for place, value in values.items() if value is not None and place not in unfit]
        best = (max if better else min)(able) if able else None
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                value = values.get((column, row))
                if len(rows) * len(columns) <= _NUMBERS_UP_TO:
                    dark = value is not None and ((field[i, j] < 0.5) == better)
                    text = "×" if value is None else write(metric, value).replace(" ", "\u202f")
                    text += "\u202f×" if value is not None and (column, row) in unfit else ""
                    axes.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if dark else "#222222")
                if value is not None and value == best and (column, row) not in unfit:
                    axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor="#D55E00", linewidth=2.2))
        axes.set_xticks(range(len(columns)), [str(column) for column in columns])
        axes.set_yticks(range(len(rows)), [str(row) for row in rows])
        axes.set_xlabel(names[0])
        axes.set_ylabel(names[1])
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_title(title or about(metric).title)
        if unfit:
            axes.set_xlabel(f"{names[0]}   (×: {UNFIT_WORDS})")
        if found and max(found) > min(found):
            bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
            places = (0.0, 0.5, 1.0)
            bar.set_ticks(list(places), labels=[write(metric, _unshade(place, found)) for place in places])
            bar.outline.set_visible(False)
            bar.ax.set_title(about(metric).title, fontsize=9, fontweight="normal", loc="left")
    return figure


def _logarithmic(found: Sequence[float]) -> bool:
    return min(found) > 0 and max(found) / min(found) > 8


def _shade(value: float, found: Sequence[float]) -> float:
    low, high = min(found), max(found)
    if high == low:
        return 0.5
    if _logarithmic(found):
        return (log10(value) - log10(low)) / (log10(high) - log10(low))
    return (value - low) / (high - low)


def _unshade(shade: float, found: Sequence[float]) -> float:
    low, high = min(found), max(found)
    if _logarithmic(found):
        return float(10 ** (log10(low) + shade * (log10(high) - log10(low))))
    return low + shade * (high - low)


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
    fits: bool = True


def plot_pareto(
    dots: Sequence[Dot], metrics: Sequence[str], path: Path | None = None, title: str = "", groups_are: str = ""
) -> Figure:
    """The front as a line through its points, which are named; all others pale. `metrics`: x, y and perhaps a third."""
    front_dots = front_of(dots, metrics)
    best = [number for number, dot in enumerate(dots) if dot in front_dots]
    dots, logs = _on_axes(dots)
    groups = list(dict.fromkeys(dot.group for dot in dots))
    looks = series_looks(groups)
    with canvas((7.6, 5.0), path) as figure:
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
        _draw_unfit(axes, [(dot.x, dot.y, not dot.fits) for dot in dots])
        for logarithmic, setter in zip(logs, (axes.set_xscale, axes.set_yscale), strict=True):
            if logarithmic:
                setter("log")
        ordered = sorted((dots[number] for number in best), key=lambda dot: (dot.x, dot.y))
        _draw_front(axes, ordered, metrics)
        name_places(axes.xaxis, partial(write, metrics[0]))
        name_places(axes.yaxis, partial(write, metrics[1]))
        axes.set_xlabel(log_title(about(metrics[0]).title, logs[0]))
        axes.set_ylabel(log_title(about(metrics[1]).title, logs[1]))
        quiet_grid(axes)
        if title:
            axes.set_title(title)
        shown = [
            (handle, name)
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
            if len(groups) > 1 or name == FRONT
        ]
        legend = figure.legend(
            [handle for handle, _ in shown], [name for _, name in shown], title=groups_are or None, frameon=False,
            fontsize=9, loc="outside right upper",
        )  # fmt: skip
        for handle in legend.legend_handles:
            if handle is not None and hasattr(handle, "set_sizes"):
                handle.set_sizes([45])
        size = f"size: {about(metrics[2]).title}, larger is worse" if len(metrics) > 2 else ""
        _note_below(axes, size, not all(dot.fits for dot in dots))
    return figure


def _on_axes(dots: Sequence[Dot]) -> tuple[list[Dot], tuple[bool, bool]]:
    """Which axes are logarithmic; on those, an error of exactly zero lies at the edge, a step below the least one, and
    says so."""
    found, logs = list(dots), []
    for name in ("x", "y"):
        values = [getattr(dot, name) for dot in dots]
        positive = [value for value in values if value > 0]
        logs.append(len(positive) > 1 and min(values) >= 0 and max(positive) / min(positive) > _LOG_FROM)
        if logs[-1]:
            edge = min(positive) / 10
            found = [
                replace(dot, **{name: edge, "label": f"{dot.label}, exactly 0"}) if getattr(dot, name) == 0 else dot
                for dot in found
            ]
    return found, (logs[0], logs[1])


FRONT = "Pareto front"


def front_of(dots: Sequence[Dot], metrics: Sequence[str]) -> list[Dot]:
    """The dots that no other beats in both metrics that are drawn, from left to right."""
    signs = [-1 if about(name).higher_is_better else 1 for name in metrics[:2]]
    places = [(signs[0] * dot.x, signs[1] * dot.y) for dot in dots]
    kept = [
        dot
        for dot, (x, y) in zip(dots, places, strict=True)
        if not any(a <= x and b <= y and (a < x or b < y) for a, b in places)
    ]
    return sorted(kept, key=lambda dot: (dot.x, dot.y))


def _draw_front(axes: Axes, ordered: Sequence[Dot], metrics: Sequence[str]) -> None:
    """Steps through the points of the front: all above or right of them is worse."""
    steps: Any = "steps-pre" if about(metrics[0]).higher_is_better else "steps-post"
    axes.plot(
        [dot.x for dot in ordered], [dot.y for dot in ordered], color=TEXT, linewidth=1.3, zorder=3, drawstyle=steps,
        label=FRONT,
    )  # fmt: skip
    distinct: dict[tuple[float, float], list[str]] = {}
    for dot in ordered:
        distinct.setdefault((dot.x, dot.y), []).append(dot.label)
    for number, ((x, y), labels) in enumerate(list(distinct.items())[:_NAMED]):
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        above = number % 2 == 0
        place = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))[0]
        axes.annotate(
            labels[0] + more, (x, y), (7 if place < _RIGHT_PART else -7, 8 if above else -14),
            textcoords="offset points", ha="left" if place < _RIGHT_PART else "right", fontsize=8, color=TEXT, zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
        )  # fmt: skip


_RIGHT_PART = 0.6
"""Points right of this share of the axis have their names to their left."""


def _sizes(dots: Sequence[Dot]) -> list[float]:
    """Areas between 30 and 170, by the logarithm of the third metric; zero is smallest."""
    values = [dot.third for dot in dots if dot.third]
    if not values or max(values) == min(values):
        return [55.0] * len(dots)
    low, high = log10(min(values)), log10(max(values))
    return [30.0 if not dot.third else 40 + 130 * (log10(dot.third) - low) / (high - low) for dot in dots]
