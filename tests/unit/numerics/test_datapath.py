"""Datapaths: products that are exact where they must be, and wrong by as much as theory and others say where not."""

from __future__ import annotations

import numpy as np
import pytest

from hwsim.errors import InputError
from hwsim.numerics.datapath import Datapath, accumulate, find_datapath, integer_dot
from hwsim.numerics.format import FORMATS, Array, find_format
from hwsim.numerics.quantize import quantize


def gaussian(n: int, seed: int = 0) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((2, n, n))
    return a, b, a @ b


def relative_rms(found: Array, exact: Array) -> float:
    return float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2)))


def error_of(path: Datapath, a: Array, b: Array, exact: Array) -> float:
    return relative_rms(path.dot(path.quantize_a(a), path.quantize_b(b)), exact)


@pytest.mark.parametrize(
    ("precision", "scale", "expected"),
    [("bf16", "none", 2.35e-3), ("fp8_e4m3", "tensor", 3.7e-2), ("int8", "tensor", 1.6e-2), ("int8", "row", 1.1e-2),
     ("mxfp4", "none", 0.16)],
)  # fmt: skip
def test_the_error_of_a_gaussian_product_of_1024_is_the_published_one(
    precision: str, scale: str, expected: float
) -> None:
    """With wide sums; the figures were measured independently, with ml_dtypes (within 10 %)."""
    a, b, exact = gaussian(1024)
    assert error_of(find_datapath(precision, scale=scale), a, b, exact) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(("precision", "significand"), [("tf32", 11), ("fp16", 11), ("bf16", 8), ("fp8_e4m3", 4)])
def test_rounding_the_inputs_gives_the_error_that_theory_says(precision: str, significand: int) -> None:
    """Each input has a relative error whose mean square for numbers spread over a binade is that of a uniform error:
    2^-2p / 12 times the mean of 1/f^2 over the logarithm of f; both inputs count, so the root of two remains."""
    a, b, exact = gaussian(512)
    uniform = 2.0 ** (1 - significand) / np.sqrt(12)
    low, high = np.sqrt(2) * uniform / 2, np.sqrt(2) * uniform
    assert low < error_of(find_datapath(precision), a, b, exact) < high


def test_a_strict_sum_in_bf16_stops_growing_where_theory_says() -> None:
    """Ones added one by one: 256 + 1 is a tie that rounds back to 256. In chunks of 32 the sum gets through."""
    ones = np.ones((1, 1024), np.float32)
    strict, chunked, wide = (find_datapath("bf16", accumulate="bf16", chunk=chunk) for chunk in (1, 32, None))
    assert strict.dot(ones, ones.T).item() == 256
    assert chunked.dot(ones, ones.T).item() == 1024
    assert wide.dot(ones, ones.T).item() == 1024


def test_rounding_the_sum_less_often_makes_it_better() -> None:
    a, b, exact = gaussian(256)
    errors = [
        error_of(find_datapath("bf16", accumulate="bf16", chunk=chunk), a, b, exact) for chunk in (1, 4, 16, 64, 256)
    ]
    wide = error_of(find_datapath("bf16"), a, b, exact)
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 4 * errors[-1]
    assert errors[-1] > wide
    once = error_of(find_datapath("bf16", accumulate="bf16"), a, b, exact)
    assert once == pytest.approx(errors[-1], rel=1e-12)


def test_the_strict_error_grows_with_the_root_of_the_length() -> None:
    """Each of k roundings adds an independent error to a sum that itself grows as the root: so does the ratio."""
    errors = []
    for k in (64, 1024):
        random = np.random.default_rng(3)
        a, b = random.standard_normal((64, k)), random.standard_normal((k, 64))
        path = find_datapath("fp32", accumulate="bf16", chunk=1)
        errors.append(error_of(path, a, b, a @ b))
    assert errors[1] / errors[0] == pytest.approx(4, rel=0.25)


@pytest.mark.parametrize("inner", [1, 7, 1024, 1025, 2047, 5000])
def test_products_of_int8_are_exact_also_at_the_ends_of_the_range(inner: int) -> None:
    random = np.random.default_rng(inner)
    a, b = random.integers(-128, 128, (9, inner), np.int8), random.integers(-128, 128, (inner, 5), np.int8)
    a[0], b[:, 0] = -128, -128
    a[1], b[:, 1] = 127, 127  # odd products: their sums need every bit
    expected = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(find_datapath("int8").dot(a, b), expected)
    assert expected[0, 0] == inner * 2**14


@pytest.mark.parametrize("high", [2**7, 2**15, 2**24, 2**31 - 1])
def test_integer_products_of_any_size_are_exact(high: int) -> None:
    random = np.random.default_rng(high)
    a, b = random.integers(-high, high, (6, 40)), random.integers(-high, high, (40, 7))
    expected = [[sum(int(x) * int(y) for x, y in zip(row, column, strict=True)) for column in b.T] for row in a]
    modulo = np.array(expected, object) % 2**64
    np.testing.assert_array_equal(integer_dot(a, b).astype(np.uint64), modulo.astype(np.uint64))


def test_a_sum_that_is_too_large_for_int32_wraps_as_an_accumulator_does() -> None:
    big = np.full((1, 4), 2**15, np.int32)
    assert find_datapath("int32").dot(big, big.T).item() == 0


@pytest.mark.parametrize("precision", ["int8", "int4", "uint4", "fp8_e4m3", "fp4_e2m1"])
@pytest.mark.parametrize("scale", ["tensor", "row", "block"])
def test_scales_bring_back_the_size_of_the_numbers(precision: str, scale: str) -> None:
    """Whatever their size, numbers keep the relative error of their format."""
    a, b, exact = gaussian(64)
    path = find_datapath(precision, scale=scale)
    plain, huge = error_of(path, a, b, exact), error_of(path, a * 2.0**40, b * 2.0**-30, exact * 2.0**10)
    assert huge == pytest.approx(plain, rel=1e-5)
    assert plain < 0.3


def test_finer_scales_are_better() -> None:
    a, b, exact = gaussian(256)
    a *= 2.0 ** (np.arange(256) % 7)[:, None]  # rows of different size
    a[:, 3] *= 30  # and one channel that is larger than its neighbours
    exact = a @ b
    errors = [error_of(find_datapath("int8", scale=scale), a, b, exact) for scale in ("tensor", "row", "block")]
    assert errors == sorted(errors, reverse=True)


def test_block_scales_give_what_the_numbers_behind_them_give() -> None:
    """A sum over scaled blocks equals the product of the numbers that stored values and scales stand for."""
    a, b, _ = gaussian(96)
    for precision in ("int8", "fp8_e4m3", "mxfp8"):
        path = find_datapath(precision, scale="none" if precision == "mxfp8" else "block")
        left, right = path.quantize_a(a), path.quantize_b(b)
        expected = left.dequantize().astype(np.float64) @ right.dequantize().astype(np.float64)
        np.testing.assert_allclose(path.dot(left, right), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("precision", "scale"), [
    ("int8", "tensor"), ("int8", "row"), ("int8", "block"), ("uint4", "row"), ("uint4", "block"), ("mxfp4", "none"),
])  # fmt: skip
def test_a_part_of_a_quantised_matrix_takes_its_scales_along(precision: str, scale: str) -> None:
    a, b, _ = gaussian(96)
    path = find_datapath(precision, scale=scale)
    for quantized in (path.quantize_a(a), path.quantize_b(b)):
        whole = quantized.dequantize()
        for rows, columns in (
            (slice(0, 96), slice(32, 64)),
            (slice(5, 37), slice(3, 90)),
            (slice(64, 96), slice(0, 7)),
        ):
            np.testing.assert_array_equal(quantized.part(rows, columns).dequantize(), whole[rows, columns])


def test_a_row_of_the_left_matrix_and_a_column_of_the_right_have_scales() -> None:
    path = find_datapath("int8", scale="row")
    a, b, _ = gaussian(8)
    assert path.quantize_a(a).scales.shape == (8, 1)
    assert path.quantize_b(b).scales.shape == (1, 8)
    assert np.abs(path.quantize_a(a).values).max(axis=1).tolist() == [127] * 8


def test_unsigned_numbers_count_from_a_zero_point() -> None:
    values = np.linspace(-1, 2, 16)
    quantized = quantize(values, find_format("uint4"), "tensor")
    assert quantized.values.min() == 0
    assert quantized.values.max() == 15
    np.testing.assert_allclose(quantized.dequantize(), values, atol=0.51 * 3 / 15)
    assert quantize(np.zeros(4), find_format("uint4"), "tensor").dequantize().tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("name", "low", "high"), [("w8a16", 4e-3, 1e-2), ("w4a16", 6e-2, 1.4e-1)])
def test_weight_only_quantisation_costs_only_the_error_of_the_weights(name: str, low: float, high: float) -> None:
    """A step of 2 max/254 (or 2 max/14) has an error of a root of twelfth of it; max is 3 to 4 deviations."""
    a, b, exact = gaussian(512)
    path = find_datapath(name)
    assert low < error_of(path, a, b, exact) < high
    weights = path.quantize_b(b)
    same = path.dot(path.quantize_a(a), weights)
    by_hand = a.astype(np.float16).astype(np.float64) @ weights.dequantize().astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(same, by_hand, rtol=1e-3, atol=1e-3)


def test_results_are_rounded_to_the_accumulator() -> None:
    a, b, _ = gaussian(32)
    path = find_datapath("fp16", accumulate="fp16", chunk=8)
    found = path.dot(path.quantize_a(a), path.quantize_b(b))
    np.testing.assert_array_equal(found, found.astype(np.float16).astype(np.float32))
    assert find_datapath("bf16").result.name == "fp32"
    assert find_datapath("int8", scale="row").result.name == "fp32"
    assert find_datapath("int8").result.name == "int32"


@pytest.mark.parametrize(
    ("precision", "options", "message"),
    [("int8", {"accumulate": "fp32"}, "fp32 does not sum products of int8; use int32"),
     ("bf16", {"accumulate": "int32"}, "int32 does not sum products of bf16"),
     ("bf16", {"accumulate": "mxfp4"}, "mxfp4 has blocks"),
     ("bf16", {"chunk": 0}, "at least one product"),
     ("w4a16", {"scale": "row"}, "w4a16 has its own scales"),
     ("e1m3", {}, "e takes 2 to 10 bits")],
)  # fmt: skip
def test_what_makes_no_datapath_is_refused_with_a_reason(precision: str, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_datapath(precision, **options)


def test_mx_formats_need_no_other_scale() -> None:
    with pytest.raises(InputError, match="scale for each block of 32 already"):
        find_datapath("mxfp8", scale="row").quantize_a(np.ones((4, 4)))


def test_sums_are_added_in_place_only_in_formats_that_numpy_rounds_to_by_itself() -> None:
    floats = {name for name, fmt in FORMATS.items() if not fmt.is_integer and fmt.is_native}
    assert floats == {"fp32", "fp64"}
    for name in ("fp16", "bf16", "fp8_e4m3"):
        fmt = find_format(name)
        target = fmt.store(np.array([1.0, 100.0, -3.0]))
        accumulate(target, np.array([2.0**-12, 0.3, 3.0], dtype=target.dtype), fmt)
        expected = fmt.store(np.array([1 + 2.0**-12, float(fmt.load(fmt.store(np.array([100.0])))[0]) + 0.3, 0.0]))
        np.testing.assert_array_equal(target, expected)
