"""The mission's rows on differentiation: D1, D3, D5 and D6. The training step (D4) is a chain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import hwsim
from hwsim.kernels.matmul.operator import MatmulOperator
from hwsim.kernels.matmul.products import MatmulBackwardOperator
from hwsim.kernels.operator import Operator
from hwsim.kernels.tensor.element import Element, Extra
from hwsim.kernels.tensor.losses import CrossEntropyOperator, MseOperator
from hwsim.kernels.tensor.pointwise_operator import PointwiseOperator
from hwsim.numerics.format import Array
from tests.unit.kernels.operators import answers, ran

STEP = 1e-5


def apply(op: str, x: Array, *extras: Array, value: float | None = None) -> Array:
    """One pointwise operation as a kernel of its own, in float64."""
    names = [f"e{number}" for number in range(len(extras))]
    stage = Element(op, tuple(Extra(name) for name in names), value)
    given = {"X": x, **dict(zip(names, extras, strict=True))}
    return ran(PointwiseOperator(x.shape, [stage]), given=given).output


def slope(function: Callable[[Array], float], x: Array) -> Array:
    """D5: the central difference, two evaluations for each element."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[place] += STEP
        down[place] -= STEP
        found[place] = (function(up) - function(down)) / (2 * STEP)
    return found


def values(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def forward(x1: Array, x2: Array) -> Array:
    """y = ln x1 + x1 x2 - sin x2, node by node."""
    v1, v2, v3 = apply("log", x1), apply("mul", x1, x2), apply("sin", x2)
    return apply("sub", apply("add", v1, v2), v3)


def test_d1_a_graph_of_pointwise_kernels_and_its_reverse() -> None:
    """D1: at (2, 5), y = 11.652, dy/dx1 = 5.5 and dy/dx2 = 1.716; an adjoint is the sum over all who use a value."""
    x1, x2, one = np.array([2.0]), np.array([5.0]), np.array([1.0])
    assert forward(x1, x2)[0] == pytest.approx(11.652, abs=5e-4)
    d_sum, d_sin = one, apply("neg", one)
    d_x1 = apply("add", apply("mul", d_sum, apply("reciprocal", x1)), apply("mul", d_sum, x2))
    d_x2 = apply("add", apply("mul", d_sum, x1), apply("mul", d_sin, apply("cos", x2)))
    assert d_x1[0] == pytest.approx(5.5, abs=1e-12)
    assert d_x2[0] == pytest.approx(1.716, abs=5e-4)
    numeric = slope(lambda x: float(forward(x, x2)[0]), x1)[0], slope(lambda x: float(forward(x1, x)[0]), x2)[0]
    assert (d_x1[0], d_x2[0]) == pytest.approx(numeric, rel=1e-8)


def test_d3_forward_and_backward_are_three_products() -> None:
    """D3: dA = dC Bᵀ and dB = Aᵀ dC take as many multiply-adds as the forward pass each."""
    sizes = {"m": 20, "n": 30, "k": 10}
    there = hwsim.run("course_cpu", "matmul_tiled", **sizes)
    back = hwsim.run("course_cpu", "matmul_backward", **sizes)
    assert back.verified
    assert there.work["macs"] == 20 * 30 * 10
    assert there.work["macs"] + back.work["macs"] == 3 * there.work["macs"]


def test_d3_d5_the_backward_products_are_the_slopes_of_the_forward_one() -> None:
    a, b, weights = values(3, 4), values(4, 2, seed=2), values(3, 2, seed=3)

    def loss(a: Array, b: Array) -> float:
        return float((ran(MatmulOperator(3, 2, 4), given={"A": a, "B": b}).output * weights).sum())

    found = answers(ran(MatmulBackwardOperator(3, 2, 4), given={"A": a, "B": b, "dC": weights}))
    np.testing.assert_allclose(found["dA"], slope(lambda x: loss(x, b), a), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found["dB"], slope(lambda x: loss(a, x), b), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("op", ["relu", "gelu", "silu"])
def test_d5_the_backward_operation_is_the_slope_of_the_forward_one(op: str) -> None:
    x, upstream = values(3, 5), values(3, 5, seed=2)
    expected = slope(lambda x: float((apply(op, x) * upstream).sum()), x)
    np.testing.assert_allclose(apply(f"{op}_backward", upstream, x), expected, rtol=1e-7, atol=1e-9)


def loss_of(operator: Operator, **given: Array) -> float:
    return float(answers(ran(operator, given=given))["loss"].sum())


def test_d5_the_gradient_of_the_squared_error_is_its_slope() -> None:
    y, t = values(3, 4), values(3, 4, seed=2)
    operator = MseOperator((3, 4))
    expected = slope(lambda x: loss_of(operator, Y=x, T=t), y)
    np.testing.assert_allclose(answers(ran(operator, given={"Y": y, "T": t}))["dY"], expected, rtol=1e-8, atol=1e-10)


def test_d6_the_gradient_of_softmax_with_cross_entropy_is_y_minus_t() -> None:
    """D6: y - t, by its definition and by central differences."""
    x, labels = values(4, 5), np.array([0, 4, 2, 2])
    operator = CrossEntropyOperator(4, 5)
    found = answers(ran(operator, given={"X": x, "labels": labels}))
    y = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    t = np.eye(5)[labels]
    np.testing.assert_allclose(found["dX"], y - t, rtol=1e-13, atol=1e-15)
    expected = slope(lambda x: loss_of(operator, X=x, labels=labels), x)
    np.testing.assert_allclose(found["dX"], expected, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found["dX"].sum(axis=1), 0, atol=1e-15)


def test_d5_central_differences_are_inexact_and_take_two_evaluations_for_each_input() -> None:
    """D5: half the step has a quarter of the error, until rounding takes over."""
    x = np.array([0.7])
    exact = float(apply("cos", x)[0])

    def error(step: float) -> float:
        return abs(float((apply("sin", x + step)[0] - apply("sin", x - step)[0]) / (2 * step)) - exact)

    assert error(1e-2) / error(5e-3) == pytest.approx(4, rel=1e-3)
    assert error(1e-13) > error(1e-5) > 0
