"""The shape of attention: how many of what, how its tensors lie in memory, and which tiles have room.

Indices: b batch, g head of K and V, r query head among those that share it, i query, j key, d or e channel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf, sqrt
from typing import Literal

from hwsim.errors import CapacityError, ShapeError
from hwsim.numerics.format import Format
from hwsim.program.operation import wide_format
from hwsim.program.tiling import AxisView
from hwsim.units import format_bytes

HeadLayout = Literal["heads", "columns", "matrix"]


@dataclass(frozen=True)
class AttentionShape:
    """Queries against keys and values, in heads; several heads of queries may share one of keys.

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
    layout: HeadLayout = "heads"

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ShapeError(f"{self.heads} query heads cannot share {self.kv_heads} key/value heads evenly")
        if self.causal and self.queries > self.keys:
            raise ShapeError(f"with causal, the first of {self.queries} queries would see none of {self.keys} keys")
        if self.layout == "matrix" and self.batch != 1:
            raise ShapeError(f"a matrix has no axis for a batch of {self.batch}; take layout columns")

    @property
    def repeat(self) -> int:
        """Query heads that share a head of K and V."""
        return self.heads // self.kv_heads

    @property
    def factor(self) -> float:
        return self.scale if self.scale is not None else 1 / sqrt(self.d)

    @property
    def offset(self) -> float:
        """Query i sees keys up to i + offset; under a causal mask the last query sees them all."""
        return self.keys - self.queries if self.causal else inf

    @property
    def outer(self) -> dict[str, int]:
        """The indices over independent problems that there is more than one of."""
        return {index: extent for index, extent in {"b": self.batch, "g": self.kv_heads}.items() if extent > 1}

    @property
    def row_indices(self) -> dict[str, int]:
        """The indices that count rows of S."""
        return {**self.outer, **({"r": self.repeat} if self.repeat > 1 else {}), "i": self.queries}

    def views(self) -> dict[str, AxisView]:
        """Each tensor by heads: [b, g, r, i, channel] of queries, [b, g, j, channel] of keys."""
        groups, repeat, d = self.kv_heads, self.repeat, self.d
        rows: dict[HeadLayout, AxisView] = {
            "heads": AxisView((self.batch, self.heads, self.queries, d), (self.batch, groups, repeat, self.queries, d)),
            "columns": AxisView(
                (self.batch, self.queries, self.heads * d),
                (self.batch, self.queries, groups, repeat, d),
                (0, 2, 3, 1, 4),
            ),
            "matrix": AxisView((self.queries, self.heads * d), (1, self.queries, groups, repeat, d), (0, 2, 3, 1, 4)),
        }
        keys: dict[HeadLayout, AxisView] = {
            "heads": AxisView((self.batch, groups, self.keys, d), (self.batch, groups, self.keys, d)),
            "columns": AxisView((self.batch, self.keys, groups * d), (self.batch, self.keys, groups, d), (0, 2, 1, 3)),
            "matrix": AxisView((self.keys, groups * d), (1, self.keys, groups, d), (0, 2, 1, 3)),
        }
        heads = (self.batch, groups, repeat, self.queries)
        statistics = AxisView((self.batch, self.heads, self.queries), heads)
        matrix = AxisView((self.batch, self.heads, self.queries, self.keys), (*heads, self.keys))
        return {
            **dict.fromkeys(("Q", "O", "dO", "dQ"), rows[self.layout]),
            **dict.fromkeys(("K", "V", "dK", "dV"), keys[self.layout]),
            "P": matrix,
            "L": statistics,
        }


def scratch_bytes(shape: AttentionShape, fmt: Format, br: int, bc: int) -> int:
    """S and O of a tile, and m, m', l and a of each row, in the wide format; P too where that is narrower."""
    rows, wide = shape.repeat * br, wide_format(fmt)
    p = rows * bc * fmt.element_bytes if wide.name != fmt.name else 0
    return ceil(p) + ceil((rows * bc + rows * shape.d + 4 * rows) * wide.element_bytes)


@dataclass(frozen=True)
class Room:
    """The scratch space that a tile of fused attention has to fit."""

    shape: AttentionShape
    fmt: Format
    scratch_bytes: int

    def needed_bytes(self, br: int, bc: int) -> int:
        """Pieces of Q, K and V, and what is made of them."""
        rows, d = self.shape.repeat * br, self.shape.d
        return ceil((rows * d + 2 * bc * d) * self.fmt.element_bytes) + scratch_bytes(self.shape, self.fmt, br, bc)

    def fits(self, br: int, bc: int) -> bool:
        return self.needed_bytes(br, bc) <= self.scratch_bytes

    def check(self, br: int, bc: int) -> None:
        """Refuse a tile that does not fit, and name those that do."""
        if self.fits(br, bc):
            return
        needs, has = format_bytes(self.needed_bytes(br, bc)), format_bytes(self.scratch_bytes)
        start = f"a tile of br={br} bc={bc} at d={self.shape.d} needs {needs} of scratch space, which has {has}"
        square = _largest(lambda side: self.fits(side, side), max(br, bc))
        if not square:
            raise CapacityError(f"{start}; not even br=1 bc=1, with {format_bytes(self.needed_bytes(1, 1))}, fits")
        taller = _largest(lambda rows: self.fits(rows, bc), br)
        wider = _largest(lambda keys: self.fits(br, keys), bc)
        others = [f"with bc={bc} it is br={taller}"] if taller else []
        others += [f"with br={br} it is bc={wider}"] if wider else []
        raise CapacityError(
            "; ".join([f"{start}; the largest square tile that fits is br={square} bc={square}", *others])
        )


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that fits, 0 if none does; what is smaller than one that fits, fits too."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
