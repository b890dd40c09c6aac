"""A new operation in ten lines: declared once, it runs alone, in chains, fused, in every format, on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hwsim
from hwsim.numerics.format import Array
from hwsim.spec.workload import WorkloadSpec

MACHINES = ("course_cpu", "a100_40", "tpu_v1")


@hwsim.operation("X[m,n] bias[n] -> Y[m,n]", "Y[i,j] = max(X[i,j] + bias[j], 0) + X[i,j]", m=32, n=48)
def leaning(X: Array, bias: Array) -> Array:
    """What is added to a row, where that is not negative, on top of it."""
    return np.where(X + bias > 0, 2 * X + bias, X)


@hwsim.operation(
    "A[m,k] B[k,n] -> C[m,n]",
    "product: C[i,j] += A[i,k] * B[k,j]",
    m=32, n=32, k=32, formats={"C": "sums"},
)  # fmt: skip
def plain_product(A: Array, B: Array) -> Array:
    return np.einsum("ik,kj->ij", A, B)


def spec(op: str, precision: str, **more: Any) -> WorkloadSpec:
    data = {"format": 1, "name": op, "description": "", "op": op, "precision": precision}
    return WorkloadSpec.model_validate(data | more)


def chained(precision: str, fused: bool) -> WorkloadSpec:
    operations = (
        {"name": "h", "op": "matmul", "inputs": ("x", "w")},
        {"name": "y", "op": "leaning", "inputs": ("h", "b")},
    )
    tensors = {"x": (32, 32), "w": (32, 48), "b": (48,)}
    schedule = {"fuse": (("h", "y"),)} if fused else {}
    return spec("chain", precision, sizes={}, tensors=tensors, operations=operations, schedule=schedule)


@pytest.mark.parametrize("machine", ["course_cpu", "a100_40"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_it_runs_alone(machine: str, precision: str) -> None:
    found = hwsim.run(machine, spec("leaning", precision, convert=True))
    assert found.verified
    assert found.work.flops == 3 * 32 * 48


@pytest.mark.parametrize("machine", ["course_cpu", "a100_40"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("fused", [False, True])
def test_it_runs_in_a_chain_and_fused_behind_a_product(machine: str, precision: str, fused: bool) -> None:
    found = hwsim.run(machine, chained(precision, fused).model_copy(update={"convert": True}))
    assert found.verified
    assert found.work.flops == 2 * 32 * 32 * 48 + 3 * 32 * 48


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("precision", "scale"), [("int8", "none"), ("int8", "tensor")])
def test_a_product_of_ones_own_is_a_product_everywhere(machine: str, precision: str, scale: str) -> None:
    found = hwsim.run(machine, spec("plain_product", precision, scale=scale))
    assert found.verified
    assert found.work.flops == 2 * 32**3


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("machine", "precision"), [("course_cpu", "int8"), ("a100_40", "int8"), ("tpu_v1", "int8")])
def test_behind_a_product_of_scaled_whole_numbers(machine: str, precision: str, fused: bool) -> None:
    found = hwsim.run(machine, chained(precision, fused).model_copy(update={"scale": "tensor"}))
    assert found.verified
    assert found.work.flops == 2 * 32 * 32 * 48 + 3 * 32 * 48
