"""Which schedules a search need not try: what does not fit, and by which rule."""

from __future__ import annotations

from hwsim.api import prepare
from hwsim.errors import InputError
from hwsim.results.limits import capacity_tile
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import RegistersSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.units import format_bytes


def broken_rule(machine: MachineSpec, workload: WorkloadSpec) -> str | None:
    """The first capacity rule that a schedule breaks, in words; None where everything fits."""
    try:
        kernel = prepare(machine, workload, math=False)
    except InputError as error:
        return str(error).splitlines()[0]
    registers = next((level for level in machine.memory if isinstance(level, RegistersSpec)), None)
    if registers is not None and kernel.registers_needed > registers.count:
        return f"registers: {registers.name} has {registers.count}, and the register tile needs more"
    return _tile_rule(machine, workload)


def _tile_rule(machine: MachineSpec, workload: WorkloadSpec) -> str | None:
    """A square tile is for a cache: three of them, 3·tile² elements, should fit one."""
    tile = getattr(getattr(workload, "schedule", None), "tile", None)
    if workload.op != "matmul" or not isinstance(tile, int) or not machine.caches:
        return None
    from hwsim.numerics.format import find_format

    element = max(1, find_format(workload.precision).bits // 8)
    largest = max(machine.caches, key=lambda cache: cache.size)
    if largest.infinite or tile <= capacity_tile(largest, element):
        return None
    return f"tile: 3·tile² elements do not fit {largest.name} ({format_bytes(largest.size)}), the largest cache"
