"""Pooling: the maximum or the mean of each window of an image, or the mean of a whole channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hwsim.errors import ShapeError
from hwsim.kernels.conv.plan import count_registers, make_plan
from hwsim.kernels.conv.shape import IMAGE_AXES, spans
from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop.grain import first_shared
from hwsim.kernels.loop.loops import LoopOperation, Operand
from hwsim.kernels.loop.program import Loop
from hwsim.kernels.loop_kernel import LoopKernel, Ranges
from hwsim.kernels.operator import Names, Operator, Port, need_floats
from hwsim.kernels.rounding import Rounding
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array, Format
from hwsim.spec.ops.conv import ConvSchedule, Layout

PoolKind = Literal["max_pool", "avg_pool"]
Pair = tuple[int, int]


@dataclass(frozen=True)
class PoolShape:
    """Images and windows; pairs are along height and width."""

    batch: int
    channels: int
    image: Pair
    window: Pair
    stride: Pair
    layout: Layout = "nchw"

    def __post_init__(self) -> None:
        if self.window[0] > self.image[0] or self.window[1] > self.image[1]:
            raise ShapeError(f"a window of {self.window} does not fit an image of {self.image}")

    @property
    def out(self) -> Pair:
        (h, w), (u, v), (sh, sw) = self.image, self.window, self.stride
        return (h - u) // sh + 1, (w - v) // sw + 1

    @property
    def extents(self) -> dict[str, int]:
        images = {"n": self.batch} if self.batch > 1 else {}
        outer = {"c": self.channels, "h": self.out[0], "w": self.out[1]}
        order = ("c", "h", "w") if self.layout == "nchw" else ("h", "w", "c")
        return images | {index: outer[index] for index in order} | {"u": self.window[0], "v": self.window[1]}

    @property
    def shared_index(self) -> str:
        """What cores share: anything but the window, over which one of them sums."""
        return first_shared(self.extents, [index for index in self.extents if index not in ("u", "v")])

    def tensor_shape(self, size: Pair) -> tuple[int, ...]:
        """In memory."""
        return (self.batch, self.channels, *size) if self.layout == "nchw" else (self.batch, *size, self.channels)

    def windows(self, x: Array) -> Array:
        """As [n, c, h, w, u, v]; a view."""
        image = x.transpose(IMAGE_AXES[self.layout])
        n, c, h, w = image.strides
        shape = (self.batch, self.channels, *self.out, *self.window)
        strides = (n, c, self.stride[0] * h, self.stride[1] * w, h, w)
        return np.lib.stride_tricks.as_strided(image, shape, strides, writeable=False)


def pool_loop(
    kernel: LoopKernel, shape: PoolShape, kind: PoolKind, source: str, target: str, *, vector: bool, wide: bool
) -> Loop:
    """One pass over an image; each output stays in a register while its window is read."""
    fmt = kernel.find_sum_format() if wide else kernel.fmt
    extents = shape.extents
    reads, write = _operands(kernel, shape, source, target)
    operation = LoopOperation((reads,), write)
    schedule = ConvSchedule(vector=vector)
    along = "w" if shape.layout == "nchw" else "c"
    lanes = kernel.setting.lanes if vector else 1
    plan = make_plan(tuple(extents), extents, schedule, operation, lanes=lanes, along=along)
    area = shape.window[0] * shape.window[1]

    def compute(ranges: Ranges) -> None:
        where = spans(ranges, "n", "c", "h", "w")
        values = fmt.load(shape.windows(kernel.arrays[source])[where])
        mean = values.dtype.type(1 / area)
        found = values.max(axis=(4, 5)) if kind == "max_pool" else values.sum(axis=(4, 5)) * mean
        kernel.arrays[target].transpose(IMAGE_AXES[shape.layout])[where] = fmt.store(found)

    kernel.registers_needed = max(kernel.registers_needed, count_registers(plan, operation))
    late = Instructions(mul=1) if kind == "avg_pool" else Instructions()
    return kernel.make_loop(
        kind, extents, [reads], write, Instructions(add=1), compute, plan=plan, accumulates=True, late_body=late
    )


def _operands(kernel: LoopKernel, shape: PoolShape, source: str, target: str) -> tuple[Operand, Operand]:
    made = []
    for name, (step_h, step_w) in ((source, shape.stride), (target, (1, 1))):
        view = kernel.tensor(name).permute(*IMAGE_AXES[shape.layout])
        n, c, h, w = (view.byte_stride(axis) for axis in range(4))
        strides = {"n": n, "c": c, "h": step_h * h, "w": step_w * w}
        if name == source:
            strides |= {"u": h, "v": w}
        own = {index: stride for index, stride in strides.items() if index in shape.extents}
        made.append(Operand(view.name, view.start, view.element_bytes, own))
    return made[0], made[1]


class Pool(Operator):
    """Maximum or mean of each window, without padding."""

    def __init__(self, shape: PoolShape, kind: PoolKind = "max_pool", vector: bool = False) -> None:
        self.name = kind
        self.kind: PoolKind = kind
        self.shape = shape
        self.vector = vector
        self.inputs = (Port("x", shape.tensor_shape(shape.image)),)
        self.outputs = (Port("y", shape.tensor_shape(shape.out)),)

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        if self.kind == "avg_pool":
            need_floats("a mean", kernel.fmt)
        source, target = names["x"], names["y"]
        kernel.add(pool_loop(kernel, self.shape, self.kind, source, target, vector=self.vector, wide=False))
        kernel.shared_index = self.shape.shared_index

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Row and column of the window after row and column, over the whole image."""
        x = tensors["x"].transpose(IMAGE_AXES[self.shape.layout])
        (h, w), (sh, sw) = self.shape.out, self.shape.stride
        parts = [
            x[:, :, u : u + (h - 1) * sh + 1 : sh, v : v + (w - 1) * sw + 1 : sw]
            for u in range(self.shape.window[0])
            for v in range(self.shape.window[1])
        ]
        y = np.maximum.reduce(parts) if self.kind == "max_pool" else np.mean(parts, axis=0)
        return {"y": y if self.shape.layout == "nchw" else y.transpose(0, 2, 3, 1)}

    def tolerance(self, rounding: Rounding) -> float:
        if self.kind == "max_pool":
            return rounding.moved
        return rounding.stored + rounding.sum(self.shape.window[0] * self.shape.window[1])

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        outputs = self.shape.batch * self.shape.channels * self.shape.out[0] * self.shape.out[1]
        if self.vector and setting.lanes > 1:
            return ()
        loads = outputs * self.shape.window[0] * self.shape.window[1]
        return (
            Formula("loads", "outputs · window²", loads, "elements", "loads"),
            Formula("stores", "outputs", outputs, "elements", "stores"),
        )
