"""The general model of a cache hierarchy: one access goes all the way down before the next one starts.

Levels may look at each other here: an inclusive cache takes lines away from the caches inside it, an
exclusive one receives all that they give up. Also here: sectors, write-through, no-allocate, hashed sets,
every replacement policy, prefetchers, and lines that grow outwards. Plain hierarchies run through `filter.py`
several times faster, with equal counts.

An access is a small stack of operations. A request that misses pushes the insertion of its line, and on top
of it the request to the next level; so a line is put in after the next level answered, and its victim leaves
after that. Prefetches wait in a queue until the access that set them off is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hwsim.jit import called, compiled, inlined
from hwsim.memory.counters import (
    BYTES_EVICTED,
    BYTES_FETCHED,
    BYTES_READ,
    BYTES_WRITTEN,
    PREFETCH_HITS,
    PREFETCH_READS,
    PREFETCHES,
    READ_MISSES,
    READS,
    SECTOR_MISSES,
    WRITE_MISSES,
    WRITES,
    CacheCounters,
    Topology,
)
from hwsim.memory.coupled_state import (
    ADDRESS,
    ALLOCATE,
    CLOCK,
    DEGREE,
    ENDLESS,
    EXCLUSIVE,
    FIRST,
    INCLUSION,
    INCLUSIONS,
    INSERT,
    LEVEL,
    LINE_BITS,
    NO_PREFETCH,
    OFFSET,
    OP,
    POLICY,
    PREFETCH,
    PREFETCHER,
    PREFETCHERS,
    REQUEST,
    SECOND,
    SECTOR_BITS,
    SET_OFFSET,
    SETS,
    STREAM_OFFSET,
    STREAMS,
    STRIDE,
    THIRD,
    THROUGH,
    USED,
    VICTIM,
    WAYS,
    State,
    evict,
    find,
    observe_stride,
    place_of,
    push,
    sector_count,
    sectors_of,
    wants_next_line,
)
from hwsim.memory.dram import Dram, dram_access
from hwsim.memory.replacement import (
    DIRTY,
    FIRST_HASH_SIZE,
    FRESH,
    POLICIES,
    TAG,
    VALID,
    VALUE,
    hash_place,
    note_use,
    victim,
)
from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import (
    ACCESS_MASK,
    ACCESS_SHIFT,
    BYTES_MASK,
    BYTES_SHIFT,
    KIND,
    LINE_SHIFT,
    LOAD,
    MAX_ACCESSES,
    STORE,
    U1,
    WRITEBACK,
    Nest,
)
from hwsim.trace.walk import begin, fill, pack_nest


@inlined
def _fetch(units, counters, stack, top, instance, level, line, sectors, kind, access):  # type: ignore[no-untyped-def]
    """Ask the next level for sectors of a line; the lowest sector is asked for first."""
    size = np.int64(1) << units[instance, SECTOR_BITS]
    sector = sector_count(units, instance) - 1
    while sector >= 0:
        if sectors >> sector & 1:
            counters[instance, BYTES_FETCHED] += np.uint64(size)
            address = (line << units[instance, LINE_BITS]) + sector * size
            top = push(stack, top, REQUEST, level + 1, address, size, kind, access)
        sector -= 1
    return top


@inlined
def _insert(  # type: ignore[no-untyped-def]
    units, ancestors, lines, trees, rng, counters, stack, top, instance, level, line, present, modified,
    fresh, next_exclusive, place, base, tree,
):  # fmt: skip
    """Put a line (or further sectors of it) in; what has to leave for it goes on the stack.

    Returns the top of the stack and the place of the line.
    """
    if place >= 0:
        lines[place, VALID] |= present
        lines[place, DIRTY] |= modified
    else:
        ways = units[instance, WAYS]
        place = base
        while place < base + ways and lines[place, VALID]:
            place += 1
        if place == base + ways:
            place = base + victim(units[instance, POLICY], lines, trees, rng, instance, base, tree, ways)
            top = evict(units, ancestors, lines, counters, stack, top, instance, level, place, next_exclusive)
        elif lines[place, TAG] < 0:
            units[instance, USED] += 1
        lines[place, TAG] = line
        lines[place, VALID] = present
        lines[place, DIRTY] = modified
        lines[place, FRESH] = fresh
    return top, place


@inlined
def _move_up(lines, stack, top, place, sectors):  # type: ignore[no-untyped-def]
    """An exclusive cache gives sectors, modified or not, to the insertion that waits for them."""
    below = top - 1
    while below >= 0 and stack[below, OP] != INSERT:
        below -= 1
    if below >= 0:
        stack[below, SECOND] |= lines[place, DIRTY] & sectors
        lines[place, VALID] &= ~sectors
        lines[place, DIRTY] &= ~sectors


@inlined
def _request(  # type: ignore[no-untyped-def]
    units, lines, counters, causes, stack, top, instance, level, address, nbytes, kind, access, place,
):  # fmt: skip
    """A load, a store, a line (or sector) that comes down, or a prefetch of an inner level.

    Returns the top of the stack, whether it hit, and whether it was the first use of a prefetched line.
    """
    reading = kind == LOAD or kind == PREFETCH  # `in` would make a tuple
    demand = kind == LOAD or kind == STORE  # `in` would make a tuple
    sectors = sectors_of(units, instance, address, nbytes)
    present = lines[place, VALID] if place >= 0 else np.int64(0)
    # A line that comes down needs no fetch where it covers whole sectors of this level.
    whole = not reading and kind != STORE and nbytes & ((np.int64(1) << units[instance, SECTOR_BITS]) - 1) == 0
    hit = present & sectors == sectors or (whole and place >= 0)
    through, allocates = units[instance, THROUGH] != 0, units[instance, ALLOCATE] != 0
    passes = not reading and kind != VICTIM
    modified = sectors if passes and not through else np.int64(0)
    if reading:
        counters[instance, READS if kind == LOAD else PREFETCH_READS] += U1
        counters[instance, BYTES_READ] += np.uint64(nbytes)
    else:
        counters[instance, WRITES] += U1
        counters[instance, BYTES_WRITTEN] += np.uint64(nbytes)
    used_fresh = hit and demand and lines[place, FRESH] != 0
    keeps = reading and units[instance, INCLUSION] == EXCLUSIVE
    if hit:
        if used_fresh:
            counters[instance, PREFETCH_HITS] += U1
            lines[place, FRESH] = 0
        lines[place, VALID] |= sectors
        lines[place, DIRTY] |= modified
        if keeps:
            _move_up(lines, stack, top, place, sectors)
    elif kind != PREFETCH:
        counters[instance, READ_MISSES if reading else WRITE_MISSES] += U1
        if place >= 0:
            counters[instance, SECTOR_MISSES] += U1
        if demand:
            causes[level, access] += U1
    if passes and (through or not (hit or allocates)):
        counters[instance, BYTES_EVICTED] += np.uint64(nbytes)
        top = push(stack, top, REQUEST, level + 1, address, nbytes, kind, access)
    if not hit and (reading or allocates):
        missing = sectors & ~present
        if not keeps:
            top = push(stack, top, INSERT, level, address, missing if reading else sectors, modified, 0)
        if not whole:
            line = address >> units[instance, LINE_BITS]
            wanted = PREFETCH if kind == PREFETCH else LOAD
            top = _fetch(units, counters, stack, top, instance, level, line, missing, wanted, access)
    return top, hit, used_fresh


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
    place = place_of(units, lines, instance, line)
    if place < 0:
        every = (np.int64(1) << sector_count(units, instance)) - 1
        counters[instance, PREFETCHES] += U1
        top = push(stack, top, INSERT, level, line << units[instance, LINE_BITS], every, 0, 1)
        top = _fetch(units, counters, stack, top, instance, level, line, every, PREFETCH, 0)
    return top


@compiled
def run_events(s: State, chain: NDArray[np.int64], events: NDArray[np.uint64], grain: int) -> None:
    """Take events through all levels, one after the other."""
    units, ancestors, lines, trees, rng = s.units, s.ancestors, s.lines, s.trees, s.rng
    streams, counters, causes, stack, queue = s.streams, s.counters, s.causes, s.stack, s.queue
    dram_geometry, open_rows, dram_counts = s.dram_geometry, s.open_rows, s.dram_counts
    levels = len(chain)
    for event in events:
        nbytes = np.int64((event >> BYTES_SHIFT) & BYTES_MASK) + 1
        slot = np.int64((event >> ACCESS_SHIFT) & ACCESS_MASK)
        start = np.int64(event >> LINE_SHIFT) * grain
        top = push(stack, np.int64(0), REQUEST, 0, start, nbytes, np.int64(event & KIND), slot)
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
                write = second == STORE or second == WRITEBACK  # `in` would make a tuple
                dram_access(dram_geometry, open_rows, dram_counts, address, first, write)
                continue
            instance = chain[level]
            line = address >> units[instance, LINE_BITS]
            place, base, index = find(units, lines, instance, line)
            tree = units[instance, SET_OFFSET] + index
            new = op == INSERT and place < 0
            if op == INSERT:
                exclusive = level + 1 < levels and units[chain[level + 1], INCLUSION] == EXCLUSIVE
                top, place = _insert(
                    units, ancestors, lines, trees, rng, counters, stack, top, instance, level, line,
                    first, second, third, exclusive, place, base, tree,
                )  # fmt: skip
                used = True
            else:
                top, used, used_fresh = _request(
                    units, lines, counters, causes, stack, top, instance, level, address,
                    first, second, third, place,
                )  # fmt: skip
                demand = second == LOAD or second == STORE  # `in` would make a tuple
                if demand and units[instance, PREFETCHER] != NO_PREFETCH:
                    waiting = _consider_prefetch(
                        units, streams, queue, waiting, instance, level, address, not used, used_fresh
                    )
            if used:
                units[instance, CLOCK] += 1
                policy, clock, ways = units[instance, POLICY], units[instance, CLOCK], units[instance, WAYS]
                note_use(policy, lines, trees, clock, base, tree, ways, place, new)


@compiled
def rehash_lines(old: NDArray[np.int64], new: NDArray[np.int64]) -> None:
    """Move the lines of an endless cache into a larger hash table."""
    mask = len(new) - 1
    for row in range(len(old)):
        if old[row, TAG] >= 0:
            spot = np.int64(hash_place(np.uint64(old[row, TAG]), np.uint64(mask)))
            while new[spot, TAG] >= 0:
                spot = (spot + 1) & mask
            for column in range(old.shape[1]):  # a whole row at once would allocate
                new[spot, column] = old[row, column]


_FEED_EVENTS = 1 << 14
"""Divided by the lines that one event may bring: events between two looks at how full a hash table is."""
_STACK_ROWS = 1024
_QUEUE_ROWS = 1024


class CoupledCaches:
    """All cache instances of a machine whose levels may look at each other."""

    def __init__(self, topology: Topology, dram: Dram, seed: int) -> None:
        self.topology = topology
        self.dram = dram
        self.grain = topology.grain
        count = len(topology.instances)
        rows = []
        places = sets = streams = 0
        for instance in topology.instances:
            spec = topology.specs[instance.level]
            rows.append(_geometry(spec, instance.level, places, sets, streams))
            places += rows[-1][SETS] * rows[-1][WAYS]
            sets += 1 if spec.infinite else spec.set_count
            streams += spec.prefetch.streams
        ancestors = np.zeros((count, len(topology.specs)), np.int64)
        for chain in topology.chains:
            for instance_number in chain:
                ancestors[instance_number] = chain
        self.state = State(
            units=np.array(rows, np.int64),
            ancestors=ancestors,
            lines=_free_ways(places),
            trees=np.zeros(sets, np.int64),
            rng=topology.random_seeds(seed),
            streams=np.tile(np.array([-1, 0, 0, 0], np.int64), (streams, 1)),
            counters=np.zeros((count, CacheCounters.width()), np.uint64),
            causes=np.zeros((len(topology.specs), MAX_ACCESSES), np.uint64),
            stack=np.zeros((_STACK_ROWS, 6), np.int64),
            queue=np.zeros((_QUEUE_ROWS, 2), np.int64),
            dram_geometry=dram.geometry,
            open_rows=dram.open_rows,
            dram_counts=dram.counts,
        )

    @property
    def counters(self) -> NDArray[np.uint64]:
        return self.state.counters

    @property
    def causes(self) -> NDArray[np.uint64]:
        return self.state.causes

    def walk(self, nest: Nest, core: int) -> None:
        """Walk a nest."""
        for _ in self.walk_parts(nest, core):
            pass

    def walk_parts(self, nest: Nest, core: int, parts: int = 1) -> Iterator[Fraction]:
        """Walk a nest in about so many parts; yields how much of it is done after each, and so 1 at last."""
        packed = pack_nest(nest, self.grain)
        cursor = begin(packed)
        buffer = np.zeros(packed.buffer_events, np.uint64)
        pause, share = 1, Fraction(0)
        while not cursor.done:
            count = fill(
                packed.trips, packed.strides, packed.template, packed.order, packed.table,
                packed.table_strides, cursor.counters, cursor.address, cursor.entry, cursor.skipped,
                buffer, packed.shift, 1, 0,
            )  # fmt: skip
            self.feed(buffer[:count], core)
            share = cursor.share(packed.trips)
            if pause < parts and share * parts >= pause and not cursor.done:
                pause = int(share * parts) + 1
                yield share
        yield share

    def settle(self, core: int, before: NDArray[np.uint64], loaded_bytes: int, stored_bytes: int) -> None:
        """Packed elements: what the first level gave to the core and took from it, by bits and not event by event."""
        chain = self.topology.chains[core]
        if len(chain):
            self.state.counters[chain[0], BYTES_READ] = before[0, BYTES_READ] + np.uint64(loaded_bytes)
            self.state.counters[chain[0], BYTES_WRITTEN] = before[0, BYTES_WRITTEN] + np.uint64(stored_bytes)

    def feed(self, events: NDArray[np.uint64], core: int) -> None:
        chain = self.topology.chains[core]
        endless = np.flatnonzero(self.state.units[:, ENDLESS])
        piece = _FEED_EVENTS // self._most_lines if len(endless) else max(1, len(events))
        for start in range(0, len(events), piece):
            for number in endless:
                self._reserve(int(number), piece * self._most_lines)
            run_events(self.state, chain, events[start : start + piece], self.grain)

    @property
    def _most_lines(self) -> int:
        """How many lines one event may bring into a cache: its own and what every prefetcher adds, and each of
        these drives a line down from every level above."""
        degrees = sum(spec.prefetch.degree for spec in self.topology.specs if spec.prefetch.kind != "none")
        return (1 + degrees) * (1 + len(self.topology.specs))

    def _reserve(self, instance: int, lines: int) -> None:
        """Keep the hash table of an endless cache at most half full when so many lines arrive."""
        needed = 2 * (int(self.state.units[instance, USED]) + lines)
        if needed > self.state.units[instance, SETS]:
            self._grow(instance, 1 << (needed - 1).bit_length())

    def contents(self, instance: int) -> list[list[tuple[int, bool]]]:
        """The lines of each set with their dirty bit, those of the highest value first."""
        offset, sets, ways = (int(self.state.units[instance, column]) for column in (OFFSET, SETS, WAYS))
        places = self.state.lines[offset : offset + sets * ways]
        if self.state.units[instance, ENDLESS]:
            held = places[places[:, VALID] != 0]
            return [sorted((int(row[TAG]), bool(row[DIRTY])) for row in held)]
        groups = []
        for first in range(0, sets * ways, ways):
            group = [row for row in places[first : first + ways] if row[VALID]]
            group.sort(key=lambda row: -int(row[VALUE]))
            groups.append([(int(row[TAG]), bool(row[DIRTY])) for row in group])
        return groups

    def _grow(self, instance: int, size: int) -> None:
        """Give an infinite instance a larger hash table."""
        units, lines = self.state.units, self.state.lines
        start, end = int(units[instance, OFFSET]), int(units[instance, OFFSET] + units[instance, SETS])
        larger = _free_ways(size)
        rehash_lines(lines[start:end], larger)
        units[instance, SETS] = size
        units[instance + 1 :, OFFSET] += size - (end - start)
        self.state = self.state._replace(lines=np.concatenate([lines[:start], larger, lines[end:]]))


def _free_ways(count: int) -> NDArray[np.int64]:
    lines = np.zeros((count, 5), np.int64)
    lines[:, TAG] = -1
    return lines


def _geometry(spec: CacheSpec, level: int, places: int, sets: int, streams: int) -> list[int]:
    """The row of one instance, in the order of the columns of coupled_state.py."""
    set_count, ways = (FIRST_HASH_SIZE, 1) if spec.infinite else (spec.set_count, spec.way_count)
    return [
        places, sets, set_count, ways, POLICIES[spec.replacement],
        spec.line.bit_length() - 1, spec.sector_bytes.bit_length() - 1,
        spec.write == "through", spec.write_allocate, INCLUSIONS[spec.inclusion],
        max(1, set_count.bit_length() - 1) if spec.index == "xor" else 0,
        PREFETCHERS[spec.prefetch.kind], spec.prefetch.degree, spec.prefetch.streams, streams,
        level, spec.infinite, 0, 0,
    ]  # fmt: skip
