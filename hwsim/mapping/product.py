"""A product of matrices as a pass over tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from hwsim.hardware.systolic import ALONG, GemmShape
from hwsim.kernels.loop.loops import Operand
from hwsim.mapping.chip import ROLES, Chip, Role
from hwsim.mapping.choice import RELEVANT, ROW, TILE, WHOLE, Choice, Storage
from hwsim.mapping.cut import Cut, cut_to
from hwsim.mapping.fold import fold_tile
from hwsim.mapping.footprint import footprint
from hwsim.mapping.gemm import GemmView
from hwsim.mapping.place import Places, room
from hwsim.mapping.search import Search
from hwsim.mapping.step import NEVER, Ahead, ArrayWork, Counts, Move, Pass, TileStep
from hwsim.mapping.vector import cycles_for, operations
from hwsim.numerics.format import find_format
from hwsim.spec.mapping import MappingSpec

BATCH_STEPS = 8
"""Products that each fit in one tile are taken together, but at least so many steps are left to overlap."""


Shape = tuple[GemmShape, int, bool]
"""A tile's extents, how many of it, and whether earlier sums are added to."""


@dataclass(frozen=True)
class Tile:
    """One tile of one group: its number, its iterations, and how many of each index."""

    number: int
    size: int
    box: Mapping[str, int]


def map_product(chip: Chip, view: GemmView, number: int, places: Places, asked: MappingSpec, buffers: int = 2) -> Pass:
    """Choose tiles, and write down what each of them loads, computes and stores."""
    extents = view.loop.extents
    roles: dict[Role, Operand] = {"input": view.input, "weight": view.weight, "output": view.output}
    storage = {role: _storage(chip, role, operand.tensor, places) for role, operand in roles.items()}
    batches = prod(extents[index] for index in view.batch)
    sum_bits = find_format(chip.sum_format).bits
    search = Search(chip, view, extents, storage, room(chip, places, number), sum_bits, batches)
    choice = search.choose(asked, buffers)
    walk = _Walk(chip, view, search, choice, number, places)
    steps = list(walk.steps())
    return Pass(
        number=number,
        name=view.loop.name,
        unit="array",
        steps=steps,
        ahead=_ahead(chip, search, choice, walk.together),
        counts=walk.counts,
        needs=_needs(chip, roles, storage, places, number, view),
        held=_held(chip, search, choice, walk.together),
        tile={name: choice.cuts[name].size for name in "mnk"},
        order=choice.order,
    )


def _storage(chip: Chip, role: Role, tensor: str, places: Places) -> Storage:
    return Storage(places.bits[tensor], places.level[tensor])


def _needs(
    chip: Chip,
    roles: Mapping[Role, Operand],
    storage: Mapping[Role, Storage],
    places: Places,
    number: int,
    view: GemmView,
) -> tuple[int, ...]:
    """Passes whose results are read where they lie."""
    still = [operand.tensor for role, operand in roles.items() if storage[role].level == chip.pads[role].name]
    still += [operand.tensor for operand in view.loop.operation.late]
    found = {places.producer(tensor, number) for tensor in still}
    return tuple(sorted(found - {-1}))


def _ahead(chip: Chip, search: Search, choice: Choice, together: int) -> Ahead:
    """One tile ahead with two buffers, more where more fit, any number where nothing has to make room."""
    found = {}
    for role in ROLES:
        pad = chip.pads[role]
        first, second, _ = RELEVANT[role]
        copies = min(choice.buffers, pad.buffers)
        if copies == 2 and search.alone(role):
            one = search.bytes_of(role, choice.cuts[first], choice.cuts[second]) * together
            copies = max(copies, search.room[pad.name] // max(1, one))
        whole = choice.pieces[role] == WHOLE and search.batches == together
        found[role] = NEVER if whole and copies > 1 else copies
    return Ahead(found["input"], found["weight"], found["output"])


def _held(chip: Chip, search: Search, choice: Choice, together: int) -> dict[str, int]:
    """What the pieces of all operands take, twice where there are two buffers and more than one piece."""
    taken: Counter[str] = Counter()
    for role in ROLES:
        pad = chip.pads[role]
        if search.storage[role].level == pad.name:
            continue
        first, second, _ = RELEVANT[role]
        inner = max((first, second), key=choice.order.index)
        piece = choice.pieces[role]
        whole = {TILE: (), ROW: (inner,), WHOLE: (first, second)}[piece]
        cuts = [choice.cuts[i].uncut() if i in whole else choice.cuts[i] for i in (first, second)]
        only = all(cut.tiles == 1 for cut in cuts) and search.batches == together
        taken[pad.name] += search.bytes_of(role, *cuts) * together * (1 if only else min(choice.buffers, pad.buffers))
    return dict(taken)


class _Walk:
    """The tiles of a product in their order."""

    def __init__(self, chip: Chip, view: GemmView, search: Search, choice: Choice, number: int, places: Places) -> None:
        self.chip, self.view, self.search, self.choice = chip, view, search, choice
        self.number, self.places = number, places
        self.counts = Counts()
        self.tiles = {name: _tiles(choice.cuts[name]) for name in "mnk"}
        self.batches = cut_to({i: search.extents[i] for i in view.batch}, self._together())
        self.together = self.batches.size
        self._bytes: dict[tuple[object, ...], int] = {}
        self._pieces: Counter[Role] = Counter()
        self._last: dict[Role, tuple[int, ...]] = {}
        self._batch = 0
        self._times: Counter[Shape] = Counter()
        self._works: dict[Shape, tuple[tuple[ArrayWork, ArrayWork], Counts]] = {}

    def _together(self) -> int:
        """How many small products make up one tile."""
        count = self.search.batches
        if any(len(tiles) > 1 for tiles in self.tiles.values()) or count == 1:
            return 1
        most = max(1, count // BATCH_STEPS)
        for pad in self.chip.scratchpads:
            roles = [r for r in ROLES if self.chip.pads[r] is pad and self.search.storage[r].level != pad.name]
            needed = sum(self.search.bytes_of(r, *(self.choice.cuts[i] for i in RELEVANT[r][:2])) for r in roles)
            needed *= min(self.choice.buffers, pad.buffers)
            most = min(most, self.search.room[pad.name] // needed) if needed else most
        return max(1, most)

    def steps(self) -> Iterator[TileStep]:
        order = self.choice.order
        before: tuple[int, ...] | None = None
        for batch in _tiles(self.batches):
            self._batch = batch.number
            for corner in product(*(self.tiles[name] for name in order)):
                here = dict(zip(order, corner, strict=True))
                stationary = (batch.number, *self._stationary(here))
                work = self._work(here, batch.size, before == stationary)
                before = stationary
                yield self._step(here, batch.size, work)
        self._count()

    def _stationary(self, here: Mapping[str, Tile]) -> tuple[int, int]:
        along_rows, along_columns, _ = ALONG[self.chip.array.dataflow]
        return here[along_rows].number, here[along_columns].number

    def _work(self, here: Mapping[str, Tile], batch: int, same: bool) -> ArrayWork:
        shape = GemmShape(here["m"].size, here["n"].size, here["k"].size)
        adds_up = here["k"].number > 0 and self.chip.array.dataflow != "os"
        key = (shape, batch, adds_up)
        if key not in self._works:
            bits = (self.search.storage["input"].bits, self.search.storage["weight"].bits, self.search.sum_bits)
            work, counts, folds = fold_tile(self.chip, shape, batch, bits, adds_up)
            self._works[key] = (work, replace(work, goes_on=folds == 1)), counts
        self._times[key] += 1
        return self._works[key][0][same]

    def _count(self) -> None:
        """What the array reads and writes, tile by tile of each shape."""
        for key, times in self._times.items():
            self.counts += self._works[key][1].scaled(times)

    def _step(self, here: Mapping[str, Tile], batch: int, work: ArrayWork) -> TileStep:
        loads = [self._load(role, here, batch) for role in ("input", "weight") if self._fetches(role, here)]
        stores: list[Move] = []
        spills = self.choice.outside("output") and len(self.tiles["k"]) > 1
        first, last = here["k"].number == 0, here["k"].number == len(self.tiles["k"]) - 1
        sums = -(-batch * here["m"].size * here["n"].size * self.search.sum_bits // 8)
        vector_cycles = 0
        if (spills and not first) or (first and self.view.loop.operation.continues and self._moves("output")):
            loads.append(self._move("output", sums))
        if spills and not last:
            stores.append(self._move("output", sums, store=True))
        if last:
            loop = self.view.loop
            results = (
                batch * here["n"].size * prod(c for i, c in here["m"].box.items() if i in self.view.output.strides)
            )
            loads += self._late(here, batch)
            if loop.late_body.total:
                vector_cycles = cycles_for(self.chip, loop.late_body, results)
                self.counts.vector.update(operations(loop.late_body, results))
            stored = self.search.storage["output"]
            self.counts.touch(self.chip.pads["output"].name, "read", results, self.search.sum_bits)
            if self._moves("output"):
                stores.append(self._move("output", -(-results * stored.bits // 8), store=True))
        return TileStep(
            self.view.loop.name,
            tuple(load for load in loads if load.nbytes),
            tuple(stores),
            work,
            vector_cycles,
            opens=first or spills,
        )

    def _moves(self, role: Role) -> bool:
        return self.search.storage[role].level != self.chip.pads[role].name

    def _fetches(self, role: Role, here: Mapping[str, Tile]) -> bool:
        if not self._moves(role):
            return False
        other = RELEVANT[role][2]
        return here[other].number == 0 or self.choice.outside(role)

    def _load(self, role: Role, here: Mapping[str, Tile], batch: int) -> Move:
        first, second, _ = RELEVANT[role]
        key: tuple[object, ...] = (role, here[first].size, here[second].size)
        if self._piecewise(role):
            key += (here[first].number, here[second].number)
        if key not in self._bytes:
            self._bytes[key] = self._new_bytes(role, here)
        return replace(self._move(role, batch * self._bytes[key]), piece=self._piece(role, here))

    def _piece(self, role: Role, here: Mapping[str, Tile]) -> int:
        """The number of the piece that a tile belongs to: a new one replaces an old one in the scratchpad."""
        first, second, other = RELEVANT[role]
        outer = min((first, second), key=self.choice.order.index)
        around = here[other].number if self.choice.outside(role) else 0
        tiles = {TILE: (here[first].number, here[second].number), ROW: (here[outer].number,), WHOLE: ()}
        key = (self._batch, around, *tiles[self.choice.pieces[role]])
        if self._last.get(role) != key:
            self._last[role] = key
            self._pieces[role] += 1
        return self._pieces[role] - 1

    def _piecewise(self, role: Role) -> bool:
        """Whether neighbouring tiles share bytes, and lie in the scratchpad together, so that these come once."""
        return role == "input" and self.choice.pieces[role] != 0 and self.search.slides

    def _new_bytes(self, role: Role, here: Mapping[str, Tile]) -> int:
        first, second, _ = RELEVANT[role]
        cuts = self.choice.cuts
        if role == "weight" and self.chip.unit.whole_tiles:
            return self.search.padded(here[first].size, here[second].size)
        operand = self.view.input if role == "input" else self.view.weight
        bits = self.search.storage[role].bits
        if not self._piecewise(role):
            return footprint(operand, {**here[first].box, **here[second].box}, bits)
        inner, outer = (sorted((first, second), key=self.choice.order.index))[::-1]
        if self.choice.pieces[role] == ROW:
            whole = footprint(operand, {**here[outer].box, **cuts[inner].extents}, bits)
            place, count = here[inner].number, len(self.tiles[inner])
        else:
            whole = footprint(operand, {**cuts[outer].extents, **cuts[inner].extents}, bits)
            place = here[outer].number * len(self.tiles[inner]) + here[inner].number
            count = len(self.tiles[inner]) * len(self.tiles[outer])
        return whole * (place + 1) // count - whole * place // count

    def _late(self, here: Mapping[str, Tile], batch: int) -> list[Move]:
        """Biases and the like, which come when a sum is finished."""
        box = {**here["m"].box, **here["n"].box, **self.batches.box}
        moves = []
        for operand in self.view.loop.operation.late:
            level = self.places.level[operand.tensor]
            nbytes = footprint(operand, box, self.places.bits[operand.tensor])
            if level not in {pad.name for pad in self.chip.scratchpads}:
                moves.append(
                    Move("input", operand.tensor, level, nbytes, self.places.producer(operand.tensor, self.number))
                )
        return moves

    def _move(self, role: Role, nbytes: int, *, store: bool = False) -> Move:
        operand = {"input": self.view.input, "weight": self.view.weight, "output": self.view.output}[role]
        after = -1 if role == "output" else self.places.producer(operand.tensor, self.number)
        return Move(role, operand.tensor, self.search.storage[role].level, nbytes, after, store=store)


def _tiles(cut: Cut) -> list[Tile]:
    found = []
    for number, ranges in enumerate(cut.ranges()):
        box = {index: count for index, (_, count) in ranges.items()}
        found.append(Tile(number, prod(box.values()), box))
    return found
