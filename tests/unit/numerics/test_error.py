"""The error report, on answers whose errors are known."""

from __future__ import annotations

from math import inf, sqrt

import numpy as np
import pytest

from hwsim.numerics.format import find_format
from hwsim.numerics.quantize import NumericReport, input_losses, measure, output_losses, quantize


def test_errors_are_relative_to_the_largest_and_to_the_mean_square() -> None:
    report = measure(np.array([3.0, 4.5]), np.array([3.0, 4.0]))
    assert report.max_rel == pytest.approx(0.5 / 4)
    assert report.rms_rel == pytest.approx(0.5 / 5)
    assert report.snr_db == pytest.approx(20)
    assert report.cosine == pytest.approx((9 + 18) / (5 * sqrt(9 + 20.25)))


def test_an_exact_answer_has_no_noise_and_one_that_is_no_number_no_signal() -> None:
    exact = measure(np.arange(4.0), np.arange(4.0))
    assert (exact.max_rel, exact.rms_rel, exact.snr_db, exact.cosine) == (0, 0, inf, 1)
    broken = measure(np.array([1.0, np.nan]), np.ones(2))
    assert (broken.max_rel, broken.rms_rel, broken.snr_db) == (inf, inf, -inf)


@pytest.mark.parametrize("pair", [([1.0, 2.0], [1.0, 2.0]), ([1.0, 2.5], [1.0, 2.0]), ([np.nan], [1.0])])
def test_a_report_survives_json(pair: tuple[list[float], list[float]]) -> None:
    report = measure(*(np.array(values) for values in pair))
    data = report.to_dict()
    assert all(value is None or isinstance(value, str) or abs(value) < inf for value in data.values())
    assert NumericReport.from_dict(data) == report


def test_saturated_and_flushed_inputs_are_counted() -> None:
    """fp4 ends at 6 and has nothing between 0 and 0.5; half of that, a tie, goes to zero."""
    exact = np.array([0.0, 0.25, 0.26, -0.1, 6.0, 6.1, -100.0, 1.0])
    fmt = find_format("fp4_e2m1")
    losses = input_losses(exact, fmt.store(exact), fmt)
    assert (losses.count, losses.saturated, losses.flushed) == (8, 2, 2)


def test_a_scale_leaves_nothing_saturated_and_an_mx_block_may() -> None:
    """Over a power of two, the largest of a block lies between 4 and 8, and fp4 ends at 6."""
    values = np.full(32, 1.0)
    values[0] = 1.9
    assert quantize(values, find_format("fp4_e2m1"), "tensor").over == 0
    assert quantize(values, find_format("mxfp4"), "none").over == 1
    values[0] = 1.4
    assert quantize(values, find_format("mxfp4"), "none").over == 0


def test_results_beyond_the_range_count_as_saturated_and_zeros_by_cancelling_do_not_count() -> None:
    fmt = find_format("fp16")
    reference = np.array([1e6, 1.0, 1e-12, 1e-3])
    losses = output_losses(np.array([np.inf, 1.0, 0.0, 0.0], np.float16), reference, fmt)
    assert (losses.saturated, losses.flushed) == (1, 1)
