"""Blocks that run tile by tile: scratch space that holds one tile at a time, and the tiles that a condition leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hwsim.errors import InputError
from hwsim.program.expression import Affine, Apply, Element, Expr, IndexValue
from hwsim.program.loops import Range, Ranges
from hwsim.trace.nest import Size
from hwsim.trace.view import TensorView

Place = tuple[tuple[str, int], ...]
"""The number of a tile along each index."""


@dataclass(frozen=True)
class Private:
    """Scratch space for one tile at a time, of which each core has its own."""

    view: TensorView
    made: Element
    """As it is written."""
    shape: tuple[int, ...]
    sizes: Mapping[str, int]
    """Iterations of a tile."""
    users: Sequence[set[str]]
    """The indices of each group that uses it."""

    def place_in(self, ranges: Ranges, sharing: Mapping[str, str]) -> Place:
        """Which tile it is, of those that several cores work on at the same time."""
        index = sharing[self.view.name]
        if not all(index in own for own in self.users):
            return ()
        return ((index, ranges[index][0] // self.sizes.get(index, 1)),)

    def local(self, element: Element, extents: Mapping[str, int]) -> dict[str, tuple[int, Size]]:
        """Along each index: how many iterations find memory of their own, and that the next ones find the same."""
        sizes = {index: size for index, size in self.sizes.items() if index in element.indices}
        for axis, position in enumerate(element.positions):
            for index, _ in self._following(axis, position, extents):
                sizes[index] = self.shape[axis]
        return {index: (size, 0) for index, size in sizes.items()}

    def follows(self, element: Element, extents: Mapping[str, int]) -> Iterator[tuple[str, tuple[str, int]]]:
        """Indices of a reader that run over an axis which tiles of another index have written."""
        for axis, position in enumerate(element.positions):
            yield from self._following(axis, position, extents)

    def _following(
        self, axis: int, position: Affine, extents: Mapping[str, int]
    ) -> Iterator[tuple[str, tuple[str, int]]]:
        leaders = [(i, factor) for i, factor in self.made.positions[axis].factors if i in self.sizes]
        for index in position.indices:
            if index not in self.sizes and extents[index] > self.shape[axis] and position.is_plain:
                if len(leaders) != 1 or leaders[0][1] * self.sizes[leaders[0][0]] != self.shape[axis]:
                    raise InputError(f"{self.made}: a tile has to fill this axis before {index} runs over it")
                yield index, leaders[0]


@dataclass(frozen=True)
class TileEdge:
    """Which part of an index a condition such as ``j <= i + 3`` leaves, given the tiles around."""

    index: str
    size: int
    extent: int
    condition: Expr

    def inside(self, around: Ranges) -> Range:
        """Whole tiles in which the condition holds everywhere."""
        if self._is_start:
            first = -(-self._clipped(self._bound(around, lowest=False)) // self.size) * self.size
            return first, max(0, self.extent - first)
        return 0, self._clipped(self._bound(around, lowest=True) + 1) // self.size * self.size

    def across(self, around: Ranges) -> Range:
        """The tiles beside them for which it holds somewhere."""
        if self._is_start:
            first = self._clipped(self._bound(around, lowest=True)) // self.size * self.size
            return first, self.inside(around)[0] - first
        first = self.inside(around)[1]
        return first, max(0, self._clipped(self._bound(around, lowest=False) + 1) - first)

    def _clipped(self, position: int) -> int:
        return max(0, min(position, self.extent))

    @property
    def _is_start(self) -> bool:
        """Whether the condition says where the index begins, not where it ends."""
        return isinstance(self.condition, Apply) and self._own(self.condition.arguments[0]) is None

    def _own(self, side: Expr) -> int | None:
        """The constant beside the index on its side of the comparison."""
        match side:
            case IndexValue(Affine(((name, 1),), constant)) if name == self.index:
                return constant
        return None

    def _bound(self, around: Ranges, *, lowest: bool) -> int:
        """The last iteration for which it holds, or the first, at the points around where that is lowest or highest."""
        match self.condition:
            case Apply("<=" | "<" as sign, (IndexValue() as left, IndexValue() as right)):
                end, start = self._own(left), self._own(right)
                if (end is None) != (start is None):
                    other = right.position if start is None else left.position
                    total = other.constant - (end if end is not None else start or 0)
                    total += 0 if sign == "<=" else 1 if end is None else -1
                    for index, factor in other.factors:
                        first, count = around[index]
                        total += factor * (first if (factor > 0) == lowest else first + count - 1)
                    return total
        raise InputError(f"for {self.index}: a condition has to look like {self.index} <= i + 1")
