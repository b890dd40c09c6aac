"""Matrix products of any shape, batch, format and schedule: counts are those of plain loops, answers those of NumPy."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.ops.matmul import (
    MatmulSchedule,
    MatvecSchedule,
    ProductSchedule,
    matmul,
    matmul_backward,
    matmul_lowrank,
    matvec,
    qkv_separate,
)
from hwsim.ops.strassen import (
    StrassenSchedule,
    matmul_strassen,
    strassen_additions,
    strassen_products,
    strassen_sizes,
)
from hwsim.program.graph import FusedOperator
from hwsim.program.operation import find_operation
from tests.unit.kernels.helpers import counts
from tests.unit.kernels.operators import assert_right, inputs, made, ran

quick = settings(max_examples=40, deadline=None)
extents = st.integers(1, 9)
floats = st.sampled_from(["fp64", "fp32"])
formats = st.sampled_from(["fp64", "fp32", "bf16", "int8", "w4a16", "w8a16"])
lanes = st.sampled_from([1, 2, 4, 8])
cores = st.sampled_from([1, 3])


@st.composite
def loops(draw):
    """Any mix of order, register tile and cache tile; tiles divide nothing in general."""
    found = {
        "order": draw(st.sampled_from(["ijk", "ikj", "jik", "jki", "kij", "kji"])),
        "v1": draw(st.integers(1, 3)),
        "v2": draw(st.integers(1, 3)),
        "vector": draw(st.booleans()),
    }
    match draw(st.sampled_from(["none", "square", "strips", "k"])):
        case "square":
            found["tile"] = draw(extents)
        case "strips":
            found |= {"b1": draw(extents), "b2": draw(extents)}
        case "k":
            found["tile_k"] = draw(extents)
    return found


schedules = loops().map(lambda found: ProductSchedule(**found))


@st.composite
def stored(draw):
    """The same with B transposed in memory, rows padded, or tiles packed."""
    found = draw(loops()) | {"b_layout": draw(st.sampled_from(["kj", "jk"]))}
    can_pack = {"tile", "b1", "tile_k"} & set(found) or max(found["v1"], found["v2"]) > 1
    match draw(st.sampled_from(["plain", "padded", "packed"])):
        case "padded":
            found["ld"] = draw(st.integers(9, 12))
        case "packed" if can_pack:
            found["packed"] = True
    return MatmulSchedule(**found)


def finish(head):
    """A bias along the columns, a maximum, and a residual, behind a product."""
    shape = head.outputs[0].shape
    add, relu = find_operation("add"), find_operation("relu")
    return FusedOperator(head, [add.apply([shape, shape[-1:]]), relu.apply([shape]), add.apply([shape, shape])])


@quick
@given(
    extents, extents, extents, st.lists(st.integers(1, 3), max_size=2), schedules, st.booleans(), st.booleans(),
    st.booleans(), st.booleans(), floats, lanes, cores,
)  # fmt: skip
def test_a_product_with_any_batch_layout_schedule_and_epilogue(
    m, n, k, batch, schedule, transpose_a, transpose_b, b_batched, finished, precision, lanes, cores
):
    a_shape = (*batch, *((k, m) if transpose_a else (m, k)))
    b_shape = (*(batch if b_batched else ()), *((n, k) if transpose_b else (k, n)))
    parameters = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    operator = matmul.apply([a_shape, b_shape], parameters, schedule)
    operator = finish(operator) if finished else operator
    kernel = ran(operator, precision, lanes=lanes, cores=cores)
    first, second, *extras = inputs(kernel).values()
    a = np.swapaxes(first, -1, -2) if transpose_a else first
    b = np.swapaxes(second, -1, -2) if transpose_b else second
    expected = np.matmul(a, b)
    if finished:
        bias, residual = extras
        expected = np.maximum(expected + bias, 0) + residual
    assert_right(kernel, {operator.outputs[0].name: expected})
    assert kernel.useful_flops == prod(batch) * m * n * (2 * k + 3 * finished)


@quick
@given(extents, extents, extents, st.lists(st.integers(1, 3), max_size=1), stored(), formats, lanes, cores)
def test_a_product_in_any_format_however_it_is_stored(m, n, k, batch, schedule, precision, lanes, cores):
    kernel = ran(matmul.apply([(*batch, m, k), (*batch, k, n)], schedule=schedule), precision, lanes=lanes, cores=cores)
    x = inputs(kernel)
    assert_right(kernel, {"C": np.matmul(x["A"], x["B"])})


def counted(m, n, k, batch, schedule):
    """Loads and stores of a product by running through its loops, tiles first, one iteration after the other.

    What a loop moves is loaded in the innermost loop that moves it, and a sum is stored there too; it is loaded before
    where a loop over k is around.
    """
    sizes = {"i": schedule.tile, "j": schedule.tile, "k": schedule.tile}
    levels = [*((index, sizes[index]) for index in schedule.order if sizes[index]), *((i, 1) for i in schedule.order)]
    found = dict.fromkeys(("loads.A", "loads.B", "loads.C", "stores.C"), 0)
    deepest = {
        name: max(level for level, (index, _) in enumerate(levels) if index in indices)
        for name, indices in {"A": "ik", "B": "kj", "C": "ij"}.items()
    }
    resumed = any(index == "k" for index, _ in levels[: deepest["C"]])

    def run(level, ranges):
        if level == len(levels):
            return
        index, step = levels[level]
        first, last = ranges[index]
        for start in range(first, last, step):
            for name in "AB":
                found[f"loads.{name}"] += level == deepest[name]
            found["loads.C"] += level == deepest["C"] and resumed
            run(level + 1, {**ranges, index: (start, min(start + step, last))})
            found["stores.C"] += level == deepest["C"]

    for _ in range(prod(batch)):
        run(0, {"i": (0, m), "j": (0, n), "k": (0, k)})
    return found


@quick
@given(
    st.integers(2, 6), st.integers(2, 6), st.integers(2, 6), st.lists(st.integers(1, 3), max_size=1),
    st.sampled_from(["ijk", "ikj", "jik", "jki", "kij", "kji"]), st.one_of(st.none(), st.integers(2, 4)),
)  # fmt: skip
def test_counts_are_those_of_plain_loops(m, n, k, batch, order, tile):
    schedule = ProductSchedule(order=order, tile=tile)
    kernel = made(matmul.apply([(*batch, m, k), (*batch, k, n)], schedule=schedule), math=False)
    seen = counts(kernel)
    assert {name: seen[name] for name in counted(m, n, k, batch, schedule)} == counted(m, n, k, batch, schedule)
    assert kernel.useful_flops == 2 * prod(batch) * m * n * k


@quick
@given(extents, extents, st.sampled_from(["ik", "ki"]), st.integers(1, 3), st.booleans(), formats, lanes, cores)
def test_a_matrix_times_a_vector(m, k, order, v1, a_transposed, precision, lanes, cores):
    schedule = MatvecSchedule(order=order, v1=v1, a_layout="ki" if a_transposed else "ik", vector=True)
    kernel = ran(matvec.apply([(m, k), (k,)], schedule=schedule), precision, lanes=lanes, cores=cores)
    x = inputs(kernel)
    assert_right(kernel, {"y": x["A"] @ x["x"]})
    assert kernel.useful_flops == 2 * m * k


@quick
@given(extents, extents, extents, st.integers(1, 4), schedules, floats, lanes, cores)
def test_products_of_products(m, n, k, rank, schedule, precision, lanes, cores):
    low = ran(
        matmul_lowrank.apply([(m, k), (k, rank), (rank, n)], schedule=schedule), precision, lanes=lanes, cores=cores
    )
    x = inputs(low)
    scale = max(1.0, float(np.abs(low.output).max()))
    assert np.abs(low.output - x["A"] @ x["U"] @ x["V"]).max() <= low.tolerance * scale
    assert low.useful_flops == 2 * m * rank * (k + n)
    back = ran(matmul_backward.apply([(m, n), (k, n), (m, k)], schedule=schedule), precision, lanes=lanes, cores=cores)
    x = inputs(back)
    assert_right(back, {"dA": x["dC"] @ x["B"].T, "dB": x["A"].T @ x["dC"]})
    assert back.useful_flops == 4 * m * n * k
    shapes = [(m, m), (m, n), (m, m), (m, m)]
    qkv = ran(qkv_separate.apply(shapes, schedule=schedule), precision, lanes=lanes, cores=cores)
    x = inputs(qkv)
    assert_right(qkv, {name: x[f"W{name.lower()}"] @ x["H"] for name in "QKV"})


@quick
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20), st.integers(0, 2), loops(), floats, lanes, cores)
def test_strassen_at_any_size_with_fewer_products_and_more_additions(
    m, n, k, levels, schedule, precision, lanes, cores
):
    chosen = StrassenSchedule(**schedule, cutoff=1, levels=levels)
    operator = matmul_strassen.apply([(m, k), (k, n)], schedule=chosen)
    kernel = ran(operator, precision, lanes=lanes, cores=cores)
    x = inputs(kernel)
    error = np.abs(kernel.output - x["A"] @ x["B"]).max()
    assert error <= kernel.tolerance * max(1.0, float(np.abs(kernel.output).max()))
    *sizes, used = strassen_sizes({"A": (m, k), "B": (k, n)}, chosen)
    assert kernel.useful_flops == 2 * strassen_products(*sizes, used) + strassen_additions(*sizes, used)
