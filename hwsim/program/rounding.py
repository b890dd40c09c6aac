"""How large an error rounding explains, relative to the largest element of the exact answer.

Arithmetic runs in float32 (float64 for fp64); a narrow format rounds only what is stored. So a product of two bf16
matrices has the errors of a float32 sum, and that of one rounding to bf16 at the end. An answer that is further off is
wrong; one that is off by most of itself always is, whatever the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import hypot, prod, sqrt

import numpy as np

from hwsim.numerics.format import BlockFormat, Format
from hwsim.numerics.quantize import ScaledFormat
from hwsim.program.loops import MOST_STEPS, LoopPlan

SLACK = 8
"""Errors of a sum of random terms grow about as the square root of their number; none of many was ever so many times
that."""

MOST = 0.75
"""No rounding explains more than this: zeros in the place of an answer are off by 1."""


@dataclass(frozen=True)
class Rounding:
    """What one rounding costs: the relative errors that a kernel's formats make."""

    fmt: Format
    """The format of the tensors."""
    stored: float
    """A number that is stored in it."""
    kept: float
    """A number that is stored in the format that sums are kept in."""
    computed: float
    """One operation."""
    chunk: int | None = None
    """Products between two roundings of a sum, where it is rounded to `kept` on the way; None where it is not."""
    at_tiles: bool = True
    """Whether a sum goes to memory at the tiles of a schedule."""

    @property
    def moved(self) -> float:
        """A stored number that is stored again elsewhere: exact, but where it shares a scale with other neighbours."""
        return self.stored if isinstance(self.fmt, BlockFormat | ScaledFormat) else 0.0

    def operations(self, count: int = 1) -> float:
        """Of operations on a number, one after the other."""
        return SLACK * self.computed * count

    def sum(self, terms: int) -> float:
        """Of a sum of so many terms in a register."""
        found = SLACK * self.computed * sqrt(1 + terms)
        if self.chunk is not None:
            found += SLACK * self.kept * sqrt(1 + terms / self.chunk)
        return found

    def kept_sum(self, pieces: int = 1) -> float:
        """Of a sum that goes to memory and comes back so many times before it is whole."""
        return self.kept if pieces == 1 or not self.at_tiles else 2 * self.kept * sqrt(pieces)


def make_rounding(fmt: Format, kept: Format, chunk: int | None = None, at_tiles: bool = True) -> Rounding:
    """The rounding of tensors in a format, with sums kept in another."""
    computed = 0.0 if fmt.is_integer else float(np.finfo(fmt.computed).eps) / 2
    return Rounding(fmt, storing_error(fmt), storing_error(kept), computed, chunk, at_tiles)


def storing_error(fmt: Format) -> float:
    """The largest error of storing a number, relative to the largest number of its tensor.

    The scale of a block is a power of two: its largest elements may lie above the largest number, and lose what is
    above.
    """
    if isinstance(fmt, BlockFormat):
        grid = fmt.element.grid
        return max(fmt.roundoff, 1 - fmt.element.largest / 2.0 ** (grid.highest + 1))
    return fmt.roundoff


def joined(errors: Iterable[float]) -> float:
    """Errors that have nothing to do with each other: the root of the sum of their squares."""
    return hypot(*errors)


def sum_pieces(plan: LoopPlan, extents: Mapping[str, int], summed: Iterable[str]) -> int:
    """How many times at most a sum goes to memory: at each tile of it, or at each Step where its loop is outermost."""
    inside = set(summed) & set(plan.order)
    pieces = prod(-(-extents[index] // plan.tile.get(index, extents[index])) for index in inside)
    tiled = [index for index in plan.order if index in plan.tile]
    outer = tiled[0] if tiled else plan.order[0]
    return max(pieces, min(MOST_STEPS, extents[outer])) if outer in inside else pieces
