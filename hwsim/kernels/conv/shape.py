"""ConvShape: the extents of a convolution, its tensors as loops see them, and its windows as NumPy sees them.

Inside, images are [n, g, c, h, w] and filters [g, co, ci, kh, kw], whatever their layout in memory: axes are permuted,
and channels split into groups, by strides and never by a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from hwsim.errors import ShapeError
from hwsim.kernels.loop.loops import Operand, Range
from hwsim.kernels.loop_kernel import LoopKernel, Ranges
from hwsim.numerics.format import Array
from hwsim.spec.ops.conv import ConvSizes, Layout, WeightLayout, conv_problem
from hwsim.trace.nest import Size
from hwsim.trace.view import TensorView

Pair = tuple[int, int]

IMAGE_AXES: Mapping[Layout, tuple[int, ...]] = {"nchw": (0, 1, 2, 3), "nhwc": (0, 3, 1, 2)}
"""Where batch, channel, height and width lie in memory."""

FILTER_AXES: Mapping[WeightLayout, tuple[int, ...]] = {"oihw": (0, 1, 2, 3), "ohwi": (0, 3, 1, 2), "hwio": (3, 2, 0, 1)}
"""Where output channel, input channel, height and width lie in memory."""


@dataclass(frozen=True)
class ConvShape:
    """Extents and layouts; pairs are along height and width."""

    ci: int
    co: int
    image: Pair
    window: Pair
    batch: int = 1
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    layout: Layout = "nchw"
    w_layout: WeightLayout = "oihw"

    def __post_init__(self) -> None:
        problem = conv_problem(self.ci, self.co, self.groups, self.image, self.window, self.padding, self.dilation)
        if problem:
            raise ShapeError(problem)

    @classmethod
    def of(cls, sizes: ConvSizes, layout: Layout = "nchw", w_layout: WeightLayout = "oihw") -> ConvShape:
        """The shape that a workload file asks for."""
        return cls(
            sizes.ci,
            sizes.co or sizes.ci,
            sizes.image,
            sizes.window,
            sizes.batch,
            sizes.strides,
            sizes.pads,
            sizes.dilations,
            sizes.group_count,
            layout,
            w_layout,
        )

    @property
    def out(self) -> Pair:
        """Rows and columns of the output."""
        (h, w), (kh, kw), (ph, pw), (dh, dw) = self.image, self.window, self.padding, self.dilation
        return (h + 2 * ph - dh * (kh - 1) - 1) // self.stride[0] + 1, (w + 2 * pw - dw * (kw - 1) - 1) // self.stride[
            1
        ] + 1

    @property
    def extents(self) -> dict[str, int]:
        """All loops; images and groups only where there are several."""
        several = {"n": self.batch, "g": self.groups}
        return {index: extent for index, extent in several.items() if extent > 1} | {
            "co": self.co // self.groups,
            "h": self.out[0],
            "w": self.out[1],
            "ci": self.ci // self.groups,
            "kh": self.window[0],
            "kw": self.window[1],
        }

    @property
    def summed(self) -> tuple[str, ...]:
        """The loops of a sum, in the order in which the filters lie in memory."""
        return ("ci", "kh", "kw") if self.w_layout == "oihw" else ("kh", "kw", "ci")

    @property
    def depth(self) -> int:
        """Products in a sum."""
        return prod(self.extents[index] for index in self.summed)

    @property
    def macs(self) -> int:
        return self.batch * self.co * prod(self.out) * self.depth

    def image_shape(self, channels: int, size: Pair) -> tuple[int, ...]:
        """In memory."""
        return (self.batch, channels, *size) if self.layout == "nchw" else (self.batch, *size, channels)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """In memory."""
        return self.image_shape(self.co, self.out)

    @property
    def output_indices(self) -> tuple[str, ...]:
        """The loop along each axis of the output in memory; channels have another one where there are groups."""
        return ("n", "co", "h", "w") if self.layout == "nchw" else ("n", "h", "w", "co")

    @property
    def channel_axis(self) -> int:
        return self.output_indices.index("co")

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """In memory."""
        inner = (self.co, self.ci // self.groups, *self.window)
        return tuple(inner[FILTER_AXES[self.w_layout].index(axis)] for axis in range(4))

    @property
    def halo(self) -> tuple[int, ...]:
        ph, pw = self.padding
        return (0, 0, ph, pw) if self.layout == "nchw" else (0, ph, pw, 0)

    # As loops see them ------------------------------------------------------------------------------------------------

    def input_operand(self, kernel: LoopKernel, name: str) -> Operand:
        view = kernel.padded(name, self.halo)[0].permute(*IMAGE_AXES[self.layout])
        n, c, h, w = (view.byte_stride(axis) for axis in range(4))
        strides = {"n": n, "g": self.extents["ci"] * c, "ci": c, "h": self.stride[0] * h, "w": self.stride[1] * w}
        return self._operand(view, strides | {"kh": self.dilation[0] * h, "kw": self.dilation[1] * w})

    def filter_operand(self, kernel: LoopKernel, name: str, flat: bool = False) -> Operand:
        """With `flat`, one loop k runs through a whole filter."""
        view = kernel.tensor(name).permute(*FILTER_AXES[self.w_layout])
        o, i, h, w = (view.byte_stride(axis) for axis in range(4))
        strides = {"g": self.extents["co"] * o, "co": o}
        inner = {"k": w if self.w_layout == "oihw" else i} if flat else {"ci": i, "kh": h, "kw": w}
        return self._operand(view, strides | inner)

    def output_operand(self, kernel: LoopKernel, name: str, axes: Sequence[int] = range(4)) -> Operand:
        """Any tensor that has all axes of the output as it lies in memory, or some of them."""
        view = kernel.tensor(name)
        strides = {self.output_indices[axis]: view.byte_stride(number) for number, axis in enumerate(axes)}
        if "co" in strides:
            strides["g"] = self.extents["co"] * strides["co"]
        return self._operand(view, strides)

    def _operand(self, view: TensorView, strides: Mapping[str, Size]) -> Operand:
        own = {index: stride for index, stride in strides.items() if index in self.extents or index == "k"}
        return Operand(view.name, view.start, view.element_bytes, own)

    # As NumPy sees them -----------------------------------------------------------------------------------------------

    def windows(self, padded: Array) -> Array:
        """What each output sees of an image with its padding, as [n, g, ci, kh, kw, h, w]; a view."""
        x = padded.transpose(IMAGE_AXES[self.layout])
        n, c, h, w = x.strides
        e = self.extents
        shape = (self.batch, self.groups, e["ci"], *self.window, *self.out)
        strides = (
            n,
            e["ci"] * c,
            c,
            self.dilation[0] * h,
            self.dilation[1] * w,
            self.stride[0] * h,
            self.stride[1] * w,
        )
        return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)

    def filters(self, w: Array) -> Array:
        """As [g, co, ci, kh, kw]; a view."""
        return _split(w.transpose(FILTER_AXES[self.w_layout]), 0, self.groups)

    def outputs(self, y: Array) -> Array:
        """A tensor of the output's layout as [n, g, co, h, w]; a view."""
        return _split(y.transpose(IMAGE_AXES[self.layout]), 1, self.groups)

    def outputs_along(self, array: Array, axes: Sequence[int], ranges: Ranges) -> Array:
        """What a range sees of a tensor with some axes of the output: [n, g, co, h, w], of length one where it has no
        such axis; a view."""
        whole = array[tuple(slice(None) if axis in axes else None for axis in range(4))]
        own = {self.output_indices[axis] for axis in axes}
        split = _split(whole.transpose(IMAGE_AXES[self.layout]), 1, self.groups if "co" in own else 1)
        here = zip(("n", "co", "co", "h", "w"), spans(ranges, "n", "g", "co", "h", "w"), strict=True)
        return split[tuple(part if index in own else slice(None) for index, part in here)]


def _split(array: Array, axis: int, groups: int) -> Array:
    """An axis as two, groups first; always a view, so that what is stored there is stored in the array."""
    extent, stride = array.shape[axis] // groups, array.strides[axis]
    shape = (*array.shape[:axis], groups, extent, *array.shape[axis + 1 :])
    strides = (*array.strides[:axis], extent * stride, stride, *array.strides[axis + 1 :])
    return np.lib.stride_tricks.as_strided(array, shape, strides)


def span(ranges: Ranges, index: str) -> Range:
    """The range of an index; the only position of one that has no loop."""
    return ranges.get(index, (0, 1))


def spans(ranges: Ranges, *indices: str) -> tuple[slice, ...]:
    """As `part`, with the only position of each index that has no loop."""
    return tuple(slice(first, first + count) for first, count in (span(ranges, index) for index in indices))


def product(windows: Array, filters: Array) -> tuple[Array, Array]:
    """Windows [n, g, …, h, w] and filters [g, co, …] as matrices [g, n h w, k] and [g, k, co]."""
    n, g, *inner, h, w = windows.shape
    order = (1, 0, len(inner) + 2, len(inner) + 3, *range(2, len(inner) + 2))
    rows = windows.transpose(order).reshape(g, n * h * w, prod(inner))
    columns = filters.reshape(g, filters.shape[1], prod(inner)).transpose(0, 2, 1)
    return rows, columns


def image_of(values: Array, n: int, h: int, w: int) -> Array:
    """The matrix [g, n h w, co] as [n, g, co, h, w]."""
    g, _, co = values.shape
    return values.reshape(g, n, h, w, co).transpose(1, 0, 4, 2, 3)
