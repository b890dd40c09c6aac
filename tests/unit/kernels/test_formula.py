"""Formulas: what they mean, and how a wrong one is explained."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from hwsim.errors import InputError, ShapeError
from hwsim.program.bind import bind, statement_indices
from hwsim.program.statement import Statement, parse_statements
from tests.unit.kernels.helpers import counts, kernel, steps


def computed(sizes, formula, **schedule):
    made = kernel("formula", sizes, formula=formula, precision="fp64", **schedule)
    steps(made)
    return made


def indices(formula):
    """The loops that a formula implies."""
    (line,) = bind(parse_statements(formula), sizes=dict.fromkeys("ijk", 2) if "k" in formula else {"i": 2}).lines
    assert isinstance(line, Statement)
    return statement_indices(line)


def test_a_matrix_product():
    made = computed({"i": 3, "j": 4, "k": 5}, "C[i,j] += A[i,k] * B[k,j]", tile={"k": 2})
    np.testing.assert_allclose(made.output, made.arrays["A"] @ made.arrays["B"])
    assert made.useful_flops == 2 * 3 * 4 * 5


def test_a_convolution_reads_a_window():
    sizes = {"n": 2, "co": 3, "h": 4, "w": 5, "ci": 2, "kh": 3, "kw": 2}
    text = "O[n,co,h,w] += I[n,ci,h+kh,w+kw] * W[co,ci,kh,kw]"
    made = computed(sizes, text, tile={"ci": 1, "w": 2}, order=("n", "co", "h", "w", "ci", "kh", "kw"))
    image, weights = made.arrays["I"], made.arrays["W"]
    assert image.shape == (2, 2, 6, 6)
    windows = sliding_window_view(image, (3, 2), axis=(2, 3))
    np.testing.assert_allclose(made.output, np.einsum("nihwab,oiab->nohw", windows, weights))


def test_a_stride_of_two_reads_every_second_element():
    made = computed({"x": 4, "k": 3}, "O[x] += I[2*x+k+1] * W[k]")
    image, weights = made.arrays["I"], made.arrays["W"]
    assert image.shape == (2 * 3 + 2 + 1 + 1,)
    expected = [sum(image[2 * x + k + 1] * weights[k] for k in range(3)) for x in range(4)]
    np.testing.assert_allclose(made.output, expected)


def test_sums_constants_and_broadcasts():
    made = computed({"i": 3, "j": 4}, "C[i,j] = 2 * A[i,j] - 0.5 * B[j] + 1")
    np.testing.assert_allclose(made.output, 2 * made.arrays["A"] - 0.5 * made.arrays["B"] + 1)
    assert counts(made)["loads.B"] == 12
    assert counts(made)["loads.C"] == 0


def test_a_term_without_the_summed_index_counts_each_time():
    made = computed({"i": 3, "k": 4}, "C[i] += A[i,k] + B[i]")
    np.testing.assert_allclose(made.output, made.arrays["A"].sum(axis=1) + 4 * made.arrays["B"])


def test_an_element_used_twice_is_loaded_once():
    made = computed({"i": 6}, "C[i] = A[i] * A[i]")
    np.testing.assert_allclose(made.output, made.arrays["A"] ** 2)
    assert counts(made)["loads"] == 6


def test_a_diagonal():
    made = computed({"i": 4}, "T[i] = A[i,i]")
    np.testing.assert_array_equal(made.output, np.diagonal(made.arrays["A"]))


@pytest.mark.parametrize(
    ("formula", "fma", "add", "mul"),
    [
        ("C[i,j] += A[i,k] * B[k,j]", 1, 0, 0),
        ("C[i] = A[i] + B[i]", 0, 1, 0),
        ("C[i] = A[i] * B[i]", 0, 0, 1),
        ("C[i] = B[i] + 3 * A[i]", 1, 0, 0),
        ("C[i] += A[i] * B[i] * D[i]", 1, 0, 1),
        ("C[i] = A[i]", 0, 0, 0),
    ],
)
def test_arithmetic_of_one_point(formula, fma, add, mul):
    made = computed(dict.fromkeys(indices(formula), 2), formula)
    body = made.loops[0].body
    assert (body.fma, body.add, body.mul) == (fma, add, mul)


@pytest.mark.parametrize(
    ("formula", "column", "message"),
    [
        ("", 1, "nothing is computed: write a statement such as"),
        ("C[i] A[i]", 6, "expected '=', '+=' or 'max=', found 'A'"),
        ("C[i,j += A[i]", 7, "expected ',' or ']'"),
        ("C[i] = A[i] *", 14, "found the end"),
        ("C[i] = A(i)", 8, "there is no function A"),
        ("C[i] = A", 8, "what is A?"),
        ("C[i] = A[i] B[i]", 13, "expected an operator or the end, found 'B'"),
        ("C[i] = A[i] ; D[i] = $B[i]", 22, "'$' has no meaning here"),
        ("C[i,i] = A[i]", 1, "appears twice"),
        ("C[i] += C[i] + A[i]", 9, "C is the output; write C[…] +="),
        ("C[i] = A[i,k]", 1, "k is summed over: write '+='"),
        ("C[i] += A[i] * A[i,k]", 16, "A has 1 axes elsewhere, here 2"),
        ("C[i] = 3", 9, "nothing is read"),
        ("C[i] = A[-i]", 8, "A is read before its first element"),
        ("C[i] = A[1.5]", 8, "a position of A must be a sum of indices, times whole numbers"),
        ("C[i] = A[i*i]", 8, "a position of A must be a sum of indices, times whole numbers"),
        ("C[i] = A[i] ** 4", 13, "only ** 2 and ** 3 are known"),
        ("C[i] = sqrt(A[i], 2)", 8, "sqrt takes 1 values, found 2"),
        ("C[i] = sqt(A[i])", 8, "did you mean 'sqrt'"),
    ],
)
def test_a_wrong_formula_is_pointed_at(formula, column, message):
    with pytest.raises(InputError) as caught:
        bind(parse_statements(formula), sizes={"i": 2, "k": 3} if "k" in formula else {"i": 2}, padded=False)
    first, text, pointer = str(caught.value).split("\n")
    assert first.startswith(f"formula, column {column}: ")
    assert message in first
    assert text.strip() in formula
    assert pointer.index("^") == column + 1


@pytest.mark.parametrize(
    ("sizes", "schedule", "message"),
    [
        ({"i": 2}, {}, "no extent for k"),
        ({"i": 2, "k": 2, "z": 1}, {}, "z does not appear"),
        ({"i": 2, "k": 2}, {"order": ("i",)}, "order must name each of i, k once, found i"),
        ({"i": 2, "k": 2}, {"tile": {"q": 1}}, "tile: q does not appear"),
        ({"i": 2, "k": 2}, {"unroll": {"q": 1}}, "unroll: q does not appear"),
    ],
)
def test_sizes_and_schedule_must_fit_the_formula(sizes, schedule, message):
    with pytest.raises(ValueError, match=message):
        kernel("formula", sizes, formula="C[i] += A[i,k]", **schedule)


def test_a_gather_takes_rows_by_number():
    """Y = T[I], with NumPy's own indexing; each number is loaded once for its row, each row element by element."""
    numbers = np.array([6, 0, 6, 3])
    given = {"formula": "Y[i,j] = T[I[i],j] * b[j]", "tensors": {"T": (7, "j")}, "inputs": {"I": numbers}}
    made = computed({"i": 4, "j": 3}, **given)
    np.testing.assert_allclose(made.output, made.arrays["T"][numbers] * made.arrays["b"])
    found = counts(made)
    assert (found["loads.I"], found["loads.T"], found["stores.Y"]) == (4, 4 * 3, 4 * 3)
    row = {touch[0] for nest in steps(made)[0].nests for touch in nest.addresses()}
    base, row_bytes = made.tensors["T"].base, 3 * 8
    assert {base + 6 * row_bytes, base, base + 3 * row_bytes} <= row
    assert base + row_bytes not in row


def test_a_product_of_gathered_rows_with_any_tiles():
    text, shapes = "Y[i,k] += T[I[i],j] * W[j,k]", {"T": (9, 5)}
    made = computed({"i": 4, "j": 5, "k": 6}, text, tensors=shapes, tile={"i": 3, "j": 2}, vector=True, lanes=4)
    rows = made.arrays["T"][np.asarray(made.arrays["I"], int)]
    np.testing.assert_allclose(made.output, rows @ made.arrays["W"])


@pytest.mark.parametrize(
    ("formula", "tensors", "inputs", "message"),
    [
        ("Y[i] = T[I[i]]", {}, {}, r"I\[i\] does not tell how long T is: give its shape, tensors: {T: \[1000\]}"),
        ("Y[i] = T[I[i]]", {"T": ("q",)}, {}, "tensors.T: no size q"),
        ("Y[i] = T[I[i]]", {"T": (5,), "Y": (3,)}, {}, "tensors.Y: the formula reads T, I"),
        ("Y[i] = T[I[i]]", {"T": (5,)}, {"I": np.array([1, 5, 2])}, "positions from 1 to 5; they must lie from 0 to 4"),
        ("Y[I[i]] = T[i]", {"Y": (5,)}, {}, "Y is written where it is looked up"),
    ],
)
def test_a_gather_that_makes_no_sense_is_explained(formula, tensors, inputs, message):
    with pytest.raises((ValueError, InputError, ShapeError), match=message):
        kernel("formula", {"i": 3}, formula=formula, tensors=tensors, inputs=inputs)


def test_reading_before_the_first_element_is_refused():
    with pytest.raises(ValueError, match="column 8: A is read before its first element"):
        kernel("formula", {"i": 3}, formula="C[i] = A[i-1]")


def test_a_value_is_rounded_to_a_format_on_the_way():
    """As ml_dtypes rounds; a conversion each, and none twice of the same value."""
    made = computed({"i": 64}, "C[i] = bf16(A[i]) * 3 + fp8_e4m3(B[i])")
    a, b = (made.arrays[name].astype(np.float32) for name in "AB")
    rounded = a.astype(ml_dtypes.bfloat16).astype(np.float64), b.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(made.output, rounded[0] * 3 + rounded[1])
    body = made.loops[0].body
    assert (body.fma, body.add, body.mul, body.convert) == (1, 0, 0, 2)
    assert computed({"i": 4}, "C[i] = bf16(A[i]) * bf16(A[i])").loops[0].body.convert == 1
    inner = computed({"i": 4}, "C[i] = bf16(A[i] + B[i])").loops[0].body
    assert (inner.add, inner.convert) == (1, 1)


@pytest.mark.parametrize(
    ("formula", "fma", "add", "mul", "special"),
    [
        ("C[i] = A[i] / 4", 0, 0, 1, 0), ("C[i] = A[i] / B[i]", 0, 0, 0, 1), ("C[i] = exp(-A[i])", 0, 0, 0, 1),
        ("C[i] = exp(A[i] - B[i])", 0, 1, 0, 1), ("C[i] = max(A[i], 0)", 0, 1, 0, 0),
        ("C[i] = rsqrt(A[i] * A[i] + 1)", 1, 0, 0, 2), ("C[i] = A[i] - B[i] * 2", 1, 0, 0, 0),
        ("C[i] = (A[i] + 1) * (A[i] + 1)", 1, 1, 0, 0), ("C[i] = A[i] ** 3", 0, 0, 2, 0),
    ],
)  # fmt: skip
def test_instructions_of_one_point(formula, fma, add, mul, special):
    """A division by a number is a multiplication, a sign is free, (a + 1) b is a b + b, and what was computed is in a
    register."""
    body = computed({"i": 3}, formula).loops[0].body
    assert (body.fma, body.add, body.mul, body.special) == (fma, add, mul, special)
