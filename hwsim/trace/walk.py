"""The compiled walk: turns a nest into a stream of events, a buffer at a time, with no trace in memory.

`fill` writes as many events as fit into a buffer and remembers in a cursor where it was. While every access of the
innermost body stays on its own line for r iterations, one iteration can stand for all r (run compression): the rest are
hits, and only counted. That is exact when the lines of the body cannot drive each other out of the first cache, which
`fill` checks against `limit`, the number of distinct lines of the body that one set may receive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from hwsim.jit import called, compiled, inlined
from hwsim.trace.event import (
    BYTES_MASK,
    BYTES_SHIFT,
    LINE_SHIFT,
    LOAD,
    STORE,
    U0,
    U1,
    U3,
    address_limit,
    event_template,
)
from hwsim.trace.nest import Access, Nest

BUFFER_EVENTS = 4096

DEPTH, AFTER, NBYTES, STRADDLES, TABLE, PAIR, PARTS = range(7)
"""Columns of `PackedNest.order`."""

SINGLE, UPDATED, UPDATER = range(3)
"""Values of PAIR: an access by itself; a load that the next access stores back to the same place; that store."""


@dataclass(frozen=True, eq=False)
class PackedNest:
    """A nest as flat arrays, its accesses sorted by depth; what the compiled walk reads."""

    trips: NDArray[np.int64]
    numbers: list[int]
    """Accesses in the order of the rows."""
    base: NDArray[np.int64]
    strides: NDArray[np.int64]
    template: NDArray[np.uint64]
    order: NDArray[np.int64]
    """A row per access: depth, after, units, whether it may straddle a line, offset of its table or -1, pair, and the
    logarithm of the units in a byte."""
    table: NDArray[np.int64]
    table_strides: NDArray[np.int64]
    buffer_events: int
    shift: int
    """From an address in the units of the nest to its line."""


@dataclass(frozen=True, eq=False)
class Cursor:
    """How far a walk has come."""

    counters: NDArray[np.int64]
    """Loop counters, then the state: 0 not begun, 1 under way, 2 done."""
    address: NDArray[np.int64]
    entry: NDArray[np.int64]
    skipped: NDArray[np.uint64]
    """Loads and stores that run compression counted as hits."""

    @property
    def done(self) -> bool:
        return bool(self.counters[-1] == 2)

    def share(self, trips: NDArray[np.int64]) -> Fraction:
        """How much of the innermost iterations lies behind it."""
        if self.done:
            return Fraction(1)
        position = 0
        for counter, trip in zip(self.counters.tolist(), trips.tolist(), strict=False):
            position = position * trip + counter
        return Fraction(position, prod(trips.tolist()))


def pack_nest(nest: Nest, grain: int) -> PackedNest:
    """Flat arrays for the walk of a nest in lines of `grain` bytes; where it has only moved by whole lines, those of
    before with other addresses."""
    bases, units = [access.base for access in nest.accesses], grain * nest.per_byte
    place = (grain, *(base % units for base in bases), *(bases.index(base) for base in bases))
    if place not in nest.packed:
        nest.packed[place] = _pack(nest, grain)
    packed: PackedNest = nest.packed[place]
    return replace(packed, base=np.array(bases, np.int64)[packed.numbers])


def _pack(nest: Nest, grain: int) -> PackedNest:
    count, depth = len(nest.accesses), max(nest.depth, 1)
    parts = nest.per_byte.bit_length() - 1
    units = grain << parts
    limit = address_limit(grain)
    # The innermost body runs in program order: what is marked "after" comes last.
    numbers = sorted(range(count), key=lambda row: (nest.accesses[row].depth, nest.accesses[row].after, row))
    accesses = [nest.accesses[number] for number in numbers]
    template, order, strides, table_strides = [], [], [], []
    tables: list[NDArray[np.int64]] = []
    offset = events = 0
    for number, access in zip(numbers, accesses, strict=True):
        low, high = nest.span(access)
        if low < 0 or high > limit:
            raise ValueError(f"an access to {low:#x} … {high:#x} lies outside 0 … {limit:#x}")
        straddles = _may_straddle(access.base, access.strides, access.nbytes, units) or access.table is not None
        table_at, entries = -1, (0,) * access.depth
        if access.table is not None:
            entries = access.table.strides
            tables.append(access.table.offsets)
            table_at, offset = offset, offset + len(access.table.offsets)
        slot = number if access.slot is None else access.slot
        template.append(event_template(STORE if access.write else LOAD, ceil(access.size), slot))
        order.append([access.depth, access.after, access.nbytes, straddles, table_at, SINGLE, parts])
        outside = (0,) * (depth - access.depth)
        strides.append(access.strides + outside)
        table_strides.append(entries + outside)
        events += access.nbytes // units + 2
    for row, (first, second) in enumerate(pairwise(accesses)):
        if _updates(first, second):
            order[row][PAIR], order[row + 1][PAIR] = UPDATED, UPDATER
    return PackedNest(
        trips=np.array(nest.trips or (1,), np.int64),  # accesses outside all loops: around one that runs once
        numbers=numbers,
        base=np.zeros(count, np.int64),
        strides=np.array(strides, np.int64).reshape(count, depth),
        template=np.array(template, np.uint64),
        order=np.array(order, np.int64).reshape(count, 7),
        table=np.concatenate(tables) if tables else np.zeros(0, np.int64),
        table_strides=np.array(table_strides, np.int64).reshape(count, depth),
        buffer_events=max(BUFFER_EVENTS, 4 * events),
        shift=units.bit_length() - 1,
    )


def _updates(first: Access, second: Access) -> bool:
    """Whether an access stores to the place that the access just before it loads."""
    same = (first.base, first.strides, first.nbytes, first.after) == (
        second.base, second.strides, second.nbytes, second.after)  # fmt: skip
    return same and second.write and not first.write and first.table is second.table is None


def begin(packed: PackedNest) -> Cursor:
    return Cursor(
        counters=np.zeros(len(packed.trips) + 1, np.int64),
        address=packed.base.copy(),
        entry=np.zeros(len(packed.base), np.int64),
        skipped=np.zeros(2, np.uint64),
    )


def weights_of(trips: NDArray[np.int64]) -> NDArray[np.float64]:
    """What share of a nest one iteration of each of its loops is: for compiled code that pauses on its way."""
    return np.asarray(1.0 / np.cumprod(trips.astype(np.float64)), np.float64)


def pauses(parts: int) -> Iterator[float]:
    """Shares of a walk at which it pauses; the last one is out of reach, so that it ends when it is done."""
    yield from (number / parts for number in range(1, parts))
    yield 2.0


def lines_touched(nest: Nest, grain: int) -> int:
    """An upper bound of the distinct lines that a nest touches."""
    total = 0
    for access in nest.accesses:
        low, high = nest.span(access)
        total += min((high - 1) // grain - low // grain + 1, nest.count(access) * (int(access.size) // grain + 2))
    return total


def _may_straddle(base: int, strides: tuple[int, ...], size: int, grain: int) -> bool:
    power_of_two = size & (size - 1) == 0
    return not (power_of_two and size <= grain and all(number % size == 0 for number in (base, *strides)))


@inlined
def share_done(counters, weights):  # type: ignore[no-untyped-def]
    """How much of a nest has been walked."""
    share = 0.0
    for loop in range(len(weights)):
        share += counters[loop] * weights[loop]
    return share


@inlined
def _emit(buffer, position, template, address, size, shift, parts):  # type: ignore[no-untyped-def]
    """One access, cut where it crosses a line."""
    line = address >> shift
    if line == (address + size - 1) >> shift:
        buffer[position] = (np.uint64(line) << LINE_SHIFT) | template
        position += 1
    else:
        position = _emit_pieces(buffer, position, template, address, address + size, shift, parts)
    return position


@called
def _emit_pieces(buffer, position, template, address, end, shift, parts):  # type: ignore[no-untyped-def]
    bare = template & ~(BYTES_MASK << BYTES_SHIFT)
    while address < end:
        line = address >> shift
        stop = min(end, (line + 1) << shift)
        piece = np.uint64((stop - address - 1) >> parts) << BYTES_SHIFT  # bytes - 1, a part of one as a whole
        buffer[position] = (np.uint64(line) << LINE_SHIFT) | bare | piece
        position += 1
        address = stop
    return position


@inlined
def _emit_depth(buffer, position, depth, after, template, order, address, entry, table, shift):  # type: ignore[no-untyped-def]
    """The accesses of one depth that lie before (or after) the deeper loops."""
    for row in range(len(template)):
        if order[row, DEPTH] == depth and order[row, AFTER] == after:
            where = address[row]
            if order[row, TABLE] >= 0:
                where += table[order[row, TABLE] + entry[row]]
            position = _emit(buffer, position, template[row], where, order[row, NBYTES], shift, order[row, PARTS])
    return position


@compiled
def fill(
    trips: NDArray[np.int64],
    strides: NDArray[np.int64],
    template: NDArray[np.uint64],
    order: NDArray[np.int64],
    table: NDArray[np.int64],
    table_strides: NDArray[np.int64],
    counters: NDArray[np.int64],
    address: NDArray[np.int64],
    entry: NDArray[np.int64],
    skipped: NDArray[np.uint64],
    buffer: NDArray[np.uint64],
    shift: np.int64,
    sets: np.int64,
    limit: np.int64,
) -> np.int64:
    """The next events of a nest, as many as the buffer holds; `limit` 0 switches run compression off."""
    depth = len(trips)
    accesses = len(template)
    slack = len(buffer) // 4
    room = len(buffer) - slack
    position: np.int64 = np.int64(0)
    # The accesses of the innermost body are the last ones: packed nests are sorted by depth.
    inner = 0
    while inner < accesses and order[inner, DEPTH] < depth:
        inner += 1
    body = accesses - inner
    last = depth - 1
    trip = trips[last]
    plain = True
    for row in range(inner, accesses):
        plain = plain and order[row, STRADDLES] == 0
    compress = plain and limit > 0 and body > 0
    for row in range(inner, accesses):
        compress = compress and abs(strides[row, last]) < (np.int64(1) << shift)
    full = _full_run(strides, inner, accesses, last, shift) if compress and body <= limit else np.int64(0)
    loads = np.uint64(0)
    for row in range(inner, accesses):
        loads += U1 - (template[row] & U1)
    stores = np.uint64(body) - loads
    # A run hands a load and the store to the same place on as one event, and counts the store as the hit that it is.
    pairs = np.int64(0)
    for row in range(inner, accesses):
        pairs += order[row, PAIR] == UPDATER
    sent = body - pairs
    # The loops inside this one begin anew; when a walk is taken up again, none do.
    loop = np.int64(-1) if counters[depth] == 0 else np.int64(last)
    counters[depth] = 1
    while counters[depth] == 1:
        for d in range(loop + 1, depth):
            position = _emit_depth(buffer, position, d, 0, template, order, address, entry, table, shift)
        if position >= room:
            return position
        done = counters[last]
        if body == 0:
            done = trip
        while done < trip and position < room:
            if compress:
                run = _run_length(address, strides, inner, accesses, last, done, trip, shift)
                runs = np.int64(1)
                if run == full:
                    runs = max(runs, min((trip - done) // full, (room - position) // sent))
                elif body > limit and not _fits(address, strides, inner, accesses, last, done, shift, sets, limit):
                    run = np.int64(1)
                first = np.uint64(position)
                for row in range(inner, accesses):
                    if order[row, PAIR] == UPDATER:
                        continue
                    line = np.uint64((address[row] + done * strides[row, last]) >> shift)
                    ahead = U1 if strides[row, last] != 0 else U0
                    head = template[row] | U3 if order[row, PAIR] == UPDATED else template[row]  # an UPDATE
                    at = first
                    for _ in range(runs):
                        buffer[at] = (line << LINE_SHIFT) | head
                        line += ahead
                        at += np.uint64(sent)
                    first += U1
                position += runs * sent
                done += runs * run
                skipped[0] += np.uint64(runs * (run - 1)) * loads
                skipped[1] += np.uint64(runs * (run - 1)) * stores + np.uint64(runs * pairs)
            elif plain:
                chunk = min(trip - done, max(1, (room - position) // body))
                for row in range(inner, accesses):
                    at = np.uint64(position + row - inner)
                    where = address[row] + done * strides[row, last]
                    step = strides[row, last]
                    head = template[row]
                    width = np.uint64(body)
                    for _ in range(chunk):
                        buffer[at] = (np.uint64(where >> shift) << LINE_SHIFT) | head
                        at += width
                        where += step
                position += chunk * body
                done += chunk
            else:
                for row in range(inner, accesses):
                    where = address[row] + done * strides[row, last]
                    if order[row, TABLE] >= 0:
                        where += table[order[row, TABLE] + entry[row] + done * table_strides[row, last]]
                    position = _emit(
                        buffer, position, template[row], where, order[row, NBYTES], shift, order[row, PARTS]
                    )
                done += 1
        counters[last] = done
        if done < trip:
            return position
        counters[last] = 0
        loop = np.int64(last)
        while loop >= 0:
            position = _emit_depth(buffer, position, loop, 1, template, order, address, entry, table, shift)
            loop -= 1
            if loop < 0:
                counters[depth] = 2
                break
            counters[loop] += 1
            if counters[loop] < trips[loop]:
                for row in range(accesses):
                    address[row] += strides[row, loop]
                    entry[row] += table_strides[row, loop]
                break
            counters[loop] = 0
            for row in range(accesses):
                address[row] -= strides[row, loop] * (trips[loop] - 1)
                entry[row] -= table_strides[row, loop] * (trips[loop] - 1)
    return position


@inlined
def _full_run(strides, inner, accesses, last, shift):  # type: ignore[no-untyped-def]
    """Iterations on one line where all accesses that move take the same step up and fill lines; otherwise 0.

    A run of this length begins a line for every access that moves: further runs are equal, one line on.
    """
    step = np.int64(0)
    equal = True
    for row in range(inner, accesses):
        if strides[row, last] != 0:
            equal = equal and (step == 0 or step == strides[row, last])  # `in` would make a tuple
            step = strides[row, last]
    size = np.int64(1) << shift
    return size // step if equal and step > 0 and size % step == 0 else np.int64(0)


@inlined
def _run_length(address, strides, inner, accesses, last, done, trip, shift):  # type: ignore[no-untyped-def]
    """For how many iterations every access of the body stays on its line."""
    run = trip - done
    size = np.int64(1) << shift
    for row in range(inner, accesses):
        step = strides[row, last]
        offset = (address[row] + done * step) & (size - 1)
        if step > 0:
            run = min(run, (size - 1 - offset) // step + 1)
        elif step < 0:
            run = min(run, offset // -step + 1)
    return run


@called
def _fits(address, strides, inner, accesses, last, done, shift, sets, limit):  # type: ignore[no-untyped-def]
    """Whether no set of the first cache receives more than `limit` distinct lines of the body."""
    for row in range(inner, accesses):
        line = (address[row] + done * strides[row, last]) >> shift
        rivals = 1
        for other in range(inner, row):
            theirs = (address[other] + done * strides[other, last]) >> shift
            new = theirs != line and theirs % sets == line % sets
            for earlier in range(inner, other):
                if (address[earlier] + done * strides[earlier, last]) >> shift == theirs:
                    new = False
            if new:
                rivals += 1
        if rivals > limit:
            return False
    return True
