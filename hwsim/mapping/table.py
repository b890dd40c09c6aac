"""Traffic, room and time of every combination of tile sizes, loop orders and pieces kept, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwsim.hardware.systolic import ALONG
from hwsim.mapping.chip import ROLES, Role
from hwsim.mapping.choice import ON_CHIP, PIECES, RELEVANT, ROW, TILE, WHOLE, Choice
from hwsim.mapping.cut import Cut

if TYPE_CHECKING:
    from hwsim.mapping.search import Search

Numbers = NDArray[np.float64]
SPREAD: Mapping[Role, Any] = {
    "input": np.s_[:, :, None, None],
    "weight": np.s_[:, None, :, None],
    "output": np.s_[:, None, None, :],
}
"""Each operand's pieces along an axis of their own, after that of the orders."""


class Table:
    """Traffic, room and time of every combination."""

    def __init__(self, search: Search, tried: Mapping[str, Sequence[Cut]], orders: Sequence[str]) -> None:
        self.search, self.tried, self.orders = search, tried, orders
        self.lengths = tuple(len(tried[name]) for name in "mnk")
        self.trips = {name: self._axis(name, [cut.tiles for cut in tried[name]]) for name in "mnk"}
        self.tiles = {role: self._tile_bytes(role) for role in ROLES}
        self._rooms: dict[tuple[Role, str, int], Numbers] = {}
        self.moved = {role: np.stack([self._moved(role, order) for order in self.orders]) for role in ROLES}
        self.pieces = {role: np.stack([self._replaced(role, order) for order in self.orders]) for role in ROLES}

    def best(self, buffers: int) -> list[Choice | None]:
        """For each order the least traffic with so many buffers; then the shortest time, then the fewest tiles."""
        held = {role: np.stack([self._held(role, order, buffers) for order in self.orders]) for role in ROLES}
        fits: Any = True
        for pad in self.search.chip.scratchpads:
            roles = [role for role in ROLES if self.search.chip.pads[role] is pad]
            if roles:
                fits = fits & (sum(held[role][SPREAD[role]] for role in roles) <= self.search.room[pad.name])
        traffic = sum(self.moved[role][SPREAD[role]] for role in ROLES if self._far(role))
        on_chip = sum(self.moved[role][SPREAD[role]] for role in ROLES if not self._far(role))
        shape = (len(self.orders), 3, 3, 3, *self.lengths)
        fits, traffic = np.broadcast_to(fits, shape), np.broadcast_to(np.asarray(traffic, float), shape)
        waits = [self._wait(role)[SPREAD[role]] for role in ROLES if self._far(role)] if buffers > 1 else []
        times = [self._time(traffic, on_chip, buffers), *waits]
        time = np.broadcast_to(np.maximum.reduce(np.broadcast_arrays(*times)), shape)
        return [
            self._least(order, buffers, fits[number], traffic[number], time[number])
            for number, order in enumerate(self.orders)
        ]

    def _least(
        self, order: str, buffers: int, fits: NDArray[np.bool_], traffic: Numbers, time: Numbers
    ) -> Choice | None:
        """The best of one order; None where nothing fits."""
        if not fits.any():
            return None
        least = traffic[fits].min()
        steps = self.trips["m"] * self.trips["n"] * self.trips["k"]
        rank = np.where(fits & (traffic <= least), time + 1e-9 * steps, np.inf)
        where = np.unravel_index(int(np.argmin(rank)), rank.shape)
        found = dict(zip("mnk", (int(i) for i in where[3:]), strict=True))
        return Choice(
            cuts={name: self.tried[name][found[name]] for name in "mnk"},
            order=order,
            pieces=dict(zip(ROLES, (int(i) for i in where[:3]), strict=True)),
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
            names = zip((first, second), whole, strict=True)
            along = [[self.tried[i][0].uncut()] if uncut else self.tried[i] for i, uncut in names]
            values = np.array([[self.search.bytes_of(role, a, b) for b in along[1]] for a in along[0]], float)
            shape = [1, 1, 1]
            shape["mnk".index(first)], shape["mnk".index(second)] = values.shape
            turned = values if "mnk".index(first) < "mnk".index(second) else values.T
            found[whole] = turned.reshape(shape)
        return found

    def _piece(self, role: Role, order: str, piece: int) -> Numbers:
        first, second, _ = RELEVANT[role]
        inner = max((first, second), key=order.index)
        cut = {TILE: (False, False), ROW: (inner == first, inner == second), WHOLE: (True, True)}[piece]
        return self.tiles[role][cut]

    def _held(self, role: Role, order: str, buffers: int) -> Numbers:
        """Room that each piece takes: twice where it is replaced and there are two buffers."""
        first, second, _ = RELEVANT[role]
        outer = min((first, second), key=order.index)
        key = (role, outer, min(buffers, self.search.chip.pads[role].buffers))
        if key not in self._rooms:
            self._rooms[key] = self._room(role, order, outer, key[2])
        return self._rooms[key]

    def _room(self, role: Role, order: str, outer: str, copies: int) -> Numbers:
        rows = np.zeros((3, *self.lengths))
        if not self._moves(role):
            return rows
        first, second, _ = RELEVANT[role]
        counts = (self.trips[first] * self.trips[second], self.trips[outer], 1)
        for piece, count in zip(PIECES, counts, strict=True):
            many = np.asarray(count) * self.search.batches > 1
            rows[piece] = self._piece(role, order, piece) * np.where(many, copies, 1)
        return rows

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

    def _replaced(self, role: Role, order: str) -> Numbers:
        """How often a piece takes the place of another one."""
        if not self._moves(role):
            return np.zeros((3, 1, 1, 1))
        first, second, other = RELEVANT[role]
        inner, outer = max((first, second), key=order.index), min((first, second), key=order.index)
        rows = []
        for count, limit in ((self.trips[first] * self.trips[second], inner), (self.trips[outer], outer)):
            again = self.trips[other] if order.index(other) < order.index(limit) else np.ones((1, 1, 1))
            rows.append(np.broadcast_to(count * again, self.lengths))
        return np.stack([*rows, np.zeros(self.lengths)])

    def _wait(self, role: Role) -> Numbers:
        """Cycles of transfers that follow each other: with two buffers, one begins when the one before is in use.

        Where a scratchpad holds nothing else, as many are under way as it has room for.
        """
        under_way: Any = 1
        if self.search.alone(role):
            room = self.search.room[self.search.chip.pads[role].name]
            sizes = [
                np.stack([np.broadcast_to(self._piece(role, o, p), self.lengths) for p in PIECES]) for o in self.orders
            ]
            under_way = np.maximum(1, room // np.stack(sizes) - 1)
        return np.asarray(self.pieces[role] * self._start() / under_way + self.moved[role] / self._speed())

    def _start(self) -> float:
        """Cycles before the first byte of a transfer comes."""
        chip = self.search.chip
        setup, latency = chip.unit.dma.setup, chip.dram.latency
        cycles = float(setup.cycles(chip.clock_hz)) if setup is not None else 0.0
        if latency is not None:
            cycles += float(latency.seconds(chip.machine.clock_hz(chip.dram.clock)) * chip.clock_hz)
        return cycles

    def _speed(self) -> float:
        """Bytes per cycle of main memory."""
        rate = self.search.chip.bytes_per_cycle(self.search.chip.dram)
        return float(rate) if rate is not None else np.inf

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
        rows = self._summed(along_rows, lambda size: -(-size // array.rows))
        columns = self._summed(along_columns, lambda size: -(-size // array.columns))
        shared = self._summed(along_columns, lambda size: ceil(ceil(size / array.columns) / count))
        stream = self._summed(streamed, lambda size: array.interval(array.stream_cycles(size)))
        ways = [rows * shared * stream]
        if array.dataflow != "os" and count > 1:
            part = self._summed(streamed, lambda size: array.interval(array.stream_cycles(-(-size // count))))
            ways.append(rows * columns * part)
        compute = np.minimum.reduce(np.broadcast_arrays(*ways))
        tiles = self.trips["m"] * self.trips["n"] * self.trips["k"]
        speed, start = self._speed(), self._start()
        moving = (traffic + ON_CHIP * on_chip) / speed
        if buffers == 1:
            return compute + moving + tiles * start
        edge = sum(self.tiles[role][False, False] for role in ROLES if self._far(role))
        return np.maximum(compute + edge / speed + start, moving + compute / tiles)

    def _summed(self, name: str, measure: Callable[[int], int]) -> Numbers:
        """Something of each tile along a loop, added up; those at the edge are smaller."""
        return self._axis(name, [sum(count * measure(size) for size, count in cut.sizes()) for cut in self.tried[name]])
