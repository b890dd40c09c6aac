"""Number formats of one's own: which bits and biases a description may have."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hwsim.errors import InputError
from hwsim.numerics.format import find_format
from hwsim.spec.base import FormatSpec


def test_every_format_that_the_limits_allow_is_a_format() -> None:
    """The shortest and the longest of both, by short name and in full: 1 to 2^(2^(e-1)) and what lies between."""
    for exponent in (2, 10):
        for mantissa in (1, 50):
            named, described = find_format(f"e{exponent}m{mantissa}"), FormatSpec(exponent=exponent, mantissa=mantissa)
            assert find_format(described) == named
            assert named.bits == 1 + exponent + mantissa
            assert named.largest == 2.0 ** (2 ** (exponent - 1) - 1) * (2 - 2.0**-mantissa)
    for name in ("e1m3", "e11m3", "e5m0", "e5m51"):
        with pytest.raises(InputError, match="e takes 2 to 10 bits, and m 1 to 50"):
            find_format(name)
    for fields in ({"exponent": 11, "mantissa": 3}, {"exponent": 5, "mantissa": 51}):
        with pytest.raises(ValidationError, match="less than or equal to"):
            FormatSpec(**fields)


def test_a_bias_keeps_all_numbers_within_float64() -> None:
    """From the smallest, 2^(1-bias-m), to beyond the largest, 2^(2^e-bias): both at least 2^20 within its range."""
    for exponent, mantissa in ((2, 1), (4, 3), (8, 23)):
        reach = [2**exponent - 1000, 901 - mantissa]
        for bias in reach:
            fmt = find_format(FormatSpec(exponent=exponent, mantissa=mantissa, bias=bias, specials="none"))
            assert fmt.smallest == 2.0 ** (1 - bias - mantissa)
            assert fmt.largest == 2.0 ** (2**exponent - 1 - bias) * (2 - 2.0**-mantissa)
        for bias in (reach[0] - 1, reach[1] + 1):
            with pytest.raises(ValidationError, match=f"bias {bias} moves the format out of the range of float64"):
                FormatSpec(exponent=exponent, mantissa=mantissa, bias=bias)


def test_what_becomes_of_too_large_numbers_fits_the_codes_that_a_format_has() -> None:
    allowed = {"ieee": {"inf", "nan", "saturate"}, "nan": {"nan", "saturate"}, "none": {"saturate"}}
    for specials, kept in allowed.items():
        for overflow in ("inf", "nan", "saturate"):
            fields = {"exponent": 4, "mantissa": 3, "specials": specials, "overflow": overflow}
            if overflow in kept:
                assert FormatSpec.model_validate(fields).overflow == overflow
            else:
                with pytest.raises(ValidationError, match=f"overflow: {overflow} needs a format with"):
                    FormatSpec.model_validate(fields)
