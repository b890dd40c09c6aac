"""Products of matrices in a number format, and sums that are kept in one."""

from __future__ import annotations

import numpy as np

from hwsim.numerics.format import Array, Format
from hwsim.numerics.kind import IntFormat

_EXACT_FLOAT32, _EXACT_FLOAT64 = 1 << 24, 1 << 53
"""Whole numbers up to here are exact."""
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
    left: Array = a.astype(wide)
    right: Array = b.astype(wide)
    total = (left[..., :at_once] @ right[..., :at_once, :]).astype(np.int64)
    for start in range(at_once, a.shape[-1], at_once):
        stop = start + at_once
        total += (left[..., start:stop] @ right[..., start:stop, :]).astype(np.int64)
    return np.asarray(total)
