"""The tensors of attention as its loops see them.

Indices: b batch, g head of K and V, r query head among those that share it, i query, j key, d or e channel. An index
that runs over one thing only is left out of the loops, but for i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np

from hwsim.errors import ShapeError
from hwsim.kernels.loop.loops import LoopPlan, Operand
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at
from hwsim.numerics.format import Array
from hwsim.spec.ops.attention import AttentionSizes
from hwsim.trace.view import TensorView

Layout = Literal["heads", "columns", "matrix"]


@dataclass(frozen=True)
class AttentionShape:
    """How many of what, and how the ports lie in memory.

    `layout` heads: Q and O are [batch, heads, queries, d], K and V [batch, kv_heads, keys, d], each head in one piece.
    columns: [batch, queries, heads * d] and [batch, keys, kv_heads * d], as projections make them. matrix: the same
    without the first axis.
    """

    queries: int
    keys: int
    d: int
    heads: int = 1
    kv_heads: int = 1
    batch: int = 1
    causal: bool = False
    scale: float | None = None
    layout: Layout = "heads"

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ShapeError(f"{self.heads} query heads cannot share {self.kv_heads} key/value heads evenly")
        if self.causal and self.queries > self.keys:
            raise ShapeError(f"with causal, the first of {self.queries} queries would see none of {self.keys} keys")
        if self.layout == "matrix" and self.batch != 1:
            raise ShapeError(f"a matrix has no axis for a batch of {self.batch}; take layout columns")

    @classmethod
    def of(cls, sizes: AttentionSizes) -> AttentionShape:
        kv_heads = sizes.kv_heads or sizes.heads
        queries = sizes.queries or sizes.n
        return cls(queries, sizes.n, sizes.d, sizes.heads, kv_heads, sizes.batch, sizes.causal, sizes.scale)

    @property
    def repeat(self) -> int:
        """Query heads that share a head of K and V."""
        return self.heads // self.kv_heads

    @property
    def factor(self) -> float:
        return self.scale if self.scale is not None else 1 / sqrt(self.d)

    @property
    def offset(self) -> int:
        """Query i sees keys up to i + offset under a causal mask: the last query sees them all."""
        return self.keys - self.queries

    @property
    def q_shape(self) -> tuple[int, ...]:
        return self._port_shape(self.heads, self.queries)

    @property
    def kv_shape(self) -> tuple[int, ...]:
        return self._port_shape(self.kv_heads, self.keys)

    @property
    def matrix_shape(self) -> tuple[int, ...]:
        """Of S and P as ports."""
        return self.batch, self.heads, self.queries, self.keys

    def by_heads(self, array: Array, heads: int) -> Array:
        """A port's values as [batch, heads, length, d], without a copy."""
        if self.layout == "heads":
            return array
        length = array.shape[-2]
        return array.reshape(self.batch, length, heads, self.d).transpose(0, 2, 1, 3)

    def as_port(self, array: Array) -> Array:
        """[batch, heads, length, d] in the layout of the ports."""
        if self.layout == "heads":
            return array
        return array.transpose(0, 2, 1, 3).reshape(self._port_shape(*array.shape[1:3]))

    def _port_shape(self, heads: int, length: int) -> tuple[int, ...]:
        if self.layout == "heads":
            return self.batch, heads, length, self.d
        return (self.batch, length, heads * self.d)[self.layout == "matrix" :]

    @property
    def rows(self) -> tuple[int, ...]:
        """Extents of b, g, r and i."""
        return self.batch, self.kv_heads, self.repeat, self.queries

    @property
    def outer(self) -> dict[str, int]:
        """The indices over independent problems that there is more than one of."""
        return {index: extent for index, extent in {"b": self.batch, "g": self.kv_heads}.items() if extent > 1}

    @property
    def row_indices(self) -> dict[str, int]:
        """The indices that count rows of S."""
        return {**self.outer, **({"r": self.repeat} if self.repeat > 1 else {}), "i": self.queries}

    def names(self, *last: str) -> tuple[str | None, ...]:
        """What moves along the axes of a tensor over all rows: b, g, r and i, then `last`."""
        return *(index if index in self.row_indices else None for index in "bgri"), *last

    def kv_names(self, channel: str) -> tuple[str | None, ...]:
        return *(index if index in self.outer else None for index in "bg"), "j", channel

    def extents(self, *last: str) -> dict[str, int]:
        """Rows and further indices."""
        return {**self.row_indices, **{index: self.extent(index) for index in last}}

    def extent(self, index: str) -> int:
        return self.keys if index == "j" else self.d if index in "de" else self.row_indices[index]

    def mask(self, rows: slice, columns: slice) -> Array:
        """Which keys of a range the queries of a range do not see."""
        queries, keys = np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop)
        return np.asarray(keys[None, :] > queries[:, None] + self.offset)

    def shared_index(self, br: int) -> str:
        """What cores share: the index with the most pieces, queries counted in tiles."""
        pieces = {**self.row_indices, "i": -(-self.queries // br)}
        return max(("i", *pieces), key=lambda index: pieces[index])


class Frame:
    """The tensors of one kernel, by the names of the operator's ports, with heads split into g and r."""

    def __init__(self, kernel: LoopKernel, shape: AttentionShape, names: Mapping[str, str]) -> None:
        self.kernel = kernel
        self.shape = shape
        self._names = names

    def rows_at(self, port: str, channel: str) -> Operand:
        """A tensor shaped like Q."""
        view = self._by_heads(port, self.shape.heads)
        return at(view.reshape(*self.shape.rows, self.shape.d), *self.shape.names(channel))

    def keys_at(self, port: str, channel: str) -> Operand:
        """A tensor shaped like K."""
        return at(self._by_heads(port, self.shape.kv_heads), *self.shape.kv_names(channel))

    def rows(self, port: str) -> Array:
        """Values of a tensor shaped like Q: [b, g, r, i, channel]."""
        array = self.shape.by_heads(self.kernel.arrays[self._names[port]], self.shape.heads)
        return array.reshape(*self.shape.rows, self.shape.d)

    def keys(self, port: str) -> Array:
        """Values of a tensor shaped like K, to be joined with rows: [b, g, 1, j, channel]."""
        return self.shape.by_heads(self.kernel.arrays[self._names[port]], self.shape.kv_heads)[:, :, None]

    def _by_heads(self, port: str, heads: int) -> TensorView:
        view = self.kernel.tensor(self._names[port])
        if self.shape.layout == "heads":
            return view
        return view.reshape(self.shape.batch, view.shape[-2], heads, self.shape.d).permute(0, 2, 1, 3)


def here(ranges: Ranges, *indices: str) -> tuple[slice, ...]:
    """The slices that a range of a loop means for an array; an index that is not in the loop runs over one thing."""
    return tuple(slice(ranges[index][0], sum(ranges[index])) if index in ranges else slice(None) for index in indices)


def dot_plan(order: tuple[str, ...], rows: str, columns: str, lanes: int, tile: Mapping[str, int]) -> LoopPlan:
    """Of a product of rows with rows, such as Q Kᵀ: vectors along the inner length, which is the last index.

    2 x 4 sums with 2 + 4 operands are 14 registers.
    """
    unroll = {rows: 2, columns: 4}
    return LoopPlan(order, tile=tile, unroll=unroll, vector=order[-1] if lanes > 1 else None, lanes=lanes)


def sum_plan(order: tuple[str, ...], rows: str, columns: str, lanes: int, tile: Mapping[str, int]) -> LoopPlan:
    """Of a product of rows with columns, such as P V: vectors along the columns, sums over the last index.

    4 x 2 vectors of sums with 4 + 2 operands are 14 registers.
    """
    unroll = {rows: 4, columns: 2 * lanes}
    return LoopPlan(order, tile=tile, unroll=unroll, vector=columns if lanes > 1 else None, lanes=lanes)


REGISTERS = 14
