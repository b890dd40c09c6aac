"""An array as an agent: transfers run ahead of the tiles as far as there is room, and each tile waits for its own.

Loads of inputs and of weights, the array with its vector unit, and stores are processes of their own. A load for a
tile begins when the tile that its buffer served before is done. The array counts in whole cycles: what arrives within a
cycle is seen at its end.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from fractions import Fraction
from typing import Any

import simpy

from hwsim.engine.array_watch import ARRAY, FILL, INPUTS, OUTPUTS, SCRATCHPAD, VECTOR, WEIGHTS, ArrayWatch
from hwsim.engine.clock import cycles_to_fs, seconds_to_fs
from hwsim.engine.dma import DmaEngines
from hwsim.engine.link import Link
from hwsim.engine.outcome import FEMTOSECONDS, Span
from hwsim.mapping.chip import Chip
from hwsim.mapping.step import Move, Pass, TileStep

Wait = Generator[simpy.Event, Any, None]
Slot = tuple[int, int, TileStep]
"""A tile: its number in the whole run, its pass, and what it does."""


class _Pieces:
    """The pieces of an operand in the order of a pass, each with the first tile that loads a part of it."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self._ranks: dict[int, int] = {}

    def note(self, piece: int, tile: int) -> None:
        if piece not in self._ranks:
            self._ranks[piece] = len(self.starts)
            self.starts.append(tile)

    def index(self, piece: int) -> int:
        return self._ranks[piece]


class ArrayAgent:
    """All arrays of a chip, which work on one tile together."""

    def __init__(
        self,
        env: simpy.Environment,
        chip: Chip,
        passes: Sequence[Pass],
        links: dict[str, Link],
        spans: list[Span] | None,
    ) -> None:
        self.env, self.chip, self.passes, self.links, self.spans = env, chip, passes, links, spans
        self.watch = ArrayWatch(f"{chip.unit.name}[0]")
        self.dma = DmaEngines(env, chip.unit.dma.engines)
        self.slots: list[Slot] = []
        self.first: list[int] = []
        for each in passes:
            self.first.append(len(self.slots))
            self.slots += [(len(self.slots) + n, each.number, step) for n, step in enumerate(each.steps)]
        self.computed = [env.event() for _ in self.slots]
        self.arrived: dict[tuple[int, str], simpy.Event] = {}
        for number, _, step in self.slots:
            for kind in {_kind(move) for move in step.loads}:
                self.arrived[number, kind] = env.event()
        self.pieces: dict[tuple[int, str], _Pieces] = {}
        for number, which, step in self.slots:
            for move in step.loads:
                self.pieces.setdefault((which, _kind(move)), _Pieces()).note(move.piece, number)
        self.over = [env.event() for _ in passes]
        self.stored: list[simpy.Event] = []
        self.moved: list[Move] = []
        self._free = self._drained = self._out = self._loadable = self._vector_free = 0
        """Cycles: when the next value can enter, the last sum has left the cells, all results are out, the next
        stationary tile can begin to move in, and the vector unit has nothing more to do."""

    def start(self) -> simpy.Event:
        """Begin; the event happens when everything is done."""
        for kind in (INPUTS, WEIGHTS):
            self.env.process(self._load(kind))
        return self.env.process(self._compute())

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
            self.env.process(self._fetch(moves, self.arrived[number, kind], number, step.name))

    def _fetch(self, moves: Sequence[Move], arrived: simpy.Event, number: int, name: str) -> Wait:
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
        depth = ahead.weight if kind == WEIGHTS else ahead.input
        if depth == 1:
            return number - 1
        if piece < 0:
            return number - depth
        order = self.pieces[which, kind]
        rank = order.index(piece)
        return self.first[which] - 2 if rank < depth else order.starts[rank - depth + 1] - 1

    def _transfer(self, move: Move, number: int, name: str) -> Generator[simpy.Event, Any, simpy.Event]:
        """Move bytes, and hold an engine meanwhile; what comes back happens when the last byte is there."""
        self.moved.append(move)
        link = self.links[move.level]
        level = self.chip.machine.level(move.level)
        if move.level != self.chip.dram.name:
            yield link.transfer(move.nbytes)
            return self.env.timeout(0)
        begin = self.env.now
        dma = self.chip.unit.dma
        yield self.dma.request(number)
        if dma.setup is not None:
            yield self.env.timeout(self._fs(dma.setup.cycles(self.chip.clock_hz) * move.requests))
        weight = Fraction(1)
        if move.store and level.write_bandwidth is not None:
            reading, writing = (
                self.chip.bytes_per_cycle(level, rate) for rate in (level.bandwidth, level.write_bandwidth)
            )
            weight = reading / writing if reading is not None and writing is not None else weight
        rate = None if dma.bandwidth is None else dma.bandwidth.bytes_per_cycle(self.chip.clock_hz)
        moving = [link.transfer(move.nbytes * weight)]
        if rate is not None:
            moving.append(self.env.timeout(self._fs(move.nbytes / rate)))
        yield simpy.AllOf(self.env, moving) if len(moving) > 1 else moving[0]
        self.dma.release()
        if self.spans is not None:
            lane = f"{self.watch.name} {move.role}s {'to' if move.store else 'from'} {move.level}"
            self.spans.append(Span(lane, name, begin, self.env.now))
        if level.latency is None:
            return self.env.timeout(0)
        return self.env.timeout(seconds_to_fs(level.latency.seconds(self.chip.machine.clock_hz(level.clock))))

    def _store(self, moves: Sequence[Move], ready: int, done: simpy.Event, number: int, name: str) -> Wait:
        yield self._until(ready)
        for move in moves:
            last = yield from self._transfer(move, number, name)
            yield last
        done.succeed(self._cycle())

    # Work -------------------------------------------------------------------------------------------------------------

    def _compute(self) -> Wait:
        for each in self.passes:
            first_store = len(self.stored)
            for number in range(self.first[each.number], self.first[each.number] + len(each.steps)):
                step = self.slots[number][2]
                yield from self._play(each, number, step)
            self.env.process(self._finish(each.number, self._out, self.stored[first_store:]))
        for event in self.over:
            if not event.processed:
                yield event
        self.watch.wait(FILL, self._drained)
        self.watch.wait(VECTOR, self._out)
        self.watch.wait(OUTPUTS, max(event.value for event in self.over))

    def _finish(self, number: int, out: int, stores: Sequence[simpy.Event]) -> Wait:
        yield self._until(out)
        for event in stores:
            if not event.processed:
                yield event
        self.over[number].succeed(self._cycle())

    def _play(self, each: Pass, number: int, step: TileStep) -> Wait:
        """Wait for what a tile needs, then let its time pass."""
        arrivals = {}
        for kind in (WEIGHTS, INPUTS):
            event = self.arrived.get((number, kind))
            if event is not None:
                arrivals[kind] = event.value if event.processed else (yield event)
        needed = 0
        for other in each.needs if number == self.first[each.number] else ():
            event = self.over[other]
            needed = max(needed, event.value if event.processed else (yield event))
        room = 0
        if step.opens and 0 <= len(self.stored) - each.ahead.output < len(self.stored):
            event = self.stored[len(self.stored) - each.ahead.output]
            room = event.value if event.processed else (yield event)
        start = self._begin(step, arrivals, needed, room)
        end, out = self._advance(step, start)
        if self.spans is not None:
            lane = self.watch.name if step.work is not None else f"{self.watch.name} vector unit"
            self.spans.append(Span(lane, step.name, self._time(start), self._time(end)))
        yield self._until(end)
        self.computed[number].succeed()
        if step.stores:
            done = self.env.event()
            self.stored.append(done)
            self.env.process(self._store(step.stores, out, done, number, step.name))

    def _begin(self, step: TileStep, arrivals: dict[str, int], needed: int, room: int) -> int:
        """The cycle in which a tile's first value enters; everything before is put down to what it waited for."""
        weights, inputs = arrivals.get(WEIGHTS, 0), arrivals.get(INPUTS, 0)
        if step.work is None:
            free = max(self._out if step.chained else self._free, self._vector_free)
            start = max(free, weights, inputs, needed, room)
            in_turn = [(FILL, max(needed, free)), (WEIGHTS, weights), (INPUTS, inputs), *self._room_causes(room)]
            self.watch.wait_in_turn(in_turn, start)
            return start
        array = self.chip.array
        stationary, streamed = {"ws": (WEIGHTS, INPUTS), "is": (INPUTS, WEIGHTS), "os": (None, None)}[array.dataflow]
        held = 0 if stationary is None else arrivals.get(stationary, 0)
        alone = step.chained or array.folding == "serial"
        causes: list[tuple[str, int]] = [(FILL, self._drained), (VECTOR, self._out)] if alone else []
        if step.work.goes_on and not step.chained:
            loaded = max(self._free, held)
        elif alone:
            loaded = max(self._out, held, needed if step.chained else 0) + array.fill_cycles
        else:
            loaded = max(self._loadable, held) + array.fill_cycles
        if stationary is not None:
            causes.append((stationary, held))
        causes.append((FILL, max(loaded, needed)))
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

    # Time -------------------------------------------------------------------------------------------------------------

    def _fs(self, cycles: Fraction | int) -> int:
        return cycles_to_fs(cycles, self.chip.clock_hz)

    def _time(self, cycle: int) -> int:
        """The first femtosecond of a cycle, rounded down: so that it is in that cycle again when it is rounded up."""
        return cycle * FEMTOSECONDS // self.chip.clock_hz

    def _cycle(self) -> int:
        """The next whole cycle."""
        return -(-int(self.env.now) * self.chip.clock_hz // FEMTOSECONDS)

    def _until(self, cycle: int) -> simpy.Event:
        return self.env.timeout(max(0, self._time(cycle) - self.env.now))


def _kind(move: Move) -> str:
    return WEIGHTS if move.role == "weight" else INPUTS
