"""Roofline: what a machine can attain at a given number of operations per byte, level by level and format by format.

Attainable speed is the lesser of the peak and of intensity × bandwidth. Every level has its own bandwidth, and a run
has its own intensity at every level: operations over the bytes that the level really moved in the simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hwsim.results.result import RunResult
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import RegistersSpec, StorageSpec


@dataclass(frozen=True)
class Spot:
    """A run at one level."""

    name: str
    level: str
    intensity: float
    """Operations per byte that the level moved."""
    flops_per_s: float


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
    units = max((units_used(machine, result) for result in runs.values()), default=0) or _all_units(machine)
    peaks = {str(result.resolved["workload"]["precision"]): result for result in (*probes.values(), *runs.values())}
    ceilings = {
        form: float(result.work["peak_flops_per_s"]) / units_used(machine, result) * units
        for form, result in peaks.items()
        if result.work.get("peak_flops_per_s")
    }
    roofs = level_bandwidths(machine, units)
    spots = tuple(
        Spot(name, level, intensity, float(result.work["flops_per_s"]))
        for name, result in runs.items()
        for level, intensity in result.intensity["levels"].items()
        if intensity and level in roofs
    )
    return Roofline(machine.name, units, roofs, dict(sorted(ceilings.items(), key=lambda item: item[1])), spots)


def units_used(machine: MachineSpec, result: RunResult) -> int:
    """Compute units that share a run: cores as the schedule asks for them, all units of an accelerator."""
    return int(result.work["cores"]) if machine.compute[0].kind == "cpu" else _all_units(machine)


def _all_units(machine: MachineSpec) -> int:
    return sum(unit.count for unit in machine.compute)


def _last(machine: MachineSpec) -> set[str]:
    """Main memory is one for all, however it is written."""
    return {level.name for level in machine.memory if level.kind == "dram"}
