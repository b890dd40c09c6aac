"""Scratchpad: a memory that software fills. Capacity is checked, bank conflicts are counted. No time here.

shared = Scratchpad(spec, "sm.shared")
shared.check_square_tile(118, "fp32", element_bits=32)      # three tiles of 118 x 118 fit 164 KiB
shared.strided_wavefronts(0, stride_bytes=8, lanes=32)      # 2: every second bank, each twice
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

import numpy as np

from hwsim.errors import CapacityError
from hwsim.spec.memory import ScratchpadSpec
from hwsim.units import format_bytes


class Scratchpad:
    """One instance of a scratchpad: what lies in it now, and the most that ever did."""

    def __init__(self, spec: ScratchpadSpec, name: str) -> None:
        self.spec = spec
        self.name = name
        self.peak_bytes = 0
        self._held: dict[str, int] = {}

    @property
    def used_bytes(self) -> int:
        return sum(self._held.values())

    @property
    def free_bytes(self) -> int:
        return self.spec.size - self.used_bytes

    def allocate(self, name: str, nbytes: int, *, buffered: bool = True) -> None:
        """Room for a tile; one that is `buffered` takes as many copies as the scratchpad has buffers."""
        if name in self._held:
            raise ValueError(f"{name!r} already lies in {self.name}")
        if nbytes < 1:
            raise ValueError(f"{name!r} must take at least one byte, not {nbytes}")
        needed = nbytes * (self.spec.buffers if buffered else 1)
        if needed > self.free_bytes:
            has = f"which has {format_bytes(self.spec.size)}"
            if self._held:
                has += f", {format_bytes(self.used_bytes)} of it taken by {', '.join(self._held)}"
            raise CapacityError(f"{name} needs {format_bytes(needed)} in {self.name}, {has}")
        self._held[name] = needed
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def free(self, name: str) -> None:
        if name not in self._held:
            raise ValueError(f"{name!r} does not lie in {self.name}")
        del self._held[name]

    def check_square_tile(self, side: int, fmt: str, element_bits: int, operands: int = 3) -> None:
        """Refuse square tiles of all operands that do not fit, and name the largest that do."""
        buffers = self.spec.buffers
        needed = square_tiles_bytes(side, operands, element_bits, buffers)
        if needed <= self.spec.size:
            return
        largest = largest_square_tile(self.spec.size, operands, element_bits, buffers)
        raise CapacityError(
            f"tile {side}x{side} {fmt} needs {format_bytes(needed)} in {self.name}, "
            f"which has {format_bytes(self.spec.size)}; "
            + (f"the largest square tile that fits is {largest}" if largest else "not even one element fits")
        )

    def wavefronts(self, addresses: Sequence[int], nbytes: int | None = None) -> int:
        """Passes that an access of all lanes at once needs.

        Lanes in the same bank wait for each other unless they want the same word, which is read once for all.
        Each lane moves `nbytes`, by default the width of a bank.
        """
        if len(addresses) == 0:
            return 0
        width = self.spec.bank_width
        first = np.asarray(addresses, np.int64)
        last = first + (width if nbytes is None else nbytes) - 1
        span = np.arange(int((last // width - first // width).max()) + 1)
        words = (first // width)[:, None] + span
        wanted = np.unique(words[words <= (last // width)[:, None]])
        return int(np.bincount(wanted % self.spec.banks).max())

    def strided_wavefronts(self, base: int, stride_bytes: int, lanes: int, nbytes: int | None = None) -> int:
        """The same for lanes at equal distances; a stride of 0 is a broadcast."""
        return self.wavefronts([base + lane * stride_bytes for lane in range(lanes)], nbytes)


def square_tiles_bytes(side: int, operands: int, element_bits: int, buffers: int = 1) -> int:
    """Bytes of one square tile of each operand, in each buffer; a tile takes whole bytes."""
    return operands * buffers * (-(-side * side * element_bits // 8))


def largest_square_tile(capacity_bytes: int, operands: int, element_bits: int, buffers: int = 1) -> int:
    """The largest side of which a tile of each operand fits in each buffer; 0 if not one element does."""
    return isqrt(capacity_bytes // (operands * buffers) * 8 // element_bits)
