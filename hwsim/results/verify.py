"""Is the answer right? The computed output against the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hwsim.kernels.kernel import Kernel
from hwsim.numerics.format import Array


@dataclass(frozen=True)
class NumericError:
    """How far the output is from the reference. Infinite where the output is not all numbers."""

    max_rel: float
    """Largest difference, relative to the largest element of the reference."""
    rms_rel: float
    """Root mean square of the differences, relative to that of the reference."""


def measure_error(output: Array, reference: Array) -> NumericError:
    """Both relative errors; absolute ones where the reference is all zeros."""
    computed, exact = np.asarray(output, np.float64), np.asarray(reference, np.float64)
    if computed.shape != exact.shape or not np.isfinite(computed).all():
        return NumericError(float("inf"), float("inf"))
    difference = np.abs(computed - exact)
    largest = float(np.max(np.abs(exact), initial=0.0)) or 1.0
    scale = _rms(exact) or 1.0
    return NumericError(float(np.max(difference, initial=0.0)) / largest, _rms(difference) / scale)


def verify(kernel: Kernel) -> tuple[bool, NumericError]:
    """Whether the error is one that rounding explains; with several answers, the worst of them counts."""
    errors = [measure_error(output, reference) for _, output, reference in kernel.answers()]
    error = NumericError(max(each.max_rel for each in errors), max(each.rms_rel for each in errors))
    return error.max_rel <= kernel.tolerance, error


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
