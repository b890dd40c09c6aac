"""Images in one pass: the maximum or the mean of each window, and batch norm with known statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from pydantic import Field

from hwsim.errors import ShapeError
from hwsim.numerics.format import Array, Format
from hwsim.ops.conv_operator import as_operation
from hwsim.ops.conv_schedule import EPSILON, ImageLayout, ordered
from hwsim.program.group import Group
from hwsim.program.kernel import Formula, Setting
from hwsim.program.loops import LoopPlan, Operand, first_shared
from hwsim.program.operation import Measured, Parameter, StatementOperator, operation
from hwsim.program.tiling import LoopCuts, fit_plan
from hwsim.spec.base import Extent, ParallelSchedule, Spec


class ImageSizes(Spec):
    """Images with channels."""

    batch: Extent = Field(1, description="Images.")
    channels: Extent = Field(64, description="Channels.")
    height: Extent = Field(64, description="Rows of an image.")
    width: Extent | None = Field(None, description="Columns of an image; as many as rows if not given.")


class PoolSizes(ImageSizes):
    """Images and windows."""

    window: Extent = Field(2, description="Rows and columns of a window; a global pool takes all.")
    stride: Extent | None = Field(None, description="From one window to the next; the window if not given.")


class ImageSchedule(ParallelSchedule):
    """One pass over images."""

    layout: ImageLayout = Field("nchw", description="Order of the axes in memory: batch, channel, height, width.")
    vector: bool = Field(False, description="Use the machine's vector unit.")


IMAGES = "[batch,channels,height,width|height]"


def _in_memory(workload: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Images with their axes in the order that the file asks for."""
    return {**shapes, "x": ordered(workload.schedule.layout, **dict(zip("nchw", shapes["x"], strict=True)))}


def _shared(operator: StatementOperator, channel: str, schedule: ImageSchedule) -> str:
    """What cores share: anything but a window, over which one of them sums."""
    loops = operator.program.statements[-1].indices
    order = ordered(schedule.layout, n="n", c=channel, h="h", w="w")
    return first_shared(operator.program.extents, [index for index in order if index in loops])


# Pools ---------------------------------------------------------------------------------------------------------------


def _windows(text: str) -> Callable[..., Measured]:
    """The statements of a pool: those of a text, with its windows on images as they lie in memory."""

    def measured(shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: Any) -> Measured:
        size = dict(zip(schedule.layout, shapes["x"], strict=False))
        side = parameters.get("window", 0)
        if len(shapes["x"]) != 4 or side > min(size["h"], size["w"]):
            raise ShapeError(f"windows of {side} do not fit images {tuple(shapes['x'])}")
        window = (side, side) if side else (size["h"], size["w"])
        rows, columns = (parameters.get("stride") or extent for extent in window)
        x = ",".join(ordered(schedule.layout, n="n", c="c", h=f"{rows}*h+u", w=f"{columns}*w+v"))
        y = ",".join(ordered(schedule.layout, n="n", c="c", h="h", w="w"))
        return Measured(text.format(x=f"x[{x}]", y=f"y[{y}]"), sizes=dict(zip("uv", window, strict=True)))

    return measured


def _in_registers(operator: StatementOperator, schedule: ImageSchedule, lanes: int) -> LoopCuts:
    """Each output stays in a register while its window is read; vectors along what lies side by side."""
    along, wide = "w" if schedule.layout == "nchw" else "c", lanes if schedule.vector else 1

    def plan(group: Group, extents: Mapping[str, int], operands: Sequence[Operand]) -> LoopPlan:
        return fit_plan(tuple(extents), extents, as_operation(group, operands), along=along, lanes=wide)

    return LoopCuts(vector=schedule.vector, plan=plan, stages={"y": ("", _shared(operator, "c", schedule))})


def _window_fits(workload: Any) -> str:
    sizes = workload.sizes
    image = sizes.height, sizes.width or sizes.height
    return f"a window of {sizes.window} does not fit images of {image}" if sizes.window > min(image) else ""


def _each_window(operator: StatementOperator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    if getattr(operator.schedule, "vector", False) and setting.lanes > 1:
        return ()
    outputs, window = prod(operator.outputs[0].shape), prod(operator.program.extents[index] for index in "uv")
    return (
        Formula("loads", "outputs · window²", outputs * window, "elements", "loads"),
        Formula("stores", "outputs", outputs, "elements", "stores"),
    )


def _places(x: Array, window: Sequence[int], stride: Sequence[int]) -> list[Array]:
    """Every place of the windows of images [n, c, h, w], each over the whole image."""
    h, w = (1 + (x.shape[axis + 2] - window[axis]) // stride[axis] for axis in (0, 1))
    return [
        x[:, :, u : u + (h - 1) * stride[0] + 1 : stride[0], v : v + (w - 1) * stride[1] + 1 : stride[1]]
        for u in range(window[0])
        for v in range(window[1])
    ]


def _reduced(
    reduce: Callable[..., Array], x: Array, window: int | None, stride: int | None, schedule: ImageSchedule
) -> Array:
    axes = [schedule.layout.index(axis) for axis in "nchw"]
    images = x.transpose(axes)
    side = images.shape[2:] if window is None else (window, window)
    y = reduce(_places(images, side, side if stride is None else (stride, stride)), axis=0)
    return np.asarray(y.transpose(np.argsort(axes)))


POOL: dict[str, Any] = {
    "sizes": PoolSizes, "schedule": ImageSchedule, "layout": _in_registers, "formulas": _each_window,
    "reshape": _in_memory, "thin": ("n",),
}  # fmt: skip
SQUARES: dict[str, Any] = {
    "check": _window_fits,
    "window": Parameter(2, "Side of a window."),
    "stride": Parameter(None, "From one window to the next; the window if not given.", int | None),
}
MEAN = "avg_pool: {y} += {x}\n{y} = {y} * (1 / (|u| * |v|))"


@operation(f"x{IMAGES} -> y{IMAGES}", _windows("max_pool: {y} max= {x}"), floats=False, **POOL, **SQUARES)
def max_pool(x: Array, window: int, stride: int | None, schedule: ImageSchedule) -> Array:
    """The largest value of each window of an image."""
    return _reduced(np.max, x, window, stride, schedule)


@operation(f"x{IMAGES} -> y{IMAGES}", _windows(MEAN), floats="a mean", **POOL, **SQUARES)
def avg_pool(x: Array, window: int, stride: int | None, schedule: ImageSchedule) -> Array:
    """The mean of each window of an image."""
    return _reduced(np.mean, x, window, stride, schedule)


@operation(f"x{IMAGES} -> y{IMAGES}", _windows(MEAN), floats="a mean", **POOL)
def global_avg_pool(x: Array, schedule: ImageSchedule) -> Array:
    """The mean of all of an image, for each channel."""
    return _reduced(np.mean, x, None, None, schedule)


# Batch norm ----------------------------------------------------------------------------------------------------------


def _channels(shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: Any) -> str:
    x, *statistics = (tuple(shape) for shape in shapes.values())
    channels = (x[schedule.layout.index("c")],) if len(x) == 4 else ()
    if any(shape != channels for shape in statistics):
        raise ShapeError(f"images {x} need one number for each of their channels, found {statistics}")
    at = ",".join(ordered(schedule.layout, n="n", c="co", h="h", w="w"))
    return f"""
    scale: scale[co] = gamma[co] / sqrt(var[co] + epsilon)
    shift: shift[co] = beta[co] - mean[co] * scale[co]
    norm:  y[{at}] = x[{at}] * scale[co] + shift[co]
    """


def _after_statistics(operator: StatementOperator, schedule: ImageSchedule, lanes: int) -> LoopCuts:
    stages = {"scale": ("statistics", ""), "y": ("norm", _shared(operator, "co", schedule))}
    return LoopCuts(vector=schedule.vector, stages=stages)


def _each_once(operator: StatementOperator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    if getattr(operator.schedule, "vector", False) and setting.lanes > 1:
        return ()
    return (Formula("loads of x", "n c h w", prod(operator.inputs[0].shape), "elements", "loads.x"),)


@operation(
    f"x{IMAGES} gamma[channels] beta[channels] mean[channels] var[channels] -> y{IMAGES}",
    _channels,
    sizes=ImageSizes,
    schedule=ImageSchedule,
    layout=_after_statistics,
    formulas=_each_once,
    reshape=_in_memory,
    thin=("n",),
    formats={"scale": "sums", "shift": "sums"},
    positive=frozenset({"var"}),
    floats="batch norm",
    epsilon=Parameter(EPSILON, "Added to the variance.", limits={"gt": 0}, alone=False),
)
def batch_norm(
    x: Array, gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float, schedule: ImageSchedule
) -> Array:
    """Batch norm with known mean and variance, as after training: gamma (x - mean) / sqrt(var + eps) + beta."""
    channel = tuple(slice(None) if axis == "c" else None for axis in schedule.layout)
    deviation = np.sqrt(var + epsilon)
    return np.asarray(gamma[channel] * (x - mean[channel]) / deviation[channel] + beta[channel])
