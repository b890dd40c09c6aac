"""Number formats: how numbers are represented, and the formats that tensors may be stored in, by name.

Stored values are held on the grid of their format in a NumPy type that has room for them: float32 for most narrow
floats, int8 for int4. What they take in memory is `bits`, never the size of the NumPy type. A format narrower than what
NumPy computes in is rounded whenever a value is stored, as a machine does that keeps sums in a wider register.

A `FloatGrid` is the numbers that a floating-point format of any width has. Rounding works on whole arrays and on bit
patterns. For every value, take a power of two C whose last bit weighs as much as the last bit that the format has at
the value's size; then ``(x + C) - C`` is x rounded to nearest, ties to even, by the addition of the machine that runs
this. C follows from the exponent field of x by one integer addition, and holding that field at the format's smallest
exponent gives subnormals the spacing that they have. (A half more than a power of two, in fact, so that negative
numbers stay in its binade.)

Adding a format is one more entry in ``FORMATS``; any other floating-point format is ``e5m3`` or a `FormatSpec`. MX
formats are blocks with a common scale. A block is 32 neighbours along an axis; its scale is a power of two of 8 bits,
so that a value of MXFP4 takes 4.25 bits. The scale is the largest power of two not above the largest magnitude of the
block, over the largest power of two that the element format has (OCP Microscaling Formats 1.0, section 6.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from hwsim.errors import InputError
from hwsim.spec.base import SHORT_NAME, FormatSpec, WeightOnly
from hwsim.spec.fields import did_you_mean

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

    @cached_property
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


MX_BLOCK, MX_SCALE_BITS = 32, 8
_SCALE_LOW, _SCALE_HIGH = -127, 127


@dataclass(frozen=True)
class BlockFormat(Format):
    """Elements of a narrow format in blocks that share a power-of-two scale. Stored values are held scaled back:
    a narrow significand times a power of two is exact in float32."""

    element: FloatFormat = field(default_factory=lambda: make_float("fp4_e2m1", FloatGrid(2, 1, 1, "none", "saturate")))
    block: int = MX_BLOCK

    @property
    def is_native(self) -> bool:
        return False

    @property
    def stored_bits(self) -> Fraction:
        return self.bits + Fraction(MX_SCALE_BITS, self.block)

    @property
    def largest(self) -> float:
        return self.element.largest * 2.0**_SCALE_HIGH

    @property
    def smallest(self) -> float:
        return self.element.smallest * 2.0**_SCALE_LOW

    def store(self, values: Array, *, saturate: bool = False, axis: int = -1) -> Array:
        elements, scales = self.split(values, axis)
        return join_blocks(elements, scales, self.block, axis)

    def split(self, values: Array, axis: int = -1) -> tuple[Array, Array]:
        """Elements on their own grid, and one scale for each block along an axis (the last block may be short)."""
        source = np.asarray(values, np.float32)
        exponents = np.frexp(block_maxima(source, self.block, axis))[1] - 1 - self.element.grid.highest
        scales = np.ldexp(np.float32(1), np.clip(exponents, _SCALE_LOW, _SCALE_HIGH)).astype(np.float32)
        with np.errstate(invalid="ignore"):
            scaled = source / spread_blocks(scales, source.shape, self.block, axis)
        return self.element.store(scaled, saturate=True), scales


def block_maxima(values: Array, block: int, axis: int = -1) -> Array:
    """The largest finite magnitude of each block along an axis."""
    magnitudes = np.abs(values)
    magnitudes[~np.isfinite(magnitudes)] = 0
    if not values.shape or values.shape[axis] == 0:
        return magnitudes
    return np.asarray(np.maximum.reduceat(magnitudes, np.arange(0, values.shape[axis], block), axis=axis))


def spread_blocks(scales: Array, shape: tuple[int, ...], block: int, axis: int = -1) -> Array:
    """One number for each value from one for each block."""
    if not shape:
        return scales
    wide = np.repeat(scales, block, axis=axis)
    return np.take(wide, np.arange(shape[axis]), axis=axis) if wide.shape[axis] != shape[axis] else wide


def join_blocks(elements: Array, scales: Array, block: int, axis: int = -1) -> Array:
    """The numbers that elements and scales stand for."""
    return np.asarray(elements * spread_blocks(scales, elements.shape, block, axis))


def make_mx(name: str, element: FloatFormat) -> BlockFormat:
    return BlockFormat(
        name, element.bits, element.held, element.computed, element.significand, "fp32", element, MX_BLOCK
    )


_E4M3 = make_float("fp8_e4m3", FloatGrid(4, 3, 7, "nan", "nan"), "fp32")
_E3M2 = make_float("fp6_e3m2", FloatGrid(3, 2, 3, "none", "saturate"), "fp32")
_E2M1 = make_float("fp4_e2m1", FloatGrid(2, 1, 1, "none", "saturate"), "fp32")

FORMATS: Mapping[str, Format] = {
    fmt.name: fmt
    for fmt in (
        make_float("fp64", FloatGrid(11, 52, 1023), held=np.float64),
        make_float("fp32", FloatGrid(8, 23, 127), held=np.float32),
        make_float("tf32", FloatGrid(8, 10, 127), "fp32", bits=32),  # lies in memory as fp32 does
        make_float("bf16", FloatGrid(8, 7, 127)),
        make_float("fp16", FloatGrid(5, 10, 15), held=np.float16),
        _E4M3,
        make_float("fp8_e5m2", FloatGrid(5, 2, 15), "fp32"),
        _E3M2,
        make_float("fp6_e2m3", FloatGrid(2, 3, 1, "none", "saturate"), "fp32"),
        _E2M1,
        make_mx("mxfp8", _E4M3),
        make_mx("mxfp6", _E3M2),
        make_mx("mxfp4", _E2M1),
        make_integer("int64", np.int64, "int64", wraps=True),
        make_integer("int32", np.int32, "int32", wraps=True),
        make_integer("int16", np.int16, "int64"),
        make_integer("int8", np.int8, "int32"),
        make_integer("int4", np.int8, "int32", bits=4),
        make_integer("uint4", np.uint8, "int32", bits=4),
    )
}


def operation_unit(precision: object) -> str:
    """What operations on numbers of a format are counted in: ``OP`` of integers, ``FLOP`` of all others, also of those
    that a workload describes itself."""
    fmt = FORMATS.get(precision) if isinstance(precision, str) else None
    return "OP" if fmt is not None and fmt.is_integer else "FLOP"


def find_format(name: str | FormatSpec) -> Format:
    """A format by its name, by a short name such as ``e5m3``, or as a workload file describes it."""
    if isinstance(name, FormatSpec):
        return _own_format(name)
    if name in FORMATS:
        return FORMATS[name]
    short = SHORT_NAME.fullmatch(name)
    if short is not None:
        try:
            return _own_format(FormatSpec(exponent=int(short[1]), mantissa=int(short[2])))
        except ValidationError:
            raise InputError(f"'{name}': e takes 2 to 10 bits, and m 1 to 50") from None
    if name in get_args(WeightOnly):
        raise InputError(f"precision: {name} is about weights of a matrix product; here, one of {', '.join(FORMATS)}")
    near = did_you_mean(name, FORMATS) or ", nor like e5m3"
    raise InputError(f"'{name}' is not one of the number formats {', '.join(FORMATS)}{near}")


@cache
def _own_format(spec: FormatSpec) -> FloatFormat:
    by_specials = {"ieee": "inf", "nan": "nan", "none": "saturate"}
    overflow = spec.overflow or by_specials[spec.specials]
    usual = 2 ** (spec.exponent - 1) - 1
    bias = usual if spec.bias is None else spec.bias
    grid = FloatGrid(spec.exponent, spec.mantissa, bias, spec.specials, overflow)  # type: ignore[arg-type]
    words = [f"e{spec.exponent}m{spec.mantissa}"]
    words += [spec.specials] if spec.specials != "ieee" else []
    words += [overflow] if overflow != by_specials[spec.specials] else []
    words += [f"bias{bias}".replace("-", "m")] if bias != usual else []
    return make_float(spec.name or "_".join(words), grid, "fp32" if grid.dtype == np.float32 else "fp64")
