"""What a point may cost, without simulating it: the same engine, with footprints in place of the exact caches.

Only load/store machines can be estimated so far; for others the answer is None, and a search has to simulate.
"""

from __future__ import annotations

from typing import cast

from hwsim.api import prepare
from hwsim.engine.engine import simulate
from hwsim.hardware.footprint import FootprintHierarchy
from hwsim.hardware.hierarchy import Hierarchy
from hwsim.results.assemble import assemble
from hwsim.results.metrics import Metric, metrics_of
from hwsim.spec.compute import CpuSpec
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import DramSpec
from hwsim.spec.workload import WorkloadSpec


def estimate(machine: MachineSpec, workload: WorkloadSpec) -> dict[str, Metric] | None:
    """Metrics of a run that was not simulated; None for machines whose memory is not made of caches."""
    if not all(isinstance(unit, CpuSpec) for unit in machine.compute):
        return None
    kernel = prepare(machine, workload, math=False)
    hierarchy = FootprintHierarchy(
        machine.caches,
        next((level for level in machine.memory if isinstance(level, DramSpec)), None),
        cores=sum(unit.count for unit in machine.compute),
        unit=machine.compute[0].name,
    )
    outcome = simulate(machine, kernel, seed=workload.seed, hierarchy=cast(Hierarchy, hierarchy))
    return metrics_of(assemble(machine, workload, kernel, outcome, seed=workload.seed))
