"""AddressSpace: where the tensors of a kernel lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

from hwsim.numerics.format import Format
from hwsim.trace.view import TensorView

FIRST_ADDRESS = 64 * 1024
PAGE_BYTES = 4096


class AddressSpace:
    """Hands out addresses in ascending order. What is freed counts as free, but its addresses are not
    used again."""

    def __init__(self) -> None:
        self._next = FIRST_ADDRESS
        self._live: dict[str, int] = {}
        self.peak_bytes = 0

    @property
    def live_bytes(self) -> int:
        return sum(self._live.values())

    def allocate(
        self,
        name: str,
        shape: Sequence[int],
        fmt: Format,
        ld: int | None = None,
        align: int = PAGE_BYTES,
        bits: Fraction | None = None,
    ) -> TensorView:
        """A row-major tensor; `ld` is the distance between rows in elements where rows are padded, `bits` the space
        that an element takes, where that is not what its format says."""
        if name in self._live:
            raise ValueError(f"a tensor {name!r} is already there")
        base = -(-self._next // align) * align
        bits = fmt.stored_bits if bits is None else bits
        view = TensorView.row_major(name, base, shape, int(bits) if bits.denominator == 1 else bits, ld)
        size_bytes = ceil((view.strides[0] * shape[0] if shape else 1) * bits / 8)
        self._next = base + size_bytes
        self._live[name] = size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return view

    def free(self, name: str) -> None:
        del self._live[name]
