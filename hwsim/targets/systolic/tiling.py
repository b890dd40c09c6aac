"""Tiles: how loops are cut into them, what a mapper decides about them, and what each one loads, computes and stores.

A group of indices is cut into nested tiles: the inner indices whole, one in between cut, the outer ones one by one. A
pass is one loop of a kernel as steps, each of which is one tile or some neighbours taken together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import permutations, product
from math import prod
from typing import TypeVar

from hwsim.program.contraction import GemmShape
from hwsim.program.loops import Range
from hwsim.targets.systolic.model import Allocation, Chip, Role
from hwsim.trace.nest import Instructions

_Key = TypeVar("_Key")

MOST_CUTS = 8
"""Sizes of a tile that are tried along each group."""
ORDERS = tuple("".join(order) for order in permutations("mnk"))
TILE, ROW, WHOLE = range(3)
PIECES = (TILE, ROW, WHOLE)
RELEVANT: Mapping[Role, tuple[str, str, str]] = {
    "input": ("m", "k", "n"),
    "weight": ("k", "n", "m"),
    "output": ("m", "n", "k"),
}
"""The two loops that an operand depends on, and the one that it does not."""
NEVER = 1 << 30
"""How far ahead a transfer may run where its room is never needed for anything else."""
MOST_STEPS = 2048
"""Steps of a pass that are played one by one; of a longer pass, neighbours are played together."""


@dataclass(frozen=True)
class Cut:
    """One way to cut a group: the iterations of each index in a tile."""

    extents: Mapping[str, int]
    box: Mapping[str, int]

    @cached_property
    def size(self) -> int:
        """Iterations in a whole tile."""
        return prod(self.box.values())

    @property
    def total(self) -> int:
        return prod(self.extents.values())

    @cached_property
    def tiles(self) -> int:
        return prod([-(-extent // self.box[index]) for index, extent in self.extents.items()])

    def uncut(self) -> Cut:
        """All of the group as one tile."""
        return self if self.box is self.extents else Cut(self.extents, self.extents)

    def boxes(self) -> list[tuple[dict[str, int], int]]:
        """The iterations of each index that tiles have, and how many tiles have so many."""
        axes = []
        for index, extent in self.extents.items():
            whole, rest = divmod(extent, self.box[index])
            axes.append([(self.box[index], whole)] * (whole > 0) + [(rest, 1)] * (rest > 0))
        return [
            (dict(zip(self.extents, (size for size, _ in corner), strict=True)), prod(count for _, count in corner))
            for corner in product(*axes)
        ]

    def sizes(self) -> list[tuple[int, int]]:
        """How many iterations the tiles have, and how many tiles have so many."""
        return [(prod(box.values()), count) for box, count in self.boxes()]

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


def patches(extents: Mapping[str, int], side: int) -> list[Cut]:
    """Parts of a few rows of an image that is much wider than the array: they share more of what windows overlap than
    whole rows of as many positions do."""
    if len(extents) < 2:
        return []
    *_, high, wide = extents
    rows = [rows for rows in (4, 8, 16) if rows < extents[high] and extents[wide] > 4 * side]
    return [Cut(extents, {**dict.fromkeys(extents, 1), high: count, wide: 2 * side}) for count in rows]


def _doublings(limit: int) -> list[int]:
    found = [2]
    while found[-1] * 2 < limit:
        found.append(found[-1] * 2)
    return found


def _thinned(numbers: Sequence[int], count: int) -> list[int]:
    if len(numbers) <= count:
        return list(numbers)
    return [numbers[round(i * (len(numbers) - 1) / max(1, count - 1))] for i in range(count)]


@cache
def nested(role: Role, order: str) -> tuple[str, str]:
    """The two loops that an operand depends on, the outer one first."""
    first, second, _ = RELEVANT[role]
    return (first, second) if order.index(first) < order.index(second) else (second, first)


@cache
def fetched_again(role: Role, order: str, piece: int) -> bool:
    """Whether the loop that an operand does not depend on runs around its piece: all of it comes again each time."""
    if piece == WHOLE:
        return False
    outer, inner = nested(role, order)
    return order.index(RELEVANT[role][2]) < order.index(inner if piece == TILE else outer)


@dataclass(frozen=True)
class OperandStorage:
    """How an operand lies in memory: bits of an element, and the level it moves to."""

    bits: int
    level: str
    """The level behind its scratchpad, or the scratchpad itself where it never moves."""


@dataclass(frozen=True)
class Tiling:
    """Tiles, their order, and what of each operand a scratchpad holds."""

    cuts: Mapping[str, Cut]
    order: str
    pieces: Mapping[Role, int]
    buffers: int
    traffic: int
    """Bytes to and from main memory for one product, as estimated by the search."""
    estimate: float
    """Cycles of all products, as estimated by the search."""
    floor: float = 0.0
    """Cycles that it takes at least, whatever overlaps."""
    sure: bool = False
    """Whether it is played whatever its estimate."""
    energy: float = 0.0
    """Joules of what depends on the choice; bytes where the machine has no prices."""
    anew: bool = False
    """Whether each tile loads all its inputs and weights, whatever the tile before has."""

    @property
    def steps(self) -> int:
        """Tiles of one product."""
        return prod(cut.tiles for cut in self.cuts.values())

    def alike(self) -> tuple[object, ...]:
        """Equal for choices that do the same: an operand that is one tile is kept whole whatever is said of it."""
        sizes = {name: cut.size for name, cut in self.cuts.items()}
        order = "".join(name for name in self.order if self.cuts[name].tiles > 1)
        kept = [
            WHOLE if all(self.cuts[name].tiles == 1 for name in RELEVANT[role][:2]) else piece
            for role, piece in self.pieces.items()
        ]
        return (*sizes.items(), order, *kept, min(self.buffers, self.steps + 1))

    def kept(self, role: Role) -> tuple[Cut, Cut]:
        """The piece of an operand that lies in its scratchpad."""
        first, second, _ = RELEVANT[role]
        one, other, piece = self.cuts[first], self.cuts[second], self.pieces[role]
        inner = nested(role, self.order)[1] if piece == ROW else ""
        return one.uncut() if piece == WHOLE or inner == first else one, (
            other.uncut() if piece == WHOLE or inner == second else other
        )

    def outside(self, role: Role) -> bool:
        """Whether all of an operand is fetched again for each tile of the loop that it does not depend on."""
        return (self.anew and role != "output") or fetched_again(role, self.order, self.pieces[role])


@dataclass(frozen=True)
class Move:
    """Bytes of one operand between the scratchpad next to the array and a level behind it."""

    role: Role
    tensor: str
    level: str
    """The level behind: main memory, or a scratchpad that is home to activations."""
    nbytes: int
    after: int = -1
    """The pass that has to be over before, because it computes these bytes; -1 for none."""
    requests: int = 1
    """How often the DMA engine has to be set up."""
    padded: int = 0
    """Bytes that the engine could have moved meanwhile, where that is more: requests that are not full take as long."""
    store: bool = False
    """Towards the level behind."""
    piece: int = -1
    """Which piece of its operand in the scratchpad it is a part of; -1 where each step has its own."""


def fetch(places: Allocation, number: int, role: Role, tensor: str, nbytes: int, piece: int = -1) -> Move:
    """A load of a tensor by a pass, after the one that computes it."""
    return Move(role, tensor, places.level[tensor], nbytes, places.producer(tensor, number), piece=piece)


@dataclass(frozen=True)
class ArrayWork:
    """Folds of one tile on each array, in cycles."""

    busy: int
    """In which values enter."""
    body: int
    """From the first value of the first fold to the last value of the last fold."""
    last: int
    """Of `body`, the stream of the last fold: while it runs, the next stationary tile can move in."""
    fed: int = 0
    """How long the scratchpads need to feed it: more than `body` where they are too slow."""
    goes_on: bool = False
    """Whether the stationary tile is that of the step before, so that nothing has to be loaded into the cells."""


@dataclass(frozen=True)
class TileStep:
    """One tile: loads, work of the array or the vector unit, stores."""

    name: str
    loads: tuple[Move, ...] = ()
    stores: tuple[Move, ...] = ()
    work: ArrayWork | None = None
    vector_cycles: int = 0
    """Of the vector unit: after the array's work on the tile, or instead of it."""
    opens: bool = True
    """Whether it begins a new piece of the output, which needs room."""
    chained: bool = False
    """Whether the array needs what it has computed for the same lane just before."""
    lane: int = -1
    """Steps of one lane take turns between the array and the vector unit, each with what the other one has left; those
    of another lane go on meanwhile. -1: tile after tile."""
    holds: bool = False
    """Whether what stays in the cells is computed by earlier steps, so that it cannot be loaded ahead."""


@dataclass
class Counts:
    """What a pass does, in elements: reads and writes by scratchpad, operations of array and vector unit."""

    macs: int = 0
    hops: int = 0
    vector: dict[str, int] = field(default_factory=dict)
    reads: dict[tuple[str, str], int] = field(default_factory=dict)
    """Bits by (scratchpad, read or write)."""
    elements: dict[tuple[str, str], int] = field(default_factory=dict)

    def per_pad(self) -> dict[str, int]:
        """Bits that each scratchpad reads, or writes: the larger of the two, since both go on at once."""
        found: dict[str, int] = {}
        for (pad, _), bits in self.reads.items():
            found[pad] = max(found.get(pad, 0), bits)
        return found

    def scaled(self, times: int) -> Counts:
        return Counts(
            self.macs * times,
            self.hops * times,
            {kind: count * times for kind, count in self.vector.items()},
            {key: bits * times for key, bits in self.reads.items()},
            {key: count * times for key, count in self.elements.items()},
        )

    def touch(self, pad: str, action: str, elements: int, bits: int) -> None:
        key = pad, action
        self.elements[key] = self.elements.get(key, 0) + elements
        self.reads[key] = self.reads.get(key, 0) + elements * bits

    def __iadd__(self, more: Counts) -> Counts:
        self.macs += more.macs
        self.hops += more.hops
        _add_to(self.vector, more.vector)
        _add_to(self.reads, more.reads)
        _add_to(self.elements, more.elements)
        return self


def _add_to(counts: dict[_Key, int], more: Mapping[_Key, int]) -> None:
    for key, count in more.items():
        counts[key] = counts.get(key, 0) + count


@dataclass
class ArrayPass:
    """One loop of the kernel, mapped: its tiles in order, and what they do together."""

    number: int
    name: str
    unit: str
    """array or vector."""
    steps: list[TileStep]
    ahead: Mapping[Role, int]
    """How many pieces of each operand there is room for: one less of them can be under way before they are needed."""
    counts: Counts
    needs: tuple[int, ...] = ()
    """Passes whose results it reads where they lie: they have to be over before it starts."""
    held: dict[str, int] = field(default_factory=dict)
    """Bytes of each scratchpad that its tiles take, beside tensors that stay there."""
    stage: str = ""
    """The stage of the kernel that it belongs to."""
    tile: dict[str, int] = field(default_factory=dict)
    order: str = ""
    buffers: int = 2

    def __iter__(self) -> Iterator[TileStep]:
        return iter(self.steps)


def fold_tile(
    chip: Chip, shape: GemmShape, batch: int, bits: tuple[int, int, int], adds_up: bool, timed: GemmShape | None = None
) -> tuple[ArrayWork, Counts, int]:
    """The cycles of `batch` products of one shape, what they read and write, and the folds of each array.

    `bits` are those of an input, a weight and a sum; `adds_up` says that sums of an earlier tile are added to; `timed`
    is the shape whose time it takes, where that is another one.
    """
    array, pads = chip.array, chip.pads
    folds, stream = array.share(timed or shape, batch, chip.unit.count)
    inputs, weights, sums, again = array.accesses(shape)
    counts = Counts(macs=batch * shape.macs, hops=batch * array.hops(shape))
    counts.touch(pads["input"].name, "read", batch * inputs, bits[0])
    counts.touch(pads["weight"].name, "read", batch * weights, bits[1])
    counts.touch(pads["output"].name, "write", batch * sums, bits[2])
    again += shape.m * shape.n if adds_up else 0
    counts.touch(pads["output"].name, "read", batch * again, bits[2])
    body = (folds - 1) * array.interval(stream) + stream
    work = ArrayWork(folds * stream, body, stream, max(body, chip.feed_cycles(counts.per_pad())))
    return work, counts, folds


def shorten(chip: Chip, whole: ArrayPass) -> ArrayPass:
    """Neighbouring steps as one, so that a pass has few enough of them; lanes have been shortened already."""
    together = -(-len(whole.steps) // MOST_STEPS)
    if together == 1 or any(step.lane >= 0 for step in whole.steps):
        return whole
    whole.steps = [merge(chip, whole.steps[n : n + together]) for n in range(0, len(whole.steps), together)]
    return whole


def merge(chip: Chip, steps: Sequence[TileStep]) -> TileStep:
    """The same bytes, requests and cycles."""
    first = steps[0]
    if len(steps) == 1:
        return first
    return TileStep(
        name=first.name,
        loads=_sum_moves([move for step in steps for move in step.loads]),
        stores=_sum_moves([move for step in steps for move in step.stores]),
        work=_sum_work(chip, [step for step in steps if step.work is not None]),
        vector_cycles=sum(step.vector_cycles for step in steps),
        opens=any(step.opens for step in steps),
        chained=first.chained,
        lane=first.lane,
        holds=first.holds,
    )


def _sum_work(chip: Chip, steps: Sequence[TileStep]) -> ArrayWork | None:
    """Folds of several tiles; a tile that needs the one before starts when that one has left the cells."""
    works = [step.work for step in steps if step.work is not None]
    if not works:
        return None
    gap = chip.array.fill_cycles + chip.array.drain_cycles
    body = works[0].body
    for before, after, step in zip(works, works[1:], steps[1:], strict=False):
        alone = step.chained or chip.array.folding == "serial"
        between = gap if alone else max(0, chip.array.rows - before.last)
        body += after.body + (0 if after.goes_on else between)
    fed = body + sum(max(0, each.fed - each.body) for each in works)
    return ArrayWork(sum(each.busy for each in works), body, works[-1].last, fed, works[0].goes_on)


def _sum_moves(moves: Sequence[Move]) -> tuple[Move, ...]:
    found: dict[tuple[str, str, str, int], Move] = {}
    for move in moves:
        key = (move.role, move.tensor, move.level, move.after)
        old = found.get(key)
        found[key] = (
            move
            if old is None
            else replace(
                old,
                nbytes=old.nbytes + move.nbytes,
                requests=old.requests + move.requests,
                padded=old.padded + move.padded,
            )
        )
    return tuple(found.values())


@dataclass(frozen=True)
class VectorFlow:
    """One of many equal pieces of work: bytes that come from and go to main memory, and cycles of the vector unit."""

    chip: Chip
    loads: int
    stores: int
    cycles: float
    buffers: int

    @classmethod
    def of(cls, chip: Chip, steps: Iterable[TileStep], buffers: int) -> VectorFlow:
        """What some steps move and do together."""
        loads = stores = cycles = 0
        for step in steps:
            loads += sum(move.nbytes for move in step.loads if move.level == chip.dram.name)
            stores += sum(move.nbytes for move in step.stores if move.level == chip.dram.name)
            cycles += step.vector_cycles
        return cls(chip, loads, stores, cycles, buffers)

    def time(self, count: int) -> float:
        """Cycles of so many pieces: transfers and work side by side, but for the first load and the last store.

        With two buffers a piece begins to come when the one before the last is done.
        """
        start, speed, work = self.chip.start_cycles, self.chip.move_speed, self.cycles
        come = start + self.loads / speed if self.loads else 0.0
        go = start + self.stores / speed if self.stores else 0.0
        link = (self.loads + self.stores) / speed
        if self.buffers == 1:
            return count * (start + link + work) + go
        apart = max(work, link, (come + work) / self.buffers, (go + work) / self.buffers)
        return come + (count - 1) * apart + work + go


def cycles_for(chip: Chip, body: Instructions, points: int) -> int:
    """Cycles of the vector unit for so many points of a loop body; a copy takes one cycle of a lane."""
    unit = chip.unit.vector
    slots = body.fma + body.add + body.mul + body.special * unit.special
    return -(-points * max(1, slots) // unit.lanes)


def work_of(chip: Chip, body: Instructions, points: int, counts: Counts) -> int:
    """Cycles of the vector unit for so many points of a loop body; what it does is counted by kind."""
    kinds = {"fma": body.fma, "add": body.add, "mul": body.mul, "special": body.special}
    for kind, count in kinds.items():
        if count:
            counts.vector[kind] = counts.vector.get(kind, 0) + count * points
    return cycles_for(chip, body, points)
