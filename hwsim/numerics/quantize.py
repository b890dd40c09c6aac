"""QuantizedArray: numbers in a narrow format with the scales that bring them back to their size.

A scale maps the largest magnitude of what it covers to the largest number of the format: of a whole tensor, of a row (a
column of the right-hand matrix: always along the axis that a product sums over), or of a block along that axis.

A `ScaledFormat` is the same for kernels that know nothing of scales. Whatever is stored is divided by its scales,
rounded, and held multiplied by them again, in float32: what the stored bits stand for. So an integer format computes
with real numbers, and a sum of products is that of the scaled numbers, but for the rounding of float32. The stock
matrix product keeps integers and scales apart instead (`QuantizedArray`).

How far an answer is from the exact one: the error report of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from math import inf, isinf, log10, prod
from typing import Any, Literal, Self

import numpy as np

from hwsim.errors import InputError
from hwsim.numerics.format import (
    FORMATS,
    Array,
    BlockFormat,
    FloatFormat,
    Format,
    IntFormat,
    block_maxima,
    spread_blocks,
)

Scaling = Literal["none", "tensor", "row", "block"]

_LONG_RANGE = 1e6
_LONGEST_SCALED = 16
"""Bits of the widest integers that have scales."""


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
    """Along which products are summed, counted from the last: -1 or -2 for a factor of a product of matrices."""
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
        if self.per != "none":
            values *= self._spread(self.scales).astype(wide)
        return values

    def part(self, rows: slice, columns: slice) -> QuantizedArray:
        """A rectangle of a matrix, or of each of a batch, with its scales."""
        here = (rows, columns)
        first, stop, _ = here[self.axis].indices(self.values.shape[self.axis])

        def view(array: Array, start: int, count: int) -> Array:
            along = slice(start, start + count)
            return array[(..., rows, along) if self.axis == -1 else (..., along, columns)]

        return self.seen(view, first, stop - first, self.axis)

    def seen(self, view: Callable[[Array, int, int], Array], first: int, count: int, axis: int) -> QuantizedArray:
        """A part of it, with its scales: `view` gives that part of an array, of which it takes so many elements, from a
        first one on, along the axis that products sum over; in the part, that is `axis`."""
        block, last = self.block, first + count
        start, cut = 0, 1
        if self.per == "block" and first % block == 0 and last in (-(-last // block) * block, self.shape[self.axis]):
            start, cut = first // block, -(-last // block) - first // block
        elif self.per == "block":
            block, start, cut = 1, first, count

        def own(numbers: Array) -> Array:
            if self.per in ("none", "tensor"):
                return numbers
            return view(self._spread(numbers) if block != self.block else numbers, start, cut)

        zeros = None if self.zeros is None else own(self.zeros)
        values = view(self.values, first, count)
        return QuantizedArray(values, own(self.scales), self.fmt, self.per, axis, block, zeros)

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
    kind = np.promote_types(fmt.computed, np.float32) if not fmt.is_integer else np.dtype(np.float32)
    unsigned = isinstance(fmt, IntFormat) and fmt.low == 0
    if per == "tensor" and not unsigned:
        scale = _scale(_peak(exact, kind), fmt.largest)
        return _with_losses(QuantizedArray(_in_pieces(exact, kind, scale, fmt), scale, fmt, per, axis), exact)
    wide = exact.astype(kind)
    size = block if per == "block" else 1
    zeros = None
    if unsigned:
        low, high = (_extreme(sign * wide, per, axis, size) * sign for sign in (-1, 1))
        scales = _scale(high - low, fmt.largest)
        zeros = np.rint(-low / scales).astype(np.uint8)
    else:
        scales = _scale(_largest(wide, per, axis, size), fmt.largest)
    wide /= spread_blocks(scales, wide.shape, size, axis) if per == "block" else scales
    if zeros is not None:
        wide += spread_blocks(zeros, wide.shape, size, axis) if per == "block" else zeros
    stored = QuantizedArray(fmt.store(wide, saturate=True), scales, fmt, per, axis, size, zeros)
    return _with_losses(stored, exact)


def _peak(exact: Array, kind: np.dtype[Any]) -> Array:
    """The largest magnitude as a number of a type: rounding keeps the order, so that one of them is rounded."""
    with np.errstate(over="ignore"):
        high, low = (np.asarray(end(initial=0)).astype(kind) for end in (exact.max, exact.min))
    found = np.maximum(high, -low)
    return np.asarray(found) if np.isfinite(found) else _extreme(np.abs(exact.astype(kind)), "tensor", -1, 1)


def _in_pieces(exact: Array, kind: np.dtype[Any], scale: Array, fmt: Format) -> Array:
    """Values over one scale, as stored: piece by piece, so that what lies between stays in a cache."""
    flat = exact.reshape(-1)
    starts = range(0, max(1, flat.size), PIECE)
    pieces = [fmt.store(flat[start : start + PIECE].astype(kind) / scale, saturate=True) for start in starts]
    return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).reshape(exact.shape)


def can_be_scaled_integers(fmt: Format) -> bool:
    """Whether whole numbers of a format usually stand for fractions: signed ones of up to 16 bits."""
    return isinstance(fmt, IntFormat) and fmt.low < 0 and fmt.bits <= _LONGEST_SCALED


def check_can_be_scaled(fmt: Format) -> None:
    """Scales are for formats whose range is short: with others, products of scaled numbers would leave it."""
    too_wide = fmt.bits > _LONGEST_SCALED if fmt.is_integer else fmt.largest > _LONG_RANGE
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
    if _furthest(values) <= fmt.largest:
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


PIECE = 1 << 15
"""Values that are rounded to a format at a time."""
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


BEFORE, STORED = "before rounding", "as stored"
"""Inputs from which a reference is computed: before they were rounded to their format, or after."""


@dataclass(frozen=True)
class NumericError:
    """How far an answer is from its reference. Infinite where it is not all numbers; JSON has null for that."""

    max_rel: float
    """Largest difference, relative to the largest element of the reference."""
    rms_rel: float
    """Root mean square of the differences, relative to that of the reference."""

    def to_dict(self) -> dict[str, float | str | None]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: None if isinstance(value, float) and isinf(value) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, float | str | None]) -> Self:
        values: dict[str, Any] = {name: inf if value is None else value for name, value in data.items()}
        if values.get("snr_db") == inf and values["rms_rel"]:
            values["snr_db"] = -inf
        return cls(**values)


@dataclass(frozen=True)
class Losses:
    """Numbers that did not survive being stored."""

    count: int = 0
    saturated: int = 0
    """Beyond the largest number of their format."""
    flushed: int = 0
    """Not zero before, and zero now."""

    def __add__(self, other: Losses) -> Losses:
        return Losses(self.count + other.count, self.saturated + other.saturated, self.flushed + other.flushed)


@dataclass(frozen=True)
class NumericReport(NumericError):  # noqa: N818 - nothing is raised
    """An answer against float64, with all that a precision costs."""

    snr_db: float
    """Signal to noise: 20 log10 of one over `rms_rel`; infinite for an exact answer, minus infinite for one that is
    not all numbers."""
    cosine: float
    """Cosine of the angle between answer and reference."""
    saturated: float = 0.0
    """Share of all inputs and results that were beyond the largest number of their format."""
    flushed: float = 0.0
    """Share of all inputs and results that became zero and were not."""
    inputs: str = STORED
    """What the reference was computed from: inputs ``before rounding``, or ``as stored``."""


def measure(output: Array, reference: Array) -> NumericReport:
    """Relative errors; absolute ones where the reference is all zeros."""
    computed, exact = np.asarray(output), np.asarray(reference, np.float64)
    if computed.shape != exact.shape or not np.isfinite(computed).all():
        return NumericReport(inf, inf, -inf, 0.0)
    room = np.subtract(computed, exact, out=np.empty_like(exact))
    furthest = _furthest(room)
    relative = _rms(room, room) / (_rms(exact, room) or 1.0)
    return NumericReport(
        max_rel=furthest / (_furthest(exact) or 1.0),
        rms_rel=relative,
        snr_db=-20 * log10(relative) if relative else inf,
        cosine=_cosine(computed, exact, room),
    )


def with_losses(report: NumericReport, losses: Iterable[Losses], inputs: str) -> NumericReport:
    """The report with the shares of what did not survive being stored."""
    total = sum(losses, Losses())
    count = total.count or 1
    return replace(report, saturated=total.saturated / count, flushed=total.flushed / count, inputs=inputs)


def input_losses(exact: Array, stored: Array | QuantizedArray, fmt: Format) -> Losses:
    """What became of the values of an input when they were stored."""
    if not isinstance(stored, QuantizedArray) and isinstance(fmt, BlockFormat):
        stored = quantize(exact, fmt, "none")
    if isinstance(stored, QuantizedArray):
        return Losses(exact.size, stored.over, stored.flushed)
    flushed = int(np.count_nonzero(exact)) - int(np.count_nonzero(stored))
    return Losses(exact.size, count_beyond(exact, fmt), max(0, flushed))


def output_losses(output: Array, reference: Array, fmt: Format) -> Losses:
    """Results that their format has no number for."""
    beyond = count_beyond(reference, fmt)
    broken = int(np.count_nonzero(~np.isfinite(output))) if output.dtype.kind == "f" else 0
    flushed = int(np.count_nonzero((output == 0) & (np.abs(reference) > 0)))
    # A sum that cancels may be zero by rounding alone: only what is too small for the format counts.
    small = int(np.count_nonzero((reference != 0) & (np.abs(reference) < fmt.smallest)))
    return Losses(output.size, max(beyond, broken), min(flushed, small))


def _furthest(values: Array) -> float:
    """The largest magnitude, without another array of them."""
    return max(float(np.max(values, initial=0.0)), -float(np.min(values, initial=0.0)))


def _rms(values: Array, room: Array) -> float:
    """`room` is for the squares: answers may be large."""
    return float(np.sqrt(np.mean(np.square(values, out=room)))) if values.size else 0.0


def _cosine(first: Array, second: Array, room: Array) -> float:
    """By NumPy's own sums: those of a linear algebra library depend on its threads."""
    squares = (np.sum(np.square(each, out=room, dtype=np.float64)) for each in (first, second))
    lengths = float(prod(np.sqrt(total) for total in squares))
    if not lengths:
        return 1.0 if not first.any() and not second.any() else 0.0
    return float(np.clip(np.sum(np.multiply(first, second, out=room)) / lengths, -1.0, 1.0))
