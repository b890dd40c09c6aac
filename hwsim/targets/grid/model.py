"""A grid of processing elements: the passes of a layer, and what they cost in actions and in cycles. No clock.

A pass multiplies some input channels with the weights of some output channels, for a strip of output rows. Around it
lie six loops: groups, then output channels, images and strips in the order of the mapping (their sums stay in the
buffer meanwhile), input channels, and the output channels that one tile of inputs serves in turn. Pieces at an edge are
as small as they are. Where there are many equal rounds of a loop, a few are played and the others taken to be like the
last of those: a program says so with a Mark and an Again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import groupby, islice, product
from math import prod
from typing import TypeVar

import numpy as np

from hwsim.energy import ARITHMETIC, MEMORY, OPERANDS, Ledger
from hwsim.engine import seconds_to_fs
from hwsim.errors import InputError
from hwsim.numerics.format import Array
from hwsim.program.contraction import ConvShape
from hwsim.spec.machine import DramSpec, MachineSpec, ScratchpadSpec
from hwsim.targets.grid.mapping import GridSizes, NestCounts, RowStationary, count_accesses, rows_under
from hwsim.targets.grid.spec import GridSpec

_Key = TypeVar("_Key")

MOST_PASSES = 800
"""Passes that a program plays at most, where fewer rounds of its loops can be played."""
_ROUNDS = (10**9, 16, 8, 4, 3, 2, 1)
Actions = dict[tuple[str, str], int]
"""How often each part did what; every action moves or makes one value."""
_MOVES = ("read", "write")


@dataclass(frozen=True)
class Drain:
    """What is done to finished sums on their way out."""

    operations: int = 0
    """Additions, multiplications and comparisons for each sum, those of pooling not counted in."""
    maps: int = 0
    """Further operands with a value for each sum."""
    channels: int = 0
    """Further operands with a value for each output channel."""
    pool: int = 1
    """Side of the squares of which the largest value is kept."""


@dataclass(frozen=True)
class GridPass:
    """One pass, in values; passes that are equal in everything count together."""

    steps: int
    """Cycles in which each element multiplies."""
    macs: int
    weights: int
    """From main memory into the grid, each sent once; 0 where those of the pass before stay."""
    weight_writes: int
    inputs: int
    """From main memory into the buffer; 0 where they lie there already."""
    input_sends: int
    """From the buffer to the grid, each sent once."""
    input_writes: int
    input_reads: int
    sums_back: int
    """Unfinished sums that come back from the buffer."""
    sums_out: int
    """Sums that the grid hands to the buffer."""
    pad_sums: int
    """Sums that leave an element, before those of a column and of several sets are added."""
    finished: int
    """Sums that are complete and leave the buffer."""
    operands: int
    """What comes from main memory to meet them there."""
    stored: int
    """Values that reach main memory."""
    operations: int

    @property
    def fresh(self) -> bool:
        """Whether its sums begin here."""
        return not self.sums_back

    @property
    def hops(self) -> int:
        return self.pad_sums - self.sums_out


@dataclass(frozen=True)
class Slot:
    """A pass in its turn, and the part of the buffer that its sums are in."""

    work: GridPass
    part: int


@dataclass(frozen=True)
class RoundMark:
    """Here begins a round of a loop that later rounds are like."""

    level: int


@dataclass(frozen=True)
class RoundsAgain:
    """Here so many rounds follow that are like the one since the mark."""

    level: int
    rounds: int


Entry = Slot | RoundMark | RoundsAgain


def lay_out(mapping: RowStationary, drain: Drain, most: int = MOST_PASSES) -> list[Entry]:
    """The passes of a layer in order, with as many rounds played as make no more than `most` passes."""
    found: list[Entry] = []
    for rounds in _ROUNDS:
        found = list(islice(_Loops(mapping, drain).walk(rounds), 3 * most))
        if sum(isinstance(entry, Slot) for entry in found) <= most and len(found) < 3 * most:
            return found
    return list(_Loops(mapping, drain).walk(1))


def count_passes(mapping: RowStationary, drain: Drain) -> Counter[GridPass]:
    """How often each pass is made, those that are not played counted in."""
    return _Loops(mapping, drain).count()


def repeat(counts: Counter[_Key], before: Counter[_Key], rounds: int) -> None:
    """Add what came since `before` once more for each round."""
    for key, count in list(counts.items()):
        counts[key] = count + rounds * (count - before[key])


@dataclass(frozen=True)
class _Round:
    """One iteration of a loop: its size, and what else makes it different from others."""

    size: int
    first: bool = False
    last: bool = False
    rows: int = 0
    """Input rows of a strip that lie in the image."""
    kept: int = 0
    """Output rows of a strip that are left after pooling."""


_Runs = list[tuple[_Round, int]]
"""The rounds of a loop in order, equal ones that follow each other counted."""


class _Loops:
    """The six loops of a mapping."""

    def __init__(self, mapping: RowStationary, drain: Drain) -> None:
        self.mapping, self.drain, self.shape = mapping, drain, mapping.shape
        size = mapping.sizes
        self.names = ("g", *mapping.order, "c", "again")
        self.runs: dict[str, _Runs] = {
            "g": [(_Round(1), size["g"])],
            "m": _unlast(_cut(size["m"], mapping.m)),
            "n": _unlast(_cut(size["n"], mapping.n)),
            "p": self._strips(size["p"]),
            "c": _cut(size["c"], mapping.q * mapping.r),
        }
        self.counts = {name: sum(count for _, count in runs) for name, runs in self.runs.items()}
        together = mapping.p * mapping.t
        self.again = {each.size: _unlast(_cut(each.size, together)) for each, _ in self.runs["m"]}

    def walk(self, rounds: int) -> Iterator[Entry]:
        """Entries, of each loop so many equal rounds."""
        yield from self._level(0, {}, rounds, 0)

    def count(self) -> Counter[GridPass]:
        """All passes, without an order."""
        found: Counter[GridPass] = Counter()
        names = self.names[:-1]
        for rounds in product(*(self.runs[name] for name in names)):
            at = {name: each for name, (each, _) in zip(names, rounds, strict=True)}
            times = prod(count for _, count in rounds)
            for each, count in self.again[at["m"].size]:
                found[self._pass(at | {"again": each})] += times * count
        return found

    def _level(self, level: int, around: dict[str, _Round], rounds: int, part: int) -> Iterator[Entry]:
        if level == len(self.names):
            yield Slot(self._pass(around), part)
            return
        name = self.names[level]
        number = 0
        for each, count in self.again[around["m"].size] if name == "again" else self.runs[name]:
            played = min(count, rounds)
            for left in reversed(range(played)):
                if not left and count > played:
                    yield RoundMark(level)
                yield from self._level(level + 1, around | {name: each}, rounds, number if name == "again" else 0)
                number += 1
            if count > played:
                yield RoundsAgain(level, count - played)
                number += count - played

    def _strips(self, whole: int) -> _Runs:
        found, shape = [], self.shape
        side, (stride, _), (pad, _) = self.drain.pool, shape.stride, shape.padding
        for start in range(0, whole, self.mapping.e):
            size = min(self.mapping.e, whole - start)
            begin = start * stride - pad
            inside = min(shape.image[0], begin + (size - 1) * stride + shape.reach[0]) - max(0, begin)
            rows = max(0, min(inside, size * shape.window[0]))
            kept = (start + size) // side - start // side
            found.append(_Round(size, start == 0, rows=rows, kept=kept))
        return [(each, len(list(group))) for each, group in groupby(found)]

    def _pass(self, at: dict[str, _Round]) -> GridPass:
        mapping, shape = self.mapping, self.shape
        n, channels, e = at["n"].size, at["c"].size, at["p"].size
        outputs = at["again"].size
        columns, kernel = shape.out[1], shape.window[0] * shape.window[1]
        q, p = -(-channels // mapping.r), -(-outputs // mapping.t)
        in_sets, out_sets = -(-channels // q), -(-outputs // p)
        macs = n * outputs * channels * e * columns * kernel
        new_weights, new_inputs = self._changed(at)
        across = min((columns - 1) * shape.stride[1] + shape.reach[1], columns * shape.window[1])
        sums = n * outputs * e * columns
        done = sums if at["c"].last else 0
        width = columns // self.drain.pool
        compared = done if self.drain.pool > 1 else 0
        return GridPass(
            steps=n * columns * q * shape.window[1] * p,
            macs=macs,
            weights=outputs * channels * kernel if new_weights else 0,
            weight_writes=outputs * channels * kernel * e if new_weights else 0,
            inputs=n * channels * at["p"].rows * min(shape.image[1], across) if new_inputs else 0,
            input_sends=n * channels * rows_under(shape, e) * across,
            input_writes=n * channels * out_sets * shape.window[0] * e * across,
            input_reads=macs // p,
            sums_back=0 if at["c"].first else sums,
            sums_out=sums,
            pad_sums=sums * shape.window[0] * in_sets,
            finished=done,
            operands=done * self.drain.maps + (outputs * self.drain.channels if done else 0),
            stored=n * outputs * at["p"].kept * width if done else 0,
            operations=done * self.drain.operations + compared,
        )

    def _changed(self, at: dict[str, _Round]) -> tuple[bool, bool]:
        """Whether weights and inputs are others than those of the pass before.

        The loop that went on is the innermost one that is not in its first round; those inside it began again.
        """
        one_round = self.again[at["m"].size][0][1] == 1 and len(self.again[at["m"].size]) == 1
        new_tile = at["again"].first
        if self.counts["c"] > 1:
            return True, new_tile
        order = self.mapping.order
        moved = next((name for name in reversed(order) if not at[name].first), None)
        if moved is None:
            return True, new_tile
        began = {name for name in order[order.index(moved) :] if self.counts[name] > 1}
        return "m" in began or not one_round, new_tile and bool(began & {"n", "p"})


def _cut(whole: int, piece: int) -> _Runs:
    """Pieces of a loop: the first, those in the middle, and the last, which is smaller where it has to be."""
    count = -(-whole // piece)
    rest = whole - (count - 1) * piece
    if count == 1:
        return [(_Round(rest, True, True), 1)]
    middle = [(_Round(piece), count - 2)] if count > 2 else []
    return [(_Round(piece, True), 1), *middle, (_Round(rest, last=True), 1)]


def _unlast(runs: _Runs) -> _Runs:
    """Without telling a last piece apart that is as large as those before it."""
    merged: _Runs = []
    for each, count in runs:
        plain = _Round(each.size, each.first)
        if merged and merged[-1][0] == plain:
            merged[-1] = (plain, merged[-1][1] + count)
        else:
            merged.append((plain, count))
    return merged


@dataclass(frozen=True)
class GridCost:
    """A mapping, the passes that it makes, and what they do; no clock."""

    mapping: RowStationary
    passes: Counter[GridPass]
    actions: Actions
    estimate_cycles: float
    """Cycles if loads that have room run beside the passes and nothing else does; a run may take a little more or
    less."""
    moved_bytes: int
    """Between main memory and the chip."""

    @property
    def compute_cycles(self) -> int:
        return sum(each.steps * count for each, count in self.passes.items())

    @property
    def flow(self) -> NestCounts:
        """The closed form: every piece whole, padding fetched, nothing that stays."""
        return count_accesses(*self.mapping.nest())

    def traffic(self, part: str) -> int:
        """Values that a memory delivers and receives."""
        return sum(count for (name, action), count in self.actions.items() if name == part and action in _MOVES)


@dataclass(frozen=True)
class DoubleBuffering:
    """What can come, or stay, while a pass is computed, because there is a place for it."""

    weights: bool
    """Those of the next pass."""
    inputs: bool
    """Those of the next tile."""
    sums: bool
    """Finished ones that still leave while others begin."""

    @classmethod
    def of(cls, mapping: RowStationary, grid: PeGrid) -> DoubleBuffering:
        buffer = grid.sizes.buffer if grid.unit.double_buffered else 0
        inputs = 2 * mapping.input_tile + mapping.sum_tile <= buffer
        sums = (2 if inputs else 1) * mapping.input_tile + 2 * mapping.sum_tile <= buffer
        return cls(mapping.pass_weights <= grid.weight_room, inputs, sums)


class PeGrid:
    """The grid of a machine with its memories: one scratchpad for each operand, a buffer, main memory."""

    def __init__(self, machine: MachineSpec) -> None:
        unit = machine.compute[0]
        if not isinstance(unit, GridSpec):
            raise InputError(f"machine {machine.name} has no grid of processing elements: {unit.name} is a {unit.kind}")
        self.machine, self.unit = machine, unit
        self.clock_hz = machine.clock_hz(unit.clock)
        pads = machine.scratchpads
        self.pads = {role: _only(machine, pads, role) for role in ("input", "weight", "output")}
        buffer = next((pad for pad in pads if pad.shared_by == "all"), None)
        if buffer is None:
            raise InputError(f"machine {machine.name}: a grid needs a scratchpad with shared_by: all")
        self.buffer = buffer
        self.dram = machine.dram

    @cached_property
    def sizes(self) -> GridSizes:
        """In values of the grid's width."""
        inputs, weights, sums = (self._values(self.pads[role].size) for role in ("input", "weight", "output"))
        return GridSizes(self.unit.rows, self.unit.columns, inputs, weights, sums, self._values(self.buffer.size))

    @property
    def weight_room(self) -> int:
        """Weights that can wait for the next pass."""
        return self._values(self.unit.weight_buffer or 0)

    @property
    def latency_fs(self) -> int:
        """From a request to main memory to its first byte."""
        latency = self.dram.latency
        return 0 if latency is None else seconds_to_fs(latency.seconds(self.machine.clock_hz(self.dram.clock)))

    def nbytes(self, values: int) -> int:
        return -(-values * self.unit.bits // 8)

    def bytes_per_second(self, level: ScratchpadSpec | DramSpec) -> Fraction | None:
        if level.bandwidth is None:
            return None
        hz = self.machine.clock_hz(level.clock)
        rate = level.bandwidth.bytes_per_cycle(hz)
        return None if rate is None else rate * hz

    # What a mapping does ----------------------------------------------------------------------------------------------

    def cost(self, mapping: RowStationary, zero_share: float = 0.0, drain: Drain | None = None) -> GridCost:
        """What a mapping does; `zero_share` of the multiplications have an input of zero."""
        passes = count_passes(mapping, drain or Drain())
        actions = self.actions(passes, zero_share)
        moved = sum(actions[self.dram.name, action] for action in _MOVES)
        return GridCost(mapping, passes, actions, self._estimate(mapping, passes), self.nbytes(moved))

    def actions(self, passes: Mapping[GridPass, int], zero_share: float = 0.0) -> Actions:
        """What some passes do. A sum is read and written for each product that is not skipped; where it begins it is
        not read, where it comes back it is written, and where it leaves it is read."""
        pads = {role: pad.name for role, pad in self.pads.items()}
        busy = 1 - zero_share if self.unit.gate_zeros else 1.0
        found: Counter[tuple[str, str]] = Counter(dict.fromkeys(self._keys(), 0))
        for each, count in passes.items():
            useful = round(each.macs * busy)
            back = 0 if each.fresh else each.pad_sums
            begun = each.pad_sums if each.fresh else 0
            own = {
                (self.unit.name, "mac"): useful,
                (self.unit.name, "hop"): each.hops,
                (self.unit.name, "drain"): each.operations,
                (pads["weight"], "read"): useful,
                (pads["weight"], "write"): each.weight_writes,
                (pads["input"], "read"): each.input_reads,
                (pads["input"], "write"): each.input_writes,
                (pads["output"], "read"): round((each.macs - begun + each.pad_sums) * busy),
                (pads["output"], "write"): round((each.macs + back) * busy),
                (self.buffer.name, "read"): each.input_sends + each.sums_back + each.finished,
                (self.buffer.name, "write"): each.inputs + each.sums_out,
                (self.dram.name, "read"): each.weights + each.inputs + each.operands,
                (self.dram.name, "write"): each.stored,
            }
            for key, value in own.items():
                found[key] += count * value
        return dict(found)

    def post(self, actions: Actions) -> Ledger:
        """Every action, each of one value: arithmetic, the memories of the elements, and the levels behind them."""
        ledger = Ledger()
        behind = {self.buffer.name, self.dram.name}
        for (part, action), count in sorted(actions.items()):
            cause = ARITHMETIC if action in ("mac", "drain") else MEMORY if part in behind else OPERANDS
            ledger.post(part, action, count, bits=count * self.unit.bits, cause=cause)
        return ledger

    def picojoules(self, actions: Actions) -> float:
        """At the machine's prices; 0 for what has none."""
        prices = {} if self.machine.energy is None else self.machine.energy.actions
        named = {f"{part}.{action}": count for (part, action), count in actions.items()}
        found = 0.0
        for name, count in named.items():
            if name in prices:
                price = prices[name].energy
                found += float(price.picojoules) * count * (self.unit.bits if price.per == "bit" else 1)
        return found

    def _keys(self) -> list[tuple[str, str]]:
        parts = [pad.name for pad in (*self.pads.values(), self.buffer, self.dram)]
        return [(part, action) for part in parts for action in _MOVES] + [(self.unit.name, "mac")]

    def _estimate(self, mapping: RowStationary, passes: Counter[GridPass]) -> float:
        """Cycles: passes and the weights that enter, what moves while they stand still, before the first and after the
        last of them, or the links if those are busy for longer."""
        far, near = (float(self._cycles_of_value(level)) for level in (self.dram, self.buffer))
        room = DoubleBuffering.of(mapping, self)
        turns = -(-min(mapping.m, mapping.sizes["m"]) // (mapping.p * mapping.t)) - 1
        own = beside = through = 0.0
        for each, count in passes.items():
            between = (each.input_sends + each.sums_back + each.sums_out) * near
            alone = max(each.steps, between) + each.weights / self.unit.weight_words
            late = (0 if room.weights else each.weights) + (0 if room.inputs else each.inputs)
            leaving = (each.operands + each.stored) * far
            stands = 0.0 if room.sums else max(0.0, leaving - turns * alone)
            own += count * (alone + late * far + stands)
            beside += count * ((each.weights + each.inputs) * far + leaving)
            through += count * ((each.inputs + each.finished) * near + between)
        first = max(each.weights for each in passes) + max(each.inputs for each in passes)
        last = max(each.operands + each.stored for each in passes)
        return max(own + (first + last) * far, beside, through)

    def _cycles_of_value(self, level: ScratchpadSpec | DramSpec) -> Fraction:
        rate = self.bytes_per_second(level)
        return Fraction(0) if rate is None else Fraction(self.unit.bits, 8) / rate * self.clock_hz

    def least_cycles(self, shape: ConvShape) -> Fraction:
        """No mapping can be faster: every element multiplies in every cycle, every value moves once."""
        values = (
            shape.batch * shape.ci * shape.image[0] * shape.image[1]
            + shape.co * shape.ci // shape.groups * shape.window[0] * shape.window[1]
        )
        return max(Fraction(shape.macs, self.unit.count), values * self._cycles_of_value(self.dram))

    def _values(self, size: int) -> int:
        return 8 * size // self.unit.bits


def gated_share(inputs: Array, shape: ConvShape) -> float:
    """The share of multiplications whose input is zero, from the real data (images, channels, rows, columns)."""
    rows = _uses(shape.image[0], shape.window[0], shape.out[0], shape.stride[0], shape.padding[0], shape.dilation[0])
    columns = _uses(shape.image[1], shape.window[1], shape.out[1], shape.stride[1], shape.padding[1], shape.dilation[1])
    uses = rows[:, None] * columns[None, :]
    zeros = np.count_nonzero(np.asarray(inputs) == 0, axis=(0, 1))
    padding = (
        shape.batch * shape.ci * (shape.out[0] * shape.window[0] * shape.out[1] * shape.window[1] - int(uses.sum()))
    )
    whole = shape.batch * shape.ci * shape.out[0] * shape.window[0] * shape.out[1] * shape.window[1]
    return float((int((zeros * uses).sum()) + padding) / whole)


def _uses(size: int, kernel: int, outputs: int, stride: int, pad: int, dilation: int) -> Array:
    """How often each row (or column) of the input lies under an element of the kernel."""
    uses = np.zeros(size, np.int64)
    for element in range(kernel):
        places = np.arange(outputs) * stride - pad + element * dilation
        np.add.at(uses, places[(places >= 0) & (places < size)], 1)
    return uses


def _only(machine: MachineSpec, pads: tuple[ScratchpadSpec, ...], role: str) -> ScratchpadSpec:
    found = [pad for pad in pads if pad.shared_by == 1 and pad.holds == (role,)]
    if len(found) != 1:
        raise InputError(
            f"machine {machine.name}: an element of a grid needs one scratchpad that holds [{role}] alone, "
            f"found {len(found)}"
        )
    return found[0]
