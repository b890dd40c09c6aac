"""The general model: what is known of each cache and each line, how a line is found, how it leaves, what is prefetched.

The compiled functions take the arrays one by one: reaching into a tuple in a hot loop costs a reference count
each time. A line leaves seldom; that is compiled apart from the walk.

Prefetchers say which line a cache should fetch before it is asked for. `next_line` acts on a miss, and on the first use
of a line that it brought (tagged prefetching, so that a stream keeps going). `stride` watches 4 KiB regions: when the
last two steps from line to line in a region were equal, it runs ahead by that step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hwsim.jit import called, inlined
from hwsim.memory.counters import BACK_INVALIDATIONS, BYTES_EVICTED, BYTES_WRITTEN, CLEAN_VICTIMS, WRITEBACKS, WRITES
from hwsim.memory.replacement import DIRTY, TAG, VALID, hash_place
from hwsim.trace.nest import U1, WRITEBACK

VICTIM, PREFETCH = 4, 5
"""Two more kinds of request: an unmodified line handed to an exclusive cache, and a load that nobody waits for."""

REQUEST, INSERT = 0, 1
OP, LEVEL, ADDRESS, FIRST, SECOND, THIRD = range(6)
"""Columns of the stack. Request: bytes, kind, access. Insertion: sectors present and modified, prefetched."""

NEITHER, INCLUSIVE, EXCLUSIVE = 0, 1, 2
INCLUSIONS = {"none": NEITHER, "inclusive": INCLUSIVE, "exclusive": EXCLUSIVE}

(OFFSET, SET_OFFSET, SETS, WAYS, POLICY, LINE_BITS, SECTOR_BITS, THROUGH, ALLOCATE, INCLUSION, FOLD_BITS,
 PREFETCHER, DEGREE, STREAMS, STREAM_OFFSET, OWN_LEVEL, ENDLESS, CLOCK, USED) = range(19)  # fmt: skip
"""Columns of the table of instances; CLOCK counts uses, USED the places ever taken in an endless cache."""


class State(NamedTuple):
    """Everything that the compiled code reads and changes."""

    units: NDArray[np.int64]
    """A row per instance; columns as above."""
    ancestors: NDArray[np.int64]
    """Instance and level: the instance of that level which the instance is connected to."""
    lines: NDArray[np.int64]
    """A row per way; columns as in replacement.py. A way without a valid sector is free."""
    trees: NDArray[np.int64]
    rng: NDArray[np.uint64]
    streams: NDArray[np.int64]
    counters: NDArray[np.uint64]
    causes: NDArray[np.uint64]
    stack: NDArray[np.int64]
    queue: NDArray[np.int64]
    dram_geometry: NDArray[np.int64]
    open_rows: NDArray[np.int64]
    dram_counts: NDArray[np.uint64]


@inlined
def find(units, lines, instance, line):  # type: ignore[no-untyped-def]
    """The place of a line (-1 if it is not there), the first place of its set, and the number of the set.

    An endless cache has one set, a hash table; its first place is where the line is or would be put.
    """
    offset, sets, ways = units[instance, OFFSET], units[instance, SETS], units[instance, WAYS]
    index: np.int64 = np.int64(0)
    if units[instance, ENDLESS]:
        spot = np.int64(hash_place(np.uint64(line), np.uint64(sets - 1)))
        while lines[offset + spot, TAG] >= 0 and lines[offset + spot, TAG] != line:
            spot = (spot + 1) & (sets - 1)
        base = offset + spot
    else:
        fold = units[instance, FOLD_BITS]
        if fold > 0:
            # A hashed index is the exclusive or of all groups of bits.
            rest = line
            while rest > 0:
                index ^= rest & (sets - 1)
                rest >>= fold
        else:
            index = line
        index = index & (sets - 1) if sets & (sets - 1) == 0 else index % sets
        base = offset + index * ways
    found = np.int64(-1)
    for place in range(base, base + ways):
        if lines[place, TAG] == line and lines[place, VALID]:
            found = np.int64(place)
            break
    return found, base, index


@called
def place_of(units, lines, instance, line):  # type: ignore[no-untyped-def]
    """The place of a line, -1 if it is not there: for what happens seldom."""
    place, _, _ = find(units, lines, instance, line)
    return place


@inlined
def sectors_of(units, instance, address, nbytes):  # type: ignore[no-untyped-def]
    """The sectors of a line that a piece of memory covers, a bit each."""
    inside = address & ((np.int64(1) << units[instance, LINE_BITS]) - 1)
    first = inside >> units[instance, SECTOR_BITS]
    last = (inside + nbytes - 1) >> units[instance, SECTOR_BITS]
    return ((np.int64(1) << (last - first + 1)) - 1) << first


@inlined
def sector_count(units, instance):  # type: ignore[no-untyped-def]
    return np.int64(1) << (units[instance, LINE_BITS] - units[instance, SECTOR_BITS])


@inlined
def push(stack, top, op, level, address, first, second, third):  # type: ignore[no-untyped-def]
    stack[top, OP] = op
    stack[top, LEVEL] = level
    stack[top, ADDRESS] = address
    stack[top, FIRST] = first
    stack[top, SECOND] = second
    stack[top, THIRD] = third
    return top + 1


@called
def evict(units, ancestors, lines, counters, stack, top, instance, level, place, next_exclusive):  # type: ignore[no-untyped-def]
    """A line gives up its way: what is modified goes down; to an exclusive cache below, all of it."""
    old = lines[place, TAG]
    lost = lines[place, DIRTY]
    if units[instance, INCLUSION] == INCLUSIVE:
        lost |= _take_from_inside(units, ancestors, lines, counters, instance, level, old)
    if lost != 0:
        counters[instance, WRITEBACKS] += U1
    elif next_exclusive:
        counters[instance, CLEAN_VICTIMS] += U1
    leaving = lines[place, VALID] | lost if next_exclusive else lost
    size = np.int64(1) << units[instance, SECTOR_BITS]
    sector = sector_count(units, instance) - 1
    while sector >= 0:
        if leaving >> sector & 1:
            kind = WRITEBACK if lost >> sector & 1 else VICTIM
            counters[instance, BYTES_EVICTED] += np.uint64(size)
            address = (old << units[instance, LINE_BITS]) + sector * size
            top = push(stack, top, REQUEST, level + 1, address, size, kind, 0)
        sector -= 1
    return top


@called
def _take_from_inside(units, ancestors, lines, counters, instance, level, line):  # type: ignore[no-untyped-def]
    """An inclusive cache loses a line: so do the caches inside it. Returns the sectors modified there."""
    modified = np.int64(0)
    for inner in range(len(units)):
        if units[inner, OWN_LEVEL] < level and ancestors[inner, level] == instance:
            # Inner lines are as long or shorter: one outer line may hold several.
            shorter = units[instance, LINE_BITS] - units[inner, LINE_BITS]
            for piece in range(line << shorter, (line + 1) << shorter):
                place = place_of(units, lines, inner, piece)
                if place >= 0:
                    counters[instance, BACK_INVALIDATIONS] += U1
                    dirty = lines[place, DIRTY]
                    lines[place, VALID] = 0
                    lines[place, DIRTY] = 0
                    if dirty != 0:
                        counters[inner, WRITEBACKS] += U1
                        start = piece << units[inner, LINE_BITS]
                        modified |= _carry_down(units, ancestors, lines, counters, inner, instance, start, dirty)
    return modified


@called
def _carry_down(units, ancestors, lines, counters, inner, outer, start, dirty):  # type: ignore[no-untyped-def]
    """Modified sectors leave an inner cache for the first one on the way to an outer one that has the line.

    Returns the sectors of the outer cache that they reached.
    """
    reached = np.int64(0)
    size = np.int64(1) << units[inner, SECTOR_BITS]
    for sector in range(sector_count(units, inner)):
        if dirty >> sector & 1:
            address = start + sector * size
            giver = inner
            while giver != outer:
                taker = ancestors[inner, units[giver, OWN_LEVEL] + 1]
                counters[giver, BYTES_EVICTED] += np.uint64(size)
                counters[taker, BYTES_WRITTEN] += np.uint64(size)
                counters[taker, WRITES] += U1
                sectors = sectors_of(units, taker, address, size)
                giver = taker
                if taker == outer:
                    reached |= sectors
                else:
                    place = place_of(units, lines, taker, address >> units[taker, LINE_BITS])
                    if place >= 0:
                        lines[place, VALID] |= sectors
                        lines[place, DIRTY] |= sectors
                        giver = outer
    return reached


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
