"""Rounding, bit for bit: against ml_dtypes where it has the type, else against a list of all numbers of the format."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from hwsim.numerics.format import FORMATS, FloatFormat, FloatGrid, find_format, make_float
from hwsim.spec.base import FormatSpec

ML_TYPES = {
    "bf16": ml_dtypes.bfloat16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp6_e3m2": ml_dtypes.float6_e3m2fn,
    "fp6_e2m3": ml_dtypes.float6_e2m3fn,
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
    "e4m3": ml_dtypes.float8_e4m3,
    "e3m4": ml_dtypes.float8_e3m4,
}


def every_number(dtype: type) -> np.ndarray:
    """All codes of a type of at most 16 bits, in float32."""
    bits = ml_dtypes.finfo(dtype).bits
    codes = np.arange(1 << bits, dtype=np.uint16)
    return codes.astype(np.uint16 if bits == 16 else np.uint8).view(dtype).astype(np.float32)


def hard_cases(dtype: type) -> np.ndarray:
    """Every number, every tie between neighbours, and the float32 on either side of both; then all that overflows."""
    numbers = np.unique(every_number(dtype)[np.isfinite(every_number(dtype))])
    ties = ((numbers[:-1].astype(np.float64) + numbers[1:]) / 2).astype(np.float32)
    end = numbers[-1].astype(np.float64)
    beyond = (end * np.array([1, 1 + 2.0**-6, 1.03125, 1.0625, 1.125, 1.25, 1.5, 2, 4, 1e30])).clip(max=3.4e38)
    top = np.concatenate([beyond, -beyond]).astype(np.float32)
    edges = np.concatenate([numbers, ties, top])
    with np.errstate(over="ignore"):
        near = [np.nextafter(edges, np.float32(side)) for side in (-np.inf, np.inf)]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 1e-38, 3.4028235e38], np.float32)
    return np.concatenate([edges, *near, special])


def sweep() -> np.ndarray:
    """Every sign, exponent and first seven bits of a mantissa, each with what follows at and around a tie."""
    top = np.arange(1 << 16, dtype=np.uint32) << 16
    return np.concatenate([top | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal down to the sign of zero; NaN is NaN."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found[~nan].view(np.uint32), expected[~nan].view(np.uint32))


@pytest.mark.parametrize("name", ML_TYPES)
def test_rounding_equals_ml_dtypes_bit_for_bit(name: str) -> None:
    values = np.concatenate([hard_cases(ML_TYPES[name]), sweep()])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(ML_TYPES[name]).astype(np.float32)
    assert_same_bits(find_format(name).store(values), expected)


@pytest.mark.parametrize("name", ML_TYPES)
def test_every_number_of_a_format_is_stored_as_it_is(name: str) -> None:
    numbers = every_number(ML_TYPES[name])
    assert_same_bits(find_format(name).store(numbers), numbers)


@pytest.mark.parametrize("name", ML_TYPES)
def test_the_ends_of_a_format_are_those_of_ml_dtypes(name: str) -> None:
    fmt, info = find_format(name), ml_dtypes.finfo(ML_TYPES[name])
    assert fmt.largest == float(info.max)
    assert fmt.smallest == float(info.smallest_subnormal)
    assert fmt.bits == info.bits
    assert isinstance(fmt, FloatFormat)
    assert 2.0**fmt.grid.lowest == float(info.smallest_normal)


def test_the_grid_of_fp16_rounds_as_numpy_does() -> None:
    """NumPy's own float16 stores fp16; the grid, which stores all others, must agree with it."""
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    ends = np.array([65504, 65519.996, 65520, 1e9, np.inf, -np.inf, np.nan, 6e-8, 2.9e-8, 2.98e-8, -1e-20], np.float32)
    values = np.concatenate([numbers, sweep(), ends])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
        assert_same_bits(FloatGrid(5, 10, 15).round(values).astype(np.float32), expected)
    assert_same_bits(find_format("fp16").store(values).astype(np.float32), expected)


def nearest(value: float, numbers: list[Fraction]) -> Fraction:
    """The nearest of ascending non-negative numbers, ties to the one at an even place: codes ascend with values."""
    exact = Fraction(value)
    place = bisect_left(numbers, exact)
    if place == len(numbers) or numbers[place] == exact or place == 0:
        return numbers[min(place, len(numbers) - 1)]
    below, above = exact - numbers[place - 1], numbers[place] - exact
    if below == above:
        return numbers[place - 1 + (place - 1) % 2]
    return numbers[place - 1] if below < above else numbers[place]


def numbers_of(exponent: int, mantissa: int, bias: int, specials: str) -> list[Fraction]:
    """All finite numbers from zero on, by their codes."""
    codes = range(1 << (exponent + mantissa))
    found = []
    for code in codes:
        e, m = code >> mantissa, code & ((1 << mantissa) - 1)
        if specials == "ieee" and e == (1 << exponent) - 1:
            continue
        if specials == "nan" and code == len(codes) - 1:
            continue
        step = Fraction(2) ** (max(e, 1) - bias - mantissa)
        found.append((m + (1 << mantissa) * (e > 0)) * step)
    return found


@pytest.mark.parametrize(
    ("exponent", "mantissa", "bias", "specials"),
    [(5, 3, None, "ieee"), (2, 1, None, "ieee"), (3, 4, 1, "none"), (4, 2, 11, "nan"), (6, 5, None, "ieee"),
     (8, 3, None, "ieee"), (8, 2, 120, "none"), (9, 2, None, "ieee"), (3, 1, -4, "none")],
)  # fmt: skip
def test_a_format_of_your_own_rounds_to_the_nearest_of_its_numbers(
    exponent: int, mantissa: int, bias: int | None, specials: str
) -> None:
    spec = FormatSpec(exponent=exponent, mantissa=mantissa, bias=bias, specials=specials)
    fmt = find_format(spec)
    numbers = numbers_of(exponent, mantissa, (1 << (exponent - 1)) - 1 if bias is None else bias, specials)
    assert fmt.largest == float(numbers[-1])
    assert fmt.smallest == float(numbers[1])
    held = np.array([float(number) for number in numbers if float(number) <= 3e38 or fmt.held == np.float64], fmt.held)
    ties = (held[:-1] / 2 + held[1:] / 2).astype(fmt.held)
    random = np.random.default_rng(0).uniform(0, min(fmt.largest, 3e38), 200).astype(fmt.held)
    values = np.concatenate([held, ties, np.nextafter(ties, 0), np.nextafter(ties, fmt.held.type(np.inf)), random])
    values = values[values <= fmt.largest]
    expected = [float(nearest(float(value), numbers)) for value in values]
    np.testing.assert_array_equal(fmt.store(values), np.array(expected, fmt.held))
    np.testing.assert_array_equal(fmt.store(-values), -np.array(expected, fmt.held))


@pytest.mark.parametrize(("specials", "overflow"), [("ieee", np.inf), ("nan", np.nan), ("none", None)])
def test_what_is_too_large_becomes_what_the_format_says(specials: str, overflow: float | None) -> None:
    fmt = find_format(FormatSpec(exponent=4, mantissa=3, specials=specials))
    stored = fmt.store(np.array([1e6, -1e6, np.inf], np.float32))
    expected = fmt.largest if overflow is None else overflow
    np.testing.assert_array_equal(stored, np.copysign([expected] * 3, [1, -1, 1]))
    saturated = fmt.store(np.array([1e6, -1e6, np.inf], np.float32), saturate=True)
    assert saturated.tolist() == [fmt.largest, -fmt.largest, fmt.largest]


def test_tf32_keeps_ten_bits_of_mantissa_and_all_exponents() -> None:
    fmt = find_format("tf32")
    values = np.concatenate([sweep(), np.random.default_rng(1).standard_normal(10_000).astype(np.float32)])
    mantissa, exponent = np.frexp(values[np.isfinite(values)].astype(np.float64))
    with np.errstate(over="ignore"):
        expected = np.ldexp(np.rint(mantissa * 2**11), np.maximum(exponent, -125) - 11)
        normal = np.abs(values[np.isfinite(values)]) >= np.finfo(np.float32).tiny
        found = fmt.store(values[np.isfinite(values)])[normal]
        np.testing.assert_array_equal(found, expected[normal].astype(np.float32))
    assert fmt.bits == 32


def test_formats_with_the_same_name_are_the_same_and_a_short_name_is_a_format() -> None:
    assert find_format("e5m3") == find_format(FormatSpec(exponent=5, mantissa=3))
    assert find_format("e5m3").bits == 9
    own = FormatSpec(exponent=4, mantissa=3, specials="nan", bias=11)
    assert find_format(own).name == "e4m3_nan_bias11"
    assert find_format(FormatSpec(exponent=4, mantissa=3, name="mine")).name == "mine"


@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_narrow_integers_have_the_range_of_ml_dtypes_and_saturate(name: str) -> None:
    """ml_dtypes cuts fractions off and wraps around; a machine that quantises rounds and saturates."""
    fmt, info = find_format(name), ml_dtypes.iinfo(getattr(ml_dtypes, name))
    every = np.arange(info.min, info.max + 1)
    expected = every.astype(getattr(ml_dtypes, name)).astype(np.int64)
    np.testing.assert_array_equal(fmt.store(every.astype(np.float32)), expected)
    values = np.array([info.max + 1, info.min - 1, 1e9, -1e9, 0.5, 1.5, 2.5, np.nan, np.inf])
    assert fmt.store(values).tolist() == [info.max, info.min, info.max, info.min, 0, 2, 2, 0, info.max]


def test_sums_in_int32_wrap_around() -> None:
    assert find_format("int32").store(np.array([2**31, -(2**31) - 1], np.int64)).tolist() == [-(2**31), 2**31 - 1]


@pytest.mark.parametrize(("name", "element", "emax"), [
    ("mxfp8", ml_dtypes.float8_e4m3fn, 8), ("mxfp6", ml_dtypes.float6_e3m2fn, 4), ("mxfp4", ml_dtypes.float4_e2m1fn, 2),
])  # fmt: skip
@pytest.mark.parametrize("axis", [0, 1])
def test_mx_blocks_follow_the_ocp_rule(name: str, element: type, emax: int, axis: int) -> None:
    """OCP Microscaling Formats 1.0, 6.3: scale 2^(floor(log2 max) - emax), elements over it, clamped and rounded."""
    values = np.random.default_rng(2).standard_normal((96, 96)).astype(np.float32) * np.float32(37)
    values[5, :] = 0
    moved = np.moveaxis(values, axis, -1).reshape(96, 3, 32)
    largest = np.abs(moved).max(axis=-1, keepdims=True)
    scale = 2.0 ** (np.floor(np.log2(np.where(largest > 0, largest, 1))) - emax)
    assert np.isin(scale, scale.astype(ml_dtypes.float8_e8m0fnu).astype(np.float64)).all()
    limit = float(ml_dtypes.finfo(element).max)
    elements = np.clip(moved / scale, -limit, limit).astype(np.float32).astype(element).astype(np.float32)
    expected = np.moveaxis((elements * scale).reshape(96, 96), -1, axis)
    np.testing.assert_array_equal(find_format(name).store(values, axis=axis), expected)


def test_a_short_last_block_has_a_scale_of_its_own() -> None:
    values = np.concatenate([np.full(32, 100.0), np.full(3, 0.001)]).astype(np.float32)
    np.testing.assert_allclose(find_format("mxfp4").store(values)[32:], 0.001, rtol=0.25)


@pytest.mark.parametrize(
    ("name", "bits"),
    {"fp64": 64, "fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp6_e3m2": 6,
     "fp6_e2m3": 6, "fp4_e2m1": 4, "mxfp8": 8.25, "mxfp6": 6.25, "mxfp4": 4.25, "int64": 64, "int32": 32, "int16": 16,
     "int8": 8, "int4": 4, "uint4": 4}.items(),
)  # fmt: skip
def test_memory_that_a_number_takes(name: str, bits: float) -> None:
    """An MX block of 32 has a scale of 8 bits: a quarter of a bit for each number."""
    assert float(FORMATS[name].stored_bits) == bits


@pytest.mark.parametrize(
    ("name", "largest", "smallest"),
    [("mxfp4", 6.0, 0.5), ("mxfp6", 28.0, 0.0625), ("mxfp8", 448.0, 2.0**-9)],
)
def test_the_ends_of_mx_formats_are_those_of_their_elements_at_the_ends_of_the_scale(
    name: str, largest: float, smallest: float
) -> None:
    """OCP Microscaling Formats 1.0: elements by tables 1 to 5, scales of 2^-127 to 2^127."""
    fmt = find_format(name)
    assert fmt.largest == largest * 2.0**127
    assert fmt.smallest == smallest * 2.0**-127


def test_a_format_is_computed_with_in_the_type_that_is_asked_for() -> None:
    fp16 = find_format("fp16")
    assert isinstance(fp16, FloatFormat)
    grid = fp16.grid
    assert make_float("own", grid).computed == np.float32
    assert make_float("own", grid, computed=np.float64).computed == np.float64
