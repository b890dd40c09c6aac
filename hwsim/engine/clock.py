"""Time is an integer: femtoseconds between clock domains, cycles inside one."""

from __future__ import annotations

from fractions import Fraction

from hwsim.engine.outcome import FEMTOSECONDS


def cycles_to_fs(cycles: Fraction | int, clock_hz: int) -> int:
    """Femtoseconds that so many cycles take; a part of a femtosecond counts as a whole one."""
    return -(-cycles.numerator * FEMTOSECONDS // (cycles.denominator * clock_hz))


def seconds_to_fs(seconds: Fraction) -> int:
    exact = seconds * FEMTOSECONDS
    return -(-exact.numerator // exact.denominator)
