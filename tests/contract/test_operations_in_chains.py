"""Every operation as a step of a chain, alone in its loops and with an element-wise operation fused behind it."""

from __future__ import annotations

from typing import Any

import pytest

import hwsim
from hwsim.errors import InputError
from hwsim.program.operation import OPERATIONS
from hwsim.spec.workload import WorkloadSpec, import_operations

import_operations()
NAMES = sorted(name for name, made in OPERATIONS.items() if made.reference.__module__.startswith("hwsim."))
SMALL = 8
APART = {"rope": "cannot go on where", "attention_backward": "do not finish its results in registers"}
"""Why nothing can be fused behind an operation: it stores its result in several pieces, or comes back to its sums."""


def chained(name: str, precision: str, fused: bool, tail: str = "relu") -> WorkloadSpec:
    """The operation on small tensors, and one on each element behind it."""
    operator = OPERATIONS[name].of(_small(name))
    shapes = {f"t{number}": tuple(port.shape) for number, port in enumerate(operator.inputs)}
    operations = (
        {"name": "h", "op": name, "inputs": tuple(shapes)},
        {"name": "y", "op": tail, "inputs": ("h",)},
    )
    data: dict[str, Any] = {"format": 1, "name": name, "description": "", "op": "chain", "precision": precision}
    schedule = {"fuse": (("h", "y"),)} if fused else {}
    return WorkloadSpec.model_validate(
        {**data, "sizes": {}, "tensors": shapes, "operations": operations, "schedule": schedule}
    )


def _small(name: str) -> Any:
    """Its workload, with small sizes where these fit each other."""
    made = OPERATIONS[name].workload
    fields = made.model_fields["sizes"].annotation.model_fields  # type: ignore[union-attr]
    sizes = {key: min(each.default, SMALL) for key, each in fields.items() if type(each.default) is int}
    data = {"format": 1, "name": name, "description": "", "op": name}
    for tried in (sizes, {**sizes, "d": 2 * SMALL, "slots": 2 * SMALL}, {}):
        try:
            return made.model_validate({**data, "sizes": {key: size for key, size in tried.items() if key in fields}})
        except ValueError:
            continue
    raise AssertionError(name)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_operation_is_a_step_of_a_chain(name: str, fused: bool) -> None:
    if fused and name in APART:
        with pytest.raises(InputError, match=APART[name]):
            hwsim.run("course_cpu", chained(name, "fp32", fused))
        return
    assert hwsim.run("course_cpu", chained(name, "fp32", fused)).verified


@pytest.mark.parametrize(("machine", "precision"), [("a100_40", "fp16"), ("tpu_v4", "bf16")])
@pytest.mark.parametrize("name", ["batch_norm", "max_pool", "transposed_conv", "matmul_backward", "mse", "lstm_cell"])
def test_single_images_sums_of_indices_and_several_results_can_be_fused_behind(
    machine: str, precision: str, name: str
) -> None:
    assert hwsim.run(machine, chained(name, precision, fused=True)).verified


def test_a_chain_in_whole_numbers_says_that_they_may_have_scales() -> None:
    with pytest.raises(InputError, match="scale=tensor"):
        hwsim.run("course_cpu", chained("matmul", "int8", fused=False))
