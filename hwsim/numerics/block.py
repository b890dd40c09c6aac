"""Blocks with a common scale: the MX formats of the Open Compute Project, and how a block's scale is chosen.

A block is 32 neighbours along an axis; its scale is a power of two of 8 bits, so that a value of MXFP4 takes 4.25 bits.
The scale is the largest power of two not above the largest magnitude of the block, over the largest power of two that
the element format has (OCP Microscaling Formats 1.0, section 6.3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from hwsim.numerics.grid import Grid
from hwsim.numerics.kind import Array, FloatFormat, Format, make_float

MX_BLOCK, MX_SCALE_BITS = 32, 8
_SCALE_LOW, _SCALE_HIGH = -127, 127


@dataclass(frozen=True)
class BlockFormat(Format):
    """Elements of a narrow format in blocks that share a power-of-two scale. Stored values are held scaled back:
    a narrow significand times a power of two is exact in float32."""

    element: FloatFormat = field(default_factory=lambda: make_float("fp4_e2m1", Grid(2, 1, 1, "none", "saturate")))
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
