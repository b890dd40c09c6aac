"""The plots of one run, as `result.plot.…()`: where time and energy went, misses by set, reuse, traffic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.energy import STATIC
from hwsim.engine.outcome import BUSY, summed
from hwsim.memory.reuse_distance import ReuseHistogram
from hwsim.memory.set_pressure import Pressure
from hwsim.result import RunResult, machine_of
from hwsim.results.explanation import explain
from hwsim.results.metrics import energy_split
from hwsim.results.plot.diagram import draw_machine, plot_diagram
from hwsim.results.plot.roofline import make_roofline, plot_roofline
from hwsim.results.plot.stack import plot_energy, plot_traffic
from hwsim.results.plot.style import FAINT, Look, canvas, look_of
from hwsim.results.plot.timeline import plot_timeline
from hwsim.spec.machine import CacheSpec
from hwsim.target import ARROW
from hwsim.text import joules, percent, seconds, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hwsim.engine.outcome import Span


PlotPath = str | Path | None


class RunPlots:
    """Each gives a matplotlib figure, and writes it where a path is given (png, svg, pdf)."""

    def __init__(self, result: RunResult) -> None:
        self._result = result
        self._runs = {result.workload: result}
        self._title = f"{result.workload} on {result.machine}"

    def split(self, path: PlotPath = None) -> Figure:
        """Where time and energy went."""
        return plot_split(self._result, _path(path))

    def energy(self, path: PlotPath = None) -> Figure:
        """Energy by what it went into."""
        return plot_energy(self._runs, _path(path), f"on {self._result.machine}")

    def traffic(self, path: PlotPath = None) -> Figure:
        """Bytes that each level moved."""
        return plot_traffic(self._runs, _path(path), f"on {self._result.machine}")

    def roofline(self, path: PlotPath = None) -> Figure:
        """The run below the roofs of the units that it used."""
        line = make_roofline(machine_of(self._result), self._runs, {})
        return plot_roofline(line, _path(path))

    def diagram(self, path: PlotPath = None) -> Figure:
        """The machine, with the traffic of this run on its links."""
        return plot_diagram(draw_machine(machine_of(self._result), self._result), _path(path), self._title)

    def timeline(self, spans: Iterable[Span], path: PlotPath = None) -> Figure:
        """What held which resource when; the spans are those of `hwsim.api.run_all(…, timeline=True).outcome.spans`."""
        return plot_timeline(spans, _path(path), self._title)

    def sets(self, pressure: Pressure, path: PlotPath = None) -> Figure:
        """Misses by set of the first cache; `hwsim.api.set_pressure(result)` measures them."""
        ways = machine_of(self._result).caches[0].way_count
        return plot_sets(pressure, ways, _path(path), self._title)

    def reuse(self, histogram: ReuseHistogram, path: PlotPath = None) -> Figure:
        """Reuse distances; `hwsim.api.reuse_histogram(result)` measures them."""
        return plot_reuse(histogram, machine_of(self._result).caches, _path(path), f"{self._title}: reuse distance")


def _path(target: PlotPath) -> Path | None:
    return None if target is None else Path(target)


_FROM = 0.004
_BUSY_LOOK = Look("#0072B2")


def plot_split(result: RunResult, path: Path | None = None) -> Figure:
    """Shares below each other, each with its name and percentage; time on the left, energy on the right."""
    together = summed(result.attribution)
    why = explain(result)
    cycles = {why.part(name): (float(count), _look(kind, name)) for (kind, name), count in together.items()}
    split = energy_split(result)
    static = split.pop(STATIC, 0.0)
    energy = {name: (joule, look_of(name)) for name, joule in split.items()}
    panels = [(f"time  {seconds(result.time_s)}", cycles)]
    if energy and result.energy_j is not None:
        beside = f", beside {joules(static)} static" if static else ""
        panels.append((f"dynamic energy  {joules(result.energy_j - static)}{beside}", energy))
    rows = max(len(_worth(shares)) for _, shares in panels)
    with canvas((4.8 * len(panels), 1.0 + 0.36 * rows), path, f"{result.workload} on {result.machine}") as figure:
        for axes, (title, shares) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw(axes, title, shares, rows)
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


def plot_sets(pressure: Pressure, ways: int, path: Path | None = None, title: str = "") -> Figure:
    """Set by set: above, how often it misses; below, the distinct lines that want it, against its ways."""
    import numpy as np

    measured = pressure.measured
    count = len(measured.misses)
    crowded = set(pressure.column_sets)
    colours = [_CROWDED if number in crowded else _BUSY_LOOK.colour for number in range(count)]
    kinds = (("cold", measured.cold), ("capacity", measured.capacity), ("conflict", measured.conflict))
    told = ", ".join(f"{short(amount)} {kind}" for kind, amount in kinds if amount)
    with canvas((9.4, 5.0), path, title) as figure:
        above, below = figure.subplots(2, 1, sharex=True)
        above.bar(range(count), np.asarray(measured.misses, float), width=0.9, color=colours)
        above.yaxis.set_major_formatter(lambda value, _: short(value))
        above.set_title(f"misses of {measured.level} by set" + (f": {told}" if told else ""))
        below.bar(range(count), np.asarray(measured.lines, float), width=0.9, color=colours)
        below.axhline(ways, color="#222222", linewidth=1.2, linestyle="--")
        below.annotate(
            f"{ways} ways", (1, ways), (4, 0), ("axes fraction", "data"), "offset points", va="center", fontsize=8.5
        )
        below.set_title("distinct lines that want each set")
        below.set_xlabel(f"set of {measured.level}")
        below.set_xlim(-0.6, count - 0.4)
        if pressure.crowding is not None:
            crowding = pressure.crowding
            words = f"orange: a column of {crowding.tensor} falls into {crowding.used_sets} of {crowding.sets} sets"
            figure.supxlabel(words, x=0.01, ha="left", fontsize=9, color=_CROWDED)
    return figure


_CROWDED = "#D55E00"


def plot_reuse(
    histogram: ReuseHistogram, caches: Sequence[CacheSpec], path: Path | None = None, title: str = ""
) -> Figure:
    """Bars by distance, doubling; left of a cache's line lies what it would hit if it were fully associative."""
    labels = ["0", *(str(2**k) if k < 10 else f"{2 ** (k - 10)}k" for k in range(len(histogram.counts) - 1)), "first"]
    shares = [count / histogram.accesses for count in (*histogram.counts, histogram.first_uses)]
    with canvas((8.4, 3.8), path) as figure:
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
    return figure
