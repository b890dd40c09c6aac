"""The general model: how a line leaves. This happens seldom, and is compiled apart from the walk."""

from __future__ import annotations

import numpy as np

from hwsim.hardware.counters import (
    BACK_INVALIDATIONS,
    BYTES_EVICTED,
    BYTES_WRITTEN,
    CLEAN_VICTIMS,
    WRITEBACKS,
    WRITES,
)
from hwsim.hardware.coupled_state import (
    INCLUSION,
    INCLUSIVE,
    LINE_BITS,
    OWN_LEVEL,
    REQUEST,
    SECTOR_BITS,
    VICTIM,
    place_of,
    push,
    sector_count,
    sectors_of,
)
from hwsim.hardware.replacement import DIRTY, TAG, VALID
from hwsim.jit import called
from hwsim.trace.event import U1, WRITEBACK


@called
def evict(units, ancestors, lines, counters, stack, top, instance, level, place, next_exclusive):  # type: ignore[no-untyped-def]
    """A line gives up its way: what is modified goes down; to an exclusive cache below, all of it."""
    old = lines[place, TAG]
    lost = lines[place, DIRTY]
    if units[instance, INCLUSION] == INCLUSIVE:
        lost |= _take_from_inside(units, ancestors, lines, counters, instance, level, old)
    if lost != 0:
        counters[instance, WRITEBACKS] += U1
    elif next_exclusive:
        counters[instance, CLEAN_VICTIMS] += U1
    leaving = lines[place, VALID] | lost if next_exclusive else lost
    size = np.int64(1) << units[instance, SECTOR_BITS]
    sector = sector_count(units, instance) - 1
    while sector >= 0:
        if leaving >> sector & 1:
            kind = WRITEBACK if lost >> sector & 1 else VICTIM
            counters[instance, BYTES_EVICTED] += np.uint64(size)
            address = (old << units[instance, LINE_BITS]) + sector * size
            top = push(stack, top, REQUEST, level + 1, address, size, kind, 0)
        sector -= 1
    return top


@called
def _take_from_inside(units, ancestors, lines, counters, instance, level, line):  # type: ignore[no-untyped-def]
    """An inclusive cache loses a line: so do the caches inside it. Returns the sectors modified there."""
    modified = np.int64(0)
    for inner in range(len(units)):
        if units[inner, OWN_LEVEL] < level and ancestors[inner, level] == instance:
            # Inner lines are as long or shorter: one outer line may hold several.
            shorter = units[instance, LINE_BITS] - units[inner, LINE_BITS]
            for piece in range(line << shorter, (line + 1) << shorter):
                place = place_of(units, lines, inner, piece)
                if place >= 0:
                    counters[instance, BACK_INVALIDATIONS] += U1
                    dirty = lines[place, DIRTY]
                    lines[place, VALID] = 0
                    lines[place, DIRTY] = 0
                    if dirty != 0:
                        counters[inner, WRITEBACKS] += U1
                        start = piece << units[inner, LINE_BITS]
                        modified |= _carry_down(units, ancestors, lines, counters, inner, instance, start, dirty)
    return modified


@called
def _carry_down(units, ancestors, lines, counters, inner, outer, start, dirty):  # type: ignore[no-untyped-def]
    """Modified sectors leave an inner cache for the first one on the way to an outer one that has the line.

    Returns the sectors of the outer cache that they reached.
    """
    reached = np.int64(0)
    size = np.int64(1) << units[inner, SECTOR_BITS]
    for sector in range(sector_count(units, inner)):
        if dirty >> sector & 1:
            address = start + sector * size
            giver = inner
            while giver != outer:
                taker = ancestors[inner, units[giver, OWN_LEVEL] + 1]
                counters[giver, BYTES_EVICTED] += np.uint64(size)
                counters[taker, BYTES_WRITTEN] += np.uint64(size)
                counters[taker, WRITES] += U1
                sectors = sectors_of(units, taker, address, size)
                giver = taker
                if taker == outer:
                    reached |= sectors
                else:
                    place = place_of(units, lines, taker, address >> units[taker, LINE_BITS])
                    if place >= 0:
                        lines[place, VALID] |= sectors
                        lines[place, DIRTY] |= sectors
                        giver = outer
    return reached
