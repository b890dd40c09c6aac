"""Runs side by side: a comparison, the steps of a ladder, and steps by machines.

The chart of a lesson: bars of a few metrics, or one of the pictures that runs have anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, log2, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.result import RunResult, bytes_moved, machine_of
from hwsim.results.explanation import bar_of, explain
from hwsim.results.metrics import BYTES, UNFIT, Metric, energy_split, fits, metrics_of, shown, write
from hwsim.results.plot.run import make_roofline, plot_roofline
from hwsim.results.plot.style import (
    BAR,
    FAINT,
    TEXT,
    beside,
    canvas,
    draw_dynamic,
    log_title,
    plot_energy,
    plot_traffic,
    series_looks,
)
from hwsim.units import joules, ratio, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hwsim.spec.lesson import LessonSpec

_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "++", "oo", "--", "**")


@dataclass(frozen=True)
class _Panel:
    """One metric of all runs that are compared."""

    title: str
    metric: str
    amounts: list[float | None]
    ends: Sequence[tuple[float, float] | None] = ()
    """Both ends of each error bar, for metrics that have one."""

    def written(self, amount: float) -> str:
        return write(self.metric, amount)


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison: its group (a machine), its name in the group (a workload), and what it is compared
    with."""

    group: str
    name: str
    result: RunResult
    baseline: RunResult | None = None
    """What its speed-up is against; the first run of all if none."""


def plot_compare(entries: Sequence[ComparedRun], path: Path | None = None, title: str = "") -> Figure:
    """Groups from top to bottom; the first entry of all is what speed-ups are against."""
    entries = [
        entry if fits(metrics_of(entry.result)) else replace(entry, name=f"{entry.name} ({UNFIT} does not fit)".strip())
        for entry in entries
    ]
    names = list(dict.fromkeys(entry.name for entry in entries))
    looks = {
        name: (look.colour, _HATCHES[i % len(_HATCHES)]) for i, (name, look) in enumerate(series_looks(names).items())
    }
    places, labels = _places(entries)
    panels = [
        _Panel(metric.title.capitalize(), metric.name, _amounts(metric, entries), _ends(metric, entries))
        for metric in shown("bars")
    ]
    panels[0] = replace(panels[0], title=f"{panels[0].title}, and speed-up")
    panels.append(_Panel("Traffic to main memory", BYTES.ending, [_far_bytes(entry.result) for entry in entries]))
    panels = [panel for panel in panels if any(panel.amounts)]
    height = 1.5 + 0.3 * len(entries) + 0.25 * len(labels) + (0.25 if len(names) > 1 else 0)
    with canvas((3.5 * len(panels) + 1.2, height), path, title) as figure:
        for number, (axes, panel) in enumerate(
            zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True)
        ):
            _draw(axes, entries, places, looks, panel, speed_up=number == 0)
            axes.set_title(log_title(panel.title, True))
            axes.set_yticks(
                [place for place, _ in labels], [name for _, name in labels] if number == 0 else [""] * len(labels)
            )
            axes.tick_params(axis="y", labelsize=10, labelcolor=TEXT)
            axes.set_ylim(max(places) + 0.8, -0.8)
        if len(names) > 1:
            _legend(figure, looks)
        if any(ends for panel in panels for ends in panel.ends):
            figure.supxlabel(WHISKERS, fontsize=8, color=FAINT, x=0.99, ha="right")
    return figure


WHISKERS = "whiskers: 80 % of unseen measurements"


def _draw(
    axes: Axes,
    entries: Sequence[ComparedRun],
    places: Sequence[float],
    looks: dict[str, tuple[str, str]],
    panel: _Panel,
    speed_up: bool,
) -> None:
    amounts = panel.amounts
    ends = list(panel.ends) or [None] * len(amounts)
    reach = [pair[1] if pair else amount for amount, pair in zip(amounts, ends, strict=True)]
    found = [amount for amount in (*amounts, *reach) if amount]
    start = 10.0 ** floor(log10(min(found) / 2.5))
    for entry, place, amount, pair in zip(entries, places, amounts, ends, strict=True):
        if not amount:
            words = "–" if amount is None else panel.written(0)
            beside(axes, words, (start, place), color=FAINT, fontsize=8.5)
            continue
        colour, hatch = looks[entry.name]
        axes.barh(place, amount - start, 0.82, left=start, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4)
        draw_whisker(axes, pair, place)
        end = amount if pair is None else max(amount, pair[1])
        own = beside(axes, panel.written(amount), (end, place), (4, 0), fontweight="bold", fontsize=8.5)
        first = entries[0].result if entry.baseline is None else entry.baseline
        if speed_up and first is not entry.result:
            beside(axes, ratio(first.time_s / amount), (1, 0.5), xycoords=own, color=FAINT, fontsize=8.5)
    axes.set_xscale("log")
    span = max(found) / start
    axes.set_xlim(start, max(found) * max(6.0, span ** (0.75 if speed_up else 0.45)))
    ticks = [10.0**power for power in range(round(log10(start)), floor(log10(max(found))) + 1)]
    between = [digit * tick for tick in ticks for digit in (1, 2, 5) if digit * tick <= max(found)]
    axes.set_xticks(ticks[:: max(1, -(-len(ticks) // 4))] if len(ticks) > 1 else between)
    axes.xaxis.set_major_formatter(lambda tick, _: panel.written(tick))
    axes.tick_params(axis="x", which="minor", bottom=False)


def draw_whisker(axes: Axes, ends: tuple[float, float] | None, place: float) -> None:
    """An error bar along a horizontal bar."""
    if ends is not None:
        axes.plot(
            ends, (place, place), color=TEXT, linewidth=1.1, marker="|", markersize=6, markeredgewidth=1.1, zorder=4
        )


def _places(entries: Sequence[ComparedRun]) -> tuple[list[float], list[tuple[float, str]]]:
    """A row for each entry, with room between groups; a group's name stands at its middle."""
    places: list[float] = []
    middles: dict[str, list[float]] = {}
    row = 0.0
    for number, entry in enumerate(entries):
        if number and entry.group != entries[number - 1].group:
            row += 0.6
        places.append(row)
        middles.setdefault(entry.group, []).append(row)
        row += 1
    return places, [(sum(rows) / len(rows), group) for group, rows in middles.items()]


def _amounts(metric: Metric, entries: Sequence[ComparedRun]) -> list[float | None]:
    found = [metric.of(entry.result) for entry in entries]
    return [float(value) if isinstance(value, int | float) else None for value in found]


def _ends(metric: Metric, entries: Sequence[ComparedRun]) -> list[tuple[float, float] | None]:
    bars = [bar_of(metric.name, entry.result) for entry in entries]
    return [None if bar is None else bar.ends for bar in bars]


def _far_bytes(result: RunResult) -> float | None:
    """Bytes to and from the level that is furthest from the compute units."""
    return float(bytes_moved(list(result.memory.values())[-1])) if result.memory else None


def _legend(figure: Figure, looks: dict[str, tuple[str, str]]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=c, hatch=h, edgecolor="white", label=name) for name, (c, h) in looks.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=min(5, len(handles)), frameon=False, fontsize=9)


_HEIGHT = 0.62


def plot_ladder(rungs: Mapping[str, RunResult], path: Path | None = None, title: str = "") -> Figure:
    """Bars of time on a logarithmic axis, and the energy of what happens; the first rung is the baseline."""
    with canvas((9.6, 1.25 + 0.62 * len(rungs)), path, title) as figure:
        left, right = figure.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": [1.15, 1], "wspace": 0.04})
        _draw_time(left, rungs)
        _draw_energy(right, rungs)
    return figure


def _draw_time(axes: Axes, rungs: Mapping[str, RunResult]) -> None:
    results = list(rungs.values())
    slowest, fastest = max(r.time_s for r in results), min(r.time_s for r in results)
    start = 10 ** floor(log10(fastest / 3))
    rows = range(len(results))
    axes.barh(rows, [r.time_s - start for r in results], _HEIGHT, left=start, color=BAR)
    axes.set_xscale("log")
    slowest = max([slowest, *(r.time.high for r in results if r.time.high is not None)])
    axes.set_xlim(start, slowest * 8)
    for row, result in enumerate(results):
        draw_whisker(axes, result.time.ends, row)
        speedup = ratio(results[0].time_s / result.time_s) if row else "1×"
        end = max(result.time_s, result.time.high or 0.0)
        beside(axes, seconds(result.time_s), (end, row), fontweight="bold")
        beside(axes, speedup, (start, row), (6, 0), color="white", fontweight="bold")
    axes.set_title(log_title("Time, and speed-up", True))
    axes.xaxis.set_major_formatter(lambda value, _: seconds(value))
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.set_yticks(list(rows), [""] * len(results))
    axes.set_ylim(len(results) - 0.4, -0.6)
    for row, (name, result) in enumerate(rungs.items()):
        left: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right"}
        beside(axes, name, (0, row), (-8, 1), va="bottom", fontweight="bold", **left)
        words = f"bound by {explain(result).bound.short}"
        beside(axes, words, (0, row), (-8, -2), va="top", fontsize=8, color=FAINT, **left)


def _draw_energy(axes: Axes, rungs: Mapping[str, RunResult]) -> None:
    dynamic = draw_dynamic(axes, [energy_split(result) for result in rungs.values()], _HEIGHT)
    most = max(dynamic, default=0.0) or 1.0
    axes.set_xlim(0, most * 1.7)
    ticks = [tick for tick in axes.get_xticks() if tick <= most * 1.05]
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(lambda value, _: joules(value))
    axes.tick_params(axis="y", labelleft=False)
    axes.set_title("Dynamic energy")
    axes.legend(loc="lower right", frameon=False, fontsize=8.5, handlelength=1.6, handleheight=1.0, borderaxespad=0)


_FULL = 3.0
"""A factor of two to the power of this has the full colour."""


def plot_steps(runs: Mapping[str, Mapping[str, RunResult]], path: Path | None = None, title: str = "") -> Figure:
    """`runs` by machine, then step. Blue is faster than the step before, orange slower, by the depth of the colour."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    machines = list(runs)
    steps = list(next(iter(runs.values())))
    shades = np.zeros((len(steps), len(machines)))
    colours = LinearSegmentedColormap.from_list("gain", ["#D55E00", "#FFFFFF", "#0072B2"])
    size = (2.6 + max(3.4, 1.75 * len(machines)), 1.3 + 0.68 * len(steps))
    with canvas(size, path, title) as figure:
        axes = figure.subplots()
        for column, machine in enumerate(machines):
            times = [runs[machine][step].time_s for step in steps]
            for row in range(1, len(steps)):
                shades[row, column] = max(-1.0, min(1.0, log2(times[row - 1] / times[row]) / _FULL))
        axes.imshow(shades, cmap=colours, vmin=-1, vmax=1, aspect="auto")
        for column, machine in enumerate(machines):
            times = [runs[machine][step].time_s for step in steps]
            for row, time in enumerate(times):
                dark = abs(shades[row, column]) > 0.6
                gain = times[row - 1] / time if row else 1.0
                main = f"{ratio(gain)} {'▲' if gain > 1.0005 else '▼' if gain < 0.9995 else '='}" if row else "1×"
                small = f"{seconds(time)}, {ratio(times[0] / time)} in all" if row > 1 else seconds(time)
                ink = "white" if dark else "#222222"
                axes.text(column, row - 0.12, main, ha="center", va="center", fontweight="bold", color=ink)
                axes.text(
                    column, row + 0.24, small, ha="center", va="center", fontsize=8, color="white" if dark else FAINT
                )
        axes.set_xticks(range(len(machines)), machines)
        axes.set_yticks(range(len(steps)), steps)
        axes.xaxis.tick_top()
        axes.tick_params(length=0, labelcolor="#222222")
        for spine in axes.spines.values():
            spine.set_visible(False)
        words = "large, colour: gain over the step before (▲ faster, ▼ slower); small: time, gain over the first"
        axes.set_xlabel(words, fontsize=8, color=FAINT)
    return figure


def plot_bars(
    title: str,
    rows: Mapping[str, Sequence[float]],
    heads: Sequence[str],
    words: Callable[[int, float], str],
    path: Path | None = None,
    more_is_better: Sequence[bool] = (),
) -> Figure:
    """A panel for each number of the rows; the best bar is dark, what is written beside a bar is its value."""
    height = 1.2 + 0.42 * len(rows)
    with canvas((3.0 + 3.2 * len(heads), height), path, title) as figure:
        panels = figure.subplots(1, len(heads), sharey=True, squeeze=False)[0]
        for number, (axes, head) in enumerate(zip(panels, heads, strict=True)):
            amounts = [row[number] for row in rows.values()]
            most = max(amounts) or 1.0
            best = max(amounts) if number < len(more_is_better) and more_is_better[number] else min(amounts)
            colours = [BAR if amount == best else "#8FBFDD" for amount in amounts]
            axes.barh(range(len(rows)), amounts, 0.66, color=colours)
            for place, amount in enumerate(amounts):
                beside(axes, words(number, amount), (amount, place), (4, 0), fontsize=9)
            axes.set_xlim(0, most * 1.38)
            axes.set_xticks([])
            axes.spines["bottom"].set_visible(False)
            axes.spines["left"].set_color(FAINT)
            axes.set_title(head.replace("dram", "DRAM", 1) if head.startswith("dram") else head[:1].upper() + head[1:])
            axes.set_yticks(range(len(rows)), list(rows))
        panels[0].set_ylim(len(rows) - 0.4, -0.6)
    return figure


def plot_lesson(
    spec: LessonSpec,
    results: Mapping[str, RunResult],
    numbers: Mapping[str, Sequence[float]],
    heads: Sequence[str],
    words: Callable[[int, float], str],
    path: Path | None = None,
    more_is_better: Sequence[bool] = (),
) -> Figure:
    """What the lesson's file asks for; `numbers` are the metrics of its bars, run by run."""
    if spec.chart.kind == "energy":
        return plot_energy(results, path, spec.title)
    if spec.chart.kind == "traffic":
        return plot_traffic(results, path, spec.title)
    if spec.chart.kind == "roofline":
        machine = machine_of(next(iter(results.values())))
        return plot_roofline(make_roofline(machine, results, {}), path, spec.title)
    return plot_bars(spec.title, numbers, heads, words, path, more_is_better)
