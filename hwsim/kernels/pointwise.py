"""Operations on single elements: what they compute, and what one element costs.

A pointwise operation turns a value, and up to two further operands, into a value. Several make a chain that runs in one
loop over memory, or in the registers of a matrix product or convolution just before its result is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array

GELU_SCALE = float(np.sqrt(2 / np.pi))
GELU_CUBIC = 0.044715
"""Of the approximation by tanh: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016."""


@dataclass(frozen=True)
class Pointwise:
    """`extras` operands beside the value itself; `body` is the arithmetic of one element."""

    name: str
    extras: int
    body: Instructions
    function: Callable[..., Array]


def _gelu(x: Array) -> Array:
    half, cubic, scale, one = (x.dtype.type(c) for c in (0.5, GELU_CUBIC, GELU_SCALE, 1))
    return np.asarray(half * x * (one + np.tanh(scale * (x + cubic * x * x * x))))


def _silu(x: Array) -> Array:
    return np.asarray(x / (x.dtype.type(1) + np.exp(-x)))


def _sigmoid(x: Array) -> Array:
    one = x.dtype.type(1)
    return np.asarray(one / (one + np.exp(-x)))


POINTWISE: Mapping[str, Pointwise] = {
    each.name: each
    for each in (
        Pointwise("copy", 0, Instructions(), lambda x: x),
        Pointwise("add", 1, Instructions(add=1), lambda x, y: x + y),
        Pointwise("sub", 1, Instructions(add=1), lambda x, y: x - y),
        Pointwise("mul", 1, Instructions(mul=1), lambda x, y: x * y),
        Pointwise("relu", 0, Instructions(add=1), lambda x: np.maximum(x, x.dtype.type(0))),
        Pointwise("square", 0, Instructions(mul=1), lambda x: x * x),
        Pointwise("exp", 0, Instructions(special=1), np.exp),
        Pointwise("sigmoid", 0, Instructions(add=1, special=2), _sigmoid),
        Pointwise("tanh", 0, Instructions(special=1), np.tanh),
        Pointwise("gelu", 0, Instructions(fma=2, mul=3, special=1), _gelu),
        Pointwise("silu", 0, Instructions(add=1, special=2), _silu),
        Pointwise("scale_shift", 2, Instructions(fma=1), lambda x, scale, shift: x * scale + shift),
        Pointwise("relu_backward", 1, Instructions(mul=1), lambda d, x: d * (x > 0)),
    )
}
"""By name. A maximum counts as an addition; an exponential, a division or a tanh is one special operation."""
