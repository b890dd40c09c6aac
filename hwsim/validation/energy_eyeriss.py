"""Layers measured on the Eyeriss chip, against counts on `eyeriss` at its prices.

Each layer is mapped and its actions counted; the share of zero inputs is the measured one. Time is the measured one as
well, and beside it the simulated one. The chip was measured without its DRAM, so `dram` is left out of the energy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path

from hwsim.catalog import load_machine
from hwsim.hardware.grid import Grid
from hwsim.hardware.row_stationary import ConvShape
from hwsim.spec.machine import MachineSpec
from hwsim.validation.report import relative_error
from hwsim.validation.table import Record, integer, number, read_table

SHAPE = ("batch", "c_in", "c_out", "h_in", "w_in", "r", "s", "stride", "pad", "groups")
COLUMNS = ("network", "layer", *SHAPE, "zero_inputs_pct", "total_ms", "energy_mj")
MACHINE = "eyeriss"


@dataclass(frozen=True)
class Layer:
    """A measured layer with what hwsim counts for it."""

    name: str
    measured_j: float
    measured_s: float
    dynamic_j: float
    static_w: float
    simulated_s: float
    buffer_bytes: int

    def joules(self, seconds: float, dynamic: float = 1.0, static: float = 1.0) -> float:
        """Energy over a time; the factors change the two fitted constants."""
        return dynamic * self.dynamic_j + static * self.static_w * seconds

    @property
    def error(self) -> float:
        return relative_error(self.joules(self.measured_s), self.measured_j)

    @property
    def error_simulated(self) -> float:
        """The same with the simulated time in place of the measured one."""
        return relative_error(self.joules(self.simulated_s), self.measured_j)


def read_layers(path: Path) -> list[Layer]:
    machine = load_machine(MACHINE).spec
    grid = Grid(machine)
    return [_layer(machine, grid, path, record) for record in read_table(path, COLUMNS)]


def leave_one_out(layers: Sequence[Layer]) -> list[float]:
    """The error of each layer when both constants are fitted to the others."""
    errors = []
    for left_out in layers:
        dynamic, static = fit([layer for layer in layers if layer is not left_out])
        errors.append(relative_error(left_out.joules(left_out.measured_s, dynamic, static), left_out.measured_j))
    return errors


def fit(layers: Sequence[Layer]) -> tuple[float, float]:
    """Least squares of the relative error: the factors for dynamic energy and static power."""
    rows = [
        (layer.dynamic_j / layer.measured_j, layer.static_w * layer.measured_s / layer.measured_j) for layer in layers
    ]
    aa, ab, bb = (fsum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (fsum(row[i] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    return (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant


def _layer(machine: MachineSpec, grid: Grid, path: Path, record: Record) -> Layer:
    shape = ConvShape(*(integer(path, record, column) for column in SHAPE))
    cost = grid.best(shape, number(path, record, "zero_inputs_pct") / 100)
    assert machine.energy is not None
    picojoules = sum(
        count * machine.energy.actions[f"{part}.{action}"].energy.picojoules
        for (part, action), count in cost.actions.items()
        if part != "dram"
    )
    return Layer(
        name=f"{record['network']} {record['layer']}",
        measured_j=number(path, record, "energy_mj") * 1e-3,
        measured_s=number(path, record, "total_ms") * 1e-3,
        dynamic_j=float(picojoules) * 1e-12,
        static_w=float(sum(static.power for static in machine.energy.static.values())),
        simulated_s=float(cost.cycles / grid.clock_hz),
        buffer_bytes=cost.traffic("buffer") * grid.unit.bits // 8,
    )
