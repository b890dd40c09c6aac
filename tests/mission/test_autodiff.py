"""The mission's rows on differentiation: D1 to D6. The training step (D4) is also a chain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import hwsim
from hwsim.numerics.format import Array
from hwsim.ops.formula import interpret
from hwsim.ops.layers import cross_entropy, mse
from hwsim.ops.matmul import matmul, matmul_backward
from hwsim.program.bind import Program, bind
from hwsim.program.gradient import backward, points
from hwsim.program.gradient import forward as flat
from hwsim.program.gradient import text as written
from hwsim.program.operation import Operator, find_operation
from hwsim.program.statement import parse_statements
from tests.unit.kernels.operators import answers, ran

STEP = 1e-5


def apply(op: str, x: Array, *extras: Array, value: float | None = None) -> Array:
    """One pointwise operation as a kernel of its own, in float64."""
    operation = find_operation(op)
    given = dict(zip(operation.inputs, (x, *extras), strict=True))
    numbers = {} if value is None else {"value": value}
    return ran(operation.apply([each.shape for each in given.values()], numbers), given=given).output


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
        return float((ran(matmul.apply([(3, 4), (4, 2)]), given={"A": a, "B": b}).output * weights).sum())

    found = answers(ran(matmul_backward.apply([(3, 2), (4, 2), (3, 4)]), given={"A": a, "B": b, "dC": weights}))
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
    operator = mse.apply([(3, 4), (3, 4)])
    expected = slope(lambda x: loss_of(operator, Y=x, T=t), y)
    np.testing.assert_allclose(answers(ran(operator, given={"Y": y, "T": t}))["dY"], expected, rtol=1e-8, atol=1e-10)


def test_d6_the_gradient_of_softmax_with_cross_entropy_is_y_minus_t() -> None:
    """D6: y - t, by its definition and by central differences."""
    x, labels = values(4, 5), np.array([0, 4, 2, 2])
    operator = cross_entropy.apply([(4,), (4, 5)])
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


SMALL = """
    v1[i] = log(x1[i])
    v2[i] = x1[i] * x2[i]
    y[i] = v1[i] + v2[i] - sin(x2[i])
"""
MLP = """
    h[i,f] += x[i,d] * w1[d,f]
    a[i,f] = max(h[i,f], 0)
    y[i,o] += a[i,f] * w2[f,o]
"""
SIZES = {"i": 3, "d": 5, "f": 4, "o": 2}


def program_of(text: str, **sizes: int) -> Program:
    return bind(parse_statements(text), sizes=sizes)


def derived(program: Program, given: dict[str, Array], *wrt: str) -> dict[str, Array]:
    """The backward pass that follows from the statements, run over the values of the forward one."""
    output = program.outputs[-1]
    statements = (*flat(program), *backward(program, wrt, {output: f"d{output}"}))
    shapes = {**program.shapes, f"d{output}": program.shapes[output]}
    inputs = (*program.inputs, f"d{output}")
    both = bind(statements, shapes=shapes, inputs=inputs, outputs=tuple(f"d{name}" for name in wrt))
    return interpret(both, given)


def test_d1_the_reverse_follows_from_the_statements() -> None:
    """D1: the same three numbers, and nobody wrote the backward pass."""
    given = {"x1": np.array([2.0]), "x2": np.array([5.0]), "dy": np.array([1.0])}
    found = derived(program_of(SMALL, i=1), given, "x1", "x2")
    assert found["y"][0] == pytest.approx(11.652, abs=5e-4)
    assert found["dx1"][0] == pytest.approx(5.5, abs=1e-12)
    assert found["dx2"][0] == pytest.approx(1.716, abs=5e-4)


def test_d2_reverse_mode_takes_one_pass_where_forward_mode_takes_one_for_each_input() -> None:
    """D2: a loss of n weights costs n forward passes by differences, and one reverse pass of about two."""
    program = program_of(MLP, **SIZES)
    reverse = points(program, backward(program, ("w1", "w2"), {"y": "dy"}))
    once = points(program, flat(program))
    weights = SIZES["d"] * SIZES["f"] + SIZES["f"] * SIZES["o"]
    assert reverse < 2 * once
    assert weights * once > 10 * reverse


def test_d3_the_derived_backward_pass_of_a_product_is_two_products() -> None:
    """D3: dA = dC Bᵀ and dB = Aᵀ dC, as statements over the same loops."""
    program = program_of("C[i,j] += A[i,k] * B[k,j]", i=20, j=30, k=10)
    statements = backward(program, ("A", "B"), {"C": "dC"})
    assert written(statements) == "dA[i,k] += (dC[i,j] * B[k,j])\ndB[k,j] += (dC[i,j] * A[i,k])"
    assert points(program, statements) == 2 * points(program, flat(program))


def test_d4_d5_the_derived_gradients_of_a_network_are_its_slopes() -> None:
    """D4: w2·ReLU(w1 x), by all of its weights; D5: central differences are the oracle."""
    program = program_of(MLP, **SIZES)
    given = {name: values(*program.shapes[name], seed=seed) for seed, name in enumerate(("x", "w1", "w2"), start=1)}
    upstream = values(*program.shapes["y"], seed=4)
    found = derived(program, {**given, "dy": upstream}, "w1", "w2", "x")
    for name, value in given.items():

        def loss(x: Array, name: str = name) -> float:
            return float((interpret(program, {**given, name: x})["y"] * upstream).sum())

        np.testing.assert_allclose(found[f"d{name}"], slope(loss, value), rtol=1e-7, atol=1e-9)


def test_d6_y_minus_t_follows_from_the_statements_of_softmax_and_cross_entropy() -> None:
    """D6: for one-hot t, the derived gradient is y - t."""
    text = """
        e[i,j] = exp(x[i,j])
        s[i] += e[i,j]
        y[i,j] = e[i,j] / s[i]
        l[i,j] = -t[i,j] * log(y[i,j])
    """
    x, t = values(4, 5), np.eye(5)[[0, 4, 2, 2]]
    found = derived(program_of(text, i=4, j=5), {"x": x, "t": t, "dl": np.ones((4, 5))}, "x")
    np.testing.assert_allclose(found["dx"], found["y"] - t, rtol=1e-12, atol=1e-14)
