"""Fused attention: Br queries and Bc keys at a time, with a running maximum and sum, so that S is never stored whole.

For each tile of queries: m = -inf, l = 0, O = 0. For each tile of keys: S = scale * Q Kᵀ; m' = max(m, max S);
a = exp(m - m'); P = exp(S - m'); l = a l + sum P; O = a O + P V; m = m'. At the end O / l is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hwsim.kernels.attention.naive import FMA, SCALE, SCALE_AND_MASK
from hwsim.kernels.attention.shape import AttentionShape, Frame, dot_plan, here, sum_plan
from hwsim.kernels.attention.softmax_loops import DIVIDE, EXP_SUM, MAXIMUM, wide_format
from hwsim.kernels.loop.loops import LoopPlan, Operand, Range
from hwsim.kernels.loop.program import Compute, Item, Loop
from hwsim.kernels.loop_kernel import NOTHING, LoopKernel, Ranges, TileLoop, at
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array, Format

RESCALE = Instructions(mul=1)
AGE = Instructions(add=1, special=1)
"""exp(m - m'): by how much earlier sums shrink."""


@dataclass
class QueryTile:
    """What is known of a tile of queries: values of the scratch space while the tile is worked on."""

    highest: Array
    total: Array
    output: Array
    s: Array = field(default_factory=lambda: np.zeros(0))
    p: Array = field(default_factory=lambda: np.zeros(0))
    higher: Array = field(default_factory=lambda: np.zeros(0))
    shrink: Array = field(default_factory=lambda: np.zeros(0))


class FusedLoops:
    """The loops of one kernel. Scratch space holds one tile, apart for each core."""

    def __init__(
        self, kernel: LoopKernel, frame: Frame, br: int, bc: int, vector: bool, scratch: Sequence[str]
    ) -> None:
        """`scratch` are the names of the scratch tensors: S, P, O, m, m', l, a."""
        self.kernel = kernel
        self.frame = frame
        self.shape: AttentionShape = frame.shape
        self.br, self.bc = min(br, self.shape.queries), min(bc, self.shape.keys)
        self.fmt, self.wide = kernel.fmt, wide_format(kernel.fmt)
        self.lanes = kernel.setting.lanes if vector else 1
        self.wide_lanes = max(1, self.lanes * self.fmt.bits // self.wide.bits)
        self._tiles: dict[tuple[int, ...], QueryTile] = {}
        s, p, o, highest, higher, total, shrink = scratch
        self.s = self._scratch(s, "j", self.wide)
        self.p = self.s if self.fmt.name == self.wide.name else self._scratch(p, "j", self.fmt)
        self.o = self._scratch(o, "e", self.wide)
        self.highest, self.higher, self.total, self.shrink = (
            self._scratch(name, "", self.wide) for name in (highest, higher, total, shrink)
        )

    def items(self) -> tuple[Item, ...]:
        """Head after head, tile of queries after tile of queries, and in each all tiles of keys that it sees."""
        rest = (self._maximum(), self._age(), self._exponential(), self._rescale(), self._weigh())
        columns = self.shape.keys
        inner: tuple[Item, ...]
        if self.shape.causal:
            inner = (
                TileLoop("j", columns, self.bc, (self._scores(), *rest), self._below_diagonal),
                TileLoop("j", columns, self.bc, (self._scores(masked=True), *rest), self._on_diagonal),
            )
        else:
            inner = (TileLoop("j", columns, self.bc, (self._scores(), *rest)),)
        body: tuple[Item, ...] = (*self._start(), *inner, self._finish())
        body = (TileLoop("i", self.shape.queries, self.br, body),)
        for index, extent in reversed(self.shape.outer.items()):
            body = (TileLoop(index, extent, 1, body),)
        return body

    # Which keys ------------------------------------------------------------------------------------------------------

    def _below_diagonal(self, around: Ranges) -> Range:
        """Whole tiles of keys that every query of the tile sees."""
        seen = around["i"][0] + self.shape.offset + 1
        return 0, seen // self.bc * self.bc

    def _on_diagonal(self, around: Ranges) -> Range:
        """From there to the last key that the last query of the tile sees."""
        first = self._below_diagonal(around)[1]
        return first, sum(around["i"]) + self.shape.offset - first

    # Loops -----------------------------------------------------------------------------------------------------------

    def _start(self) -> tuple[Loop, ...]:
        def compute(ranges: Ranges) -> None:
            rows, kind = self._extents(ranges), self.wide.held
            output = np.zeros((*rows, self.shape.d), kind)
            self._tiles[self._key(ranges)] = QueryTile(np.full(rows, -np.inf, kind), np.zeros(rows, kind), output)

        def nothing(ranges: Ranges) -> None:
            """The values are set already."""

        return (
            self._rows_loop("start", [], self.highest, Instructions(), compute, stores=[self.total]),
            self._loop("clear", "e", [], self.o, Instructions(), nothing),
        )

    def _scores(self, *, masked: bool = False) -> Loop:
        def compute(ranges: Ranges) -> None:
            rows, (keys,) = here(ranges, *"bgri"), here(ranges, "j")
            right = self.frame.keys("K")[rows[0], rows[1], :, keys].swapaxes(-1, -2)
            values = self.kernel.dot(self.frame.rows("Q")[rows], right)
            values *= values.dtype.type(self.shape.factor)
            if masked:
                values[..., self.shape.mask(rows[3], keys)] = -np.inf
            self._tile(ranges).s = values

        extents = self.shape.extents("j", "d")
        return self.kernel.make_loop(
            "scores", extents, [self.frame.rows_at("Q", "d"), self.frame.keys_at("K", "d")], self.s, FMA, compute,
            plan=dot_plan(tuple(extents), self._row, "j", self.lanes, {}), accumulates=True,
            late_body=SCALE_AND_MASK if masked else SCALE,
        )  # fmt: skip

    def _maximum(self) -> Loop:
        def compute(ranges: Ranges) -> None:
            tile = self._tile(ranges)
            tile.higher = np.maximum(tile.highest, tile.s.max(axis=-1))

        return self._loop(
            "max", "j", [self.s], self.higher, MAXIMUM, compute,
            accumulates=True, late=[self.highest], late_body=MAXIMUM,
        )  # fmt: skip

    def _age(self) -> Loop:
        def compute(ranges: Ranges) -> None:
            tile = self._tile(ranges)
            tile.shrink = np.exp(tile.highest - tile.higher)
            tile.highest = tile.higher

        return self._rows_loop("age", [self.highest, self.higher], self.shrink, AGE, compute, stores=[self.highest])

    def _exponential(self) -> Loop:
        def compute(ranges: Ranges) -> None:
            tile = self._tile(ranges)
            grown = np.exp(tile.s - tile.highest[..., None])
            tile.total = tile.total * tile.shrink + grown.sum(axis=-1)
            tile.p = self.fmt.store(grown)

        return self._loop(
            "exp and sum", "j", [self.s, self.highest], self.total, EXP_SUM, compute,
            accumulates=True, late=[self.total, self.shrink], late_body=FMA, stores=[self.p],
        )  # fmt: skip

    def _rescale(self) -> Loop:
        def compute(ranges: Ranges) -> None:
            tile = self._tile(ranges)
            tile.output *= tile.shrink[..., None]

        return self._loop("rescale", "e", [self.o, self.shrink], self.o, RESCALE, compute)

    def _weigh(self) -> Loop:
        def compute(ranges: Ranges) -> None:
            b, g, keys = here(ranges, "b", "g", "j")
            tile = self._tile(ranges)
            tile.output += self.kernel.dot(tile.p, self.frame.keys("V")[b, g, :, keys])

        extents = self.shape.extents("e", "j")
        return self.kernel.make_loop(
            "weigh", extents, [self.p, self.frame.keys_at("V", "e")], self.o, FMA, compute,
            plan=sum_plan(tuple(extents), self._row, "e", self.lanes, {}), accumulates=True, continues=True,
        )  # fmt: skip

    def _finish(self) -> Loop:
        def compute(ranges: Ranges) -> None:
            tile = self._tiles.pop(self._key(ranges))
            self.frame.rows("O")[here(ranges, *"bgri")] = self.fmt.store(tile.output / tile.total[..., None])

        return self._loop("finish", "e", [self.o, self.total], self.frame.rows_at("O", "e"), DIVIDE, compute)

    # Parts -----------------------------------------------------------------------------------------------------------

    @property
    def _row(self) -> str:
        """The index whose neighbours share an operand in registers."""
        return "r" if self.shape.queries == 1 and self.shape.repeat > 1 else "i"

    def _loop(
        self,
        name: str,
        last: str,
        reads: list[Operand],
        write: Operand,
        body: Instructions,
        compute: Compute,
        *,
        accumulates: bool = False,
        late: Sequence[Operand] = (),
        late_body: Instructions = NOTHING,
        stores: Sequence[Operand] = (),
    ) -> Loop:
        """A loop over the rows of a tile and one index inside, in vectors."""
        extents = self.shape.extents(last)
        return self.kernel.make_loop(
            name, extents, reads, write, body, compute, plan=self._plan(tuple(extents)),
            accumulates=accumulates, late=late, late_body=late_body, stores=stores, continues=False,
        )  # fmt: skip

    def _rows_loop(
        self,
        name: str,
        reads: list[Operand],
        write: Operand,
        body: Instructions,
        compute: Compute,
        *,
        stores: Sequence[Operand] = (),
    ) -> Loop:
        """A loop over the rows of a tile, in vectors of rows."""
        extents = self.shape.row_indices
        plan = self._plan(tuple(extents))
        return self.kernel.make_loop(name, extents, reads, write, body, compute, plan=plan, stores=stores)

    def _plan(self, order: tuple[str, ...]) -> LoopPlan:
        return LoopPlan(order, vector=order[-1] if self.wide_lanes > 1 else None, lanes=self.wide_lanes)

    def _scratch(self, name: str, last: str, fmt: Format) -> Operand:
        """A number for each row of a tile or, with a last index, so many."""
        width = {"": [], "j": [self.bc], "e": [self.shape.d]}[last]
        view = self.kernel.add_private(name, self.shape.repeat, self.br, *width, fmt=fmt)
        _, _, r, i = self.shape.names()
        own = at(view, r, i, *([last] if last else []), tiles={"i": self.br, "j": self.bc})
        # All heads use the same space, one after the other: what they leave there are no sums to add to.
        return replace(own, strides={**dict.fromkeys(self.shape.outer, 0), **own.strides})

    def _key(self, ranges: Ranges) -> tuple[int, ...]:
        """Which tile this is; cores that share the query heads r of a tile have tiles of their own."""
        return tuple(ranges[index][0] for index in self.shape.row_indices)

    def _tile(self, ranges: Ranges) -> QueryTile:
        return self._tiles[self._key(ranges)]

    def _extents(self, ranges: Ranges) -> tuple[int, ...]:
        """[b, g, r, i] of a tile."""
        return tuple(ranges[index][1] if index in ranges else 1 for index in "bgri")
