"""Traffic, room, time and energy of every combination of tile sizes, loop orders and pieces kept, as arrays.

The time is that of what is needed longest: the array, main memory, the DMA engines, or a buffer that has to be free
before the next piece can come; before it the first tile comes, after it the last one leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hwsim.program.contraction import GemmShape
from hwsim.targets.systolic.model import ACCESSES, ALONG, ROLES, Role
from hwsim.targets.systolic.tiling import (
    PIECES,
    RELEVANT,
    ROW,
    TILE,
    WHOLE,
    Cut,
    Tiling,
    cycles_for,
    fetched_again,
    nested,
)

if TYPE_CHECKING:
    from hwsim.targets.systolic.gemm import TilingSearch


Numbers = NDArray[np.float64]
Goal = Literal["time", "energy", "traffic"]
SPREAD: Mapping[Role, Any] = {
    "input": np.s_[:, :, None, None],
    "weight": np.s_[:, None, :, None],
    "output": np.s_[:, None, None, :],
}
"""Each operand's pieces along an axis of their own, after that of the orders."""
EQUAL = 2e-3
"""Times that differ by less are taken as equal: then the second aim decides."""
LONG_TILE = 1 << 30
"""Bytes of a tile whose last request does not count."""
NEAR, MOST, TINY = 1.6, 12, 1e-30
"""Choices are looked at closely that are expected to be at most so much worse than the best, and at most so many for
each number of buffers."""
ALIKE = 1.02
"""Of those that are no more than this above the least, the one with the fewest tiles is looked at whatever its rank."""


def _along(name: str, values: Sequence[int]) -> Numbers:
    """Numbers along the axis of a loop."""
    shape = [1, 1, 1]
    shape["mnk".index(name)] = len(values)
    return np.asarray(values, float).reshape(shape)


def _shape(sizes: Mapping[str, Any]) -> GemmShape:
    """Tiles of all sizes at once."""
    return GemmShape(sizes["m"], sizes["n"], sizes["k"])


class ArrayEstimates:
    """Sums over all tiles of a product, for each combination of tile sizes, as arrays over (m, n, k)."""

    def __init__(self, search: TilingSearch, tried: Mapping[str, Sequence[Cut]]) -> None:
        self.search, self.tried = search, tried
        self.array = search.chip.array
        sizes, streams, counts, starts = {}, {}, {}, {}
        for name in "mnk":
            flat = [each for cut in tried[name] for each in cut.boxes()]
            sizes[name] = _along(name, [prod(box.values()) for box, _ in flat])
            streams[name] = _along(name, [search.streamed(name, box) for box, _ in flat])
            counts[name] = _along(name, [count for _, count in flat])
            starts[name] = np.cumsum([0, *(len(cut.sizes()) for cut in tried[name])])[:-1]
        self._starts = starts
        self._count = counts["m"] * counts["n"] * counts["k"]
        shape = _shape(sizes)
        body, gap, one_fold = self._tile(_shape(streams), shape, 1)
        self.bodies, self._gaps, self._goes_on = self._sum(body), self._sum(gap), self._sum(gap * one_fold)
        if search.batches > 1 and all(cuts[-1].tiles == 1 for cuts in tried.values()):
            self._take_together(streams, sizes)
        self.tile_cycles = self.bodies + self._gaps
        """All tiles, one after the other."""
        fills = 0 if self.array.folding == "serial" else self.array.fill_cycles + self.array.drain_cycles
        self.edge_cycles = fills + self._late() / max(1, search.batches)
        """Before the first value enters and after the last one; with serial folds these are in each fold."""
        results = self._late() / _along("m", [cut.tiles for cut in tried["m"]])
        self.out_cycles = self.array.drain_cycles + results / _along("n", [cut.tiles for cut in tried["n"]])
        """From the last value's entry until the results of a tile are out."""
        whole = {name: _along(name, [cut.size for cut in tried[name]]) for name in "mnk"}
        timed = {name: _along(name, [search.streamed(name, cut.box) for cut in tried[name]]) for name in "mnk"}
        self.whole_body = self._tile(_shape(timed), _shape(whole), 1)[0]
        """A tile that is not at the edge, from its first to its last value."""
        self.energy = self._energy(shape)

    def cycles(self, order: str) -> Numbers:
        """Of one product; a stationary tile that stays for the next one is not loaded again."""
        streamed = ALONG[self.array.dataflow][2]
        found = self.bodies + self._gaps
        if order[-1] == streamed:
            trips = _along(streamed, [cut.tiles for cut in self.tried[streamed]])
            found = found - self._goes_on * (1 - 1 / trips)
        late = self._late()
        return np.asarray(found + late if self.array.folding == "serial" else np.maximum(found, late))

    def _late(self) -> float:
        """Cycles of the vector unit for the results of one product."""
        loop, view = self.search.view.loop, self.search.view
        if not loop.late_body.total:
            return 0.0
        own = [i for i in (*view.m, *view.n) if i in view.output.strides]
        return float(cycles_for(self.search.chip, loop.late_body, prod(self.search.extents[i] for i in own)))

    def _take_together(self, streams: Mapping[str, Numbers], sizes: Mapping[str, Numbers]) -> None:
        """Products that fit in one tile are dealt out to all arrays."""
        batch = max(1, self.search.batches // self.search.batch_steps)
        timed, last = (
            _shape({name: values.ravel()[-1:].reshape(1, 1, 1) for name, values in each.items()})
            for each in (streams, sizes)
        )
        body, gap, _ = self._tile(timed, last, batch)
        self.bodies[-1, -1, -1], self._gaps[-1, -1, -1] = body.item() / batch, gap.item() / batch
        self._goes_on[-1, -1, -1] = 0.0

    def _sum(self, values: Any) -> Numbers:
        """Of tiles of each size times how many there are, all that belong to one way to cut."""
        found = np.asarray(values * self._count)
        for axis, name in enumerate("mnk"):
            found = np.add.reduceat(found, self._starts[name], axis=axis)
        return found

    def _tile(self, timed: GemmShape, shape: GemmShape, batch: int) -> tuple[Any, Any, Any]:
        """Cycles from the first to the last value of a tile, then to the next tile, and whether it is one fold.

        `timed` has the rows whose time it takes, `shape` those that it has.
        """
        array, best = self.array, None
        edges = array.fill_cycles + array.drain_cycles
        for folds, stream in array.shares(timed, batch, self.search.chip.unit.count):
            interval = stream + edges if array.folding == "serial" else np.maximum(stream, array.rows)
            body = (folds - 1) * interval + stream
            found: Any = np.stack(np.broadcast_arrays(body, interval - stream, folds == 1))
            best = found if best is None else np.where(found[0] < best[0], found, best)
        assert best is not None
        return np.maximum(best[0], self._feed(shape, batch)), best[1], best[2]

    def _bits(self, shape: GemmShape, batch: int) -> dict[tuple[str, str], Any]:
        """Bits that a tile reads and writes, by scratchpad."""
        search = self.search
        found: dict[tuple[str, str], Any] = {}
        bits = (search.storage["input"].bits, search.storage["weight"].bits, search.sum_bits, search.sum_bits)
        for (role, action), count, each in zip(ACCESSES, self.array.accesses(shape), bits, strict=True):
            key = (search.chip.pads[role].name, action)
            found[key] = found.get(key, 0.0) + batch * (count * each)
        return found

    def _feed(self, shape: GemmShape, batch: int) -> Any:
        """Cycles that the scratchpads need to feed a tile."""
        needed: Any = 0.0
        bits = None
        for pad in dict.fromkeys(self.search.chip.pads[role].name for role in ROLES):
            rate = self.search.chip.pad_rates.get(pad)
            if rate is not None:
                bits = bits or self._bits(shape, batch)
                most = np.maximum(bits.get((pad, "read"), 0.0), bits.get((pad, "write"), 0.0))
                needed = np.maximum(needed, most / 8 / float(rate))
        return needed

    def _energy(self, shape: GemmShape) -> Any:
        """Joules of the scratchpads for all products."""
        prices = self.search.chip.prices
        if prices is None:
            return 0.0
        bits = self._bits(shape, 1)
        total = sum(prices.per_bit(pad, action) * each for (pad, action), each in bits.items())
        return self.search.batches * self._sum(total)


@dataclass(frozen=True)
class Ranking:
    """What is compared of all combinations with so many buffers, over (order, piece, piece, piece, m, n, k)."""

    buffers: int
    fits: NDArray[np.bool_]
    time: Numbers
    energy: Numbers
    traffic: Numbers
    held: list[Numbers]
    """Bytes in each scratchpad."""

    def aims(self, goal: Goal) -> tuple[Numbers, Numbers]:
        """What is least first, and what decides between equals."""
        return {
            "time": (self.time, self.energy),
            "energy": (self.energy, self.time),
            "traffic": (self.traffic, self.time),
        }[goal]


class TilingEstimates:
    """Traffic, room, time and energy of every combination."""

    def __init__(self, search: TilingSearch, tried: Mapping[str, Sequence[Cut]], orders: Sequence[str]) -> None:
        self.search, self.tried, self.orders = search, tried, orders
        self.lengths = tuple(len(tried[name]) for name in "mnk")
        self.shape = (len(orders), 3, 3, 3, *self.lengths)
        self.trips = {name: _along(name, [cut.tiles for cut in tried[name]]) for name in "mnk"}
        self.count = self.trips["m"] * self.trips["n"] * self.trips["k"]
        """Tiles."""
        self.tiles = {role: self._tile_bytes(role) for role in ROLES}
        self._rooms: dict[tuple[Role, str, int], Numbers] = {}
        self._sizes: dict[Role, Numbers] = {}
        self._ranked: dict[int, Ranking] = {}
        self.moved = {role: np.stack([self._moved(role, order) for order in orders]) for role in ROLES}
        self.pieces = {role: np.stack([self._replaced(role, order) for order in orders]) for role in ROLES}
        self.transfers = {role: np.stack([self._transfers(role, order) for order in orders]) for role in ROLES}
        self._pieces_once = self.trips["m"] * self.trips["n"]
        self.compute = ArrayEstimates(search, tried)
        self.cycles = np.stack([self.compute.cycles(order) for order in orders])[:, None, None, None]

    def rank(self, buffers: int) -> Ranking:
        """Everything that is compared, with at most so many buffers."""
        if buffers not in self._ranked:
            self._ranked[buffers] = self._rank(buffers)
        return self._ranked[buffers]

    def _rank(self, buffers: int) -> Ranking:
        held = {role: np.stack([self._held(role, order, buffers) for order in self.orders]) for role in ROLES}
        taken = []
        fits: Any = True
        for pad in self.search.chip.scratchpads:
            roles = [role for role in ROLES if self.search.chip.pads[role] is pad]
            if roles:
                taken.append(sum(held[role][SPREAD[role]] for role in roles))
                fits = fits & (taken[-1] <= self.search.room[pad.name])
        if self.search.anew:  # nothing but tiles is held
            fits = np.broadcast_to(fits, self.shape).copy()
            fits[:, ROW:] = fits[:, :, ROW:] = False
        traffic: Any = sum(self.moved[role][SPREAD[role]] for role in ROLES if self._far(role))
        time = self._time(buffers)
        fits, time, energy, traffic, *taken = (
            np.broadcast_to(np.asarray(each), self.shape)
            for each in (fits, time, self._energy(traffic, time), traffic, *taken)
        )
        return Ranking(buffers, fits, time, energy, traffic, taken)

    def best(self, goal: Goal, buffers: Sequence[int], most: int = MOST) -> list[Tiling]:
        """The best that fit, the very best first: of those that need no less room than a better one, none. At most so
        many for each number of buffers.

        What is kept of all that fit is kept in larger scratchpads too, so that these can only help.
        """
        rankings = [ranking for ranking in map(self.rank, buffers) if ranking.fits.any()]
        least = min((float(ranking.aims(goal)[0][ranking.fits].min()) for ranking in rankings), default=0.0)
        near = NEAR if most > 1 else 1 + 2 * EQUAL
        steps = np.broadcast_to(self.count, self.shape)
        found: list[tuple[tuple[float, ...], Tiling]] = []
        for ranking in rankings:
            first, second = ranking.aims(goal)
            where = np.nonzero(ranking.fits & (first <= near * max(least, TINY)))
            values = np.stack([about(first[where]), about(second[where]), steps[where], first[where]])
            order = np.lexsort(values[::-1])
            kept = _undominated(np.stack([each[where][order] for each in ranking.held]), most)
            alike = np.nonzero(values[3][order] <= ALIKE * max(least, TINY))[0]
            if most > 1 and alike.size:  # an estimate is surer of few large tiles than of many small ones
                kept = list(dict.fromkeys([*kept, int(alike[np.argmin(values[2][order][alike])])]))
            for place in order[kept]:
                choice = self._choice(ranking, tuple(int(axis[place]) for axis in where))
                found.append((tuple(values[:, place]), choice))
        return [choice for _, choice in sorted(found, key=lambda pair: pair[0])]

    def _choice(self, ranking: Ranking, where: tuple[int, ...]) -> Tiling:
        places = dict(zip("mnk", where[4:], strict=True))
        return Tiling(
            cuts={name: self.tried[name][places[name]] for name in "mnk"},
            order=self.orders[where[0]],
            pieces=dict(zip(ROLES, where[1:4], strict=True)),
            buffers=ranking.buffers,
            traffic=int(ranking.traffic[where]),
            estimate=float(ranking.time[where]),
            energy=float(ranking.energy[where]),
            anew=self.search.anew,
        )

    def _far(self, role: Role) -> bool:
        return self.search.storage[role].level == self.search.chip.dram.name

    # Bytes ------------------------------------------------------------------------------------------------------------

    def _tile_bytes(self, role: Role) -> dict[tuple[bool, bool], Numbers]:
        """Bytes of a piece: along each of its two loops cut, or whole."""
        first, second, _ = RELEVANT[role]
        found = {}
        for whole in ((False, False), (True, False), (False, True), (True, True)):
            names = zip((first, second), whole, strict=True)
            along = [[self.tried[i][0].uncut()] if uncut else self.tried[i] for i, uncut in names]
            values = np.array([[self.search.bytes_of(role, a, b) for b in along[1]] for a in along[0]], float)
            found[whole] = self._spread(first, second, values)
        return found

    @cached_property
    def _full(self) -> dict[Role, Any]:
        """The share of a DMA engine's requests that tiles of an operand fill."""
        if self.search.chip.unit.dma.request is None:
            return dict.fromkeys(ROLES, 1.0)
        found: dict[Role, Any] = {}
        for role in ROLES:
            first, second, _ = RELEVANT[role]
            pairs = [[{**a.box, **b.box} for b in self.tried[second]] for a in self.tried[first]]
            padded = partial(self.search.padded, role, nbytes=LONG_TILE, store=role == "output")
            values = np.array([[LONG_TILE / padded(box) for box in row] for row in pairs])
            found[role] = self._spread(first, second, values)
        return found

    def _spread(self, first: str, second: str, values: Numbers) -> Numbers:
        """Values over two loops along their axes."""
        shape = [1, 1, 1]
        shape["mnk".index(first)], shape["mnk".index(second)] = values.shape
        turned = values if "mnk".index(first) < "mnk".index(second) else values.T
        return turned.reshape(shape)

    def _piece(self, role: Role, order: str, piece: int) -> Numbers:
        first, second, _ = RELEVANT[role]
        _, inner = nested(role, order)
        cut = {TILE: (False, False), ROW: (inner == first, inner == second), WHOLE: (True, True)}[piece]
        return self.tiles[role][cut]

    def _held(self, role: Role, order: str, buffers: int) -> Numbers:
        """Room that each piece takes: twice where it is replaced and there are two buffers."""
        key = (role, nested(role, order)[0], buffers)
        if key not in self._rooms:
            self._rooms[key] = self._room(role, order, buffers)
        return self._rooms[key]

    def _used(self, role: Role) -> Numbers:
        """Cycles for which all tiles of an operand are in use: while values enter, and before, where it fills cells."""
        dataflow = self.search.chip.array.dataflow
        fills = self.search.chip.array.fill_cycles if {"ws": "weight", "is": "input"}.get(dataflow) == role else 0
        return np.asarray(self.compute.bodies + fills * self.count)

    def _uneven(self, role: Role, depth: Numbers, steps: Any, first: Any) -> Numbers:
        """Cycles where the large tiles all meet in one buffer: there are as few tiles in the innermost loop as buffers.

        A buffer is then never used by a tile at the edge, which would give it time.
        """
        found = np.zeros((len(self.orders), 3, *self.lengths))
        tile = self.tiles[role][False, False] / self._speed(role)
        for number, order in enumerate(self.orders):
            inner = self.trips[order[-1]]
            waits = steps * self.pieces[role][number, TILE] * (first + tile)
            copies = depth[number, TILE]
            chain = (waits + self.search.batches * self.count * self.compute.whole_body) / copies
            found[number, TILE] = np.where((inner > 1) & (inner <= copies), chain, 0.0)
        return found

    def _copies(self, role: Role, buffers: int) -> Numbers:
        """Pieces of an operand that have room at once, by order and by what is kept."""
        if role not in self._sizes:
            sizes = [self._rows([self._piece(role, order, piece) for piece in PIECES]) for order in self.orders]
            self._sizes[role] = np.stack(sizes)
        return np.asarray(self.search.copies(role, buffers, self._sizes[role]), float)

    def _rows(self, pieces: Sequence[Any]) -> Numbers:
        """What holds for each piece, over all tiles."""
        found = np.empty((len(pieces), *self.lengths))
        for number, values in enumerate(pieces):
            found[number] = values
        return found

    def _room(self, role: Role, order: str, buffers: int) -> Numbers:
        rows = np.zeros((3, *self.lengths))
        if not self.search.moves(role):
            return rows
        for piece, count in zip(PIECES, self._pieces_of(role, order), strict=True):
            many = count * self.search.batches > 1
            size = self._piece(role, order, piece)
            rows[piece] = size * np.where(many, self.search.copies(role, buffers, size), 1)
        return rows

    def _pieces_of(self, role: Role, order: str) -> tuple[Numbers, Numbers, Numbers]:
        """Into how many pieces an operand is cut: tiles, rows of tiles, or the whole."""
        first, second, _ = RELEVANT[role]
        return self.trips[first] * self.trips[second], self.trips[nested(role, order)[0]], np.ones((1, 1, 1))

    def _again(self, role: Role, order: str) -> list[Numbers]:
        """How often all of an operand comes, for each piece that may be kept."""
        once, trips = np.ones((1, 1, 1)), self.trips[RELEVANT[role][2]]
        anew = self.search.anew and role != "output"
        return [trips if anew or fetched_again(role, order, piece) else once for piece in PIECES]

    def _moved(self, role: Role, order: str) -> Numbers:
        """Bytes that each piece brings from the level behind, or takes there."""
        if not self.search.moves(role):
            return np.zeros((3, 1, 1, 1))
        rows: list[Any] = []
        for piece, again in zip(PIECES, self._again(role, order), strict=True):
            if role == "output":
                sums = float(self.tiles[role][True, True].item())
                stored = sums / self.search.sum_bits * self.search.storage[role].bits
                rows.append(stored + 2 * sums * (again - 1))
            else:
                rows.append(self._once(role, order, piece) * again)
        return self._rows(rows)

    def _once(self, role: Role, order: str, piece: int) -> Numbers:
        """All pieces of an operand one after the other: as much as there is, and what neighbours share twice."""
        padded = role == "weight" and self.search.chip.unit.whole_tiles
        if not padded and not (role == "input" and self.search.slides):
            return self.tiles[role][True, True]
        return np.asarray(self._pieces_of(role, order)[piece] * self._piece(role, order, piece))

    def _replaced(self, role: Role, order: str) -> Numbers:
        """How often a piece takes the place of another one."""
        if not self.search.moves(role):
            return np.zeros((3, 1, 1, 1))
        counts = zip(self._pieces_of(role, order)[:2], self._again(role, order), strict=False)
        return self._rows([*(count * times for count, times in counts), float(self.search.batches > 1)])

    def _transfers(self, role: Role, order: str) -> Numbers:
        """How often something is moved: tile by tile, whatever piece they are parts of."""
        if not self.search.moves(role):
            return np.zeros((3, 1, 1, 1))
        count, _, _ = self._pieces_of(role, order)
        times = [2 * again - 1 if role == "output" else again for again in self._again(role, order)]
        return self._rows([count * each for each in times])

    # Time -------------------------------------------------------------------------------------------------------------

    def _time(self, buffers: int) -> Any:
        """Cycles of all products of a loop: those that any number of buffers takes, or what waits for a buffer."""
        chip, batches, steps = self.search.chip, self.search.batches, self._steps
        most = self._side_by_side
        alone: Any = 0.0
        asks: Any = 0.0
        for role in ROLES:
            if not self.search.moves(role):
                continue
            first: Any = chip.start_cycles + 1 if self._far(role) else 1.0  # seen at the end of a cycle
            first = first + self.compute.out_cycles if role == "output" else first
            depth, carried = self._copies(role, buffers), self.moved[role] / self._speed(role)
            if min(buffers, chip.pads[role].buffers) == 1:
                asks = np.maximum(asks, (steps * self.transfers[role] * first)[SPREAD[role]])
                alone = alone + batches * carried[SPREAD[role]]
            else:
                waits = (steps * self.pieces[role] * first + batches * (carried + self._used(role))) / depth
                waits = np.maximum(waits, self._uneven(role, depth, steps, first))
                most = np.maximum(most, waits[SPREAD[role]])
            if role == "output" and min(buffers, chip.pads["input"].buffers) > 1:
                back = steps * (self.pieces[role] - self._pieces_once) * first + batches * carried / 2
                back = (back + batches * self.compute.bodies) / 2
                most = np.maximum(most, back[SPREAD[role]])
        if np.ndim(alone):
            most = np.maximum(most, batches * self.cycles + asks + alone)
        return most + self.compute.edge_cycles

    @cached_property
    def _steps(self) -> Numbers:
        """How often a product begins: those that fit in one tile come several at a time."""
        return np.where(self.count > 1, self.search.batches, min(self.search.batches, self.search.batch_steps))

    @cached_property
    def _side_by_side(self) -> Any:
        """The array between the first load and the last store, main memory, or its engines: whichever takes longest."""
        chip, batches = self.search.chip, self.search.batches
        start, speed = chip.start_cycles, chip.dram_speed
        far = [role for role in ROLES if self._far(role)]
        link: Any = sum((self.moved[role] / self._rate(role))[SPREAD[role]] for role in far)
        head: Any = 0.0
        for role in ROLES[:2]:
            if self._far(role):
                head = np.maximum(head, start) + self.tiles[role][False, False] / speed
        tail = start + self.tiles["output"][False, False] / speed if self._far("output") else 0.0
        last = self.compute.tile_cycles / np.maximum(1, self.count)
        found = np.maximum(
            batches * self.cycles + head + tail, batches * link + start + last + (start if self._far("output") else 0.0)
        )
        dma = chip.unit.dma
        setting = float(chip.setup_cycles)
        stores = [] if dma.writers is None else ["output"]
        for engines, roles in ((dma.engines, set(far) - set(stores)), (dma.writers or 1, set(far) & set(stores))):
            asked: Any = sum(self.transfers[role][SPREAD[role]] for role in sorted(roles))
            busy: Any = sum((self.moved[role] / self._speed(role))[SPREAD[role]] for role in sorted(roles))
            found = np.maximum(found, (self._steps * asked * setting + batches * busy) / engines)
        return found

    def _speed(self, role: Role) -> Any:
        """Bytes per cycle of the level behind an operand's scratchpad, and of an engine whose requests are not full."""
        chip, fastest = self.search.chip, self._rate(role)
        writes = role == "output" and chip.unit.dma.writers is not None
        limit = (chip.writing_rate if writes else chip.engine_rate) if self._far(role) else None
        return fastest if limit is None else np.minimum(fastest, float(limit) * self._full[role])

    def _rate(self, role: Role) -> float:
        """Bytes per cycle of the level behind an operand's scratchpad."""
        chip = self.search.chip
        rate = chip.rates[self.search.storage[role].level]
        if role == "output" and self._far(role) and chip.dram.write_bandwidth is not None:
            rate = chip.bytes_per_cycle(chip.dram, chip.dram.write_bandwidth)
        return np.inf if rate is None else float(rate)

    # Energy -----------------------------------------------------------------------------------------------------------

    def _energy(self, traffic: Any, time: Any) -> Any:
        """Joules of what depends on the choice: bytes to and from memory, scratchpads and time; else bytes alone."""
        prices = self.search.chip.prices
        if prices is None:
            return traffic
        bits = 8.0 * self.search.batches * traffic
        static = prices.static_watts * time / self.search.chip.clock_hz
        return prices.per_bit(self.search.chip.dram.name) * bits + self.compute.energy + static


def about(value: Any) -> Any:
    """A number that is the same for values which are taken as equal."""
    return np.floor(np.log(np.maximum(value, TINY)) / np.log1p(EQUAL))


def _undominated(held: Numbers, most: int) -> list[int]:
    """Of columns in the order of their rank, the first of those that need less of something than each one before."""
    found: list[int] = []
    left = np.arange(held.shape[1])
    while left.size and len(found) < most:
        found.append(int(left[0]))
        one = held[:, left[0] : left[0] + 1]
        left = left[1:][(held[:, left[1:]] < one).any(axis=0)]
    return found
