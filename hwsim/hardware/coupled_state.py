"""The general model's tables: what is known of each cache and of each line, and how a line is found.

The compiled functions take the arrays one by one: reaching into a tuple in a hot loop costs a reference count
each time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hwsim.hardware.endless import hash_place
from hwsim.hardware.replacement import TAG, VALID
from hwsim.jit import called, inlined

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
