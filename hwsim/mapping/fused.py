"""A loop over tiles around several loops, as one pass: the tiles are the kernel's own, and what lies between stays.

A tensor that only these loops use never leaves the chip. Of the others, the piece at hand is in a scratchpad until
another piece takes its place; a changed piece of a result goes out then.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hwsim.errors import CapacityError
from hwsim.kernels.loop.loops import Operand
from hwsim.kernels.loop.program import Loop, Ranges, TileLoop, walk
from hwsim.mapping.chip import Chip
from hwsim.mapping.fold import fold_tile
from hwsim.mapping.footprint import footprint
from hwsim.mapping.gemm import GemmView, gemm_view
from hwsim.mapping.place import Places, room
from hwsim.mapping.step import Ahead, ArrayWork, Counts, Move, Pass, TileStep
from hwsim.mapping.vector import cycles_for, operations
from hwsim.numerics.format import find_format
from hwsim.units import format_bytes

Piece = tuple[tuple[str, int, int], ...]


def map_fused(chip: Chip, item: TileLoop, number: int, places: Places, buffers: int = 2) -> Pass:
    """Each loop of each tile is a step that needs the one before."""
    tracker = _Tracker(chip, places, number)
    views: dict[int, GemmView | None] = {}
    steps: list[TileStep] = []
    for loop, ranges, _ in walk([item], {}):
        if id(loop) not in views:
            views[id(loop)] = gemm_view(loop)
        steps += tracker.play(loop, views[id(loop)], ranges)
    steps += tracker.finish(item.index)
    _check_room(chip, places, number, tracker.largest, item)
    on_chip = {pad.name for pad in chip.scratchpads}
    still = {places.producer(name, number) for name in tracker.read if places.level[name] in on_chip}
    depth = min(buffers, (chip.keeper or chip.pads["output"]).buffers)
    name = " + ".join(dict.fromkeys(step.name for step in steps))
    return Pass(
        number=number,
        name=name,
        unit="array" if any(views.values()) else "vector",
        steps=steps,
        ahead=Ahead(depth, depth, depth),
        counts=tracker.counts,
        needs=tuple(sorted(still - {-1})),
        held={(chip.keeper or chip.pads["output"]).name: sum(tracker.largest.values())},
        tile={item.index: item.tile},
        order=item.index,
    )


class _Tracker:
    """Which piece of each tensor is on the chip."""

    def __init__(self, chip: Chip, places: Places, number: int) -> None:
        self.chip, self.places, self.number = chip, places, number
        self.counts = Counts()
        self.largest: dict[str, int] = {}
        self.read: set[str] = set()
        self._held: dict[str, Piece] = {}
        self._changed: dict[str, tuple[Piece, int]] = {}
        self._on_chip = {pad.name for pad in chip.scratchpads}
        self._pad = (chip.keeper or chip.pads["output"]).name
        self._sizes: dict[tuple[int, tuple[int, ...]], int] = {}
        self._works: dict[tuple[int, tuple[int, ...]], tuple[ArrayWork | None, int, Counts]] = {}

    def play(self, loop: Loop, view: GemmView | None, ranges: Ranges) -> list[TileStep]:
        loads: list[Move] = []
        stores: list[Move] = []
        for position, operand in enumerate((*loop.operation.inputs, *loop.operation.late)):
            role = "weight" if view is not None and position == 1 else "input"
            self.read.add(operand.tensor)
            moved = self._fetch(operand, ranges)
            if moved:
                after = self.places.producer(operand.tensor, self.number)
                level = self.places.level[operand.tensor]
                loads.append(Move("weight" if role == "weight" else "input", operand.tensor, level, moved, after))
        output = loop.operation.output
        if output is not None and loop.operation.continues and (moved := self._fetch(output, ranges)):
            loads.append(Move("input", output.tensor, self.places.level[output.tensor], moved))
        for operand in (*loop.operation.stores, *([output] if output is not None else [])):
            stores += self._write(operand, ranges)
        key = (id(loop), tuple(count for _, count in ranges.values()))
        if key not in self._works:
            self._works[key] = self._work(loop, view, ranges)
        work, vector_cycles, counts = self._works[key]
        self.counts += counts
        return [TileStep(loop.name, tuple(loads), tuple(stores), work, vector_cycles, bool(stores), chained=True)]

    def finish(self, name: str) -> list[TileStep]:
        """What is left goes out."""
        stores = [
            Move("output", tensor, self.places.level[tensor], nbytes, store=True)
            for tensor, (_, nbytes) in self._changed.items()
        ]
        return [TileStep(name, (), tuple(stores), None, 0, chained=True)] if stores else []

    def _stays(self, tensor: str) -> bool:
        return self.places.level[tensor] in self._on_chip

    def _fetch(self, operand: Operand, ranges: Ranges) -> int:
        if self._stays(operand.tensor):
            return 0
        piece = _piece(operand, ranges)
        nbytes = self._bytes(operand, ranges)
        if self._held.get(operand.tensor) == piece:
            return 0
        self._held[operand.tensor] = piece
        return nbytes

    def _write(self, output: Operand, ranges: Ranges) -> list[Move]:
        if self._stays(output.tensor):
            return []
        piece, stores = _piece(output, ranges), []
        nbytes = self._bytes(output, ranges)
        old = self._changed.get(output.tensor)
        if old is not None and old[0] != piece:
            stores.append(Move("output", output.tensor, self.places.level[output.tensor], old[1], store=True))
        self._changed[output.tensor] = piece, nbytes
        self._held[output.tensor] = piece
        return stores

    def _bytes(self, operand: Operand, ranges: Ranges) -> int:
        box = {index: ranges[index][1] for index in operand.strides}
        key = (id(operand), tuple(box.values()))
        if key not in self._sizes:
            self._sizes[key] = footprint(operand, box, self.places.bits[operand.tensor])
        nbytes = self._sizes[key]
        self.largest[operand.tensor] = max(nbytes, self.largest.get(operand.tensor, 0))
        return nbytes

    def _work(self, loop: Loop, view: GemmView | None, ranges: Ranges) -> tuple[ArrayWork | None, int, Counts]:
        counts = Counts()
        points = prod(count for _, count in ranges.values())
        results = loop.results(ranges)
        vector_cycles = 0
        work = None
        if view is not None:
            work = self._product(view, ranges, counts)
        else:
            counts.vector.update(operations(loop.body, points))
            vector_cycles = cycles_for(self.chip, loop.body, points)
            self._touch_all(loop, ranges, counts)
        if loop.late_body.total:
            counts.vector.update(operations(loop.late_body, results))
            vector_cycles += cycles_for(self.chip, loop.late_body, results)
        return work, vector_cycles, counts

    def _product(self, view: GemmView, ranges: Ranges, counts: Counts) -> ArrayWork:
        batch, shape = view.shape(ranges)
        bits = self.places.bits
        sums = find_format(self.chip.sum_format).bits
        operands = (bits[view.input.tensor], bits[view.weight.tensor], sums)
        work, moved, _ = fold_tile(self.chip, shape, batch, operands, adds_up=True)
        counts += moved
        return work

    def _touch_all(self, loop: Loop, ranges: Ranges, counts: Counts) -> None:
        box = {index: count for index, (_, count) in ranges.items()}
        for operand in (*loop.operation.inputs, *loop.operation.late):
            bits = self.places.bits[operand.tensor]
            counts.touch(self._pad, "read", 8 * footprint(operand, box, bits) // bits, bits)
        output = loop.operation.output
        for operand in (*loop.operation.stores, *([output] if output is not None else [])):
            bits = self.places.bits[operand.tensor]
            counts.touch(self._pad, "write", 8 * footprint(operand, box, bits) // bits, bits)


def _piece(operand: Operand, ranges: Ranges) -> Piece:
    return tuple((index, *ranges[index]) for index in operand.strides)


def _check_room(chip: Chip, places: Places, number: int, largest: dict[str, int], item: TileLoop) -> None:
    """One piece of each tensor at a time, two with two buffers."""
    pad = chip.keeper or chip.pads["output"]
    free = room(chip, places, number)[pad.name]
    needed = sum(largest.values())
    if needed > free:
        share = max(1, item.tile * max(0, free) // needed)
        raise CapacityError(
            f"a tile of {item.tile} along {item.index} needs {format_bytes(needed)} in {pad.name} for "
            f"{_names(sorted(largest))}, of which {format_bytes(max(0, free))} are free; about {share} fits"
        )


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
