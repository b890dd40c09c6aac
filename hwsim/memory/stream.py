"""StreamCaches: the state of a hierarchy of filters, and the walk of nests and event buffers through it.

Repeated passes: an inner loop that touches the same lines in the same order r times is walked a few times.
In `for j: for k: load A[k]; load B[k, j]` with B row-major, all j on one line of B make the loop over k touch exactly
the same lines. Runs on the same line (trace/walk.py) do not help: B jumps to another line in every iteration of k.

Why this is exact for lru. Let a cache receive the same sequence again and again. (1) After the first pass the order of
every set is the order of last uses, most recent first, of as many lines as fit; every further pass ends in the same
order. So the passes from the second on have the same hits and misses. (2) A line that stays through a pass keeps its
dirty bit, and gains it if the pass writes to it; a line that is fetched anew is dirty if the pass writes to it after
that. Which of the two holds is the same for all passes from the second on, so the dirty bits after the second and after
the third pass are equal. Hence the third pass starts from the same state as every later one, and what it counts and
sends down is what they do. (3) The next cache receives the same sequence from the third pass on, so by the same
argument its fifth pass stands for all later ones; level l is steady from pass 2l + 1 on. DRAM sees every pass.
(4) Most are steady sooner: the second pass stands for all later ones, and the third of the next cache, if it ends in
the state that it began with. By (1) the order is the same. Filters note each line whose dirty bit turns: one that is
modified or put in modified, one that leaves modified. Where each of these lines turns an even number of times in a
pass, all dirty bits are the same as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hwsim.jit import called, compiled, inlined
from hwsim.memory.counters import (
    BYTES_EVICTED,
    BYTES_READ,
    READ_MISSES,
    READS,
    WRITE_MISSES,
    WRITEBACKS,
    WRITES,
    CacheCounters,
    Topology,
)
from hwsim.memory.dram import Dram, drain
from hwsim.memory.filter import (
    EMPTY,
    INFINITE,
    MOST_TURNED,
    NOTED,
    OFFSET,
    POLICY,
    SETS,
    TURNED,
    TURNED_LINES,
    WAYS,
    Levels,
    pump,
    rehash,
    through,
)  # fmt: skip
from hwsim.memory.replacement import FIRST_HASH_SIZE, LRU, POLICIES
from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import MAX_ACCESSES, U0, U1, Access, Nest
from hwsim.trace.walk import (
    BUFFER_EVENTS,
    Cursor,
    begin,
    fill,
    lines_touched,
    pack_nest,
    pauses,
    share_done,
    weights_of,
)

_SHORTEST, _LONGEST = 32, 1 << 16
"""Accesses of a pass between which it is worth while."""


@dataclass(frozen=True)
class Passes:
    """A nest in which each run of the innermost loop stands for `repeats` equal ones of `length` accesses."""

    nest: Nest
    repeats: int
    length: int


def find_passes(nest: Nest, line: int) -> Passes | None:
    """The passes of a nest, if the loop around the innermost one stays on the lines of every access for a while."""
    line *= nest.per_byte
    if nest.depth < 2 or any(access.depth < nest.depth - 1 for access in nest.accesses):
        return None
    innermost = [access for access in nest.accesses if access.depth == nest.depth]
    around = nest.depth - 2
    steps = {access.strides[around] for access in nest.accesses} - {0}
    if len(steps) != 1 or not any(abs(access.strides[-1]) >= line for access in innermost):
        return None
    (step,) = steps
    repeats = line // step if 0 < step < line and line % step == 0 else 0
    length = len(innermost) * nest.trips[-1] + len(nest.accesses) - len(innermost)
    if repeats < 2 or nest.trips[around] % repeats or not _SHORTEST <= length <= _LONGEST:
        return None
    if not all(_stays(access, nest, line) for access in nest.accesses):
        return None
    trips = (*nest.trips[:around], nest.trips[around] // repeats, nest.trips[-1])
    return Passes(Nest(trips, tuple(_by_lines(access, around, repeats) for access in nest.accesses)), repeats, length)


def _stays(access: Access, nest: Nest, line: int) -> bool:
    """Whether an access never straddles a line, and begins one wherever the loop around the innermost begins."""
    around = nest.depth - 2
    if access.table is not None or line % access.nbytes:
        return False
    if access.strides[around] == 0:
        return all(number % access.nbytes == 0 for number in (access.base, *access.strides))
    others = (*access.strides[:around], *access.strides[around + 1 :])
    return access.strides[around] % access.nbytes == 0 and all(n % line == 0 for n in (access.base, *others))


def _by_lines(access: Access, around: int, repeats: int) -> Access:
    strides = list(access.strides)
    strides[around] *= repeats
    return replace(access, strides=tuple(strides))


@inlined
def _unchanged(noted):  # type: ignore[no-untyped-def]
    """Whether a level that has noted this has every dirty bit as before."""
    count = noted[TURNED]
    same = count <= MOST_TURNED
    one = U0
    while same and one < count:
        times, other = U0, U0
        while other < count:
            times += U1 if noted[TURNED_LINES + other] == noted[TURNED_LINES + one] else U0
            other += U1
        same = times & U1 == U0
        one += U1
    return same


@called
def _repeat(  # type: ignore[no-untyped-def]
    events, repeats, chain, levels, sink, grain, streams, lengths, steady, counted, noted, slots, tap, tap_level, tapped
):
    """Send the same events through all levels `repeats` times; a level that is steady is only counted.

    `steady` is the pass from which on a level does the same again and again, 0 while that is not known. The tap records
    what level `tap_level - 1` sends on, each time; returns how much it has recorded.
    """
    for level in range(len(chain)):
        steady[level] = 0
    for number in range(1, repeats + 1):
        source, length = events, np.uint64(len(events))
        since = np.int64(1)  # the pass from which on what comes from above is the same
        for level in range(len(chain)):
            if steady[level] == 0:
                instance = chain[level]
                for column in range(len(counted)):  # one by one: whole rows would allocate
                    counted[column] = U0
                for slot in range(slots):
                    noted[slot] = U0
                lengths[level] = through(source, length, streams[level], instance, counted, noted, levels)
                times = U1
                if number == 2 * level + 3 or (0 < since < number and _unchanged(noted)):
                    steady[level] = number
                    times = np.uint64(repeats - number + 1)
                for column in range(len(counted)):
                    levels.counters[instance, column] += times * counted[column]
                for slot in range(slots):
                    levels.causes[level, slot] += times * noted[slot]
            since = steady[level]
            source, length = streams[level], lengths[level]
            if level + 1 == tap_level:
                for place in range(min(np.int64(length), len(tap) - tapped)):
                    tap[tapped + place] = source[place]
                tapped += np.int64(length)
        if length:
            drain(source, np.int64(length), grain, sink.geometry, sink.open_rows, sink.counts)
    return tapped


@compiled
def walk_passes(  # type: ignore[no-untyped-def]
    trips, strides, template, order, table, table_strides, counters, address, entry, skipped,
    buffer, shift, repeats, length, chain, levels, sink, grain, streams, lengths, steady, counted, noted, slots,
    tap, tap_level, tapped, left, weights, pause,
):  # fmt: skip
    """Fill a buffer, and send each pass in it down as often as it repeats.

    Goes on with the `left` events of a pass that came before, and returns how many are left when it pauses, and how
    much the tap has recorded.
    """
    while counters[len(trips)] != 2 and share_done(counters, weights) < pause:
        filled = fill(trips, strides, template, order, table, table_strides, counters, address, entry, skipped,
                      buffer[left:], shift, 1, 0)  # fmt: skip
        total = left + filled
        at = 0
        while total - at >= length:
            one = buffer[at : at + length]
            tapped = _repeat(one, repeats, chain, levels, sink, grain, streams, lengths, steady, counted, noted, slots,
                             tap, tap_level, tapped)  # fmt: skip
            at += length
        left = total - at
        for place in range(left):
            buffer[place] = buffer[at + place]
    return left, tapped


STREAM_POLICIES = ("lru", "fifo", "random")

SETTLED = slice(BYTES_READ, BYTES_EVICTED + 1)
"""Counts that follow from the others and are added when a part of a walk is done."""

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
            causes=np.zeros((len(specs), NOTED), np.uint64),
            ping=np.zeros(0, np.uint64),
            pong=np.zeros(0, np.uint64),
        )
        self._endless = bool((geometry[:, POLICY] == INFINITE).any())
        self.tapped = 0
        self._buffer = np.zeros(0, np.uint64)
        self._make_room(BUFFER_EVENTS)

    @property
    def counters(self) -> NDArray[np.uint64]:
        return self.levels.counters

    @property
    def causes(self) -> NDArray[np.uint64]:
        return self.levels.causes[:, :MAX_ACCESSES]

    @cached_property
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

    def walk(self, nest: Nest, core: int, compress: bool) -> None:
        """Walk a nest."""
        for _ in self.walk_parts(nest, core, compress):
            pass

    def walk_parts(
        self,
        nest: Nest,
        core: int,
        compress: bool,
        parts: int = 1,
        tap: NDArray[np.uint64] | None = None,
        tap_level: int = 0,
    ) -> Iterator[Fraction]:
        """Walk a nest in about so many parts; yields how much of it is done after each, and so 1 at last.

        Between two parts other cores may walk theirs, and a user may interrupt: compiled code cannot be. A tap records
        the stream that leaves level `tap_level - 1`; `tapped` is its length so far.
        """
        chain = self.topology.chains[core]
        parts = max(parts, -(-nest.length // LONGEST_WALK))
        record = tap if tap is not None else np.zeros(0, np.uint64)
        if compress and self._all_lru(chain):
            passes = find_passes(nest, self.grain)
            if passes is not None:
                yield from self._walk_passes(passes, chain, parts, record, tap_level)
                return
        packed = pack_nest(nest, self.grain)
        cursor = begin(packed)
        sets, limit = self.run_limit(chain)
        weights = weights_of(packed.trips)
        length = 0
        self.tapped = 0
        for pause in pauses(parts):
            if cursor.share(packed.trips) >= pause:
                continue
            self._make_room(packed.buffer_events)
            self._reserve_for(nest)
            length = _walk(
                packed.trips, packed.strides, packed.template, packed.order, packed.table, packed.table_strides,
                cursor.counters, cursor.address, cursor.entry, cursor.skipped,
                self._buffer[: packed.buffer_events], packed.shift, sets, limit if compress else 0,
                chain, self.levels, self.sink, self.grain, record, tap_level, length, weights, pause,
            )  # fmt: skip
            self._count_skipped(chain, cursor)
            self.tapped = int(length)
            yield cursor.share(packed.trips)
            if cursor.done:
                break

    def _walk_passes(
        self, passes: Passes, chain: NDArray[np.int64], parts: int, tap: NDArray[np.uint64], tap_level: int
    ) -> Iterator[Fraction]:
        packed = pack_nest(passes.nest, self.grain)
        buffer = np.zeros(4 * passes.length + packed.buffer_events, np.uint64)
        cursor = begin(packed)
        accesses = passes.nest.accesses
        slots = 1 + max(number if access.slot is None else access.slot for number, access in enumerate(accesses))
        weights = weights_of(packed.trips)
        left = self.tapped = 0
        for pause in pauses(parts):
            if cursor.share(packed.trips) >= pause:
                continue
            self._make_room(len(buffer))
            self._reserve_for(passes.nest)
            left, self.tapped = walk_passes(
                packed.trips, packed.strides, packed.template, packed.order, packed.table, packed.table_strides,
                cursor.counters, cursor.address, cursor.entry, cursor.skipped,
                buffer, packed.shift, passes.repeats, passes.length,
                chain, self.levels, self.sink, self.grain,
                np.zeros((len(chain), passes.length * (len(chain) + 2)), np.uint64), np.zeros(len(chain), np.uint64),
                np.zeros(len(chain), np.int64), np.zeros(WRITEBACKS + 1, np.uint64), np.zeros(NOTED, np.uint64), slots,
                tap, tap_level, self.tapped, left, weights, pause,
            )  # fmt: skip
            yield cursor.share(packed.trips)
            if cursor.done:
                break

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
        down, up = stored_bytes, loaded_bytes
        settled = []
        for level, counted in enumerate((rows[chain] - before).tolist()):
            received = down, up
            fetches = counted[READ_MISSES] + (counted[WRITE_MISSES] if level == 0 else 0)
            up, down = fetches * self.grain, counted[WRITEBACKS] * self.grain
            settled.append((received[1], received[0], up, down))
        rows[chain, SETTLED] += np.array(settled, np.uint64)

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
        cursor.skipped[:] = 0

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
    buffer, shift, sets, limit, chain, levels, sink, grain, tap, tap_level, tapped, weights, pause,
):  # fmt: skip
    """Fill a buffer, send it down, and again until the nest is done, or as much of it as there is until `pause`."""
    depth = len(trips)
    stop = len(chain)
    while counters[depth] != 2 and share_done(counters, weights) < pause:
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
