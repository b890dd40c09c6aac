"""CoupledCaches: the state of a general hierarchy, and the walk of nests and event buffers through it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwsim.hardware.counters import BYTES_READ, BYTES_WRITTEN, CacheCounters
from hwsim.hardware.coupled_state import ENDLESS, INCLUSIONS, OFFSET, SETS, USED, WAYS, State
from hwsim.hardware.coupled_walk import rehash_lines, run_events
from hwsim.hardware.dram import Dram
from hwsim.hardware.endless import FIRST_HASH_SIZE
from hwsim.hardware.prefetch import PREFETCHERS
from hwsim.hardware.replacement import DIRTY, POLICIES, TAG, VALID, VALUE
from hwsim.hardware.topology import Topology
from hwsim.spec.memory import CacheSpec
from hwsim.trace.nest import MAX_ACCESSES, Nest
from hwsim.trace.walk import begin, fill, pack_nest

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
        packed = pack_nest(nest, self.grain)
        cursor = begin(packed)
        buffer = np.zeros(packed.buffer_events, np.uint64)
        while not cursor.done:
            count = fill(
                packed.trips, packed.strides, packed.template, packed.order, packed.table,
                packed.table_strides, cursor.counters, cursor.address, cursor.entry, cursor.skipped,
                buffer, packed.shift, 1, 0,
            )  # fmt: skip
            self.feed(buffer[:count], core)

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
