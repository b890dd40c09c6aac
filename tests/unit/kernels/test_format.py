"""Number formats: bits, rounding, and products."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwsim.errors import InputError
from hwsim.numerics.datapath import accumulate, dot
from hwsim.numerics.format import FORMATS, find_format
from hwsim.numerics.quantize import can_be_scaled_integers
from hwsim.program.loop_kernel import with_usual_scale
from tests.unit.kernels.helpers import workload


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_bf16_rounds_as_ml_dtypes_does(values):
    array = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        expected = array.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(find_format("bf16").store(array), expected)


@pytest.mark.parametrize(("name", "bits"), [("fp64", 64), ("fp32", 32), ("fp16", 16), ("bf16", 16), ("int8", 8)])
def test_bits_and_roundoff(name, bits):
    fmt = find_format(name)
    assert fmt.bits == bits
    if not fmt.is_integer:
        just_above = fmt.store(np.array([1 + fmt.roundoff * 0.99]))
        assert just_above[0] == 1
        assert fmt.store(np.array([1 + fmt.roundoff * 1.01]))[0] > 1


def test_integer_products_are_exact():
    big = np.full((4, 512), 2000, np.int32)
    assert (dot(big, big.T, find_format("int32")) == 512 * 2000 * 2000).all()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_accumulate_adds_to_what_is_stored(name):
    fmt = find_format(find_format(name).sum_name)
    target = fmt.store(np.array([[1, 2], [3, 4]]))
    accumulate(target, dot(fmt.store(np.eye(2)), fmt.store(np.eye(2)), fmt), fmt)
    assert target.tolist() == [[2, 2], [3, 5]]


def test_an_unknown_format_lists_the_known_ones():
    with pytest.raises(InputError, match=r"fp31.*fp32"):
        find_format("fp31")


PUBLISHED = {
    # bits, largest, smallest normal, smallest subnormal: IEEE 754-2019, and OCP: OFP8 1.0, table 1, and MX 1.0, 5.3
    "fp64": (64, 2.0**1023 * (2 - 2.0**-52), 2.0**-1022, 2.0**-1074),
    "fp32": (32, 2.0**127 * (2 - 2.0**-23), 2.0**-126, 2.0**-149),
    "fp16": (16, 65504, 2.0**-14, 2.0**-24),
    "bf16": (16, 2.0**127 * (2 - 2.0**-7), 2.0**-126, 2.0**-133),
    "tf32": (32, 2.0**127 * (2 - 2.0**-10), 2.0**-126, 2.0**-136),
    "fp8_e4m3": (8, 448, 2.0**-6, 2.0**-9),
    "fp8_e5m2": (8, 57344, 2.0**-14, 2.0**-16),
    "fp6_e3m2": (6, 28, 2.0**-2, 2.0**-4),
    "fp6_e2m3": (6, 7.5, 1, 2.0**-3),
    "fp4_e2m1": (4, 6, 1, 0.5),
}


def test_formats_are_as_long_and_reach_as_far_as_published():
    for name, (bits, largest, normal, smallest) in PUBLISHED.items():
        fmt = FORMATS[name]
        assert (name, fmt.bits, fmt.largest, fmt.smallest) == (name, bits, largest, smallest)
        assert fmt.roundoff == smallest / normal / 2, name  # half of the distance from 1 to the next number
    assert {name for name, fmt in FORMATS.items() if not fmt.is_integer and fmt.name[:2] != "mx"} == set(PUBLISHED)


def test_all_numbers_of_the_narrowest_formats():
    """Those that the MX specification lists: 0 to 6 of fp4, steps of an eighth below 2 of fp6_e2m3."""
    numbers = np.linspace(-8, 8, 16 * 64 + 1, dtype=np.float32)
    fours = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert np.unique(np.abs(find_format("fp4_e2m1").store(numbers))).tolist() == fours
    sixes = [*np.arange(0, 2, 0.125), *np.arange(2, 4, 0.25), *np.arange(4, 8, 0.5)]
    assert np.unique(np.abs(find_format("fp6_e2m3").store(numbers))).tolist() == sixes


def test_mx_elements_and_their_scale_for_32():
    """MX 1.0, table 1: eight bits of scale, a power of two from 2^-127 to 2^127, for a block of 32."""
    for name, element in (("mxfp8", "fp8_e4m3"), ("mxfp6", "fp6_e3m2"), ("mxfp4", "fp4_e2m1")):
        block, one = FORMATS[name], FORMATS[element]
        assert block.stored_bits == one.bits + Fraction(8, 32)
        assert (block.largest, block.smallest) == (one.largest * 2.0**127, one.smallest * 2.0**-127)


def test_signed_integers_of_up_to_16_bits_stand_for_fractions():
    scaled = {name for name, fmt in FORMATS.items() if can_be_scaled_integers(fmt)}
    assert scaled == {"int16", "int8", "int4"}


def test_where_nobody_chose_only_integers_that_stand_for_fractions_have_a_scale():
    """One for a tensor; none for other formats, for an operation that has none, or for inputs of one's own."""
    precisions = ("fp32", "bf16", "fp8_e4m3", "fp4_e2m1", "mxfp8", "w8a16", "int32", "uint4", "int16", "int8", "int4")
    asked = {each: workload("matmul", {"n": 4}, precision=each) for each in precisions}
    usual = {each: with_usual_scale(one).scale for each, one in asked.items()}
    assert usual == dict.fromkeys(precisions, "none") | dict.fromkeys(("int16", "int8", "int4"), "tensor")
    small = {"A": np.ones((4, 4), np.int8), "B": np.ones((4, 4), np.int8)}
    assert with_usual_scale(asked["int8"], small).scale == "none"
    from_file = asked["int8"].model_copy(update={"inputs": {"A": "a.npy"}})
    assert with_usual_scale(from_file).scale == "none"
    for scale in ("none", "row"):
        chosen = asked["int8"].model_copy(update={"scale": scale})
        assert with_usual_scale(chosen) is chosen
