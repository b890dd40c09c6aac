"""A machine's block diagram in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.results.diagram import Drawing, fit_words
from hwsim.results.plot.file import save_plot
from hwsim.results.plot.style import FAINT, plot_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_diagram(drawing: Drawing, path: Path | None = None, title: str = "") -> Figure:
    """The same boxes and links as on a page."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    with plot_style():
        figure = Figure(figsize=(drawing.width / 80, drawing.height / 80 + 0.4))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(-6, drawing.width + 6)
        axes.set_ylim(drawing.height + 6, -32 if title else -6)
        axes.set_axis_off()
        for link in drawing.links:
            axes.plot(
                [link.x, link.x], [link.top, link.bottom], color="#888888", linewidth=link.thickness * 0.9, zorder=1
            )
            if link.label:
                axes.text(
                    link.x + 8, (link.top + link.bottom) / 2, link.label, fontsize=8, va="center", zorder=3,
                    color="#444444",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
                )  # fmt: skip
        for box in drawing.boxes:
            style = "round,pad=0,rounding_size=6"
            axes.add_patch(
                FancyBboxPatch(
                    (box.x, box.y),
                    box.width,
                    box.height,
                    boxstyle=style,
                    facecolor=box.colour,
                    edgecolor=FAINT,
                    linewidth=0.9,
                    zorder=2,
                )
            )
            room = int(box.width / 7)
            middle = box.x + box.width / 2
            axes.text(
                middle,
                box.y + 18,
                fit_words(box.title, room),
                ha="center",
                va="center",
                fontsize=9,
                fontweight="bold",
                zorder=3,
            )
            detail = fit_words(box.detail, int(room * 1.2))
            axes.text(middle, box.y + 38, detail, ha="center", va="center", fontsize=7.5, color="#444444", zorder=3)
        if title:
            axes.text(0, -18, title, fontsize=11, fontweight="bold", va="center")
        if path is not None:
            save_plot(figure, path)
    return figure
