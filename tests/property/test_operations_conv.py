"""Operations on images: derived counts are those of plain loops, derived math is the reference, misfits are refused."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.errors import InputError, ShapeError
from hwsim.ops.conv_operator import Conv2d
from hwsim.ops.conv_schedule import ConvSchedule
from hwsim.program.bind import bind
from hwsim.program.contraction import ConvShape, find_convolution
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import build_kernel
from hwsim.program.operation import find_operation
from hwsim.program.statement import parse_statements
from tests.property.test_conv import schedules, sizes
from tests.unit.kernels.helpers import counts, steps, workload

quick = settings(max_examples=40, deadline=None)
few = settings(max_examples=20, deadline=None)
small = st.integers(1, 4)
formats = st.sampled_from(["fp64", "fp32", "bf16", "int8"])


def kernel_of(op: str, size: dict[str, int], precision: str = "fp64", **fields: Any) -> Kernel:
    setting = {name: fields.pop(name) for name in ("lanes", "cores", "math") if name in fields}
    return build_kernel(workload(op, size, precision=precision, **fields), **setting)


def verified(made: Kernel) -> None:
    steps(made)
    wanted = made.reference()
    largest = float(np.abs(wanted).max()) or 1.0
    assert np.abs(np.asarray(made.output, np.float64) - wanted).max() / largest <= made.tolerance


@quick
@given(
    sizes(), st.sampled_from(["nchw", "nhwc"]), st.lists(st.sampled_from(["bias", "relu", "scale_shift"]), max_size=3)
)
def test_counts_of_a_convolution_are_those_of_plain_loops(
    size: dict[str, int], layout: str, epilogue: list[str]
) -> None:
    """A load of each factor and a multiply-add in the innermost loop; operations and a store behind each sum."""
    made = kernel_of("conv2d", size, layout=layout, epilogue=tuple(epilogue), math=False)
    rows, columns = made.operator.shape.out  # type: ignore[attr-defined]
    fma = add = loads = stores = 0
    for _ in product(range(size["batch"]), range(size["co"]), range(rows), range(columns)):
        for _ in product(range(size["ci"] // size["groups"]), range(size["kernel"]), range(size["kernel_w"])):
            fma += 1
            loads += 2
        for name in epilogue:
            fma += name == "scale_shift"
            add += name in ("bias", "relu")
            loads += {"bias": 1, "relu": 0, "scale_shift": 2}[name]
        stores += 1
    done = [step.work.instructions for step in steps(made)]
    assert (sum(i.fma for i in done), sum(i.add for i in done)) == (fma, add)
    assert (sum(i.load for i in done), sum(i.store for i in done)) == (loads, stores)


@few
@given(small, small, small, small, st.integers(1, 2), st.integers(1, 3), st.integers(1, 2), st.integers(0, 1))
def test_counts_of_the_others_are_those_of_plain_loops(
    ci: int, co: int, height: int, width: int, batch: int, kernel: int, stride: int, padding: int
) -> None:
    height, width = height + kernel, width + kernel
    images = {"batch": batch, "ci": ci, "co": co, "height": height, "width": width, "kernel": kernel, "stride": stride}

    def out(extent: int) -> int:
        return len(range(0, extent + 2 * padding - kernel + 1, stride))

    spots = batch * out(height) * out(width)
    separable = kernel_of("separable_conv", images | {"padding": padding}, math=False)
    assert macs(separable) == sum(1 for _ in product(range(spots * ci), range(kernel**2))) + spots * ci * co
    volumes = kernel_of("conv3d", images | {"padding": padding, "depth": height}, math=False)
    assert macs(volumes) == spots * out(height) * co * ci * kernel**3
    printed = kernel_of("transposed_conv", images | {"kernel": kernel * stride}, math=False)
    rows, columns = height + kernel - 1, width + kernel - 1
    assert macs(printed) == batch * ci * co * rows * columns * (kernel * stride) ** 2
    field = kernel_of("stencil", {"m": height, "n": width}, vector=False, math=False)
    assert counts(field)["loads.x"] == 5 * height * width
    assert sum(step.work.flops for step in steps(field)) == 6 * height * width
    pool = kernel_of("max_pool", {"channels": ci, "height": height, "width": width, "window": kernel}, math=False)
    windows = len(range(0, height - kernel + 1, kernel)) * len(range(0, width - kernel + 1, kernel)) * ci
    assert sum(step.work.instructions.add for step in steps(pool)) == windows * kernel**2


def macs(made: Kernel) -> int:
    return sum(step.work.macs for step in steps(made))


@quick
@given(sizes(), schedules(), formats, st.sampled_from([1, 4]))
def test_every_algorithm_layout_and_format_gives_the_reference(
    size: dict[str, int], schedule: dict[str, Any], precision: str, lanes: int
) -> None:
    verified(kernel_of("conv2d", size, precision, lanes=lanes, cores=2, **schedule))


@few
@given(st.data(), formats)
def test_the_others_give_their_references(data: st.DataObject, precision: str) -> None:
    kernel, stride = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    images = {
        "batch": data.draw(st.integers(1, 2)), "ci": data.draw(small), "co": data.draw(small),
        "height": kernel + data.draw(small), "width": kernel + data.draw(small), "kernel": kernel, "stride": stride,
    }  # fmt: skip
    lanes = data.draw(st.sampled_from([1, 4]))
    padding = data.draw(st.integers(0, 2))
    verified(kernel_of("conv3d", images | {"padding": padding, "depth": kernel + 1}, precision, lanes=lanes))
    verified(kernel_of("transposed_conv", images | {"kernel": kernel * stride}, precision, lanes=lanes, cores=2))
    verified(kernel_of("stencil", {"m": data.draw(small), "n": data.draw(small)}, precision, lanes=lanes))
    if precision != "int8":
        verified(kernel_of("separable_conv", images | {"padding": padding}, precision, lanes=lanes))
    for op in ("max_pool", *(() if precision == "int8" else ("avg_pool", "global_avg_pool"))):
        pooled = {"batch": 2, "channels": images["ci"], "height": images["height"], "width": images["width"]}
        layout = data.draw(st.sampled_from(["nchw", "nhwc"]))
        verified(kernel_of(op, pooled | {"window": kernel}, precision, lanes=lanes, layout=layout))


@quick
@given(sizes(), st.sampled_from(["nchw", "nhwc"]), st.sampled_from(["oihw", "ohwi", "hwio"]))
def test_a_convolution_is_known_by_its_positions(size: dict[str, int], layout: Any, w_layout: Any) -> None:
    pairs = [(size[name], size[f"{name}_w"]) for name in ("kernel", "stride", "padding", "dilation")]
    window, stride, padding, dilation = pairs
    shape = ConvShape(
        size["ci"], size["co"], (size["height"], size["width"]), window, size["batch"], stride, padding, dilation,
        size["groups"],
    )  # fmt: skip
    found = find_convolution(Conv2d(shape, ConvSchedule(layout=layout, w_layout=w_layout)).program)
    assert found is not None
    assert found.shape == shape
    assert (found.images.tensor, found.filters.tensor) == ("x", "w")
    x = np.arange(np.prod((size["batch"], size["ci"], *shape.image))).reshape(size["batch"], size["ci"], *shape.image)
    stored = x.transpose([("nchw").index(axis) for axis in layout])
    np.testing.assert_array_equal(found.as_images(stored), x)


@pytest.mark.parametrize(
    "text",
    [
        "C[i,j] += A[i,k] * B[k,j]",
        "y[i] += x[i+k] * w[k]",
        "y[n,o,d,h,w] += x[n,c,d+t,h+u,w+v] * w[o,c,t,u,v]",
        "y[n,c,h,w] max= x[n,c,2*h+u,2*w+v]",
        "y[n,o,h,w] += x[n,c,h-u+2,w-v+2] * w[o,c,u,v]",
    ],
)
def test_what_is_no_convolution_of_images_is_not_taken_for_one(text: str) -> None:
    inside = " ".join(re.findall(r"\[(.*?)\]", text))
    sizes = dict.fromkeys(re.findall(r"[a-z]", inside), 3)
    assert find_convolution(bind(parse_statements(text), sizes=sizes)) is None


@pytest.mark.parametrize(
    ("op", "size", "message"),
    [
        ("conv2d", {"height": 2, "kernel": 5}, "reaches over 5 elements does not fit a height of 2"),
        ("conv2d", {"ci": 4, "co": 6, "groups": 4}, "groups 4 must divide both ci 4 and co 6"),
        ("max_pool", {"height": 2, "window": 3}, "a window of 3 does not fit"),
        ("separable_conv", {"height": 2, "kernel": 7, "padding": 0}, "do not fit x of 2"),
        ("conv3d", {"depth": 1, "kernel": 5, "padding": 0}, "do not fit x of 1"),
        ("transposed_conv", {"kernel": 3, "stride": 2}, "no multiple of the stride 2"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(op: str, size: dict[str, int], message: str) -> None:
    with pytest.raises((InputError, ShapeError, ValueError), match=message):
        kernel_of(op, size)


@pytest.mark.parametrize(
    ("op", "shapes", "message"),
    [
        ("conv2d", [(1, 3, 8, 8), (4, 2, 3, 3)], "do not fit: .n, c, h, w. needs"),
        ("conv2d", [(1, 3, 8, 8), (4, 3, 3, 3), (3,)], r"a bias of shape \(3,\) does not fit 4 output channels"),
        ("max_pool", [(1, 3, 1, 8)], "windows of 2 do not fit images"),
        ("batch_norm", [(1, 3, 8, 8), (3,), (3,), (3,), (4,)], "one number for each of their channels"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(op: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_operation(op).apply(shapes)
