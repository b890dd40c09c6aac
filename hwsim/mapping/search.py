"""Which tiles, in which order: of all that fit the scratchpads, those that move the fewest bytes to and from memory.

Tiles of A[m,k], B[k,n] and C[m,n] are walked by three loops. What is in a scratchpad of an operand is one tile, a row
of tiles along its inner loop, or all of it; it is fetched again for each iteration of a loop around that it does not
depend on. All combinations of tile sizes, loop orders and pieces kept are laid out in arrays and compared at once.
Equal traffic is decided by an estimate of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwsim.errors import CapacityError
from hwsim.hardware.systolic import ALONG
from hwsim.mapping.chip import ROLES, Chip, Role
from hwsim.mapping.cut import Cut, cut_to, cuts
from hwsim.mapping.footprint import footprint, slides
from hwsim.mapping.gemm import GemmView
from hwsim.spec.mapping import MappingSpec
from hwsim.units import format_bytes

Numbers = NDArray[np.float64]
ORDERS = tuple("".join(order) for order in permutations("mnk"))
TILE, ROW, WHOLE = range(3)
PIECES = (TILE, ROW, WHOLE)
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

    def choose(self, asked: MappingSpec) -> Choice:
        """The best that fits; raises CapacityError where nothing does."""
        tried = {name: self._cuts(name, getattr(asked, f"tile_{name}")) for name in "mnk"}
        orders = ORDERS if asked.order == "auto" else (asked.order,)
        table = _Table(self, tried, orders)
        double = [pad for pad in self.chip.scratchpads if pad.buffers == 2]
        single = table.best(1)
        best = table.best(2) if double else single
        if best is None or (single is not None and single.estimate < best.estimate):
            best = single
        if best is None:
            raise self._too_large(tried)
        return best

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


class _Table:
    """Traffic, room and time of every combination."""

    def __init__(self, search: Search, tried: Mapping[str, Sequence[Cut]], orders: Sequence[str]) -> None:
        self.search, self.tried, self.orders = search, tried, orders
        self.lengths = tuple(len(tried[name]) for name in "mnk")
        self.trips = {name: self._axis(name, [cut.tiles for cut in tried[name]]) for name in "mnk"}
        self.sizes = {name: self._axis(name, [cut.size for cut in tried[name]]) for name in "mnk"}
        self.tiles = {role: self._tile_bytes(role) for role in ROLES}
        self.moved = {role: np.stack([self._moved(role, order) for order in self.orders]) for role in ROLES}

    def best(self, buffers: int) -> Choice | None:
        """The least traffic with so many buffers; then the shortest time, then the fewest tiles."""
        held = {role: np.stack([self._held(role, order, buffers) for order in self.orders]) for role in ROLES}
        moved = self.moved
        spread = {
            "input": np.s_[:, :, None, None],
            "weight": np.s_[:, None, :, None],
            "output": np.s_[:, None, None, :],
        }
        fits: Any = True
        for pad in self.search.chip.scratchpads:
            roles = [role for role in ROLES if self.search.chip.pads[role] is pad]
            if roles:
                fits = fits & (sum(held[role][spread[role]] for role in roles) <= self.search.room[pad.name])
        traffic = sum(moved[role][spread[role]] for role in ROLES if self._far(role))
        on_chip = sum(moved[role][spread[role]] for role in ROLES if not self._far(role))
        shape = (len(self.orders), 3, 3, 3, *self.lengths)
        fits, traffic = np.broadcast_to(fits, shape), np.broadcast_to(np.asarray(traffic, float), shape)
        if not fits.any():
            return None
        least = traffic[fits].min()
        time = np.broadcast_to(self._time(traffic, on_chip, buffers), shape)
        steps = self.trips["m"] * self.trips["n"] * self.trips["k"]
        good = fits & (traffic <= least)
        rank = np.where(good, time + 1e-9 * steps, np.inf)
        where = np.unravel_index(int(np.argmin(rank)), shape)
        order = self.orders[int(where[0])]
        found = dict(zip("mnk", (int(i) for i in where[4:]), strict=True))
        return Choice(
            cuts={name: self.tried[name][found[name]] for name in "mnk"},
            order=order,
            pieces=dict(zip(ROLES, (int(i) for i in where[1:4]), strict=True)),
            buffers=buffers,
            traffic=int(least),
            estimate=float(time[where]),
        )

    def _axis(self, name: str, values: Sequence[int]) -> Numbers:
        shape = [1, 1, 1]
        shape["mnk".index(name)] = len(values)
        return np.asarray(values, float).reshape(shape)

    def _moves(self, role: Role) -> bool:
        return self.search.storage[role].level != self.search.chip.pads[role].name

    def _far(self, role: Role) -> bool:
        return self.search.storage[role].level == self.search.chip.dram.name

    def _tile_bytes(self, role: Role) -> dict[tuple[bool, bool], Numbers]:
        """Bytes of a piece: along each of its two loops cut, or whole."""
        first, second, _ = RELEVANT[role]
        found = {}
        for whole in ((False, False), (True, False), (False, True), (True, True)):
            along = [self._uncut(i) if all_ else self.tried[i] for i, all_ in zip((first, second), whole, strict=True)]
            values = np.array([[self.search.bytes_of(role, a, b) for b in along[1]] for a in along[0]], float)
            shape = [1, 1, 1]
            shape["mnk".index(first)], shape["mnk".index(second)] = values.shape
            turned = values if "mnk".index(first) < "mnk".index(second) else values.T
            found[whole] = turned.reshape(shape)
        return found

    def _uncut(self, name: str) -> list[Cut]:
        cut = self.tried[name][0]
        return [cut_to(cut.extents, cut.total)]

    def _piece(self, role: Role, order: str, piece: int) -> Numbers:
        first, second, _ = RELEVANT[role]
        inner = max((first, second), key=order.index)
        cut = {TILE: (False, False), ROW: (inner == first, inner == second), WHOLE: (True, True)}[piece]
        return self.tiles[role][cut]

    def _held(self, role: Role, order: str, buffers: int) -> Numbers:
        """Room that each piece takes: twice where it is replaced and there are two buffers."""
        if not self._moves(role):
            return np.zeros((3, 1, 1, 1))
        first, second, _ = RELEVANT[role]
        outer = min((first, second), key=order.index)
        pad = self.search.chip.pads[role]
        copies = min(buffers, pad.buffers)
        changing = {TILE: self.trips[first] * self.trips[second], ROW: self.trips[outer], WHOLE: np.ones((1, 1, 1))}
        rows = []
        for piece in PIECES:
            many = (changing[piece] > 1) | (self.search.batches > 1)
            rows.append(np.broadcast_to(self._piece(role, order, piece) * np.where(many, copies, 1), self.lengths))
        return np.stack(rows)

    def _moved(self, role: Role, order: str) -> Numbers:
        """Bytes that each piece brings from the level behind, or takes there."""
        if not self._moves(role):
            return np.zeros((3, 1, 1, 1))
        first, second, other = RELEVANT[role]
        inner, outer = max((first, second), key=order.index), min((first, second), key=order.index)
        rows = []
        for piece, limit in ((TILE, inner), (ROW, outer), (WHOLE, "")):
            again = self.trips[other] if limit and order.index(other) < order.index(limit) else np.ones((1, 1, 1))
            if role == "output":
                sums = float(self.tiles[role][True, True].item())
                stored = sums / self.search.sum_bits * self.search.storage[role].bits
                rows.append(np.broadcast_to(stored + 2 * sums * (again - 1), self.lengths))
                continue
            once = self._once(role, order, piece)
            rows.append(np.broadcast_to(once * again, self.lengths))
        return np.stack(rows)

    def _once(self, role: Role, order: str, piece: int) -> Numbers:
        """All pieces of an operand one after the other: as much as there is, and what neighbours share twice."""
        first, second, _ = RELEVANT[role]
        padded = role == "weight" and self.search.chip.unit.whole_tiles
        if not padded and not (role == "input" and self.search.slides):
            return self.tiles[role][True, True]
        outer = min((first, second), key=order.index)
        count = {TILE: self.trips[first] * self.trips[second], ROW: self.trips[outer], WHOLE: np.ones((1, 1, 1))}
        return np.asarray(count[piece] * self._piece(role, order, piece))

    def _time(self, traffic: Numbers, on_chip: Any, buffers: int) -> Any:
        """Cycles: all arithmetic after the first tile has come, or all transfers and then the last arithmetic."""
        chip = self.search.chip
        array, count = chip.array, chip.unit.count
        along_rows, along_columns, streamed = ALONG[array.dataflow]
        fold_rows = np.ceil(self.sizes[along_rows] / array.rows)
        fold_columns = np.ceil(self.sizes[along_columns] / array.columns)
        stream = self.sizes[streamed] / float(array.rate)
        tiles = self.trips["m"] * self.trips["n"] * self.trips["k"]
        ways = [fold_rows * np.ceil(fold_columns / count) * self._interval(stream)]
        if array.dataflow != "os":
            ways.append(fold_rows * fold_columns * self._interval(np.ceil(stream / count)))
        compute = tiles * np.minimum.reduce(np.broadcast_arrays(*ways))
        rate = chip.bytes_per_cycle(chip.dram)
        speed = float(rate) if rate is not None else np.inf
        setup = chip.unit.dma.setup
        start = float(setup.cycles(chip.clock_hz)) if setup is not None else 0.0
        moving = (traffic + 0.05 * on_chip) / speed + tiles * start / chip.unit.dma.engines
        if buffers == 1:
            return compute + moving
        edge = sum(self.tiles[role][False, False] for role in ROLES if self._far(role))
        return np.maximum(compute + edge / speed + start, moving + compute / tiles)

    def _interval(self, stream: Numbers) -> Numbers:
        array = self.search.chip.array
        if array.folding == "serial":
            return stream + (array.fill_cycles + array.drain_cycles)
        return np.maximum(stream, array.rows)
