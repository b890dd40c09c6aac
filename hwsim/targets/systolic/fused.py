"""A loop over tiles around several loops, as one pass: what lies between stays on the chip.

A tensor that only these loops use never leaves the chip. Of the others, the piece at hand is in a scratchpad until
another piece takes its place; a changed piece of a result goes out after the last step that writes it.

Turns of the loop over tiles that do not need each other, such as tiles of queries, are dealt out to two lanes that take
turns: while the vector unit works on what the array has left for one of them, the array works for the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from hwsim.errors import CapacityError
from hwsim.numerics.format import find_format
from hwsim.program.contraction import GemmView, footprint, gemm_view
from hwsim.program.loops import Item, Loop, Operand, Range, Ranges, TileLoop, all_loops, walk
from hwsim.targets.systolic.model import Allocation, Chip, Role, room
from hwsim.targets.systolic.tiling import (
    ArrayPass,
    ArrayWork,
    Counts,
    Move,
    TileStep,
    VectorFlow,
    fetch,
    fold_tile,
    merge,
    work_of,
)
from hwsim.units import format_bytes

PieceKey = tuple[tuple[str, int, int], ...]
Turn = list[tuple[Loop, dict[str, Range]]]
"""The loops of one tile, with their ranges."""
LANES = 2
MOST_ROUNDS = 2048
"""Rounds of a pass that are played one by one; of more, neighbours of one lane are played together."""
Views = Mapping[int, GemmView | None]


@dataclass
class TilePart:
    """One loop of one tile, while the stores that follow it are not all known."""

    name: str
    loads: list[Move]
    work: ArrayWork | None
    vector_cycles: int
    reads: frozenset[str]
    writes: frozenset[str]
    holds: bool
    stores: list[Move] = field(default_factory=list)
    chained: bool = False

    def step(self, lane: int = -1) -> TileStep:
        moves = tuple(self.loads), tuple(self.stores)
        opens = bool(self.stores)
        return TileStep(self.name, *moves, self.work, self.vector_cycles, opens, self.chained, lane, self.holds)


def turns_of(item: TileLoop) -> list[Ranges]:
    """The tiles of each turn of the loops around."""

    def inside(levels: list[TileLoop], around: Ranges) -> Iterator[Ranges]:
        if not levels:
            yield around
            return
        for tile in levels[0].tiles(around):
            yield from inside(levels[1:], {**around, levels[0].index: tile})

    return list(inside(chain_of(item), {}))


def loops_of(item: TileLoop, around: Ranges) -> Turn:
    """What one turn does."""
    return [(loop, ranges) for loop, ranges, _ in walk(chain_of(item)[-1].body, around)]


def chain_of(item: TileLoop) -> list[TileLoop]:
    """Loops over tiles that hold nothing but another such loop, and the first one that holds more."""
    found = [item]
    while len(found[-1].body) == 1 and isinstance(found[-1].body[0], TileLoop):
        found.append(found[-1].body[0])
    return found


class Tracker:
    """Which pieces of each tensor are on the chip: one for each lane."""

    def __init__(self, chip: Chip, places: Allocation, number: int, lanes: int) -> None:
        self.chip, self.places, self.number, self.lanes = chip, places, number, lanes
        self.counts = Counts()
        self.largest: dict[str, int] = {}
        self.read: set[str] = set()
        self.again: set[str] = set()
        """Tensors of which a piece takes the place of another one."""
        self._held: dict[str, list[PieceKey]] = {}
        self._changed: dict[str, dict[PieceKey, tuple[int, TilePart]]] = {}
        self._pad = chip.worktop.name
        self._sizes: dict[tuple[int, tuple[int, ...]], int] = {}
        self._works: dict[tuple[int, tuple[int, ...]], tuple[ArrayWork | None, int, Counts]] = {}
        self._times: Counter[tuple[int, tuple[int, ...]]] = Counter()
        self._piece: dict[str, int] = {}
        self._in_piece: dict[str, set[str]] = {}
        self._written: set[str] = set()

    def play(self, loop: Loop, view: GemmView | None, ranges: Ranges) -> TilePart:
        loads: list[Move] = []
        operation, output = loop.operation, loop.operation.output
        for position, operand in enumerate(operation.reads):
            role: Role = "weight" if view is not None and position == 1 else "input"
            self.read.add(operand.tensor)
            if moved := self._fetch(operand, ranges):
                piece = self._number(role, operand.tensor)
                loads.append(fetch(self.places, self.number, role, operand.tensor, moved, piece))
        if output is not None and operation.continues and (moved := self._fetch(output, ranges)):
            piece = self._number("input", output.tensor)
            loads.append(Move("input", output.tensor, self.places.level[output.tensor], moved, piece=piece))
        key = (id(loop), tuple(count for _, count in ranges.values()))
        if key not in self._works:
            self._works[key] = self._work(loop, view, ranges)
        work, vector_cycles, _ = self._works[key]
        self._times[key] += 1
        reads = {operand.tensor for operand in operation.reads}
        held = None if view is None else {"ws": view.weight, "is": view.input, "os": None}[self.chip.array.dataflow]
        part = TilePart(
            name=loop.name,
            loads=loads,
            work=work,
            vector_cycles=vector_cycles,
            reads=frozenset(reads | ({output.tensor} if output is not None and operation.continues else set())),
            writes=frozenset(operand.tensor for operand in operation.writes),
            holds=held is not None and held.tensor in self._written,
        )
        self._written |= part.writes
        for operand in operation.writes:
            self._write(operand, ranges, part)
        return part

    def finish(self) -> None:
        """What is left goes out, and what was done is added up."""
        for key, times in self._times.items():
            self.counts += self._works[key][2].scaled(times)
        for tensor, pieces in self._changed.items():
            for nbytes, part in pieces.values():
                self._store(tensor, nbytes, part)

    def own_bytes(self) -> int:
        """Scratch tensors of this pass: they are counted among the tensors already, once for all lanes."""
        return sum(self.places.nbytes[name] for name in self.largest if self.places.local.get(name) == self.number)

    def needed(self, depth: int) -> int:
        """Room for the pieces of all lanes, twice where others come while they are in use."""
        total = 0
        for tensor, nbytes in self.largest.items():
            if self.places.local.get(tensor) == self.number:
                total += max(nbytes, self.places.nbytes[tensor]) * self.lanes
            else:
                total += nbytes * (self.lanes * depth if tensor in self.again else 1)
        return total

    def shortage(self, depth: int) -> int:
        """Bytes that are missing in the scratchpad; none where it is not above 0."""
        return self.needed(depth) - self.own_bytes() - room(self.chip, self.places, self.number)[self._pad]

    def _number(self, role: str, tensor: str) -> int:
        """Loads come in pieces; a tensor that comes again begins another one."""
        seen = self._in_piece.setdefault(role, set())
        if tensor in seen:
            self._piece[role] = self._piece.get(role, 0) + 1
            seen.clear()
        seen.add(tensor)
        return self._piece.get(role, 0)

    def _stays(self, tensor: str) -> bool:
        return self.chip.holds(self.places.level[tensor])

    def _fetch(self, operand: Operand, ranges: Ranges) -> int:
        nbytes = self._bytes(operand, ranges)
        return 0 if self._stays(operand.tensor) or self._has(operand, ranges) else nbytes

    def _has(self, operand: Operand, ranges: Ranges) -> bool:
        """Whether a piece is there; if not, it takes the place of the one that was used longest ago."""
        piece, held = _piece(operand, ranges), self._held.setdefault(operand.tensor, [])
        there = piece in held
        if there:
            held.remove(piece)
        elif held:
            self.again.add(operand.tensor)
        held.append(piece)
        del held[: -self.lanes]
        return there

    def _write(self, output: Operand, ranges: Ranges, part: TilePart) -> None:
        nbytes = self._bytes(output, ranges)
        if self._stays(output.tensor):
            return
        self._has(output, ranges)
        changed = self._changed.setdefault(output.tensor, {})
        piece = _piece(output, ranges)
        changed.pop(piece, None)
        changed[piece] = nbytes, part
        while len(changed) > self.lanes:
            self._store(output.tensor, *changed.pop(next(iter(changed))))

    def _store(self, tensor: str, nbytes: int, part: TilePart) -> None:
        part.stores.append(Move("output", tensor, self.places.level[tensor], nbytes, store=True))

    def _bytes(self, operand: Operand, ranges: Ranges) -> int:
        """Bytes of a piece; room is needed for those that come and go, and for what stays of this pass alone."""
        box = {index: ranges[index][1] for index in operand.strides}
        key = (id(operand), tuple(box.values()))
        if key not in self._sizes:
            self._sizes[key] = footprint(operand, box, self.places.bits[operand.tensor])
        nbytes = self._sizes[key]
        if not self._stays(operand.tensor) or self.places.local.get(operand.tensor) == self.number:
            self.largest[operand.tensor] = max(nbytes, self.largest.get(operand.tensor, 0))
        return nbytes

    def _work(self, loop: Loop, view: GemmView | None, ranges: Ranges) -> tuple[ArrayWork | None, int, Counts]:
        work, vector_cycles = None, 0
        if view is not None:
            batch, shape = view.shape(ranges)
            bits = [self.places.bits[operand.tensor] for operand in (view.input, view.weight)]
            sums = find_format(self.chip.sum_format).bits
            work, counts, _ = fold_tile(self.chip, shape, batch, (bits[0], bits[1], sums), adds_up=True)
        else:
            counts = Counts()
            box = {index: count for index, (_, count) in ranges.items()}
            vector_cycles = work_of(self.chip, loop.body, prod(box.values()), counts)
            for action, operands in (("read", loop.operation.reads), ("write", loop.operation.writes)):
                for operand in operands:
                    each = self.places.bits[operand.tensor]
                    counts.touch(self._pad, action, 8 * footprint(operand, box, each) // each, each)
        if loop.late_body.total:
            vector_cycles += work_of(self.chip, loop.late_body, loop.results(ranges), counts)
        return work, vector_cycles, counts


def _piece(operand: Operand, ranges: Ranges) -> PieceKey:
    return tuple((index, *ranges[index]) for index in operand.strides)


def retile(chip: Chip, item: TileLoop, number: int, places: Allocation, buffers: int) -> TileLoop:
    """Loops that the vector unit does, with as many turns at a time as make the shortest time.

    How many belong together is a matter of caches on a core; here it is a matter of transfers.
    """
    if any(level.span is not None for level in _levels(item)):
        return item
    depth = min(buffers, chip.worktop.buffers)
    rows = prod(level.extent for level in chain_of(item))
    found: dict[tuple[int, ...], tuple[float, TileLoop]] = {}
    while True:
        sized = _sized(item, rows)
        tracker = Tracker(chip, places, number, 1)
        some = turns_of(sized)[:2]
        turns = [[tracker.play(loop, None, ranges) for loop, ranges in loops_of(sized, turn)] for turn in some]
        tracker.finish()
        if tracker.shortage(depth) <= 0:
            key = tuple(level.tile for level in chain_of(sized))
            count = prod(-(-level.extent // level.tile) for level in chain_of(sized))
            found[key] = VectorFlow.of(chip, [part.step() for part in turns[-1]], depth).time(count), sized
        if rows == 1:
            break
        rows = -(-rows // 2)
    return min(found.values(), key=lambda pair: pair[0])[1] if found else _sized(item, 1)


def _levels(item: Item) -> Iterator[TileLoop]:
    if isinstance(item, TileLoop):
        yield item
        for inner in item.body:
            yield from _levels(inner)


def _sized(item: TileLoop, rows: int) -> TileLoop:
    """The loops around, with at most so many turns of them as one tile: the innermost one whole first."""
    chain = chain_of(item)
    body = chain[-1].body
    for level in reversed(chain):
        tile = max(1, min(level.extent, rows))
        rows = rows // level.extent if tile == level.extent else 1
        sized = replace(level, tile=tile, body=body)
        body = (sized,)
    return sized


@dataclass(frozen=True)
class Round:
    """Parts of one lane: some of the array, then some of the vector unit."""

    lane: int
    parts: list[TilePart]


@dataclass(frozen=True)
class Weave:
    """Turns of a loop over tiles, dealt out to lanes that take turns with their rounds."""

    chip: Chip
    tracker: Tracker
    rounds: list[Round]
    lanes: int
    depth: int
    share: float = 1.0
    """Of all turns, how many were looked at."""

    def estimate(self) -> float:
        """Cycles: of the unit that has most to do, of main memory, or of a lane that waits for itself."""
        array = self.chip.array
        parts = [part for each in self.rounds for part in each.parts]
        works = [part.work for part in parts if part.work is not None]
        busy = sum(max(work.body, work.fed) + max(0, array.rows - work.last) for work in works)
        vector = sum(part.vector_cycles for part in parts)
        edges = array.fill_cycles + array.drain_cycles
        gaps = sum(edges for each in self.rounds if any(part.work is not None for part in each.parts))
        moved = sum(move.nbytes for part in parts for move in (*part.loads, *part.stores))
        starts = sum(1 for part in parts if part.loads) * self.chip.start_cycles if self.depth == 1 else 0.0
        longest = max(busy, vector, (busy + gaps + vector + starts) / self.lanes, moved / self.chip.dram_speed)
        return longest / self.share + (busy + gaps + vector) / max(1, len(self.rounds))


def weave(chip: Chip, item: TileLoop, number: int, places: Allocation, buffers: int = 2, *, sample: int = 0) -> Weave:
    """Two lanes where turns do not need each other and have room beside each other, else one turn after the other.

    A sample is so many turns of each lane, from the middle of all. Raises CapacityError where a tile has no room.
    """
    views = {id(loop): gemm_view(loop) for loop in all_loops([item])}
    depth = min(buffers, chip.worktop.buffers)
    lanes = LANES if any(views.values()) and depth > 1 and _independent(item, places, number) else 1
    turns = turns_of(item)
    count = len(turns)
    while True:
        wanted = min(count, sample * lanes or count)
        some = [loops_of(item, turn) for turn in turns[(count - wanted) // 2 :][:wanted]]
        tracker = Tracker(chip, places, number, lanes)
        rounds = [
            Round(lane, _chained([tracker.play(loop, views[id(loop)], ranges) for loop, ranges in turn]))
            for lane, turn in _dealt(some, views, lanes)
        ]
        tracker.finish()
        if tracker.shortage(depth) <= 0:
            return Weave(chip, tracker, rounds, lanes, depth, len(some) / max(1, count))
        if lanes == depth == 1:
            raise _too_large(chip, places, number, tracker, item)
        lanes, depth = (1, depth) if lanes > 1 else (1, 1)


def map_fused(
    chip: Chip, item: TileLoop, number: int, places: Allocation, buffers: int = 2, *, sample: int = 0
) -> tuple[ArrayPass, float]:
    """All turns of a loop over tiles as one pass, or some of them, and which share of all these are."""
    on_array = any(gemm_view(loop) is not None for loop in all_loops([item]))
    if not on_array:
        item = retile(chip, item, number, places, buffers)
    woven = weave(chip, item, number, places, buffers, sample=sample)
    tracker, lanes, depth = woven.tracker, woven.lanes, woven.depth
    still = [name for name in tracker.read if chip.holds(places.level[name])]
    ahead = lanes + 1 if depth > 1 else 1
    sizes = _tile_sizes(item)
    mapped = ArrayPass(
        number=number,
        name=" + ".join(dict.fromkeys(part.name for each in woven.rounds for part in each.parts)),
        unit="array" if on_array else "vector",
        steps=_steps(woven)
        if on_array
        else [merge(chip, [part.step() for part in each.parts]) for each in woven.rounds],
        ahead={"input": ahead, "weight": ahead, "output": depth * lanes},
        counts=tracker.counts,
        needs=places.producers(still, number),
        held={chip.worktop.name: tracker.needed(depth) - tracker.own_bytes()},
        tile=sizes,
        order="".join(sizes) if all(len(index) == 1 for index in sizes) else " ".join(sizes),
    )
    return mapped, woven.share


def _tile_sizes(item: TileLoop) -> dict[str, int]:
    """The tiles of all loops over tiles, by index."""
    found = {item.index: item.tile}
    for inner in item.body:
        if isinstance(inner, TileLoop):
            found |= _tile_sizes(inner)
    return found


def _independent(item: TileLoop, places: Allocation, number: int) -> bool:
    """Whether turns need nothing of each other: results are apart, and what stays is written before it is read."""
    around = [level.index for level in chain_of(item)]
    written: set[str] = set()
    for loop in all_loops([item]):
        operation = loop.operation
        reads = {operand.tensor for operand in operation.reads}
        if operation.continues and operation.output is not None:
            reads.add(operation.output.tensor)
        for name in reads - written:
            if places.local.get(name) == number or number in places.written.get(name, ()):
                return False
        for operand in operation.writes:
            apart = all(index in operand.strides or not loop.moves_with(index) for index in around)
            if places.local.get(operand.tensor) != number and not apart:
                return False
            written.add(operand.tensor)
    return True


def _dealt(turns: Sequence[Turn], views: Views, lanes: int) -> list[tuple[int, Turn]]:
    """Rounds of each lane in turn; one begins where the array follows the vector unit, and with each turn."""
    rounds: list[list[Turn]] = [[] for _ in range(lanes)]
    for number, turn in enumerate(turns):
        mine = rounds[number % lanes]
        before = True
        for position, (loop, ranges) in enumerate(turn):
            on_array = views[id(loop)] is not None
            if position == 0 or (on_array and not before):
                mine.append([])
            mine[-1].append((loop, ranges))
            before = on_array
    most = max(map(len, rounds))
    return [(lane, mine[n]) for n in range(most) for lane, mine in enumerate(rounds) if n < len(mine)]


def _chained(parts: list[TilePart]) -> list[TilePart]:
    """A part of the array that needs another one of its round waits until that has left the cells."""
    for number, part in enumerate(parts):
        part.chained = any(before.work is not None and before.writes & part.reads for before in parts[:number])
    return parts


def _steps(woven: Weave) -> list[TileStep]:
    """Each round is a step of the array and one of the vector unit; of many rounds, some of a lane are taken together.

    Those of a group are first all done by the array and then all by the vector unit: as long for each of them.
    """
    together = -(-len(woven.rounds) // MOST_ROUNDS)
    groups: list[list[Round]] = []
    filling: dict[int, list[Round]] = {}
    for each in woven.rounds:
        mine = filling.get(each.lane)
        if mine is None or len(mine) == together:
            mine = filling[each.lane] = []
            groups.append(mine)
        mine.append(each)
    steps = []
    for group in groups:
        parts = [part for each in group for part in each.parts]
        for unit in ([part for part in parts if part.work is not None], [part for part in parts if part.work is None]):
            if unit:
                steps.append(merge(woven.chip, [part.step(group[0].lane) for part in unit]))
    return steps


def _too_large(chip: Chip, places: Allocation, number: int, tracker: Tracker, item: TileLoop) -> CapacityError:
    pad = chip.worktop
    free = room(chip, places, number)[pad.name]
    needed = tracker.needed(1)
    inner = chain_of(item)[-1]
    share = max(1, inner.tile * max(0, free) // needed)
    return CapacityError(
        f"a tile of {inner.tile} along {inner.index} needs {format_bytes(needed)} in {pad.name} for "
        f"{_names(sorted(tracker.largest))}, of which {format_bytes(max(0, free))} are free; about {share} fits"
    )


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
