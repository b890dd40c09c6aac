"""Any shape, any schedule: operators give what NumPy gives by direct definitions, and count what closed forms count."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.kernels.matmul.operator import MatmulOperator
from hwsim.kernels.matmul.products import LowRankOperator, MatmulBackwardOperator, MatvecOperator, QkvSeparateOperator
from hwsim.kernels.matmul.strassen import StrassenOperator, strassen_additions, strassen_products
from hwsim.kernels.tensor.element import Element, Extra
from hwsim.kernels.tensor.embedding import EmbeddingOperator
from hwsim.kernels.tensor.losses import CrossEntropyOperator, MseOperator
from hwsim.kernels.tensor.norm import LayerNormOperator, RMSNormOperator
from hwsim.kernels.tensor.pointwise_operator import PointwiseOperator
from hwsim.kernels.tensor.reduction import ReduceOperator
from hwsim.kernels.tensor.transpose import TransposeOperator
from hwsim.spec.ops.matmul import ProductSchedule
from tests.unit.kernels.operators import assert_right, inputs, ran

quick = settings(max_examples=40, deadline=None)
extents = st.integers(1, 9)
floats = st.sampled_from(["fp64", "fp32"])
lanes = st.sampled_from([1, 2, 4, 8])
cores = st.sampled_from([1, 3])


@st.composite
def schedules(draw):
    """Any mix of order, register tile and cache tile."""
    schedule = {
        "order": draw(st.sampled_from(["ijk", "ikj", "jik", "jki", "kij", "kji"])),
        "v1": draw(st.integers(1, 3)),
        "v2": draw(st.integers(1, 3)),
        "vector": draw(st.booleans()),
    }
    match draw(st.sampled_from(["none", "square", "strips", "k"])):
        case "square":
            schedule["tile"] = draw(extents)
        case "strips":
            schedule |= {"b1": draw(extents), "b2": draw(extents)}
        case "k":
            schedule["tile_k"] = draw(extents)
    return ProductSchedule(**schedule)


def bias(rank):
    return Element("add", (Extra("bias", (rank - 1,)),))


@quick
@given(
    extents, extents, extents, st.lists(st.integers(1, 3), max_size=2), schedules(), st.booleans(), st.booleans(),
    st.booleans(), st.booleans(), floats, lanes, cores,
)  # fmt: skip
def test_a_product_with_any_batch_layout_schedule_and_epilogue(
    m, n, k, batch, schedule, a_transposed, b_transposed, b_batched, finish, precision, lanes, cores
):
    rank = len(batch) + 2
    epilogue = (bias(rank), Element("relu"), Element("add", (Extra("residual"),))) if finish else ()
    operator = MatmulOperator(
        m, n, k, batch=batch, schedule=schedule, a_transposed=a_transposed, b_transposed=b_transposed,
        b_batched=b_batched, epilogue=epilogue,
    )  # fmt: skip
    kernel = ran(operator, precision, lanes=lanes, cores=cores)
    x = inputs(kernel)
    a = np.swapaxes(x["A"], -1, -2) if a_transposed else x["A"]
    b = np.swapaxes(x["B"], -1, -2) if b_transposed else x["B"]
    expected = np.matmul(a, b)
    if finish:
        expected = np.maximum(expected + x["bias"], 0) + x["residual"]
    assert_right(kernel, {"C": expected})
    assert kernel.useful_flops == prod(batch) * m * n * (2 * k + 3 * finish)


@quick
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data(), st.booleans(), floats, lanes, cores)
def test_a_chain_of_any_length_over_any_shape(shape, data, fused, precision, lanes, cores):
    shape = tuple(shape)
    axis = data.draw(st.one_of(st.none(), st.integers(0, len(shape) - 1)))
    axes = None if axis is None else (axis,)
    stages = (
        Element("add", (Extra("p", axes),)),
        Element("square"),
        Element("scale_shift", (Extra("p", axes), Extra("X"))),
        Element("scale", value=0.5),
        Element("sub", (Extra("q"),)),
    )
    kernel = ran(PointwiseOperator(shape, stages, fused=fused), precision, lanes=lanes, cores=cores)
    x = inputs(kernel)
    p = x["p"] if axis is None else x["p"].reshape([-1 if each == axis else 1 for each in range(len(shape))])
    assert_right(kernel, {"Y": ((x["X"] + p) ** 2 * p + x["X"]) * 0.5 - x["q"]})
    assert kernel.useful_flops == 6 * prod(shape)


@quick
@given(st.lists(st.integers(1, 4), max_size=2), st.integers(1, 40), st.integers(1, 3), floats, lanes, cores)
def test_norms_give_rows_of_mean_zero_and_length_one_before_their_weights(
    rows, columns, together, precision, lanes, cores
):
    shape = (*rows, columns)
    layer = ran(LayerNormOperator(shape, rows=together), precision, lanes=lanes, cores=cores)
    x = inputs(layer)
    centred = x["X"] - x["X"].mean(axis=-1, keepdims=True)
    expected = centred / np.sqrt(x["X"].var(axis=-1, keepdims=True) + 1e-5) * x["gamma"] + x["beta"]
    if columns > 2:  # the difference of two nearly equal numbers, divided by nearly nothing, has no digits left
        assert_right(layer, {"Y": expected})
    assert layer.useful_flops == prod(rows) * (8 * columns + 5)
    rms = ran(RMSNormOperator(shape, rows=together), precision, lanes=lanes, cores=cores)
    x = inputs(rms)
    scale = np.sqrt((x["X"] ** 2).mean(axis=-1, keepdims=True) + 1e-5)
    assert_right(rms, {"Y": x["X"] / scale * x["gamma"]})
    assert rms.useful_flops == prod(rows) * (4 * columns + 4)


@quick
@given(
    st.lists(extents, min_size=1, max_size=3), st.data(), st.sampled_from(["sum", "mean", "max"]),
    st.sampled_from(["stored", "result"]), floats, lanes, cores,
)  # fmt: skip
def test_a_reduction_over_any_axes(shape, data, kind, order, precision, lanes, cores):
    axes = tuple(data.draw(st.lists(st.integers(-len(shape), len(shape) - 1), max_size=3)))
    kernel = ran(ReduceOperator(shape, axes, kind, order=order), precision, lanes=lanes, cores=cores)
    over = tuple({axis % len(shape) for axis in axes}) or None
    expected = np.atleast_1d(getattr(np, kind)(inputs(kernel)["X"], axis=over))
    error = np.abs(kernel.output - expected).max()
    assert kernel.output.shape == expected.shape
    assert error <= 4 * (2**-53 if precision == "fp64" else 2**-24) * prod(shape)
    assert kernel.useful_flops == prod(shape) + (expected.size if kind == "mean" else 0)


@quick
@given(
    st.lists(extents, min_size=2, max_size=4), st.data(), st.sampled_from(["read", "write"]),
    st.one_of(st.none(), extents), lanes, cores,
)  # fmt: skip
def test_a_transpose_with_any_axes_and_tiles_moves_every_element_once(shape, data, order, tile, lanes, cores):
    axes = data.draw(st.permutations(range(len(shape))))
    kernel = ran(TransposeOperator(shape, axes, order=order, tile=tile), lanes=lanes, cores=cores)
    np.testing.assert_array_equal(kernel.output, inputs(kernel)["X"].transpose(axes))
    assert kernel.useful_flops == 0


@quick
@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 20), floats, lanes, cores)
def test_an_embedding_looks_up_rows(tokens, vocabulary, width, precision, lanes, cores):
    kernel = ran(EmbeddingOperator(tokens, vocabulary, width), precision, lanes=lanes, cores=cores)
    x = inputs(kernel)
    np.testing.assert_array_equal(kernel.output, x["W"][x["ids"].astype(int)])


@quick
@given(extents, st.integers(1, 30), st.integers(1, 3), floats, lanes, cores)
def test_cross_entropy_and_its_gradient(examples, classes, together, precision, lanes, cores):
    kernel = ran(CrossEntropyOperator(examples, classes, rows=together), precision, lanes=lanes, cores=cores)
    x = inputs(kernel)
    labels = x["labels"].astype(int)
    y = np.exp(x["X"]) / np.exp(x["X"]).sum(axis=1, keepdims=True)
    loss = -np.log(y[np.arange(examples), labels])
    y[np.arange(examples), labels] -= 1
    if classes > 1:  # with one class both are zero but for rounding
        assert_right(kernel, {"loss": loss, "dX": y})
    assert kernel.useful_flops == examples * (6 * classes + 4)


@quick
@given(st.lists(extents, min_size=1, max_size=3), floats, lanes, cores)
def test_mean_squared_error_and_its_gradient(shape, precision, lanes, cores):
    kernel = ran(MseOperator(shape), precision, lanes=lanes, cores=cores)
    x = inputs(kernel)
    difference = x["Y"] - x["T"]
    assert_right(kernel, {"loss": np.array([np.mean(difference**2)]), "dY": 2 * difference / difference.size})
    assert kernel.useful_flops == 5 * prod(shape) + 1


@quick
@given(extents, extents, st.sampled_from(["ik", "ki"]), st.integers(1, 3), st.booleans(), floats, lanes, cores)
def test_a_matrix_times_a_vector(m, k, order, v1, a_transposed, precision, lanes, cores):
    operator = MatvecOperator(m, k, order=order, v1=v1, a_transposed=a_transposed)
    kernel = ran(operator, precision, lanes=lanes, cores=cores)
    x = inputs(kernel)
    assert_right(kernel, {"y": (x["A"].T if a_transposed else x["A"]) @ x["x"]})
    assert kernel.useful_flops == 2 * m * k


@quick
@given(extents, extents, extents, st.integers(1, 4), schedules(), floats, lanes, cores)
def test_products_of_products(m, n, k, rank, schedule, precision, lanes, cores):
    low = ran(LowRankOperator(m, n, k, rank, schedule=schedule), precision, lanes=lanes, cores=cores)
    x = inputs(low)
    scale = max(1.0, float(np.abs(low.output).max()))
    assert np.abs(low.output - x["A"] @ x["U"] @ x["V"]).max() <= low.tolerance * scale
    assert low.useful_flops == 2 * m * rank * (k + n)
    back = ran(MatmulBackwardOperator(m, n, k, schedule=schedule), precision, lanes=lanes, cores=cores)
    x = inputs(back)
    assert_right(back, {"dA": x["dC"] @ x["B"].T, "dB": x["A"].T @ x["dC"]})
    assert back.useful_flops == 4 * m * n * k
    qkv = ran(QkvSeparateOperator(m, n, schedule=schedule), precision, lanes=lanes, cores=cores)
    x = inputs(qkv)
    assert_right(qkv, {name: x[f"W{name.lower()}"] @ x["H"] for name in "QKV"})


@quick
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20), st.integers(0, 2), schedules(), floats, lanes, cores)
def test_strassen_at_any_size_with_fewer_products_and_more_additions(
    m, n, k, levels, schedule, precision, lanes, cores
):
    operator = StrassenOperator(m, n, k, levels=levels, schedule=schedule)
    kernel = ran(operator, precision, lanes=lanes, cores=cores)
    x = inputs(kernel)
    error = np.abs(kernel.output - x["A"] @ x["B"]).max()
    assert error <= kernel.tolerance * max(1.0, float(np.abs(kernel.output).max()))
    sizes = operator.padded
    assert kernel.useful_flops == 2 * strassen_products(*sizes, levels) + strassen_additions(*sizes, levels)
