"""Stacked bars, one for each run: where the energy went, or how many bytes went over each level."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.energy import STATIC
from hwsim.results.energy_split import energy_split
from hwsim.results.plot.file import save_plot
from hwsim.results.plot.style import FAINT, TEXT, look_of, plot_style
from hwsim.results.result import RunResult
from hwsim.results.text import data, joules

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORDER = ("arithmetic", "operand supply", "control", "l1", "l2", "l3", "dram")


def plot_energy(runs: Mapping[str, RunResult], path: Path | None = None, title: str = "") -> Figure:
    """Joules of each run by what they went into. Static power times time would hide all else: it is written beside."""
    from matplotlib.figure import Figure

    splits = {name: energy_split(result) for name, result in runs.items()}
    names = [*ORDER, *(part for split in splits.values() for part in split)]
    parts = [part for part in dict.fromkeys(names) if part != STATIC and any(s.get(part) for s in splits.values())]
    with plot_style():
        figure = Figure(figsize=(8.4, 1.4 + 0.42 * len(runs)), layout="constrained")
        axes = figure.subplots()
        ends = [0.0] * len(splits)
        for part in parts:
            look = look_of(part)
            widths = [split.get(part, 0.0) for split in splits.values()]
            axes.barh(
                range(len(splits)), widths, 0.68, left=ends, color=look.colour, hatch=look.hatch,
                edgecolor="white", linewidth=0.4, label=part,
            )  # fmt: skip
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
        beside: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
        for row, (total, split) in enumerate(zip(ends, splits.values(), strict=True)):
            own = axes.annotate(joules(total), (total, row), (5, 0), fontweight="bold", **beside)
            if STATIC in split:
                words = f"+ {joules(split[STATIC])} static"
                axes.annotate(words, (1, 0.5), (5, 0), xycoords=own, color=FAINT, **beside)
        axes.set_yticks(range(len(runs)), list(runs), color=TEXT)
        axes.invert_yaxis()
        axes.set_xlim(0, (max(ends, default=0.0) or 1.0) * 1.4)
        axes.xaxis.set_major_formatter(lambda value, _: joules(value))
        axes.set_title(f"{title}: dynamic energy" if title else "Dynamic energy")
        figure.legend(loc="outside lower center", ncols=min(8, len(parts) or 1), frameon=False, fontsize=9)
        if path is not None:
            save_plot(figure, path)
    return figure


def plot_traffic(runs: Mapping[str, RunResult], path: Path | None = None, title: str = "") -> Figure:
    """Bytes that each level delivers and takes, a group of bars for each run, on one logarithmic axis."""
    from matplotlib.figure import Figure

    levels = list(dict.fromkeys(level for result in runs.values() for level in result.memory))
    moved = [
        [
            result.memory[level].bytes_read + result.memory[level].bytes_written if level in result.memory else 0
            for level in levels
        ]
        for result in runs.values()
    ]
    with plot_style():
        figure = Figure(figsize=(8.4, 1.3 + 0.24 * len(runs) * (len(levels) + 0.8)), layout="constrained")
        axes = figure.subplots()
        pitch = len(levels) + 0.8
        smallest = min((amount for row in moved for amount in row if amount), default=1)
        start = 10 ** (len(str(int(smallest))) - 1) / 2
        for number, level in enumerate(levels):
            look = look_of(level)
            places = [run * pitch + number for run in range(len(moved))]
            lengths = [max(0.0, row[number] - start) for row in moved]
            axes.barh(
                places, lengths, 0.86, left=start, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0.4
            )
            for place, row in zip(places, moved, strict=True):
                words = f"{level}  {data(row[number])}" if row[number] else f"{level}  nothing"
                axes.annotate(
                    words,
                    (max(row[number], start), place),
                    (5, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8.5,
                )
        axes.set_xscale("log")
        most = max((amount for row in moved for amount in row), default=10)
        axes.set_xlim(start, most * 12)
        axes.set_yticks([run * pitch + (len(levels) - 1) / 2 for run in range(len(moved))], list(runs))
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(lambda value, _: data(value))
        axes.tick_params(axis="x", which="minor", bottom=False)
        axes.set_title(title or "Bytes that each level moves")
        if path is not None:
            save_plot(figure, path)
    return figure
