"""Number formats that tensors are stored in: their bits, and how NumPy holds, computes and rounds them.

Adding a format is one more entry in ``FORMATS``. A format narrower than what NumPy computes in is rounded
whenever a value is stored, as a machine does that keeps sums in a wider register.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwsim.errors import InputError

Array = NDArray[Any]


@dataclass(frozen=True)
class Format:
    """A storage format. ``held`` is NumPy's type for stored values, ``computed`` the type that
    arithmetic runs in."""

    name: str
    bits: int
    held: np.dtype[Any]
    computed: np.dtype[Any]
    significand: int
    """Bits of the significand with the hidden one; all bits for an integer."""
    sum_name: str
    """Format of a sum of products: int8 products need int32."""

    @property
    def is_integer(self) -> bool:
        return np.issubdtype(self.held, np.integer)

    @property
    def element_bytes(self) -> int:
        return self.bits // 8

    @property
    def roundoff(self) -> float:
        """Largest relative error of one rounding; zero for integers."""
        return 0.0 if self.is_integer else 2.0**-self.significand

    def store(self, values: Array) -> Array:
        """Values rounded to this format, as stored."""
        if self.name == "bf16":
            return _round_to_bf16(np.asarray(values, np.float32))
        return np.asarray(values).astype(self.held)

    def load(self, stored: Array) -> Array:
        """Stored values in the type that arithmetic runs in."""
        return stored.astype(self.computed, copy=False)


def find_format(name: str) -> Format:
    try:
        return FORMATS[name]
    except KeyError:
        raise InputError(f"'{name}' is not one of the number formats {', '.join(FORMATS)}") from None


def _round_to_bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The nearest numbers with an 8-bit significand, ties to even; NumPy has no such type, so float32
    holds them."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(values), rounded.view(np.float32), values)


def _format(name: str, bits: int, held: type, computed: type, significand: int, sum_name: str = "") -> Format:
    return Format(name, bits, np.dtype(held), np.dtype(computed), significand, sum_name or name)


FORMATS: Mapping[str, Format] = {
    fmt.name: fmt
    for fmt in (
        _format("fp64", 64, np.float64, np.float64, 53),
        _format("fp32", 32, np.float32, np.float32, 24),
        _format("fp16", 16, np.float16, np.float32, 11),
        _format("bf16", 16, np.float32, np.float32, 8),
        _format("int32", 32, np.int32, np.int32, 32),
        _format("int8", 8, np.int8, np.int32, 8, "int32"),
    )
}
