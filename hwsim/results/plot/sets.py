"""A map of a cache's sets: where the misses fall, and how many lines crowd into each set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.results.plot.file import save_plot
from hwsim.results.plot.style import FAINT, plot_style
from hwsim.results.pressure import Pressure
from hwsim.results.text import short

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_sets(pressure: Pressure, ways: int, path: Path | None = None, title: str = "") -> Figure:
    """Left, misses by set, dark where many; right, distinct lines that want each set, against its ways."""
    import numpy as np
    from matplotlib.figure import Figure

    measured = pressure.measured
    misses = np.asarray(measured.misses, float)
    count = len(misses)
    across = 16 if count <= 256 else 32 if count <= 1024 else 64
    rows = -(-count // across)
    field = np.full(rows * across, np.nan)
    field[:count] = misses
    with plot_style():
        figure = Figure(figsize=(10.4, max(3.4, 1.6 + 0.16 * rows)), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[1.15, 1])
        image = left.imshow(field.reshape(rows, across), cmap="cividis_r", aspect="auto", vmin=0)
        left.set_title(f"misses of {measured.level} by set")
        left.set_xlabel(f"set number: {across} in a row")
        left.set_yticks(
            range(0, rows, max(1, rows // 8)), [str(row * across) for row in range(0, rows, max(1, rows // 8))]
        )
        left.set_xticks(range(0, across, max(1, across // 8)))
        bar = figure.colorbar(image, ax=left, fraction=0.05, pad=0.02)
        bar.ax.yaxis.set_major_formatter(lambda value, _: short(value))
        bar.outline.set_visible(False)
        crowded = set(pressure.column_sets)
        colours = ["#D55E00" if number in crowded else "#0072B2" for number in range(count)]
        right.bar(range(count), np.asarray(measured.lines, float), width=0.9, color=colours)
        right.axhline(ways, color="#222222", linewidth=1.2, linestyle="--")
        right.annotate(
            f"{ways} ways", (1, ways), (0, 3), ("axes fraction", "data"), "offset points", ha="right", fontsize=8.5
        )
        right.set_title("distinct lines that want each set")
        right.set_xlabel("set number")
        if pressure.crowding is not None:
            crowding = pressure.crowding
            words = f"orange: a column of {crowding.tensor} falls into {crowding.used_sets} of {crowding.sets} sets"
            right.annotate(words, (0, -0.2), xycoords="axes fraction", fontsize=8.5, color="#D55E00")
        kinds = (("cold", measured.cold), ("capacity", measured.capacity), ("conflict", measured.conflict))
        told = ", ".join(f"{short(amount)} {kind}" for kind, amount in kinds if amount)
        figure.suptitle(f"{title}   ", x=0.01, ha="left", fontsize=12, fontweight="bold")
        left.annotate(told, (1, 1), (0, 4), "axes fraction", "offset points", ha="right", fontsize=8.5, color=FAINT)
        if path is not None:
            save_plot(figure, path)
    return figure
