"""Grid: the numbers that a floating-point format of any width has, and rounding to the nearest of them.

Rounding works on whole arrays and on bit patterns. For every value, take a power of two C whose last bit weighs as
much as the last bit that the format has at the value's size; then ``(x + C) - C`` is x rounded to nearest, ties to
even, by the addition of the machine that runs this. C follows from the exponent field of x by one integer addition,
and holding that field at the format's smallest exponent gives subnormals the spacing that they have. (A half more than
a power of two, in fact, so that negative numbers stay in its binade.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Overflow = Literal["inf", "nan", "saturate"]
Specials = Literal["ieee", "nan", "none"]

CHUNK = 1 << 15
"""Values that are rounded together: their copies stay in the cache."""


@dataclass(frozen=True)
class Grid:
    """A sign, exponent and mantissa; see `hwsim.spec.number.FormatSpec` for what the fields mean."""

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
    def smallest_normal(self) -> float:
        return 2.0**self.lowest

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
