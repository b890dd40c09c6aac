"""Template: a loop lowered once, and moved to wherever the same shape occurs again.

Lowering takes far longer than moving: where tiles recur, all but the first of each shape are shifted copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hwsim.kernels.loop.count import count_tiles, count_work
from hwsim.kernels.loop.loops import Operand, is_resumed
from hwsim.kernels.loop.lower import lower
from hwsim.kernels.loop.program import Loop, Ranges
from hwsim.kernels.step import Step, Tile, Work
from hwsim.trace.nest import Nest, Size

NOWHERE: Mapping[str, Size] = {}


@dataclass(frozen=True)
class Template:
    """What a loop does over ranges of a certain shape, at the place where it was lowered."""

    loop: Loop
    starts: Mapping[str, int]
    nests: tuple[Nest, ...]
    operands: tuple[tuple[Operand, ...], ...]
    """The operand behind each access of each nest."""
    work: Work
    tiles: tuple[Tile, ...]

    def at(self, ranges: Ranges, private: Mapping[str, Size] = NOWHERE) -> Step:
        """The same at another place; `private` tensors lie so many bytes further on."""
        if not private and all(ranges[index][0] == start for index, start in self.starts.items()):
            return Step(self.loop.name, self.work, self.nests, self.tiles)
        shifts: dict[int, Size] = {}
        nests = []
        for nest, operands in zip(self.nests, self.operands, strict=True):
            for operand in operands:
                if id(operand) not in shifts:
                    shifts[id(operand)] = self._shift(operand, ranges) + private.get(operand.tensor, 0)
            moved = tuple(
                access.moved(shifts[id(operand)]) for access, operand in zip(nest.accesses, operands, strict=True)
            )
            nests.append(Nest(nest.trips, moved))
        return Step(self.loop.name, self.work, tuple(nests), self.tiles)

    def _shift(self, operand: Operand, ranges: Ranges) -> Size:
        return sum(
            operand.distance(index, ranges[index][0]) - operand.distance(index, start)
            for index, start in self.starts.items()
        )


def make_template(loop: Loop, ranges: Ranges, fmt: str, bits: Mapping[str, Size]) -> Template:
    """Lower a loop over ranges."""
    pieces = list(lower(loop.operation, loop.plan, ranges))
    work = count_work(
        pieces,
        loop.body,
        flops=loop.flops(ranges),
        macs=loop.macs(ranges),
        late=loop.late_body,
        lanes=loop.plan.lanes,
        fmt=fmt,
        sums_lanes=loop.sums_lanes,
    )
    return Template(
        loop,
        {index: start for index, (start, _) in ranges.items()},
        tuple(piece.nest for piece in pieces),
        tuple(piece.operands for piece in pieces),
        work,
        count_tiles(loop.operation, loop.plan, ranges, bits),
    )


def template_key(loop: Loop, ranges: Ranges) -> tuple[object, ...]:
    """Ranges with the same key are shifted copies of each other: equal extents, places within blocks and in tables,
    and sums that all begin or all go on."""
    operands = loop.operation.operands
    places = (ranges[index][0] % block for operand in operands for index, (block, _) in operand.far.items())
    looked_up = (ranges[operand.gather.index][0] for operand in operands if operand.gather is not None)
    resumed = is_resumed(loop.operation, ranges)
    return (id(loop), resumed, *(extent for _, extent in ranges.values()), *places, *looked_up)
