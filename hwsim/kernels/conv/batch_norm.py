"""Batch norm with known statistics: a scale and a shift for each channel, and how to fold them into a convolution."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hwsim.kernels.conv.shape import IMAGE_AXES, spans
from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop.grain import first_shared
from hwsim.kernels.loop.loops import Operand
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at, part
from hwsim.kernels.operator import Names, Operator, Port, need_floats
from hwsim.kernels.rounding import Rounding
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array, Format
from hwsim.spec.ops.conv import Layout

NORM_PORTS = ("gamma", "beta", "mean", "var")

EPSILON = 1e-5
"""Added to a variance before its root is taken: the default of PyTorch's BatchNorm2d."""


def folded_weights(
    w: Array,
    b: Array | None,
    gamma: Array,
    beta: Array,
    mean: Array,
    var: Array,
    eps: float = EPSILON,
) -> tuple[Array, Array]:
    """Weights and bias of a convolution that does what one with w and b and a batch norm after it do.

    Output channels are the first axis of w. With R = gamma / sqrt(var + eps) and P = beta - mean R, the outputs
    Y R + P are those of the weights W R and the bias B R + P.
    """
    scale = gamma / np.sqrt(var + eps)
    shift = beta - mean * scale
    folded = w * scale.reshape(-1, *(1,) * (w.ndim - 1))
    return folded, shift if b is None else b * scale + shift


def add_norm_loops(kernel: LoopKernel, tensors: Mapping[str, str], scale: str, shift: str, vector: bool) -> None:
    """Two short loops over the channels: gamma / sqrt(var + eps), and beta - mean times that."""
    fmt = kernel.find_sum_format()
    views = {port: kernel.tensor(name) for port, name in tensors.items()}
    (channels,) = views["gamma"].shape
    extents = {"co": channels}
    for name in (scale, shift):
        kernel.add_scratch(name, channels, fmt=fmt)

    def values(port: str, ranges: Ranges) -> Array:
        return fmt.load(kernel.arrays[tensors.get(port, port)][part(ranges, "co")])

    def make_scale(ranges: Ranges) -> None:
        root = np.sqrt(values("var", ranges) + fmt.computed.type(EPSILON))
        kernel.arrays[scale][part(ranges, "co")] = fmt.store(values("gamma", ranges) / root)

    def make_shift(ranges: Ranges) -> None:
        moved = values("beta", ranges) - values("mean", ranges) * values(scale, ranges)
        kernel.arrays[shift][part(ranges, "co")] = fmt.store(moved)

    reads = [at(views[port], "co") for port in ("gamma", "var")]
    write = at(kernel.tensor(scale), "co")
    kernel.add_loop("scale", extents, reads, write, Instructions(add=1, special=2), make_scale, vector=vector)
    reads = [*(at(views[port], "co") for port in ("beta", "mean")), at(kernel.tensor(scale), "co")]
    write = at(kernel.tensor(shift), "co")
    kernel.add_loop("shift", extents, reads, write, Instructions(fma=1), make_shift, vector=vector)


class BatchNorm(Operator):
    """gamma (x - mean) / sqrt(var + eps) + beta for each channel of images."""

    name = "batch_norm"

    def __init__(
        self, batch: int, channels: int, image: tuple[int, int], layout: Layout = "nchw", vector: bool = False
    ) -> None:
        self.layout: Layout = layout
        self.vector = vector
        shape = (batch, channels, *image) if layout == "nchw" else (batch, *image, channels)
        extents = dict(zip(("n", "co", "h", "w"), (batch, channels, *image), strict=True))
        order = ("n", "co", "h", "w") if layout == "nchw" else ("n", "h", "w", "co")
        self.extents = {index: extents[index] for index in order if index != "n" or batch > 1}
        self.inputs = (Port("x", shape), *(Port(port, (channels,), positive=port == "var") for port in NORM_PORTS))
        self.outputs = (Port("y", shape),)

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        need_floats("batch norm", kernel.fmt)
        scale, shift = self.scratch("scale", names), self.scratch("shift", names)
        kernel.begin_phase(self.scratch("statistics", names))
        add_norm_loops(kernel, {port: names[port] for port in NORM_PORTS}, scale, shift, self.vector)
        kernel.begin_phase(self.scratch("norm", names))
        fmt, axes = kernel.fmt, IMAGE_AXES[self.layout]
        x, y = names["x"], names["y"]

        def norm(ranges: Ranges) -> None:
            where = spans(ranges, "n", "co", "h", "w")
            one = [fmt.load(kernel.arrays[name])[:, None, None][where[1]] for name in (scale, shift)]
            values = fmt.load(kernel.arrays[x].transpose(axes)[where]) * one[0] + one[1]
            kernel.arrays[y].transpose(axes)[where] = fmt.store(values)

        reads = [self._image(kernel, x), *(at(kernel.tensor(name), "co") for name in (scale, shift))]
        kernel.add_loop(
            "norm", self.extents, reads, self._image(kernel, y), Instructions(fma=1), norm, vector=self.vector
        )
        kernel.shared_index = first_shared(self.extents, list(self.extents))

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        gamma, beta, mean, var = (
            tensors[port][:, None, None] if self.layout == "nchw" else tensors[port] for port in NORM_PORTS
        )
        return {"y": gamma * (tensors["x"] - mean) / np.sqrt(var + EPSILON) + beta}

    def tolerance(self, rounding: Rounding) -> float:
        """Scale and shift are stored as sums are."""
        return rounding.stored + 2 * rounding.kept + rounding.operations(8)

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        if self.vector and setting.lanes > 1:
            return ()
        elements = int(np.prod(self.inputs[0].shape))
        return (Formula("loads of x", "n c h w", elements, "elements", "loads.x"),)

    def _image(self, kernel: LoopKernel, name: str) -> Operand:
        view = kernel.tensor(name).permute(*IMAGE_AXES[self.layout])
        strides = {index: view.byte_stride(axis) for axis, index in enumerate(("n", "co", "h", "w"))}
        own = {index: stride for index, stride in strides.items() if index in self.extents}
        return Operand(view.name, view.start, view.element_bytes, own)
