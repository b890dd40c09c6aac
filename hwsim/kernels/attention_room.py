"""How much scratch space a tile of fused attention takes, and the largest tile that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from hwsim.errors import CapacityError
from hwsim.kernels.attention_shape import AttentionShape
from hwsim.kernels.softmax_loops import wide_format
from hwsim.numerics.format import Format
from hwsim.units import format_bytes


@dataclass(frozen=True)
class Room:
    """The scratch space that a tile has to fit."""

    shape: AttentionShape
    fmt: Format
    scratch_bytes: int

    def needed_bytes(self, br: int, bc: int) -> int:
        """Pieces of Q, K and V (and of P, where S is wider) as stored; S, O, and m, m', l, a of each row wide."""
        rows, d, wide = self.shape.repeat * br, self.shape.d, wide_format(self.fmt)
        stored = rows * d + 2 * bc * d + (rows * bc if wide.name != self.fmt.name else 0)
        return ceil(stored * self.fmt.element_bytes) + ceil((rows * bc + rows * d + 4 * rows) * wide.element_bytes)

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
