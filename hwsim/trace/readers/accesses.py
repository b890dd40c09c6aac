"""What every reader yields and takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

MAX_ACCESS_BYTES = 4096
"""The largest single access that a trace may contain: a page."""


class Accesses(NamedTuple):
    """A stretch of a trace, in order."""

    addresses: NDArray[np.uint64]
    writes: NDArray[np.bool_]
    sizes: NDArray[np.uint16]

    def part(self, start: int, stop: int) -> Accesses:
        return Accesses(self.addresses[start:stop], self.writes[start:stop], self.sizes[start:stop])


@dataclass(frozen=True)
class ReadOptions:
    """What a reader needs to know besides the file."""

    access_bytes: int = 4
    """Size of an access whose size the trace does not tell."""
    address_limit: int = (1 << 64) - 2 * MAX_ACCESS_BYTES
    """Addresses from here on are refused."""


class TraceReader(Protocol):
    """A trace that is read once, from its start to its end; never more than a chunk of it is in memory."""

    @property
    def format(self) -> str:
        """`din`, `lackey` or `npz`."""
        ...

    @property
    def instructions(self) -> int:
        """Instruction fetches met so far; they are left out."""
        ...

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        ...

    @property
    def total_bytes(self) -> int | None:
        """Bytes of the file, where that is known."""
        ...

    def __iter__(self) -> Iterator[Accesses]: ...

    def close(self) -> None: ...
