"""The number formats that tensors may be stored in, by name.

Adding a format is one more entry in ``FORMATS``; any other floating-point format is ``e5m3`` or a `FormatSpec`. A
format narrower than what NumPy computes in is rounded whenever a value is stored, as a machine does that keeps sums in
a wider register.

MX formats are blocks with a common scale. A block is 32 neighbours along an axis; its scale is a power of two of 8
bits, so that a value of MXFP4 takes 4.25 bits. The scale is the largest power of two not above the largest magnitude of
the block, over the largest power of two that the element format has (OCP Microscaling Formats 1.0, section 6.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import get_args

import numpy as np
from pydantic import ValidationError

from hwsim.errors import InputError
from hwsim.numerics.representation import Array, FloatFormat, FloatGrid, Format, make_float, make_integer
from hwsim.spec.base import SHORT_NAME, FormatSpec, WeightOnly
from hwsim.spec.fields import did_you_mean

__all__ = ["FORMATS", "Array", "Format", "find_format"]


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
            raise InputError(f"'{name}': e takes 2 to 11 bits, and m 1 to 50") from None
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
