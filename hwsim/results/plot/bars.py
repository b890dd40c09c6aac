"""Stacked bars, one for each run: where the energy went, or how many bytes went over each level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.results.energy_split import energy_split
from hwsim.results.plot.file import save_plot
from hwsim.results.plot.style import TEXT, look_of, plot_style
from hwsim.results.result import RunResult
from hwsim.results.text import data, joules

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ORDER = ("arithmetic", "operand supply", "control", "l1", "l2", "l3", "dram")


def plot_energy(runs: Mapping[str, RunResult], path: Path | None = None, title: str = "") -> Figure:
    """Joules of each run by what they went into; static power last."""
    splits = {name: energy_split(result) for name, result in runs.items()}
    names = [*ORDER, *(part for split in splits.values() for part in split if part not in (*ORDER, "static")), "static"]
    parts = [part for part in dict.fromkeys(names) if any(split.get(part) for split in splits.values())]
    from matplotlib.figure import Figure

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
        for row, total in enumerate(ends):
            axes.annotate(
                joules(total), (total, row), (5, 0), textcoords="offset points", va="center", fontweight="bold"
            )
        _finish(axes, list(runs), max(ends, default=0.0), joules)
        axes.set_title(title or "Energy")
        figure.legend(loc="outside lower center", ncols=min(8, len(parts)), frameon=False, fontsize=9)
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


def _finish(axes: Axes, names: Sequence[str], most: float, written: object) -> None:
    axes.set_yticks(range(len(names)), names, color=TEXT)
    axes.invert_yaxis()
    axes.set_xlim(0, (most or 1.0) * 1.16)
    axes.xaxis.set_major_formatter(lambda value, _: joules(value))
