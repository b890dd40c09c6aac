"""Rows rounded to a narrower format, each with its scale."""

from __future__ import annotations

import numpy as np
import pytest

from hwsim.numerics.format import find_format
from hwsim.program.kernel import Setting
from hwsim.program.loop_kernel import OperatorKernel, OperatorRun
from hwsim.spec.base import ParallelSchedule
from tests.unit.kernels.operators import applied


def rounded(to: str) -> OperatorKernel:
    run = OperatorRun("quantize", "bf16", ParallelSchedule())
    kernel = OperatorKernel(applied("quantize", (6, 40), to=to), run, Setting(seed=3))
    for block in kernel.blocks():
        for _ in block.steps():
            pass
    return kernel


@pytest.mark.parametrize("to", ["int8", "fp8_e4m3"])
def test_each_row_reaches_the_largest_number_of_the_format(to: str) -> None:
    kernel = rounded(to)
    largest = float(find_format(to).largest)
    assert np.abs(kernel.arrays["Q"].astype(np.float64)).max(axis=-1) == pytest.approx([largest] * 6)


@pytest.mark.parametrize("to", ["int8", "fp8_e4m3"])
def test_every_answer_is_within_the_tolerance(to: str) -> None:
    kernel = rounded(to)
    for _, values, reference in kernel.answers():
        error = np.abs(values.astype(np.float64) - reference).max() / np.abs(reference).max()
        assert error <= kernel.tolerance


def test_scaled_back_the_rows_are_what_they_were() -> None:
    kernel = rounded("int8")
    back = kernel.arrays["Q"].astype(np.float64) * kernel.arrays["scale"][:, None]
    x = kernel.fmt.load(kernel.arrays["X"]).astype(np.float64)
    assert np.abs(back - x).max() <= 0.51 * kernel.arrays["scale"].max()
