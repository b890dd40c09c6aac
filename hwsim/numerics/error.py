"""How far an answer is from the exact one: the error report of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf, isinf, log10

import numpy as np

from hwsim.numerics.format import Array, BlockFormat, Format
from hwsim.numerics.quantize import QuantizedArray, count_beyond, quantize

BEFORE, STORED = "before rounding", "as stored"
"""Inputs from which a reference is computed: before they were rounded to their format, or after."""


@dataclass(frozen=True)
class NumericError:
    """How far the output is from the reference. Infinite where the output is not all numbers."""

    max_rel: float
    """Largest difference, relative to the largest element of the reference."""
    rms_rel: float
    """Root mean square of the differences, relative to that of the reference."""


@dataclass(frozen=True)
class Losses:
    """Numbers that did not survive being stored."""

    count: int = 0
    saturated: int = 0
    """Beyond the largest number of their format."""
    flushed: int = 0
    """Not zero before, and zero now."""

    def __add__(self, other: Losses) -> Losses:
        return Losses(self.count + other.count, self.saturated + other.saturated, self.flushed + other.flushed)


@dataclass(frozen=True)
class NumericReport:
    """An answer against float64. Errors are infinite where the answer is not all numbers."""

    max_rel: float
    """Largest difference, relative to the largest element of the reference."""
    rms_rel: float
    """Root mean square of the differences, relative to that of the reference."""
    snr_db: float
    """Signal to noise: 20 log10 of one over `rms_rel`; infinite for an exact answer, minus infinite for one that is
    not all numbers."""
    cosine: float
    """Cosine of the angle between answer and reference."""
    saturated: float = 0.0
    """Share of all inputs and results that were beyond the largest number of their format."""
    flushed: float = 0.0
    """Share of all inputs and results that became zero and were not."""
    inputs: str = STORED
    """What the reference was computed from: inputs ``before rounding``, or ``as stored``."""

    def to_dict(self) -> dict[str, float | str | None]:
        """For JSON, which has no infinity: null stands for it."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {name: None if isinf(value) else value for name, value in numbers.items()} | {"inputs": self.inputs}

    @classmethod
    def from_dict(cls, data: dict[str, float | str | None]) -> NumericReport:
        numbers = {name: inf if data[name] is None else float(data[name] or 0.0) for name in _NUMBERS}
        if data["snr_db"] is None and numbers["rms_rel"]:
            numbers["snr_db"] = -inf
        return cls(**numbers, inputs=str(data["inputs"]))


_NUMBERS = ("max_rel", "rms_rel", "snr_db", "cosine", "saturated", "flushed")


def measure(output: Array, reference: Array) -> NumericReport:
    """Relative errors; absolute ones where the reference is all zeros."""
    computed, exact = np.asarray(output, np.float64), np.asarray(reference, np.float64)
    if computed.shape != exact.shape or not np.isfinite(computed).all():
        return NumericReport(inf, inf, -inf, 0.0)
    difference = computed - exact
    largest = float(np.max(np.abs(exact), initial=0.0)) or 1.0
    relative = _rms(difference) / (_rms(exact) or 1.0)
    return NumericReport(
        max_rel=float(np.max(np.abs(difference), initial=0.0)) / largest,
        rms_rel=relative,
        snr_db=-20 * log10(relative) if relative else inf,
        cosine=_cosine(computed, exact),
    )


def with_losses(report: NumericReport, losses: Iterable[Losses], inputs: str) -> NumericReport:
    """The report with the shares of what did not survive being stored."""
    total = sum(losses, Losses())
    count = total.count or 1
    return replace(report, saturated=total.saturated / count, flushed=total.flushed / count, inputs=inputs)


def input_losses(exact: Array, stored: Array | QuantizedArray, fmt: Format, axis: int = -1) -> Losses:
    """What became of the values of an input when they were stored."""
    if not isinstance(stored, QuantizedArray) and isinstance(fmt, BlockFormat):
        stored = quantize(exact, fmt, "none", axis=axis)
    if isinstance(stored, QuantizedArray):
        return Losses(exact.size, stored.over, stored.flushed)
    flushed = int(np.count_nonzero(exact)) - int(np.count_nonzero(stored))
    return Losses(exact.size, count_beyond(exact, fmt), max(0, flushed))


def output_losses(output: Array, reference: Array, fmt: Format) -> Losses:
    """Results that their format has no number for."""
    beyond = count_beyond(reference, fmt)
    broken = int(np.count_nonzero(~np.isfinite(output))) if output.dtype.kind == "f" else 0
    flushed = int(np.count_nonzero((output == 0) & (np.abs(reference) > 0)))
    # A sum that cancels may be zero by rounding alone: only what is too small for the format counts.
    small = int(np.count_nonzero((reference != 0) & (np.abs(reference) < fmt.smallest)))
    return Losses(output.size, max(beyond, broken), min(flushed, small))


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def _cosine(first: Array, second: Array) -> float:
    """By NumPy's own sums: those of a linear algebra library depend on its threads."""
    lengths = float(np.sqrt(np.sum(np.square(first))) * np.sqrt(np.sum(np.square(second))))
    if not lengths:
        return 1.0 if not first.any() and not second.any() else 0.0
    return float(np.clip(np.sum(first * second) / lengths, -1.0, 1.0))
