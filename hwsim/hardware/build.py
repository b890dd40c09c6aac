"""From a machine's description to its live memory hierarchy."""

from __future__ import annotations

from hwsim.hardware.hierarchy import Hierarchy
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import DramSpec


def build_hierarchy(
    machine: MachineSpec, *, cores: int | None = None, seed: int = 0, compress: bool = True, warp: bool = True
) -> Hierarchy:
    """The caches of a machine and its main memory, all cold; `cores` to have fewer than the machine's."""
    units = sum(unit.count for unit in machine.compute)
    return Hierarchy(
        machine.caches,
        next((level for level in machine.memory if isinstance(level, DramSpec)), None),
        cores=units if cores is None else cores,
        unit=machine.compute[0].name,
        seed=seed,
        compress=compress,
        warp=warp,
    )
