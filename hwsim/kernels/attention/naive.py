"""Attention with the whole of S = Q Kᵀ and P = softmax(S) in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from hwsim.kernels.attention.shape import AttentionShape, Frame, dot_plan, here, sum_plan
from hwsim.kernels.attention.softmax_loops import Operands, SoftmaxLoops, Values, in_blocks, wide_format
from hwsim.kernels.loop.loops import Operand, Range
from hwsim.kernels.loop.program import Item, Loop
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at
from hwsim.kernels.step import Instructions
from hwsim.numerics.dot import accumulate
from hwsim.numerics.format import Array, Format
from hwsim.trace.view import TensorView

FMA = Instructions(fma=1)
SCALE = Instructions(mul=1)
SCALE_AND_MASK = Instructions(add=1, mul=1)
"""A comparison and a choice count as one addition."""


def matrix_format(fmt: Format) -> Format:
    """What S and P lie in memory as: a narrow format would lose them, and needs an infinity for what is masked."""
    return fmt if fmt.bits >= 16 and fmt.has_infinity else wide_format(fmt)


class NaiveLoops:
    """The loops of one kernel; matrices over all rows and keys are tensors of the kernel called by their names."""

    def __init__(self, kernel: LoopKernel, frame: Frame, br: int, bc: int, vector: bool) -> None:
        self.kernel = kernel
        self.frame = frame
        self.shape: AttentionShape = frame.shape
        self.br, self.bc = min(br, self.shape.queries), min(bc, self.shape.keys)
        self.vector = vector
        self.lanes = kernel.setting.lanes if vector else 1

    def add_matrix(self, name: str) -> None:
        """Memory for a number for each query and key of each head."""
        self.kernel.add_scratch(name, *self.shape.rows, self.shape.keys, fmt=matrix_format(self.kernel.fmt))

    def matrix_at(self, name: str) -> Operand:
        return at(self._matrix_view(name), *self.shape.names("j"))

    def matrix(self, name: str) -> Array:
        return self.kernel.arrays[name].reshape(*self.shape.rows, self.shape.keys)

    def scores(self, name: str, q: str, k: str, result: str, *, scaled: bool = True) -> Loop:
        """result[i,j] = sum over d of q[i,d] * k[j,d], times the scale, and masked where the shape is causal."""
        shape, fmt = self.shape, self.kernel.formats[result]
        masked = scaled and shape.causal

        def compute(ranges: Ranges) -> None:
            rows, (columns,) = here(ranges, *"bgri"), here(ranges, "j")
            keys = self.frame.keys(k)[rows[0], rows[1], :, columns]
            values = self.kernel.dot(self.frame.rows(q)[rows], keys.swapaxes(-1, -2))
            if scaled:
                values *= values.dtype.type(shape.factor)
            if masked:
                values[..., shape.mask(rows[3], columns)] = -np.inf
            self.matrix(result)[(*rows, columns)] = fmt.store(values)

        extents = shape.extents("j", "d")
        plan = dot_plan(tuple(extents), self._row, "j", self.lanes, self._tiles("i", "j"))
        return self.kernel.make_loop(
            name, extents, [self.frame.rows_at(q, "d"), self.frame.keys_at(k, "d")], self.matrix_at(result),
            FMA, compute, plan=plan, accumulates=True,
            late_body=SCALE_AND_MASK if masked else SCALE if scaled else Instructions(),
        )  # fmt: skip

    def softmax(self, s: str, p: str, maximum: str, total: str, how: str) -> tuple[Item, ...]:
        """P from S: in passes over all rows, over br rows at a time, or with maximum and sum in one pass."""
        shape, kernel = self.shape, self.kernel
        rows = shape.row_indices
        views = []
        for name in (maximum, total):
            view = kernel.add_scratch(name, *shape.rows, fmt=wide_format(kernel.fmt))
            views.append(view.reshape(*rows.values()))
        matrices = [self._matrix_view(name).reshape(*rows.values(), shape.keys) for name in (s, p)]
        values = None
        if kernel.setting.math:
            full = [self.matrix(name).reshape(*rows.values(), shape.keys) for name in (s, p)]
            values = Values(*full, *(kernel.arrays[name].reshape(*rows.values()) for name in (maximum, total)))
        loops = SoftmaxLoops(kernel, rows, shape.keys, Operands(*matrices, *views), values, self.vector)
        passes = loops.passes(online=how == "online")
        return in_blocks(rows, self.br, passes) if how == "rows" else passes

    def weigh(self, name: str, p: str, v: str, result: str) -> Loop:
        """result[i,e] = sum over j of p[i,j] * v[j,e]."""
        kernel, wide = self.kernel, self.kernel.find_sum_format()

        def compute(ranges: Ranges) -> None:
            rows, (channels,) = here(ranges, *"bgri"), here(ranges, "e")
            target = self.frame.rows(result)[(*rows, channels)]
            total = wide.store(kernel.fmt.load(target))
            for keys in _pieces(ranges["j"], self.bc):
                values = self.frame.keys(v)[rows[0], rows[1], :, keys, channels]
                accumulate(total, kernel.dot(self.matrix(p)[(*rows, keys)], values), wide)
            target[...] = kernel.fmt.store(wide.load(total))

        extents = self.shape.extents("e", "j")
        plan = sum_plan(tuple(extents), self._row, "e", self.lanes, self._tiles("i", "j"))
        return kernel.make_loop(
            name, extents, [self.matrix_at(p), self.frame.keys_at(v, "e")], self.frame.rows_at(result, "e"),
            FMA, compute, plan=plan, accumulates=True,
        )  # fmt: skip

    def gather(self, name: str, p: str, q: str, result: str) -> Loop:
        """result[j,e] = sum over the rows i that share a key of p[i,j] * q[i,e]."""
        kernel, shape, wide = self.kernel, self.shape, self.kernel.find_sum_format()

        def compute(ranges: Ranges) -> None:
            b, g, r, columns, channels = here(ranges, "b", "g", "r", "j", "e")
            target = self.frame.keys(result)[b, g, 0, columns, channels]
            total = wide.store(kernel.fmt.load(target))
            for rows in _pieces(ranges["i"], self.br):
                left = self.matrix(p)[b, g, r, rows, columns].swapaxes(-1, -2)
                part = kernel.dot(left, self.frame.rows(q)[b, g, r, rows, channels]).sum(axis=2)
                accumulate(total, part, wide)
            target[...] = kernel.fmt.store(wide.load(total))

        summed = {index: extent for index, extent in shape.row_indices.items() if index in "ri"}
        extents = {**shape.outer, "j": shape.keys, "e": shape.d, **summed}
        plan = sum_plan(tuple(extents), "j", "e", self.lanes, self._tiles("j", "i"))
        return kernel.make_loop(
            name, extents, [self.matrix_at(p), self.frame.rows_at(q, "e")], self.frame.keys_at(result, "e"),
            FMA, compute, plan=plan, accumulates=True,
        )  # fmt: skip

    @property
    def _row(self) -> str:
        """The index whose neighbours share an operand in registers."""
        return "r" if self.shape.queries == 1 and self.shape.repeat > 1 else "i"

    def _tiles(self, *indices: str) -> Mapping[str, int]:
        """Head after head, each in tiles."""
        sizes = {"i": self.br, "j": self.bc}
        return {**dict.fromkeys(self.shape.outer, 1), **{index: sizes[index] for index in indices}}

    def _matrix_view(self, name: str) -> TensorView:
        return self.kernel.tensor(name).reshape(*self.shape.rows, self.shape.keys)


def _pieces(whole: Range, size: int) -> Iterator[slice]:
    """A range in pieces that are summed up one after the other."""
    first, count = whole
    for start in range(first, first + count, size):
        yield slice(start, min(start + size, first + count))
