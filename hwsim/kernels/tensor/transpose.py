"""A tensor with its axes in another order, written to memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Literal

import numpy as np

from hwsim.errors import ShapeError
from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop.loops import LoopPlan
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at, part, vector_lanes
from hwsim.kernels.operator import Names, Operator, Port
from hwsim.kernels.rounding import Rounding
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array, Format


class TransposeOperator(Operator):
    """Y = X with its axes in the order `axes`; for a matrix, its transpose.

    `order: read` goes through X as it lies in memory, `write` through Y. A `tile` cuts the last axis of each, so that
    the lines of both stay in the cache until they are used up.
    """

    name = "transpose"

    def __init__(
        self,
        shape: Sequence[int],
        axes: Sequence[int] = (1, 0),
        *,
        order: Literal["read", "write"] = "read",
        tile: int | None = None,
        vector: bool = True,
        ports: tuple[str, str] = ("X", "Y"),
    ) -> None:
        if sorted(axes) != list(range(len(shape))):
            raise ShapeError(f"{tuple(axes)} is not an order of the {len(shape)} axes of {tuple(shape)}")
        self.shape = tuple(shape)
        self.axes = tuple(axes)
        self.order = order
        self.tile = tile
        self.vector = vector
        self.source, self.target = ports
        self.inputs = (Port(self.source, self.shape),)
        self.outputs = (Port(self.target, tuple(self.shape[axis] for axis in self.axes)),)

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        source, target = names[self.source], names[self.target]
        indices = [f"x{axis}" for axis in range(len(self.shape))]
        moved = [indices[axis] for axis in self.axes]
        read, write = at(kernel.tensor(source), *indices), at(kernel.tensor(target), *moved)
        order = indices if self.order == "read" else moved
        extents = {index: self.shape[indices.index(index)] for index in order}
        ends = {indices[-1], moved[-1]}
        tile = {index: min(self.tile, extents[index]) for index in order if index in ends} if self.tile else {}
        inner = order[-1]
        width = min(tile.get(inner, extents[inner]), extents[inner])
        lanes = vector_lanes(kernel.setting.lanes, inner, width, [read, write]) if self.vector else 1
        plan = LoopPlan(tuple(order), tile, vector=inner if lanes > 1 else None, lanes=lanes)

        def compute(ranges: Ranges) -> None:
            piece = kernel.arrays[source][part(ranges, *indices)]
            kernel.arrays[target][part(ranges, *moved)] = piece.transpose(self.axes)

        kernel.add_loop(self.name, extents, [read], write, Instructions(), compute, plan=plan)

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        return {self.target: np.moveaxis(tensors[self.source], self.axes, range(len(self.shape)))}

    def tolerance(self, rounding: Rounding) -> float:
        return 0.0

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        elements = prod(self.shape)
        return (
            Formula("loads", "each element once", elements, "elements", "loads"),
            Formula("stores", "each element once", elements, "elements", "stores"),
        )
