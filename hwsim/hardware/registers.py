"""RegisterFile: do the values of a register tile fit, and what do those cost that do not?

A value is what one register holds: a scalar, or a whole vector. A value without a register is loaded again at
each use, and stored again each time that it changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwsim.errors import CapacityError
from hwsim.spec.memory import RegistersSpec


@dataclass(frozen=True)
class Spills:
    """Values that do not live in a register, and the accesses that this costs."""

    values: int = 0
    loads: int = 0
    stores: int = 0


class RegisterFile:
    """The registers of one compute unit."""

    def __init__(self, spec: RegistersSpec, name: str | None = None) -> None:
        self.spec = spec
        self.name = name or spec.name

    def fits(self, values: int) -> bool:
        return values <= self.spec.count

    def spills(self, values_needed: int, uses: int, updates: int = 0) -> Spills:
        """What a tile of so many values costs, each used `uses` times and changed `updates` times.

        Operands never change: they lie in memory anyway, and are only loaded again. Refused where the machine
        says so.
        """
        if self.fits(values_needed):
            return Spills()
        if self.spec.spill == "refuse":
            raise CapacityError(
                f"the register tile needs {values_needed} values in {self.name}, "
                f"which holds {self.spec.count}; {_advice(self.spec.count)}"
            )
        spilled = values_needed - self.spec.count
        return Spills(spilled, spilled * uses, spilled * updates)


def matmul_tile_registers(v1: int, v2: int, v3: int) -> int:
    """Values of a register tile of a matrix product: v1 x v3 of A, v2 x v3 of B, v1 x v2 sums."""
    return v1 * v3 + v2 * v3 + v1 * v2


def best_matmul_tile(registers: int) -> tuple[int, int] | None:
    """The tile v1 x v2 (v3 = 1) with the fewest loads, 1/v1 + 1/v2 per product; None if not even 1 x 1 fits.

    v3 changes no load and takes registers, so it is 1. Without whole numbers v1 = v2 = sqrt(registers + 1) -
    1.
    """
    best: tuple[int, int] | None = None
    v1 = 1
    while matmul_tile_registers(v1, v1, 1) <= registers:
        v2 = (registers - v1) // (v1 + 1)
        # v1 * v2 / (v1 + v2) is the reuse; compared without a division, so exactly.
        if best is None or v1 * v2 * sum(best) > best[0] * best[1] * (v1 + v2):
            best = v1, v2
        v1 += 1
    return best


def _advice(registers: int) -> str:
    tile = best_matmul_tile(registers)
    if tile is None:
        return "not even a 1x1 tile of a matrix product fits"
    needed = matmul_tile_registers(*tile, 1)
    return f"the best tile of a matrix product that fits is {tile[0]}x{tile[1]}x1, with {needed} values"
