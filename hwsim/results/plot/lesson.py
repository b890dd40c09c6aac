"""The chart of a lesson: bars of a few metrics, or one of the pictures that runs have anyway."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.result import RunResult, machine_of
from hwsim.results.plot.roofline import make_roofline, plot_roofline
from hwsim.results.plot.stack import plot_energy, plot_traffic
from hwsim.results.plot.style import BAR, FAINT, canvas

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hwsim.results.plot.style import Figure
    from hwsim.spec.lesson import LessonSpec


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
                axes.annotate(
                    words(number, amount), (amount, place), (4, 0), textcoords="offset points", va="center", fontsize=9
                )
            axes.set_xlim(0, most * 1.38)
            axes.set_xticks([])
            axes.spines["bottom"].set_visible(False)
            axes.spines["left"].set_color(FAINT)
            axes.set_title(head[:1].upper() + head[1:])
            axes.set_yticks(range(len(rows)), list(rows))
        panels[0].invert_yaxis()
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
