"""Wrong answers are called wrong, in every format: a tolerance that lets everything pass verifies nothing."""

from __future__ import annotations

import numpy as np
import pytest

from hwsim.errors import InputError
from hwsim.numerics.format import find_format
from hwsim.program.kernel import Kernel, make_rounding, storing_error
from hwsim.program.loop_kernel import build_kernel
from hwsim.program.operation import find_operation
from hwsim.results.explanation import verify
from tests.contract.test_kernels import NAMES, small
from tests.unit.kernels.operators import ran

SCALED_BY = {"fp32": 0.999, "fp16": 0.9, "bf16": 0.9, "fp8_e4m3": 0.0, "mxfp4": 0.0, "int8": 0.0}
"""What each answer is multiplied with. In bf16 a chain of a dozen operations is honestly off by up to some percent, in
eight bits and fewer by tens of percent: there, zeros in its place must still be refused."""


def computed(name: str, precision: str) -> Kernel:
    kernel = build_kernel(small(name).model_copy(update={"precision": precision}), lanes=4, cores=2)
    for block in kernel.blocks():
        list(block.steps())
    return kernel


def is_right(kernel: Kernel, answer: int, factor: float, monkeypatch: pytest.MonkeyPatch) -> bool:
    """What is said of the answers if one of them is multiplied with a factor."""
    answers = list(kernel.answers())
    name, output, reference = answers[answer]
    answers[answer] = (name, output.astype(np.float64) * factor, reference)
    with monkeypatch.context() as patch:
        patch.setattr(kernel, "answers", lambda: iter(answers))
        return verify(kernel).verified


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_that_is_smaller_than_it_should_be_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    for precision, factor in SCALED_BY.items():
        try:
            kernel = computed(name, precision)
        except InputError:
            continue  # whole numbers have no exponentials
        tried += 1
        for number in range(len(list(kernel.answers()))):
            assert is_right(kernel, number, 1.0, monkeypatch), precision
            assert not is_right(kernel, number, factor, monkeypatch), precision
            assert not is_right(kernel, number, 0.0, monkeypatch), precision
    assert tried >= 5


@pytest.mark.parametrize("name", ["matmul", "conv2d", "softmax", "layernorm", "attention_fused", "gelu", "batch_norm"])
def test_one_operation_in_eight_bits_is_not_allowed_to_be_off_by_half(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_right(computed(name, "fp8_e4m3"), 0, 0.5, monkeypatch)


@pytest.mark.parametrize("precision", ["mxfp8", "mxfp6", "mxfp4", "fp8_e4m3", "bf16", "fp16"])
def test_storing_a_number_costs_at_most_what_is_said_and_sometimes_nearly_that(precision: str) -> None:
    fmt = find_format(precision)
    values = np.linspace(1, 2, 4097)[:-1, None]  # each the only one of its block
    off = float(np.max(np.abs(fmt.store(values) - values) / values))
    assert 0.8 * storing_error(fmt) < off <= storing_error(fmt)


def test_a_narrow_format_costs_one_rounding_and_not_one_for_each_term() -> None:
    """The sum itself is made in float32: a thousand terms are off by parts per million."""
    rounding = make_rounding(find_format("bf16"), find_format("bf16"))
    assert rounding.sum(1000) < 2e-5
    assert rounding.kept_sum() == 2**-8
    narrow = make_rounding(find_format("bf16"), find_format("bf16"), chunk=1)
    assert narrow.sum(1000) > 0.1


def test_a_maximum_that_is_stored_beside_larger_ones_is_rounded_to_their_scale() -> None:
    """In MXFP4 a 4 makes the scale of its block 1, and the smallest number of the block 1/2."""
    x = np.full((1, 1, 4, 64), 0.125)
    x[..., 32:] = 4.0
    kernel = ran(find_operation("max_pool").apply([(1, 1, 4, 64)]), "mxfp4", given={"x": x})
    assert np.array_equal(kernel.arrays["x"], x)
    check = verify(kernel)
    assert check.error.max_rel == 0.125 / 4
    assert check.verified


def test_an_answer_too_small_for_its_format_may_be_zero() -> None:
    """Of about 4,096 equal shares, none is a number of e4m3, whose smallest is 1/512."""
    spec = small("softmax").model_copy(update={"precision": "fp8_e4m3"})
    sizes = spec.sizes.model_copy(update={"n": 4096, "m": 2})  # type: ignore[union-attr]
    kernel = build_kernel(spec.model_copy(update={"sizes": sizes}))
    for block in kernel.blocks():
        list(block.steps())
    assert not kernel.output.any()
    assert verify(kernel).verified
