"""Reuse distances as a histogram, with the sizes of the caches among them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.hardware.reuse_distance import ReuseHistogram
from hwsim.results.plot.file import save_plot
from hwsim.results.plot.style import FAINT, look_of, plot_style
from hwsim.results.text import percent
from hwsim.spec.memory import CacheSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_reuse(
    histogram: ReuseHistogram, caches: Sequence[CacheSpec], path: Path | None = None, title: str = ""
) -> Figure:
    """Bars by distance, doubling; left of a cache's line lies what it would hit if it were fully associative."""
    from matplotlib.figure import Figure

    labels = ["0", *(str(2**k) if k < 10 else f"{2 ** (k - 10)}k" for k in range(len(histogram.counts) - 1)), "first"]
    shares = [count / histogram.accesses for count in (*histogram.counts, histogram.first_uses)]
    with plot_style():
        figure = Figure(figsize=(8.4, 3.8), layout="constrained")
        axes = figure.subplots()
        axes.bar(range(len(shares)), shares, 0.8, color=["#0072B2"] * (len(shares) - 1) + ["#BBBBBB"])
        for cache in caches:
            lines = 0 if cache.infinite else cache.size // cache.line
            if 0 < lines.bit_length() <= len(shares) - 1:
                place = lines.bit_length() - 0.5
                axes.axvline(place, color=look_of(cache.name).colour, linewidth=1.8, linestyle="--")
                axes.annotate(cache.name, (place, 1), (3, -10), ("data", "axes fraction"), "offset points", fontsize=9)
        axes.set_xticks(range(len(labels)), labels)
        axes.yaxis.set_major_formatter(lambda value, _: percent(value, 1))
        axes.set_xlabel(
            "other lines touched between two uses of a line; 0: the same line again; first: never used before"
        )
        axes.set_title(title or "Reuse distance")
        if not histogram.complete:
            words = f"the first {histogram.accesses:,} accesses"
            axes.annotate(
                words, (1, 1), (0, 4), "axes fraction", "offset points", ha="right", fontsize=8.5, color=FAINT
            )
        if path is not None:
            save_plot(figure, path)
    return figure
