"""Warping: skip whole periods of an outer loop once the caches repeat up to a shift of addresses. Exact.

After Morelli and Reineke (PLDI 2022). lru and fifo see only which lines are equal and which set they fall into. Let one
period of the outer loop shift the accesses to tensor r by q_r lines, all q_r equal modulo the number of sets of every
level. If the state after a period is the state before it with every line of tensor r moved by q_r (in the set moved as
well, at the same place of the queue, with the same dirty bit), then every further period does the same again: its
counts are those of the last one, and its state the last one shifted once more. docs/explanation/memory.md has the
argument.

The levels behind the warped ones (a large shared cache) have long periods of their own. They are not skipped: the
stream that the last walked period sent to them is replayed, shifted, once for every period left out. Where all
caches are warped, that stream goes to DRAM, whose rows repeat after a round of periods (row_period.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, gcd, lcm

import numpy as np
from numpy.typing import NDArray

from hwsim.jit import compiled, inlined
from hwsim.memory.dram import drain
from hwsim.memory.filter import EMPTY, INFINITE, OFFSET, POLICY, SETS, WAYS, pump
from hwsim.memory.replacement import RANDOM
from hwsim.memory.row_period import RowRounds, find_rounds
from hwsim.memory.stream import SETTLED, StreamCaches
from hwsim.trace.nest import LINE_SHIFT, U1, Access, Nest, peel_outer, slice_outer
from hwsim.trace.walk import BUFFER_EVENTS

_WORTH_A_LOOK = 1 << 20
"""Accesses in one iteration of a loop, from which it pays to look for a period in the loops inside it."""
_MOST_RECORDED = 1 << 25
"""Events of one period that are kept to be replayed behind the warped levels (256 MiB)."""


@dataclass(frozen=True, eq=False)
class Period:
    """After how many iterations the outermost loop repeats, and by how many lines tensors have moved then."""

    iterations: int
    levels: int
    """How many levels, from the first, are warped."""
    first: NDArray[np.int64]
    end: NDArray[np.int64]
    moved: NDArray[np.int64]
    """A tensor's lines are `first … end`; one period moves them by `moved`."""


Progress = Iterator[tuple[Fraction, int]]
"""How much of a nest is done, 1 at last, and how many accesses were skipped since it was last asked."""


def replay_warped(
    caches: StreamCaches, nest: Nest, core: int, compress: bool, parts: int = 1, *, alone: bool = True
) -> Progress:
    """Walk a nest in about so many parts, skipping what repeats.

    Where other cores are at work between two parts, only what is one part is looked at: a period holds only while
    nobody else touches the caches.
    """
    if not nest.accesses or nest.depth == 0:
        yield from _plainly(caches, nest, core, compress, parts)
        return
    if any(access.depth == 0 for access in nest.accesses):
        wrapped = Nest((1, *nest.trips), tuple(_inside_one_more(access) for access in nest.accesses))
        yield from _one_by_one(caches, peel_outer(wrapped), core, compress, parts, alone=alone)
        return
    period = find_period(caches, nest, core) if alone or parts == 1 else None
    if period is not None:
        warped = _warp(caches, nest, core, compress, period, parts)
        if alone:
            yield from warped
        else:
            yield Fraction(1), sum(skipped for _, skipped in warped)
        return
    inside = slice_outer(nest, 0, 1)
    if inside.length >= _WORTH_A_LOOK and any(_has_period(caches, part, core) for part in peel_outer(inside)):
        iterations = (
            part for iteration in range(nest.trips[0]) for part in peel_outer(slice_outer(nest, iteration, 1))
        )
        yield from _one_by_one(caches, iterations, core, compress, parts, nest.length, alone=alone)
        return
    yield from _plainly(caches, nest, core, compress, parts)


def _plainly(caches: StreamCaches, nest: Nest, core: int, compress: bool, parts: int) -> Progress:
    for share in caches.walk_parts(nest, core, compress, parts):
        yield share, 0


def _one_by_one(
    caches: StreamCaches,
    nests: Iterable[Nest],
    core: int,
    compress: bool,
    parts: int,
    length: int | None = None,
    *,
    alone: bool,
) -> Progress:
    """Nests that together are one of `length` accesses; paused where a part of it has gone by."""
    if length is None:
        nests = tuple(nests)
        length = sum(nest.length for nest in nests)
    done, skipped, pause = Fraction(0), 0, 1
    for nest in nests:
        weight = Fraction(nest.length, length)
        for share, more in replay_warped(caches, nest, core, compress, ceil(parts * weight), alone=alone):
            skipped += more
            now = done + weight * share
            if now < 1 and now * parts >= pause:
                yield now, skipped
                skipped, pause = 0, int(now * parts) + 1
        done += weight
    yield Fraction(1), skipped


def find_period(caches: StreamCaches, nest: Nest, core: int) -> Period | None:
    """The shortest period of the outermost loop that is worth skipping; None where there is none."""
    tensors = _tensors(nest, caches.grain)
    if tensors is None or any(access.table is not None for access in nest.accesses):
        return None
    trips, per_iteration = nest.trips[0], nest.length // nest.trips[0]
    line = caches.grain * nest.per_byte
    geometry = [caches.levels.geometry[instance] for instance in caches.topology.chains[core]]
    usable = 0
    while usable < len(geometry) and geometry[usable][POLICY] not in (RANDOM, INFINITE):
        usable += 1
    for levels in range(usable, 0, -1):
        sets = lcm(*(int(row[SETS]) for row in geometry[:levels]))
        iterations = _period_of([step for _, _, step in tensors], line, sets)
        lines = sum(int(row[SETS] * row[WAYS]) for row in geometry[:levels])
        iterations *= ceil(4 * lines / (iterations * per_iteration))
        if iterations * (8 if levels > 1 else 3) <= trips:
            return Period(
                iterations,
                levels,
                np.array([low for low, _, _ in tensors], np.int64),
                np.array([high for _, high, _ in tensors], np.int64),
                np.array([iterations * step // line for _, _, step in tensors], np.int64),
            )
    return None


def _period_of(steps: list[int], line: int, sets: int) -> int:
    """Iterations until every tensor has moved by whole lines, and all by the same number modulo the sets."""
    whole = lcm(*(line // gcd(line, step) for step in steps))
    moved = [whole * step // line for step in steps]
    return whole * lcm(*(sets // gcd(sets, other - moved[0]) for other in moved))


def _tensors(nest: Nest, line: int) -> list[tuple[int, int, int]] | None:
    """Ranges of lines that accesses have in common, with the units that one outer iteration moves them by.

    None where accesses to the same lines move by different steps.
    """
    ranges = []
    for access in nest.accesses:
        low, high = nest.span(access)
        ranges.append((low // line, (high - 1) // line + 1, access.strides[0]))
    merged: list[tuple[int, int, int]] = []
    for low, high, step in sorted(ranges):
        if merged and low < merged[-1][1]:
            if step != merged[-1][2]:
                return None
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]), step)
        else:
            merged.append((low, high, step))
    return merged


def _has_period(caches: StreamCaches, nest: Nest, core: int) -> bool:
    return nest.depth > 0 and not any(a.depth == 0 for a in nest.accesses) and bool(find_period(caches, nest, core))


def _inside_one_more(access: Access) -> Access:
    return replace(access, strides=(0, *access.strides))


def _warp(caches: StreamCaches, nest: Nest, core: int, compress: bool, period: Period, parts: int) -> Progress:
    """Walk period by period until the state repeats, then skip as many whole periods as are left."""
    trips, step = nest.trips[0], period.iterations
    chain = caches.topology.chains[core]
    warped = chain[: period.levels]
    behind = period.levels < len(chain) or len(caches.dram.open_rows) > 0
    tap = np.zeros(0, np.uint64)
    profile: list[tuple[Fraction, _Counted, int]] = []
    """Of the last period walked: how far it was, what was counted, and how much was recorded, at each pause."""
    one = step * (nest.length // trips)
    done = 0

    def walked(count: int, tapped: int) -> Iterator[tuple[Fraction, int]]:
        """Iterations from `done` on; the tap records what the first `tapped` levels send on."""
        some = slice_outer(nest, done, count)
        walk = caches.walk_parts(some, core, compress, ceil(Fraction(parts * count, trips)), tap, tapped)
        for share in walk:
            profile.append((share, _Counted.of(caches, warped), caches.tapped))
            yield Fraction(done + share * count, trips), 0

    while done + 2 * step <= trips:
        states = [_tags_of(caches, instance).copy() for instance in warped]
        profile = [(Fraction(0), _Counted.of(caches, warped), 0)]
        yield from walked(step, period.levels if behind else 0)
        recorded = profile[-1][2]
        done += step
        known = recorded <= len(tap)
        if not known and recorded <= _MOST_RECORDED:
            tap = np.zeros(recorded + recorded // 8 + BUFFER_EVENTS, np.uint64)
        periods = (trips - done) // step
        if (
            periods
            and known
            and _repeats(caches, warped, states, period)
            and _stays_inside(caches, warped, period, periods)
        ):
            stops = _stops(periods, ceil(Fraction(parts * periods * step, trips)))
            rounds = _rounds(caches, tap, [at for _, _, at in profile], chain, period, periods) if behind else None
            for instance in warped:
                tags = _tags_of(caches, instance)
                _shift(tags.copy(), tags, *_shape(caches, instance), period.first, period.end, period.moved * periods)
            pieces = _pieces(profile, one)
            whole = [replace(piece, numbers=slice(None)) for piece in _pieces([profile[0], profile[-1]], one)]
            for first, last in pairwise((0, *stops)):
                for piece in whole if last - first > 1 else pieces:
                    piece.counted.add_to(caches, warped, last - first, memory=not behind)
                    if behind:
                        some = tap[piece.recorded]
                        _send_behind(caches, some, chain, period, first + 1, last, rounds, piece.numbers)
                    skipped = piece.accesses + (last - first - 1) * one
                    parts_done, of = piece.share.numerator, piece.share.denominator
                    yield Fraction((done + (last - 1) * step) * of + parts_done * step, trips * of), skipped
            done += periods * step
            break
    if done < trips:
        yield from walked(trips - done, 0)


@dataclass(frozen=True, eq=False)
class _Piece:
    """What was walked between two pauses of a period."""

    share: Fraction
    """How much of the period was done at its end."""
    counted: _Counted
    recorded: slice
    numbers: slice
    """Its place among the pieces."""
    accesses: int


def _pieces(profile: list[tuple[Fraction, _Counted, int]], accesses: int) -> list[_Piece]:
    return [
        _Piece(
            share,
            now - then,
            slice(start, end),
            slice(number, number + 1),
            int(share * accesses) - int(begun * accesses),
        )
        for number, ((begun, then, start), (share, now, end)) in enumerate(pairwise(profile))
    ]


def _stops(periods: int, parts: int) -> list[int]:
    """After which periods to pause, the last one among them."""
    return sorted({periods * number // parts for number in range(1, parts + 1)} - {0})


@dataclass(frozen=True, eq=False)
class _Counted:
    """Counts of the warped levels and of main memory, but for the bytes that are settled after each part."""

    levels: NDArray[np.uint64]
    causes: NDArray[np.uint64]
    memory: NDArray[np.uint64]

    @staticmethod
    def of(caches: StreamCaches, warped: NDArray[np.int64]) -> _Counted:
        levels = caches.counters[warped].copy()
        levels[:, SETTLED] = 0
        return _Counted(levels, caches.causes[: len(warped)].copy(), caches.dram.counts.copy())

    def __sub__(self, earlier: _Counted) -> _Counted:
        return _Counted(self.levels - earlier.levels, self.causes - earlier.causes, self.memory - earlier.memory)

    def add_to(self, caches: StreamCaches, warped: NDArray[np.int64], times: int, *, memory: bool) -> None:
        """Count the same so many times more."""
        caches.counters[warped] += self.levels * np.uint64(times)
        caches.causes[: len(warped)] += self.causes * np.uint64(times)
        if memory:
            caches.dram.counts[:] += self.memory * np.uint64(times)


def _tags_of(caches: StreamCaches, instance: int) -> NDArray[np.uint64]:
    row = caches.levels.geometry[instance]
    return caches.levels.tags[int(row[OFFSET]) : int(row[OFFSET] + row[SETS] * row[WAYS])]


def _shape(caches: StreamCaches, instance: int) -> tuple[int, int]:
    row = caches.levels.geometry[instance]
    return int(row[SETS]), int(row[WAYS])


def _repeats(caches: StreamCaches, warped: NDArray[np.int64], states: list[NDArray[np.uint64]], period: Period) -> bool:
    return all(
        _same(
            state,
            _tags_of(caches, instance),
            *_shape(caches, instance),
            period.first,
            period.end,
            period.moved,
        )
        for instance, state in zip(warped, states, strict=True)
    )


def _stays_inside(caches: StreamCaches, warped: NDArray[np.int64], period: Period, periods: int) -> bool:
    """No resident line would leave its tensor: then the shift maps distinct lines to distinct lines."""
    return all(
        _within(_tags_of(caches, instance), period.first, period.end, period.moved * periods) for instance in warped
    )


def _rounds(
    caches: StreamCaches,
    tap: NDArray[np.uint64],
    cuts: list[int],
    chain: NDArray[np.int64],
    period: Period,
    periods: int,
) -> RowRounds | None:
    """The rounds of DRAM, where nothing else lies behind the warped levels."""
    if period.levels < len(chain):
        return None
    tensors = (period.first, period.end, period.moved)
    return find_rounds(caches.dram, caches.grain, tap[: cuts[-1]], cuts, tensors, periods)


def _send_behind(
    caches: StreamCaches,
    tap: NDArray[np.uint64],
    chain: NDArray[np.int64],
    period: Period,
    start: int,
    last: int,
    rounds: RowRounds | None,
    pieces: slice,
) -> None:
    """What the periods `start` … `last` send on: counted where their rounds are known, otherwise replayed."""
    if rounds is None:
        _replay_behind(caches, tap, chain, period, start, last)
    else:
        rounds.count(caches.dram, start, last, pieces, caches.grain)


def _replay_behind(
    caches: StreamCaches, tap: NDArray[np.uint64], chain: NDArray[np.int64], period: Period, start: int, last: int
) -> None:
    """Send what the last walked period sent on, moved by `start` … `last` periods, through the levels behind."""
    periods = last - start + 1
    caches.reserve(
        len(tap) * periods if len(tap) * periods < _MOST_RECORDED else int((period.end - period.first).sum())
    )
    _replay(
        tap, caches.event_buffer(), start, last, period.levels, chain, caches.levels, caches.sink, caches.grain,
        period.first, period.end, period.moved,
    )  # fmt: skip


@inlined
def _moved_by(line, first, end, moved):  # type: ignore[no-untyped-def]
    """By how much the tensor that a line belongs to moves; 0 for lines of nobody here."""
    step = np.int64(0)
    for tensor in range(len(first)):
        if first[tensor] <= line < end[tensor]:
            step = moved[tensor]
    return step


@compiled
def _same(old, new, sets, ways, first, end, moved):  # type: ignore[no-untyped-def]
    """Whether `new` is `old` with every line moved."""
    turn = moved[0] % sets
    for index in range(sets):
        turned = (index + turn) % sets
        for way in range(ways):
            tag = old[index * ways + way]
            expected = tag
            if tag != EMPTY:
                line = np.int64(tag >> U1)
                shift = _moved_by(line, first, end, moved)
                if (line + shift) % sets != turned:
                    return False
                expected = (np.uint64(line + shift) << U1) | (tag & U1)
            if new[turned * ways + way] != expected:
                return False
    return True


@compiled
def _within(tags, first, end, moved):  # type: ignore[no-untyped-def]
    for tag in tags:
        if tag != EMPTY:
            line = np.int64(tag >> U1)
            for tensor in range(len(first)):
                if first[tensor] <= line < end[tensor]:
                    target = line + moved[tensor]
                    if target < first[tensor] or target >= end[tensor]:
                        return False
    return True


@compiled
def _shift(old, tags, sets, ways, first, end, moved):  # type: ignore[no-untyped-def]
    """Move every line of a cache, and each set to its new place."""
    turn = moved[0] % sets
    for index in range(sets):
        turned = (index + turn) % sets
        for way in range(ways):
            tag = old[index * ways + way]
            if tag != EMPTY:
                line = np.int64(tag >> U1)
                tag = (np.uint64(line + _moved_by(line, first, end, moved)) << U1) | (tag & U1)
            tags[turned * ways + way] = tag


@compiled
def _replay(tap, buffer, start, last, first_level, chain, levels, sink, grain, first, end, moved):  # type: ignore[no-untyped-def]
    """Send a recorded stream, shifted by one more period each time, through the levels behind."""
    stop = len(chain)
    low_bits = (U1 << LINE_SHIFT) - U1
    for number in range(start, last + 1):
        at = 0
        while at < len(tap):
            count = min(len(buffer), len(tap) - at)
            for place in range(count):
                event = tap[at + place]
                line = np.int64(event >> LINE_SHIFT)
                line += number * _moved_by(line, first, end, moved)
                buffer[place] = (np.uint64(line) << LINE_SHIFT) | (event & low_bits)
            length = pump(buffer, np.uint64(count), first_level, stop, chain, levels)
            source = buffer
            if stop > first_level:
                source = levels.ping if stop % 2 == 1 else levels.pong
            drain(source, np.int64(length), grain, sink.geometry, sink.open_rows, sink.counts)
            at += count
