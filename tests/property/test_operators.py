"""Any shape, any schedule: operators give what NumPy gives by direct definitions, and count what closed forms count."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kernels.operators import applied, assert_right, inputs, ran, staged

quick = settings(max_examples=40, deadline=None)
extents = st.integers(1, 9)
floats = st.sampled_from(["fp64", "fp32"])
lanes = st.sampled_from([1, 2, 4, 8])
cores = st.sampled_from([1, 3])


@quick
@given(
    st.tuples(st.integers(1, 5), st.integers(1, 9)), st.sampled_from(["all", "rows", "columns"]), st.booleans(), floats,
    lanes, cores,
)  # fmt: skip
def test_a_chain_of_stages_over_any_matrix(shape, along, fused, precision, lanes, cores):
    stages = (
        {"op": "add", "inputs": ("p",), "along": along},
        "square",
        {"op": "scale_shift", "inputs": ("p", "X"), "along": along},
        {"op": "scale", "value": 0.5},
        {"op": "sub", "inputs": ("q",)},
    )
    kernel = ran(staged(shape, *stages, fused=fused), precision, lanes=lanes, cores=cores)
    x = inputs(kernel)
    p = x["p"][:, None] if along == "rows" else x["p"]
    assert_right(kernel, {"Y": ((x["X"] + p) ** 2 * p + x["X"]) * 0.5 - x["q"]})
    assert kernel.useful_flops == 6 * prod(shape)


@quick
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data(), floats, lanes, cores)
def test_an_operation_on_elements_over_any_shape_with_operands_of_its_last_axes(shape, data, precision, lanes, cores):
    last = shape[data.draw(st.integers(0, len(shape) - 1)) :]
    operator = applied("scale_shift", shape, last, shape, schedule={"vector": True})
    kernel = ran(operator, precision, lanes=lanes, cores=cores)
    x = inputs(kernel)
    assert_right(kernel, {"C": x["A"] * x["B"] + x["D"]})
    assert kernel.useful_flops == 2 * prod(shape)


@quick
@given(st.lists(st.integers(1, 4), max_size=2), st.integers(1, 40), st.integers(1, 3), floats, lanes, cores)
def test_norms_give_rows_of_mean_zero_and_length_one_before_their_weights(
    rows, columns, together, precision, lanes, cores
):
    shape = (*rows, columns)
    layer = ran(
        applied("layernorm", shape, (columns,), (columns,), schedule={"rows": together}),
        precision,
        lanes=lanes,
        cores=cores,
    )
    x = inputs(layer)
    centred = x["X"] - x["X"].mean(axis=-1, keepdims=True)
    expected = centred / np.sqrt(x["X"].var(axis=-1, keepdims=True) + 1e-5) * x["gamma"] + x["beta"]
    if columns > 2:  # the difference of two nearly equal numbers, divided by nearly nothing, has no digits left
        assert_right(layer, {"Y": expected})
    assert layer.useful_flops == prod(rows) * (8 * columns + 5)
    rms = ran(applied("rmsnorm", shape, (columns,), schedule={"rows": together}), precision, lanes=lanes, cores=cores)
    x = inputs(rms)
    scale = np.sqrt((x["X"] ** 2).mean(axis=-1, keepdims=True) + 1e-5)
    assert_right(rms, {"Y": x["X"] / scale * x["gamma"]})
    assert rms.useful_flops == prod(rows) * (4 * columns + 4)


@quick
@given(
    st.lists(extents, min_size=1, max_size=3), st.data(), st.sampled_from(["sum", "mean", "max"]),
    st.sampled_from(["stored", "result"]), floats, lanes, cores,
)  # fmt: skip
def test_a_reduction_over_any_axis(shape, data, kind, order, precision, lanes, cores):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    operator = applied(f"reduce_{kind}", shape, axis=axis, schedule={"order": order})
    kernel = ran(operator, precision, lanes=lanes, cores=cores)
    expected = np.atleast_1d(getattr(np, kind)(inputs(kernel)["X"], axis=axis))
    error = np.abs(kernel.output - expected).max()
    assert kernel.output.shape == expected.shape
    assert error <= 4 * (2**-53 if precision == "fp64" else 2**-24) * prod(shape)
    assert kernel.useful_flops == prod(shape) + (expected.size if kind == "mean" else 0)


@quick
@given(
    st.tuples(extents, extents), st.sampled_from(["read", "write"]), st.one_of(st.none(), extents), st.booleans(),
    lanes, cores,
)  # fmt: skip
def test_a_transpose_with_any_tiles_moves_every_element_once(shape, order, tile, vector, lanes, cores):
    schedule = {"order": order, "tile": tile, "vector": vector}
    kernel = ran(applied("transpose", shape, schedule=schedule), lanes=lanes, cores=cores)
    np.testing.assert_array_equal(kernel.output, inputs(kernel)["X"].T)
    assert kernel.useful_flops == 0


@quick
@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 20), floats, lanes, cores)
def test_an_embedding_looks_up_rows(tokens, vocabulary, width, precision, lanes, cores):
    kernel = ran(
        applied("embedding", (tokens,), (vocabulary, width), schedule={"vector": True}),
        precision,
        lanes=lanes,
        cores=cores,
    )
    x = inputs(kernel)
    np.testing.assert_array_equal(kernel.output, x["W"][x["ids"].astype(int)])


@quick
@given(extents, st.integers(1, 30), st.integers(1, 3), floats, lanes, cores)
def test_cross_entropy_and_its_gradient(examples, classes, together, precision, lanes, cores):
    operator = applied("cross_entropy", (examples,), (examples, classes), schedule={"rows": together})
    kernel = ran(operator, precision, lanes=lanes, cores=cores)
    x = inputs(kernel)
    labels = x["labels"].astype(int)
    y = np.exp(x["X"]) / np.exp(x["X"]).sum(axis=1, keepdims=True)
    loss = -np.log(y[np.arange(examples), labels])
    y[np.arange(examples), labels] -= 1
    if classes > 1:  # with one class both are zero but for rounding
        assert_right(kernel, {"loss": loss, "dX": y})
    assert kernel.useful_flops == examples * (6 * classes + 4)


@quick
@given(st.tuples(extents, extents), floats, lanes, cores)
def test_mean_squared_error_and_its_gradient(shape, precision, lanes, cores):
    kernel = ran(applied("mse", shape, shape, schedule={"vector": True}), precision, lanes=lanes, cores=cores)
    x = inputs(kernel)
    difference = x["Y"] - x["T"]
    assert_right(kernel, {"loss": np.array([np.mean(difference**2)]), "dY": 2 * difference / difference.size})
    assert kernel.useful_flops == 5 * prod(shape) + 1
