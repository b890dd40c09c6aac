"""Images in one pass: the maximum or the mean of each window, and batch norm with known statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hwsim.errors import InputError, ShapeError
from hwsim.numerics.format import Array, Format
from hwsim.ops.conv_operator import as_operation
from hwsim.ops.conv_schedule import EPSILON, NORM_PORTS, ImageLayout, ordered
from hwsim.program.convolution import Pair
from hwsim.program.emit import Layout
from hwsim.program.group import Group
from hwsim.program.kernel import Formula, Setting
from hwsim.program.loops import LoopPlan, Operand, first_shared
from hwsim.program.operation import OPERATIONS, Operation, Parameter, StatementOperator
from hwsim.program.tiling import fit_plan
from hwsim.spec.base import Spec
from hwsim.spec.schedule import Extent, ParallelSchedule
from hwsim.spec.workload import WorkloadSpec

PoolName = Literal["max_pool", "avg_pool"]
STATEMENTS: Mapping[PoolName, str] = {
    "max_pool": "max_pool: {y} max= {x}",
    "avg_pool": "avg_pool: {y} += {x}\n{y} = {y} * (1 / (|u| * |v|))",
}


class ImageSizes(Spec):
    """Images with channels."""

    batch: Extent = Field(1, description="Images.")
    channels: Extent = Field(64, description="Channels.")
    height: Extent = Field(64, description="Rows of an image.")
    width: Extent | None = Field(None, description="Columns of an image; as many as rows if not given.")

    @property
    def image(self) -> Pair:
        return self.height, self.width or self.height

    def shape(self, layout: ImageLayout) -> tuple[int, ...]:
        """In memory."""
        return ordered(layout, n=self.batch, c=self.channels, h=self.image[0], w=self.image[1])


class PoolSizes(ImageSizes):
    """Images and windows."""

    window: Extent = Field(2, description="Rows and columns of a window; a global pool takes all.")
    stride: Extent | None = Field(None, description="From one window to the next; the window if not given.")


class ImageSchedule(ParallelSchedule):
    """One pass over images."""

    layout: ImageLayout = Field("nchw", description="Order of the axes in memory: batch, channel, height, width.")
    vector: bool = Field(False, description="Use the machine's vector unit.")


class PoolWorkload(WorkloadSpec):
    """The maximum or the mean of each window of an image, or the mean of all of it."""

    op: Literal["max_pool", "avg_pool", "global_avg_pool"] = Field(description="What is kept of each window.")
    sizes: PoolSizes = Field(PoolSizes(), description="Extents of images and windows.")
    schedule: ImageSchedule = Field(ImageSchedule(), description="How the pass runs.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.op != "global_avg_pool" and self.sizes.window > min(self.sizes.image):
            raise ValueError(f"a window of {self.sizes.window} does not fit images of {self.sizes.image}")
        return self


class BatchNormWorkload(WorkloadSpec):
    """Batch norm with known mean and variance, as after training: gamma (x - mean) / sqrt(var + eps) + beta."""

    op: Literal["batch_norm"] = Field(description="Scale and shift of each channel.")
    sizes: ImageSizes = Field(ImageSizes(), description="Extents of the images.")
    schedule: ImageSchedule = Field(ImageSchedule(), description="How the pass runs.")


class Pool(StatementOperator):
    """The maximum or the mean of each window, without padding; the image lies in memory as the schedule says."""

    schedule: ImageSchedule

    def __init__(
        self,
        name: PoolName,
        shape: Sequence[int],
        window: Pair,
        stride: Pair | None = None,
        schedule: ImageSchedule | None = None,
    ) -> None:
        schedule = schedule or ImageSchedule()
        layout, (rows, columns) = schedule.layout, stride or window
        n, h, w = (shape[layout.index(axis)] for axis in "nhw")
        if window[0] > h or window[1] > w:
            raise ShapeError(f"a window of {window} does not fit an image of {(h, w)}")
        self.window, self.stride = window, (rows, columns)
        self.out = (h - window[0]) // rows + 1, (w - window[1]) // columns + 1
        image = "n" if n > 1 else "0"
        x = ",".join(ordered(layout, n=image, c="c", h=f"{rows}*h+u", w=f"{columns}*w+v"))
        y = ",".join(ordered(layout, n=image, c="c", h="h", w="w"))
        operation = Operation(
            name,
            STATEMENTS[name].format(x=f"x[{x}]", y=f"y[{y}]"),
            {"x": ()},
            {"y": ()},
            self._answer,
            schedule=ImageSchedule,
            extents={"u": window[0], "v": window[1]},
            floats="a mean" if name == "avg_pool" else False,
        )
        super().__init__(operation, {"x": shape}, None, schedule)

    def layout(self, lanes: int) -> Layout:
        """Each output stays in a register while its window is read; vectors along what lies side by side."""
        schedule, along = self.schedule, "w" if self.schedule.layout == "nchw" else "c"
        wide = lanes if schedule.vector else 1

        def plan(group: Group, extents: Mapping[str, int], operands: Sequence[Operand]) -> LoopPlan:
            return fit_plan(tuple(extents), extents, as_operation(group, operands), along=along, lanes=wide)

        share = _shared(self.program.extents, "c", schedule)
        return Layout(vector=schedule.vector, plan=plan, stages={"y": ("", share)})

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        if self.schedule.vector and setting.lanes > 1:
            return ()
        outputs = prod(self.outputs[0].shape)
        return (
            Formula("loads", "outputs · window²", outputs * prod(self.window), "elements", "loads"),
            Formula("stores", "outputs", outputs, "elements", "stores"),
        )

    def _answer(self, x: Array) -> Array:
        """Row and column of the window after row and column, over the whole image."""
        axes = [self.schedule.layout.index(axis) for axis in "nchw"]
        (h, w), (sh, sw) = self.out, self.stride
        parts = [
            x.transpose(axes)[:, :, u : u + (h - 1) * sh + 1 : sh, v : v + (w - 1) * sw + 1 : sw]
            for u in range(self.window[0])
            for v in range(self.window[1])
        ]
        y = np.maximum.reduce(parts) if self.name == "max_pool" else np.mean(parts, axis=0)
        return np.asarray(y.transpose(np.argsort(axes)))


class PoolOperation(Operation):
    """A pool by its tensor, or as a file asks for it."""

    def apply(
        self,
        shapes: Sequence[Sequence[int]],
        parameters: Mapping[str, Any] | None = None,
        schedule: ParallelSchedule | None = None,
    ) -> StatementOperator:
        (x,) = exactly(self, shapes)
        own = schedule if isinstance(schedule, ImageSchedule) else ImageSchedule()
        if self.name == "global_avg_pool":
            return Pool("avg_pool", x, (x[2], x[3]), schedule=own)
        side = (parameters or {}).get("window", 2)
        if len(x) != 4 or side > min(x[2:]):
            raise ShapeError(f"windows of {side} do not fit images {x}")
        return Pool("max_pool" if self.name == "max_pool" else "avg_pool", x, (side, side), schedule=own)

    def of(self, workload: PoolWorkload) -> StatementOperator:
        sizes, schedule = workload.sizes, workload.schedule
        step = sizes.stride or sizes.window
        whole = workload.op == "global_avg_pool"
        window, stride = (sizes.image,) * 2 if whole else ((sizes.window, sizes.window), (step, step))
        name: PoolName = "max_pool" if workload.op == "max_pool" else "avg_pool"
        return Pool(name, sizes.shape(schedule.layout), window, stride, schedule)

    @property
    def workload(self) -> type[WorkloadSpec]:
        return PoolWorkload


def max_pool(x: Array, window: int) -> Array:
    """The largest value of each window of an image; windows lie side by side."""
    return Pool("max_pool", x.shape, (window, window)).reference({"x": x})["y"]


def avg_pool(x: Array, window: int) -> Array:
    """The mean of each window of an image; windows lie side by side."""
    return Pool("avg_pool", x.shape, (window, window)).reference({"x": x})["y"]


def global_avg_pool(x: Array) -> Array:
    """The mean of all of an image, for each channel."""
    return np.asarray(x.mean(axis=(2, 3), keepdims=True))


for _pool in (max_pool, avg_pool, global_avg_pool):
    OPERATIONS[_pool.__name__] = PoolOperation(
        _pool.__name__,
        STATEMENTS["max_pool" if _pool is max_pool else "avg_pool"],
        {"x": ("batch", "channels", "height", "width")},
        {"y": ()},
        _pool,
        {} if _pool is global_avg_pool else {"window": Parameter(2, "Side of a window; windows lie side by side.")},
        schedule=ImageSchedule,
    )
PoolWorkload.operation = OPERATIONS["max_pool"]


def exactly(operation: Operation, shapes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The shapes of as many tensors as an operation has."""
    if len(shapes) != len(operation.inputs):
        raise InputError(f"{operation.name} has {len(operation.inputs)} inputs, found {len(shapes)}")
    return [tuple(shape) for shape in shapes]


def _shared(extents: Mapping[str, int], channel: str, schedule: ImageSchedule) -> str:
    """What cores share: anything but a window, over which one of them sums."""
    order = ordered(schedule.layout, n="n", c=channel, h="h", w="w")
    return first_shared(extents, [index for index in order if index in extents])


class BatchNorm(StatementOperator):
    """gamma (x - mean) / sqrt(var + eps) + beta for each channel of images."""

    schedule: ImageSchedule

    def __init__(self, shape: Sequence[int], schedule: ImageSchedule | None = None, epsilon: float = EPSILON) -> None:
        schedule, self.epsilon = schedule or ImageSchedule(), epsilon
        n, c = (shape[schedule.layout.index(axis)] for axis in "nc")
        at = ",".join(ordered(schedule.layout, n="n" if n > 1 else "0", c="co", h="h", w="w"))
        operation = Operation(
            "batch_norm",
            f"""
            scale: scale[co] = gamma[co] / sqrt(var[co] + {epsilon!r})
            shift: shift[co] = beta[co] - mean[co] * scale[co]
            norm:  y[{at}] = x[{at}] * scale[co] + shift[co]
            """,
            dict.fromkeys(("x", *NORM_PORTS), ()),
            {"y": ()},
            self._answer,
            schedule=ImageSchedule,
            formats={"scale": "sums", "shift": "sums"},
            positive=frozenset({"var"}),
            floats="batch norm",
        )
        super().__init__(operation, {"x": shape, **dict.fromkeys(NORM_PORTS, (c,))}, None, schedule)

    def layout(self, lanes: int) -> Layout:
        share = _shared(self.program.extents, "co", self.schedule)
        return Layout(vector=self.schedule.vector, stages={"scale": ("statistics", ""), "y": ("norm", share)})

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        if self.schedule.vector and setting.lanes > 1:
            return ()
        return (Formula("loads of x", "n c h w", prod(self.inputs[0].shape), "elements", "loads.x"),)

    def _answer(self, x: Array, gamma: Array, beta: Array, mean: Array, var: Array) -> Array:
        channel = tuple(slice(None) if axis == "c" else None for axis in self.schedule.layout)
        deviation = np.sqrt(var + self.epsilon)
        return np.asarray(gamma[channel] * (x - mean[channel]) / deviation[channel] + beta[channel])


class BatchNormOperation(Operation):
    """Batch norm by its tensors, or as a file asks for it."""

    def apply(
        self,
        shapes: Sequence[Sequence[int]],
        parameters: Mapping[str, Any] | None = None,
        schedule: ParallelSchedule | None = None,
    ) -> StatementOperator:
        x, *statistics = exactly(self, shapes)
        if len(x) != 4 or any(shape != x[1:2] for shape in statistics):
            raise ShapeError(f"images {x} need one number for each of their channels, found {statistics}")
        own = schedule if isinstance(schedule, ImageSchedule) else ImageSchedule()
        return BatchNorm(x, own, (parameters or {}).get("epsilon", EPSILON))

    def of(self, workload: BatchNormWorkload) -> StatementOperator:
        return BatchNorm(workload.sizes.shape(workload.schedule.layout), workload.schedule)

    @property
    def workload(self) -> type[WorkloadSpec]:
        return BatchNormWorkload


def normalised(x: Array, gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float = EPSILON) -> Array:
    """gamma (x - mean) / sqrt(var + eps) + beta for each channel: normalisation by known mean and variance."""
    tensors = {"x": x, "gamma": gamma, "beta": beta, "mean": mean, "var": var}
    return BatchNorm(x.shape, epsilon=epsilon).reference(tensors)["y"]


OPERATIONS["batch_norm"] = BatchNormWorkload.operation = BatchNormOperation(
    "batch_norm",
    "y[n,c,h,w] = (x[n,c,h,w] - mean[c]) * gamma[c] / sqrt(var[c] + epsilon) + beta[c]",
    {"x": ("batch", "channels", "height", "width"), **dict.fromkeys(NORM_PORTS, ("channels",))},
    {"y": ()},
    normalised,
    {"epsilon": Parameter(EPSILON, "Added to the variance.", limits={"gt": 0})},
    schedule=ImageSchedule,
)
