"""Set pressure of a stored run: its accesses once more, through the first cache alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hwsim.hardware.set_pressure import SetPressure, measure_set_pressure
from hwsim.kernels.kernel import Kernel
from hwsim.results.conflict import Crowding, find_crowding
from hwsim.results.formula import rows_of
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import CacheSpec
from hwsim.trace.nest import Size

MOST_ACCESSES = 400_000_000
"""A longer run is looked at as far as this: some seconds."""


@dataclass(frozen=True)
class Pressure:
    """What was measured, and which column of which tensor shows why."""

    measured: SetPressure
    assumed_lru: bool
    """Whether the cache follows another policy than the measurement."""
    crowding: Crowding | None
    column_sets: tuple[int, ...]
    """The sets that the first column of the crowding tensor falls into."""
    element_bytes: Size


def look_at_sets(
    machine: MachineSpec, kernel: Kernel, misses: Mapping[str, int], most: int = MOST_ACCESSES
) -> Pressure | None:
    """The first block's accesses in the first cache; None where sets mean nothing.

    `misses` of each tensor tell whose rows to look at first.
    """
    if not machine.caches:
        return None
    level = machine.caches[0]
    block = kernel.blocks()[0]
    nests = [nest for step in block.steps() for _ in range(step.repeat) for nest in step.nests]
    measured = measure_set_pressure(level, nests, most)
    if measured is None:
        return None
    crowding = _crowding(level, kernel, misses)
    sets = _column_sets(level, kernel, crowding) if crowding is not None else ()
    return Pressure(measured, not _plain(level), crowding, sets, kernel.fmt.element_bytes)


def _plain(level: CacheSpec) -> bool:
    """Whether the level does what the measurement assumes."""
    return (
        level.replacement == "lru"
        and level.write == "back"
        and level.write_allocate
        and level.prefetch.kind == "none"
        and level.inclusion == "none"
        and level.sector_bytes == level.line
    )


def _crowding(level: CacheSpec, kernel: Kernel, misses: Mapping[str, int]) -> Crowding | None:
    lengths, rows = rows_of(kernel)
    worst_first = sorted(lengths, key=lambda name: -misses.get(name, 0))
    return find_crowding(level, {name: lengths[name] for name in worst_first}, rows)


def _column_sets(level: CacheSpec, kernel: Kernel, crowding: Crowding) -> tuple[int, ...]:
    view = kernel.tensors[crowding.tensor]
    addresses = (view.base + row * crowding.row_bytes for row in range(view.shape[0]))
    return tuple(sorted({address // level.line % level.set_count for address in addresses}))
