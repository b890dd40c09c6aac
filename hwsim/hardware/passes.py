"""Repeated passes: an inner loop that touches the same lines in the same order r times is walked a few times.

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
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hwsim.hardware.dram import drain
from hwsim.hardware.filter import through
from hwsim.jit import called, compiled
from hwsim.trace.nest import Access, Nest
from hwsim.trace.walk import fill

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


@called
def _repeat(events, repeats, chain, levels, sink, grain, streams, lengths, before, gained):  # type: ignore[no-untyped-def]
    """Send the same events through all levels `repeats` times; a level that is steady is only counted."""
    columns = levels.counters.shape[1]
    for number in range(1, repeats + 1):
        source, length = events, np.uint64(len(events))
        for level in range(len(chain)):
            instance = chain[level]
            steady = 2 * level + 3
            if number <= steady:
                if number == steady:
                    before[:columns] = levels.counters[instance]
                    before[columns:] = levels.causes[level]
                lengths[level] = through(source, length, streams[level], instance, levels.causes[level], levels)
                if number == steady:
                    gained[level, :columns] = levels.counters[instance]
                    gained[level, columns:] = levels.causes[level]
                    gained[level] -= before
            elif number == steady + 1:
                left = np.uint64(repeats - steady)
                levels.counters[instance] += left * gained[level, :columns]
                levels.causes[level] += left * gained[level, columns:]
            source, length = streams[level], lengths[level]
        drain(source, np.int64(length), grain, sink.geometry, sink.open_rows, sink.counts)


@compiled
def walk_passes(  # type: ignore[no-untyped-def]
    trips, strides, template, order, table, table_strides, counters, address, entry, skipped,
    buffer, shift, repeats, length, chain, levels, sink, grain, streams, lengths, before, gained,
):  # fmt: skip
    """Fill a buffer, and send each pass in it down as often as it repeats."""
    left = 0
    while counters[len(trips)] != 2:
        filled = fill(trips, strides, template, order, table, table_strides, counters, address, entry, skipped,
                      buffer[left:], shift, 1, 0)  # fmt: skip
        total = left + filled
        at = 0
        while total - at >= length:
            one = buffer[at : at + length]
            _repeat(one, repeats, chain, levels, sink, grain, streams, lengths, before, gained)
            at += length
        left = total - at
        for place in range(left):
            buffer[place] = buffer[at + place]
