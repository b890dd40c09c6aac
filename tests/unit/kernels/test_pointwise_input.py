"""The input of a chain of element-wise operations as an operand of a later one: X * sigmoid(X), X + f(X)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from hwsim.program.loop_kernel import build_kernel
from hwsim.spec.workload import WorkloadSpec
from tests.unit.kernels.helpers import counts, steps
from tests.unit.kernels.operators import made, ran, staged

GATED = ("sigmoid", {"op": "mul", "inputs": ("X",)})


def pointwise(stages: tuple[Any, ...], **fields: Any) -> WorkloadSpec:
    data = {"format": 1, "name": "y", "description": "", "op": "pointwise", "stages": stages}
    return WorkloadSpec.model_validate({**data, "sizes": {"m": 3, "n": 5}, "precision": "fp64", **fields})


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_file_takes_the_input_itself_as_an_operand(fused: bool, in_place: bool) -> None:
    kernel = build_kernel(pointwise(GATED, schedule={"fused": fused}, in_place=in_place))
    x = kernel.arrays["X"].copy()
    steps(kernel)
    np.testing.assert_allclose(kernel.output, x / (1 + np.exp(-x)), rtol=1e-14)
    np.testing.assert_allclose(kernel.reference(), x / (1 + np.exp(-x)), rtol=1e-14)


@pytest.mark.parametrize("along", ["rows", "columns"])
def test_the_input_itself_has_all_its_elements(along: str) -> None:
    with pytest.raises(ValidationError, match="of which mul has none here; leave along out"):
        pointwise(("sigmoid", {"op": "mul", "inputs": ("X",), "along": along}))


def stage(op: str, *inputs: str) -> dict[str, Any]:
    return {"op": op, "inputs": inputs}


CHAINS: list[tuple[Any, ...]] = [
    (stage("sigmoid"), stage("mul", "X")),
    (stage("mul", "X"), stage("exp")),
    (stage("exp"), stage("add", "a"), stage("scale_shift", "X", "a")),
    (stage("add", "a"), stage("add", "a"), stage("mul", "X")),
]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("stages", CHAINS, ids=lambda chain: "+".join(each["op"] for each in chain))
def test_closed_forms_count_the_input_again_where_a_later_pass_loads_it(stages: tuple[Any, ...], fused: bool) -> None:
    operator = staged((4, 6), *stages, fused=fused)
    kernel = made(operator, math=False)
    found = counts(kernel) | {"flops": kernel.useful_flops}
    for form in kernel.formulas():
        assert found[form.compare] == form.value, form.compare
    assert ran(operator).operator is operator
