"""Products of matrices in a number format."""

from __future__ import annotations

import numpy as np

from hwsim.numerics.format import Array, Format


def dot(a: Array, b: Array, fmt: Format) -> Array:
    """``a @ b`` of stored values, in the type that a sum is kept in while it is computed; BLAS does the work.

    Integers are multiplied in float64, which is exact up to 2**53 and much faster than NumPy's integer
    product.
    """
    if fmt.is_integer:
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
    return np.asarray(fmt.load(a) @ fmt.load(b))


def accumulate(target: Array, part: Array, fmt: Format) -> None:
    """``target += part`` with `target` stored in a format."""
    if target.dtype == part.dtype and fmt.name != "bf16":
        target += part
    elif fmt.is_integer:
        target[...] = (target.astype(np.int64) + part).astype(fmt.held)
    else:
        target[...] = fmt.store(fmt.load(target) + part)
