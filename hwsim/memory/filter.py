"""The fast model of a cache hierarchy: each level is a filter that makes a stream of events shorter.

A write-back, write-allocate cache that is neither inclusive nor exclusive never looks at another level: it
takes the stream of the level above, and hands misses and modified victims on. So a buffer of events can go
through one level after the other, each a tight loop. What needs more (inclusion, sectors, prefetching,
write-through, …) is in `coupled.py`.

The state of a set is its lines, `line << 1 | dirty`, most recent first (lru), newest first (fifo), or in
place (random). On a miss the fill is requested first and the modified victim leaves after it; a whole line
that comes down and misses is put in without a fetch. An update counts as a load and modifies the line.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hwsim.jit import called, compiled, inlined
from hwsim.memory.counters import READ_MISSES, READS, WRITE_MISSES, WRITEBACKS, WRITES
from hwsim.memory.replacement import FIFO, LRU, hash_place, next_random
from hwsim.trace.nest import ACCESS_MASK, ACCESS_SHIFT, KIND, LINE_SHIFT, MAX_ACCESSES, U0, U1, U2

INFINITE = 5
"""Stands beside the codes of the replacement policies: a cache from which nothing ever leaves."""

OFFSET, SETS, WAYS, POLICY = range(4)
"""Columns of the geometry table: place of the first set in `tags`, number of sets and ways, policy."""

TURNED, TURNED_LINES, MOST_TURNED = MAX_ACCESSES, np.uint64(MAX_ACCESSES + 1), np.uint64(8)
NOTED = MAX_ACCESSES + 9
"""After the misses by access, a row of causes has how often dirty bits turned in the last buffer of events, and the
lines of which they were, as many as there is room for: see stream.py."""

EMPTY = np.uint64(0xFFFF_FFFF_FFFF_FFFE)
_EIGHT, _SIXTEEN = np.uint64(8), np.uint64(16)


@inlined
def _base(line, sets, ways):  # type: ignore[no-untyped-def]
    """Where the set of a line begins; a mask is much faster than a division."""
    index = line & (sets - U1) if sets & (sets - U1) == U0 else line % sets
    return index * ways


@inlined
def _hand_on(event, old, out, count, causes):  # type: ignore[no-untyped-def]
    """Ask the next level for a line, unless all of it came down from above; then send a modified victim down.

    Both are always written, and the place moves on only where they count: cheaper than a branch that fails to
    be foreseen.
    """
    wanted = U1 - ((event >> U1) & ~event & U1)
    causes[(event >> ACCESS_SHIFT) & ACCESS_MASK] += wanted
    out[count] = event & ~KIND
    count += wanted
    out[count] = ((old >> U1) << LINE_SHIFT) | U2
    return count + (old & U1)


@inlined
def _note(causes, turned, line):  # type: ignore[no-untyped-def]
    """The dirty bit of a line turns."""
    if turned < MOST_TURNED:
        causes[TURNED_LINES + turned] = line
    return turned + U1


@inlined
def _add(counters, events, writes, misses, write_misses, writebacks):  # type: ignore[no-untyped-def]
    counters[READS] += events - writes
    counters[WRITES] += writes
    counters[READ_MISSES] += misses - write_misses
    counters[WRITE_MISSES] += write_misses
    counters[WRITEBACKS] += writebacks


@inlined
def _lru(events, length, out, tags, sets, ways, counters, causes):  # type: ignore[no-untyped-def]
    writes, misses, write_misses, writebacks = U0, U0, U0, U0
    count, turned = U0, U0
    for number in range(length):
        event = events[number]
        line = event >> LINE_SHIFT
        dirty = (event | event >> U1) & U1
        write = ((event & KIND) + U1) >> U1 & U1
        writes += write
        base = _base(line, sets, ways)
        carried = tags[base]
        if carried >> U1 == line:
            if dirty & ~carried:
                tags[base] = carried | dirty
                turned = _note(causes, turned, line)
            continue
        # One pass: carry the way before along, so that a hit or a miss leaves the set already shifted.
        hit = False
        place = base + U1
        end = base + ways
        while place < end:
            current = tags[place]
            tags[place] = carried
            carried = current
            if current >> U1 == line:
                hit = True
                break
            place += U1
        if hit:
            tags[base] = carried | dirty
            if dirty & ~carried:
                turned = _note(causes, turned, line)
            continue
        tags[base] = (line << U1) | dirty
        misses += U1
        write_misses += write
        writebacks += carried & U1
        if dirty:
            turned = _note(causes, turned, line)
        if carried & U1:
            turned = _note(causes, turned, carried >> U1)
        count = _hand_on(event, carried, out, count, causes)
    causes[TURNED] = turned
    _add(counters, length, writes, misses, write_misses, writebacks)
    return count


@called
def lru_filter(
    events: NDArray[np.uint64],
    length: np.uint64,
    out: NDArray[np.uint64],
    tags: NDArray[np.uint64],
    sets: np.uint64,
    ways: np.uint64,
    counters: NDArray[np.uint64],
    causes: NDArray[np.uint64],
) -> np.uint64:
    """A level that gives up the line used longest ago; for 8 and 16 ways the search is unrolled."""
    count: np.uint64
    if ways == _EIGHT:
        count = _lru(events, length, out, tags, sets, _EIGHT, counters, causes)
    elif ways == _SIXTEEN:
        count = _lru(events, length, out, tags, sets, _SIXTEEN, counters, causes)
    else:
        count = _lru(events, length, out, tags, sets, ways, counters, causes)
    return count


@called
def fifo_filter(
    events: NDArray[np.uint64],
    length: np.uint64,
    out: NDArray[np.uint64],
    tags: NDArray[np.uint64],
    sets: np.uint64,
    ways: np.uint64,
    counters: NDArray[np.uint64],
    causes: NDArray[np.uint64],
) -> np.uint64:
    """A level that gives up the line that came first."""
    writes, misses, write_misses, writebacks = U0, U0, U0, U0
    count = U0
    for number in range(length):
        event = events[number]
        line = event >> LINE_SHIFT
        dirty = (event | event >> U1) & U1
        write = ((event & KIND) + U1) >> U1 & U1
        writes += write
        base = _base(line, sets, ways)
        place: np.uint64 = base
        end = base + ways
        while place < end and tags[place] >> U1 != line:
            place += U1
        if place < end:
            tags[place] |= dirty
            continue
        place -= U1
        old = tags[place]
        while place > base:
            tags[place] = tags[place - U1]
            place -= U1
        tags[base] = (line << U1) | dirty
        misses += U1
        write_misses += write
        writebacks += old & U1
        count = _hand_on(event, old, out, count, causes)
    _add(counters, length, writes, misses, write_misses, writebacks)
    return count


@called
def random_filter(
    events: NDArray[np.uint64],
    length: np.uint64,
    out: NDArray[np.uint64],
    tags: NDArray[np.uint64],
    sets: np.uint64,
    ways: np.uint64,
    rng: NDArray[np.uint64],
    instance: int,
    counters: NDArray[np.uint64],
    causes: NDArray[np.uint64],
) -> np.uint64:
    """A level that gives up a random way once a set is full."""
    writes, misses, write_misses, writebacks = U0, U0, U0, U0
    count = U0
    for number in range(length):
        event = events[number]
        line = event >> LINE_SHIFT
        dirty = (event | event >> U1) & U1
        write = ((event & KIND) + U1) >> U1 & U1
        writes += write
        base = _base(line, sets, ways)
        place = base
        end = base + ways
        while place < end and tags[place] >> U1 != line:
            place += U1
        if place < end:
            tags[place] |= dirty
            continue
        chosen = U0
        if tags[base + ways - U1] == EMPTY:
            while tags[base + chosen] != EMPTY:
                chosen += U1
        else:
            chosen = next_random(rng, instance) % ways
        old = tags[base + chosen]
        tags[base + chosen] = (line << U1) | dirty
        misses += U1
        write_misses += write
        writebacks += old & U1
        count = _hand_on(event, old, out, count, causes)
    _add(counters, length, writes, misses, write_misses, writebacks)
    return count


@called
def infinite_filter(
    events: NDArray[np.uint64],
    length: np.uint64,
    out: NDArray[np.uint64],
    tags: NDArray[np.uint64],
    counters: NDArray[np.uint64],
    causes: NDArray[np.uint64],
) -> np.uint64:
    """A level that keeps everything: a hash table of the lines seen. Its owner keeps it at most half full."""
    mask = np.uint64(len(tags)) - U1
    writes, misses, write_misses, writebacks = U0, U0, U0, U0
    count, turned = U0, U0
    for number in range(length):
        event = events[number]
        line = event >> LINE_SHIFT
        dirty = (event | event >> U1) & U1
        write = ((event & KIND) + U1) >> U1 & U1
        writes += write
        place = hash_place(line, mask)
        while tags[place] != EMPTY and tags[place] >> U1 != line:
            place = (place + U1) & mask
        if tags[place] != EMPTY:
            if dirty & ~tags[place]:
                tags[place] |= dirty
                turned = _note(causes, turned, line)
            continue
        tags[place] = (line << U1) | dirty
        misses += U1
        if dirty:
            turned = _note(causes, turned, line)
        write_misses += write
        count = _hand_on(event, U0, out, count, causes)
    causes[TURNED] = turned
    _add(counters, length, writes, misses, write_misses, writebacks)
    return count


class Levels(NamedTuple):
    """The state of all caches of a hierarchy, and room for the streams between them."""

    geometry: NDArray[np.uint64]
    """A row per instance; columns OFFSET, SETS, WAYS, POLICY."""
    tags: NDArray[np.uint64]
    rng: NDArray[np.uint64]
    counters: NDArray[np.uint64]
    """A row per instance; columns as in counters.py."""
    causes: NDArray[np.uint64]
    """Misses by level of the chain and by access of the nest; then TURNED and TURNED_LINES."""
    ping: NDArray[np.uint64]
    pong: NDArray[np.uint64]
    """The stream that leaves level l lies in `ping` where l is even, in `pong` where it is odd."""


@inlined
def through(source, length, target, instance, counters, causes, levels):  # type: ignore[no-untyped-def]
    """Send events through one cache; what leaves it is written to `target`. Returns how many events that are."""
    offset, sets = levels.geometry[instance, OFFSET], levels.geometry[instance, SETS]
    ways, policy = levels.geometry[instance, WAYS], levels.geometry[instance, POLICY]
    own = levels.tags[offset : offset + sets * ways]
    if policy == np.uint64(LRU):
        length = lru_filter(source, length, target, own, sets, ways, counters, causes)
    elif policy == np.uint64(FIFO):
        length = fifo_filter(source, length, target, own, sets, ways, counters, causes)
    elif policy == np.uint64(INFINITE):
        length = infinite_filter(source, length, target, own, counters, causes)
    else:
        length = random_filter(source, length, target, own, sets, ways, levels.rng, instance, counters, causes)
    return length


@called
def pump(
    events: NDArray[np.uint64], length: np.uint64, first: int, stop: int, chain: NDArray[np.int64], levels: Levels
) -> np.uint64:
    """Send a buffer of events through the levels `first … stop` of a chain; returns how many come out."""
    source = events
    for level in range(first, stop):
        target = levels.ping if level % 2 == 0 else levels.pong
        instance = chain[level]
        length = through(source, length, target, instance, levels.counters[instance], levels.causes[level], levels)
        source = target
    return length


@compiled
def rehash(old: NDArray[np.uint64], new: NDArray[np.uint64]) -> None:
    """Move the lines of an infinite level into a larger table."""
    mask = np.uint64(len(new)) - U1
    for tag in old:
        if tag != EMPTY:
            place = hash_place(tag >> U1, mask)
            while new[place] != EMPTY:
                place = (place + U1) & mask
            new[place] = tag
