"""The plots of one run, as `result.plot.…()`: where time and energy went, misses by set, reuse, traffic.

Roofline: what a machine can attain at a given number of operations per byte, level by level and format by format.

Attainable speed is the lesser of the peak and of intensity × bandwidth. Every level has its own bandwidth, and a run
has its own intensity at every level: operations over the bytes that the level really moved in the simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import cos, log10, radians, sin
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Literal

from hwsim.energy import STATIC
from hwsim.engine import BUSY, summed
from hwsim.memory.locality import Pressure, ReuseHistogram
from hwsim.result import RunResult, machine_of
from hwsim.results.explanation import explain
from hwsim.results.metrics import energy_split
from hwsim.results.plot.diagram import draw_machine, plot_diagram
from hwsim.results.plot.style import (
    FAINT,
    TEXT,
    Look,
    beside,
    canvas,
    log_title,
    look_of,
    plot_energy,
    plot_traffic,
    quiet_grid,
    series_looks,
    spread,
)
from hwsim.results.plot.timeline import plot_timeline
from hwsim.spec.machine import CacheSpec, MachineSpec, RegistersSpec, StorageSpec
from hwsim.target import ARROW
from hwsim.units import counted, joules, percent, rate, seconds, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

    from hwsim.engine import Span


@dataclass(frozen=True)
class Spot:
    """A run at one level."""

    name: str
    level: str
    intensity: float
    """Operations per byte that the level moved."""
    flops_per_s: float
    ends: tuple[float, float] | None = None
    """Both ends of its error bar: operations over the ends of the time."""


@dataclass(frozen=True)
class Roofline:
    """Roofs (bytes per second by level), ceilings (operations per second by format), and runs."""

    machine: str
    units: int
    """Compute units that the roofs are for."""
    roofs: Mapping[str, float]
    ceilings: Mapping[str, float]
    spots: tuple[Spot, ...] = ()

    def attainable(self, level: str, intensity: float, form: str) -> float:
        """min(peak, intensity × bandwidth)."""
        return min(self.ceilings[form], intensity * self.roofs[level])

    def ridge(self, level: str, form: str) -> float:
        """Operations per byte from which on a level no longer limits."""
        return self.ceilings[form] / self.roofs[level]


def level_bandwidths(machine: MachineSpec, units: int) -> dict[str, float]:
    """Bytes per second that each level delivers to `units` compute units together; without a limit, it is left out.

    Units at banks read main memory inside it, past its pins.
    """
    found = {}
    for level in machine.memory:
        if isinstance(level, RegistersSpec | StorageSpec) or level.bandwidth is None:
            continue
        hz = machine.clock_hz(level.clock)
        rate = level.bandwidth.bytes_per_cycle(hz)
        if rate is None:
            continue
        instances = 1 if level.shared_by == "all" or level.name in _last(machine) else -(-units // level.shared_by)
        total = rate * hz * instances
        own = level.unit_bandwidth.bytes_per_cycle(hz) if level.unit_bandwidth is not None else None
        if own is not None:
            total = min(total, own * hz * units)
        found[level.name] = float(total)
    for unit in machine.compute:
        if unit.column_bytes is not None:
            found |= dict.fromkeys(_last(machine), float(unit.column_bytes * machine.clock_hz(unit.clock) * units))
    return found


def make_roofline(machine: MachineSpec, runs: Mapping[str, RunResult], probes: Mapping[str, RunResult]) -> Roofline:
    """Roofs for as many units as the runs use; `probes` are runs by format, whose peak rates are the ceilings."""
    units = max((units_used(result) for result in runs.values()), default=0) or _all_units(machine)
    peaks = {str(result.resolved.workload["precision"]): result for result in (*probes.values(), *runs.values())}
    ceilings = {
        form: float(result.peak_flops_per_s) / units_used(result) * units
        for form, result in peaks.items()
        if result.peak_flops_per_s
    }
    roofs = level_bandwidths(machine, units)
    spots = tuple(
        Spot(name, level, intensity, float(result.work.flops_per_s), speed_ends(result))
        for name, result in runs.items()
        for level, intensity in result.intensity.levels.items()
        if intensity and level in roofs
    )
    return Roofline(machine.name, units, roofs, dict(sorted(ceilings.items(), key=lambda item: item[1])), spots)


def speed_ends(result: RunResult) -> tuple[float, float] | None:
    """Operations per second at both ends of the time's error bar; None where it was never compared."""
    ends = result.time.ends
    return None if ends is None or not ends[0] else (result.work.flops / ends[1], result.work.flops / ends[0])


def units_used(result: RunResult) -> int:
    """Compute units that share a run: cores as the schedule asks for them, all units of an accelerator."""
    return explain(result).units


def _all_units(machine: MachineSpec) -> int:
    return sum(unit.count for unit in machine.compute)


def _last(machine: MachineSpec) -> set[str]:
    """Main memory is one for all, however it is written."""
    return {level.name for level in machine.memory if level.kind == "dram"}


def plot_roofline(roofline: Roofline, path: Path | None = None, title: str = "") -> Figure:
    """Both axes logarithmic. A run is a row of points at its speed, one for each level, in the level's colour."""
    top = max(roofline.ceilings.values())
    low, high = _range(roofline)
    names = list(dict.fromkeys(spot.name for spot in roofline.spots))
    with canvas((8.6, 5.4), path) as figure:
        axes = figure.subplots()
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        roof = low * min(roofline.roofs.values(), default=top)
        bottom = min([*(spot.flops_per_s / 2 for spot in roofline.spots), max(roof, top / _DECADES)])
        axes.set_xlim(low, high)
        axes.set_ylim(bottom, top * 2)
        _draw_ceilings(axes, roofline, low, high)
        slanted = _draw_roofs(axes, roofline, low, top)
        written = _draw_spots(axes, roofline.spots, names)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"1/{round(1 / value):,}")
        axes.yaxis.set_major_formatter(lambda value, _: rate(value, "FLOP"))
        axes.yaxis.set_minor_formatter(lambda value, _: "")
        axes.set_xlabel(log_title("arithmetic intensity: flop per byte that the level moves", True))
        axes.set_ylabel(log_title("performance", True))
        quiet_grid(axes)
        units = counted(roofline.units, "compute unit")
        axes.set_title(title or f"Roofline of {roofline.machine}, {units}")
        figure.draw_without_rendering()  # names beside the axes decide how wide these are
        _place_names(axes, roofline.spots, written, slanted, _slope(axes))
    return figure


def _range(roofline: Roofline) -> tuple[float, float]:
    ridges = [roofline.ridge(level, form) for level in roofline.roofs for form in roofline.ceilings]
    seen = [*ridges, *(spot.intensity for spot in roofline.spots)] or [1.0]
    return max(min(seen) / 6, 1e-3), max(seen) * 6


def _draw_ceilings(axes: Axes, roofline: Roofline, low: float, high: float) -> None:
    """Formats with the same peak share a line; its name stands right of the axes, away from runs."""
    together: dict[float, list[str]] = {}
    for form, peak in roofline.ceilings.items():
        together.setdefault(peak, []).append(form)
    steepest = max(roofline.roofs.values(), default=None)
    bottom, top = axes.get_ylim()
    words = {peak: fill(", ".join(forms), _FORMATS_WIDE) for peak, forms in together.items()}
    lines = max((text.count("\n") + 2 for text in words.values()), default=2)
    gap = min(0.0375 * lines, 1 / max(1, len(words)))
    heights = spread([log10(peak / bottom) / log10(top / bottom) for peak in together], gap)
    for (peak, forms), height in zip(together.items(), heights, strict=True):
        start = peak / steepest if steepest else low
        axes.plot([start, high], [peak, peak], color=look_of(forms[0]).colour, linewidth=1.8, zorder=2)
        axes.annotate(
            f"{rate(peak, 'FLOP')}\n{words[peak]}", (1, height), (5, 0), "axes fraction", "offset points",
            ha="left", va="center", fontsize=8.5, color=TEXT,
        )  # fmt: skip


def _draw_roofs(axes: Axes, roofline: Roofline, low: float, top: float) -> list[Annotation]:
    """Levels with the same bandwidth share a line and a name, which is to lie along the line."""
    names = []
    looks = series_looks(roofline.roofs)
    together: dict[float, list[str]] = {}
    for level, bandwidth in roofline.roofs.items():
        together.setdefault(bandwidth, []).append(level)
    for number, (bandwidth, levels) in enumerate(sorted(together.items())):
        look = look_of(levels[0])
        colour = look.colour if look.colour != "#F0E442" else "#B8A800"
        end = top / bandwidth
        axes.plot(
            [low, end], [low * bandwidth, top], color=colour, linestyle=looks[levels[0]].dash, linewidth=2.0, zorder=2
        )
        along = _ALONG[number % len(_ALONG)]
        middle = 10 ** (log10(max(low, axes.get_ylim()[0] / bandwidth)) * (1 - along) + log10(end) * along)
        names.append(
            axes.annotate(
                f"{', '.join(levels)}: {rate(bandwidth, 'B')}", (middle, middle * bandwidth), (-2, 3),
                textcoords="offset points", rotation_mode="anchor", ha="center", va="bottom", fontsize=8.5,
                color=colour,
            )
        )  # fmt: skip
    return names


_FORMATS_WIDE = 26
"""Letters of a line of names of formats."""
_ALONG = (0.3, 0.4, 0.5, 0.6)
"""Where on its line the name of a level stands: names of neighbours are not at the same height."""
_DECADES = 1e6
"""How far below the peak the picture goes, unless a run lies lower."""


def _slope(axes: Axes) -> float:
    """The angle of a line of slope one, which is 45 degrees only where both axes have equal decades."""
    from math import atan2, degrees

    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    box = axes.get_window_extent()
    return degrees(atan2(box.height / log10(y1 / y0), box.width / log10(x1 / x0)))


def _draw_spots(axes: Axes, spots: Sequence[Spot], names: Sequence[str]) -> list[Annotation]:
    """Each run at its own height, its name above its marks or beside the only one."""
    looks = series_looks(names)
    low, high = axes.get_ylim()
    ends = []
    for name in names:
        own = sorted((spot for spot in spots if spot.name == name), key=lambda spot: spot.intensity)
        axes.plot([s.intensity for s in own], [s.flops_per_s for s in own], color=FAINT, linewidth=0.8, zorder=3)
        for spot in own:
            if spot.ends is not None:
                axes.plot(
                    [spot.intensity] * 2, spot.ends, color=TEXT, linewidth=1.1, marker="_", markersize=7, zorder=3.5
                )
            axes.plot(
                [spot.intensity], [spot.flops_per_s], marker=looks[name].marker, markersize=8,
                color=look_of(spot.level).colour, markeredgecolor=TEXT, markeredgewidth=0.8, zorder=4,
            )  # fmt: skip
        ends.append((name, own))
    written = []
    for name, own in ends:
        height = log10(own[-1].flops_per_s / low) / log10(high / low)
        alone = len(own) == 1
        middle = 10 ** (sum(log10(spot.intensity) for spot in own) / len(own))
        written.append(
            axes.annotate(
                name, (middle, height), (10, 0) if alone else (0, 12), ("data", "axes fraction"), "offset points",
                va="center", ha="left" if alone else "center", fontsize=9, fontweight="bold", color=TEXT, zorder=5,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0},
            )
        )  # fmt: skip
    return written


# Where names on a roofline stand: of the places that one may have, the first without anything below it is taken, or
# else that with the least.

Side = Literal["left", "center", "right"]
Box = tuple[float, float, float, float]
"""Left, lower, right and upper end, in pixels."""

_MARK_POINTS = 5.5
_ALONE: tuple[tuple[float, float, Side], ...] = (
    (10, 0, "left"),
    (-10, 0, "right"),
    (0, 12, "center"),
    (0, -13, "center"),
    (0, 25, "center"),
)
_STEPS = (0.0, 0.1, -0.1, 0.2, -0.2, 0.3, 0.4)
"""How far the name of a roof may move along its line, as a share of what is seen of it."""


def _place_names(
    axes: Axes, marks: Sequence[Spot], runs: Sequence[Annotation], roofs: Sequence[Annotation], degrees: float
) -> None:
    """Names of roofs move along their lines, which have a slope of so many degrees, those of runs round their marks."""
    half = _MARK_POINTS * axes.figure.dpi / 72
    seen = [axes.transData.transform((mark.intensity, mark.flops_per_s)) for mark in marks]
    taken: list[Box] = [(x - half, y - half, x + half, y + half) for x, y in seen]
    for name in roofs:
        taken += _move_along(axes, name, degrees, taken)
    for name in runs:
        own = sorted((mark.intensity, mark.flops_per_s) for mark in marks if mark.name == name.get_text())
        taken.append(_move_round(axes, name, own, taken))


def _move_along(axes: Axes, name: Annotation, degrees: float, taken: Sequence[Box]) -> list[Box]:
    """The boxes of a name that lies along a line, letter by letter."""
    size = name.get_window_extent()
    x0, y0 = axes.transData.transform(name.xy)
    turn = radians(degrees)
    reach = axes.bbox.width
    tries: list[tuple[float, int, tuple[float, float], list[Box]]] = []
    for step in _STEPS:
        x, y = x0 + step * reach * cos(turn), y0 + step * reach * sin(turn)
        count = max(1, round(size.width / size.height))
        places = [(number + 0.5 - count / 2) * size.height for number in range(count)]
        half = size.height / 2
        lifted = [
            (x + along * cos(turn) - half * sin(turn), y + along * sin(turn) + half * cos(turn)) for along in places
        ]
        boxes = [(px - half, py - half, px + half, py + half) for px, py in lifted]
        tries.append((sum(_covered(axes, box, taken) for box in boxes), len(tries), (x, y), boxes))
    _, _, place, boxes = min(tries)
    name.xy = tuple(axes.transData.inverted().transform(place))
    name.set_rotation(degrees)
    return boxes


def _move_round(axes: Axes, name: Annotation, own: Sequence[tuple[float, float]], taken: Sequence[Box]) -> Box:
    """The box of a name that stands beside its only mark, or above, below or beside several."""
    tries: list[tuple[float, int, tuple[float, float, float, Side], Box]] = []
    for x, dx, dy, side in _places(name, own):
        name.xy, name.xyann = (x, name.xy[1]), (dx, dy)
        name.set_horizontalalignment(side)
        found = name.get_window_extent()
        box = (found.x0, found.y0, found.x1, found.y1)
        tries.append((_covered(axes, box, taken), len(tries), (x, dx, dy, side), box))
    _, _, (x, dx, dy, side), box = min(tries)
    name.xy, name.xyann = (x, name.xy[1]), (dx, dy)
    name.set_horizontalalignment(side)
    return box


def _places(name: Annotation, own: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float, float, Side]]:
    if len(own) == 1:
        yield from ((own[0][0], *place) for place in _ALONE)
        return
    first, middle, last = own[0][0], name.xy[0], own[-1][0]
    for dy in (12, -13):
        yield middle, 0, dy, "center"
    yield last, 10, 0, "left"
    yield first, -10, 0, "right"
    for dy in (12, -13):
        yield last, 0, dy, "right"
        yield first, 0, dy, "left"
    for dy in (25, -26):
        yield middle, 0, dy, "center"


def _covered(axes: Axes, box: Box, taken: Sequence[Box]) -> float:
    """Pixels that a box has in common with others; what lies outside the axes counts as well."""
    frame = axes.bbox
    inside = _common(box, (frame.x0, frame.y0, frame.x1, frame.y1))
    area = (box[2] - box[0]) * (box[3] - box[1])
    return sum(_common(box, other) for other in taken) + area - inside


def _common(one: Box, other: Box) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0


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
    whole = sum(amount for amount, _ in shares.values())
    shown = _worth(shares)
    for row, (amount, look) in enumerate(shown.values()):
        share = amount / whole
        axes.barh(row, share, 0.7, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0.4)
        beside(axes, percent(amount, whole), (share, row), (4, 0), color=FAINT)
    axes.set_yticks(range(len(shown)), list(shown))
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_xlim(0, 1.18)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title(title)


def _worth(shares: Mapping[str, tuple[float, Look]]) -> dict[str, tuple[float, Look]]:
    whole = sum(amount for amount, _ in shares.values())
    return {name: pair for name, pair in shares.items() if pair[0] > _FROM * whole}


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
        beside(below, f"{ways} ways", (1, ways), (4, 0), xycoords=("axes fraction", "data"), fontsize=8.5)
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
