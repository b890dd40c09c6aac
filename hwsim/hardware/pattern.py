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
    """
    if access.table is not None:
        return False
    line, page = line_bytes * access.per_byte, PAGE_BYTES * access.per_byte
    for trip, stride in zip(reversed(nest.trips[: access.depth]), reversed(access.strides), strict=True):
        if stride == 0 or trip == 1:
            continue
        if abs(stride) > line:
            return abs(stride) < page
        if trip * abs(stride) >= STREAM_LINES * line:
            return True
    return True
