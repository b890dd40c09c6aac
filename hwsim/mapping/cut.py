"""How a group of indices is cut into tiles: the inner indices whole, one in between cut, the outer ones one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from hwsim.kernels.loop.loops import Range

MOST_CUTS = 8
"""Sizes of a tile that are tried along each group."""


@dataclass(frozen=True)
class Cut:
    """One way to cut a group: the iterations of each index in a tile."""

    extents: Mapping[str, int]
    box: Mapping[str, int]

    @property
    def size(self) -> int:
        """Iterations in a whole tile."""
        return prod(self.box.values())

    @property
    def total(self) -> int:
        return prod(self.extents.values())

    @property
    def tiles(self) -> int:
        return prod(-(-extent // self.box[index]) for index, extent in self.extents.items())

    def uncut(self) -> Cut:
        """All of the group as one tile."""
        return Cut(self.extents, self.extents)

    def sizes(self) -> list[tuple[int, int]]:
        """How many iterations the tiles have, and how many tiles have so many."""
        axes = []
        for index, extent in self.extents.items():
            whole, rest = divmod(extent, self.box[index])
            axes.append([(self.box[index], whole)] * (whole > 0) + [(rest, 1)] * (rest > 0))
        return [(prod(size for size, _ in corner), prod(count for _, count in corner)) for corner in product(*axes)]

    def ranges(self) -> Iterator[dict[str, Range]]:
        """The tiles, in order; those at the edge are smaller."""
        axes = [
            [(index, (start, min(self.box[index], extent - start))) for start in range(0, extent, self.box[index])]
            for index, extent in self.extents.items()
        ]
        for corner in product(*axes):
            yield dict(corner)


def cut_to(extents: Mapping[str, int], size: int) -> Cut:
    """The largest nested tile of at most so many iterations."""
    box: dict[str, int] = {}
    left = max(1, size)
    for index in reversed(list(extents)):
        extent = extents[index]
        box[index] = min(extent, left)
        left = max(1, left // extent) if box[index] == extent else 1
    return Cut(extents, {index: box[index] for index in extents})


def cuts(extents: Mapping[str, int], side: int, most: int = MOST_CUTS) -> list[Cut]:
    """Tiles to try along a group: fractions of the array's side, the side, and multiples of it up to everything.

    What is tried depends on the problem and the array alone, never on a memory: so more memory can only help.
    """
    total = prod(extents.values())
    sizes = {total, *(size for size in (side // 8, side // 2, side) if 0 < size < total)}
    multiples = _doublings(-(-total // side))
    spare = max(1, most - len(sizes))
    sizes |= {side * multiple for multiple in _thinned(multiples, spare) if side * multiple < total}
    found = {tuple(cut.box.values()): cut for size in sorted(sizes) for cut in [cut_to(extents, size)]}
    return list(found.values())


def _doublings(limit: int) -> list[int]:
    found = [2]
    while found[-1] * 2 < limit:
        found.append(found[-1] * 2)
    return found


def _thinned(numbers: Sequence[int], count: int) -> list[int]:
    if len(numbers) <= count:
        return list(numbers)
    return [numbers[round(i * (len(numbers) - 1) / max(1, count - 1))] for i in range(count)]
