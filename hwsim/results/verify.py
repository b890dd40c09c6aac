"""Is the answer right, and how good is it? The computed output against float64 references.

Two questions, two references. *Right*: from the inputs as they are stored, so that only the errors of the computation
count; these must be ones that rounding explains. *Good*: from the inputs before they were rounded to their format, so
that everything counts that a low precision costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hwsim.kernels.build import exact_kernel
from hwsim.kernels.kernel import Kernel
from hwsim.numerics.error import NumericReport, input_losses, measure, output_losses, with_losses
from hwsim.numerics.format import Array
from hwsim.spec.workload import WorkloadSpec

BEFORE, STORED = "before rounding", "as stored"


@dataclass(frozen=True)
class NumericError:
    """How far the output is from the reference. Infinite where the output is not all numbers."""

    max_rel: float
    """Largest difference, relative to the largest element of the reference."""
    rms_rel: float
    """Root mean square of the differences, relative to that of the reference."""


@dataclass(frozen=True)
class Check:
    """Whether the answer is right, how far it is from what its stored inputs give, and how good it is."""

    verified: bool
    error: NumericError
    allowed: float
    """The largest error that rounding explains."""
    report: NumericReport


def measure_error(output: Array, reference: Array) -> NumericError:
    """Both relative errors; absolute ones where the reference is all zeros."""
    found = measure(output, reference)
    return NumericError(found.max_rel, found.rms_rel)


def verify(kernel: Kernel, workload: WorkloadSpec | None = None, seed: int = 0) -> Check:
    """Whether the error is one that rounding explains; with several answers, the worst of them counts.

    The report is about the main answer, the last.
    """
    answers = list(kernel.answers())
    errors = [measure(output, reference) for _, output, reference in answers]
    error = NumericError(max(each.max_rel for each in errors), max(each.rms_rel for each in errors))
    _, output, reference = answers[-1]
    report = errors[-1]
    exact = exact_kernel(workload, seed=seed) if workload is not None and _is_rounded(kernel, workload) else None
    if exact is not None and _same_shapes(kernel, exact):
        _, _, reference = list(exact.answers())[-1]
        report = measure(output, reference)
        losses = [
            input_losses(exact.arrays[each], kernel.stored_input(each), kernel.input_format(each))
            for each in kernel.input_names
        ]
        losses.append(output_losses(output, reference, kernel.output_format))
        report = with_losses(report, losses, BEFORE)
    else:
        report = with_losses(report, [output_losses(output, reference, kernel.output_format)], STORED)
    allowed = [explained_error(kernel, name, exact) for name, _, exact in answers]
    verified = all(each.max_rel <= most for each, most in zip(errors, allowed, strict=True))
    return Check(verified, error, max(allowed), report)


def explained_error(kernel: Kernel, name: str, reference: Array) -> float:
    """The largest error of an answer that rounding explains.

    Beside what the kernel says, each result may be off by half the smallest number of its format: that counts where the
    whole answer is small.
    """
    fmt = kernel.answer_format(name)
    largest = float(np.max(np.abs(reference), initial=0.0)) or 1.0
    return kernel.tolerance + (0.0 if fmt.is_integer else fmt.smallest / 2 / largest)


def _same_shapes(kernel: Kernel, exact: Kernel) -> bool:
    """Not so where a size is given in bytes: then other formats have other numbers of elements."""
    return all(exact.arrays[name].shape == kernel.arrays[name].shape for name in kernel.input_names)


def _is_rounded(kernel: Kernel, workload: WorkloadSpec) -> bool:
    """Whether storing the inputs has cost something worth knowing: in fp32 and fp64 it has not.

    Integers without a scale are made as integers: nothing is rounded.
    """
    if workload.scale == "none" and kernel.fmt.is_integer:
        return False
    return kernel.fmt.name not in ("fp32", "fp64")
