"""Energy of several runs side by side, each bar cut by what it went into."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.results.energy_split import energy_split
from hwsim.results.plot.file import save_plot
from hwsim.results.plot.style import FAINT, TEXT, look_of, plot_style
from hwsim.results.result import RunResult
from hwsim.results.text import joules

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ORDER = ("arithmetic", "operand supply", "control", "l1", "l2", "l3", "dram")
_LAST = "static"


def plot_energy_stack(results: Mapping[str, RunResult], path: Path, title: str = "", *, shares: bool = False) -> None:
    """Joules for each operation, stacked by cause and memory level; with `shares`, each bar is the whole of a run."""
    from matplotlib.figure import Figure

    with plot_style():
        figure = Figure(figsize=(8.6, 1.4 + 0.5 * len(results)), layout="constrained")
        axes = figure.subplots()
        _draw(axes, {name: _per_operation(result) for name, result in results.items()}, shares)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        save_plot(figure, path)


def _per_operation(result: RunResult) -> dict[str, float]:
    flops = result.work["flops"] or 1
    return {name: joule / flops for name, joule in energy_split(result).items()}


def _draw(axes: Axes, bars: Mapping[str, Mapping[str, float]], shares: bool) -> None:
    found = dict.fromkeys(name for split in bars.values() for name in split)
    names = [name for name in dict.fromkeys((*_ORDER, *found)) if name in found and name != _LAST]
    names += [_LAST] if _LAST in found else []
    wholes = [sum(split.values()) or 1.0 for split in bars.values()]
    ends = [0.0] * len(bars)
    for name in names:
        look = look_of(name)
        scale = wholes if shares else [1.0] * len(bars)
        widths = [split.get(name, 0.0) / by for split, by in zip(bars.values(), scale, strict=True)]
        axes.barh(
            range(len(bars)), widths, 0.66, left=ends, color=look.colour, hatch=look.hatch,
            edgecolor="white", linewidth=0.4, label=name,
        )  # fmt: skip
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for row, (end, whole) in enumerate(zip(ends, wholes, strict=True)):
        axes.annotate(joules(whole), (end, row), (5, 0), textcoords="offset points", va="center", color=TEXT)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xlim(0, max(ends, default=1.0) * 1.15)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}" if shares else joules(value))
    axes.tick_params(axis="x", colors=FAINT)
    axes.set_title("Share of energy" if shares else "Energy for each operation")
    axes.legend(loc="lower right", frameon=False, fontsize=8.5, ncols=2)
