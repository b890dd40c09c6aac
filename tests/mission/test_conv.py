"""Section 7 of the mission, and the rows on fusion that are about convolutions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hwsim
from hwsim import RunResult
from hwsim.errors import InputError
from hwsim.numerics.format import find_format
from hwsim.ops.conv_operator import Conv2d
from hwsim.ops.conv_schedule import ConvSchedule
from hwsim.program.contraction import ConvShape
from hwsim.program.kernel import Setting
from hwsim.program.loop_kernel import LoopKernel
from tests.unit.kernels.helpers import kernel, steps

ROOT = Path(__file__).resolve().parents[2]

OUTPUTS = 64 * 32 * 32
"""Of the stock convolutions: 64 channels of 32 by 32."""

IMAGE, WEIGHTS = 64 * 34 * 34, 64 * 64 * 9
"""Elements of their image with its padding, and of their filters."""


def formula(result: RunResult, compare: str) -> dict[str, Any]:
    return next(row for row in result.formulas if row["compare"] == compare)


def test_a9_batch_norm_folds_into_weights_and_bias() -> None:
    """A9: W R and B R + P give Z = Y R + P to rounding, and Y is neither written nor read."""
    apart, folded = (hwsim.run("course_cpu", name, precision="fp64") for name in ("conv_bn", "conv_bn_folded"))
    assert apart.verified and folded.verified
    assert apart.output is not None and folded.output is not None
    assert np.abs(apart.output - folded.output).max() < 1e-12
    assert apart.tensors["conv"]["stores"] == apart.tensors["conv"]["loads"] == OUTPUTS
    assert "conv" not in folded.tensors


def test_a10_the_folded_one_is_faster_by_one_pass_over_the_output_with_the_same_products() -> None:
    """A10: the pass reads and writes each output once, and multiplies and adds once; the convolution is the same."""
    apart, folded = (hwsim.run("course_cpu", name) for name in ("conv_bn", "conv_bn_folded"))
    assert folded.work["macs"] == OUTPUTS * 64 * 9
    assert apart.work["macs"] == folded.work["macs"] + OUTPUTS + 64
    assert apart.work["stores"] - folded.work["stores"] == OUTPUTS + 2 * 64
    assert apart.time_s > folded.time_s
    more = apart.memory["dram"].bytes_read - folded.memory["dram"].bytes_read
    assert more == pytest.approx(2 * OUTPUTS * 4, rel=0.01)


def test_a13_a_fused_pool_stores_four_times_less() -> None:
    """A13: only the largest of 2 by 2 outputs is ever stored; the map between is not there."""
    apart, fused = (hwsim.run("course_cpu", name) for name in ("conv_maxpool", "conv_maxpool_fused"))
    assert apart.verified and fused.verified
    assert apart.tensors["conv"]["stores"] == 4 * fused.work["stores"] == OUTPUTS
    assert "conv" not in fused.tensors
    assert apart.peak_memory_bytes - fused.peak_memory_bytes == 4 * OUTPUTS
    assert fused.work["macs"] == apart.work["macs"]
    assert fused.time_s < apart.time_s
    assert fused.output is not None and apart.output is not None
    np.testing.assert_allclose(fused.output, apart.output, rtol=1e-5, atol=1e-4)


def test_a16_two_pointwise_operators_cost_no_access_to_the_output() -> None:
    """A16: with bias and relu in registers the output is stored once and never loaded; each pass would do both."""
    fused, apart = (hwsim.run("course_cpu", "conv_bias_relu", fused=fused) for fused in (True, False))
    assert asdict(fused.tensors["y"]) | {"misses": {}} == {
        "elements": OUTPUTS, "bytes": 4 * OUTPUTS, "loads": 0, "stores": OUTPUTS, "misses": {},
        "rows": None, "row_bytes": None,
    }  # fmt: skip
    assert apart.work["stores"] == 3 * OUTPUTS
    assert apart.tensors["conv"]["loads"] == apart.tensors["bias_1"]["loads"] == OUTPUTS
    assert fused.work["flops"] == apart.work["flops"] == 2 * OUTPUTS * 64 * 9 + 2 * OUTPUTS
    assert fused.time_s < apart.time_s


def test_c1_c2_seven_loops_with_any_order_and_any_tile() -> None:
    """C1: N·CO·H·W·CI·KH·KW products; the note reads A[n,co,...], where ci is meant. C2: the same nest."""
    plain = hwsim.run("course_cpu", "conv2d_direct")
    products = 16 * 32 * 32 * 16 * 9
    assert plain.work["macs"] == plain.tensors["x"]["loads"] == plain.tensors["w"]["loads"] == products
    assert plain.work["stores"] == 16 * 32 * 32
    assert {formula(plain, name)["ratio"] for name in ("macs", "loads.x", "loads.w", "stores.y")} == {1}
    small: dict[str, Any] = {"ci": 5, "co": 7, "height": 9, "width": 8, "batch": 2}
    tiles = {f"tile.{index}": 2 for index in ("n", "co", "h", "w", "ci", "kh", "kw")}
    tiled = hwsim.run("course_cpu", "conv2d_direct", order="kw,n,ci,h,co,kh,w", **small, **tiles)
    assert tiled.verified
    assert tiled.work["macs"] == 2 * 7 * 9 * 8 * 5 * 9


@pytest.mark.parametrize(("filters", "stride", "factor"), [(3, 1, 9), (5, 1, 25), (3, 2, 2.25)])
def test_c3_the_matrix_of_all_windows_is_larger_by_the_square_of_kernel_over_stride(
    filters: int, stride: int, factor: float
) -> None:
    """C3: 3x3 nine times, 5x5 25 times, 3x3 with a stride of two 2.25 times the image."""
    sizes = {"kernel": filters, "padding": filters // 2, "stride": stride, "ci": 8, "co": 8}
    result = hwsim.run("course_cpu", "conv2d_im2col", **sizes)
    matrix = formula(result, "bytes.windows")
    assert matrix["simulated"] == matrix["predicted"] == factor * 8 * 32 * 32 * 4
    assert result.tensors["windows"]["stores"] == factor * 8 * 32 * 32


def test_c3_the_matrix_is_written_and_read_in_main_memory() -> None:
    """C3: beyond the 256 KiB of L2, its lines are fetched to be written, and fetched again to be multiplied."""
    result = hwsim.run("course_cpu", "conv2d_im2col")
    lines = 9 * OUTPUTS * 4 // 64
    assert result.tensors["windows"]["misses"]["l2"] == 2 * lines
    assert result.memory["dram"].bytes_written > lines * 64


def test_c4_implicit_moves_what_images_and_filters_hold() -> None:
    """C4: main memory sees image, filters, outputs and one block, each once; the block is what one core has."""
    result = hwsim.run("course_cpu", "conv2d_implicit")
    block = formula(result, "bytes.block")
    assert block["simulated"] == block["predicted"] == 8 * 64 * 9 * 4
    assert result.memory["dram"].bytes_read == 4 * (IMAGE + WEIGHTS + OUTPUTS) + block["simulated"]
    explicit = hwsim.run("course_cpu", "conv2d_im2col")
    assert explicit.memory["dram"].bytes_read > 7 * result.memory["dram"].bytes_read
    assert explicit.peak_memory_bytes - result.peak_memory_bytes == 9 * OUTPUTS * 4 - block["simulated"]
    assert result.output is not None and explicit.output is not None
    np.testing.assert_allclose(result.output, explicit.output, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("name", "side"), [("conv2d_1x1", 1), ("conv2d_3x3", 3), ("conv2d_5x5", 5)])
def test_c5_the_shapes_of_the_slides_are_stock_workloads(name: str, side: int) -> None:
    result = hwsim.run("course_cpu", name)
    sizes = result.resolved["workload"]["sizes"]
    assert result.verified
    assert sizes["kernel"] == side
    assert result.work["macs"] == 32 * 32 * sizes["ci"] * sizes["co"] * side * side


def test_c6_the_definition_with_bias() -> None:
    """C6: Y(n,c,h,w) = Σ X(n,d,h+u,w+v) W(c,d,u,v) + B(c), worked by hand on 3x3 pixels."""
    x = np.arange(9.0).reshape(1, 1, 3, 3)
    made = kernel(
        "conv2d",
        {"ci": 1, "co": 2, "height": 3, "kernel": 2},
        epilogue=("bias",),
        inputs={"x": x, "w": [[[[1, 0], [0, 0]]], [[[0, 0], [0, 2]]]], "b": [10, 100]},
    )
    steps(made)
    assert made.output.tolist() == [[[[10, 11], [13, 14]], [[108, 110], [114, 116]]]]


def test_c7_the_operators_make_a_resnet_block() -> None:
    """C7: conv → bn → relu → conv → bn → add → relu; the image is the residual."""
    shape = ConvShape(4, 4, (6, 6), (3, 3), padding=(1, 1))
    first = Conv2d(shape, ConvSchedule(), ("batch_norm", "relu"))
    second = Conv2d(shape, ConvSchedule(), ("batch_norm", "add", "relu"))
    made = LoopKernel("block", find_format("fp64"), Setting())
    names: list[dict[str, str]] = []
    for number, (operator, x, y) in enumerate(((first, "x", "t"), (second, "t", "y"))):
        names.append(
            {port.name: f"{port.name}{number}" for port in operator.inputs} | {"x": x, "y": y, "residual": "x"}
        )
        for port in operator.inputs:
            if names[-1][port.name] not in made.tensors:
                made.add_input(names[-1][port.name], *port.shape, halo=port.halo, positive=port.positive)
        made.add_result(y, *operator.outputs[0].shape, halo=(0, 0, 1, 1))
        operator.emit(made, names[-1])
    steps(made)

    def ports(operator: Conv2d, number: int) -> dict[str, Any]:
        return {port.name: made.arrays[names[number][port.name]] for port in operator.inputs}

    middle = first.reference(ports(first, 0))["y"]
    wanted = second.reference(ports(second, 1) | {"x": middle})["y"]
    np.testing.assert_allclose(made.arrays["y"], wanted, atol=1e-9)
    assert made.arrays["y"].min() == 0 < made.arrays["y"].max()


def test_p9_filter_loops_are_too_short_to_share_or_to_fill_vectors() -> None:
    """P9: kh and kw run three times, and always over the same outputs. Rows of outputs fill vectors and feed cores."""
    with pytest.raises(InputError, match="kh runs 3 times over the same outputs"):
        hwsim.run("course_cpu", "conv2d", parallel="rows", share="kh")
    along_filter, along_rows = (
        hwsim.run("course_cpu", "conv2d_direct", vector=True, along=along) for along in ("kw", "w")
    )
    assert along_filter.time_s > 5 * along_rows.time_s
    alone, shared = (hwsim.run("course_cpu", "conv2d", parallel="rows", share="h", cores=cores) for cores in (1, 4))
    assert 3.5 < alone.time_s / shared.time_s <= 4


@pytest.mark.parametrize(("fused", "kernels"), [(1, 2), (2, 2), (4, 1)])
def test_a16_a_library_fuses_as_many_operators_as_its_machine_says(fused: int, kernels: int) -> None:
    """A16: four pointwise operators behind a convolution; cuDNN takes two, so the rest are a kernel of their own."""
    chain = ROOT / "lessons" / "files" / "conv_four_epilogues.yaml"
    result = hwsim.run("a100_40", chain, set={"sm.library.epilogues": fused}, h=8, w=8)
    assert result.verified
    assert [len(stage.name.split("+")) for stage in result.stages] == ([1 + fused, 4 - fused] if kernels == 2 else [5])
