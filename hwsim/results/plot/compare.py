"""Runs side by side: time with speed-up, energy, and traffic to main memory, a bar for each, all logarithmic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.results.plot.file import save_plot
from hwsim.results.plot.series import series_looks
from hwsim.results.plot.style import FAINT, TEXT, plot_style
from hwsim.results.result import RunResult
from hwsim.results.text import data, joules, ratio, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "++", "oo", "--", "**")


@dataclass(frozen=True)
class Entry:
    """One run of a comparison: its group (a machine), and its name in the group (a workload)."""

    group: str
    name: str
    result: RunResult


def plot_compare(entries: Sequence[Entry], path: Path | None = None, title: str = "") -> Figure:
    """Groups from top to bottom; the first entry of all is what speed-ups are against."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(entry.name for entry in entries))
    looks = {
        name: (look.colour, _HATCHES[i % len(_HATCHES)]) for i, (name, look) in enumerate(series_looks(names).items())
    }
    places, labels = _places(entries)
    panels: list[tuple[str, Callable[[RunResult], float | None], Callable[[float], str]]] = [
        ("Time, and speed-up", lambda r: r.time_s, seconds),
        ("Energy", lambda r: r.energy_j, joules),
        ("Traffic to main memory", _far_bytes, data),
    ]
    panels = [panel for panel in panels if any(panel[1](entry.result) for entry in entries)]
    with plot_style():
        height = 1.5 + 0.3 * len(entries) + 0.25 * len(labels) + (0.25 if len(names) > 1 else 0)
        figure = Figure(figsize=(3.5 * len(panels) + 1.2, height), layout="constrained")
        for number, (axes, (heading, value, written)) in enumerate(
            zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True)
        ):
            _draw(axes, entries, places, looks, value, written, speed_up=number == 0)
            axes.set_title(heading)
            axes.set_yticks(
                [place for place, _ in labels], [name for _, name in labels] if number == 0 else [""] * len(labels)
            )
            axes.tick_params(axis="y", labelsize=10, labelcolor=TEXT)
            axes.invert_yaxis()
        if len(names) > 1:
            _legend(figure, looks)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        if path is not None:
            save_plot(figure, path)
    return figure


def _draw(
    axes: Axes,
    entries: Sequence[Entry],
    places: Sequence[float],
    looks: dict[str, tuple[str, str]],
    value: Callable[[RunResult], float | None],
    written: Callable[[float], str],
    speed_up: bool,
) -> None:
    amounts = [value(entry.result) for entry in entries]
    found = [amount for amount in amounts if amount]
    start = 10.0 ** floor(log10(min(found) / 2.5))
    baseline = amounts[0]
    for entry, place, amount in zip(entries, places, amounts, strict=True):
        beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8.5}
        if not amount:
            axes.annotate("–" if amount is None else written(0), (start, place), (5, 0), color=FAINT, **beside)
            continue
        colour, hatch = looks[entry.name]
        axes.barh(place, amount - start, 0.82, left=start, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4)
        words = axes.annotate(written(amount), (amount, place), (4, 0), fontweight="bold", **beside)
        if speed_up and baseline and entry is not entries[0]:
            axes.annotate(ratio(baseline / amount), (1, 0.5), (5, 0), xycoords=words, color=FAINT, **beside)
    axes.set_xscale("log")
    span = max(found) / start
    axes.set_xlim(start, max(found) * max(6.0, span ** (0.75 if speed_up else 0.45)))
    ticks = [10.0**power for power in range(round(log10(start)), floor(log10(max(found))) + 1)]
    axes.set_xticks(ticks[:: max(1, -(-len(ticks) // 4))])
    axes.xaxis.set_major_formatter(lambda tick, _: written(tick))
    axes.tick_params(axis="x", which="minor", bottom=False)


def _places(entries: Sequence[Entry]) -> tuple[list[float], list[tuple[float, str]]]:
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


def _far_bytes(result: RunResult) -> float | None:
    """Bytes to and from the level that is furthest from the compute units."""
    if not result.memory:
        return None
    counts = list(result.memory.values())[-1]
    return float(counts.bytes_read + counts.bytes_written)


def _legend(figure: Figure, looks: dict[str, tuple[str, str]]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=c, hatch=h, edgecolor="white", label=name) for name, (c, h) in looks.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=min(5, len(handles)), frameon=False, fontsize=9)
