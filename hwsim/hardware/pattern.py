"""How the misses of an access follow each other: in a stream of neighbouring lines, or in jumps.

A prefetcher keeps up with a stream, and with steady steps inside a page. Larger jumps, as down a column of a wide
row-major matrix, are independent of each other and overlap, but no prefetcher helps.
"""

from __future__ import annotations

from hwsim.trace.nest import Access, Nest

STREAM_LINES = 2
"""Neighbouring lines in a row from which a prefetcher runs ahead."""
PAGE_BYTES = 4096
"""No prefetcher steps over the border of a page."""


def is_stream(nest: Nest, access: Access, line_bytes: int) -> bool:
    """Whether a prefetcher can follow an access: the innermost loop that leads to another line decides.

    A run of neighbouring elements that is too short for a prefetcher counts as one piece; then the next loop decides.
    Nobody can follow a loop whose places are looked up in a table.
    """
    line, page = line_bytes * access.per_byte, PAGE_BYTES * access.per_byte
    looked_up = access.table.strides if access.table is not None else (0,) * access.depth
    loops = zip(nest.trips[: access.depth], access.strides, looked_up, strict=True)
    for trip, stride, entries in reversed(tuple(loops)):
        if entries and trip > 1:
            return False
        if stride == 0 or trip == 1:
            continue
        if abs(stride) > line:
            return abs(stride) < page
        if trip * abs(stride) >= STREAM_LINES * line:
            return True
    return True
