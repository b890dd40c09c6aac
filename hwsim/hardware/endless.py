"""A cache that gives nothing up (`size: inf`) keeps its lines in a hash table; both models share the hash."""

from __future__ import annotations

import numpy as np

from hwsim.jit import inlined

FIRST_HASH_SIZE = 1 << 12

_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)
_MIDDLE = np.uint64(32)


@inlined
def hash_place(line, mask):  # type: ignore[no-untyped-def]
    """Where the search for a line begins in a table of `mask + 1` places.

    The middle bits of the product: its low bits would put all lines of a large power-of-two stride into a few
    places.
    """
    return ((line * _GOLDEN) >> _MIDDLE) & mask
