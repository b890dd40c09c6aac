"""What a search for tiles decides: their sizes, their order, and what of each operand a scratchpad holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

from hwsim.mapping.chip import Role
from hwsim.mapping.cut import Cut

ORDERS = tuple("".join(order) for order in permutations("mnk"))
TILE, ROW, WHOLE = range(3)
PIECES = (TILE, ROW, WHOLE)
ON_CHIP = 0.05
"""A byte between two scratchpads counts so much of one to or from main memory, where times are estimated."""
RELEVANT: Mapping[Role, tuple[str, str, str]] = {
    "input": ("m", "k", "n"),
    "weight": ("k", "n", "m"),
    "output": ("m", "n", "k"),
}
"""The two loops that an operand depends on, and the one that it does not."""


@dataclass(frozen=True)
class Storage:
    """How an operand lies in memory: bits of an element, bits of a sum where it is one, and the level it moves to."""

    bits: int
    level: str
    """The level behind its scratchpad, or the scratchpad itself where it never moves."""


@dataclass(frozen=True)
class Choice:
    """Tiles, their order, and what of each operand a scratchpad holds."""

    cuts: Mapping[str, Cut]
    order: str
    pieces: Mapping[Role, int]
    buffers: int
    traffic: int
    """Bytes to and from main memory for one product, as estimated by the search."""
    estimate: float
    """Cycles of one product."""

    def outside(self, role: Role) -> bool:
        """Whether the loop that an operand does not depend on runs around its piece: it is fetched again each time."""
        first, second, other = RELEVANT[role]
        place = self.order.index
        inner, outer = max(place(first), place(second)), min(place(first), place(second))
        if self.pieces[role] == WHOLE:
            return False
        return place(other) < (inner if self.pieces[role] == TILE else outer)
