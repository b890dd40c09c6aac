"""`result.plot.…()`: the plots of one run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.results.resolved import machine_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hwsim.engine.outcome import Span
    from hwsim.hardware.reuse_distance import ReuseHistogram
    from hwsim.results.pressure import Pressure
    from hwsim.results.result import RunResult

Target = str | Path | None


class RunPlots:
    """Each gives a matplotlib figure, and writes it where a path is given (png, svg, pdf)."""

    def __init__(self, result: RunResult) -> None:
        self._result = result

    def split(self, path: Target = None) -> Figure:
        """Where time and energy went."""
        from hwsim.results.plot.split import plot_split

        return plot_split(self._result, _path(path))

    def energy(self, path: Target = None) -> Figure:
        """Energy by what it went into."""
        from hwsim.results.plot.bars import plot_energy

        return plot_energy({self._result.workload: self._result}, _path(path), f"on {self._result.machine}")

    def traffic(self, path: Target = None) -> Figure:
        """Bytes that each level moved."""
        from hwsim.results.plot.bars import plot_traffic

        return plot_traffic({self._result.workload: self._result}, _path(path), f"on {self._result.machine}")

    def roofline(self, path: Target = None) -> Figure:
        """The run below the roofs of the units that it used."""
        from hwsim.results.plot.roofline import plot_roofline
        from hwsim.results.roofline import make_roofline

        line = make_roofline(machine_of(self._result), {self._result.workload: self._result}, {})
        return plot_roofline(line, _path(path))

    def diagram(self, path: Target = None) -> Figure:
        """The machine, with the traffic of this run on its links."""
        from hwsim.results.diagram import draw_machine
        from hwsim.results.plot.diagram import plot_diagram

        title = f"{self._result.workload} on {self._result.machine}"
        return plot_diagram(draw_machine(machine_of(self._result), self._result), _path(path), title)

    def timeline(self, spans: Iterable[Span], path: Target = None) -> Figure:
        """What held which resource when; the spans are those of `hwsim.api.run_all(…, timeline=True).outcome.spans`."""
        from hwsim.results.plot.timeline import plot_timeline

        return plot_timeline(spans, _path(path), f"{self._result.workload} on {self._result.machine}")

    def sets(self, pressure: Pressure, path: Target = None) -> Figure:
        """Misses by set of the first cache; `hwsim.api.set_pressure(result)` measures them."""
        from hwsim.results.plot.sets import plot_sets

        ways = machine_of(self._result).caches[0].way_count
        return plot_sets(pressure, ways, _path(path), f"{self._result.workload} on {self._result.machine}")

    def reuse(self, histogram: ReuseHistogram, path: Target = None) -> Figure:
        """Reuse distances; `hwsim.api.reuse_histogram(result)` measures them."""
        from hwsim.results.plot.reuse import plot_reuse

        title = f"{self._result.workload} on {self._result.machine}: reuse distance"
        return plot_reuse(histogram, machine_of(self._result).caches, _path(path), title)


def _path(target: Target) -> Path | None:
    return None if target is None else Path(target)
