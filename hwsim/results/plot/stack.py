"""Bars for several runs: where the energy of each went, and how many bytes went over each level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.energy import STATIC
from hwsim.result import RunResult, bytes_moved
from hwsim.results.metrics import energy_split
from hwsim.results.plot.style import FAINT, TEXT, canvas, log_title, look_of
from hwsim.text import data, joules

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


ORDER = ("arithmetic", "operand supply", "control", "l1", "l2", "l3", "dram")


def draw_dynamic(axes: Axes, splits: Sequence[Mapping[str, float]], height: float) -> list[float]:
    """A bar for each run, cut by what its energy went into; gives their lengths.

    Static power times time would hide all else: it is written beside the bar.
    """
    names = dict.fromkeys([*ORDER, *(name for split in splits for name in split)])
    parts = [name for name in names if name != STATIC and any(split.get(name) for split in splits)]
    ends = _draw_parts(axes, parts, splits, height)
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    for row, (total, split) in enumerate(zip(ends, splits, strict=True)):
        own = axes.annotate(joules(total), (total, row), (5, 0), fontweight="bold", color=TEXT, **beside)
        if STATIC in split:
            words = f"+ {joules(split[STATIC])} static"
            axes.annotate(words, (1, 0.5), (5, 0), xycoords=own, color=FAINT, **beside)
    return ends


def _draw_parts(axes: Axes, parts: Sequence[str], splits: Sequence[Mapping[str, float]], height: float) -> list[float]:
    """One part after the other, each in its own look; gives where the bars end."""
    ends = [0.0] * len(splits)
    for part in parts:
        look = look_of(part)
        widths = [split.get(part, 0.0) for split in splits]
        axes.barh(
            range(len(splits)), widths, height, left=ends, color=look.colour, hatch=look.hatch,
            edgecolor="white", linewidth=0.4, label=part,
        )  # fmt: skip
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    return ends


def plot_energy(runs: Mapping[str, RunResult], path: Path | None = None, title: str = "") -> Figure:
    """Joules of each run by what they went into. Static power times time would hide all else: it is written beside."""
    splits = [energy_split(result) for result in runs.values()]
    with canvas((8.4, 1.4 + 0.42 * len(runs)), path) as figure:
        axes = figure.subplots()
        ends = draw_dynamic(axes, splits, 0.68)
        axes.set_yticks(range(len(runs)), list(runs), color=TEXT)
        axes.invert_yaxis()
        axes.set_xlim(0, (max(ends, default=0.0) or 1.0) * 1.4)
        axes.xaxis.set_major_formatter(lambda value, _: joules(value))
        axes.set_title(f"{title}: dynamic energy" if title else "Dynamic energy")
        figure.legend(loc="outside lower center", ncols=min(8, len(axes.containers) or 1), frameon=False, fontsize=9)
    return figure


def plot_traffic(runs: Mapping[str, RunResult], path: Path | None = None, title: str = "") -> Figure:
    """Bytes that each level delivers and takes, a group of bars for each run, on one logarithmic axis."""
    levels = list(dict.fromkeys(level for result in runs.values() for level in result.memory))
    moved = [
        [bytes_moved(result.memory[level]) if level in result.memory else 0 for level in levels]
        for result in runs.values()
    ]
    with canvas((8.4, 1.3 + 0.24 * len(runs) * (len(levels) + 0.8)), path) as figure:
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
        axes.set_title(log_title(title or "Traffic of each level", True))
    return figure


def plot_energy_stack(results: Mapping[str, RunResult], path: Path, title: str = "", *, shares: bool = False) -> None:
    """Joules for each operation, stacked by cause and memory level; with `shares`, each bar is the whole of a run."""
    with canvas((8.6, 1.4 + 0.5 * len(results)), path, title) as figure:
        axes = figure.subplots()
        _draw(axes, {name: _per_operation(result) for name, result in results.items()}, shares)


def _per_operation(result: RunResult) -> dict[str, float]:
    flops = result.work.flops or 1
    return {name: joule / flops for name, joule in energy_split(result).items()}


def _draw(axes: Axes, bars: Mapping[str, Mapping[str, float]], shares: bool) -> None:
    found = dict.fromkeys(name for split in bars.values() for name in split)
    names = [name for name in dict.fromkeys((*ORDER, *found)) if name in found and name != STATIC]
    names += [STATIC] if STATIC in found else []
    wholes = [sum(split.values()) or 1.0 for split in bars.values()]
    scale = wholes if shares else [1.0] * len(bars)
    scaled = [{name: part / by for name, part in split.items()} for split, by in zip(bars.values(), scale, strict=True)]
    ends = _draw_parts(axes, names, scaled, 0.66)
    for row, (end, whole) in enumerate(zip(ends, wholes, strict=True)):
        axes.annotate(joules(whole), (end, row), (5, 0), textcoords="offset points", va="center", color=TEXT)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xlim(0, max(ends, default=1.0) * 1.15)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}" if shares else joules(value))
    axes.tick_params(axis="x", colors=FAINT)
    axes.set_title("Share of energy" if shares else "Energy for each operation")
    axes.legend(loc="lower right", frameon=False, fontsize=8.5, ncols=2)
