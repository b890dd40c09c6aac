"""Short ways to run an operator by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hwsim.numerics.format import Array
from hwsim.ops.pointwise import PointwiseWorkload
from hwsim.program.kernel import Setting
from hwsim.program.loop_kernel import OperatorKernel, OperatorRun
from hwsim.program.operation import Operator, find_operation
from hwsim.spec.base import ParallelSchedule
from hwsim.spec.workload import WorkloadSpec


def applied(name: str, *shapes: Sequence[int], schedule: dict[str, Any] | None = None, **more: Any) -> Operator:
    """An operation on tensors of some shapes, with parameters and what is said of its schedule."""
    operation = find_operation(name)
    return operation.apply(shapes, more, operation.schedule(**(schedule or {})))


def staged(
    shape: tuple[int, int], *stages: str | dict[str, Any], fused: bool = True, in_place: bool = False
) -> Operator:
    """Element-wise operations one after the other, as a file lists them."""
    data = {"format": 1, "name": "y", "description": "", "op": "pointwise", "stages": stages, "in_place": in_place}
    data |= {"sizes": {"m": shape[0], "n": shape[1]}, "schedule": {"fused": fused}}
    made = WorkloadSpec.model_validate(data)
    assert isinstance(made, PointwiseWorkload)
    operator: Operator = made.operation.of(made)
    return operator


def made(
    operator: Operator,
    precision: str = "fp64",
    *,
    lanes: int = 1,
    cores: int = 1,
    math: bool = True,
    given: Mapping[str, Array] | None = None,
) -> OperatorKernel:
    """The kernel of an operator; several cores share its rows."""
    parallel = ParallelSchedule(parallel="rows" if cores > 1 else "none")
    run = OperatorRun(operator.name, precision, parallel, given or {})
    return OperatorKernel(operator, run, Setting(lanes=lanes, cores=cores, math=math))


def ran(
    operator: Operator,
    precision: str = "fp64",
    *,
    lanes: int = 1,
    cores: int = 1,
    given: Mapping[str, Array] | None = None,
) -> OperatorKernel:
    """The same after it has run, its work counted: operations of all steps are those of the problem."""
    kernel = made(operator, precision, lanes=lanes, cores=cores, given=given)
    flops = sum(step.work.flops for block in kernel.blocks() for step in block.steps())
    assert flops == kernel.useful_flops
    return kernel


def answers(kernel: OperatorKernel) -> dict[str, Array]:
    return {name: values for name, values, _ in kernel.answers()}


def inputs(kernel: OperatorKernel) -> dict[str, Array]:
    """The values that an operator was given, in float64."""
    return {port.name: kernel.arrays[port.name].astype(np.float64) for port in kernel.operator.inputs}


def assert_right(kernel: OperatorKernel, expected: Mapping[str, Array]) -> None:
    """Each answer is within the operator's own tolerance of what is expected; so is the operator's own reference."""
    for name, values, reference in kernel.answers():
        scale = max(float(np.abs(expected[name]).max(initial=0)), 1e-30)
        assert values.shape == np.shape(expected[name])
        assert np.abs(reference - expected[name]).max() <= 1e-11 * scale, f"reference of {name}"
        assert np.abs(values.astype(np.float64) - expected[name]).max() <= max(kernel.tolerance, 1e-15) * scale, name
