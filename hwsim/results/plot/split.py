"""One run: where its cycles and its energy went, as two bars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.results.attribution import BUSY, summed
from hwsim.results.energy_split import energy_split
from hwsim.results.plot.file import save_plot
from hwsim.results.plot.style import FAINT, Look, look_of, plot_style
from hwsim.results.result import RunResult
from hwsim.results.text import joules, percent, seconds
from hwsim.results.words import ARROW, part_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FROM = 0.004
_BUSY_LOOK = Look("#0072B2")


def plot_split(result: RunResult, path: Path | None = None) -> Figure:
    """Shares below each other, each with its name and percentage; time on the left, energy on the right."""
    from matplotlib.figure import Figure

    together = summed(result.attribution)
    cycles = {part_words(name): (float(count), _look(kind, name)) for (kind, name), count in together.items()}
    energy = {name: (joule, look_of(name)) for name, joule in energy_split(result).items()}
    panels = [(f"time  {seconds(result.time_s)}", cycles)]
    if energy and result.energy_j is not None:
        panels.append((f"energy  {joules(result.energy_j)}", energy))
    with plot_style():
        rows = max(len(_worth(shares)) for _, shares in panels)
        figure = Figure(figsize=(4.8 * len(panels), 1.0 + 0.36 * rows), layout="constrained")
        for axes, (title, shares) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw(axes, title, shares, rows)
        figure.suptitle(f"{result.workload} on {result.machine}", x=0.01, ha="left", fontsize=12, fontweight="bold")
        if path is not None:
            save_plot(figure, path)
    return figure


def _draw(axes: Axes, title: str, shares: Mapping[str, tuple[float, Look]], rows: int) -> None:
    whole = sum(amount for amount, _ in shares.values()) or 1.0
    shown = _worth(shares)
    for row, (amount, look) in enumerate(shown.values()):
        share = amount / whole
        axes.barh(row, share, 0.7, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0.4)
        axes.annotate(
            percent(amount, whole), (share, row), (4, 0), textcoords="offset points", va="center", color=FAINT
        )
    axes.set_yticks(range(len(shown)), list(shown))
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_xlim(0, 1.18)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title(title)


def _worth(shares: Mapping[str, tuple[float, Look]]) -> dict[str, tuple[float, Look]]:
    whole = sum(amount for amount, _ in shares.values()) or 1.0
    return {name: pair for name, pair in shares.items() if pair[0] >= _FROM * whole}


def _look(kind: str, name: str) -> Look:
    """Units at work are blue; a wait has the colour of the level that it waits for."""
    if kind == BUSY:
        return _BUSY_LOOK
    source = name.partition(ARROW)[0] if ARROW in name else name.removeprefix("latency of ")
    return look_of(source) if source in ("l1", "l2", "l3", "dram") else Look("#BBBBBB", "///")
