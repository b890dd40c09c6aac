"""Events: what flows from the walk of a nest into the first memory level, and from each level into the next.

One event is one 64-bit number:

    | line: 44 bits | access: 6 bits | bytes - 1: 12 bits | kind: 2 bits |

`line` is the address divided by the grain of the stream (the line size of the first level, or its sector
size), `access` the number of the access in its nest, so that misses can be told apart by what caused them.

Accesses that are given one by one become events here, too; those that cross a line are split.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwsim.errors import TraceError
from hwsim.jit import compiled

LOAD, STORE, WRITEBACK, UPDATE = range(4)
"""A load; a store of part of a line; a whole line (or sector) coming down; a load whose place is then stored to."""

U0, U1, U2, U3 = (np.uint64(number) for number in range(4))
KIND = np.uint64(3)
BYTES_SHIFT, BYTES_MASK = np.uint64(2), np.uint64(0xFFF)
ACCESS_SHIFT, ACCESS_MASK = np.uint64(14), np.uint64(0x3F)
LINE_SHIFT = np.uint64(20)
LINE_BITS = 44


def event_template(kind: int, nbytes: int, access: int) -> int:
    """An event without its line."""
    return kind | (nbytes - 1) << 2 | access << 14


def address_limit(grain: int) -> int:
    """Addresses from here on do not fit an event."""
    return grain << LINE_BITS


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
