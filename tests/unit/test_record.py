"""Error bars in words."""

from __future__ import annotations

import pytest

from hwsim.record import CLASS, MACHINE, NEVER, NEVER_COMPARED, ErrorBar


def bar(value: float, unit: str, low: float | None, high: float | None, basis: str = MACHINE) -> ErrorBar:
    return ErrorBar(value, unit, low, high, 0.8, 12, basis, "12 products on it")


def test_a_bar_is_written_with_its_unit_its_ends_and_what_it_rests_on() -> None:
    assert str(bar(2e-3, "s", 1.8e-3, 2.2e-3)) == "2 ms ± 10 % (12 products on it)"
    assert str(bar(3.0, "J", 2.7, 3.9, CLASS)) == "3 J −10 to +30 % (12 products on it)"
    assert str(bar(250.0, "W", 250.0, 275.0)) == "250 W 0 to +10 % (12 products on it)"


def test_a_bar_without_ends_says_that_nobody_compared() -> None:
    for ends in ((None, None), (1.0, None), (None, 3.0)):
        never = bar(2.0, "s", *ends, basis=NEVER)
        assert not never.is_known and never.ends is None
        assert str(never) == f"2 s {NEVER_COMPARED}"
    assert float(bar(2.0, "s", 1.0, 3.0)) == 2.0
    assert bar(0.0, "s", 0.0, 0.0).words == NEVER_COMPARED, "no share of nothing"
    with pytest.raises(KeyError):
        str(bar(1.0, "m", None, None))
