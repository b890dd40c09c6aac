"""DRAM: channels, ranks, banks and rows; counts what each column access finds in its bank. No time here.

An address is cut into fields from its low to its high bits, in the order of the machine's `mapping`, which
begins with the row: it takes all that is left. With open pages a column access hits the open row, misses (no
row open) or conflicts (another row open); with closed pages every access opens its row anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hwsim.hardware.counters import (
    DRAM_BYTES_READ,
    DRAM_BYTES_WRITTEN,
    DRAM_READS,
    DRAM_WRITES,
    ROW_CONFLICTS,
    ROW_HITS,
    ROW_MISSES,
    DramCounters,
)
from hwsim.jit import compiled, inlined
from hwsim.spec.memory import DramSpec
from hwsim.trace.event import KIND, LINE_SHIFT, U0, U1

CHANNEL, RANK, BANK, COLUMN = range(4)
_FIELDS = {"channel": CHANNEL, "rank": RANK, "bank": BANK, "column": COLUMN}

BURST, OPEN_PAGE, FIRST_FIELD, FIRST_SIZE = 0, 1, 2, 6
"""Places in `geometry`: burst bytes, page policy, the four fields from low to high, their sizes by code."""


@dataclass(frozen=True, eq=False)
class Dram:
    """The state of a memory: the open row of each bank, and the counts so far."""

    geometry: NDArray[np.int64]
    open_rows: NDArray[np.int64]
    counts: NDArray[np.uint64]

    @classmethod
    def build(cls, spec: DramSpec | None) -> Dram:
        """A memory as described; without a description it has no rows and counts requests and bytes alone."""
        geometry = np.zeros(FIRST_SIZE + 4, np.int64)
        banks = 0
        if spec is not None:
            order = [_FIELDS[name] for name in reversed(spec.mapping.split(":")[1:])]
            geometry[BURST], geometry[OPEN_PAGE] = spec.burst, spec.page == "open"
            geometry[FIRST_FIELD:FIRST_SIZE] = order
            geometry[FIRST_SIZE:] = spec.channels, spec.ranks, spec.banks, spec.row // spec.burst
            banks = spec.channels * spec.ranks * spec.banks
        return cls(geometry, np.full(banks, -1, np.int64), np.zeros(DramCounters.width(), np.uint64))

    @property
    def counters(self) -> DramCounters:
        return DramCounters.of(self.counts)

    def copy(self) -> Dram:
        return Dram(self.geometry, self.open_rows.copy(), self.counts.copy())


def refreshes(spec: DramSpec, seconds: Fraction, clock_hz: int) -> int:
    """How many refresh commands all ranks receive in a stretch of time."""
    if spec.timing is None:
        return 0
    each = int(seconds / spec.timing.trefi.seconds(clock_hz))
    return each * spec.channels * spec.ranks


@inlined
def open_row(geometry, open_rows, counts, address, nbytes):  # type: ignore[no-untyped-def]
    """Look at the bank of each burst of a request."""
    burst = geometry[BURST]
    for number in range(address // burst, (address + nbytes - 1) // burst + 1):
        rest = number
        channel = np.int64(0)
        rank = np.int64(0)
        bank = np.int64(0)
        for place in range(FIRST_FIELD, FIRST_FIELD + 4):
            name = geometry[place]
            size = geometry[FIRST_SIZE + name]
            if size > 1:
                part = rest % size
                rest = rest // size
                if name == CHANNEL:
                    channel = part
                elif name == RANK:
                    rank = part
                elif name == BANK:
                    bank = part
        where = (channel * geometry[FIRST_SIZE + RANK] + rank) * geometry[FIRST_SIZE + BANK] + bank
        if geometry[OPEN_PAGE] == 0 or open_rows[where] < 0:
            counts[ROW_MISSES] += U1
        elif open_rows[where] == rest:
            counts[ROW_HITS] += U1
        else:
            counts[ROW_CONFLICTS] += U1
        if geometry[OPEN_PAGE] != 0:
            open_rows[where] = rest


@inlined
def dram_access(geometry, open_rows, counts, address, nbytes, write):  # type: ignore[no-untyped-def]
    """One request."""
    if write:
        counts[DRAM_WRITES] += U1
        counts[DRAM_BYTES_WRITTEN] += np.uint64(nbytes)
    else:
        counts[DRAM_READS] += U1
        counts[DRAM_BYTES_READ] += np.uint64(nbytes)
    if len(open_rows) > 0:
        open_row(geometry, open_rows, counts, address, nbytes)


@compiled
def drain(
    events: NDArray[np.uint64],
    count: int,
    grain: int,
    geometry: NDArray[np.int64],
    open_rows: NDArray[np.int64],
    counts: NDArray[np.uint64],
) -> None:
    """The stream that leaves the last plain cache: whole lines of `grain` bytes."""
    writes = U0
    for number in range(count):
        writes += ((events[number] & KIND) + U1) >> U1 & U1
    reads = np.uint64(count) - writes
    counts[DRAM_READS] += reads
    counts[DRAM_WRITES] += writes
    counts[DRAM_BYTES_READ] += reads * np.uint64(grain)
    counts[DRAM_BYTES_WRITTEN] += writes * np.uint64(grain)
    if len(open_rows) > 0:
        for number in range(count):
            open_row(geometry, open_rows, counts, np.int64(events[number] >> LINE_SHIFT) * grain, grain)
