"""The passes of a softmax along the rows of a tensor, as loops with their math.

Three passes: the maximum of each row; the exponentials of what is left after subtracting it, and their sum; the
division. Or two: maximum and sum together, the sum rescaled whenever the maximum grows (online); then the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hwsim.kernels.loop.loops import LoopPlan, Operand
from hwsim.kernels.loop.program import Compute, Item, Loop, TileLoop
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array, Format, find_format
from hwsim.trace.view import TensorView

ONLINE_COLUMNS = 64
"""Columns whose maximum is taken together before a running sum is rescaled, in the math; lanes do the same."""

MAXIMUM = Instructions(add=1)
EXP_SUM = Instructions(add=2, special=1)
"""Subtract the maximum, take the exponential, add it up."""
DIVIDE = Instructions(special=1)
ONLINE = Instructions(fma=1, add=3, special=2)
"""A maximum, two differences, two exponentials, and sum * scale + exponential."""
NORMALISE = Instructions(add=1, special=2)


def wide_format(fmt: Format) -> Format:
    """What maxima and sums of a row are kept in: fp32 at least."""
    return find_format("fp64" if fmt.computed == np.float64 else "fp32")


@dataclass(frozen=True)
class Operands:
    """What the passes touch: the input, the result, and the maximum and the sum of each row."""

    x: TensorView
    y: TensorView
    maximum: TensorView
    total: TensorView


@dataclass(frozen=True)
class Values:
    """The same as arrays; none of them is there without math."""

    x: Array
    y: Array
    maximum: Array
    total: Array


class SoftmaxLoops:
    """Loops over the rows that `rows` counts, by index and extent, and over `columns` elements "j" of each."""

    def __init__(
        self,
        kernel: LoopKernel,
        rows: Mapping[str, int],
        columns: int,
        operands: Operands,
        values: Values | None,
        vector: bool = True,
    ) -> None:
        self.kernel = kernel
        self.rows = dict(rows)
        self.columns = columns
        names = tuple(rows)
        self._x, self._y = at(operands.x, *names, "j"), at(operands.y, *names, "j")
        self._max, self._sum = at(operands.maximum, *names), at(operands.total, *names)
        self._values = values
        self._extents = {**rows, "j": columns}
        lanes = kernel.setting.lanes if vector else 1
        self._plan = LoopPlan((*names, "j"), vector="j" if lanes > 1 else None, lanes=lanes)

    def passes(self, *, online: bool) -> tuple[Loop, ...]:
        return (self.online(), self.normalise()) if online else (self.maximum(), self.exp_sum(), self.divide())

    def maximum(self) -> Loop:
        def compute(ranges: Ranges) -> None:
            v, rows = self._math, self._here(ranges)
            v.maximum[rows] = self._load(v.x[rows]).max(axis=-1)

        return self._loop("max", [self._x], self._max, MAXIMUM, compute, accumulates=True)

    def exp_sum(self) -> Loop:
        def compute(ranges: Ranges) -> None:
            v, rows = self._math, self._here(ranges)
            grown = np.exp(self._load(v.x[rows]) - v.maximum[rows][..., None])
            v.total[rows] = grown.sum(axis=-1)
            v.y[rows] = self.kernel.fmt.store(grown)

        reads = [self._x, self._max]
        return self._loop("exp and sum", reads, self._sum, EXP_SUM, compute, accumulates=True, stores=(self._y,))

    def divide(self) -> Loop:
        def compute(ranges: Ranges) -> None:
            v, rows = self._math, self._here(ranges)
            v.y[rows] = self.kernel.fmt.store(self._load(v.y[rows]) / v.total[rows][..., None])

        return self._loop("divide", [self._y, self._sum], self._y, DIVIDE, compute)

    def online(self) -> Loop:
        """m = max(m1, m2), l = exp(m1 - m) l1 + exp(m2 - m) l2, from one piece of the row to the next."""

        def compute(ranges: Ranges) -> None:
            v, rows = self._math, self._here(ranges)
            x = self._load(v.x[rows])
            highest = np.full(x.shape[:-1], -np.inf, x.dtype)
            total = np.zeros(x.shape[:-1], x.dtype)
            for first in range(0, self.columns, ONLINE_COLUMNS):
                piece = x[..., first : first + ONLINE_COLUMNS]
                higher = np.maximum(highest, piece.max(axis=-1))
                total = total * np.exp(highest - higher) + np.exp(piece - higher[..., None]).sum(axis=-1)
                highest = higher
            v.maximum[rows], v.total[rows] = highest, total

        return self._loop("max and sum", [self._x], self._sum, ONLINE, compute, accumulates=True, stores=(self._max,))

    def normalise(self) -> Loop:
        def compute(ranges: Ranges) -> None:
            v, rows = self._math, self._here(ranges)
            grown = np.exp(self._load(v.x[rows]) - v.maximum[rows][..., None])
            v.y[rows] = self.kernel.fmt.store(grown / v.total[rows][..., None])

        return self._loop("normalise", [self._x, self._max, self._sum], self._y, NORMALISE, compute)

    @property
    def _math(self) -> Values:
        assert self._values is not None
        return self._values

    def _here(self, ranges: Ranges) -> tuple[slice, ...]:
        return tuple(slice(ranges[index][0], sum(ranges[index])) for index in self.rows)

    def _load(self, stored: Array) -> Array:
        return self.kernel.fmt.load(stored)

    def _loop(
        self,
        name: str,
        reads: list[Operand],
        write: Operand,
        body: Instructions,
        compute: Compute,
        *,
        accumulates: bool = False,
        stores: tuple[Operand, ...] = (),
    ) -> Loop:
        plan, extents = self._plan, self._extents
        return self.kernel.make_loop(
            name, extents, reads, write, body, compute, plan=plan, accumulates=accumulates, stores=stores
        )


def in_blocks(rows: Mapping[str, int], block: int, body: tuple[Item, ...]) -> tuple[Item, ...]:
    """The body for `block` rows at a time; outer indices go one by one."""
    last = list(rows)[-1]
    for index in reversed(list(rows)):
        body = (TileLoop(index, rows[index], min(block, rows[index]) if index == last else 1, body),)
    return body
