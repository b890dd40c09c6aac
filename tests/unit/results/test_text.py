"""Numbers as people read them."""

from __future__ import annotations

import pytest

from hwsim import units as text


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (0.0159552, "16 ms"),
        (1.0, "1 s"),
        (0.9999, "1 s"),
        (2.82e-4, "282 µs"),
        (5e-10, "500 ps"),
        (0, "0 s"),
        (1234, "1,234 s"),
    ],
)
def test_seconds(amount: float, shown: str) -> None:
    assert text.seconds(amount) == shown


def test_rates_bytes_and_counts() -> None:
    assert text.rate(2.103e9, "FLOP") == "2.1 GFLOP/s"
    assert text.data(2_980_864) == "2.98 MB"
    assert text.short(999_999) == "999,999"
    assert text.short(33_554_432) == "33.6 M"
    assert text.counted(1, "core") == "1 core"
    assert text.counted(2, "miss", "misses") == "2 misses"


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (1, 2, "50.0 %"),
        (1, 1, "100 %"),
        (999_999, 1_000_000, "> 99.9 %"),
        (1, 1_000_000, "< 0.1 %"),
        (0, 1, "0.0 %"),
        (1, 0, "–"),
    ],
)
def test_a_share_never_rounds_to_all_or_nothing(part: int, whole: int, shown: str) -> None:
    assert text.percent(part, whole) == shown


def test_bars_have_half_blocks() -> None:
    assert text.bar(0.5, 5) == "██▌"
    assert text.bar(2.0, 3) == "███"
