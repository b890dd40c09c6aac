"""DRAM: channels, ranks, banks and rows; counts what each column access finds in its bank. No time here.

An address is cut into fields from its low to its high bits, in the order of the machine's `mapping`, which
begins with the row: it takes all that is left. With open pages a column access hits the open row, misses (no
row open) or conflicts (another row open); with closed pages every access opens its row anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwsim.jit import called, inlined
from hwsim.memory.counters import (
    DRAM_BYTES_READ,
    DRAM_BYTES_WRITTEN,
    DRAM_READS,
    DRAM_WRITES,
    ROW_CONFLICTS,
    ROW_HITS,
    ROW_MISSES,
    DramCounters,
)
from hwsim.spec.memory import DramSpec
from hwsim.trace.event import KIND, LINE_SHIFT, U0, U1

BURST, OPEN_PAGE, SHIFTS = range(3)
"""First places of the geometry: bytes of a burst, page policy, whether all counts are powers of two."""
CHANNEL, RANK, BANK, ROW = 3, 7, 11, 15
"""Then four numbers for each field of an address: what the number of a burst is divided by, how many there are, what
one counts for in the number of a bank, and the divisor as a shift."""
DIVISOR, COUNT, WEIGHT, SHIFT = range(4)


_FIELDS = {"channel": CHANNEL, "rank": RANK, "bank": BANK, "row": ROW}


@dataclass(frozen=True, eq=False)
class Dram:
    """The state of a memory: the open row of each bank, and the counts so far."""

    geometry: NDArray[np.int64]
    open_rows: NDArray[np.int64]
    counts: NDArray[np.uint64]

    @classmethod
    def build(cls, spec: DramSpec | None) -> Dram:
        """A memory as described; without a description it has no rows and counts requests and bytes alone."""
        if spec is None:
            return cls(np.zeros(ROW + 4, np.int64), np.zeros(0, np.int64), np.zeros(DramCounters.width(), np.uint64))
        counts = {"channel": spec.channels, "rank": spec.ranks, "bank": spec.banks, "column": spec.row // spec.burst}
        weights = {"channel": spec.ranks * spec.banks, "rank": spec.banks, "bank": 1}
        geometry = np.zeros(ROW + 4, np.int64)
        geometry[BURST], geometry[OPEN_PAGE] = spec.burst, spec.page == "open"
        geometry[SHIFTS] = all(count & (count - 1) == 0 for count in counts.values())
        divisor = 1
        for name in (*reversed(spec.mapping.split(":")[1:]), "row"):
            if name in _FIELDS:
                at = _FIELDS[name]
                count, weight = counts.get(name, 1), weights.get(name, 0)
                geometry[at : at + 4] = divisor, count, weight, divisor.bit_length() - 1
            divisor *= counts.get(name, 1)
        banks = spec.channels * spec.ranks * spec.banks
        return cls(geometry, np.full(banks, -1, np.int64), np.zeros(DramCounters.width(), np.uint64))

    @property
    def counters(self) -> DramCounters:
        return DramCounters.of(self.counts)


@inlined
def _field(geometry, name, number):  # type: ignore[no-untyped-def]
    """What a field of an address adds to the number of its bank."""
    if geometry[SHIFTS]:
        part = (number >> geometry[name + SHIFT]) & (geometry[name + COUNT] - 1)
    else:
        part = number // geometry[name + DIVISOR] % geometry[name + COUNT]
    return part * geometry[name + WEIGHT]


@inlined
def open_row(geometry, open_rows, number):  # type: ignore[no-untyped-def]
    """Find the row of a burst: gives the column of the counters that it belongs to."""
    bank = _field(geometry, CHANNEL, number) + _field(geometry, RANK, number) + _field(geometry, BANK, number)
    row = number >> geometry[ROW + SHIFT] if geometry[SHIFTS] else number // geometry[ROW + DIVISOR]
    found = open_rows[bank]
    if geometry[OPEN_PAGE]:
        open_rows[bank] = row
    if found < 0:
        return ROW_MISSES
    return ROW_HITS if found == row else ROW_CONFLICTS


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
        burst = geometry[BURST]
        for number in range(address // burst, (address + nbytes - 1) // burst + 1):
            counts[open_row(geometry, open_rows, number)] += U1


@called
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
    if len(open_rows) == 0:
        return
    if geometry[SHIFTS] and geometry[OPEN_PAGE] and geometry[BURST] == grain:
        _drain_shifted(events, count, geometry, open_rows, counts)
        return
    burst = geometry[BURST]
    for number in range(count):
        first = np.int64(events[number] >> LINE_SHIFT) * grain
        for each in range(first // burst, (first + grain - 1) // burst + 1):
            counts[open_row(geometry, open_rows, each)] += U1


@inlined
def _drain_shifted(events, count, geometry, open_rows, counts):  # type: ignore[no-untyped-def]
    """The usual case, several times faster: a line is a burst, and fields are cut by shifts kept at hand."""
    channel, rank, bank = geometry[CHANNEL + SHIFT], geometry[RANK + SHIFT], geometry[BANK + SHIFT]
    channels, ranks, banks = geometry[CHANNEL + COUNT] - 1, geometry[RANK + COUNT] - 1, geometry[BANK + COUNT] - 1
    of_channel, of_rank, row = geometry[CHANNEL + WEIGHT], geometry[RANK + WEIGHT], geometry[ROW + SHIFT]
    hits, misses = U0, U0
    for number in range(count):
        line = np.int64(events[number] >> LINE_SHIFT)
        where = (line >> channel & channels) * of_channel + (line >> rank & ranks) * of_rank + (line >> bank & banks)
        found = open_rows[where]
        open_rows[where] = line >> row
        hits += np.uint64(found == line >> row)
        misses += np.uint64(found < 0)
    counts[ROW_HITS] += hits
    counts[ROW_MISSES] += misses
    counts[ROW_CONFLICTS] += np.uint64(count) - hits - misses
