"""Rows that crowd into few sets of a cache: visible from strides alone, before anything is simulated.

Down a column, addresses are a row apart. Where that distance is a multiple of many lines, the lines of the
column come back to the same few sets; a cache of 64 sets and 8 ways then holds far less than 512 of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from hwsim.spec.memory import CacheSpec

FEW = 4
"""A column that finds room in less than a quarter of the sets is crowded."""


@dataclass(frozen=True)
class Crowding:
    """A tensor whose columns crowd into few sets of a level."""

    tensor: str
    level: str
    row_bytes: int
    used_sets: int
    sets: int
    ways: int
    better_row_bytes: int
    """The next row length whose columns visit every set."""

    @property
    def room_lines(self) -> int:
        """Lines of one column that stay in the cache at once."""
        return self.used_sets * self.ways


def find_crowding(level: CacheSpec, row_bytes: Mapping[str, int], rows: Mapping[str, int]) -> Crowding | None:
    """The first tensor whose columns crowd, if any: `row_bytes` between its rows, `rows` of them."""
    if level.infinite or level.index != "modulo":
        return None
    for tensor, distance in row_bytes.items():
        used = sets_used(level, distance)
        if used * FEW <= level.set_count and rows[tensor] > used * level.way_count // 2:
            better = (distance // level.line + 1) | 1
            return Crowding(tensor, level.name, distance, used, level.set_count, level.way_count, better * level.line)
    return None


def sets_used(level: CacheSpec, row_bytes: int) -> int:
    """How many sets the lines of one column fall into."""
    if row_bytes % level.line or row_bytes == 0:
        return level.set_count
    return level.set_count // gcd(level.set_count, row_bytes // level.line)
