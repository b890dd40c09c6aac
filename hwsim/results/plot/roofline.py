"""Roofline: what a machine can attain at a given number of operations per byte, level by level and format by format.

Attainable speed is the lesser of the peak and of intensity × bandwidth. Every level has its own bandwidth, and a run
has its own intensity at every level: operations over the bytes that the level really moved in the simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.result import RunResult
from hwsim.results.explanation import explain
from hwsim.results.plot.style import FAINT, TEXT, canvas, look_of, series_looks, spread
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import RegistersSpec, StorageSpec
from hwsim.text import counted, digits, rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    """Bytes per second that each level delivers to `units` compute units together; without a limit, it is left out."""
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
    return found


def make_roofline(machine: MachineSpec, runs: Mapping[str, RunResult], probes: Mapping[str, RunResult]) -> Roofline:
    """Roofs for as many units as the runs use; `probes` are runs by format, whose peak rates are the ceilings."""
    units = max((units_used(result) for result in runs.values()), default=0) or _all_units(machine)
    peaks = {str(result.resolved.workload["precision"]): result for result in (*probes.values(), *runs.values())}
    ceilings = {
        form: float(result.work.peak_flops_per_s) / units_used(result) * units
        for form, result in peaks.items()
        if result.work.peak_flops_per_s
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
        bottom = (
            min([*(spot.flops_per_s for spot in roofline.spots), low * min(roofline.roofs.values(), default=top)]) / 1.6
        )
        axes.set_xlim(low, high)
        axes.set_ylim(max(bottom, top / 1e6), top * 2.6)
        _draw_ceilings(axes, roofline, low, high)
        _draw_roofs(axes, roofline, low, top)
        _draw_spots(axes, roofline.spots, names)
        axes.xaxis.set_major_formatter(lambda value, _: digits(value) if value >= 0.01 else f"1/{round(1 / value)}")
        axes.yaxis.set_major_formatter(lambda value, _: rate(value, "FLOP"))
        axes.yaxis.set_minor_formatter(lambda value, _: "")
        axes.set_xlabel("operations per byte that the level moves")
        axes.set_ylabel("speed")
        axes.grid(color="#EEEEEE", linewidth=0.8)
        axes.set_axisbelow(True)
        units = counted(roofline.units, "compute unit")
        axes.set_title(title or f"Roofline of {roofline.machine}, {units}")
    return figure


def _range(roofline: Roofline) -> tuple[float, float]:
    ridges = [roofline.ridge(level, form) for level in roofline.roofs for form in roofline.ceilings]
    seen = [*ridges, *(spot.intensity for spot in roofline.spots)] or [1.0]
    return max(min(seen) / 6, 1e-3), max(seen) * 6


def _draw_ceilings(axes: Axes, roofline: Roofline, low: float, high: float) -> None:
    """Formats with the same peak share a line."""
    together: dict[float, list[str]] = {}
    for form, peak in roofline.ceilings.items():
        together.setdefault(peak, []).append(form)
    steepest = max(roofline.roofs.values(), default=None)
    for peak, forms in together.items():
        start = peak / steepest if steepest else low
        axes.plot([start, high], [peak, peak], color=look_of(forms[0]).colour, linewidth=1.8, zorder=2)
        axes.annotate(
            f"{', '.join(forms)}: {rate(peak, 'FLOP')}", (high, peak), (-4, 3), textcoords="offset points",
            ha="right", va="bottom", fontsize=8.5, color=TEXT,
        )  # fmt: skip


def _draw_roofs(axes: Axes, roofline: Roofline, low: float, top: float) -> None:

    looks = series_looks(roofline.roofs)
    for level, bandwidth in roofline.roofs.items():
        colour = look_of(level).colour if look_of(level).colour != "#F0E442" else "#B8A800"
        end = top / bandwidth
        axes.plot(
            [low, end], [low * bandwidth, top], color=colour, linestyle=looks[level].dash, linewidth=2.0, zorder=2
        )
        middle = 10 ** (log10(max(low, axes.get_ylim()[0] / bandwidth)) * 0.62 + log10(end) * 0.38)
        axes.annotate(
            f"{level}: {rate(bandwidth, 'B')}", (middle, middle * bandwidth), (0, 4), textcoords="offset points",
            rotation=_slope(axes), rotation_mode="anchor", ha="center", va="bottom", fontsize=8.5, color=colour,
        )  # fmt: skip


def _slope(axes: Axes) -> float:
    """The angle of a line of slope one, which is 45 degrees only where both axes have equal decades."""
    from math import atan2, degrees

    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    width, height = axes.get_figure().get_size_inches()  # type: ignore[union-attr]
    return degrees(atan2(0.80 * height / log10(y1 / y0), 0.86 * width / log10(x1 / x0)))


def _draw_spots(axes: Axes, spots: Sequence[Spot], names: Sequence[str]) -> None:
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
        ends.append((name, own[-1]))
    heights = spread([log10(spot.flops_per_s / low) / log10(high / low) for _, spot in ends], 0.042)
    for (name, spot), height in zip(ends, heights, strict=True):
        axes.annotate(
            name, (spot.intensity, height), (10, 0), ("data", "axes fraction"), "offset points", va="center",
            fontsize=9, fontweight="bold", color=TEXT, zorder=5, annotation_clip=False,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0},
        )  # fmt: skip
