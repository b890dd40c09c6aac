"""Footprint: how much a nest would miss, estimated from which lines its loops touch, without walking it.

The rule is the layer condition of stencil codes: a line that one iteration of a loop leaves in the cache is still there
in the next iteration if all that one iteration touches fits. So, from the innermost loop outwards: where one iteration
fits, the whole loop fetches each of its lines once; where it does not, every iteration misses as often as one does.
Whether it fits is asked of every set by itself, so that rows which crowd into few sets are seen.

Reuse from one nest to the next is left out, and so is which of two caches holds a line. Good enough to rank schedules,
and not a count: the exact walk is `Hierarchy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hwsim.memory.counters import CacheCounters, DramCounters, Topology
from hwsim.memory.dram import Dram
from hwsim.memory.hierarchy import Traffic
from hwsim.spec.machine import CacheSpec, DramSpec
from hwsim.trace.nest import Access, Nest

SAMPLES = 3
"""At how many places of the outer loops a footprint is looked at."""

_MANY = 1 << 12
"""Addresses from which it pays to leave out equal ones between two loops."""

MOST_LINES = 1 << 21
"""A loop that touches more is taken as one that fits nowhere."""


def estimate_misses(nest: Nest, caches: Sequence[CacheSpec]) -> list[list[float]]:
    """For each cache by itself, how many lines each access of a nest brings into it when it is cold."""
    touches = _Touches(nest)

    def misses(cache: CacheSpec) -> list[float]:
        if cache.infinite:
            return [float(n) for n in touches.counts(0, cache.line)]
        return _misses(nest, cache.line, touches, lambda loop: _fitting(nest, loop, cache, touches))

    return [misses(cache) for cache in caches]


def estimate_page_misses(nest: Nest, entries: int, page_bytes: int) -> float:
    """How many translations of pages a nest does not find among so many.

    No TLB replaces exactly the one that was used longest ago: beyond what fits, fewer and fewer stay, and none at half
    as many again.
    """
    touches = _Touches(nest)

    def fitting(loop: int) -> float:
        pages = touches.lines(loop, page_bytes)
        return 0.0 if pages is None else min(1.0, max(0.0, 3 - 2 * len(pages) / entries))

    return sum(_misses(nest, page_bytes, touches, fitting))


def _misses(nest: Nest, line: int, touches: _Touches, fitting_in: Callable[[int], float]) -> list[float]:
    misses = np.minimum(1.0, touches.counts(nest.depth, line))
    for loop in range(nest.depth - 1, -1, -1):
        fitting = fitting_in(loop + 1)
        distinct = touches.counts(loop, line)
        inside = np.array([access.depth > loop for access in nest.accesses])
        again = np.maximum(nest.trips[loop] * misses, distinct)
        misses = np.where(inside, fitting * distinct + (1 - fitting) * again, distinct)
    return [float(n) for n in misses]


def _fitting(nest: Nest, loop: int, cache: CacheSpec, touches: _Touches) -> float:
    """The share of the lines of one iteration that find room in their sets."""
    found = []
    for counters in touches.places(loop):
        lines = touches.lines(loop, cache.line, counters)
        if lines is None or len(lines) > 2 * cache.set_count * cache.way_count:
            return 0.0
        if not len(lines):
            return 1.0
        crowd = np.bincount(_sets(lines, cache), minlength=cache.set_count)
        found.append(float(crowd[crowd <= cache.way_count].sum()) / len(lines))
    return sum(found) / len(found)


def _sets(lines: NDArray[np.int64], cache: CacheSpec) -> NDArray[np.int64]:
    if cache.index == "modulo":
        return lines % cache.set_count
    bits = max(1, cache.set_count.bit_length() - 1)
    folded = lines ^ (lines >> bits) ^ (lines >> (2 * bits))
    return folded % cache.set_count


class _Touches:
    """Which lines the loops of a nest touch; asked once for all caches with lines of the same size."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self._known: dict[object, tuple[NDArray[np.int64] | None, list[NDArray[np.int64]]]] = {}
        self._counts: dict[object, NDArray[np.float64]] = {}
        self._shapes: dict[object, NDArray[np.int64] | None] = {}

    def places(self, loop: int) -> list[tuple[int, ...]]:
        """Some iterations of the loops around `loop`: the first, and others taken at random, the same every time."""
        trips = self.nest.trips[:loop]
        return list(dict.fromkeys([(0,) * loop, *_some_places(trips)]))

    def lines(self, loop: int, line: int, counters: tuple[int, ...] | None = None) -> NDArray[np.int64] | None:
        """The lines of the loops from `loop` on, each once; None where there are too many to look at."""
        return self._find(loop, line, counters or (0,) * loop)[0]

    def counts(self, loop: int, line: int) -> NDArray[np.float64]:
        """How many of the lines of the loops from `loop` on each access is the first to touch."""
        key = loop, line
        if key not in self._counts:
            self._counts[key] = self._count(loop, line)
        return self._counts[key]

    def _count(self, loop: int, line: int) -> NDArray[np.float64]:
        distinct, pieces = self._find(loop, line, (0,) * loop)
        if distinct is None:
            return np.array([float(np.prod(self.nest.trips[loop : a.depth])) for a in self.nest.accesses])
        counts = np.zeros(len(pieces))
        seen = np.zeros(len(distinct), np.bool_)
        for number, piece in enumerate(pieces):
            places = np.searchsorted(distinct, piece)
            counts[number] = len(piece) - np.count_nonzero(seen[places])
            seen[places] = True
        return counts

    def _find(
        self, loop: int, line: int, counters: tuple[int, ...]
    ) -> tuple[NDArray[np.int64] | None, list[NDArray[np.int64]]]:
        key = loop, line, counters
        if key not in self._known:
            pieces = [self._touched(access, loop, line, counters) for access in self.nest.accesses]
            found = [piece for piece in pieces if piece is not None]
            whole = _distinct(np.concatenate(found or [_NONE])) if len(found) == len(pieces) else None
            self._known[key] = whole, found
        return self._known[key]

    def _touched(self, access: Access, loop: int, line: int, counters: Sequence[int]) -> NDArray[np.int64] | None:
        """Lines of one access; of those that step alike from the same place of a line, one is looked at."""
        if access.depth < loop:
            return _NONE
        base = access.base + sum(c * s for c, s in zip(counters, access.strides, strict=False))
        if access.table is not None:
            return None if len(access.table.offsets) > MOST_LINES else np.unique((base + access.table.offsets) // line)
        first, inside = divmod(base, line)
        key = line, inside, access.nbytes, access.strides[loop:], loop
        if key not in self._shapes:
            self._shapes[key] = _stepped(self.nest.trips[loop:], access.strides[loop:], access.nbytes, line, inside)
        shape = self._shapes[key]
        return None if shape is None else shape + first


_NONE = np.zeros(0, np.int64)


@lru_cache(maxsize=1024)
def _some_places(trips: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    random = np.random.default_rng(len(trips))
    return tuple(tuple(int(random.integers(trip)) for trip in trips) for _ in range(SAMPLES - 1))


def _stepped(
    trips: Sequence[int], strides: Sequence[int], nbytes: int, line: int, inside: int
) -> NDArray[np.int64] | None:
    """Lines, counted from the first one, of an access that begins `inside` it; None where there are too many."""
    addresses = np.array([inside], np.int64)
    for trip, stride in sorted(zip(trips, strides, strict=False), key=lambda pair: -abs(pair[1])):
        if stride == 0 or trip == 1:
            continue
        steps = np.arange(trip, dtype=np.int64) * stride
        if abs(stride) < line:
            some = steps[:: max(1, line // abs(stride))]
            steps = some if some[-1] == steps[-1] else np.append(some, steps[-1])
        if len(addresses) * len(steps) > MOST_LINES:
            return None
        addresses = (addresses[:, None] + steps[None, :]).ravel()
        if len(addresses) > _MANY:
            addresses = np.unique(addresses)
    touched = addresses // line
    last = (addresses + nbytes - 1) // line
    return _distinct(np.concatenate((touched, last)) if (last != touched).any() else touched)


def _distinct(lines: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each once, in order; where they lie close together, by marking them."""
    if not len(lines):
        return lines
    low, high = int(lines.min()), int(lines.max())
    if high - low > 64 * len(lines):
        return np.unique(lines)
    marked = np.zeros(high - low + 1, np.bool_)
    marked[lines - low] = True
    return np.flatnonzero(marked) + low


class FootprintHierarchy:
    """Stands in for a Hierarchy where an estimate will do: the same counts come out, roughly."""

    model = "footprint"

    def __init__(
        self, specs: Sequence[CacheSpec], dram: DramSpec | None, *, cores: int = 1, unit: str = "core"
    ) -> None:
        self.topology = Topology.build(specs, cores, unit)
        self.dram = Dram.build(dram)
        self._levels = {spec.name: CacheCounters() for spec in specs}
        self._known: dict[object, Traffic] = {}

    def level_counters(self) -> dict[str, CacheCounters]:
        return dict(self._levels)

    def replay(self, nest: Nest, core: int = 0) -> Traffic:
        """What a nest, and those that it stands for, would move; of the same shape, the first stands for all."""
        key = (nest.trips, tuple((a.tensor, a.strides, a.nbytes, a.write) for a in nest.accesses))
        traffic = self._known.get(key)
        if traffic is None:
            traffic = self._known[key] = self._estimate(nest)
        traffic = traffic if nest.repeats == 1 else traffic * nest.repeats
        for name, counts in traffic.levels.items():
            self._levels[name] += counts
        self.dram.counts[:] += np.array(list(traffic.dram.to_dict().values()), self.dram.counts.dtype)
        return traffic

    def replay_parts(self, nest: Nest, core: int = 0, parts: int = 1, *, alone: bool = True) -> Iterator[Traffic]:
        """An estimate is one number for the whole nest: it has no parts."""
        yield self.replay(nest, core)

    def _estimate(self, nest: Nest) -> Traffic:
        executed = [float(nest.count(access)) for access in nest.accesses]
        levels: dict[str, CacheCounters] = {}
        causes: dict[str, tuple[int, ...]] = {}
        nbytes = [access.nbytes for access in nest.accesses]
        asked, line = executed, 0
        specs = self.topology.specs
        for spec, found in zip(specs, estimate_misses(nest, specs), strict=True):
            missed = [min(a, b) for a, b in zip(found, asked, strict=True)]
            written = [access.write for access in nest.accesses]
            reads = sum(n for n, write in zip(asked, written, strict=True) if not write or line)
            writes = sum(n for n, write in zip(asked, written, strict=True) if write)
            tensors = {access.tensor for access in nest.accesses if access.write}
            dirty = sum(m for m, access in zip(missed, nest.accesses, strict=True) if access.tensor in tensors)
            size = [line] * len(asked) if line else nbytes
            moved = [n * each for n, each in zip(asked, size, strict=True)]
            levels[spec.name] = CacheCounters(
                reads=round(reads),
                writes=round(writes),
                read_misses=round(sum(missed)),
                writebacks=round(dirty),
                bytes_read=round(sum(b for b, write in zip(moved, written, strict=True) if not write or line)),
                bytes_written=round(sum(b for b, write in zip(moved, written, strict=True) if write)),
                bytes_fetched=round(sum(missed)) * spec.line,
                bytes_evicted=round(dirty) * spec.line,
            )
            causes[spec.name] = tuple(round(n) for n in missed)
            asked, line = missed, spec.line
        last = list(levels.values())[-1] if levels else CacheCounters(bytes_fetched=0)
        burst = max(1, line or 64)
        reads_far, writes_far = last.bytes_fetched // burst, last.bytes_evicted // burst
        dram = DramCounters(
            reads=reads_far,
            writes=writes_far,
            bytes_read=last.bytes_fetched,
            bytes_written=last.bytes_evicted,
            row_hits=reads_far + writes_far,
        )
        return Traffic(levels, dram, causes, nest.length, nest.length)
