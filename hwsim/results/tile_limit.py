"""How large a square tile may be before something no longer fits: for marks in plots and for searches.

Capacity: three tiles (of A, B and C) in a cache, 3·tile² elements. Conflicts: rows of a matrix are a fixed
distance apart, so the lines of a tile fall into some sets only; no set may get more lines of A and B than it has ways.
Beyond the tile whose B alone fits its sets, a line of B is gone before the next row of A asks for it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np

from hwsim.result import RunResult, machine_of
from hwsim.spec.memory import CacheSpec

CAPACITY, CONFLICT, ALONE = "capacity", "conflict", "alone"


@dataclass(frozen=True)
class Limit:
    """The largest tile that fits a level, and by which rule."""

    level: str
    kind: str
    tile: int

    @property
    def words(self) -> str:
        if self.kind == CAPACITY:
            return f"3·tile² elements fit {self.level}"
        return f"{'tiles of A and B fit' if self.kind == CONFLICT else 'a tile of B fits'} the sets of {self.level}"


def tile_limits(result: RunResult) -> tuple[Limit, ...]:
    """Limits of a tiled matrix product in each cache, smaller than the matrix itself; none for anything else."""
    workload = result.resolved.workload
    schedule = workload.get("schedule", {})
    if workload.get("op") != "matmul" or not schedule.get("tile"):
        return ()
    facts = result.tensors.get("B")
    if facts is None or not facts.elements:
        return ()
    element = max(1, facts.bytes // facts.elements)
    most = max(size for size in _extents(workload) if size)
    found = []
    for cache in machine_of(result).caches:
        if cache.infinite:
            continue
        found.append(Limit(cache.name, CAPACITY, capacity_tile(cache, element)))
        if not schedule.get("packed") and facts.row_bytes:
            for kind, matrices in ((CONFLICT, 2), (ALONE, 1)):
                found.append(Limit(cache.name, kind, conflict_tile(cache, facts.row_bytes, element, most, matrices)))
    return tuple(limit for limit in found if limit.tile < most)


def capacity_tile(cache: CacheSpec, element_bytes: int) -> int:
    """The largest tile of which three fit: 3·tile² elements."""
    return isqrt(cache.size // (3 * element_bytes))


def conflict_tile(cache: CacheSpec, row_bytes: int, element_bytes: int, most: int, matrices: int = 2) -> int:
    """The largest tile such that no set is asked for more lines of A and B (or of B alone) than it has ways."""
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if matrices * _crowd(cache, row_bytes, element_bytes, middle) <= cache.way_count:
            low = middle
        else:
            high = middle - 1
    return low


def _crowd(cache: CacheSpec, row_bytes: int, element_bytes: int, tile: int) -> int:
    """Lines of a tile in the set that gets the most of them."""
    rows = np.arange(tile, dtype=np.int64) * row_bytes
    columns = np.arange(-(-tile * element_bytes // cache.line), dtype=np.int64) * cache.line
    lines = np.unique((rows[:, None] + columns[None, :]) // cache.line)
    return int(np.bincount(lines % cache.set_count).max())


def _extents(workload: Mapping[str, Any]) -> list[int]:
    sizes = workload.get("sizes", {})
    return [sizes.get("n") or 0, sizes.get("m") or 0, sizes.get("k") or 0]
