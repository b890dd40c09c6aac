"""Loops as products of matrices: which index is which, and what is no product."""

from __future__ import annotations

import pytest

from hwsim.api import prepare, resolve_machine, resolve_workload
from hwsim.program.contraction import GemmShape, GemmView, gemm_view
from hwsim.program.loop_kernel import LoopKernel
from hwsim.program.loops import Loop
from hwsim.spec.workload import WorkloadSpec


def loop_of(formula: str, **sizes: int) -> Loop:
    fields = {"format": 1, "name": "made", "description": "A formula.", "op": "formula", "precision": "int8"}
    spec = WorkloadSpec.model_validate({**fields, "formula": formula, "sizes": sizes})
    kernel = prepare(resolve_machine("scalesim_32"), spec, math=False)
    assert isinstance(kernel, LoopKernel)
    (loop,) = kernel.loops
    return loop


def view_of(formula: str, **sizes: int) -> GemmView:
    view = gemm_view(loop_of(formula, **sizes))
    assert view is not None
    return view


def test_a_matrix_product_has_m_n_and_k() -> None:
    view = view_of("C[i,j] += A[i,k] * B[k,j]", i=5, j=6, k=7)
    assert (view.m, view.n, view.k, view.batch) == (("i",), ("j",), ("k",), ())
    assert view.shape(view.loop.ranges({})) == (1, GemmShape(5, 6, 7))


def test_a_transposed_operand_changes_nothing() -> None:
    view = view_of("C[i,j] += A[k,i] * B[j,k]", i=5, j=6, k=7)
    assert (view.m, view.n, view.k) == (("i",), ("j",), ("k",))


def test_a_convolution_sums_over_its_window_and_channels() -> None:
    view = view_of("O[y,x,f] += I[y+r,x+s,c] * W[r,s,c,f]", y=8, x=9, f=4, r=3, s=3, c=2)
    assert view.m == ("y", "x")
    assert view.n == ("f",)
    assert sorted(view.k) == ["c", "r", "s"]
    assert view.shape(view.loop.ranges({})) == (1, GemmShape(72, 4, 18))


def test_heads_are_a_batch_of_products() -> None:
    view = view_of("S[h,i,j] += Q[h,i,d] * K[h,j,d]", h=4, i=8, j=9, d=16)
    assert view.batch == ("h",)
    assert view.shape(view.loop.ranges({})) == (4, GemmShape(8, 9, 16))


def test_a_depthwise_convolution_is_many_products_of_one_column() -> None:
    view = view_of("O[y,x,c] += I[y+r,x+s,c] * W[r,s,c]", y=8, x=8, c=32, r=3, s=3)
    assert view.shape(view.loop.ranges({})) == (32, GemmShape(64, 1, 9))


@pytest.mark.parametrize(
    "formula",
    ["C[i,j] = A[i,j] + B[i,j]", "C[i] += A[i,j]", "C[i,j] += A[i,k] * B[k,j] + D[i,j]", "C[i,j] = A[i,j] * B[i,j]"],
)
def test_what_is_no_sum_of_products_goes_to_the_vector_unit(formula: str) -> None:
    sizes = {index: 4 for index in "ijk" if index in formula}
    assert gemm_view(loop_of(formula, **sizes)) is None


def test_workloads_of_the_course_are_seen_as_products() -> None:
    machine = resolve_machine("tpu_v1")
    found = {}
    for name in ("matmul", "conv2d", "conv2d_depthwise", "matvec", "softmax"):
        workload = resolve_workload(name, {"precision": "bf16"})
        kernel = prepare(machine, workload, math=False)
        assert isinstance(kernel, LoopKernel)
        found[name] = [gemm_view(loop) is not None for loop in kernel.loops]
    assert found["matmul"] == found["conv2d"] == found["conv2d_depthwise"] == found["matvec"] == [True]
    assert not any(found["softmax"])
