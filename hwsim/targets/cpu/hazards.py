"""What a core waits for besides bandwidth and latency: crowded sets, pages, and sums that come back from memory.

Crowded sets. A set takes one fill at a time, so misses that fall into the same set wait for each other, however many a
cache can have outstanding. Within one window of an out-of-order core, loads of the same line share one miss; so what
counts is the distinct lines that the window touches, set by set. A column of a matrix whose rows are 4 KiB apart puts
all its lines into one set of a 32 KiB cache; padded by one line, it puts each into another. The next cache has banks,
which take turns: lines 512 bytes apart all come from one of eight.

Pages. A translation that the TLB does not hold is looked up behind it. Which pages stay is estimated from footprints.

Streams. Whether an access waits at all: a prefetcher follows neighbouring lines and short equal steps.

Sums in memory. A loop that loads, adds and stores the same elements again in its next iteration waits until each store
has been forwarded to the load: this is why short rows of C are slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import Access, Nest

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
    bank: float
    """Lines that come from the busiest bank of the next cache."""


def crowded(
    nest: Nest,
    windows: tuple[WindowLines, ...],
    misses: tuple[int, ...],
    followed: tuple[bool, ...],
    share: Fraction,
    cache: CacheSpec,
    banks: int,
    beyond: tuple[int, ...] | None = None,
) -> Fills:
    """What a window brings into a cache, and from which banks.

    A line that is written counts twice in its set, since one like it has to leave first; and once more if it is loaded
    before and the loads of the window are more than the set has ways, so that it has left when it is stored. One that
    only stores write counts twice as far as it comes from beyond the next cache, and not where a prefetcher follows.

    Given are the misses of each access in a share of a nest, whether a prefetcher follows it, and the misses that the
    next cache has as well: all, if nothing is said.
    """
    sets = cache.set_count
    loads = np.zeros((2, 2, sets))
    drawn = np.zeros(banks)
    written = {access.tensor for access in nest.accesses if access.write}
    loaded = {access.tensor for access in nest.accesses if not access.write}
    for access, window, missed, past, ahead in zip(
        nest.accesses, windows, misses, beyond or misses, followed, strict=False
    ):
        if missed:
            executed = max(1.0, float(nest.count(access) * share))
            per_line = missed / executed * window.executions / len(window.sets)
            brings = not access.write or access.tensor not in loaded
            weight = min(1.0, per_line)
            counts = [weight * np.bincount(lines, minlength=sets) for lines in (window.fresh, window.sets)]
            often = 1.0 + (brings and access.tensor in written)
            if often == 2 and access.write:
                often = 1.0 if ahead else 1 + min(1.0, past / missed)
            elif often == 2 and counts[1].max() > cache.way_count:
                often = 3.0
            loads[:, int(ahead)] += [often * count for count in counts]
            if brings:
                drawn += weight * np.bincount(window.sets % banks, minlength=banks)
    fresh, every = (_serial(jumps, streams, cache.set_hindrance) for jumps, streams in loads)
    return Fills(fresh, every, float(drawn.max()))


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


def is_stream(nest: Nest, access: Access, line_bytes: int) -> bool:
    """Whether a prefetcher can follow an access: the innermost loop that leads to another line decides.

    A run of neighbouring elements that is too short for a prefetcher counts as one piece; then the next loop decides.
    An unrolled loop has several accesses to the same tensor that move alike: its step is the distance between them.
    Nobody can follow a loop whose places are looked up in a table.
    """
    page = PAGE_BYTES * access.per_byte
    alike = (abs(other.base - access.base) for other in nest.accesses if _moves_alike(access, other))
    return _follows(nest, access, line_bytes, min(alike, default=page))


def _follows(nest: Nest, access: Access, line_bytes: int, apart: int) -> bool:
    """The same, where the next access that moves alike is known to be so far `apart`."""
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


def _moves_alike(access: Access, other: Access) -> bool:
    return other.tensor == access.tensor and other.strides == access.strides and other.base != access.base


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


# Sums in memory -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reload:
    """A sum that goes through memory: so many times, each of `links` additions with `inside` iterations between."""

    sums: int
    links: int
    inside: int


def find_reload(nest: Nest) -> Reload | None:
    """The innermost loop whose every iteration loads what the one before has stored; None without such a loop."""
    found = []
    stored = {(a.tensor, a.base, a.strides) for a in nest.accesses if a.write and a.depth == nest.depth}
    for access in nest.accesses:
        if access.write or access.table is not None or (access.tensor, access.base, access.strides) not in stored:
            continue
        for loop in reversed(range(nest.depth)):
            if access.strides[loop] == 0 and nest.trips[loop] > 1:
                found.append(Reload(prod(nest.trips[:loop]), nest.trips[loop], prod(nest.trips[loop + 1 :])))
                break
    return min(found, key=lambda reload: reload.inside, default=None)


def aliases(nest: Nest, reach: int) -> bool:
    """Whether a load of the innermost loop always lies a multiple of `reach` bytes from what the loop stores.

    A core that compares only the low bits of addresses takes it for a load of what was stored, and lets it wait.
    """
    whole = reach * nest.per_byte
    stored = [access for access in nest.accesses if access.write and access.depth == nest.depth]
    return any(
        access.tensor != store.tensor
        and (access.base - store.base) % whole == 0
        and all((here - there) % whole == 0 for here, there in zip(access.strides, store.strides, strict=True))
        for store in stored
        for access in nest.accesses
        if not access.write and access.depth == nest.depth and access.table is None
    )
