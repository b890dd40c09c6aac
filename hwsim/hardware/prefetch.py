"""Prefetchers: which line a cache should fetch before it is asked for.

`next_line` acts on a miss, and on the first use of a line that it brought (tagged prefetching, so that a
stream keeps going). `stride` watches 4 KiB regions: when the last two steps from line to line in a region
were equal, it runs ahead by that step.
"""

from __future__ import annotations

import numpy as np

from hwsim.jit import inlined

NO_PREFETCH, NEXT_LINE, STRIDE = range(3)
PREFETCHERS = {"none": NO_PREFETCH, "next_line": NEXT_LINE, "stride": STRIDE}

REGION_BITS = 12
REGION, LAST, STEP, SEEN = range(4)
"""Columns of the table of tracked regions."""


@inlined
def wants_next_line(missed, used_fresh):  # type: ignore[no-untyped-def]
    return missed or used_fresh


@inlined
def observe_stride(streams, offset, count, line, line_bits):  # type: ignore[no-untyped-def]
    """Note an access; returns the step to run ahead by, or 0. A new region takes the place of the oldest."""
    region = line >> max(REGION_BITS - line_bits, 0)
    row = offset
    found = False
    newest = np.int64(0)
    for candidate in range(offset, offset + count):
        newest = max(newest, streams[candidate, SEEN])
        if streams[candidate, REGION] == region:
            row = candidate
            found = True
        elif not found and streams[candidate, SEEN] < streams[row, SEEN]:
            row = candidate
    step = np.int64(0)
    if found:
        taken = line - streams[row, LAST]
        if taken != 0:
            if taken == streams[row, STEP]:
                step = taken
            streams[row, STEP] = taken
    else:
        streams[row, REGION] = region
        streams[row, STEP] = 0
    streams[row, LAST] = line
    streams[row, SEEN] = newest + 1
    return step
