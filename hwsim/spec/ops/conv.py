"""Convolutions of images, and what usually follows them: pointwise operations, batch norm, pooling."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from hwsim.spec.base import Spec
from hwsim.spec.ops.common import Extent, IndexName, ParallelSchedule
from hwsim.spec.workload import WorkloadSpec
from hwsim.units import Bytes

Layout = Literal["nchw", "nhwc"]
WeightLayout = Literal["oihw", "ohwi", "hwio"]
EpilogueName = Literal[
    "bias", "batch_norm", "scale_shift", "add", "sub", "mul", "relu", "square", "exp", "sigmoid", "tanh", "gelu", "silu"
]

CONV_LOOPS = ("n", "g", "co", "h", "w", "ci", "kh", "kw")


class ConvSizes(Spec):
    """Images, filters, and how far the filters move; sizes along the width are those along the height if not given."""

    batch: Extent = Field(1, description="Images.")
    ci: Extent = Field(64, description="Input channels.")
    co: Extent | None = Field(None, description="Output channels; as many as input channels if not given.")
    height: Extent = Field(32, description="Rows of an input image.")
    width: Extent | None = Field(None, description="Columns of an input image.")
    kernel: Extent = Field(3, description="Rows of a filter.")
    kernel_w: Extent | None = Field(None, description="Columns of a filter.")
    stride: Extent = Field(1, description="Rows from one output to the next.")
    stride_w: Extent | None = Field(None, description="Columns from one output to the next.")
    padding: int = Field(0, ge=0, description="Rows of zeros above and below an image; they are stored around it.")
    padding_w: int | None = Field(None, ge=0, description="Columns of zeros on the left and on the right.")
    dilation: Extent = Field(1, description="Rows from one element of a filter to the next.")
    dilation_w: Extent | None = Field(None, description="Columns from one element of a filter to the next.")
    groups: Extent | Literal["depthwise"] = Field(
        1, description="Groups of channels that do not mix; depthwise: each input channel is a group."
    )

    @model_validator(mode="after")
    def _fit(self) -> Self:
        problem = conv_problem(
            self.ci, self.co or self.ci, self.group_count, self.image, self.window, self.pads, self.dilations
        )
        if problem:
            raise ValueError(problem)
        return self

    @property
    def group_count(self) -> int:
        return self.ci if self.groups == "depthwise" else self.groups

    @property
    def image(self) -> tuple[int, int]:
        return self.height, self.width or self.height

    @property
    def window(self) -> tuple[int, int]:
        return self.kernel, self.kernel_w or self.kernel

    @property
    def strides(self) -> tuple[int, int]:
        return self.stride, self.stride_w or self.stride

    @property
    def pads(self) -> tuple[int, int]:
        return self.padding, self.padding if self.padding_w is None else self.padding_w

    @property
    def dilations(self) -> tuple[int, int]:
        return self.dilation, self.dilation_w or self.dilation


def conv_problem(
    ci: int,
    co: int,
    groups: int,
    image: tuple[int, int],
    window: tuple[int, int],
    pads: tuple[int, int],
    dilations: tuple[int, int],
) -> str:
    """What is wrong with the sizes of a convolution; nothing if they fit."""
    if ci % groups or co % groups:
        return f"groups {groups} must divide both ci {ci} and co {co}"
    for axis, extent, size, pad, dilation in zip(("height", "width"), image, window, pads, dilations, strict=True):
        reach = dilation * (size - 1) + 1
        if extent + 2 * pad < reach:
            return (
                f"a filter that reaches over {reach} elements does not fit a {axis} of {extent} with {pad} of padding "
                "on each side; take a larger image, more padding, or a smaller kernel or dilation"
            )
    return ""


class ConvSchedule(ParallelSchedule):
    """Algorithm, layouts, loop order, and tiles for registers and caches."""

    algorithm: Literal["direct", "im2col", "implicit"] = Field(
        "direct",
        description="direct: loops over the images themselves. im2col: every window is copied into a large matrix, "
        "then a matrix product. implicit: the same block by block, with only a block of that matrix in scratch space.",
    )
    layout: Layout = Field("nchw", description="Order of the axes of images in memory: batch, channel, height, width.")
    w_layout: WeightLayout = Field(
        "oihw", description="Order of the axes of filters in memory: output channel, input channel, height, width."
    )
    order: tuple[IndexName, ...] = Field(
        (),
        description="Loops, outermost first: n images, g groups, co output channels, h rows and w columns of the "
        "output, then ci input channels, kh rows and kw columns of a filter, which are one loop k in a matrix product.",
    )
    tile: dict[IndexName, Extent] = Field(
        {}, description="Extent of a cache tile along a loop; for implicit, that of the block along h, w and ci."
    )
    unroll: dict[IndexName, Extent] = Field({}, description="Extent of the register tile along a loop.")
    vector: bool = Field(False, description="Use the machine's vector unit.")
    along: IndexName | None = Field(
        None, description="Loop whose neighbours fill a vector; one that runs along memory if not given."
    )
    fused: bool = Field(
        True, description="Finish each output before it is stored; otherwise a pass over memory for each operation."
    )
    fold: bool = Field(False, description="Fold batch_norm into weights and bias before the run.")
    scratch: Bytes | None = Field(
        None, description="Room for the block of implicit; 16 KiB if not given.", examples=["16 KiB"]
    )
    share: IndexName | None = Field(
        None, description="Loop that is shared out among cores; the outermost over the output if not given."
    )


class ConvWorkload(WorkloadSpec):
    """A two-dimensional convolution and what is done with its outputs."""

    loops: ClassVar[tuple[str, ...]] = (*CONV_LOOPS, "k", "u", "v")

    op: Literal["conv2d"] = Field(description="Convolution of images with filters.")
    epilogue: tuple[EpilogueName, ...] = Field(
        (),
        description="What is done with each output, one after the other. bias, scale_shift and batch_norm have a value "
        "for each channel; add, sub and mul a tensor of the output's shape.",
        examples=[["bias", "relu"]],
    )
    pool: Extent | None = Field(
        None, description="Keep only the maximum of each square of so many outputs a side.", examples=[2]
    )
    sizes: ConvSizes = Field(ConvSizes(), description="Extents of images and filters.")
    schedule: ConvSchedule = Field(ConvSchedule(), description="How the convolution is computed.")

    @model_validator(mode="after")
    def _foldable(self) -> Self:
        if self.schedule.fold and self.epilogue[:1] != ("batch_norm",) and self.epilogue[:2] != ("bias", "batch_norm"):
            raise ValueError("fold needs an epilogue that begins with batch_norm, or with bias and batch_norm")
        return self


class PoolSizes(Spec):
    """Images and windows."""

    batch: Extent = Field(1, description="Images.")
    channels: Extent = Field(64, description="Channels.")
    height: Extent = Field(64, description="Rows of an image.")
    width: Extent | None = Field(None, description="Columns of an image; as many as rows if not given.")
    window: Extent = Field(2, description="Rows and columns of a window; a global pool takes all.")
    stride: Extent | None = Field(None, description="From one window to the next; the window if not given.")

    @property
    def image(self) -> tuple[int, int]:
        return self.height, self.width or self.height


class ImageSchedule(ParallelSchedule):
    """One pass over images."""

    layout: Layout = Field("nchw", description="Order of the axes in memory: batch, channel, height, width.")
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


class ImageSizes(Spec):
    """Images with channels."""

    batch: Extent = Field(1, description="Images.")
    channels: Extent = Field(64, description="Channels.")
    height: Extent = Field(64, description="Rows of an image.")
    width: Extent | None = Field(None, description="Columns of an image; as many as rows if not given.")

    @property
    def image(self) -> tuple[int, int]:
        return self.height, self.width or self.height


class BatchNormWorkload(WorkloadSpec):
    """Batch norm with known mean and variance, as after training: gamma (x - mean) / sqrt(var + eps) + beta."""

    op: Literal["batch_norm"] = Field(description="Scale and shift of each channel.")
    sizes: ImageSizes = Field(ImageSizes(), description="Extents of the images.")
    schedule: ImageSchedule = Field(ImageSchedule(), description="How the pass runs.")
