"""Kinds of number formats: floating point and integer. How many bits, how NumPy holds, computes and rounds them.

Stored values are held on the grid of their format in a NumPy type that has room for them: float32 for most narrow
floats, int8 for int4. What they take in memory is `bits`, never the size of the NumPy type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwsim.numerics.grid import Grid

Array = NDArray[Any]


@dataclass(frozen=True)
class Format:
    """A storage format. ``held`` is NumPy's type for stored values, ``computed`` the type that
    arithmetic runs in."""

    name: str
    bits: int
    """Bits of one value; a packed tensor has no gaps between them."""
    held: np.dtype[Any]
    computed: np.dtype[Any]
    significand: int
    """Bits of the significand with the hidden one; all bits for an integer."""
    sum_name: str
    """Format of a sum of products: int8 products need int32."""

    @property
    def is_integer(self) -> bool:
        return np.issubdtype(self.held, np.integer)

    @property
    def is_native(self) -> bool:
        """Whether NumPy's own arithmetic in `held` already rounds as the format does."""
        return True

    @property
    def has_infinity(self) -> bool:
        return False

    @property
    def stored_bits(self) -> Fraction:
        """Bits of memory for one value, with its share of the scale that a block has."""
        return Fraction(self.bits)

    @property
    def element_bytes(self) -> int | Fraction:
        """Bytes of memory for one value; a fraction where values are packed."""
        exact = self.stored_bits / 8
        return int(exact) if exact.denominator == 1 else exact

    @property
    def lane_bits(self) -> int:
        """Bits of a vector register that one value takes: a power of two, so that six bits sit in eight."""
        return 1 << (self.bits - 1).bit_length()

    @property
    def roundoff(self) -> float:
        """Largest relative error of one rounding; zero for integers."""
        return 0.0 if self.is_integer else 2.0**-self.significand

    @property
    def largest(self) -> float:
        """The largest number."""
        raise NotImplementedError(self.name)

    @property
    def smallest(self) -> float:
        """The smallest number above zero."""
        raise NotImplementedError(self.name)

    def store(self, values: Array, *, saturate: bool = False, axis: int = -1) -> Array:
        """Values rounded to this format, as stored.

        What is too large becomes what the type defines or, with `saturate`, the largest number. `axis` is the one along
        which blocks with a common scale run, for formats that have such blocks.
        """
        raise NotImplementedError(self.name)

    def load(self, stored: Array) -> Array:
        """Stored values in the type that arithmetic runs in."""
        return stored.astype(self.computed, copy=False)


@dataclass(frozen=True)
class FloatFormat(Format):
    """A floating-point format. NumPy rounds to its own types; all others are rounded to their grid."""

    grid: Grid = field(default_factory=lambda: Grid(8, 23, 127))

    @property
    def is_native(self) -> bool:
        return self.held == self.computed and self.held.itemsize * 8 == self.bits and self._is_own_type

    @property
    def has_infinity(self) -> bool:
        return self.grid.specials == "ieee"

    @property
    def largest(self) -> float:
        return self.grid.largest

    @property
    def smallest(self) -> float:
        return self.grid.smallest

    def store(self, values: Array, *, saturate: bool = False, axis: int = -1) -> Array:
        if not self._is_own_type:
            return self.grid.round(np.asarray(values), saturate=saturate)
        with np.errstate(over="ignore"):
            rounded = np.asarray(values).astype(self.held)
        if saturate:
            rounded = np.clip(rounded, self.held.type(-self.largest), self.held.type(self.largest))
        return rounded

    @property
    def _is_own_type(self) -> bool:
        """Whether the held NumPy type is this very format: as many mantissa bits, not more."""
        return bool(np.finfo(self.held).nmant == self.grid.mantissa)


@dataclass(frozen=True)
class IntFormat(Format):
    """An integer. Fractions are rounded to nearest, ties to even.

    A narrow one saturates, as machines do that quantise; int32 and int64, in which sums are kept, wrap around.
    """

    low: int = 0
    high: int = 0
    wraps: bool = False

    @property
    def largest(self) -> float:
        return float(self.high)

    @property
    def smallest(self) -> float:
        return 1.0

    def store(self, values: Array, *, saturate: bool = False, axis: int = -1) -> Array:
        values = np.asarray(values)
        stored: Array
        if not np.issubdtype(values.dtype, np.integer):
            values = np.asarray(np.rint(values))
            if saturate or not self.wraps:
                np.clip(values, self.low, self.high, out=values)
                if np.isnan(values.sum()):
                    values = np.nan_to_num(values, nan=0.0)
                stored = values.astype(self.held)
                return stored
            values = np.nan_to_num(np.clip(values, -(2.0**62), 2.0**62), nan=0.0).astype(np.int64)
        if saturate or not self.wraps:
            values = np.clip(values, self.low, self.high)
        stored = values.astype(self.held)
        return stored


def make_float(
    name: str, grid: Grid, sum_name: str = "", held: type | None = None, computed: type | None = None, bits: int = 0
) -> FloatFormat:
    """A format on a grid; NumPy's narrowest type that has all its numbers holds them if nothing else is said."""
    holds = np.dtype(held) if held is not None else grid.dtype
    arithmetic = np.dtype(computed) if computed is not None else np.promote_types(holds, np.float32)
    return FloatFormat(
        name, bits or 1 + grid.exponent + grid.mantissa, holds, arithmetic, grid.mantissa + 1, sum_name or name, grid
    )


def make_integer(name: str, held: type, sum_name: str, *, bits: int = 0, wraps: bool = False) -> IntFormat:
    """An integer of all bits of a NumPy type, or of fewer."""
    holds = np.dtype(held)
    bits = bits or 8 * holds.itemsize
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if holds.kind == "i" else (0, 2**bits - 1)
    return IntFormat(name, bits, holds, np.promote_types(holds, np.int32), bits, sum_name, low, high, wraps)
