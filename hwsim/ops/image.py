"""Further operations on images and fields: separable, transposed and three-dimensional convolution, a stencil.

Images in one pass: the maximum or the mean of each window, and batch norm with known statistics.
"""

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
from hwsim.program.kernel import Formula, Setting
from hwsim.program.loops import LoopPlan, Operand, first_shared
from hwsim.program.operation import Measured, Operator, Parameter, operation
from hwsim.program.tiling import Group, LoopCuts, fit_plan
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


def _shared(operator: Operator, channel: str, schedule: ImageSchedule) -> str:
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


def _in_registers(operator: Operator, schedule: ImageSchedule, lanes: int) -> LoopCuts:
    """Each output stays in a register while its window is read; vectors along what lies side by side."""
    along, wide = "w" if schedule.layout == "nchw" else "c", lanes if schedule.vector else 1

    def plan(group: Group, extents: Mapping[str, int], operands: Sequence[Operand]) -> LoopPlan:
        return fit_plan(tuple(extents), extents, as_operation(group, operands), along=along, lanes=wide)

    return LoopCuts(vector=schedule.vector, plan=plan, stages={"y": ("", _shared(operator, "c", schedule))})


def _window_fits(workload: Any) -> str:
    sizes = workload.sizes
    image = sizes.height, sizes.width or sizes.height
    return f"a window of {sizes.window} does not fit images of {image}" if sizes.window > min(image) else ""


def _each_window(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
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


def _after_statistics(operator: Operator, schedule: ImageSchedule, lanes: int) -> LoopCuts:
    stages = {"scale": ("statistics", ""), "y": ("norm", _shared(operator, "co", schedule))}
    return LoopCuts(vector=schedule.vector, stages=stages)


def _each_once(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
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


class FieldSchedule(ParallelSchedule):
    """Loops in the order of the statements."""

    vector: bool = Field(True, description="Use the machine's vector unit.")


@operation(
    "x[batch,ci,height,width] d[ci,kernel,kernel] p[co,ci] -> y[batch,co,height,width]",
    """
    depthwise: m[n,c,h,w] += x[n,c,stride*h+u-padding,stride*w+v-padding] * d[c,u,v]
    pointwise: y[n,o,h,w] += m[n,c,h,w] * p[o,c]
    """,
    sizes="Images, and filters that see one channel or one pixel.",
    batch=(1, "Images."),
    ci=(32, "Input channels."),
    co=(64, "Output channels."),
    height=(28, "Rows of an image."),
    width=(28, "Columns of an image."),
    kernel=(3, "Rows and columns of a filter."),
    stride=Parameter(1, "Rows and columns from one output to the next.", size=True),
    padding=Parameter(1, "Rows and columns of zeros on each side.", limits={"ge": 0}, size=True),
    schedule=FieldSchedule,
    formats={"y": "sums"},
    floats="separable_conv, whose second product takes the sums of the first without a scale,",
)
def separable_conv(x: Array, d: Array, p: Array, stride: int, padding: int) -> Array:
    """A filter for each channel alone, then a product over the channels of each pixel: a separable convolution."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, d.shape[1:], axis=(2, 3))[:, :, ::stride, ::stride]
    return np.asarray(np.einsum("nchwuv,cuv,oc->nohw", seen, d, p, optimize=True))


def _transposed(
    shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: FieldSchedule
) -> Measured:
    """Output row s h + r sees input rows h, h - 1, … through the rows r, s + r, … of a filter."""
    (_, _, height, width), (_, _, rows, columns), stride = shapes["x"], shapes["w"], int(parameters["stride"])
    if rows % stride or columns % stride:
        raise ShapeError(f"a filter of {rows}x{columns} is no multiple of the stride {stride}: take a larger one")
    sizes = {"t": rows // stride, "v": columns // stride, "r": stride, "q": stride}
    sizes |= {"h": height + sizes["t"] - 1, "j": width + sizes["v"] - 1}
    return Measured("y[n,o,stride*h+r,stride*j+q] += x[n,c,h-t,j-v] * w[c,o,stride*t+r,stride*v+q]", sizes=sizes)


@operation(
    "x[batch,ci,height,width] w[ci,co,kernel,kernel] -> y[batch,co,height,width]",
    _transposed,
    sizes="Images, filters, and how far apart their prints lie.",
    batch=(1, "Images."),
    ci=(32, "Input channels."),
    co=(16, "Output channels."),
    height=(14, "Rows of an image."),
    width=(14, "Columns of an image."),
    kernel=(4, "Rows and columns of a filter; a multiple of the stride."),
    stride=Parameter(2, "Rows and columns from one print of a filter to the next.", size=True),
    schedule=FieldSchedule,
    formats={"y": "sums"},
)
def transposed_conv(x: Array, w: Array, stride: int) -> Array:
    """Every pixel prints its filters on a larger image: a transposed convolution, as in decoders."""
    (n, _, height, width), (_, o, rows, columns) = x.shape, w.shape
    y: Array = np.zeros((n, o, stride * (height - 1) + rows, stride * (width - 1) + columns))
    for i, j in np.ndindex(height, width):
        y[..., i * stride : i * stride + rows, j * stride : j * stride + columns] += np.einsum(
            "nc,couv->nouv", x[:, :, i, j], w
        )
    return y


@operation(
    "x[batch,ci,depth,height,width] w[co,ci,kernel,kernel,kernel] -> y[batch,co,depth,height,width]",
    "y[n,o,d,h,w] += x[n,c,stride*d+t-padding,stride*h+u-padding,stride*w+v-padding] * w[o,c,t,u,v]",
    sizes="Volumes, and cubes of weights.",
    batch=(1, "Volumes."),
    ci=(8, "Input channels."),
    co=(16, "Output channels."),
    depth=(10, "Planes of a volume."),
    height=(12, "Rows of a plane."),
    width=(14, "Columns of a plane."),
    kernel=(3, "Planes, rows and columns of a filter."),
    stride=Parameter(1, "From one output to the next, along each axis.", size=True),
    padding=Parameter(1, "Zeros on each side of each axis.", limits={"ge": 0}, size=True),
    schedule=FieldSchedule,
    formats={"y": "sums"},
)
def conv3d(x: Array, w: Array, stride: int, padding: int) -> Array:
    """Convolution of volumes: of films, or of scans."""
    padded = np.pad(x, ((0, 0), (0, 0), *((padding, padding),) * 3))
    seen = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3, 4))
    return np.asarray(np.einsum("ncdhwtuv,octuv->nodhw", seen[:, :, ::stride, ::stride, ::stride], w, optimize=True))


@operation(
    "x[m,n] -> y[m,n]",
    "y[i,j] = centre * x[i,j] + side * (x[i-1,j] + x[i+1,j] + x[i,j-1] + x[i,j+1])",
    sizes="A field of points.",
    m=(256, "Rows."),
    n=(256, "Columns."),
    schedule=FieldSchedule,
    formats={"y": "sums"},
    centre=Parameter(-4.0, "Weight of the point itself."),
    side=Parameter(1.0, "Weight of its four neighbours."),
)
def stencil(x: Array, centre: float, side: float) -> Array:
    """Each point of a field with its four neighbours, zeros around it: one step of a diffusion, or a Laplacian."""
    y: Array = centre * x
    for axis in (0, 1):
        for step in (1, -1):
            moved = np.roll(x, step, axis=axis)
            edge = [slice(None)] * 2
            edge[axis] = slice(0, 1) if step == 1 else slice(-1, None)
            moved[tuple(edge)] = 0
            y = y + side * moved
    return y
