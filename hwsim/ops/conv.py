"""Convolution of images, with an epilogue of operations on single elements and a max-pool behind it.

    y[n,co,h,w] += x[n,ci,stride*h+dilation*kh-padding,…] * w[co,ci,kh,kw]

is all of it. Layouts are orders of the axes; groups split channels in two indices. `direct` runs this statement as it
stands; `im2col` copies every window into a matrix first; `implicit` does that block by block, in scratch space. What
follows is done in the registers where sums are finished, or in passes of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hwsim.errors import InputError, ShapeError
from hwsim.numerics.format import Array, find_format
from hwsim.numerics.quantize import with_scales
from hwsim.ops.conv_operator import Conv2d, convolved
from hwsim.ops.conv_schedule import (
    EPSILON,
    NORM_PORTS,
    After,
    ConvSchedule,
    ConvSizes,
    EpilogueName,
)
from hwsim.ops.pointwise import POINTWISE
from hwsim.program.contraction import ConvShape
from hwsim.program.kernel import MOST, Setting
from hwsim.program.loop_kernel import OperatorKernel, OperatorRun, need_floats
from hwsim.program.operation import OPERATIONS, Operation, Operator, Parameter
from hwsim.program.tensors import make_input
from hwsim.spec.base import Extent, ParallelSchedule
from hwsim.spec.workload import WorkloadSpec


class ConvWorkload(WorkloadSpec):
    """A two-dimensional convolution and what is done with its outputs."""

    loops: ClassVar[tuple[str, ...]] = ("n", "g", "co", "h", "w", "ci", "kh", "kw", "k", "u", "v")

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


ROWS_OF_TILE = 4
"""So many rows of what a convolution stores are made with all filters before the next rows come."""


class ConvStepSchedule(ParallelSchedule):
    """What a chain says of its convolutions."""

    vector: bool = Field(True, description="Use the machine's vector unit.")
    v1: Extent = Field(4, description="Filters of the register tile.")

    def made(self, shape: ConvShape, pool: int | None = None) -> ConvSchedule:
        """Rows of outputs in vectors, v1 sums at a time in registers, a few of the rows that are stored in a tile.

        A pool keeps the sums of a whole square (u, v) in registers, so fewer filters have room beside them.
        """
        square = () if pool is None else ("u", "v")
        filters = self.v1 if pool is None else max(1, self.v1 // pool**2)
        tile = {"h": ROWS_OF_TILE} if shape.out[0] // (pool or 1) > ROWS_OF_TILE else {}
        order = ("n", "co", "h", "w", *square, "kh", "kw", "ci")
        return ConvSchedule(order=order, tile=tile, unroll={"co": filters}, vector=self.vector)


class ConvOperation(Operation):
    """A convolution by its tensors, with a bias or without."""

    def apply(
        self,
        shapes: Sequence[Sequence[int]],
        parameters: Mapping[str, Any] | None = None,
        schedule: ParallelSchedule | None = None,
    ) -> Operator:
        if len(shapes) not in (2, 3):
            raise InputError(f"a conv2d has 2 or 3 inputs, found {len(shapes)}")
        x, w, *bias = (tuple(shape) for shape in shapes)
        chosen = {name: each.default for name, each in self.parameters.items()} | dict(parameters or {})
        groups = chosen["groups"]
        if len(x) != 4 or len(w) != 4 or w[1] * groups != x[1]:
            raise ShapeError(f"images {x} and filters {w} do not fit: [n, c, h, w] needs [co, c / {groups}, kh, kw]")
        if bias and bias[0] != w[:1]:
            raise ShapeError(f"a bias of shape {bias[0]} does not fit {w[0]} output channels")
        stride, padding, dilation = ((chosen[name],) * 2 for name in ("stride", "padding", "dilation"))
        shape = ConvShape(x[1], w[0], x[2:], w[2:], x[0], stride, padding, dilation, groups)
        asked = schedule if isinstance(schedule, ConvStepSchedule) else ConvStepSchedule()
        return Conv2d(shape, asked.made(shape), ["bias"] if bias else [])

    def of(self, workload: ConvWorkload) -> Operator:
        return Conv2d(workload.sizes.shape, workload.schedule, workload.epilogue, workload.pool)

    @property
    def workload(self) -> type[WorkloadSpec]:
        return ConvWorkload


def absorbed(operators: Sequence[Operator]) -> Operator | None:
    """A convolution with element-wise operations on its outputs, and a max-pool at the end; None for anything else."""
    head, *tail = operators
    assert isinstance(head, Conv2d)
    last = tail[-1]
    side = last.parameters["window"] if last.name == "max_pool" else None
    behind = tail if side is None else tail[:-1]
    if not all(each.name in POINTWISE for each in behind) or last.parameters.get("stride") not in (None, side):
        return None
    out = head.outputs[-1].shape
    after = [
        After(
            each.name,
            each.name,
            tuple((f"{port.name}_{number}", _last_axes(port.shape, out)) for port in each.inputs[1:]),
            each.parameters.get("value"),
        )
        for number, each in enumerate(behind, 1)
    ]
    asked = ConvStepSchedule(vector=head.schedule.vector, v1=head.schedule.unroll["co"])
    return Conv2d(head.shape, asked.made(head.shape, side), [*head.after, *after], side)


def _last_axes(shape: Sequence[int], whole: Sequence[int]) -> tuple[int, ...] | None:
    """The axes of a value that an operand has: all of them, or the last ones."""
    return None if tuple(shape) == tuple(whole) else tuple(range(len(whole) - len(shape), len(whole)))


def conv2d(
    x: Array, w: Array, b: Array | None = None, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1
) -> Array:
    """Convolution of images [n, c, h, w] with filters [co, c / groups, kh, kw], and a bias [co] if there is one."""
    (n, c, height, width), (co, _, kh, kw) = x.shape, w.shape
    moves = (stride, stride), (padding, padding), (dilation, dilation)
    y = convolved(x, w, ConvShape(c, co, (height, width), (kh, kw), n, *moves, groups))
    return y if b is None else y + b[:, None, None]


OPERATIONS["conv2d"] = ConvWorkload.operation = ConvOperation(
    "conv2d",
    "y[n,co,h,w] += x[n,ci,stride*h+dilation*kh-padding,stride*w+dilation*kw-padding] * w[co,ci,kh,kw]",
    {"x": ("batch", "ci", "height", "width"), "w": ("co", "ci", "kernel", "kernel_w")},
    {"y": ()},
    conv2d,
    {
        "stride": Parameter(1, "Rows and columns from one output to the next."),
        "padding": Parameter(0, "Rows and columns of zeros on each side."),
        "dilation": Parameter(1, "Rows and columns from one element of a filter to the next."),
        "groups": Parameter(1, "Groups of channels that do not mix."),
    },
    schedule=ConvStepSchedule,
    absorb=absorbed,
)


def folded_weights(
    w: Array, b: Array | None, gamma: Array, beta: Array, mean: Array, var: Array, eps: float = EPSILON
) -> tuple[Array, Array]:
    """Weights and bias of a convolution that does what one with w and b and a batch norm after it do.

    Output channels are the first axis of w. With R = gamma / sqrt(var + eps) and P = beta - mean R, the outputs
    Y R + P are those of the weights W R and the bias B R + P.
    """
    scale = gamma / np.sqrt(var + eps)
    shift = beta - mean * scale
    folded = w * scale.reshape(-1, *(1,) * (w.ndim - 1))
    return folded, shift if b is None else b * scale + shift


class FoldedConv(OperatorKernel):
    """A convolution whose weights and bias hold a batch norm too; they are folded before the run, as a compiler does.

    Inputs are those of the convolution with its batch norm, and so is the reference: only folded tensors have memory.
    """

    def __init__(self, unfolded: Conv2d, run: OperatorRun, setting: Setting) -> None:
        self.unfolded = unfolded
        self.original: dict[str, Array] = {}
        fmt = with_scales(find_format(run.precision), setting.numbers.scale, setting.numbers.scale_block)
        need_floats("batch norm", fmt)
        names = [each.name for each in unfolded.after]
        self._behind = names.index("batch_norm") + 1
        folded = Conv2d(unfolded.shape, unfolded.schedule, ("bias", *names[self._behind :]), unfolded.pool)
        if setting.math:
            sums = find_format(setting.numbers.accumulate or fmt.sum_name)
            for number, port in enumerate(unfolded.inputs):
                self.original[port.name] = make_input(
                    setting.seed, number, port.name, port.shape, sums if port.wide else fmt,
                    run.given.get(port.name), port.positive, distribution=setting.numbers.distribution,
                )  # fmt: skip
            run = replace(run, given=self._folded_inputs(folded))
        super().__init__(folded, run, setting)

    @property
    def tolerance(self) -> float:
        """Folded filters are rounded once more when they are stored."""
        return min(MOST, super().tolerance + 2 * self.rounding.stored)

    def _folded_inputs(self, folded: Conv2d) -> dict[str, Array]:
        wide = {name: array.astype(np.float64) for name, array in self.original.items()}
        axes = [folded.schedule.w_layout.index(axis) for axis in "oihw"]
        gamma, beta, mean, var = (wide[port] for port in NORM_PORTS)
        bias = wide["b"] if self.unfolded.after[0].name == "bias" else None
        w, b = folded_weights(wide["w"].transpose(axes), bias, gamma, beta, mean, var)
        found = {"x": self.original["x"], "w": w.transpose(np.argsort(axes)), "b": b}
        for new, old in zip(folded.after[1:], self.unfolded.after[self._behind :], strict=True):
            found |= {port: self.original[was] for port, was in zip(new.given, old.given, strict=True)}
        return found

    def _references(self) -> dict[str, Array]:
        return self.unfolded.reference({name: array.astype(np.float64) for name, array in self.original.items()})
