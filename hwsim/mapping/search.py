"""Which tiles, in which order: of all that fit the scratchpads, those that move the fewest bytes to and from memory.

Tiles of A[m,k], B[k,n] and C[m,n] are walked by three loops. What is in a scratchpad of an operand is one tile, a row
of tiles along its inner loop, or all of it; it is fetched again for each iteration of a loop around that it does not
depend on. All combinations of tile sizes, loop orders and pieces kept are laid out in arrays and compared at once.
Equal traffic is decided by an estimate of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt

from hwsim.errors import CapacityError
from hwsim.hardware.systolic import ALONG
from hwsim.mapping.chip import ROLES, Chip, Role
from hwsim.mapping.choice import ORDERS, RELEVANT, Choice, Storage
from hwsim.mapping.cut import Cut, cut_to, cuts
from hwsim.mapping.footprint import footprint, slides
from hwsim.mapping.gemm import GemmView
from hwsim.mapping.table import Table
from hwsim.spec.mapping import MappingSpec
from hwsim.units import format_bytes


class Search:
    """All ways to cut one product, as arrays over (order, piece, m, n, k)."""

    def __init__(
        self,
        chip: Chip,
        view: GemmView,
        extents: Mapping[str, int],
        storage: Mapping[Role, Storage],
        room: Mapping[str, int],
        sum_bits: int,
        batches: int,
    ) -> None:
        self.chip, self.view, self.storage, self.room = chip, view, storage, room
        self.extents, self.sum_bits, self.batches = extents, sum_bits, batches
        self.groups = {"m": view.m, "n": view.n, "k": view.k}
        self.slides = slides(view.input, extents)
        """Whether neighbouring tiles of the input share bytes, as those of a convolution do."""
        self._plain = {"input": not self.slides, "weight": not slides(view.weight, extents)}

    def choose(self, asked: MappingSpec, buffers: int = 2) -> Choice:
        """The best that fits, with at most so many buffers; raises CapacityError where nothing does."""
        tried = {name: self._cuts(name, getattr(asked, f"tile_{name}")) for name in "mnk"}
        orders = ORDERS if asked.order == "auto" else (asked.order,)
        table = Table(self, tried, orders)
        single = table.best(1)
        double = table.best(2) if buffers == 2 and self.chip.overlaps else single
        found = [choice for choice in map(_better, double, single) if choice is not None]
        if not found:
            raise self._too_large(tried)
        return min(found, key=lambda choice: (choice.traffic, choice.estimate))

    def _cuts(self, name: str, asked: int | None) -> list[Cut]:
        extents = {index: self.extents[index] for index in self.groups[name]}
        along_rows, along_columns, _ = ALONG[self.chip.array.dataflow]
        array = self.chip.array
        side = {along_rows: array.rows, along_columns: array.columns}.get(name, max(array.rows, array.columns))
        return [cut_to(extents, asked)] if asked is not None else cuts(extents, side)

    def bytes_of(self, role: Role, first: Cut, second: Cut) -> int:
        """A piece of an operand in its scratchpad; sums lie there in the accumulator's format."""
        if role == "output":
            return -(-first.size * second.size * self.sum_bits // 8)
        if role == "weight" and self.chip.unit.whole_tiles:
            return self.padded(first.size, second.size)
        if self._plain[role]:
            return -(-first.size * second.size * self.storage[role].bits // 8)
        operand = self.view.input if role == "input" else self.view.weight
        return footprint(operand, {**first.box, **second.box}, self.storage[role].bits)

    def padded(self, k: int, n: int) -> int:
        rows, columns = self.chip.array.rows, self.chip.array.columns
        elements = -(-k // rows) * rows * -(-n // columns) * columns
        return -(-elements * self.storage["weight"].bits // 8)

    def alone(self, role: Role) -> bool:
        """Whether a scratchpad holds nothing but this operand: then it is filled with as many pieces as fit."""
        return [each for each in ROLES if self.chip.pads[each] is self.chip.pads[role]] == [role]

    def _too_large(self, tried: Mapping[str, Sequence[Cut]]) -> CapacityError:
        smallest = {name: found[0] for name, found in tried.items()}
        for pad in self.chip.scratchpads:
            roles = [role for role in ROLES if self.chip.pads[role] is pad and self.storage[role].level != pad.name]
            needed = sum(self.bytes_of(role, *(smallest[i] for i in RELEVANT[role][:2])) for role in roles)
            if needed > self.room[pad.name]:
                break
        else:
            raise AssertionError("something fits after all")
        bits = sum(self.sum_bits if role == "output" else self.storage[role].bits for role in roles)
        side = isqrt(max(0, self.room[pad.name]) * 8 // bits)
        shape = " x ".join(f"{name} {smallest[name].size}" for name in "mnk")
        taken = self.room[pad.name] != pad.size
        has = f"which has {format_bytes(pad.size)}" + (
            f", {format_bytes(self.room[pad.name])} of it free" if taken else ""
        )
        return CapacityError(
            f"{self.view.loop.name}: a tile of {shape} needs {format_bytes(needed)} in {pad.name} "
            f"({', '.join(roles)}), {has}; "
            + (f"the largest square tile that fits is {side}" if side else "not even one element fits")
        )


def _better(double: Choice | None, single: Choice | None) -> Choice | None:
    """Two buffers, unless the larger tiles of one are faster, or nothing else fits."""
    if double is None or (single is not None and single.estimate < double.estimate):
        return single
    return double
