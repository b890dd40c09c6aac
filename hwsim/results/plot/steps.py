"""Steps by machines: what each step brings on each machine, over the first step and over the one before."""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.results.plot.file import save_plot
from hwsim.results.plot.style import FAINT, plot_style
from hwsim.results.result import RunResult
from hwsim.results.text import ratio, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FULL = 3.0
"""A factor of two to the power of this has the full colour."""


def plot_steps(runs: Mapping[str, Mapping[str, RunResult]], path: Path | None = None, title: str = "") -> Figure:
    """`runs` by machine, then step. Blue is faster than the step before, orange slower, by the depth of the colour."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    machines = list(runs)
    steps = list(next(iter(runs.values())))
    shades = np.zeros((len(steps), len(machines)))
    colours = LinearSegmentedColormap.from_list("gain", ["#D55E00", "#FFFFFF", "#0072B2"])
    with plot_style():
        size = (2.6 + max(3.4, 1.75 * len(machines)), 1.3 + 0.68 * len(steps))
        figure = Figure(figsize=size, layout="constrained")
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
                main = ratio(times[0] / time) if row else "1×"
                gain = times[row - 1] / time if row else 1.0
                small = seconds(time)
                if row:
                    small += f", {ratio(gain)} {'▲' if gain > 1.0005 else '▼' if gain < 0.9995 else '='}"
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
        words = "large: speed-up over the first step; small: time, and gain over the step before (▲ faster, ▼ slower)"
        axes.set_xlabel(words, fontsize=8, color=FAINT)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        if path is not None:
            save_plot(figure, path)
    return figure
