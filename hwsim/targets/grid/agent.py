"""The grid as an agent: inputs and weights come as early as there is room, passes follow each other, sums leave.

Weights for the next pass wait in the memory for weights, inputs for the next tile in the part of the buffer that is
free; where there is no such room, they come when the pass before is over. Weights enter the grid while nothing is
computed. During a pass, inputs and sums move between the buffer and the grid. Finished sums drain while later passes
run; a pass whose sums begin waits until those that lay in the same part of the buffer have left, if there is no room
for both.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from hwsim.engine import Event, Floor, Wait, Watch, cycles_to_fs
from hwsim.targets.grid.mapping import RowStationary
from hwsim.targets.grid.model import (
    MOST_PASSES,
    Actions,
    DoubleBuffering,
    Drain,
    Entry,
    GridCost,
    GridPass,
    PeGrid,
    RoundMark,
    RoundsAgain,
    Slot,
    lay_out,
    repeat,
)

ARRAY = "array"
WEIGHTS, INPUTS, OUTPUTS = "weights", "inputs", "outputs"
ENTER = "fill and drain"
"""Weights on their way into the elements."""
BUFFER = "scratchpad"
"""Inputs and sums between the buffer and the grid, where they take longer than the multiplications."""


@dataclass(frozen=True)
class _Moment:
    """How things stood when a round of a loop began."""

    now: int
    passes: Counter[GridPass]
    busy: Counter[str]
    waiting: Counter[str]


class GridAgent:
    """All elements of a grid, which work on one pass together."""

    def __init__(
        self, floor: Floor, grid: PeGrid, mapping: RowStationary, entries: Sequence[Entry], zero_share: float
    ) -> None:
        self.floor, self.grid, self.entries, self.zero_share = floor, grid, entries, zero_share
        self.order = [entry.work for entry in entries if isinstance(entry, Slot)]
        self.room = DoubleBuffering.of(mapping, grid)
        self.dram = floor.link(grid.dram.name, grid.bytes_per_second(grid.dram))
        self.buffer = floor.link(grid.buffer.name, grid.bytes_per_second(grid.buffer))
        self.here: dict[tuple[str, int], Event] = {}
        self.drains: defaultdict[int, list[Event]] = defaultdict(list)
        self.passes: Counter[GridPass] = Counter()
        self.watch = Watch(f"{grid.unit.name}[0]")
        self._marks: dict[int, _Moment] = {}

    def start(self) -> Event:
        return self.floor.start(self._work())

    # Passes -----------------------------------------------------------------------------------------------------------

    def _work(self) -> Wait:
        number, watch = 0, self.watch
        self._load(0, WEIGHTS)
        self._load(0, INPUTS)
        for entry in self.entries:
            if isinstance(entry, RoundMark):
                moment = _Moment(self.floor.now, self.passes.copy(), watch.busy.copy(), watch.waiting.copy())
                self._marks[entry.level] = moment
            elif isinstance(entry, RoundsAgain):
                yield from self._like_before(entry)
            else:
                yield from self._pass(number, entry)
                number += 1
        for part in sorted(self.drains):
            yield from self._make_room(part, 0)

    def _pass(self, number: int, slot: Slot) -> Wait:
        work, floor = slot.work, self.floor
        began = floor.now
        for kind in (WEIGHTS, INPUTS):
            if (kind, number) in self.here:
                yield from self._wait(kind, self.here.pop((kind, number)))
        if work.fresh:
            yield from self._make_room(slot.part, 1 if self.room.sums else 0)
        if work.weights:
            begin = floor.now
            yield floor.delay(self._fs(Fraction(work.weights, self.grid.unit.weight_words)))
            self.watch.wait(ENTER, floor.now - begin)
            floor.record(self.watch.name, "weights enter", begin, floor.now)
        if self.room.weights:
            self._load(number + 1, WEIGHTS)
        if self.room.inputs and work.inputs:
            self._load(self._next_tile(number), INPUTS)
        yield from self._compute(work)
        self.passes[work] += 1
        if floor.timeline:
            floor.pulse(began, floor.now, self.grid.post(self.grid.actions({work: 1}, self.zero_share)))
        if not self.room.weights:
            self._load(number + 1, WEIGHTS)
        if not self.room.inputs:
            self._load(number + 1, INPUTS)
        if work.finished:
            self.drains[slot.part].append(floor.start(self._drain(work)))

    def _compute(self, work: GridPass) -> Wait:
        floor, begin = self.floor, self.floor.now
        steps_fs = self._fs(work.steps)
        moving = [floor.delay(steps_fs)]
        between = work.input_sends + work.sums_back + work.sums_out
        moving.append(self.buffer.transfer(self.grid.nbytes(between)))
        yield floor.every(moving)
        self.watch.work(ARRAY, steps_fs)
        self.watch.wait(BUFFER, floor.now - begin - steps_fs)
        floor.record(self.watch.name, "pass", begin, floor.now)

    def _like_before(self, again: RoundsAgain) -> Wait:
        """Let rounds pass that take as long as the one since the mark, and do the same."""
        since, begin = self._marks[again.level], self.floor.now
        before = self.passes.copy()
        repeat(self.watch.busy, since.busy, again.rounds)
        repeat(self.watch.waiting, since.waiting, again.rounds)
        repeat(self.passes, since.passes, again.rounds)
        yield self.floor.delay(again.rounds * (begin - since.now))
        if self.floor.timeline:
            self.floor.record(self.watch.name, f"{again.rounds} rounds like the last", begin, self.floor.now)
            done = self.grid.actions(self.passes - before, self.zero_share)
            self.floor.pulse(begin, self.floor.now, self.grid.post(done))

    # Transfers --------------------------------------------------------------------------------------------------------

    def _next_tile(self, number: int) -> int:
        """The next pass with inputs of its own."""
        later = range(number + 1, len(self.order))
        return next((each for each in later if self.order[each].inputs), len(self.order))

    def _load(self, number: int, kind: str) -> None:
        """Ask for what a pass needs, once."""
        if number >= len(self.order) or (kind, number) in self.here:
            return
        values = self.order[number].weights if kind == WEIGHTS else self.order[number].inputs
        if values:
            self.here[kind, number] = self.floor.start(self._fetch(values, kind))

    def _fetch(self, values: int, kind: str) -> Wait:
        """From main memory: inputs through the buffer, weights to the memory next to the grid."""
        begin, nbytes = self.floor.now, self.grid.nbytes(values)
        yield self.floor.delay(self.grid.latency_fs)
        moving = [self.dram.transfer(nbytes)]
        if kind == INPUTS:
            moving.append(self.buffer.transfer(nbytes))
        yield self.floor.every(moving)
        self.floor.record(f"{self.watch.name} {kind} from {self.grid.dram.name}", kind, begin, self.floor.now)

    def _drain(self, work: GridPass) -> Wait:
        """Finished sums leave the buffer, meet what is added to them, and go to main memory."""
        floor, begin = self.floor, self.floor.now
        if work.operands:
            yield floor.delay(self.grid.latency_fs)
            yield self.dram.transfer(self.grid.nbytes(work.operands))
        leaving = self._fs(Fraction(work.finished, self.grid.unit.drain_words))
        moving = [
            self.buffer.transfer(self.grid.nbytes(work.finished)),
            self.dram.transfer(self.grid.nbytes(work.stored)),
        ]
        yield floor.every([*moving, floor.delay(leaving)])
        floor.record(f"{self.watch.name} outputs to {self.grid.dram.name}", "outputs", begin, floor.now)

    def _make_room(self, part: int, left: int) -> Wait:
        """Wait until no more than so many tiles of finished sums are still leaving a part of the buffer."""
        while len(self.drains[part]) > left:
            yield from self._wait(OUTPUTS, self.drains[part].pop(0))

    def _wait(self, cause: str, event: Event) -> Wait:
        begin = self.floor.now
        if not event.processed:
            yield event
        self.watch.wait(cause, self.floor.now - begin)

    def _fs(self, cycles: Fraction | int) -> int:
        return cycles_to_fs(cycles, self.grid.clock_hz)


@dataclass(frozen=True)
class PlayedMapping:
    """A mapping that was played."""

    cost: GridCost
    agent: GridAgent

    @property
    def actions(self) -> Actions:
        """What its passes did."""
        return self.agent.grid.actions(self.agent.passes, self.agent.zero_share)

    @property
    def elapsed_fs(self) -> int:
        return self.agent.watch.elapsed_fs

    @property
    def cycles(self) -> float:
        return self.elapsed_fs * 1e-15 * self.agent.grid.clock_hz


def play_mapping(
    grid: PeGrid,
    cost: GridCost,
    zero_share: float = 0.0,
    drain: Drain | None = None,
    floor: Floor | None = None,
    *,
    most: int = MOST_PASSES,
) -> PlayedMapping:
    """Let the passes of a mapping happen on a floor, one of their own if none is given."""
    entries = lay_out(cost.mapping, drain or Drain(), most)
    floor = floor or Floor()
    agent = GridAgent(floor, grid, cost.mapping, entries, zero_share)
    done = agent.start()
    floor.run()
    assert done.processed, "a grid waits for something that never comes"
    assert agent.passes == cost.passes, "passes were lost"
    return PlayedMapping(cost, agent)
