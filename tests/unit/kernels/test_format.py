"""Number formats: bits, rounding, and products."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwsim.errors import InputError
from hwsim.numerics.datapath import accumulate, dot
from hwsim.numerics.format import FORMATS, find_format


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
