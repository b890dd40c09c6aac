"""QuantizedArray: numbers in a narrow format with the scales that bring them back to their size.

A scale maps the largest magnitude of what it covers to the largest number of the format: of a whole tensor, of a row (a
column of the right-hand matrix: always along the axis that a product sums over), or of a block along that axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hwsim.errors import InputError
from hwsim.numerics.block import BlockFormat, block_maxima, spread_blocks
from hwsim.numerics.format import Array, Format
from hwsim.numerics.kind import FloatFormat, IntFormat

Scaling = Literal["none", "tensor", "row", "block"]

_LONG_RANGE = 1e6


@dataclass(frozen=True, eq=False)
class QuantizedArray:
    """Values on the grid of a format; ``values * scales`` is what they stand for."""

    values: Array
    """As stored. An unsigned integer counts from its zero point."""
    scales: Array
    """One number; one for each row (length 1 along `axis`); or one for each block along `axis`."""
    fmt: Format
    per: Scaling
    axis: int
    """Along which products are summed."""
    block: int = 1
    zeros: Array | None = None
    """The stored number that means 0, one for each scale; None where it is 0."""
    over: int = 0
    """Values that were beyond the largest number and were cut to it."""
    flushed: int = 0
    """Values that were not zero, and are now."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def centred(self) -> Array:
        """The stored values as signed numbers around zero."""
        if self.zeros is None:
            return self.values
        return self.values.astype(np.int16) - self._spread(self.zeros).astype(np.int16)

    def dequantize(self) -> Array:
        """What the values stand for, in float32 (float64 where the format needs it)."""
        wide = np.promote_types(self.fmt.computed, np.float32) if not self.fmt.is_integer else np.dtype(np.float32)
        values = self.centred().astype(wide)
        return values if self.per == "none" else np.asarray(values * self._spread(self.scales).astype(wide))

    def part(self, rows: slice, columns: slice) -> QuantizedArray:
        """A rectangle of a matrix, with its scales."""
        here = (rows, columns)
        scales, zeros, block = self.scales, self.zeros, self.block
        if self.per == "row":
            scales = scales[_kept(here, self.axis)]
            zeros = None if zeros is None else zeros[_kept(here, self.axis)]
        elif self.per == "block":
            along = here[self.axis]
            first, stop, _ = along.indices(self.values.shape[self.axis])
            if first % block == 0 and (stop % block == 0 or stop == self.values.shape[self.axis]):
                cut = slice(first // block, -(-stop // block))
            else:
                scales = self._spread(scales)
                zeros = None if zeros is None else self._spread(zeros)
                block, cut = 1, along
            places = (rows, cut) if self.axis % 2 == 1 else (cut, columns)
            scales, zeros = scales[places], None if zeros is None else zeros[places]
        return QuantizedArray(self.values[here], scales, self.fmt, self.per, self.axis, block, zeros)

    def _spread(self, numbers: Array) -> Array:
        return spread_blocks(numbers, self.values.shape, self.block, self.axis) if self.per == "block" else numbers


def quantize(values: Array, fmt: Format, per: Scaling, *, axis: int = -1, block: int = 32) -> QuantizedArray:
    """Values in a narrow format, with scales for the whole tensor, for rows, or for blocks along `axis`."""
    exact = np.asarray(values)
    if isinstance(fmt, BlockFormat):
        if per != "none":
            check_can_be_scaled(fmt)
        elements, scales = fmt.split(exact, axis)
        stored = QuantizedArray(elements, scales, fmt.element, "block", axis, fmt.block)
        return _with_losses(stored, exact)
    if per != "none":
        check_can_be_scaled(fmt)
    if per == "none":
        plain = QuantizedArray(fmt.store(exact, saturate=True, axis=axis), np.ones(()), fmt, "none", axis)
        return _with_losses(plain, exact)
    wide = exact.astype(np.promote_types(fmt.computed, np.float32) if not fmt.is_integer else np.float32)
    unsigned = isinstance(fmt, IntFormat) and fmt.low == 0
    size = block if per == "block" else 1
    zeros = None
    if unsigned:
        low, high = (_extreme(sign * wide, per, axis, size) * sign for sign in (-1, 1))
        scales = _scale(high - low, fmt.largest)
        zeros = np.rint(-low / scales).astype(np.uint8)
    else:
        scales = _scale(_largest(wide, per, axis, size), fmt.largest)
    spread = spread_blocks(scales, wide.shape, size, axis) if per == "block" else scales
    scaled = wide / spread
    if zeros is not None:
        scaled += spread_blocks(zeros, wide.shape, size, axis) if per == "block" else zeros
    stored = QuantizedArray(fmt.store(scaled, saturate=True), scales, fmt, per, axis, size, zeros)
    return _with_losses(stored, exact)


def check_can_be_scaled(fmt: Format) -> None:
    """Scales are for formats whose range is short: with others, products of scaled numbers would leave it."""
    too_wide = fmt.bits > 16 if fmt.is_integer else fmt.largest > _LONG_RANGE
    if isinstance(fmt, BlockFormat):
        raise InputError(f"scale: {fmt.name} has a scale for each block of {fmt.block} already; leave scale out")
    if too_wide:
        raise InputError(f"scale: {fmt.name} has range enough; scales are for formats such as fp8_e4m3, int8 and int4")


def _with_losses(stored: QuantizedArray, exact: Array) -> QuantizedArray:
    """The same, with the count of values that were beyond the largest number, and of those that became zero.

    A scale that was made for its values leaves none beyond; the power of two of an MX block may.
    """
    flushed = int(np.count_nonzero(exact)) - int(np.count_nonzero(stored.centred()))
    over = 0
    if stored.per == "none":
        over = count_beyond(exact, stored.fmt)
    elif isinstance(stored.fmt, FloatFormat) and stored.per == "block":
        limit = stored.scales * np.float32(stored.fmt.largest)
        over = int(np.count_nonzero(np.abs(exact) > spread_blocks(limit, exact.shape, stored.block, stored.axis)))
    return replace(stored, over=over, flushed=max(0, flushed))


def count_beyond(values: Array, fmt: Format) -> int:
    """How many values lie beyond the largest (or below the lowest) number of a format."""
    if isinstance(fmt, IntFormat):
        return int(np.count_nonzero((values > fmt.high) | (values < fmt.low)))
    if fmt.largest >= float(np.finfo(np.float32).max) / 2 and values.dtype.itemsize <= 4:
        return 0
    return int(np.count_nonzero(np.abs(values) > fmt.largest))


def _largest(values: Array, per: Scaling, axis: int, block: int) -> Array:
    """The largest magnitude of what each scale covers; where all is finite, without a copy of the values."""
    if per != "block":
        along = None if per == "tensor" else axis
        keep = per == "row"
        high, low = (end(axis=along, keepdims=keep, initial=0) for end in (values.max, values.min))
        found = np.asarray(np.maximum(high, -low))
        if np.isfinite(found).all():
            return found
    return _extreme(np.abs(values), per, axis, block)


def _extreme(values: Array, per: Scaling, axis: int, block: int) -> Array:
    """The largest value (at least zero) of what each scale covers."""
    positive = np.maximum(np.where(np.isfinite(values), values, 0), 0)
    if per == "tensor":
        return np.asarray(positive.max(initial=0))
    if per == "row":
        return np.asarray(positive.max(axis=axis, keepdims=True, initial=0))
    return block_maxima(positive, block, axis)


def _scale(range_: Array, largest: float) -> Array:
    """What the largest number of the format stands for, over it; 1 where there is nothing but zeros."""
    return np.where(range_ > 0, range_ / range_.dtype.type(largest), 1).astype(range_.dtype)


def _kept(here: tuple[slice, slice], axis: int) -> tuple[slice, ...]:
    """The part of row scales that belongs to a rectangle: all of the axis that they have no extent along."""
    return tuple(slice(None) if number == axis % 2 else part for number, part in enumerate(here))
