"""Cycles and seconds as whole femtoseconds."""

from __future__ import annotations

from fractions import Fraction

from hwsim.engine import cycles_to_fs, seconds_to_fs


def test_a_cycle_of_2_ghz_is_500_000_fs() -> None:
    assert cycles_to_fs(1, 2 * 10**9) == 500_000


def test_a_period_that_is_no_whole_number_does_not_add_up_to_an_error() -> None:
    """At 3 GHz a cycle is 333,333 1/3 fs; three thousand of them are a microsecond, exactly."""
    assert cycles_to_fs(1, 3 * 10**9) == 333_334
    assert cycles_to_fs(3000, 3 * 10**9) == 10**9


def test_a_part_of_a_femtosecond_counts_as_a_whole_one() -> None:
    assert cycles_to_fs(Fraction(1, 10**9), 10**9) == 1
    assert seconds_to_fs(Fraction(1, 10**16)) == 1


def test_nothing_takes_no_time() -> None:
    assert cycles_to_fs(0, 10**9) == seconds_to_fs(Fraction(0)) == 0


def test_nanoseconds_are_exact() -> None:
    assert seconds_to_fs(Fraction(1375, 100 * 10**9)) == 13_750_000
