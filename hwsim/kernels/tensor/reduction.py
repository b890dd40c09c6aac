"""Reductions: the sum, mean or maximum over one or more axes of a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Literal

import numpy as np

from hwsim.errors import ShapeError
from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop.grain import first_shared
from hwsim.kernels.loop.loops import LoopOperation, LoopPlan, Operand
from hwsim.kernels.loop_kernel import NOTHING, LoopKernel, Ranges, at, part
from hwsim.kernels.operator import Names, Operator, Port, need_floats
from hwsim.kernels.rounding import Rounding, sum_pieces
from hwsim.kernels.step import Instructions
from hwsim.numerics.dot import accumulate
from hwsim.numerics.format import Array, Format

Reduction = Literal["sum", "mean", "max"]


class ReduceOperator(Operator):
    """Y = the sum, mean or maximum of X over `axes` (all of them if none is named).

    `order: stored` runs through X as it lies in memory, adding to results in memory where the last axis stays;
    `result` finishes one result after the other in a register, whatever that means for the order of X.
    """

    reads = frozenset({"accumulate"})

    def __init__(
        self,
        shape: Sequence[int],
        axes: Sequence[int] = (),
        kind: Reduction = "sum",
        *,
        order: Literal["stored", "result"] = "stored",
        vector: bool = True,
        ports: tuple[str, str] = ("X", "Y"),
    ) -> None:
        self.name = f"reduce_{kind}"
        self.shape = tuple(shape)
        rank = len(self.shape)
        if any(not -rank <= axis < rank for axis in axes):
            raise ShapeError(
                f"{tuple(axes)} are not all axes of shape {self.shape}: 0 to {rank - 1}, or from -1 backwards"
            )
        self.axes = tuple(sorted({axis % rank for axis in axes})) or tuple(range(rank))
        self.kept = tuple(axis for axis in range(rank) if axis not in self.axes)
        self.kind = kind
        self.order = order
        self.vector = vector
        self.source, self.target = ports
        self.result_shape = tuple(self.shape[axis] for axis in self.kept) or (1,)
        self.terms = prod(self.shape[axis] for axis in self.axes)
        self.inputs = (Port(self.source, self.shape),)
        self.outputs = (Port(self.target, self.result_shape, wide=kind != "max"),)
        self.registers_needed = 2

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        source, target = names[self.source], names[self.target]
        if self.kind == "mean":
            need_floats("a mean", kernel.fmt)
        fmt = kernel.formats[target]
        if self.kind == "max" and kernel.setting.math:
            kernel.arrays[target][...] = np.iinfo(fmt.held).min if fmt.is_integer else -np.inf
        indices = [f"x{axis}" for axis in range(len(self.shape))]
        order = [*self.kept, *self.axes] if self.order == "result" else range(len(self.shape))
        extents = {indices[axis]: self.shape[axis] for axis in order}
        read = at(kernel.tensor(source), *indices)
        write = at(kernel.tensor(target), *(indices[axis] for axis in self.kept or ()) if self.kept else (None,))
        late = Instructions(mul=1) if self.kind == "mean" else NOTHING
        bare = kernel.make_loop(
            self.name, extents, [read], write, Instructions(add=1), lambda _: None, vector=self.vector, accumulates=True
        )
        finished = bare.plan.completes(LoopOperation((read,), write))

        def compute(ranges: Ranges) -> None:
            here = part(ranges, *(indices[axis] for axis in self.kept)) if self.kept else (slice(None),)
            values = kernel.formats[source].load(kernel.arrays[source][part(ranges, *indices)])
            found = self._reduce(values, fmt.is_integer).reshape(kernel.arrays[target][here].shape)
            whole = all(ranges[indices[axis]][1] == self.shape[axis] for axis in self.axes)
            if self.kind == "mean" and finished:
                assert whole, "a mean is finished in its register"
                kernel.arrays[target][here] = fmt.store(found / found.dtype.type(self.terms))
            elif self.kind == "max":
                kernel.arrays[target][here] = np.maximum(kernel.arrays[target][here], fmt.store(found))
            else:
                accumulate(kernel.arrays[target][here], found, fmt)

        kernel.add(
            kernel.make_loop(
                self.name, extents, [read], write, Instructions(add=1), compute,
                vector=self.vector, accumulates=True, late_body=late if finished else NOTHING,
            )
        )  # fmt: skip
        kernel.shared_index = first_shared(extents, [indices[axis] for axis in self.kept]) if self.kept else ""
        if self.kind == "mean" and not finished:
            self._add_division(kernel, names, [indices[axis] for axis in self.kept], write)

    def _add_division(self, kernel: LoopKernel, names: Names, indices: Sequence[str], result: Operand) -> None:
        """Sums in memory become means."""
        target = names[self.target]
        fmt = kernel.formats[target]

        def compute(ranges: Ranges) -> None:
            here = part(ranges, *indices)
            values = fmt.load(kernel.arrays[target][here])
            kernel.arrays[target][here] = fmt.store(values / values.dtype.type(self.terms))

        extents = {index: self.shape[axis] for index, axis in zip(indices, self.kept, strict=True)}
        kernel.add_loop("divide", extents, [result], result, Instructions(mul=1), compute, vector=self.vector)

    def _reduce(self, values: Array, integer: bool) -> Array:
        if self.kind == "max":
            return np.asarray(values.max(axis=self.axes))
        return np.asarray(values.sum(axis=self.axes, dtype=np.int64 if integer else values.dtype))

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """One term after the other, with the reduced axes in front."""
        x = np.moveaxis(tensors[self.source], self.axes, range(len(self.axes))).reshape(self.terms, *self.result_shape)
        found = np.maximum.reduce(x, axis=0) if self.kind == "max" else np.add.reduce(x, axis=0)
        return {self.target: np.asarray(found / self.terms if self.kind == "mean" else found)}

    def tolerance(self, rounding: Rounding) -> float:
        """The sum, which goes to memory again and again where the loops run so; a mean is divided there, too."""
        if self.kind == "max":
            return rounding.moved
        indices = {str(axis): extent for axis, extent in enumerate(self.shape)}
        pieces = sum_pieces(LoopPlan(tuple(indices)), indices, map(str, self.axes)) if self.order == "stored" else 1
        return rounding.sum(self.terms) + rounding.kept_sum(pieces) + rounding.kept

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        elements, results = prod(self.shape), prod(self.result_shape)
        mean = results if self.kind == "mean" else 0
        return (Formula("operations", "one for each element", elements + mean, "operations", "flops"),)
