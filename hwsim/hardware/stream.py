"""StreamCaches: the state of a hierarchy of filters, and the walk of nests and event buffers through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hwsim.hardware.counters import (
    BYTES_EVICTED,
    BYTES_FETCHED,
    BYTES_READ,
    BYTES_WRITTEN,
    READ_MISSES,
    READS,
    WRITE_MISSES,
    WRITEBACKS,
    WRITES,
    CacheCounters,
)
from hwsim.hardware.dram import Dram, drain
from hwsim.hardware.endless import FIRST_HASH_SIZE
from hwsim.hardware.filter import (
    EMPTY,
    INFINITE,
    OFFSET,
    POLICY,
    SETS,
    WAYS,
    Levels,
    pump,
    rehash,
)
from hwsim.hardware.passes import Passes, find_passes, walk_passes
from hwsim.hardware.replacement import LRU, POLICIES
from hwsim.hardware.topology import Topology
from hwsim.jit import compiled
from hwsim.spec.memory import CacheSpec
from hwsim.trace.nest import MAX_ACCESSES, Nest, numbered, pieces
from hwsim.trace.walk import BUFFER_EVENTS, Cursor, begin, fill, lines_touched, pack_nest

STREAM_POLICIES = ("lru", "fifo", "random")

LONGEST_WALK = 1 << 27
"""Accesses that are walked in one go: about a second."""


class Sink(NamedTuple):
    """Main memory, for compiled code."""

    geometry: NDArray[np.int64]
    open_rows: NDArray[np.int64]
    counts: NDArray[np.uint64]


def can_stream(specs: Sequence[CacheSpec]) -> bool:
    """Whether every level is a plain filter: see filter.py."""
    return all(
        spec.replacement in STREAM_POLICIES
        and spec.write == "back"
        and spec.write_allocate
        and spec.inclusion == "none"
        and spec.index == "modulo"
        and spec.prefetch.kind == "none"
        and spec.sector_bytes == spec.line == specs[0].line
        for spec in specs
    )


class StreamCaches:
    """All cache instances of a machine whose levels do not look at each other."""

    def __init__(self, topology: Topology, dram: Dram, seed: int) -> None:
        self.topology = topology
        self.dram = dram
        self.grain = topology.grain
        specs = topology.specs
        count = len(topology.instances)
        geometry = np.zeros((count, 4), np.uint64)
        offset = 0
        for number, instance in enumerate(topology.instances):
            spec = specs[instance.level]
            if spec.infinite:
                row = (offset, FIRST_HASH_SIZE, 1, INFINITE)
            else:
                row = (offset, spec.set_count, spec.way_count, POLICIES[spec.replacement])
            geometry[number] = row
            offset += row[1] * row[2]
        self.levels = Levels(
            geometry=geometry,
            tags=np.full(offset, EMPTY, np.uint64),
            rng=topology.random_seeds(seed),
            counters=np.zeros((count, CacheCounters.width()), np.uint64),
            causes=np.zeros((len(specs), MAX_ACCESSES), np.uint64),
            ping=np.zeros(0, np.uint64),
            pong=np.zeros(0, np.uint64),
        )
        self._endless = bool((geometry[:, POLICY] == INFINITE).any())
        self._buffer = np.zeros(0, np.uint64)
        self._make_room(BUFFER_EVENTS)

    @property
    def counters(self) -> NDArray[np.uint64]:
        return self.levels.counters

    @property
    def causes(self) -> NDArray[np.uint64]:
        return self.levels.causes

    @property
    def sink(self) -> Sink:
        return Sink(self.dram.geometry, self.dram.open_rows, self.dram.counts)

    def run_limit(self, chain: NDArray[np.int64]) -> tuple[int, int]:
        """Sets of the first level, and how many distinct lines of a loop body one of them may receive.

        An lru set keeps them all while there are no more than ways; under other policies a line is safe only
        where no other line of the body shares its set.
        """
        if not len(chain):
            return 1, 0
        first = self.levels.geometry[chain[0]]
        if first[POLICY] == INFINITE:
            return 1, MAX_ACCESSES
        return int(first[SETS]), int(first[WAYS]) if first[POLICY] == LRU else 1

    def walk_pieces(self, nest: Nest, core: int, compress: bool) -> None:
        """Walk a nest, a long one in pieces: compiled code cannot be interrupted, but between two pieces a user can."""
        if nest.length <= LONGEST_WALK:
            self.walk(nest, core, compress)
            return
        for piece in pieces(numbered(nest), LONGEST_WALK):
            self.walk(piece, core, compress)

    def walk(
        self, nest: Nest, core: int, compress: bool, tap: NDArray[np.uint64] | None = None, tap_level: int = 0
    ) -> int:
        """Walk a nest; a tap records the stream that leaves level `tap_level - 1`. Returns its length."""
        chain = self.topology.chains[core]
        if compress and tap_level == 0 and self._all_lru(chain):
            passes = find_passes(nest, self.grain)
            if passes is not None:
                self._walk_passes(passes, chain)
                return 0
        packed = pack_nest(nest, self.grain)
        self._make_room(packed.buffer_events)
        self._reserve_for(nest)
        cursor = begin(packed)
        sets, limit = self.run_limit(chain)
        record = tap if tap is not None else np.zeros(0, np.uint64)
        length = _walk(
            packed.trips, packed.strides, packed.template, packed.order, packed.table, packed.table_strides,
            cursor.counters, cursor.address, cursor.entry, cursor.skipped,
            self._buffer[: packed.buffer_events], packed.shift, sets, limit if compress else 0,
            chain, self.levels, self.sink, self.grain, record, tap_level,
        )  # fmt: skip
        self._count_skipped(chain, cursor)
        return int(length)

    def _walk_passes(self, passes: Passes, chain: NDArray[np.int64]) -> None:
        packed = pack_nest(passes.nest, self.grain)
        room = 4 * passes.length + packed.buffer_events
        self._make_room(room)
        self._reserve_for(passes.nest)
        cursor = begin(packed)
        columns = CacheCounters.width() + MAX_ACCESSES
        walk_passes(
            packed.trips, packed.strides, packed.template, packed.order, packed.table, packed.table_strides,
            cursor.counters, cursor.address, cursor.entry, cursor.skipped,
            self._buffer[:room], packed.shift, passes.repeats, passes.length,
            chain, self.levels, self.sink, self.grain,
            np.zeros((len(chain), passes.length * (len(chain) + 2)), np.uint64), np.zeros(len(chain), np.uint64),
            np.zeros(columns, np.uint64), np.zeros((len(chain), columns), np.uint64),
        )  # fmt: skip

    def _all_lru(self, chain: NDArray[np.int64]) -> bool:
        return len(chain) > 0 and all(self.levels.geometry[i][POLICY] in (LRU, INFINITE) for i in chain)

    def feed(self, events: NDArray[np.uint64], core: int) -> None:
        """Send a buffer of events through a core's chain."""
        chain = self.topology.chains[core]
        self._make_room(len(events))
        self.reserve(len(events))
        _feed(events, chain, self.levels, self.sink, self.grain)

    def settle(self, core: int, before: NDArray[np.uint64], loaded_bytes: int, stored_bytes: int) -> None:
        """Count the bytes of a replay, which follow from its events: levels exchange whole lines."""
        chain = self.topology.chains[core]
        if not len(chain):
            return
        rows = self.levels.counters
        moved = (rows[chain] - before).astype(np.int64)
        down, up = stored_bytes, loaded_bytes
        for level, instance in enumerate(chain):
            rows[instance, BYTES_READ] += np.uint64(up)
            rows[instance, BYTES_WRITTEN] += np.uint64(down)
            fetches = moved[level, READ_MISSES] + (moved[level, WRITE_MISSES] if level == 0 else 0)
            up, down = int(fetches) * self.grain, int(moved[level, WRITEBACKS]) * self.grain
            rows[instance, BYTES_FETCHED] += np.uint64(up)
            rows[instance, BYTES_EVICTED] += np.uint64(down)

    def event_buffer(self) -> NDArray[np.uint64]:
        """Room for a buffer of events on their way to the levels."""
        return self._buffer

    def reserve(self, lines: int) -> None:
        """Keep the hash table of every infinite level at most half full when `lines` more lines arrive."""
        geometry = self.levels.geometry
        if not self._endless:
            return
        parts = []
        for row in geometry:
            old = self.levels.tags[int(row[OFFSET]) : int(row[OFFSET] + row[SETS] * row[WAYS])]
            if row[POLICY] == INFINITE:
                needed = 2 * (int((old != EMPTY).sum()) + lines)
                if needed > len(old):
                    new = np.full(1 << (needed - 1).bit_length(), EMPTY, np.uint64)
                    rehash(old, new)
                    old = new
                row[SETS] = len(old)
            parts.append(old)
        geometry[:, OFFSET] = np.cumsum([0, *(len(part) for part in parts[:-1])])
        self.levels = self.levels._replace(tags=np.concatenate(parts))

    def _reserve_for(self, nest: Nest) -> None:
        if self._endless:
            self.reserve(lines_touched(nest, self.grain))

    def contents(self, instance: int) -> list[list[tuple[int, bool]]]:
        """The lines of each set with their dirty bit, in the order of the policy."""
        offset, sets, ways, policy = (int(number) for number in self.levels.geometry[instance])
        tags = [int(tag) for tag in self.levels.tags[offset : offset + sets * ways]]
        if policy == INFINITE:
            return [sorted((tag >> 1, bool(tag & 1)) for tag in tags if tag != EMPTY)]
        rows = [tags[number * ways : (number + 1) * ways] for number in range(sets)]
        return [[(tag >> 1, bool(tag & 1)) for tag in row if tag != EMPTY] for row in rows]

    def _count_skipped(self, chain: NDArray[np.int64], cursor: Cursor) -> None:
        if len(chain):
            self.levels.counters[chain[0], READS] += cursor.skipped[0]
            self.levels.counters[chain[0], WRITES] += cursor.skipped[1]

    def _make_room(self, events: int) -> None:
        """Buffers for a stream of `events`, which may grow by one line sent down per level."""
        if len(self._buffer) >= events:
            return
        room = events * (len(self.topology.specs) + 2)
        self._buffer = np.zeros(events, np.uint64)
        self.levels = self.levels._replace(ping=np.zeros(room, np.uint64), pong=np.zeros(room, np.uint64))


@compiled
def _walk(  # type: ignore[no-untyped-def]
    trips, strides, template, order, table, table_strides, counters, address, entry, skipped,
    buffer, shift, sets, limit, chain, levels, sink, grain, tap, tap_level,
):  # fmt: skip
    """Fill a buffer, send it down, and again until the nest is done."""
    depth = len(trips)
    stop = len(chain)
    tapped = np.int64(0)
    while counters[depth] != 2:
        filled = fill(
            trips, strides, template, order, table, table_strides, counters, address, entry, skipped,
            buffer, shift, sets, limit,
        )  # fmt: skip
        length = np.uint64(filled)
        source = buffer
        if tap_level > 0:
            length = pump(buffer, length, np.int64(0), tap_level, chain, levels)
            source = levels.ping if tap_level % 2 == 1 else levels.pong
            for number in range(np.int64(length)):
                if tapped + number < len(tap):
                    tap[tapped + number] = source[number]
            tapped += np.int64(length)
        length = pump(source, length, tap_level, stop, chain, levels)
        if stop > tap_level:
            source = levels.ping if stop % 2 == 1 else levels.pong
        drain(source, np.int64(length), grain, sink.geometry, sink.open_rows, sink.counts)
    return tapped


@compiled
def _feed(events, chain, levels, sink, grain):  # type: ignore[no-untyped-def]
    stop = len(chain)
    length = pump(events, np.uint64(len(events)), np.int64(0), stop, chain, levels)
    source = events
    if stop > 0:
        source = levels.ping if stop % 2 == 1 else levels.pong
    drain(source, np.int64(length), grain, sink.geometry, sink.open_rows, sink.counts)
