"""Which accesses a hardware prefetcher can follow, so that they wait for bandwidth and not for latency."""

from __future__ import annotations

from hwsim.trace.nest import Access, Nest

STREAM_LINES = 2
"""Neighbouring lines in a row from which a prefetcher runs ahead."""
STREAM_STEPS = 4
"""Equal steps within a page from which it follows jumps."""
PAGE_BYTES = 4096
"""No prefetcher steps over the border of a page."""


def is_stream(nest: Nest, access: Access, line_bytes: int) -> bool:
    """Whether a prefetcher can follow an access: the innermost loop that leads to another line decides.

    A run of neighbouring elements that is too short for a prefetcher counts as one piece; then the next loop decides.
    An unrolled loop has several accesses to the same tensor that move alike: its step is the distance between them.
    Nobody can follow a loop whose places are looked up in a table.
    """
    line, page = line_bytes * access.per_byte, PAGE_BYTES * access.per_byte
    apart = min((abs(other.base - access.base) for other in nest.accesses if _moves_alike(access, other)), default=page)
    looked_up = access.table.strides if access.table is not None else (0,) * access.depth
    loops = zip(nest.trips[: access.depth], access.strides, looked_up, strict=True)
    for trip, stride, entries in reversed(tuple(loops)):
        if entries and trip > 1:
            return False
        if stride == 0 or trip == 1:
            continue
        if abs(stride) > line:
            return min(abs(stride), max(apart, line)) * STREAM_STEPS <= page
        if trip * abs(stride) >= STREAM_LINES * line:
            return True
    return True


def _moves_alike(access: Access, other: Access) -> bool:
    return other.tensor == access.tensor and other.strides == access.strides and other.base != access.base
