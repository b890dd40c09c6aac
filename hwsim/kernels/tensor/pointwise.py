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
    constant: bool = False
    """Whether a number goes with it, which the function takes last."""
    check: Callable[..., Array] | None = None
    """The same by another formula, for the reference in float64, where there is one."""

    @property
    def needs_floats(self) -> bool:
        return self.constant or self.body.special > 0


def _gelu(x: Array) -> Array:
    half, cubic, scale, one = (x.dtype.type(c) for c in (0.5, GELU_CUBIC, GELU_SCALE, 1))
    return np.asarray(half * x * (one + np.tanh(scale * (x + cubic * x * x * x))))


def _gelu_by_exp(x: Array) -> Array:
    """(1 + tanh u) / 2 is 1 / (1 + exp(-2u))."""
    return np.asarray(x / (1 + np.exp(-2 * GELU_SCALE * (x + GELU_CUBIC * x**3))))


def _gelu_backward(d: Array, x: Array) -> Array:
    half, cubic, scale, one, three = (x.dtype.type(c) for c in (0.5, GELU_CUBIC, GELU_SCALE, 1, 3))
    t = np.tanh(scale * (x + cubic * x * x * x))
    slope = scale * (one + three * cubic * x * x)
    return np.asarray(d * half * ((one + t) + x * (one - t * t) * slope))


def _sigmoid(x: Array) -> Array:
    one = x.dtype.type(1)
    return np.asarray(one / (one + np.exp(-x)))


def _sigmoid_by_tanh(x: Array) -> Array:
    return np.asarray((1 + np.tanh(x / 2)) / 2)


def _silu(x: Array) -> Array:
    return np.asarray(x / (x.dtype.type(1) + np.exp(-x)))


def _silu_backward(d: Array, x: Array) -> Array:
    one, s = x.dtype.type(1), _sigmoid(x)
    return np.asarray(d * s * (one + x * (one - s)))


POINTWISE: Mapping[str, Pointwise] = {
    each.name: each
    for each in (
        Pointwise("copy", 0, Instructions(), lambda x: x),
        Pointwise("add", 1, Instructions(add=1), lambda x, y: x + y),
        Pointwise("sub", 1, Instructions(add=1), lambda x, y: x - y),
        Pointwise("mul", 1, Instructions(mul=1), lambda x, y: x * y),
        Pointwise("div", 1, Instructions(special=1), lambda x, y: x / y),
        Pointwise("neg", 0, Instructions(add=1), lambda x: -x),
        Pointwise("relu", 0, Instructions(add=1), lambda x: np.maximum(x, x.dtype.type(0))),
        Pointwise("square", 0, Instructions(mul=1), lambda x: x * x),
        Pointwise("scale", 0, Instructions(mul=1), lambda x, c: x * c, constant=True),
        Pointwise("shift", 0, Instructions(add=1), lambda x, c: x + c, constant=True),
        Pointwise("exp", 0, Instructions(special=1), np.exp),
        Pointwise("log", 0, Instructions(special=1), np.log),
        Pointwise("sqrt", 0, Instructions(special=1), np.sqrt),
        Pointwise("reciprocal", 0, Instructions(special=1), lambda x: x.dtype.type(1) / x),
        Pointwise("sin", 0, Instructions(special=1), np.sin),
        Pointwise("cos", 0, Instructions(special=1), np.cos),
        Pointwise("sigmoid", 0, Instructions(add=1, special=2), _sigmoid, check=_sigmoid_by_tanh),
        Pointwise("tanh", 0, Instructions(special=1), np.tanh, check=lambda x: 2 * _sigmoid_by_tanh(2 * x) - 1),
        Pointwise("gelu", 0, Instructions(fma=2, mul=3, special=1), _gelu, check=_gelu_by_exp),
        Pointwise("silu", 0, Instructions(add=1, special=2), _silu, check=lambda x: x * _sigmoid_by_tanh(x)),
        Pointwise("scale_shift", 2, Instructions(fma=1), lambda x, scale, shift: x * scale + shift),
        Pointwise("scale_add", 1, Instructions(fma=1), lambda x, y, c: c * x + y, constant=True),
        Pointwise("add_scaled", 1, Instructions(fma=1), lambda x, y, c: x + c * y, constant=True),
        Pointwise("relu_backward", 1, Instructions(mul=1), lambda d, x: d * (x > 0)),
        Pointwise("gelu_backward", 1, Instructions(fma=4, add=1, mul=7, special=1), _gelu_backward),
        Pointwise("silu_backward", 1, Instructions(fma=1, add=2, mul=2, special=2), _silu_backward),
    )
}
"""By name. A maximum counts as an addition; an exponential, a division or a tanh is one special operation."""
