"""Accesses that are given one by one, as events; those that cross a line are split."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwsim.errors import TraceError
from hwsim.jit import compiled
from hwsim.trace.event import BYTES_SHIFT, LINE_SHIFT, U0, U1, address_limit


def split_accesses(
    addresses: NDArray[np.uint64], writes: NDArray[np.bool_], sizes: NDArray[np.uint16], grain: int
) -> NDArray[np.uint64]:
    """Events of `grain` bytes."""
    if len(addresses) == 0:
        return np.zeros(0, np.uint64)
    limit = address_limit(grain)
    if int(addresses.max()) >= limit - int(sizes.max()):
        raise TraceError(
            f"address {int(addresses.max()):#x} is too large: with {grain}-byte lines the limit is {limit:#x}"
        )
    most = int(sizes.max()) // grain + 2
    events = np.empty(len(addresses) * most if int(sizes.max()) > 1 else len(addresses), np.uint64)
    return events[: _split(addresses, writes, sizes, np.uint64(grain.bit_length() - 1), events)]


@compiled
def _split(
    addresses: NDArray[np.uint64],
    writes: NDArray[np.bool_],
    sizes: NDArray[np.uint16],
    shift: np.uint64,
    events: NDArray[np.uint64],
) -> int:
    position = 0
    for number in range(len(addresses)):
        address = addresses[number]
        end = address + np.uint64(sizes[number])
        kind = U1 if writes[number] else U0
        while address < end:
            line = address >> shift
            stop = min(end, (line + U1) << shift)
            events[position] = (line << LINE_SHIFT) | ((stop - address - U1) << BYTES_SHIFT) | kind
            position += 1
            address = stop
    return position
