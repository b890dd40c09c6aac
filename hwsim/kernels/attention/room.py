"""How much scratch space a tile of fused attention takes, and the largest tile that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from hwsim.errors import CapacityError
from hwsim.kernels.attention.shape import AttentionShape
from hwsim.kernels.attention.softmax_loops import wide_format
from hwsim.numerics.format import Format
from hwsim.units import format_bytes


def scratch_bytes(shape: AttentionShape, fmt: Format, br: int, bc: int) -> int:
    """S and O of a tile, and m, m', l and a of each row, in the wide format; P too where that is narrower."""
    rows, wide = shape.repeat * br, wide_format(fmt)
    p = rows * bc * fmt.element_bytes if wide.name != fmt.name else 0
    return ceil(p) + ceil((rows * bc + rows * shape.d + 4 * rows) * wide.element_bytes)


@dataclass(frozen=True)
class Room:
    """The scratch space that a tile has to fit."""

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
