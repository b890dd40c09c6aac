"""Numbers with units are read exactly, printed so that they read back, and refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hwsim.units import (
    INFINITE_BYTES,
    Bandwidth,
    EnergyPrice,
    Latency,
    format_bytes,
    format_frequency,
    parse_bandwidth,
    parse_bytes,
    parse_energy,
    parse_frequency,
    parse_latency,
    parse_length,
    parse_power,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64 B", 64),
        ("32 KiB", 32 * 1024),
        ("32KiB", 32 * 1024),
        ("32 kB", 32_000),
        ("1.5 MiB", 3 * 2**19),
        ("2 TB", 2 * 10**12),
        ("1e3 B", 1000),
        ("inf", INFINITE_BYTES),
        (".inf", INFINITE_BYTES),
        (float("inf"), INFINITE_BYTES),
    ],
)
def test_sizes_are_read(text: object, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("32 KB", r"ambiguous; write '32 KiB' \(32768 B\) or '32 kB' \(32000 B\)"),
        ("1 K", "ambiguous"),
        ("4 M", r"'4 MiB' \(4194304 B\) or '4 MB' \(4000000 B\)"),
        (32768, "32768 has no unit"),
        ("32768", "has no unit"),
        ("32 kib", "did you mean 'KiB'"),
        ("many", "is not a size"),
        (True, "is not a size"),
        (None, "is not a size"),
        ("0 B", "more than 0"),
        ("-1 KiB", "more than 0"),
        ("1.3 B", "whole number of bytes"),
        (f"{2**62} B", "more than can be addressed"),
        ("1e400 B", "unknown unit"),
    ],
)
def test_a_size_that_is_none_is_refused_with_a_reason(value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_bytes(value)


def test_the_largest_size_is_one_byte_below_infinity() -> None:
    assert parse_bytes(f"{2**62 - 1} B") == 2**62 - 1


@given(st.integers(1, INFINITE_BYTES - 1))
def test_a_printed_size_reads_back(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


@given(st.integers(1000, 10**12))
def test_a_printed_frequency_reads_back(hertz: int) -> None:
    assert parse_frequency(format_frequency(hertz)) == hertz


Quantity = TypeVar("Quantity")


def in_range(parse: Callable[[object], Quantity], text: str) -> Quantity:
    """The quantity that a text says; one out of range is another test's."""
    try:
        return parse(text)
    except ValueError as error:
        assume("is not from" not in str(error))
        raise


decimals = st.decimals(0, 10**6, places=6, allow_nan=False, allow_infinity=False)


@given(decimals, st.sampled_from(["fs", "ps", "ns", "us", "ms", "s", "cycles"]))
def test_a_printed_latency_reads_back(number: object, unit: str) -> None:
    latency = in_range(parse_latency, f"{number:f} {unit}")
    assert parse_latency(str(latency)) == latency


@given(decimals.filter(bool), st.sampled_from(["B/cycle", "GB/s", "KiB/s", "TB/s"]))
def test_a_printed_bandwidth_reads_back(number: object, unit: str) -> None:
    bandwidth = in_range(parse_bandwidth, f"{number:f} {unit}")
    assert parse_bandwidth(str(bandwidth)) == bandwidth


@given(decimals, st.sampled_from(["pJ", "fJ", "nJ", "pJ/bit", "pJ/B"]))
def test_a_printed_energy_reads_back(number: object, unit: str) -> None:
    price = in_range(parse_energy, f"{number:f} {unit}")
    assert parse_energy(str(price)) == price


def test_latency_converts_between_time_and_cycles_exactly() -> None:
    assert parse_latency("0.5 ns").cycles(2 * 10**9) == 1
    assert parse_latency("7 ns").cycles(3 * 10**9) == 21
    assert parse_latency("1 cycle").seconds(3 * 10**9) == Fraction(1, 3 * 10**9)


def test_nanoseconds_are_printed_as_nanoseconds() -> None:
    assert [str(parse_latency(text)) for text in ("0.5 ns", "200 ns", "7.8 us", "1 cycle", "10 cycles")] == [
        "0.5 ns",
        "200 ns",
        "7.8 us",
        "1 cycle",
        "10 cycles",
    ]
    assert str(Latency(Fraction(0), "seconds")) == "0 ns"


def test_bandwidth_without_limit_is_inf() -> None:
    assert parse_bandwidth("inf") == Bandwidth(None, "second")
    assert parse_bandwidth("inf").bytes_per_cycle(10**9) is None
    assert str(parse_bandwidth(".inf")) == "inf"
    assert parse_bandwidth("25.6 GB/s").bytes_per_cycle(16 * 10**8) == 16


def test_energy_for_a_byte_is_an_eighth_for_a_bit() -> None:
    assert parse_energy("8 pJ/B") == EnergyPrice(Fraction(1), "bit")
    assert parse_energy("1 nJ") == EnergyPrice(Fraction(1000), "action")


@pytest.mark.parametrize(
    ("parse", "value", "reason"),
    [
        (parse_frequency, "0 GHz", "positive"),
        (parse_frequency, 2e9, "no unit"),
        (parse_frequency, "0.3 Hz", "whole"),
        (parse_latency, "-1 ns", "negative"),
        (parse_latency, "4", "no unit"),
        (parse_latency, "0.0000009 ns", "1 fs"),
        (parse_latency, "1.001 s", "1 s"),
        (parse_latency, "0.0000009 cycles", "0.000001 cycles"),
        (parse_latency, "1000000001 cycles", "1000000000 cycles"),
        (parse_latency, "4 clocks", "unknown unit 'clocks'"),
        (parse_bandwidth, "0 GB/s", "more than 0"),
        (parse_bandwidth, "64 KB/s", r"'64 KiB/s' \(65536 B\) or '64 kB/s'"),
        (parse_energy, "-1 pJ", "negative"),
        (parse_energy, "1 pj", "did you mean 'pJ'"),
        (parse_power, "-3 W", "negative"),
        (parse_length, "0 nm", "more than 0"),
        (parse_length, "45", "no unit"),
    ],
)
def test_other_quantities_are_refused_with_a_reason(parse, value: object, reason: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=reason):
        parse(value)


@pytest.mark.parametrize("text", ["0.000001 ns", "1 s", "0.000001 cycles", "1000000000 cycles"])
def test_the_ends_of_the_range_of_latencies_belong_to_it(text: str) -> None:
    assert parse_latency(text).amount > 0


def test_sizes_and_bandwidths_are_written_in_the_unit_that_says_them_shortest() -> None:
    assert [format_bytes(size) for size in (32768, 180 * 10**9, 48, 1500, 3 * 2**40)] == [
        "32 KiB", "180 GB", "48 B", "1500 B", "3 TiB"
    ]  # fmt: skip
    assert str(parse_bandwidth("30 GiB/s")) == "30 GiB/s"
    assert str(parse_bandwidth("25.6 GB/s")) == "25.6 GB/s"
