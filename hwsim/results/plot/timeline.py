"""What held which resource when: one lane for each resource, a colour for each kind of step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.engine.outcome import FEMTOSECONDS, Span
from hwsim.errors import InputError
from hwsim.results.plot.file import save_plot
from hwsim.results.plot.series import series_looks
from hwsim.results.plot.style import plot_style
from hwsim.results.text import percent, seconds
from hwsim.results.timeline import assign_lanes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_LANES, _MOST_BARS = 24, 600


def plot_timeline(spans: Iterable[Span], path: Path | None = None, title: str = "") -> Figure:
    """Lanes from top to bottom, with how busy each was; spans too short to see are drawn together."""
    from matplotlib.figure import Figure

    lanes = assign_lanes(spans)
    if not lanes:
        raise InputError("this run recorded no timeline; run it with timeline=True (--timeline on the command line)")
    shown = dict(list(lanes.items())[:_MOST_LANES])
    end = max(span.end_fs for held in lanes.values() for span in held)
    names = list(dict.fromkeys(span.name for held in shown.values() for span in held))
    looks = series_looks(names[:9])
    with plot_style():
        figure = Figure(figsize=(9.6, 1.3 + 0.34 * len(shown)), layout="constrained")
        axes = figure.subplots()
        for row, held in enumerate(shown.values()):
            busy = sum(span.end_fs - span.start_fs for span in held)
            for name in dict.fromkeys(span.name for span in held):
                bars = joined([span for span in held if span.name == name], end)
                colour = looks[name].colour if name in looks else "#BBBBBB"
                pieces = [(start / FEMTOSECONDS, (stop - start) / FEMTOSECONDS) for start, stop in bars]
                axes.broken_barh(pieces, (row - 0.36, 0.72), facecolors=colour, edgecolors="white", linewidth=0.2)
            axes.annotate(
                percent(busy, end),
                (1, row),
                (4, 0),
                ("axes fraction", "data"),
                "offset points",
                va="center",
                fontsize=8,
            )
        axes.set_yticks(range(len(shown)), list(shown))
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(0, end / FEMTOSECONDS)
        axes.xaxis.set_major_formatter(lambda value, _: seconds(value))
        axes.set_xlabel("time; at the right, how long each lane was in use")
        more = f" ({len(shown)} of {len(lanes)} lanes)" if len(lanes) > len(shown) else ""
        axes.set_title(f"{title}{more}")
        if len(names) > 1:
            _legend(figure, {name: look.colour for name, look in looks.items()})
        if path is not None:
            save_plot(figure, path)
    return figure


def joined(spans: Sequence[Span], end_fs: int, most: int = _MOST_BARS) -> list[tuple[int, int]]:
    """Spans as (start, end), those with no visible gap between them as one."""
    gap = max(1, end_fs // most)
    bars: list[tuple[int, int]] = []
    for span in spans:
        if bars and span.start_fs - bars[-1][1] < gap:
            bars[-1] = (bars[-1][0], max(bars[-1][1], span.end_fs))
        else:
            bars.append((span.start_fs, span.end_fs))
    return bars


def _legend(figure: Figure, colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=min(6, len(handles)), frameon=False, fontsize=9)
