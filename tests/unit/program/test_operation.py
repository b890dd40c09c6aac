"""How far an answer may be from exact: roundings one after the other, of the standard model of rounding errors."""

from __future__ import annotations

from math import sqrt

import pytest

from hwsim.numerics.format import FORMATS
from hwsim.program.kernel import SLACK, Rounding
from tests.unit.kernels.helpers import kernel


def roundings(formula: str, **sizes: int) -> float:
    """With storing for nothing: operations one after the other, and roots of the terms of sums."""
    made = kernel("formula", sizes, formula=formula)
    return float(made.operator.tolerance(Rounding(FORMATS["fp32"], 0.0, 0.0, 1 / SLACK)))  # type: ignore[attr-defined]


def test_operations_that_follow_each_other_round_one_after_the_other() -> None:
    """The longest way from an input to the result, whatever is beside it; the product of a sum is rounded with it."""
    longest = {
        "Y[i] = X[i]": 0,
        "Y[i] = -X[i]": 1,
        "Y[i] = X[i] + 1": 1,
        "Y[i] = |i| * X[i]": 1,
        "Y[i] = (X[i] + 1) * (X[i] - 1)": 2,
        "Y[i] = X[i] * X[i] * X[i] + 1": 3,
        "Y[i] = 1 + X[i] * exp(2 * X[i] - 1)": 5,
        "T[i] = X[i] + 1; Y[i] = exp(2 * T[i])": 2,
    }
    assert {text: roundings(text, i=8) for text in longest} == longest


def test_a_sum_wanders_by_the_root_of_its_length() -> None:
    """Of 15 terms and a first one, and what is done to each term before it is added."""
    length = sqrt(1 + 15)
    assert roundings("Y[i] += A[i,k]", i=8, k=15) == length
    assert roundings("Y[i] += A[i,k] * B[k,i]", i=8, k=15) == length
    assert roundings("Y[i] += (A[i,k] + 1) * B[k,i]", i=8, k=15) == length + 1
    assert roundings("Y[i] += exp(A[i,k])", i=8, k=15) == length + 1


def test_each_tensor_that_is_stored_is_rounded_once_more() -> None:
    stored = Rounding(FORMATS["bf16"], 1.0, 0.0, 0.0)
    one = kernel("formula", {"i": 8}, formula="Y[i] = exp(X[i])")
    two = kernel("formula", {"i": 8}, formula="Y[i] = exp(X[i]); Z[i] = Y[i] + 1")
    assert one.operator.tolerance(stored) == 1  # type: ignore[attr-defined]
    assert two.operator.tolerance(stored) == pytest.approx(2)  # type: ignore[attr-defined]
