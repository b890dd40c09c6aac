"""Convolutions: what they touch, how their outputs are finished, what they refuse, and how they join with others."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import numpy as np
import pytest

from hwsim.errors import CapacityError, InputError, ShapeError
from hwsim.numerics.format import find_format
from hwsim.ops.conv import folded_weights
from hwsim.ops.conv_operator import Conv2d
from hwsim.ops.conv_schedule import ConvSchedule
from hwsim.program.contraction import ConvShape
from hwsim.program.kernel import Setting
from hwsim.program.loop_kernel import LoopKernel
from hwsim.program.tiling import accesses
from hwsim.spec.variant import with_parameters
from hwsim.trace.nest import MAX_ACCESSES
from tests.unit.kernels.helpers import counts, kernel, steps, touches, workload

SIZES = {"ci": 4, "co": 6, "height": 8, "width": 10, "kernel": 3, "padding": 1}
OUTPUTS = 6 * 8 * 10
MACS = OUTPUTS * 4 * 9


def conv(**fields: Any) -> Any:
    return kernel("conv2d", {**SIZES, **fields.pop("sizes", {})}, **fields)


def test_the_plain_loops_load_two_operands_for_each_product_and_store_each_output_once() -> None:
    found = counts(conv(math=False))
    assert (found["loads.x"], found["loads.w"], found["stores.y"], found["loads.y"]) == (MACS, MACS, OUTPUTS, 0)


def test_a_register_tile_divides_the_loads_by_its_extent_along_the_index_that_a_tensor_lacks() -> None:
    """As in a matrix product: x has no co and is used twice for each load, w has no w and is used five times."""
    found = counts(conv(math=False, unroll={"co": 2, "w": 5}))
    assert (found["loads.x"], found["loads.w"]) == (MACS // 2, MACS // 5)


def test_im2col_writes_every_window_once_and_reads_it_for_every_output_channel() -> None:
    made = conv(math=False, algorithm="im2col")
    found = counts(made)
    assert found["stores.windows"] == found["loads.x"] == 8 * 10 * 4 * 9
    assert found["loads.windows"] == MACS
    assert [stage.name for stage in made.stages()] == ["im2col", "gemm"]


@pytest.mark.parametrize("w_layout", ["oihw", "ohwi", "hwio"])
def test_outputs_are_loaded_again_by_every_block_of_channels_but_the_first(w_layout: str) -> None:
    made = conv(math=False, algorithm="implicit", tile={"h": 3, "ci": 2}, w_layout=w_layout)
    found = counts(made)
    assert (found["stores.y"], found["loads.y"]) == (2 * OUTPUTS, OUTPUTS)
    assert found["stores.block"] == 8 * 10 * 4 * 9
    assert made.bytes_of("block") == 3 * 10 * 2 * 9 * 4


def test_a_block_of_all_channels_finishes_its_outputs_in_registers() -> None:
    made = conv(math=False, algorithm="implicit", tile={"h": 3, "ci": 4}, epilogue=("bias", "relu"))
    found = counts(made)
    assert (found["stores.y"], found["loads.y"], found["loads.b"]) == (OUTPUTS, 0, OUTPUTS)


def test_a_block_is_of_one_image_and_of_one_group() -> None:
    """3 rows of 10 places, 9 elements of a filter, the channels of a group, in fp32; each is copied once."""
    for batch, groups in ((1, 1), (2, 1), (3, 1), (1, 2), (2, 2)):
        sizes = {"batch": batch, "groups": groups}
        made = conv(math=False, algorithm="implicit", tile={"h": 3}, sizes=sizes)
        assert made.bytes_of("block") == 3 * 10 * 9 * 4 // groups * 4, sizes
        assert counts(made)["stores.block"] == batch * 8 * 10 * 4 * 9, sizes


def test_each_core_has_a_block_of_its_own() -> None:
    made = conv(math=False, algorithm="implicit", tile={"h": 2, "ci": 2}, cores=3, parallel="rows")
    spans = []
    for block in made.blocks():
        ends = [
            end
            for step in block.steps()
            for nest in step.nests
            for access in nest.accesses
            if access.tensor == "block"
            for end in nest.span(access)
        ]
        spans.append((min(ends), max(ends)))
    size = 2 * 10 * 2 * 9 * 4
    first = made.tensors["block"].base
    assert spans == [(first + number * size, first + (number + 1) * size) for number in range(3)]


@pytest.mark.parametrize("tile", [{"h": 2}, {"h": 2, "co": 3}, {"h": 4, "ci": 2}])
def test_cores_that_share_the_outermost_tiles_keep_the_order_of_the_loops(tile: dict[str, int]) -> None:
    """The loop over tiles of h runs outside of co, although co is named first: steps are cut there."""
    order = ("h", "co", "w", "ci", "kh", "kw") if "co" in tile else ("co", "h", "w", "ci", "kh", "kw")
    alone = conv(math=False, order=order, tile=tile)
    shared = conv(math=False, order=order, tile=tile, cores=2, parallel="rows")
    assert touches(shared) == touches(alone)
    assert len(steps(shared)) > 2


def test_an_epilogue_is_done_in_registers_where_sums_are_finished_there() -> None:
    found = counts(conv(math=False, epilogue=("bias", "add", "relu")))
    assert (found["stores.y"], found["loads.y"]) == (OUTPUTS, 0)
    assert (found["loads.b"], found["loads.residual"]) == (OUTPUTS, OUTPUTS)


@pytest.mark.parametrize("fields", [{}, {"fused": False}, {"tile": {"ci": 2}}, {"algorithm": "implicit"}])
def test_an_epilogue_adds_its_operations_for_each_output_wherever_it_is_done(fields: dict[str, Any]) -> None:
    """Bias: one addition; scale and shift: one multiply-add; relu: one maximum."""
    made = conv(math=False, epilogue=("bias", "scale_shift", "relu"), **fields)
    assert sum(step.work.flops for step in steps(made)) == made.useful_flops == 2 * MACS + 4 * OUTPUTS
    assert sum(step.work.instructions.add for step in steps(made)) == 2 * OUTPUTS


def test_an_epilogue_is_done_tile_by_tile_where_sums_are_not_finished_in_registers() -> None:
    """Sums over two tiles of ci come back to each output; the epilogue follows while its rows are still near."""
    made = conv(order=("h", "ci", "co", "w", "kh", "kw"), epilogue=("bias", "relu"), precision="fp64")
    names = [step.name for step in steps(made)]
    assert names == ["conv", "epilogue"] * 8
    np.testing.assert_allclose(made.output, made.reference(), atol=1e-13)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_fused_pool_reads_what_the_convolution_reads(layout: str) -> None:
    """Squares of 2 by 2 cover the 8 by 10 outputs, so every product reads the image element that it reads otherwise."""
    unroll = {"u": 1, "v": 1}
    plain, pooled = (conv(math=False, layout=layout, **more) for more in ({}, {"pool": 2, "unroll": unroll}))
    low = plain.tensors["x"].base
    high = low + plain.bytes_of("x")
    reads = [Counter(address for address, _, _ in touches(made) if low <= address < high) for made in (plain, pooled)]
    assert reads[0] == reads[1]
    assert reads[0].total() == MACS


def test_unfused_operations_are_stages_with_a_tensor_between_them() -> None:
    made = conv(epilogue=("bias", "relu"), pool=2, fused=False)
    assert [stage.name for stage in made.stages()] == ["conv2d", "bias", "relu", "max_pool"]
    found = counts(made)
    assert found["stores.conv"] == found["loads.conv"] == found["stores.bias_1"] == OUTPUTS
    assert found["stores.y"] == OUTPUTS // 4


def test_a_vector_is_as_wide_as_the_accesses_of_a_nest_allow() -> None:
    """Every second element of a row is gathered lane by lane, and 64 lanes for each row of a filter are too many."""
    made = conv(
        math=False, lanes=64, vector=True, sizes={"width": 200, "stride": 2}, unroll={"kh": 3}, precision="int8"
    )
    loop = made.loops[0]
    assert 1 < loop.plan.lanes < 64
    assert accesses(loop.plan, loop.extents, loop.operation) <= MAX_ACCESSES
    assert all(len(nest.accesses) <= MAX_ACCESSES for step in steps(made) for nest in step.nests)


def test_the_register_tile_is_counted_as_for_a_matrix_product() -> None:
    """Four filters by two vectors: 4 + 2 + 8 values."""
    made = conv(math=False, lanes=4, vector=True, unroll={"co": 4})
    assert made.registers_needed == 14


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"order": ("h", "w", "ci")}, "must name each of co, h, w, ci, kh, kw once"),
        ({"tile": {"k": 4}}, "direct has no loop k; its loops are co, h, w, ci, kh, kw"),
        ({"algorithm": "im2col", "unroll": {"kh": 2}}, "im2col has no loop kh"),
        ({"algorithm": "implicit", "tile": {"k": 2}}, "cut along co, h, w and ci"),
        ({"share": "kh"}, "kh runs 3 times over the same outputs"),
        ({"algorithm": "implicit", "share": "co"}, "one of h, w, not co"),
        ({"pool": 2, "algorithm": "implicit"}, "fused pool needs algorithm: direct"),
        ({"pool": 2, "epilogue": ("add",)}, "never stores"),
        ({"pool": 2, "order": ("ci", "co", "h", "w", "u", "v", "kh", "kw")}, "must be the innermost ones"),
        (
            {"precision": "int8", "epilogue": ("bias", "gelu")},
            "gelu cannot be computed in int8: precision must be one of fp64",
        ),
        ({"precision": "int8", "epilogue": ("batch_norm",), "fold": True}, "batch norm cannot be computed in int8"),
        ({"pool": 9}, "squares of 9 do not fit an output of 8x10"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        conv(**fields)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"groups": 4}, "groups 4 must divide both ci 4 and co 6"),
        ({"height": 1, "padding": 0}, "reaches over 3 elements does not fit a height of 1"),
        ({"dilation_w": 6}, "reaches over 13 elements does not fit a width of 10"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_files_and_in_python(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        workload("conv2d", {**SIZES, **sizes})


def test_a_shape_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="groups 3 must divide"):
        ConvShape(4, 6, (8, 8), (3, 3), groups=3)


def test_the_largest_block_that_fits_the_scratch_space_is_named_and_accepted() -> None:
    """2 rows of 10 outputs, 9 elements of a filter: 720 B for each channel in fp32; 3 channels fit 2500 B."""
    with pytest.raises(CapacityError, match=r"needs 2880 B in scratch, which has 2500 B; the most channels .* are 3"):
        conv(algorithm="implicit", tile={"h": 2, "w": 10, "ci": 4}, scratch="2500 B")
    made = conv(algorithm="implicit", tile={"h": 2, "w": 10, "ci": 3}, scratch="2500 B")
    steps(made)
    assert made.bytes_of("block") == 2160


def test_loops_are_cut_from_the_command_line() -> None:
    spec = with_parameters(
        workload("conv2d", SIZES), {"tile.h": "4", "unroll.co": "2", "order": "n,h,co,w,ci,kh,kw", "groups": "2"}
    )
    assert spec.schedule.tile == {"h": 4}
    assert spec.schedule.unroll == {"co": 2}
    assert spec.sizes.groups == 2
    depthwise = with_parameters(workload("conv2d", SIZES | {"co": 4}), {"groups": "depthwise"})
    assert depthwise.sizes.group_count == 4


def test_padding_is_stored_around_the_image_and_multiplied_as_closed_forms_count() -> None:
    made = conv(math=False)
    assert made.tensors["x"].shape == (1, 4, 10, 12)
    assert sum(step.work.macs for step in steps(made)) == MACS


def test_folding_is_the_algebra_of_the_notes() -> None:
    """Z = Y R + P with Y = W X + B: W R and B R + P; X is a column here."""
    random = np.random.default_rng(1)
    w, x = random.random((5, 3, 2, 2)), random.random((3, 2, 2))
    b, gamma, beta, mean, var = random.random((5, 5))
    folded, bias = folded_weights(w, b, gamma, beta, mean, var, 1e-3)
    y = np.einsum("ocuv,cuv->o", w, x) + b
    wanted = gamma * (y - mean) / np.sqrt(var + 1e-3) + beta
    np.testing.assert_allclose(np.einsum("ocuv,cuv->o", folded, x) + bias, wanted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        folded_weights(w, None, gamma, beta, mean, var)[1], folded_weights(w, 0 * b, gamma, beta, mean, var)[1]
    )


@pytest.mark.parametrize("algorithm", ["direct", "im2col", "implicit"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_operators_join_in_one_kernel_with_halos_larger_than_they_ask_for(algorithm: Any, layout: Any) -> None:
    """x → 5x5 → t → 3x3 → y; t has a halo of two where the second convolution asks for one."""
    first = ConvShape(3, 4, (6, 5), (5, 5), padding=(2, 2))
    second = ConvShape(4, 2, (6, 5), (3, 3), padding=(1, 1))
    schedule = ConvSchedule(algorithm=algorithm, layout=layout, vector=True)
    a, b = Conv2d(first, schedule, ("bias", "relu")), Conv2d(second, schedule, ("batch_norm",))
    made = LoopKernel("pair", find_format("fp64"), Setting(lanes=4))
    names = {"a": {"x": "image", "w": "w1", "b": "b1", "y": "t"}, "b": {"x": "t", "w": "w2", "y": "out"}}
    names["b"] |= {port: f"{port}2" for port in ("gamma", "beta", "mean", "var")}
    halo = (0, 0, 2, 2) if layout == "nchw" else (0, 2, 2, 0)
    for port in a.inputs:
        made.add_input(names["a"][port.name], *port.shape, halo=tuple(2 * each for each in port.halo))
    made.add_scratch("t", *a.outputs[0].shape, halo=halo)
    for port in b.inputs[1:]:
        made.add_input(names["b"][port.name], *port.shape, positive=port.positive)
    made.add_result("out", *b.outputs[0].shape, halo=halo)
    for operator, mine in ((a, names["a"]), (b, names["b"])):
        made.begin_phase(operator.name)
        operator.emit(made, mine)
    steps(made)
    middle = a.reference({port: made.arrays[names["a"][port]] for port in ("x", "w", "b")})["y"]
    rest = {port: made.arrays[names["b"][port]] for port in ("w", "gamma", "beta", "mean", "var")}
    np.testing.assert_allclose(made.arrays["out"], b.reference({"x": middle, **rest})["y"], atol=1e-10)
    border = made.stored["out"].sum() - made.arrays["out"].sum()
    assert abs(border) < 1e-9 * prod(made.stored["out"].shape)
