"""The general model of a cache hierarchy: one access goes all the way down before the next one starts.

Levels may look at each other here: an inclusive cache takes lines away from the caches inside it, an exclusive one
receives all that they give up. Also here: sectors, write-through, no-allocate, hashed sets, every replacement policy,
prefetchers, and lines that grow outwards. Plain hierarchies run through `filter.py` several times faster, with equal
counts.

An access is a small stack of operations. A request that misses pushes the insertion of its line, and on top of it the
request to the next level; so a line is put in after the next level answered, and its victim leaves after that. Prefetches
wait in a queue until the access that set them off is complete.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hwsim.hardware.counters import (
    BACK_INVALIDATIONS,
    BYTES_EVICTED,
    BYTES_FETCHED,
    BYTES_READ,
    BYTES_WRITTEN,
    CLEAN_VICTIMS,
    PREFETCH_HITS,
    PREFETCH_READS,
    PREFETCHES,
    READ_MISSES,
    READS,
    SECTOR_MISSES,
    WRITE_MISSES,
    WRITEBACKS,
    WRITES,
)
from hwsim.hardware.dram import dram_access
from hwsim.hardware.prefetch import NO_PREFETCH, STRIDE, observe_stride, wants_next_line
from hwsim.hardware.replacement import DIRTY, FRESH, TAG, VALID, admit, touch, victim
from hwsim.jit import called, compiled, inlined
from hwsim.trace.event import (
    ACCESS_MASK,
    ACCESS_SHIFT,
    BYTES_MASK,
    BYTES_SHIFT,
    KIND,
    LINE_SHIFT,
    LOAD,
    PREFETCH,
    STORE,
    WRITEBACK,
)
from hwsim.trace.walk import fill

VICTIM = 4
"""One more kind of request: an unmodified line handed to an exclusive cache."""

REQUEST, INSERT = 0, 1
OP, LEVEL, ADDRESS, FIRST, SECOND, THIRD = range(6)
"""Columns of the stack. Request: bytes, kind, access. Insertion: sectors present, sectors modified, prefetched."""

NEITHER, INCLUSIVE, EXCLUSIVE = 0, 1, 2
INCLUSIONS = {"none": NEITHER, "inclusive": INCLUSIVE, "exclusive": EXCLUSIVE}

(OFFSET, SET_OFFSET, SETS, WAYS, POLICY, LINE_BITS, SECTOR_BITS, THROUGH, ALLOCATE, INCLUSION, FOLD_BITS, PREFETCHER,
 DEGREE, STREAMS, STREAM_OFFSET, OWN_LEVEL, ENDLESS, CLOCK) = range(18)  # fmt: skip
"""Columns of the table of instances."""

_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)


class State(NamedTuple):
    """Everything that the compiled code reads and changes.

    The compiled functions take the arrays one by one: reaching into a tuple in a hot loop costs a reference count each time.
    """

    units: NDArray[np.int64]
    """A row per instance: its geometry, and its clock (a count of uses)."""
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
def _count(counters, instance, column, amount):  # type: ignore[no-untyped-def]
    counters[instance, column] += np.uint64(amount)


@inlined
def _set_index(line, sets, fold_bits):  # type: ignore[no-untyped-def]
    """The set of a line; with a hashed index, the exclusive or of all its groups of bits."""
    index = line
    if fold_bits > 0:
        index = np.int64(0)
        rest = line
        while rest > 0:
            index ^= rest & (sets - 1)
            rest >>= fold_bits
    return index % sets


@inlined
def _find(units, lines, instance, line):  # type: ignore[no-untyped-def]
    """The place of a line (-1 if it is not there), the first place of its set, and the number of the set.

    An endless cache has one set, a hash table; its first place is where the line is or would be put.
    """
    offset, sets, ways = units[instance, OFFSET], units[instance, SETS], units[instance, WAYS]
    found = np.int64(-1)
    if units[instance, ENDLESS]:
        index = np.int64(0)
        spot = np.int64((np.uint64(line) * _GOLDEN) >> np.uint64(2)) & (sets - 1)
        while lines[offset + spot, TAG] >= 0 and lines[offset + spot, TAG] != line:
            spot = (spot + 1) & (sets - 1)
        base = offset + spot
        ways = np.int64(1)
    else:
        index = _set_index(line, sets, units[instance, FOLD_BITS])
        base = offset + index * ways
    place = base
    while place < base + ways:
        if lines[place, TAG] == line and lines[place, VALID]:
            found = place
            break
        place += 1
    return found, base, index


@inlined
def _touch(units, lines, trees, instance, base, index, place):  # type: ignore[no-untyped-def]
    units[instance, CLOCK] += 1
    tree = units[instance, SET_OFFSET] + index
    touch(units[instance, POLICY], lines, trees, units[instance, CLOCK], base, tree, units[instance, WAYS], place - base)


@inlined
def _sectors(units, instance, address, nbytes):  # type: ignore[no-untyped-def]
    """The sectors of a line that a piece of memory covers, a bit each."""
    inside = address & ((np.int64(1) << units[instance, LINE_BITS]) - 1)
    first = inside >> units[instance, SECTOR_BITS]
    last = (inside + nbytes - 1) >> units[instance, SECTOR_BITS]
    return ((np.int64(1) << (last - first + 1)) - 1) << first


@inlined
def _sector_count(units, instance):  # type: ignore[no-untyped-def]
    return np.int64(1) << (units[instance, LINE_BITS] - units[instance, SECTOR_BITS])


@inlined
def _push(stack, top, op, level, address, first, second, third):  # type: ignore[no-untyped-def]
    stack[top, OP] = op
    stack[top, LEVEL] = level
    stack[top, ADDRESS] = address
    stack[top, FIRST] = first
    stack[top, SECOND] = second
    stack[top, THIRD] = third
    return top + 1


@inlined
def _fetch(units, counters, stack, top, instance, level, line, sectors, kind, access):  # type: ignore[no-untyped-def]
    """Ask the next level for sectors of a line; the lowest sector is asked for first."""
    size = np.int64(1) << units[instance, SECTOR_BITS]
    sector = _sector_count(units, instance) - 1
    while sector >= 0:
        if sectors >> sector & 1:
            _count(counters, instance, BYTES_FETCHED, size)
            address = (line << units[instance, LINE_BITS]) + sector * size
            top = _push(stack, top, REQUEST, level + 1, address, size, kind, access)
        sector -= 1
    return top


@inlined
def _carry_down(units, ancestors, lines, counters, inner, outer, address, nbytes):  # type: ignore[no-untyped-def]
    """Modified data leaves an inner cache for an outer one: into the first cache between them that has the line.

    Returns the sectors of the outer cache that it reached.
    """
    giver = inner
    reached = np.int64(0)
    while giver != outer:
        taker = ancestors[inner, units[giver, OWN_LEVEL] + 1]
        _count(counters, giver, BYTES_EVICTED, nbytes)
        _count(counters, taker, BYTES_WRITTEN, nbytes)
        _count(counters, taker, WRITES, 1)
        sectors = _sectors(units, taker, address, nbytes)
        giver = taker
        if taker == outer:
            reached = sectors
        else:
            place, _, _ = _find(units, lines, taker, address >> units[taker, LINE_BITS])
            if place >= 0:
                lines[place, VALID] |= sectors
                lines[place, DIRTY] |= sectors
                giver = outer
    return reached


@called
def _take_from_inside(units, ancestors, lines, counters, instance, level, line):  # type: ignore[no-untyped-def]
    """An inclusive cache loses a line: so do the caches inside it. Returns the sectors that were modified there."""
    modified = np.int64(0)
    for inner in range(len(units)):
        if units[inner, OWN_LEVEL] < level and ancestors[inner, level] == instance:
            # Inner lines are as long or shorter: one outer line may hold several.
            shorter = units[instance, LINE_BITS] - units[inner, LINE_BITS]
            for piece in range(line << shorter, (line + 1) << shorter):
                place, _, _ = _find(units, lines, inner, piece)
                if place >= 0:
                    _count(counters, instance, BACK_INVALIDATIONS, 1)
                    _count(counters, inner, WRITEBACKS, lines[place, DIRTY] != 0)
                    width = np.int64(1) << units[inner, SECTOR_BITS]
                    for sector in range(_sector_count(units, inner)):
                        if lines[place, DIRTY] >> sector & 1:
                            where = (piece << units[inner, LINE_BITS]) + sector * width
                            modified |= _carry_down(units, ancestors, lines, counters, inner, instance, where, width)
                    lines[place, VALID] = 0
                    lines[place, DIRTY] = 0
    return modified


@called
def _evict(units, ancestors, lines, counters, stack, top, instance, level, place, next_exclusive):  # type: ignore[no-untyped-def]
    """A line gives up its way: what is modified goes down, and all of it where an exclusive cache waits below."""
    old = lines[place, TAG]
    lost = lines[place, DIRTY]
    if units[instance, INCLUSION] == INCLUSIVE:
        lost |= _take_from_inside(units, ancestors, lines, counters, instance, level, old)
    _count(counters, instance, WRITEBACKS, lost != 0)
    _count(counters, instance, CLEAN_VICTIMS, next_exclusive and lost == 0)
    leaving = lines[place, VALID] | lost if next_exclusive else lost
    size = np.int64(1) << units[instance, SECTOR_BITS]
    sector = _sector_count(units, instance) - 1
    while sector >= 0:
        if leaving >> sector & 1:
            kind = WRITEBACK if lost >> sector & 1 else VICTIM
            _count(counters, instance, BYTES_EVICTED, size)
            address = (old << units[instance, LINE_BITS]) + sector * size
            top = _push(stack, top, REQUEST, level + 1, address, size, kind, 0)
        sector -= 1
    return top


@inlined
def _insert(  # type: ignore[no-untyped-def]
    units, ancestors, lines, trees, rng, counters, stack, top, instance, level, address, present, modified, fresh,
    next_exclusive,
):  # fmt: skip
    """Put a line (or further sectors of it) in; what has to leave for it goes on the stack."""
    line = address >> units[instance, LINE_BITS]
    place, base, index = _find(units, lines, instance, line)
    ways = units[instance, WAYS]
    if place >= 0:
        lines[place, VALID] |= present
        lines[place, DIRTY] |= modified
        _touch(units, lines, trees, instance, base, index, place)
    else:
        place = base
        while place < base + ways and lines[place, VALID]:
            place += 1
        tree = units[instance, SET_OFFSET] + index
        if place == base + ways:
            place = base + victim(units[instance, POLICY], lines, trees, rng, instance, base, tree, ways)
            top = _evict(units, ancestors, lines, counters, stack, top, instance, level, place, next_exclusive)
        lines[place, TAG] = line
        lines[place, VALID] = present
        lines[place, DIRTY] = modified
        lines[place, FRESH] = fresh
        units[instance, CLOCK] += 1
        admit(units[instance, POLICY], lines, trees, units[instance, CLOCK], base, tree, ways, place - base)
    return top


@inlined
def _read(units, lines, trees, counters, causes, stack, top, instance, level, address, nbytes, kind, access):  # type: ignore[no-untyped-def]
    """A load, or a prefetch of an inner level.

    Returns the top of the stack, whether it missed, and whether it was the first use of a prefetched line.
    """
    line = address >> units[instance, LINE_BITS]
    sectors = _sectors(units, instance, address, nbytes)
    place, base, index = _find(units, lines, instance, line)
    demand = kind == LOAD
    _count(counters, instance, READS if demand else PREFETCH_READS, 1)
    _count(counters, instance, BYTES_READ, nbytes)
    present = lines[place, VALID] if place >= 0 else np.int64(0)
    hit = present & sectors == sectors
    used_fresh = False
    if hit:
        used_fresh = demand and lines[place, FRESH] != 0
        if used_fresh:
            _count(counters, instance, PREFETCH_HITS, 1)
            lines[place, FRESH] = 0
        _touch(units, lines, trees, instance, base, index, place)
        if units[instance, INCLUSION] == EXCLUSIVE:
            # The sectors move up, modified or not, to the insertion that waits for them on the stack.
            below = top - 1
            while below >= 0 and stack[below, OP] != INSERT:
                below -= 1
            if below >= 0:
                stack[below, SECOND] |= lines[place, DIRTY] & sectors
                lines[place, VALID] &= ~sectors
                lines[place, DIRTY] &= ~sectors
    else:
        if demand:
            _count(counters, instance, READ_MISSES, 1)
            _count(counters, instance, SECTOR_MISSES, place >= 0)
            causes[level, access] += np.uint64(1)
        missing = sectors & ~present
        if units[instance, INCLUSION] != EXCLUSIVE:
            top = _push(stack, top, INSERT, level, address, missing, 0, 0)
        top = _fetch(units, counters, stack, top, instance, level, line, missing, kind, access)
    return top, not hit, used_fresh


@inlined
def _write(units, lines, trees, counters, causes, stack, top, instance, level, address, nbytes, kind, access):  # type: ignore[no-untyped-def]
    """A store, or a line (or sector) that comes down; returns as `_read`."""
    line = address >> units[instance, LINE_BITS]
    sectors = _sectors(units, instance, address, nbytes)
    place, base, index = _find(units, lines, instance, line)
    _count(counters, instance, WRITES, 1)
    _count(counters, instance, BYTES_WRITTEN, nbytes)
    # A line that comes down needs no fetch where it covers whole sectors of this level.
    whole = kind != STORE and nbytes & ((np.int64(1) << units[instance, SECTOR_BITS]) - 1) == 0
    present = lines[place, VALID] if place >= 0 else np.int64(0)
    hit = present & sectors == sectors or (whole and place >= 0)
    through = units[instance, THROUGH] != 0
    modified = sectors if kind != VICTIM and not through else np.int64(0)
    used_fresh = False
    if hit:
        used_fresh = kind == STORE and lines[place, FRESH] != 0
        if used_fresh:
            _count(counters, instance, PREFETCH_HITS, 1)
            lines[place, FRESH] = 0
        lines[place, VALID] |= sectors
        lines[place, DIRTY] |= modified
        _touch(units, lines, trees, instance, base, index, place)
    else:
        _count(counters, instance, WRITE_MISSES, 1)
        _count(counters, instance, SECTOR_MISSES, place >= 0)
        if kind == STORE:
            causes[level, access] += np.uint64(1)
    allocates = units[instance, ALLOCATE] != 0
    if kind != VICTIM and (through or not (hit or allocates)):
        _count(counters, instance, BYTES_EVICTED, nbytes)
        top = _push(stack, top, REQUEST, level + 1, address, nbytes, kind, access)
    if allocates and not hit:
        top = _push(stack, top, INSERT, level, address, sectors, modified, 0)
        if not whole:
            top = _fetch(units, counters, stack, top, instance, level, line, sectors & ~present, LOAD, access)
    return top, not hit, used_fresh


@called
def _consider_prefetch(units, streams, queue, waiting, instance, level, address, missed, used_fresh):  # type: ignore[no-untyped-def]
    """Let the prefetcher of a cache look at a demand access; what it wants waits in the queue."""
    line = address >> units[instance, LINE_BITS]
    step = np.int64(0)
    if units[instance, PREFETCHER] == STRIDE:
        offset, count = units[instance, STREAM_OFFSET], units[instance, STREAMS]
        step = observe_stride(streams, offset, count, line, units[instance, LINE_BITS])
    elif wants_next_line(missed, used_fresh):
        step = np.int64(1)
    if step != 0:
        for ahead in range(1, units[instance, DEGREE] + 1):
            if line + ahead * step >= 0 and waiting < len(queue):
                queue[waiting, 0] = level
                queue[waiting, 1] = line + ahead * step
                waiting += 1
    return waiting


@called
def _start_prefetch(units, lines, counters, stack, top, instance, level, line):  # type: ignore[no-untyped-def]
    """Bring a line into a cache that nobody has asked for yet."""
    place, _, _ = _find(units, lines, instance, line)
    if place < 0:
        every = (np.int64(1) << _sector_count(units, instance)) - 1
        _count(counters, instance, PREFETCHES, 1)
        top = _push(stack, top, INSERT, level, line << units[instance, LINE_BITS], every, 0, 1)
        top = _fetch(units, counters, stack, top, instance, level, line, every, PREFETCH, 0)
    return top


@compiled
def run_events(s: State, chain: NDArray[np.int64], events: NDArray[np.uint64], count: int, grain: int) -> None:
    """Take events through all levels, one after the other."""
    units, ancestors, lines, trees, rng = s.units, s.ancestors, s.lines, s.trees, s.rng
    streams, counters, causes, stack, queue = s.streams, s.counters, s.causes, s.stack, s.queue
    dram_geometry, open_rows, dram_counts = s.dram_geometry, s.open_rows, s.dram_counts
    levels = len(chain)
    for number in range(count):
        event = events[number]
        nbytes = np.int64((event >> BYTES_SHIFT) & BYTES_MASK) + 1
        slot = np.int64((event >> ACCESS_SHIFT) & ACCESS_MASK)
        start = np.int64(event >> LINE_SHIFT) * grain
        top = _push(stack, np.int64(0), REQUEST, 0, start, nbytes, np.int64(event & KIND), slot)
        waiting = np.int64(0)
        served = np.int64(0)
        while top > 0 or served < waiting:
            if top == 0:
                level, line = queue[served, 0], queue[served, 1]
                top = _start_prefetch(units, lines, counters, stack, top, chain[level], level, line)
                served += 1
                continue
            top -= 1
            op, level, address = stack[top, OP], stack[top, LEVEL], stack[top, ADDRESS]
            first, second, third = stack[top, FIRST], stack[top, SECOND], stack[top, THIRD]
            if level == levels:
                write = second == STORE or second == WRITEBACK  # noqa: PLR1714
                dram_access(dram_geometry, open_rows, dram_counts, address, first, write)
                continue
            instance = chain[level]
            if op == INSERT:
                exclusive = level + 1 < levels and units[chain[level + 1], INCLUSION] == EXCLUSIVE
                top = _insert(units, ancestors, lines, trees, rng, counters, stack, top, instance, level, address,
                              first, second, third, exclusive)  # fmt: skip
                continue
            if second == LOAD or second == PREFETCH:  # noqa: PLR1714
                top, missed, used_fresh = _read(units, lines, trees, counters, causes, stack, top, instance, level,
                                                address, first, second, third)  # fmt: skip
            else:
                top, missed, used_fresh = _write(units, lines, trees, counters, causes, stack, top, instance, level,
                                                 address, first, second, third)  # fmt: skip
            if units[instance, PREFETCHER] != NO_PREFETCH and (second == LOAD or second == STORE):  # noqa: PLR1714
                waiting = _consider_prefetch(units, streams, queue, waiting, instance, level, address, missed, used_fresh)


@compiled
def run_nest(  # type: ignore[no-untyped-def]
    s, chain, grain, trips, strides, template, order, table, table_strides, counters, address, entry, skipped, buffer
):
    """Take the accesses of a nest through all levels."""
    shift = np.int64(0)
    while (np.int64(1) << shift) < grain:
        shift += 1
    while counters[len(trips)] != 2:
        count = fill(trips, strides, template, order, table, table_strides, counters, address, entry, skipped,
                     buffer, shift, 1, 0)  # fmt: skip
        run_events(s, chain, buffer, count, grain)


@compiled
def rehash_lines(old: NDArray[np.int64], new: NDArray[np.int64]) -> None:
    """Move the lines of an endless cache into a larger hash table."""
    mask = len(new) - 1
    for row in range(len(old)):
        if old[row, TAG] >= 0:
            spot = np.int64((np.uint64(old[row, TAG]) * _GOLDEN) >> np.uint64(2)) & mask
            while new[spot, TAG] >= 0:
                spot = (spot + 1) & mask
            new[spot] = old[row]
