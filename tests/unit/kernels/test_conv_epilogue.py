"""What follows a convolution: any element-wise operation, with operands along any axes of the output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hwsim.errors import InputError
from hwsim.ops.conv_operator import Conv2d
from hwsim.ops.conv_schedule import After, ConvSchedule
from hwsim.ops.pointwise import POINTWISE
from hwsim.program.contraction import ConvShape
from tests.unit.kernels.helpers import counts, kernel, steps
from tests.unit.kernels.operators import made, ran

SCHEDULES: list[dict[str, Any]] = [
    {},
    {"fused": False},
    {"tile": {"ci": 1, "h": 2}},
    {"algorithm": "im2col", "vector": True},
    {"algorithm": "implicit", "tile": {"h": 2, "ci": 1}},
]


def plain(x: Any, w: Any, groups: int, layout: str) -> Any:
    """Images times filters, output by output: one loop for each index, as in a text book."""
    x = x if layout == "nchw" else x.transpose(0, 3, 1, 2)
    n, _, h, wide = x.shape
    co, ci, kh, kw = w.shape
    y = np.zeros((n, co, h - kh + 1, wide - kw + 1))
    for o in range(co):
        first = o // (co // groups) * ci
        for i in range(y.shape[2]):
            for j in range(y.shape[3]):
                y[:, o, i, j] = (x[:, first : first + ci, i : i + kh, j : j + kw] * w[o]).sum(axis=(1, 2, 3))
    return y if layout == "nchw" else y.transpose(0, 2, 3, 1)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("layout", "groups"), [("nchw", 1), ("nhwc", 1), ("nchw", 2), ("nhwc", 2)])
@pytest.mark.parametrize("axes", [(3,), (2, 3), (1, 2, 3), (0,), (0, 1), (1,), (1, 3), None])
def test_an_operand_has_any_axes_of_the_output_and_is_repeated_along_the_others(
    axes: tuple[int, ...] | None, layout: Any, groups: int, schedule: dict[str, Any]
) -> None:
    shape = ConvShape(4, 4, (5, 6), (2, 2), batch=2, groups=groups)
    elements = (After("add", "add", (("r", axes),)), After("scale", "scale", value=-0.5), After("relu", "relu"))
    operator = Conv2d(shape, ConvSchedule(layout=layout, **schedule), elements)
    done = ran(operator, lanes=2, cores=2)
    x, w, r = (done.arrays[name] for name in ("x", "w", "r"))
    spread = r[tuple(slice(None) if axes is None or axis in axes else None for axis in range(4))]
    expected = np.maximum(-0.5 * (plain(x, w, groups, layout) + spread), 0)
    assert expected.any()
    np.testing.assert_allclose(done.output, expected, rtol=1e-12, atol=1e-13)
    assert sum(step.work.flops for step in steps(made(operator, math=False))) == done.useful_flops


def test_an_operand_is_loaded_once_for_each_output_where_it_has_all_axes_of_the_loops() -> None:
    shape = ConvShape(2, 3, (5, 5), (2, 2))
    operator = Conv2d(shape, None, (After("mul", "mul", (("r", (3,)),)),))
    found = counts(made(operator, math=False))
    assert (found["loads.r"], found["stores.y"]) == (3 * 4 * 4, 3 * 4 * 4)


def test_one_operand_of_two_operations_is_one_port() -> None:
    twice = (After("add", "add", (("r", None),)), After("relu", "relu"), After("mul", "mul", (("r", None),)))
    done = ran(Conv2d(ConvShape(2, 3, (5, 5), (2, 2)), None, twice))
    assert [port.name for port in done.operator.inputs] == ["x", "w", "r"]
    y = plain(done.arrays["x"], done.arrays["w"], 1, "nchw")
    np.testing.assert_allclose(done.output, np.maximum(y + done.arrays["r"], 0) * done.arrays["r"], rtol=1e-12)


def test_a_fused_pool_takes_operands_along_channels_and_images_alone() -> None:
    shape = ConvShape(2, 3, (5, 5), (2, 2), batch=2)
    done = ran(Conv2d(shape, None, (After("add", "add", (("r", (0, 1)),)),), pool=2))
    y = plain(done.arrays["x"], done.arrays["w"], 1, "nchw") + done.arrays["r"][:, :, None, None]
    np.testing.assert_allclose(done.output, y.reshape(2, 3, 2, 2, 2, 2).max(axis=(3, 5)), rtol=1e-12)
    with pytest.raises(InputError, match="rows or columns of the map that a fused pool never stores"):
        made(Conv2d(shape, None, (After("add", "add", (("r", (3,)),)),), pool=2))


def test_a_name_that_needs_a_number_says_so() -> None:
    with pytest.raises(InputError, match="scale needs a number"):
        Conv2d(ConvShape(2, 3, (5, 5), (2, 2)), None, ("scale",))
    with pytest.raises(InputError, match=r"'rellu' is not one of bias.*did you mean 'relu'"):
        Conv2d(ConvShape(2, 3, (5, 5), (2, 2)), None, ("rellu",))


REST: list[tuple[str, ...]] = [
    ("bias",),
    ("relu", "bias"),
    ("batch_norm",),
    ("relu", "batch_norm", "bias", "add", "relu"),
    ("add", "scale_shift", "add"),
]


@pytest.mark.parametrize("rest", REST, ids="+".join)
@pytest.mark.parametrize("before", [("batch_norm",), ("bias", "batch_norm")], ids="+".join)
def test_only_the_first_batch_norm_is_folded_and_what_follows_keeps_its_own_operands(
    before: tuple[str, ...], rest: tuple[str, ...]
) -> None:
    """The same with all operations in their places is the answer."""
    sizes = {"ci": 3, "co": 4, "height": 5, "kernel": 3, "padding": 1}
    fields: dict[str, Any] = {"epilogue": (*before, *rest), "precision": "fp64"}
    folded, apart = kernel("conv2d", sizes, fold=True, **fields), kernel("conv2d", sizes, **fields)
    for each in (folded, apart):
        steps(each)
    np.testing.assert_allclose(folded.output, apart.output, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(folded.reference(), apart.reference(), rtol=1e-15)
    assert np.abs(folded.output).max() > 0


def test_a_bias_behind_a_folded_batch_norm_is_not_multiplied_by_it() -> None:
    """gamma (x w - mean) / √(var + ε) + beta + b, with x = w = 1."""
    numbers = {"gamma": 3.0, "beta": 0.5, "mean": 0.25, "var": 4.0 - 1e-5, "b": 7.0}
    given = {name: np.full(1, value) for name, value in numbers.items()}
    given |= {"x": np.ones((1, 1, 1, 1)), "w": np.ones((1, 1, 1, 1))}
    sizes = {"ci": 1, "co": 1, "height": 1, "kernel": 1}
    done = kernel("conv2d", sizes, epilogue=("batch_norm", "bias"), fold=True, precision="fp64", inputs=given)
    steps(done)
    assert done.output.item() == pytest.approx(3 * 0.75 / 2 + 0.5 + 7)


@pytest.mark.parametrize("name", ["gelu", "silu", "sigmoid", "tanh"])
def test_the_reference_of_an_epilogue_is_computed_by_another_formula(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake in what runs is not in the reference, too."""
    rule = POINTWISE[name]
    broken = replace(rule, expression=f"0.9 * ({rule.expression})")
    monkeypatch.setattr("hwsim.ops.conv_schedule.POINTWISE", {**POINTWISE, name: broken})
    done = ran(Conv2d(ConvShape(2, 3, (5, 5), (2, 2)), None, (name,)))
    assert np.abs(done.output - done.reference()).max() > 0.05


@pytest.mark.parametrize("w_layout", ["oihw", "ohwi", "hwio"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("tile", [{"h": 2, "w": 3, "ci": 2}, {"h": 2}, {"ci": 3, "w": 5}])
def test_implicit_multiplies_what_lies_in_its_block(layout: Any, w_layout: Any, tile: dict[str, int]) -> None:
    shape = ConvShape(5, 3, (7, 8), (3, 2), padding=(1, 0))
    schedule = ConvSchedule(algorithm="implicit", layout=layout, w_layout=w_layout, tile=tile)
    done = ran(Conv2d(shape, schedule), cores=2)
    np.testing.assert_allclose(done.output, done.reference(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("wrong", ["copy", "product"])
def test_a_wrong_address_in_the_block_is_a_wrong_answer(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy and product have to agree where each element of a window lies."""
    original = Conv2d._matrix

    def shifted(self: Conv2d, name: str, channels: int, flat: bool) -> str:
        place = original(self, name, channels, flat)
        return place.replace("h,w", "w,h") if flat == (wrong == "product") else place

    monkeypatch.setattr(Conv2d, "_matrix", shifted)
    shape = ConvShape(2, 3, (6, 6), (2, 2))
    done = made(Conv2d(shape, ConvSchedule(algorithm="implicit", tile={"h": 5, "w": 5})))
    steps(done)
    assert np.abs(done.output - done.reference()).max() > 0.1


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("epilogue", [(), ("bias", "relu")])
def test_closed_forms_hold_for_a_convolution_with_a_pool_behind_it(fused: bool, epilogue: tuple[str, ...]) -> None:
    """9 x 9 outputs, of which 4 x 4 squares of two are kept: one row and one column are left over."""
    sizes = {"ci": 2, "co": 3, "height": 9, "kernel": 1}
    done = kernel("conv2d", sizes, pool=2, fused=fused, epilogue=epilogue, math=False)
    found = counts(done)
    forms = {form.compare: form.value for form in done.formulas()}
    assert forms["macs"] == sum(step.work.macs for step in steps(done))
    assert found["stores.y"] == 3 * 4 * 4
    for compare, value in forms.items():
        if compare.startswith(("loads.", "stores.")):
            assert found[compare] == value, compare
    if not fused:
        assert forms["stores.y"] == 3 * 4 * 4
