"""An array as an agent: transfers run ahead of the tiles as far as there is room, and each tile waits for its own.

Loads of inputs and of weights, the array with its vector unit, and stores are processes of their own. A load for a
tile begins when the tile that its buffer served before is done. The array counts in whole cycles: what arrives within a
cycle is seen at its end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from typing import Any

from hwsim.engine import FEMTOSECONDS, AgentTime, Event, Floor, Link, Wait, cycles_to_fs
from hwsim.targets.systolic.model import Chip
from hwsim.targets.systolic.tiling import ArrayPass, Move, TileStep

ARRAY, VECTOR = "array", "vector"
WEIGHTS, INPUTS, OUTPUTS, FILL = "weights", "inputs", "outputs", "fill and drain"
SCRATCHPAD = "scratchpad"
Slot = tuple[int, int, TileStep]
"""A tile: its number in the whole run, its pass, and what it does."""


class ArrayWatch:
    """Cycles are put down in the order of time; `now` is the cycle up to which they have been."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.now = 0
        self.busy: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()

    def work(self, unit: str, cycles: int) -> None:
        self.busy[unit] += cycles
        self.now += cycles

    def wait(self, cause: str, until: int) -> None:
        """Everything from now to a cycle; nothing where that is past."""
        if until > self.now:
            self.waiting[cause] += until - self.now
            self.now = until

    def wait_in_turn(self, causes: Sequence[tuple[str, int]], until: int) -> None:
        """Several things that had to happen, each up to its own cycle; what is left goes to the last."""
        for cause, cycle in causes:
            self.wait(cause, min(cycle, until))
        if self.now < until:
            self.wait(causes[-1][0] if causes else FILL, until)

    def result(self, clock_hz: int) -> AgentTime:
        """In femtoseconds, cut so that whole cycles come out again, each part in the order in which they are read."""
        parts = [(group, name) for group in (self.busy, self.waiting) for name in sorted(group) if group[name] > 0]
        found: dict[int, dict[str, int]] = {id(self.busy): {}, id(self.waiting): {}}
        cycles = begin_fs = 0
        for number, (group, name) in enumerate(parts):
            cycles += group[name]
            end_fs = cycles * FEMTOSECONDS // clock_hz
            if number < len(parts) - 1:
                end_fs = -(-cycles * FEMTOSECONDS // clock_hz)
            found[id(group)][name] = end_fs - begin_fs
            begin_fs = end_fs
        return AgentTime(self.name, begin_fs, found[id(self.busy)], found[id(self.waiting)])


@dataclass
class Lane:
    """Up to which cycle the array and the vector unit have worked for a lane."""

    array: int = 0
    vector: int = 0


class ArrayAgent:
    """All arrays of a chip, which work on one tile together."""

    def __init__(
        self,
        floor: Floor,
        chip: Chip,
        passes: Sequence[ArrayPass],
        links: dict[str, Link],
        host: tuple[int, int] = (0, 0),
    ) -> None:
        self.floor, self.chip, self.passes, self.links = floor, chip, passes, links
        self.host = host
        """Cycles in which the host sends inputs before the first tile, and takes results after the last."""
        self.watch = ArrayWatch(f"{chip.unit.name}[0]")
        dma = chip.unit.dma
        self.dma = floor.engines(dma.engines)
        self.writers = self.dma if dma.writers is None else floor.engines(dma.writers)
        self.slots: list[Slot] = []
        self.first: list[int] = []
        for each in passes:
            self.first.append(len(self.slots))
            self.slots += [(len(self.slots) + n, each.number, step) for n, step in enumerate(each.steps)]
        self.computed = [floor.event() for _ in self.slots]
        self.arrived: dict[tuple[int, str], Event] = {}
        self._starts: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        """The first tile that loads a part of each piece, in the order of a pass; the pieces have ranks in it."""
        self._ranks: dict[tuple[int, str, int], int] = {}
        for number, which, step in self.slots:
            for move in step.loads:
                kind = _kind(move)
                if (number, kind) not in self.arrived:
                    self.arrived[number, kind] = floor.event()
                if (which, kind, move.piece) not in self._ranks:
                    self._ranks[which, kind, move.piece] = len(self._starts[which, kind])
                    self._starts[which, kind].append(number)
        self.over = [floor.event() for _ in passes]
        self.stored: list[Event] = []
        self.moved: list[Move] = []
        self._lanes: dict[int, Lane] = {}
        self._dram = chip.dram.name
        self._clock_hz = chip.clock_hz
        self._free = self._drained = self._out = self._loadable = self._vector_free = 0
        """Cycles: when the next value can enter, the last sum has left the cells, all results are out, the next
        stationary tile can begin to move in, and the vector unit has nothing more to do."""

    def start(self) -> Event:
        """Begin; the event happens when everything is done."""
        for kind in (INPUTS, WEIGHTS):
            self.floor.start(self._load(kind))
        return self.floor.start(self._compute())

    # Transfers --------------------------------------------------------------------------------------------------------

    def _load(self, kind: str) -> Wait:
        for number, which, step in self.slots:
            moves = [move for move in step.loads if _kind(move) == kind]
            if not moves:
                continue
            gate = self._gate(number, which, kind, moves[0].piece)
            if gate >= 0 and not self.computed[gate].processed:
                yield self.computed[gate]
            for move in moves:
                if move.after >= 0 and not self.over[move.after].processed:
                    yield self.over[move.after]
            self.floor.start(self._fetch(moves, self.arrived[number, kind], number, step.name))

    def _fetch(self, moves: Sequence[Move], arrived: Event, number: int, name: str) -> Wait:
        """One piece after the other; the last byte of all of them is waited for."""
        last = []
        for move in moves:
            last.append((yield from self._transfer(move, number, name)))
        for event in last:
            if not event.processed:
                yield event
        arrived.succeed(self._cycle())

    def _gate(self, number: int, which: int, kind: str, piece: int) -> int:
        """The tile that has to be done before a load may begin: the last one that uses the piece which makes room.

        The first pieces of a pass have room as soon as the pass before is at its last tile.
        """
        ahead = self.passes[which].ahead
        depth = ahead["weight" if kind == WEIGHTS else "input"]
        if depth == 1:
            return number - 1
        if piece < 0:
            return number - depth
        rank = self._ranks[which, kind, piece]
        return self.first[which] - 2 if rank < depth else self._starts[which, kind][rank - depth + 1] - 1

    def _transfer(self, move: Move, number: int, name: str) -> Generator[Event, Any, Event]:
        """Move bytes, and hold an engine meanwhile; what comes back happens when the last byte is there."""
        self.moved.append(move)
        link = self.links[move.level]
        if move.level != self._dram:
            yield link.transfer(move.nbytes)
            return self.floor.delay(0)
        begin = self.floor.now
        engines = self.writers if move.store else self.dma
        yield engines.request(number)
        if self.chip.setup_cycles:
            yield self.floor.delay(self._fs(self.chip.setup_cycles * move.requests))
        moving = [link.transfer(move.nbytes * self.chip.store_weight if move.store else move.nbytes)]
        rate = self.chip.engine_rate if engines is self.dma else self.chip.writing_rate
        if rate is not None:
            moving.append(self.floor.delay(self._fs(max(move.nbytes, move.padded) / rate)))
        yield self.floor.every(moving) if len(moving) > 1 else moving[0]
        engines.release()
        if self.floor.timeline:
            lane = f"{self.watch.name} {move.role}s {'to' if move.store else 'from'} {move.level}"
            self.floor.record(lane, name, begin, self.floor.now)
        return self.floor.delay(self.chip.latency_fs)

    def _store(self, moves: Sequence[Move], ready: int, done: Event, number: int, name: str) -> Wait:
        yield self._until(ready)
        for move in moves:
            last = yield from self._transfer(move, number, name)
            yield last
        done.succeed(self._cycle())

    # Work -------------------------------------------------------------------------------------------------------------

    def _compute(self) -> Wait:
        before, after = self.host
        if before:
            yield self._until(before)
            self.watch.wait(INPUTS, before)
            self._free = self._loadable = self._drained = self._out = self._vector_free = before
        for each in self.passes:
            first_store = len(self.stored)
            self._lanes.clear()
            for number in range(self.first[each.number], self.first[each.number] + len(each.steps)):
                step = self.slots[number][2]
                yield from self._play(each, number, step)
            self.floor.start(self._finish(each.number, self._out, self.stored[first_store:]))
        for event in self.over:
            if not event.processed:
                yield event
        self.watch.wait(FILL, self._drained)
        self.watch.wait(VECTOR, self._out)
        self.watch.wait(OUTPUTS, max(event.value for event in self.over))
        self.watch.wait(OUTPUTS, self.watch.now + after)

    def _finish(self, number: int, out: int, stores: Sequence[Event]) -> Wait:
        yield self._until(out)
        for event in stores:
            if not event.processed:
                yield event
        self.over[number].succeed(self._cycle())

    def _play(self, each: ArrayPass, number: int, step: TileStep) -> Wait:
        """Wait for what a tile needs, then let its time pass."""
        arrivals = {}
        for kind in (WEIGHTS, INPUTS):
            event = self.arrived.get((number, kind))
            if event is not None:
                arrivals[kind] = event.value if event.processed else (yield event)
        needed = 0
        for other in each.needs if number == self.first[each.number] else ():
            event = self.over[other]
            needed = max(needed, (event.value if event.processed else (yield event)) + self.chip.handover_cycles)
        room = 0
        if step.opens and 0 <= len(self.stored) - each.ahead["output"] < len(self.stored):
            event = self.stored[len(self.stored) - each.ahead["output"]]
            room = event.value if event.processed else (yield event)
        if step.lane >= 0:
            start = self._begin_in_lane(step, arrivals, needed, room)
            end, out = self._advance_in_lane(step, start)
        else:
            start = self._begin(step, arrivals, needed, room)
            end, out = self._advance(step, start)
        lane = self.watch.name if step.work is not None else f"{self.watch.name} vector unit"
        self.floor.record(lane, step.name, self.time_of(start), self.time_of(end))
        if step.lane >= 0:
            self.floor.start(self._done(number, end))
        else:
            yield self._until(end)
            self.computed[number].succeed()
        if step.stores:
            done = self.floor.event()
            self.stored.append(done)
            self.floor.start(self._store(step.stores, out, done, number, step.name))

    def _begin(self, step: TileStep, arrivals: dict[str, int], needed: int, room: int) -> int:
        """The cycle in which a tile's first value enters; everything before is put down to what it waited for."""
        weights, inputs = arrivals.get(WEIGHTS, 0), arrivals.get(INPUTS, 0)
        if step.work is None:
            free = max(self._free, self._vector_free)
            start = max(free, weights, inputs, needed, room)
            in_turn = [(FILL, max(needed, free)), (WEIGHTS, weights), (INPUTS, inputs), *self._room_causes(room)]
            self.watch.wait_in_turn(in_turn, start)
            return start
        array = self.chip.array
        stationary, streamed = {"ws": (WEIGHTS, INPUTS), "is": (INPUTS, WEIGHTS), "os": (None, None)}[array.dataflow]
        held = 0 if stationary is None else arrivals.get(stationary, 0)
        alone = array.folding == "serial"
        causes: list[tuple[str, int]] = [(FILL, self._drained), (VECTOR, self._out)] if alone else []
        causes.append((FILL, needed))
        if step.work.goes_on:
            loaded = max(self._free, held)
        elif alone:
            loaded = max(self._out, held) + array.fill_cycles
        else:
            loaded = max(self._loadable, held) + array.fill_cycles
        if stationary is not None:
            causes.append((stationary, held))
        causes.append((FILL, loaded))
        if streamed is not None:
            causes.append((streamed, arrivals.get(streamed, 0)))
        else:
            causes += sorted([(WEIGHTS, weights), (INPUTS, inputs)], key=lambda cause: cause[1])
        causes += self._room_causes(room)
        start = max(self._free, loaded, needed, weights, inputs, room)
        self.watch.wait_in_turn(causes, start)
        return start

    def _room_causes(self, room: int) -> list[tuple[str, int]]:
        """What a wait for room is put down to: results first have to leave the cells and the vector unit."""
        return [(FILL, min(room, self._drained)), (VECTOR, min(room, self._out)), (OUTPUTS, room)]

    def _advance(self, step: TileStep, start: int) -> tuple[int, int]:
        """When the array is free for the next tile, and when this one's results are out."""
        if step.work is None:
            self.watch.work(VECTOR, step.vector_cycles)
            self._free = self._drained = self._out = self._vector_free = start + step.vector_cycles
            return self._free, self._out
        self.watch.work(ARRAY, step.work.busy)
        self.watch.wait(FILL, start + step.work.body)
        end = start + max(step.work.body, step.work.fed)
        self.watch.wait(SCRATCHPAD, end)
        array = self.chip.array
        self._free, self._loadable = end, end - step.work.last + (array.rows if array.dataflow == "os" else 0)
        self._out = self._drained = end + array.drain_cycles
        if step.vector_cycles:
            self._out = self._vector_free = max(self._out, self._vector_free) + step.vector_cycles
        return end, self._out

    # Lanes ------------------------------------------------------------------------------------------------------------

    def _done(self, number: int, end: int) -> Wait:
        """A step of a lane is over, while those of other lanes have begun."""
        yield self._until(end)
        self.computed[number].succeed()

    def _begin_in_lane(self, step: TileStep, arrivals: dict[str, int], needed: int, room: int) -> int:
        """As `_begin`, for a step that needs what the other unit has left for its lane, and nothing of other lanes."""
        lane = self._lanes.setdefault(step.lane, Lane())
        weights, inputs = arrivals.get(WEIGHTS, 0), arrivals.get(INPUTS, 0)
        if step.work is None:
            return max(self._vector_free, lane.array, weights, inputs, needed, room)
        array = self.chip.array
        computed = max(lane.vector, lane.array if step.chained else 0)
        held = {"ws": weights, "is": inputs, "os": 0}[array.dataflow]
        before = self._drained if array.folding == "serial" else self._loadable
        loaded = max(before, held, computed if step.holds else 0) + array.fill_cycles
        start = max(self._free, loaded, computed, needed, weights, inputs, room)
        causes = [(WEIGHTS, weights), (INPUTS, inputs), (FILL, loaded), (OUTPUTS, room), (FILL, needed)]
        causes += [(FILL, lane.array), (VECTOR, lane.vector)]  # sums leave the cells before the vector unit has them
        self.watch.wait_in_turn(sorted(causes, key=lambda cause: cause[1]), start)
        return start

    def _advance_in_lane(self, step: TileStep, start: int) -> tuple[int, int]:
        """The vector unit works beside the array; only what the array waits for is put down."""
        lane = self._lanes[step.lane]
        if step.work is None:
            lane.vector = self._vector_free = start + step.vector_cycles
            self._out = max(self._out, lane.vector)
            return lane.vector, lane.vector
        before = self._out
        end, lane.array = self._advance(step, start)
        self._out = max(before, lane.array)
        return end, lane.array

    # Time -------------------------------------------------------------------------------------------------------------

    def _fs(self, cycles: Fraction | int) -> int:
        return cycles_to_fs(cycles, self._clock_hz)

    def time_of(self, cycle: int) -> int:
        """The first femtosecond of a cycle, rounded down: so that it is in that cycle again when it is rounded up."""
        return cycle * FEMTOSECONDS // self._clock_hz

    def _cycle(self) -> int:
        """The next whole cycle."""
        return -(-int(self.floor.now) * self._clock_hz // FEMTOSECONDS)

    def _until(self, cycle: int) -> Event:
        return self.floor.delay(max(0, self.time_of(cycle) - self.floor.now))


def _kind(move: Move) -> str:
    return WEIGHTS if move.role == "weight" else INPUTS


def play_alone(chip: Chip, whole: ArrayPass, longest: float = inf) -> float:
    """Cycles of a pass that waits for no other one; without end if it takes longer than asked for."""
    alone = replace(whole, number=0, needs=(), steps=[_free(step) for step in whole.steps])
    floor = Floor()
    agent, done = _start(chip, [alone], floor)
    floor.run(None if longest == inf else agent.time_of(int(longest) + 1))
    return agent.watch.now if done.processed else inf


def least_alone(chip: Chip, step: TileStep) -> tuple[float, bool]:
    """Cycles that a pass of one tile takes at least, and whether these are all: where transfers take no time."""
    assert step.work is not None
    least = float(max(step.work.body, step.work.fed) + chip.array.drain_cycles + step.vector_cycles)
    moves = (*step.loads, *step.stores)
    limits = {*(chip.rates[move.level] for move in moves), chip.engine_rate, chip.writing_rate}
    if limits == {None} and not chip.start_cycles:
        return least + chip.array.fill_cycles, True
    for store in (False, True):
        far = [move.nbytes for move in moves if move.store == store and move.level == chip.dram.name]
        least += chip.start_cycles + sum(far) / chip.dram_speed if far else 0.0
    return least, False


def play_passes(chip: Chip, passes: Sequence[ArrayPass], floor: Floor, host: tuple[int, int] = (0, 0)) -> ArrayAgent:
    """Let the time of passes pass on a floor."""
    agent, done = _start(chip, passes, floor, host)
    floor.run()
    assert done.processed, "an array waits for something that never comes"
    return agent


def _start(
    chip: Chip, passes: Sequence[ArrayPass], floor: Floor, host: tuple[int, int] = (0, 0)
) -> tuple[ArrayAgent, Event]:
    links = {name: floor.link(name, rate) for name, rate in chip.bytes_per_second.items()}
    agent = ArrayAgent(floor, chip, passes, links, host)
    return agent, agent.start()


def _free(step: TileStep) -> TileStep:
    """A step whose loads need no other pass."""
    if all(move.after < 0 for move in step.loads):
        return step
    return replace(step, loads=tuple(replace(move, after=-1) for move in step.loads))
