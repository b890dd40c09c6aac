"""Operators that treat each row (the last axis of a tensor) by itself: norms, softmax, cross-entropy.

All loops of a row run before the next row begins, so that a row is in the cache when it is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hwsim.kernels.loop.loops import Operand
from hwsim.kernels.loop.program import Item, Loop
from hwsim.kernels.loop_kernel import NOTHING, LoopKernel, Ranges, TileLoop, at, part
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array

COLUMN = "c"

Kind = Literal["whole", "row", "column"]
"""Whether a tensor has all elements, one for each row, or one for each column."""

Seen = tuple[Kind, str]
"""A tensor of a kernel by name, and what it has."""


@dataclass(frozen=True)
class Rows:
    """The rows of tensors of one shape: the index `c` runs along a row, `r0`, `r1`, … over the rows."""

    shape: tuple[int, ...]
    together: int = 1
    """Rows that go through all loops together."""

    @property
    def indices(self) -> tuple[str, ...]:
        return tuple(f"r{axis}" for axis in range(max(1, len(self.shape) - 1)))

    @property
    def extents(self) -> dict[str, int]:
        return dict(zip((*self.indices, COLUMN), (1, *self.shape)[-len(self.indices) - 1 :], strict=True))

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Of a tensor with one value for each row."""
        return self.shape[:-1] or (1,)

    def operand(self, kernel: LoopKernel, tensor: Seen) -> Operand:
        """A tensor as the loops see it."""
        kind, name = tensor
        view = kernel.tensor(name)
        if kind == "whole" and len(view.shape) == 1:
            view = replace(view, shape=(1, *view.shape), strides=(view.shape[0], *view.strides))
        return at(view, *self._indices_of(kind))

    def stored(self, kernel: LoopKernel, tensor: Seen, ranges: Ranges) -> Array:
        """The stored values of a tensor over a range, to read or to write."""
        kind, name = tensor
        array = kernel.arrays[name]
        return (array[None] if kind == "whole" and array.ndim == 1 else array)[part(ranges, *self._indices_of(kind))]

    def loop(
        self,
        kernel: LoopKernel,
        name: str,
        reads: Sequence[Seen],
        write: Seen,
        body: Instructions,
        function: Callable[..., Array],
        *,
        late_body: Instructions = NOTHING,
        vector: bool = True,
    ) -> Loop:
        """One loop over the rows and along each of them.

        `function` turns the values of `reads` into those of `write`: arrays of whole rows, with a last axis of length
        one where there is one value for each row. A loop that writes one value for each row sums along the row.
        """
        target = kernel.formats[write[1]]

        def compute(ranges: Ranges) -> None:
            arrays = []
            for kind, tensor in reads:
                values = kernel.formats[tensor].load(self.stored(kernel, (kind, tensor), ranges))
                arrays.append(values[..., None] if kind == "row" else values)
            result = target.store(np.asarray(function(*arrays)))
            self.stored(kernel, write, ranges)[...] = result[..., 0] if write[0] == "row" else result

        return kernel.make_loop(
            name,
            self.extents,
            [self.operand(kernel, tensor) for tensor in reads],
            self.operand(kernel, write),
            body,
            compute,
            vector=vector,
            accumulates=write[0] == "row",
            late_body=late_body,
        )

    def _indices_of(self, kind: Kind) -> tuple[str, ...]:
        return {"whole": (*self.indices, COLUMN), "row": self.indices, "column": (COLUMN,)}[kind]

    def add(self, kernel: LoopKernel, loops: Sequence[Loop]) -> None:
        """Add loops that run for a few rows at a time, one after the other."""
        items: tuple[Item, ...] = tuple(loops)
        extents = self.extents
        for index in reversed(self.indices):
            tile = min(self.together, extents[index]) if index == self.indices[-1] else 1
            items = (TileLoop(index, extents[index], tile, items),)
        kernel.add(items[0])
        widest = max(self.indices, key=lambda index: extents[index])
        first = self.indices[0]
        kernel.shared_index = first if extents[first] >= kernel.setting.cores else widest
