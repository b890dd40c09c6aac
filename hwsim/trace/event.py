"""Events: what flows from the walk of a nest into the first memory level, and from each level into the next.

One event is one 64-bit number:

    | line: 44 bits | access: 6 bits | bytes - 1: 12 bits | kind: 2 bits |

`line` is the address divided by the grain of the stream (the line size of the first level, or its sector
size), `access` the number of the access in its nest, so that misses can be told apart by what caused them.
"""

from __future__ import annotations

import numpy as np

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
