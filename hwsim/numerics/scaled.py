"""ScaledFormat: a narrow format with scales, for kernels that know nothing of scales.

Whatever is stored is divided by its scales, rounded, and held multiplied by them again, in float32: what the stored
bits stand for. So an integer format computes with real numbers, and a sum of products is that of the scaled numbers,
but for the rounding of float32. The stock matrix product keeps integers and scales apart instead (`QuantizedArray`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from hwsim.numerics.format import FORMATS, Array, Format
from hwsim.numerics.quantize import Scaling, check_can_be_scaled, quantize

SCALE_BITS = 32
"""Scales are fp32, but for those of MX formats. Those of a tensor or a row are too few to count in memory."""


@dataclass(frozen=True)
class ScaledFormat(Format):
    """`base` with one scale for each stored tensor, row along the last axis, or block of a row."""

    base: Format = field(default_factory=lambda: FORMATS["int8"])
    per: Scaling = "tensor"
    block: int = 32

    @property
    def is_native(self) -> bool:
        return False

    @property
    def stored_bits(self) -> Fraction:
        return scaled_bits(self.base, self.per, self.block)

    @property
    def largest(self) -> float:
        return float(np.finfo(np.float32).max)

    @property
    def smallest(self) -> float:
        return float(np.finfo(np.float32).smallest_subnormal)

    def store(self, values: Array, *, saturate: bool = False, axis: int = -1) -> Array:
        exact = np.asarray(values)
        per = self.per if exact.ndim else "tensor"
        return quantize(exact, self.base, per, axis=axis, block=self.block).dequantize()


def scaled_bits(fmt: Format, per: Scaling, block: int) -> Fraction:
    """Bits of memory for one number, with its share of a block's scale."""
    return fmt.stored_bits + (Fraction(SCALE_BITS, block) if per == "block" else 0)


def with_scales(fmt: Format, per: Scaling, block: int) -> Format:
    """A format with scales, under its own name; the format itself if none are asked for."""
    if per == "none":
        return fmt
    check_can_be_scaled(fmt)
    single = np.dtype(np.float32)
    # Relative to the largest number, a signed integer is off by at most half of 2 / 2^bits.
    significand = fmt.bits - 1 if fmt.is_integer else fmt.significand
    return ScaledFormat(fmt.name, fmt.bits, single, single, significand, "fp32", fmt, per, block)
