"""The L1 of one SM as a filter: which sectors of a stream it does not have.

A line is allocated whole and filled sector by sector; the line that was used longest ago leaves. Loads only: stores go
through without allocating.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwsim.jit import compiled


class SectorCache:
    """Lines of `line` bytes in sectors, `ways` of them in each set; sets by the bits of the line folded together."""

    def __init__(self, size: int, line: int, sector: int, ways: int) -> None:
        lines = max(1, size // line)
        self.ways = min(ways, lines)
        self.sets = max(1, lines // self.ways)
        self.line, self.sector = line, sector
        self._tags = np.full((self.sets, self.ways), -1, np.int64)
        self._valid = np.zeros((self.sets, self.ways), np.int64)
        self._used = np.zeros((self.sets, self.ways), np.int64)
        self._clock = 0

    def misses(self, addresses: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each address of a sector in turn, whether it had to be fetched."""
        found = np.zeros(len(addresses), np.bool_)
        self._clock = _walk(
            addresses, found, self._tags, self._valid, self._used, self._clock, self.line, self.sector, self.sets
        )
        return found


@compiled
def _walk(
    addresses: NDArray[np.int64],
    found: NDArray[np.bool_],
    tags: NDArray[np.int64],
    valid: NDArray[np.int64],
    used: NDArray[np.int64],
    clock: int,
    line_bytes: int,
    sector_bytes: int,
    sets: int,
) -> int:
    ways = tags.shape[1]
    for number in range(len(addresses)):
        line = addresses[number] // line_bytes
        bit = 1 << (addresses[number] % line_bytes // sector_bytes)
        folded = (line ^ (line >> 7) ^ (line >> 14) ^ (line >> 21)) % sets
        clock += 1
        place = -1
        oldest = 0
        for way in range(ways):
            if tags[folded, way] == line:
                place = way
                break
            if used[folded, way] < used[folded, oldest]:
                oldest = way
        if place < 0:
            place = oldest
            tags[folded, place] = line
            valid[folded, place] = 0
        if not valid[folded, place] & bit:
            valid[folded, place] |= bit
            found[number] = True
        used[folded, place] = clock
    return clock
