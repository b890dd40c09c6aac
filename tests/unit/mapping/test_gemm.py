"""Loops as products of matrices: which index is which, and what is no product."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from hwsim.api import prepare, resolve_machine, resolve_workload
from hwsim.program.contraction import GemmShape, GemmView, gemm_view
from hwsim.program.loop_kernel import LoopKernel
from hwsim.program.loops import Loop
from hwsim.spec.workload import WorkloadSpec
from hwsim.targets.systolic.gemm import TilingSearch
from hwsim.targets.systolic.lower import program_of
from hwsim.targets.systolic.model import build_chip, find_places
from hwsim.targets.systolic.spec import Dataflow


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


def search_of(text: str, dataflow: Dataflow | None = None, machine: str = "gemmini16", **sizes: int) -> TilingSearch:
    """The ways to cut a product for the array of Gemmini, 16 x 16 cells whose commands stream up to 16 rows."""
    data = {"format": 1, "name": "made", "description": "", "op": "formula", "precision": "int8"}
    spec = WorkloadSpec.model_validate({**data, "formula": text, "sizes": sizes})
    described = resolve_machine(machine)
    kernel = prepare(described, spec, math=False)
    assert isinstance(kernel, LoopKernel)
    chip = build_chip(described, "int8")
    if dataflow is not None:
        chip = replace(chip, array=replace(chip.array, dataflow=dataflow))
    view = gemm_view(kernel.loops[0])
    assert view is not None
    return TilingSearch(chip, view, 0, find_places(chip, kernel, program_of(kernel), keep=False))


CONV = "O[y,x,f] += I[y+r,x+s,c] * W[r,s,c,f]"
IMAGE = {"y": 20, "x": 20, "f": 24, "r": 3, "s": 2, "c": 40}


def test_a_fold_takes_the_channels_of_one_place_of_a_window_where_nothing_gathers_them() -> None:
    """Folds of 16 rows, place by place: 40 channels are three folds, the last one with 8 idle rows."""
    search = search_of(CONV, **IMAGE)
    assert (search.chip.unit.rows, search.chip.unit.gathers, search.chip.array.dataflow) == (16, False, "ws")
    for places in (1, 2, 6):
        for channels in (1, 8, 16, 17, 32, 40):
            box = dict(zip(search.view.k, (places // min(places, 2), min(places, 2), channels), strict=True))
            folds = sum(len(range(0, channels, 16)) for _ in range(places))
            assert search.streamed("k", box) == 16 * folds
    assert search_of(CONV, machine="tpu_v1", **IMAGE).streamed("k", {"r": 3, "s": 2, "c": 40}) == 240


def test_commands_stream_a_line_of_an_image_in_rows_of_the_array_and_take_a_time_of_their_own() -> None:
    """As many cycles as rows, or 7 and a third of one for each row where that is longer, up to those of a full one."""
    search = search_of(CONV, **IMAGE)
    command = search.chip.unit.command
    assert command is not None and (float(command.base), float(command.row)) == (7, 0.33)
    for lines in (1, 3, 20):
        for run in (1, 2, 7, 10, 11, 15, 16, 17, 20):
            rows = [min(16, run - first) for first in range(0, run, 16)]
            cycles = lines * sum(max(each, min(16, 7 + 0.33 * each)) for each in rows)
            assert search.streamed("m", {"y": lines, "x": run}) == ceil(cycles)
    assert search.streamed("n", {"f": 24}) == 24


def test_only_weights_that_stay_are_cut_place_by_place_and_line_by_line() -> None:
    for dataflow in ("os", "is"):
        search = search_of(CONV, dataflow, **IMAGE)  # type: ignore[arg-type]
        assert search.streamed("k", {"r": 3, "s": 2, "c": 17}) == 6 * 17
        assert search.streamed("m", {"y": 3, "x": 7}) == 21
