"""What a core waits for because its caches miss: streams and jumps, crowded sets, short runs, and pages.

Crowded sets. A set takes one fill at a time, so misses that fall into the same set wait for each other, however many a
cache can have outstanding. Within one window of an out-of-order core, loads of the same line share one miss; so what
counts is the distinct lines that the window touches, set by set. A column of a matrix whose rows are 4 KiB apart puts
all its lines into one set of a 32 KiB cache; padded by one line, it puts each into another.

Pages. A translation that the TLB does not hold is looked up behind it. Which pages stay is estimated from footprints.

Streams. Whether an access waits at all: a prefetcher follows neighbouring lines and short equal steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from math import lcm, prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hwsim.memory.footprint import estimate_page_misses
from hwsim.spec.machine import CacheSpec
from hwsim.targets.cpu.tally import ZERO, Chunk, CostPart, Cycles
from hwsim.trace.nest import Access, Nest, Work

if TYPE_CHECKING:
    from hwsim.memory.hierarchy import Traffic
    from hwsim.targets.cpu.model import CpuCore

MOST_KNOWN = 4096
"""Shapes of nests about which something is remembered."""
PARTS = 1 << 20
"""Times that are estimated count in parts of a cycle."""
MOST_EXECUTIONS = 4096
"""Executions of one access that are looked at; no window holds as many."""


@dataclass(frozen=True, eq=False)
class WindowLines:
    """The lines that one access touches while a window passes, as the sets that they fall into: of loads each once."""

    executions: int
    sets: NDArray[np.int64]
    fresh: NDArray[np.int64]
    """Those which are not there yet when the window begins: what the window before has used last still is."""


def can_crowd(cache: CacheSpec) -> bool:
    """Whether lines can crowd into few sets: there are several, and a line's low bits choose its own."""
    return not cache.infinite and cache.ways != "full" and cache.index == "modulo" and cache.set_count > 1


def window_lines(nest: Nest, missed: Sequence[bool], iterations: int, cache: CacheSpec) -> tuple[WindowLines, ...]:
    """What each access touches in so many iterations of the innermost loop, once the nest is under way.

    Loads of one window are under way together: lines that are there when it begins are found, although lines that come
    meanwhile drive them out. Of nine lines in a set of eight ways, a loop over them all brings in one in each window.
    """
    rows = [_lines(nest, access, iterations, cache) for access in nest.accesses]
    twice = [row for row, late in zip(rows, missed, strict=True) if late and len(row[1]) > row[2]]
    resident = _resident(twice, cache)
    found = []
    for access, (_, lines, executions) in zip(nest.accesses, rows, strict=True):
        second = lines[-executions:]
        # Stores are done one after the other, as the program has them: each needs its line, if it has left meanwhile.
        used = second if access.write else _each_once(second)
        fresh = used if access.write else used[np.array([line not in resident for line in used.tolist()], np.bool_)]
        found.append(WindowLines(executions, used % cache.set_count, fresh % cache.set_count))
    return tuple(found)


def _lines(
    nest: Nest, access: Access, iterations: int, cache: CacheSpec
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """When an access is executed in two windows, the lines that it touches, and how often that is in one of them."""
    deeper, count = prod(nest.trips[access.depth :]), nest.count(access)
    executions = max(1, min(iterations // deeper, MOST_EXECUTIONS, count))
    both = 2 * executions if count >= 2 * executions else executions
    addresses = access.base + _offsets(both, nest.trips[: access.depth], access.strides)
    if access.table is not None:
        addresses += access.table.offsets[_offsets(both, nest.trips[: access.depth], access.table.strides)]
    return np.arange(both) * deeper, addresses // (cache.line * access.per_byte), executions


def _resident(rows: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], int]], cache: CacheSpec) -> set[int]:
    """The lines that the first of two windows leaves in a cache: in each set those used last."""
    if not rows:
        return set()
    times = np.concatenate([when[:executions] for when, _, executions in rows])
    lines = np.concatenate([lines[:executions] for _, lines, executions in rows])
    left: dict[int, list[int]] = {}
    for line in dict.fromkeys(lines[np.argsort(times, kind="stable")][::-1].tolist()):
        left.setdefault(line % cache.set_count, []).append(line)
    return {line for found in left.values() for line in found[: cache.way_count]}


def _each_once(lines: NDArray[np.int64]) -> NDArray[np.int64]:
    """As `np.unique`, which imports masked arrays for it."""
    ordered = np.sort(lines)
    new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new]


@lru_cache(maxsize=256)
def _offsets(executions: int, trips: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[np.int64]:
    """How far the first executions of an access lie from its base; for all accesses that move alike."""
    number = np.arange(executions, dtype=np.int64)
    offsets = np.zeros(executions, np.int64)
    for trip, stride in zip(reversed(trips), reversed(strides), strict=True):
        number, counter = np.divmod(number, trip)
        offsets += counter * stride
    offsets.flags.writeable = False
    return offsets


@dataclass(frozen=True)
class Fills:
    """Fills in one window, as many as would take the same time in one set, the first one left out."""

    fresh: float
    """Those that the window finds missing."""
    every: float
    """All, as if nothing were there."""


def crowded(
    nest: Nest,
    windows: tuple[WindowLines, ...],
    misses: tuple[int, ...],
    followed: tuple[bool, ...],
    share: Fraction,
    cache: CacheSpec,
    beyond: tuple[int, ...] | None = None,
) -> Fills:
    """What a window brings into a cache, in fills of a set.

    Before a line that is written comes, one like it has to leave, which takes as long: if only stores write it, as far
    as lines come from beyond the next cache, and not where a prefetcher follows. A line that is loaded and then stored
    has left meanwhile where loads bring more lines than ways into a set: all of this happens twice.

    Given are the misses of each access in a share of a nest, whether a prefetcher follows it, and the misses that the
    next cache has as well: all, if nothing is said.
    """
    sets = cache.set_count
    found = np.zeros((2, 2, sets))
    written = {access.tensor for access in nest.accesses if access.write}
    loaded = {access.tensor for access in nest.accesses if not access.write}
    brought = []
    for access, window, missed, past, ahead in zip(
        nest.accesses, windows, misses, beyond or misses, followed, strict=False
    ):
        if missed:
            executed = max(1.0, float(nest.count(access) * share))
            weight = min(1.0, missed / executed * window.executions / len(window.sets))
            counts = [weight * np.bincount(lines, minlength=sets) for lines in (window.fresh, window.sets)]
            brought.append((access, past / missed, ahead, counts))
    in_sets = sum((counts[1] for access, *_, counts in brought if not access.write), start=np.zeros(sets))
    for access, past_share, ahead, counts in brought:
        each = 1.0
        if access.write and access.tensor not in loaded and not ahead:
            each += min(1.0, past_share)
        elif not access.write and access.tensor in written:
            each = 4.0 if in_sets.max() > cache.way_count else 2.0
        found[:, int(ahead)] += [each * count for count in counts]
    fresh, every = (_serial(jumps, streams, cache.set_hindrance) for jumps, streams in found)
    return Fills(fresh, every)


def _serial(jumps: NDArray[np.float64], streams: NDArray[np.float64], hindrance: float) -> float:
    """Fills of several sets at the same time hinder each other, if no prefetcher spaces them."""
    most = float(jumps.max())
    spread = min(hindrance, float(jumps.sum()) / most) if most else 1.0
    return max(0.0, most * spread + float(streams.max()) - 1)


# Streams --------------------------------------------------------------------------------------------------------------

STREAM_LINES = 2
"""Neighbouring lines in a row from which a prefetcher runs ahead."""
STREAM_STEPS = 4
"""Equal steps within a page from which it follows jumps."""
PAGE_BYTES = 4096
"""No prefetcher steps over the border of a page."""


def _follows(nest: Nest, access: Access, line_bytes: int, apart: int) -> bool:
    """Whether a prefetcher can follow an access: the innermost loop that leads to another line decides.

    A run of neighbouring elements that is too short for a prefetcher counts as one piece; then the next loop decides.
    An unrolled loop has several accesses to the same tensor that move alike: its step is how far `apart` they are.
    Nobody can follow a loop whose places are looked up in a table.
    """
    line, page = line_bytes * access.per_byte, PAGE_BYTES * access.per_byte
    looked_up = access.table.strides if access.table is not None else (0,) * access.depth
    loops = zip(nest.trips[: access.depth], access.strides, looked_up, strict=True)
    for trip, stride, entries in reversed(tuple(loops)):
        if entries and trip > 1:
            return False
        if stride == 0 or trip == 1:
            continue
        if abs(stride) > line:
            return min(abs(stride), max(apart, line)) * STREAM_STEPS <= page
        if trip * abs(stride) >= STREAM_LINES * line:
            return True
    return True


def followed(nest: Nest, line_bytes: int) -> tuple[bool, ...]:
    """Which accesses of a nest a prefetcher can follow; of nests that lie alike, asked once."""
    firsts: dict[str, int] = {}
    places = tuple((a.tensor, a.base - firsts.setdefault(a.tensor, a.base), a.strides) for a in nest.accesses)
    if any(access.table is not None for access in nest.accesses):  # large: not kept beyond its run
        return _followed.__wrapped__(_Alike(nest, places), line_bytes)
    return _followed(_Alike(nest, places), line_bytes)


class _Alike:
    """A nest that stands for all that are the same up to where they begin."""

    def __init__(self, nest: Nest, places: tuple[tuple[str, int, tuple[int, ...]], ...]) -> None:
        self.nest = nest
        self.key = nest.trips, nest.per_byte, places

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alike) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@lru_cache(maxsize=1024)
def _followed(alike: _Alike, line_bytes: int) -> tuple[bool, ...]:
    nest = alike.nest
    bases: dict[tuple[str, tuple[int, ...]], set[int]] = {}
    for access in nest.accesses:
        bases.setdefault((access.tensor, access.strides), set()).add(access.base)
    nearest = {key: _distances(sorted(found)) for key, found in bases.items()}
    page = PAGE_BYTES * nest.per_byte
    return tuple(
        _follows(nest, access, line_bytes, nearest[access.tensor, access.strides].get(access.base, page))
        for access in nest.accesses
    )


def _distances(bases: Sequence[int]) -> dict[int, int]:
    """From each of several places, in order, to the nearest other one."""
    found: dict[int, int] = {}
    for low, high in pairwise(bases):
        found[low] = min(found.get(low, high - low), high - low)
        found[high] = high - low
    return found


def run_bytes(nest: Nest, access: Access) -> int:
    """How far an access goes on from one element to the next before it jumps, in bytes."""
    run = 0
    for trip, stride in reversed(tuple(zip(nest.trips[: access.depth], access.strides, strict=True))):
        if trip > 1 and stride:
            if run and abs(stride) > run:
                break
            run = max(run, trip * abs(stride))
    return run // access.per_byte


def burst(nest: Nest, jumps: tuple[Access, ...], accesses: Fraction) -> Fraction:
    """Misses for each access of a nest while jumps miss one after the other, in a window of so many accesses.

    A loop that jumps finds all of its lines or none: a column of a matrix is missed as a whole, and then its lines are
    there for the columns beside it. Such misses overlap as if every jump missed, up to the length of the loop.
    """
    found = Fraction(0)
    for access in jumps:
        loops = zip(nest.trips[: access.depth], access.strides, strict=True)
        trip = next((trip for trip, stride in reversed(tuple(loops)) if trip > 1 and stride), 1)
        rate = Fraction(nest.count(access), max(1, nest.length))
        found += min(rate, trip / max(accesses, Fraction(1)))
    return found


# What all of it takes -------------------------------------------------------------------------------------------------

SHORT_RUN = "short run"
"""Lines from far away in runs that end before a prefetcher has found out about them."""


@dataclass(frozen=True)
class Misses:
    """Misses of one level: how many, and how many of them are outstanding at once."""

    counts: tuple[tuple[int, Fraction], ...]

    def cycles(self, latency: Cycles, *, first: bool) -> Cycles:
        """Latency of the next level over the misses that are outstanding at once.

        Nothing overlaps with the first miss of a step, so a step that begins with misses takes the latency at least.
        """
        total = sum((count * latency / parallel for count, parallel in self.counts), ZERO)
        return max(total, latency) if total and first else total

    @property
    def ahead(self) -> Fraction:
        """The share of them that can be under way before the first instruction that needs one is reached.

        These are as many as are outstanding at once: what the MSHRs hold of a stream that a prefetcher follows, and as
        far as the window reaches of jumps.
        """
        if not self.counts:
            return ZERO
        held = max(min(Fraction(count), parallel) for count, parallel in self.counts)
        return held / sum(count for count, _ in self.counts)


@dataclass(frozen=True)
class Late:
    """What the misses of a cache take at the level behind it."""

    cycles: Cycles
    """Latency over what is outstanding at once."""
    fresh: Cycles
    every: Cycles
    """Fills of the busiest set that follow each other: of lines that are not there yet, and of all."""
    ahead: Fraction
    """The share that can be under way before it is needed."""


def _short_lines(inner: CacheSpec, nests: Sequence[Nest], missed: Sequence[tuple[int, ...]]) -> int:
    """Lines that a cache misses in streams shorter than a page."""
    lines = 0
    for nest, row in zip(nests, missed, strict=True):
        for access, misses, stream in zip(nest.accesses, row, followed(nest, inner.line), strict=False):
            if misses and stream and not access.write and run_bytes(nest, access) < PAGE_BYTES:
                lines += misses
    return lines


class MissCosts:
    """What the misses of a core's caches take beside the bytes that they move."""

    def __init__(self, core: CpuCore) -> None:
        self.core = core
        self._windows: dict[object, tuple[WindowLines, ...]] = {}
        self._pages: dict[object, float] = {}

    def lie(self, nest: Nest, moved: Traffic) -> tuple[object, ...]:
        """What tells nests apart: the same loops, moved to other places, are the same if all accesses to a tensor have
        moved alike, and those that miss begin in the same sets. As long as one of them lives."""
        firsts: dict[str, int] = {}
        places = [access.base - firsts.setdefault(access.tensor, access.base) for access in nest.accesses]
        names, way = self._crowding
        rows = [moved.misses[name] for name in names]
        sets = [
            access.base % (way * nest.per_byte)
            for number, access in enumerate(nest.accesses)
            if any(row[number] for row in rows)
        ]
        return id(nest.packed), *places, *sets

    @cached_property
    def _crowding(self) -> tuple[tuple[str, ...], int]:
        """The caches in which lines can crowd, and the bytes after which the sets of all of them begin anew."""
        found = [cache for n, cache in enumerate(self.core.caches) if self.set_refill(n) and can_crowd(cache)]
        return tuple(cache.name for cache in found), lcm(*(cache.set_count * cache.line for cache in found))

    def late(self, number: int, work: Work, chunk: Chunk, alike: Sequence[object]) -> Late:
        """What the misses of the cache before a level take; equal ones are asked for again and again."""
        inner = self.core.caches[number - 1]
        rows = [each.misses[inner.name] for each in chunk.traffic]
        first = not chunk.begin
        key = number, work, first, chunk.executions, *alike, *rows

        def find() -> Late:
            misses = self._misses(inner, work, chunk)
            cycles = misses.cycles(self.core.latency_cycles(self.core.levels[number]), first=first)
            return Late(cycles, *self._refill(number - 1, work, chunk), misses.ahead)

        return self.core.once(key, chunk, find)

    def page_cycles(self, chunk: Chunk) -> Cycles:
        """Translations that the TLB does not hold, looked up one after the other."""
        tlb = self.core.unit.tlb
        if tlb is None:
            return ZERO
        missed = 0.0
        for nest, moved in zip(chunk.nests, chunk.traffic, strict=True):
            key = nest.trips, tuple(access.strides for access in nest.accesses)
            if key not in self._pages:
                if len(self._pages) >= MOST_KNOWN:
                    self._pages.clear()
                self._pages[key] = estimate_page_misses(nest, tlb.entries, tlb.page)
            missed += self._pages[key] * moved.accesses / max(1, nest.length)
        return Fraction(round(missed * tlb.miss * PARTS), PARTS)

    def short_runs(self, chunk: Chunk, alike: Sequence[object], hidden: Cycles) -> CostPart:
        """How long the core waits for lines that come from behind the second cache in runs shorter than a page.

        The window hides what the second cache takes, and a prefetcher what comes in a long stream; it finds out about a
        short one when most of it has passed. Instructions and such lines add up; operations that wait for each other
        hide them.
        """
        cycles = ZERO
        if self.core.unit.overlap == "full":
            for inner, level in zip(self.core.caches[1:], self.core.levels[2:], strict=False):
                rows = [each.misses[inner.name] for each in chunk.traffic]
                lines = self.core.once(
                    (inner.name, *alike, *rows), chunk, partial(_short_lines, inner, chunk.nests, rows)
                )
                cycles = max(cycles, self.core.over(lines * inner.line, self.core.read_rate(level)))
        return CostPart(SHORT_RUN, max(ZERO, cycles - hidden))

    def _refill(self, number: int, work: Work, chunk: Chunk) -> tuple[Cycles, Cycles]:
        """How long the busiest set of a cache is being filled: its fills follow each other. With the lines that are
        there, and as if none were.

        Loads wait in a queue, those of one line together. When it is full, the core waits until the lines have come,
        and then goes on: fills and instructions add up, unless even without the lines that are there, fills take less.
        """
        cache, refill = self.core.caches[number], self.set_refill(number)
        if not refill or not can_crowd(cache):
            return ZERO, ZERO
        fresh = every = ZERO
        for nest, moved in zip(chunk.nests, chunk.traffic, strict=True):
            missed = moved.misses[cache.name]
            if not any(missed):
                continue
            share = Fraction(moved.accesses, nest.length)
            ahead = followed(nest, cache.line)
            iterations = self._waiting(work, chunk, nest, missed, ahead, share)
            windows = self._windows_of(nest, tuple(map(bool, missed[: len(nest.accesses)])), iterations, cache)
            often = prod(nest.trips) * share / iterations
            beyond = missed if cache is self.core.caches[-1] else moved.misses[self.core.caches[number + 1].name]
            fills = crowded(nest, windows, missed, ahead, share, cache, beyond)
            fresh += Fraction(round(fills.fresh * PARTS), PARTS) * often
            every += Fraction(round(fills.every * PARTS), PARTS) * often
        return fresh * refill, every * refill

    def _waiting(
        self, work: Work, chunk: Chunk, nest: Nest, missed: Sequence[int], ahead: Sequence[bool], share: Fraction
    ) -> int:
        """Iterations of the innermost loop whose loads wait together: what is in flight, and as many misses as wait."""
        iterations = self.core.in_flight(work) / self.core.per_iteration(work, chunk)
        rows = zip(nest.accesses, missed, ahead, strict=False)
        jumps = sum(count for access, count, stream in rows if not stream and not access.write)
        if self.core.unit.waiting_loads and jumps:
            iterations = min(iterations, self.core.unit.waiting_loads * prod(nest.trips) * share / jumps)
        return max(1, int(iterations))

    def set_refill(self, number: int) -> Cycles:
        """How long a fill keeps the next one of its set waiting, in the cache of this number; zero if it does not."""
        cache = self.core.caches[number]
        if cache.set_refill is not None:
            return cache.set_refill.seconds(self.core.clock_of(cache)) * self.core.clock_hz
        if number or len(self.core.caches) == 1:  # what main memory sends waits in the MSHRs, not in front of its set
            return ZERO
        return max(ZERO, self.core.latency_cycles(self.core.levels[1]) - self.core.latency_cycles(cache))

    def _windows_of(
        self, nest: Nest, missed: tuple[bool, ...], iterations: int, cache: CacheSpec
    ) -> tuple[WindowLines, ...]:
        """The lines that each access touches in one window; of nests that lie alike in the sets, asked once."""
        way = cache.set_count * cache.line * nest.per_byte
        places = tuple((access.base % way, access.strides, id(access.table)) for access in nest.accesses)
        key = cache.name, iterations, nest.trips, places, missed
        known = self._windows.get(key)
        if known is None:
            if len(self._windows) >= MOST_KNOWN:
                self._windows.clear()
            known = self._windows[key] = window_lines(nest, missed, iterations, cache)
        return known

    def _misses(self, inner: CacheSpec, work: Work, chunk: Chunk) -> Misses:
        """The misses of a level that are waited for, in streams and in jumps, and how many are outstanding at once.

        A store that goes on to the next level without bringing its line in is sent off and not waited for.
        """
        spread = Fraction(max(work.instructions.total, 1), max(1, chunk.executions))
        window = self.core.in_flight(work)
        found = []
        for nest, moved in zip(chunk.nests, chunk.traffic, strict=True):
            waited = [
                (access, misses, stream)
                for access, misses, stream in zip(
                    nest.accesses, moved.misses[inner.name], followed(nest, inner.line), strict=False
                )
                if misses and (inner.write_allocate or not access.write)
            ]
            streamed = sum(misses for _, misses, stream in waited if stream)
            jumping = sum(misses for _, misses, stream in waited if not stream)
            if streamed:
                found.append((streamed, self._followed(inner)))
            if jumping:
                looked_up = any(access.table is not None for access in nest.accesses)
                jumps = tuple(access for access, _, stream in waited if not stream)
                reach = max(Fraction(jumping, max(1, moved.accesses)), burst(nest, jumps, window / spread))
                found.append((jumping, self._parallel(inner, window / spread * reach, looked_up)))
        return Misses(tuple(found))

    def _followed(self, inner: CacheSpec) -> Fraction:
        """How many misses of a stream overlap: what the caches on the way allow, but for the first, which prefetchers
        pass by."""
        nearer = self.core.caches[1 : self.core.caches.index(inner) + 1] or (inner,)
        return Fraction(min(self.core.mshrs(level) for level in nearer))

    def _parallel(self, inner: CacheSpec, reach: Fraction, looked_up: bool) -> Fraction:
        """How many jumps overlap: what the caches allow, and as many as the window reaches.

        Where the machine says how many of equal steps overlap, a prefetcher follows these as far as that.
        """
        nearer = self.core.caches[: self.core.caches.index(inner) + 1]
        outstanding = Fraction(min(self.core.mshrs(level) for level in nearer))
        if inner.strided_misses is not None and self.core.unit.window > 1:
            strided = min(outstanding, Fraction(inner.strided_misses))
            return max(Fraction(1), min(strided, reach)) if looked_up else strided
        return max(Fraction(1), min(outstanding, reach))
