"""Datapath: what a machine's multipliers and adders do with two matrices.

    path = find_datapath("int8", scale="row")
    product = path.dot(path.quantize_a(A), path.quantize_b(B))      # real numbers, with the errors of int8

Operands come in a format of their own; products are summed in chunks, and each chunk is added to an accumulator, which
is rounded to its format. Without a chunk the sum is wide: everything is summed in float32 (integers: exactly), and the
accumulator is rounded once. Scales of tensors and rows are applied to the finished sum, those of blocks to the sum
of each block. Where the operands differ (weight-only quantisation), the right one is turned into the format of the left
one before it is multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hwsim.errors import InputError
from hwsim.numerics.format import Array, BlockFormat, Format, IntFormat, find_format
from hwsim.numerics.quantize import QuantizedArray, Scaling, quantize, scaled_bits
from hwsim.spec.base import FormatSpec

_EXACT_FLOAT32, _EXACT_FLOAT64 = 1 << 24, 1 << 53
"""Whole numbers up to here are exact."""
_ROWS = 512
"""Of the left matrix that are multiplied at a time."""
_SHORTEST = 256
"""Products summed in one go from which float32 is faster than float64."""


def dot(a: Array, b: Array, fmt: Format) -> Array:
    """``a @ b`` of stored values, in the type that a sum is kept in while it is computed; BLAS does the work.

    Products of two numbers of at most 12 significant bits are exact in float32; only their sum is rounded.
    """
    if fmt.is_integer:
        return integer_dot(a, b)
    return np.asarray(fmt.load(a) @ fmt.load(b))


def integer_dot(a: Array, b: Array) -> Array:
    """``a @ b`` of integers, exact (modulo 2**64), in int64.

    NumPy's integer product is slow. A sum of products that stays below 2**24 is exact in float32, whatever its order,
    and one below 2**53 in float64: as many are summed at a time as that allows.
    """
    if b.ndim == 1:
        return np.asarray(integer_dot(a, b[:, None])[..., 0])
    most = _magnitude(a) * _magnitude(b)
    inner = a.shape[-1]
    at_once = _EXACT_FLOAT32 // most if most else inner
    if at_once >= min(inner, _SHORTEST):
        return _summed_in(np.float32, a, b, at_once)
    if most * inner <= _EXACT_FLOAT64:
        return _summed_in(np.float64, a, b, inner)
    return np.asarray(a.astype(np.int64) @ b.astype(np.int64))


def accumulate(target: Array, part: Array, fmt: Format) -> None:
    """``target += part`` with `target` stored in a format."""
    if target.dtype == part.dtype and fmt.is_native:
        target += part
    elif isinstance(fmt, IntFormat) and fmt.wraps:
        np.add(target, part, out=target, casting="unsafe")  # added in 64 bits, and cut
    elif fmt.is_integer:
        target[...] = fmt.store(target.astype(np.int64) + part)
    else:
        target[...] = fmt.store(fmt.load(target) + part)


def _magnitude(values: Array) -> int:
    """No element is larger: by its type where that is narrow, else by looking."""
    if values.dtype.itemsize == 1:
        return 128 if values.dtype.kind == "i" else 255
    return max(abs(int(values.max(initial=0))), abs(int(values.min(initial=0))))


def _summed_in(wide: type, a: Array, b: Array, at_once: int) -> Array:
    """Some rows at a time, so that large products need little room beside the sums."""
    right: Array = b.astype(wide)
    rows, inner = a.shape[-2:] if a.ndim > 1 else (1, a.shape[-1])
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *a.shape[-2:-1], b.shape[-1]), np.int64)
    for first in range(0, rows, _ROWS):
        some = (..., slice(first, first + _ROWS), slice(None)) if a.ndim > 1 else (...,)
        left: Array = a[some].astype(wide)
        for start in range(0, inner, at_once):
            part = slice(start, start + at_once)
            total[some] += (left[..., part] @ right[..., part, :]).astype(np.int64)
    return total


Operand = Array | QuantizedArray


@dataclass(frozen=True)
class SumRule:
    """How a machine keeps sums of products where a workload does not say."""

    accumulate: str | FormatSpec | None = None
    """Number format of the sums."""
    chunk: int | None = None
    """Products that are summed before the sum is rounded."""
    at_tiles: bool = True
    """Whether a sum also goes to memory, and is rounded to what is stored there, at each tile of the schedule; on a
    machine that keeps sums in accumulators it does not."""


@dataclass(frozen=True)
class WeightOnly:
    """A way to store weights more narrowly than activations."""

    activations: str
    weights: str
    scale: Scaling
    block: int = 128


WEIGHT_ONLY: Mapping[str, WeightOnly] = {
    "w8a16": WeightOnly("fp16", "int8", "row"),
    "w4a16": WeightOnly("fp16", "int4", "block"),
}
"""One scale for each output of w8a16; one for each 128 weights of an output in w4a16, as is usual."""


@dataclass(frozen=True)
class Datapath:
    """Formats of the operands and of the accumulator, products per rounding, and scales."""

    a: Format
    b: Format
    accumulator: Format
    chunk: int | None = None
    """Products that are summed before the accumulator is rounded; None for all of them."""
    scale_a: Scaling = "none"
    scale_b: Scaling = "none"
    block: int = 32

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise InputError(f"chunk: at least one product is summed before rounding, not {self.chunk}")
        if self.a.is_integer and not self.b.is_integer:
            raise InputError(f"{self.a.name} times {self.b.name}: integers are not multiplied by floating point")
        if isinstance(self.accumulator, BlockFormat):
            raise InputError(f"accumulate: {self.accumulator.name} has blocks, and a sum is a single number")
        if self.accumulator.is_integer != self.a.is_integer:
            fitting = "int32 or int64" if self.a.is_integer else "fp32, fp16 or bf16"
            raise InputError(
                f"accumulate: {self.accumulator.name} does not sum products of {self.a.name}; use {fitting}, say"
            )

    @property
    def converts(self) -> bool:
        """Whether the right operand is turned into the left one's format before it is multiplied."""
        return self.a != self.b

    @property
    def scaled(self) -> bool:
        return self.scale_a != "none" or (self.scale_b != "none" and not self.converts)

    @property
    def result(self) -> Format:
        """The format of a result: the accumulator's, or fp32 where integers were scaled."""
        return find_format("fp32") if self.scaled and self.accumulator.is_integer else self.accumulator

    @property
    def stored_bits_a(self) -> Fraction:
        """Bits of memory for one number of the left matrix, with its share of a block's scale."""
        return scaled_bits(self.a, self.scale_a, self.block)

    @property
    def stored_bits_b(self) -> Fraction:
        return scaled_bits(self.b, self.scale_b, self.block)

    def quantize_a(self, values: Array) -> QuantizedArray:
        return quantize(values, self.a, self.scale_a, axis=-1, block=self.block)

    def quantize_b(self, values: Array) -> QuantizedArray:
        return quantize(values, self.b, self.scale_b, axis=-2, block=self.block)

    def dot(self, a: Operand, b: Operand, onto: Array | None = None) -> Array:
        """The product, as the accumulator (or the scales) leave it; plain arrays hold stored values without scales.

        `onto` holds sums in the format `result` to which it is added.
        """
        left, right = self._operand(a, self.a, -1), self._operand(b, self.b, -2)
        shape = (*left.shape[:-1], right.shape[-1])
        target = np.zeros(shape, self.result.held) if onto is None else onto.copy()
        self.accumulate(target, left, right)
        return self.result.load(target)

    def accumulate(self, target: Array, a: Operand, b: Operand) -> None:
        """``target += a @ b`` with `target` stored in the format `result`."""
        left, right = self._operand(a, self.a, -1), self._operand(b, self.b, -2)
        if self.converts:
            right = _plain(self.a.store(right.dequantize(), saturate=True), self.a, -2)
        blocked = [each for each in (left, right) if each.per == "block"]
        if blocked and not all(_is_exact(each) for each in blocked):
            self._by_blocks(target, left, right)
            return
        left, right = _without_blocks(left), _without_blocks(right)
        if left.per == right.per == "none":
            self._add(target, left.centred(), right.centred(), left.fmt)
            return
        own = np.zeros(target.shape, self.accumulator.held)
        self._add(own, left.centred(), right.centred(), left.fmt)
        accumulate(target, self._scale(own, left.scales, right.scales), self.result)

    def _add(self, target: Array, left: Array, right: Array, fmt: Format) -> None:
        """Chunk after chunk into the accumulator."""
        for part in self._chunks(left.shape[-1]):
            accumulate(target, dot(left[..., part], right[..., part, :], fmt), self.accumulator)

    def _chunks(self, inner: int) -> Iterator[slice]:
        # Integer sums are exact in any order; only a floating-point accumulator loses something between chunks.
        size = inner if self.chunk is None or self.accumulator.is_integer else self.chunk
        for start in range(0, inner, max(1, size)):
            yield slice(start, start + size)

    def _by_blocks(self, target: Array, left: QuantizedArray, right: QuantizedArray) -> None:
        """Each block's sum, brought to its size, into the result."""
        inner = left.shape[-1]
        size = min(each.block for each in (left, right) if each.per == "block")
        everything = slice(None)
        for start in range(0, inner, size):
            part = slice(start, start + size)
            a, b = left.part(everything, part), right.part(part, everything)
            own = np.zeros(target.shape, self.accumulator.held)
            self._add(own, a.centred(), b.centred(), a.fmt)
            accumulate(target, self._scale(own, a.scales, b.scales), self.result)

    def _scale(self, sums: Array, scale_a: Array, scale_b: Array) -> Array:
        wide = self.result.computed
        return np.asarray(self.accumulator.load(sums).astype(wide) * (scale_a.astype(wide) * scale_b.astype(wide)))

    @staticmethod
    def _operand(values: Operand, fmt: Format, axis: int) -> QuantizedArray:
        return values if isinstance(values, QuantizedArray) else _plain(values, fmt, axis)


def find_datapath(
    precision: str | FormatSpec,
    *,
    accumulate: str | FormatSpec | None = None,
    chunk: int | None = None,
    scale: Scaling = "none",
    block: int | None = None,
    stored: bool = False,
) -> Datapath:
    """The datapath that a workload's fields ask for; wide sums if nothing is said about them.

    Integers are summed in int32 (int16 in int64), others in fp32, fp64 in fp64. With `stored`, the sum is rounded to
    the format in which results of the precision are stored: bf16 for bf16.
    """
    weights = WEIGHT_ONLY.get(precision) if isinstance(precision, str) else None
    if weights is not None:
        if scale != "none":
            raise InputError(f"scale: {precision} has its own scales, one per {weights.scale} of weights; leave it out")
        a, b = find_format(weights.activations), find_format(weights.weights)
        sums = find_format(accumulate or (a.name if stored else "fp32"))
        return Datapath(a, b, sums, chunk, "none", weights.scale, block or weights.block)
    fmt = find_format(precision)
    wide = fmt.sum_name if fmt.is_integer or stored else "fp64" if fmt.computed.itemsize == 8 else "fp32"
    return Datapath(fmt, fmt, find_format(accumulate or wide), chunk, scale, scale, block or 32)


def _plain(values: Array, fmt: Format, axis: int) -> QuantizedArray:
    return QuantizedArray(values, np.ones(()), fmt, "none", axis)


def _is_exact(array: QuantizedArray) -> bool:
    """Whether scaling back loses nothing: a narrow significand times a power of two."""
    return array.per != "block" or (not array.fmt.is_integer and bool((np.frexp(array.scales)[0] == 0.5).all()))


def _without_blocks(array: QuantizedArray) -> QuantizedArray:
    """Block scales that are powers of two, multiplied in."""
    if array.per != "block":
        return array
    return _plain(array.dequantize(), array.fmt, array.axis)


def sums_in(precision: str, accumulator: str, chunk: int) -> SumRule:
    """The rule of a machine that keeps sums of a format in accumulators of its own until they are whole.

    An accumulator at least as wide as fp32 rounds no more than the arithmetic does: the sum is wide, and rounded once,
    to what is stored. A narrower one is rounded after each `chunk` of products.
    """
    kept, own = find_format(accumulator), find_format(precision)
    if kept.is_integer or own.is_integer:
        return SumRule(None if accumulator == own.sum_name else accumulator, at_tiles=False)
    if kept.roundoff <= find_format("fp32").roundoff:
        return SumRule(at_tiles=False)
    return SumRule(accumulator, chunk, at_tiles=False)
