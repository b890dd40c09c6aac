"""One metric over two axes, as a map with the number in every field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwsim.results.metrics import about, write
from hwsim.results.plot.file import save_plot
from hwsim.results.plot.style import plot_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NUMBERS_UP_TO = 160


def plot_heat(
    values: Mapping[tuple[Any, Any], float | None],
    columns: Sequence[Any],
    rows: Sequence[Any],
    metric: str,
    names: tuple[str, str],
    path: Path | None = None,
    title: str = "",
) -> Figure:
    """`values` by (column, row); dark is good, the best has a frame, a point that failed a cross."""
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    found = [value for value in values.values() if value is not None]
    better = about(metric).higher_is_better
    field = np.full((len(rows), len(columns)), np.nan)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            value = values.get((column, row))
            if value is not None:
                field[i, j] = _shade(value, found)
    with plot_style():
        size = (1.9 + max(4.0, 0.78 * len(columns)), 1.5 + max(1.6, 0.42 * len(rows)))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(field, cmap="cividis" if better else "cividis_r", vmin=0, vmax=1, aspect="auto")
        best = (max if better else min)(found) if found else None
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                value = values.get((column, row))
                if len(rows) * len(columns) <= _NUMBERS_UP_TO:
                    dark = value is not None and ((field[i, j] < 0.5) == better)
                    text = "×" if value is None else write(metric, value).replace(" ", "\u202f")
                    axes.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if dark else "#222222")
                if value is not None and value == best:
                    axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor="#D55E00", linewidth=2.2))
        axes.set_xticks(range(len(columns)), [str(column) for column in columns])
        axes.set_yticks(range(len(rows)), [str(row) for row in rows])
        axes.set_xlabel(names[0])
        axes.set_ylabel(names[1])
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_title(title or about(metric).title)
        if found and max(found) > min(found):
            bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
            places = (0.0, 0.5, 1.0)
            bar.set_ticks(list(places), labels=[write(metric, _unshade(place, found)) for place in places])
            bar.outline.set_visible(False)
            bar.ax.set_title(about(metric).title, fontsize=9, fontweight="normal", loc="left")
        if path is not None:
            save_plot(figure, path)
    return figure


def _logarithmic(found: Sequence[float]) -> bool:
    return min(found) > 0 and max(found) / min(found) > 8


def _shade(value: float, found: Sequence[float]) -> float:
    low, high = min(found), max(found)
    if high == low:
        return 0.5
    if _logarithmic(found):
        return (log10(value) - log10(low)) / (log10(high) - log10(low))
    return (value - low) / (high - low)


def _unshade(shade: float, found: Sequence[float]) -> float:
    low, high = min(found), max(found)
    if _logarithmic(found):
        return float(10 ** (log10(low) + shade * (log10(high) - log10(low))))
    return low + shade * (high - low)
