"""How lines are used again: the sets of a cache that misses fall into, and the distances between uses.

Set pressure: which sets of a cache its misses fall into, and whether more ways or more room would help.

A miss is *cold* where its line was never there before, a *capacity* miss where a fully associative LRU cache
of the same size misses as well, and otherwise a *conflict* miss: there was room, but not in that set (Hill
and Smith, 1989). The cache is taken as LRU, write-back and write-allocate, in front of a core of its own.

Rows that crowd into few sets are visible from strides alone, before anything is simulated. Down a column, addresses are
a row apart. Where that distance is a multiple of many lines, the lines of the column come back to the same few sets; a
cache of 64 sets and 8 ways then holds far less than 512 of them.

Reuse distance: how many other lines are touched between two uses of a line. A fully associative LRU cache of n lines
hits exactly those uses whose distance is less than n (Mattson, Gecsei, Slutz and Traiger, IBM Systems Journal, 1970),
so that one histogram tells the hit rate of every size of cache at once. Distance zero is spatial locality: the
neighbour on the same line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import gcd

import numpy as np
from numpy.typing import NDArray

from hwsim.jit import compiled
from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import LINE_SHIFT, Nest, Size
from hwsim.trace.walk import begin, fill, pack_nest

MOST_LINES = 1 << 26
"""More distinct lines than this are not looked at: the tables would not fit into memory."""

COLD, CAPACITY, CONFLICT = range(3)
NOBODY = -1


@dataclass(frozen=True, eq=False)
class SetPressure:
    """Misses of one level, by set and by kind."""

    level: str
    ways: int
    accesses: int
    complete: bool
    """False where the walk stopped at its limit."""
    misses: NDArray[np.int64]
    """Per set."""
    conflicts: NDArray[np.int64]
    """Per set: those that a fully associative cache of the same size would not have."""
    lines: NDArray[np.int64]
    """Per set: distinct lines that compete for its ways."""
    cold: int
    capacity: int

    @property
    def conflict(self) -> int:
        return int(self.conflicts.sum())

    @property
    def total(self) -> int:
        return int(self.misses.sum())


def measure_set_pressure(spec: CacheSpec, nests: Iterable[Nest], limit: int = 1 << 62) -> SetPressure | None:
    """Walk nests through a level of this shape; None where sets mean nothing or there are too many lines.

    `limit` ends the walk after about so many accesses.
    """
    if spec.infinite or spec.index != "modulo":
        return None
    found = tuple(nests)
    low, high = _line_range(found, spec.line)
    if not found or high - low > MOST_LINES:
        return None
    state = _State.empty(spec, high - low)
    left = limit
    accesses = 0
    complete = True
    for nest in found:
        if left <= 0:
            complete = False
            break
        walked, done = state.walk(nest, spec, low, left)
        accesses += walked
        left -= walked
        complete = complete and done
    return state.result(spec, accesses, complete, low)


def _line_range(nests: tuple[Nest, ...], line_bytes: int) -> tuple[int, int]:
    spans = [nest.span(access) for nest in nests for access in nest.accesses]
    if not spans:
        return 0, 0
    return min(low for low, _ in spans) // line_bytes, max(high - 1 for _, high in spans) // line_bytes + 1


EVENTS = 1 << 15
"""In a buffer: enough that calls of compiled code cost little beside the code."""


@dataclass(eq=False)
class _State:
    """A set-associative and a fully associative cache side by side, both LRU."""

    tags: NDArray[np.int64]
    """Lines of each set, the most recent first."""
    newer: NDArray[np.int64]
    older: NDArray[np.int64]
    """The fully associative cache's order of use, as a ring through its lines; the last entry is its head."""
    seen: NDArray[np.bool_]
    held: NDArray[np.int64]
    """How many lines the fully associative cache holds."""
    misses: NDArray[np.int64]
    """Per set and kind."""

    @classmethod
    def empty(cls, spec: CacheSpec, lines: int) -> _State:
        ring = np.full(lines + 1, NOBODY, np.int64)
        ring[lines] = lines
        return cls(
            np.full((spec.set_count, spec.way_count), NOBODY, np.int64),
            ring,
            ring.copy(),
            np.zeros(lines, np.bool_),
            np.zeros(1, np.int64),
            np.zeros((spec.set_count, 3), np.int64),
        )

    def walk(self, nest: Nest, spec: CacheSpec, first_line: int, limit: int) -> tuple[int, bool]:
        """Accesses walked, those counted as hits of a run included, and whether that was the whole nest."""
        packed = pack_nest(nest, spec.line)
        cursor = begin(packed)
        buffer = np.zeros(max(packed.buffer_events, EVENTS), np.uint64)
        walked = 0
        while cursor.counters[-1] != 2:
            skipped = int(cursor.skipped.sum())
            if walked + skipped >= limit:
                return walked + skipped, False
            filled = fill(
                packed.trips, packed.strides, packed.template, packed.order, packed.table,
                packed.table_strides, cursor.counters, cursor.address, cursor.entry, cursor.skipped,
                buffer, packed.shift, spec.set_count, spec.way_count,
            )  # fmt: skip
            _touch(
                buffer,
                filled,
                first_line,
                self.tags,
                self.newer,
                self.older,
                self.seen,
                self.held,
                self.misses,
            )
            walked += int(filled)
        return walked + int(cursor.skipped.sum()), True

    def result(self, spec: CacheSpec, accesses: int, complete: bool, first_line: int) -> SetPressure:
        lines = np.nonzero(self.seen)[0] + first_line
        return SetPressure(
            level=spec.name,
            ways=spec.way_count,
            accesses=accesses,
            complete=complete,
            misses=self.misses.sum(axis=1),
            conflicts=self.misses[:, CONFLICT].copy(),
            lines=np.bincount(lines % spec.set_count, minlength=spec.set_count),
            cold=int(self.misses[:, COLD].sum()),
            capacity=int(self.misses[:, CAPACITY].sum()),
        )


@compiled
def _touch(
    buffer: NDArray[np.uint64],
    length: np.int64,
    first_line: np.int64,
    tags: NDArray[np.int64],
    newer: NDArray[np.int64],
    older: NDArray[np.int64],
    seen: NDArray[np.bool_],
    held: NDArray[np.int64],
    misses: NDArray[np.int64],
) -> None:
    """Send events through both caches, and sort each miss of the first by what the second says."""
    sets, ways = tags.shape
    room = sets * ways
    head = len(newer) - 1
    for number in range(length):
        line = np.int64(buffer[number] >> LINE_SHIFT)
        place = line - first_line
        full_hit = newer[place] != NOBODY
        if full_hit:
            newer[older[place]] = newer[place]
            older[newer[place]] = older[place]
        elif held[0] == room:
            victim = newer[head]  # the ring closes: after the newest line comes the oldest
            newer[head] = newer[victim]
            older[newer[victim]] = head
            newer[victim] = NOBODY
            older[victim] = NOBODY
        else:
            held[0] += 1
        newest = older[head]
        newer[newest] = place
        older[place] = newest
        newer[place] = head
        older[head] = place

        row = line % sets
        way = 0
        while way < ways and tags[row, way] != place:
            way += 1
        if way == ways:
            kind = COLD if not seen[place] else CONFLICT if full_hit else CAPACITY
            misses[row, kind] += 1
            way = ways - 1
        for older_way in range(way, 0, -1):
            tags[row, older_way] = tags[row, older_way - 1]
        tags[row, 0] = place
        seen[place] = True


FEW = 4
"""A column that finds room in less than a quarter of the sets is crowded."""


@dataclass(frozen=True)
class Crowding:
    """A tensor whose columns crowd into few sets of a level."""

    tensor: str
    level: str
    row_bytes: int
    used_sets: int
    sets: int
    ways: int
    better_row_bytes: int
    """The next row length whose columns visit every set."""

    @property
    def room_lines(self) -> int:
        """Lines of one column that stay in the cache at once."""
        return self.used_sets * self.ways


@dataclass(frozen=True)
class Pressure:
    """What was measured set by set, and which column of which tensor shows why."""

    measured: SetPressure
    assumed_lru: bool
    """Whether the cache follows another policy than the measurement."""
    crowding: Crowding | None
    column_sets: tuple[int, ...]
    """The sets that the first column of the crowding tensor falls into."""
    element_bytes: Size


def find_crowding(level: CacheSpec, row_bytes: Mapping[str, int], rows: Mapping[str, int]) -> Crowding | None:
    """The first tensor whose columns crowd, if any: `row_bytes` between its rows, `rows` of them."""
    if level.infinite or level.index != "modulo":
        return None
    for tensor, distance in row_bytes.items():
        used = sets_used(level, distance)
        if used * FEW <= level.set_count and rows[tensor] > used * level.way_count // 2:
            better = (distance // level.line + 1) | 1
            return Crowding(tensor, level.name, distance, used, level.set_count, level.way_count, better * level.line)
    return None


def sets_used(level: CacheSpec, row_bytes: int) -> int:
    """How many sets the lines of one column fall into."""
    if row_bytes % level.line or row_bytes == 0:
        return level.set_count
    return level.set_count // gcd(level.set_count, row_bytes // level.line)


# Reuse distance -------------------------------------------------------------------------------------------------------

MOST_ACCESSES = 400_000
"""A longer run is looked at as far as this."""


@dataclass(frozen=True)
class ReuseHistogram:
    """Uses of lines by distance: `counts[0]` at distance 0, `counts[k]` at 2^(k-1) up to 2^k - 1."""

    counts: tuple[int, ...]
    first_uses: int
    complete: bool
    """Whether all accesses were looked at."""

    @property
    def accesses(self) -> int:
        return sum(self.counts) + self.first_uses

    def hits(self, lines: int) -> int:
        """Uses that a fully associative LRU cache of `lines` lines, a power of two, finds."""
        return sum(self.counts[: lines.bit_length()])


def measure_reuse(nests: Iterable[Nest], line_bytes: int) -> ReuseHistogram:
    """The histogram of the first accesses of some nests."""
    addresses = (address // line_bytes for nest in nests for address, _, _ in nest.addresses())
    lines = np.fromiter(islice(addresses, MOST_ACCESSES + 1), np.int64)
    complete = len(lines) <= MOST_ACCESSES
    _, numbers = np.unique(lines[:MOST_ACCESSES], return_inverse=True)
    counts = np.zeros(64, np.int64)
    tree = np.zeros(len(numbers) + 1, np.int64)
    last = np.full(int(numbers.max(initial=-1)) + 1, -1, np.int64)
    first_uses = int(_distances(numbers.astype(np.int64), tree, last, counts))
    used = int(np.flatnonzero(counts).max(initial=-1)) + 1
    return ReuseHistogram(tuple(int(count) for count in counts[:used]), first_uses, complete)


@compiled
def _distances(
    lines: NDArray[np.int64], tree: NDArray[np.int64], last: NDArray[np.int64], counts: NDArray[np.int64]
) -> int:
    """Count into `counts`; a tree over time tells how many lines were last used after a given moment."""
    size = len(lines)
    first_uses = 0
    for now in range(size):
        before = last[lines[now]]
        if before < 0:
            first_uses += 1
        else:
            distance = 0
            i = now
            while i > 0:
                distance += tree[i]
                i -= i & -i
            i = before + 1
            while i > 0:
                distance -= tree[i]
                i -= i & -i
            bucket = 0
            while distance > 0:
                bucket += 1
                distance >>= 1
            counts[bucket] += 1
            i = before + 1
            while i <= size:
                tree[i] -= 1
                i += i & -i
        i = now + 1
        while i <= size:
            tree[i] += 1
            i += i & -i
        last[lines[now]] = now
    return first_uses
