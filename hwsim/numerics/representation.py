"""How numbers are represented: floating point and integer, how many bits, how NumPy holds, computes and rounds them.

Stored values are held on the grid of their format in a NumPy type that has room for them: float32 for most narrow
floats, int8 for int4. What they take in memory is `bits`, never the size of the NumPy type.

A `FloatGrid` is the numbers that a floating-point format of any width has. Rounding works on whole arrays and on bit
patterns. For every value, take a power of two C whose last bit weighs as much as the last bit that the format has at
the value's size; then ``(x + C) - C`` is x rounded to nearest, ties to even, by the addition of the machine that runs
this. C follows from the exponent field of x by one integer addition, and holding that field at the format's smallest
exponent gives subnormals the spacing that they have. (A half more than a power of two, in fact, so that negative
numbers stay in its binade.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Overflow = Literal["inf", "nan", "saturate"]
Specials = Literal["ieee", "nan", "none"]

CHUNK = 1 << 15
"""Values that are rounded together: their copies stay in the cache."""


@dataclass(frozen=True)
class FloatGrid:
    """A sign, exponent and mantissa; see `hwsim.spec.base.FormatSpec` for what the fields mean."""

    exponent: int
    mantissa: int
    bias: int
    specials: Specials = "ieee"
    overflow: Overflow = "inf"

    @property
    def lowest(self) -> int:
        """Exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def highest(self) -> int:
        """Exponent of the largest number."""
        reserved = int(self.specials == "ieee")
        return (1 << self.exponent) - 1 - reserved - self.bias

    @cached_property
    def largest(self) -> float:
        last = 2 if self.specials == "nan" else 1
        return (2.0 - last * 2.0**-self.mantissa) * 2.0**self.highest

    @property
    def smallest(self) -> float:
        """The smallest number above zero: a subnormal one, where there is a mantissa."""
        return 2.0 ** (self.lowest - self.mantissa)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The narrower NumPy type that has all numbers of the grid, and room for the sum that rounds them."""
        in_float32 = self.mantissa <= 20 and self.lowest - self.mantissa >= -126 and self.highest <= 102 + self.mantissa
        as_bfloat = self.mantissa <= 22 and self.lowest == -126 and self.highest == 127
        return np.dtype(np.float32 if in_float32 or as_bfloat else np.float64)

    def round(self, values: NDArray[Any], *, saturate: bool = False) -> NDArray[Any]:
        """The nearest numbers of the grid, ties to even.

        What is too large becomes what the format says or, with `saturate`, the largest number; so does an infinity.
        NaN stays NaN; a format without it makes a zero of the other sign, as ml_dtypes does.
        """
        source = np.ascontiguousarray(values, self.dtype)
        result = np.empty_like(source)
        flat, out = source.reshape(-1), result.reshape(-1)
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, flat.size, CHUNK):
                self._round_chunk(flat[start : start + CHUNK], out[start : start + CHUNK], saturate)
        return result

    def _round_chunk(self, x: NDArray[Any], out: NDArray[Any], saturate: bool) -> None:
        wide = np.finfo(self.dtype)
        unsigned: Any = np.uint32 if self.dtype == np.float32 else np.uint64
        without_sign = unsigned((1 << (wide.bits - 1)) - 1)
        limit = np.array(self.largest, self.dtype).view(unsigned)
        if self.lowest == wide.minexp and self.highest == wide.maxexp - 1:
            self._cut_bits(x.view(unsigned), out.view(unsigned), wide.nmant, unsigned)
            special = np.isnan(x)  # cutting may have lost them
            special |= (out.view(unsigned) & without_sign) > limit
        else:
            self._add_and_subtract(x, out, wide, unsigned)
            special = (out.view(unsigned) & without_sign) > limit
        if special.any():
            self._overflow(x, out, special, saturate)

    def _add_and_subtract(self, x: NDArray[Any], out: NDArray[Any], wide: Any, unsigned: Any) -> None:
        """``(x + C) - C``, with the exponent of C held between those of the smallest and the largest number."""
        mantissa_bits, offset = wide.nmant, wide.maxexp - 1
        exponent = x.view(unsigned) & unsigned(((1 << wide.iexp) - 1) << mantissa_bits)
        low, high = ((e + offset) << mantissa_bits for e in (self.lowest, self.highest + 1))
        np.clip(exponent, unsigned(max(low, 0)), unsigned(high), out=exponent)
        exponent += unsigned(((mantissa_bits - self.mantissa) << mantissa_bits) + (1 << (mantissa_bits - 1)))
        anchor = exponent.view(self.dtype)
        np.add(x, anchor, out=out)
        np.subtract(out, anchor, out=out)
        np.copysign(out, x, out=out)

    def _cut_bits(self, bits: NDArray[Any], out: NDArray[Any], mantissa_bits: int, unsigned: Any) -> None:
        """A format with the exponents of its NumPy type only loses bits: add a half of the last one, and cut.

        One less than a half where the last kept bit is 0: ties go to even. Infinity and NaN are put right later.
        """
        lost = mantissa_bits - self.mantissa
        np.right_shift(bits, unsigned(lost), out=out)
        out &= unsigned(1)
        out += unsigned((1 << (lost - 1)) - 1)
        out += bits
        out &= unsigned(~((1 << lost) - 1) & ((1 << (8 * bits.itemsize)) - 1))

    def _overflow(self, x: NDArray[Any], out: NDArray[Any], special: NDArray[np.bool_], saturate: bool) -> None:
        """Numbers that are too large, infinities, and NaN."""
        saturates = saturate or self.overflow == "saturate"
        instead = self.largest if saturates else np.inf if self.overflow == "inf" else np.nan
        found = x[special]
        unknown = np.copysign(0.0, -found) if self.specials == "none" else np.nan
        out[special] = np.where(np.isnan(found), unknown, np.copysign(instead, found))


Array = NDArray[Any]


@dataclass(frozen=True)
class Format:
    """A storage format. ``held`` is NumPy's type for stored values, ``computed`` the type that arithmetic runs in."""

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

    grid: FloatGrid = field(default_factory=lambda: FloatGrid(8, 23, 127))

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
    name: str,
    grid: FloatGrid,
    sum_name: str = "",
    held: type | None = None,
    computed: type | None = None,
    bits: int = 0,
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
