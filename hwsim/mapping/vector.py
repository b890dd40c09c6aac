"""A loop that is no product, as a pass of the vector unit over pieces of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod

from hwsim.errors import CapacityError
from hwsim.kernels.loop.program import Loop
from hwsim.mapping.chip import Chip
from hwsim.mapping.footprint import footprint
from hwsim.mapping.place import Places, room
from hwsim.mapping.step import NEVER, Ahead, Counts, Move, Pass, TileStep
from hwsim.trace.work import Instructions
from hwsim.units import format_bytes

PIECES = 16
"""A vector loop is cut into about so many pieces, so that transfers and work overlap; into more where it must be."""


def cycles_for(chip: Chip, body: Instructions, points: int) -> int:
    """Cycles of the vector unit for so many points of a loop body; a copy takes one cycle of a lane."""
    unit = chip.unit.vector
    slots = body.fma + body.add + body.mul + body.special * unit.special
    return -(-points * max(1, slots) // unit.lanes)


def operations(body: Instructions, points: int) -> Counter[str]:
    """What the vector unit does, by kind."""
    kinds = {"fma": body.fma, "add": body.add, "mul": body.mul, "special": body.special}
    return Counter({kind: count * points for kind, count in kinds.items() if count})


def map_vector(chip: Chip, loop: Loop, number: int, places: Places, buffers: int = 2) -> Pass:
    """Cut along the outermost loop until a piece of everything fits."""
    pad = chip.keeper or chip.pads["output"]
    free = room(chip, places, number)[pad.name]
    depth = min(buffers, pad.buffers)
    index, count = _cut(chip, loop, places, free, depth, pad.name)
    extent = loop.extents[index]
    counts = Counts()
    steps = []
    size = -(-extent // count)
    starts = range(0, extent, size)
    for start in starts:
        box = {**loop.extents, index: min(size, extent - start)}
        steps.append(_step(chip, loop, number, places, box, index, start == 0, start + size >= extent, counts))
    on_chip = {level.name for level in chip.scratchpads}
    operands = [*loop.operation.inputs, *loop.operation.late]
    still = {places.producer(operand.tensor, number) for operand in operands if places.level[operand.tensor] in on_chip}
    return Pass(
        number=number,
        name=loop.name,
        unit="vector",
        steps=steps,
        ahead=Ahead(depth, NEVER, depth),
        counts=counts,
        needs=tuple(sorted(still - {-1})),
        tile={index: size},
        order=index,
    )


def _step(
    chip: Chip,
    loop: Loop,
    number: int,
    places: Places,
    box: Mapping[str, int],
    index: str,
    first: bool,
    last: bool,
    counts: Counts,
) -> TileStep:
    on_chip = {level.name for level in chip.scratchpads}
    pad = (chip.keeper or chip.pads["output"]).name
    points = prod(box.values())
    output = loop.operation.output
    loads, stores = [], []
    for operand in (*loop.operation.inputs, *loop.operation.late):
        bits = places.bits[operand.tensor]
        nbytes = footprint(operand, box, bits)
        counts.touch(pad, "read", 8 * nbytes // bits, bits)
        if places.level[operand.tensor] not in on_chip and (first or index in operand.strides):
            after = places.producer(operand.tensor, number)
            loads.append(Move("input", operand.tensor, places.level[operand.tensor], nbytes, after))
    for operand in (*loop.operation.stores, *([output] if output is not None else [])):
        if last or index in operand.strides:
            bits = places.bits[operand.tensor]
            nbytes = footprint(operand, box, bits)
            counts.touch(pad, "write", 8 * nbytes // bits, bits)
            if places.level[operand.tensor] not in on_chip:
                stores.append(Move("output", operand.tensor, places.level[operand.tensor], nbytes, store=True))
    counts.vector.update(operations(loop.body, points))
    results = prod(box[i] for i in output.strides) if output is not None else 1
    cycles = cycles_for(chip, loop.body, points)
    if loop.late_body.total:
        counts.vector.update(operations(loop.late_body, results))
        cycles += cycles_for(chip, loop.late_body, results)
    return TileStep(loop.name, tuple(loads), tuple(stores), None, cycles, opens=bool(stores))


def _cut(chip: Chip, loop: Loop, places: Places, free: int, buffers: int, pad: str) -> tuple[str, int]:
    """The index to cut, and into how many pieces: the outermost one of the output that is long enough."""
    output = loop.operation.output
    own = [i for i in loop.plan.order if output is None or i in output.strides] or list(loop.plan.order)
    on_chip = {level.name for level in chip.scratchpads}
    moved = [operand for operand in loop.operation.operands if places.level[operand.tensor] not in on_chip]
    best: tuple[str, int] | None = None
    for index in sorted(own, key=lambda i: (loop.extents[i] < PIECES, loop.plan.order.index(i))):
        extent = loop.extents[index]
        count = min(extent, PIECES)
        while count <= extent:
            box = {**loop.extents, index: -(-extent // count)}
            needed = sum(
                footprint(operand, box, places.bits[operand.tensor]) * (buffers if index in operand.strides else 1)
                for operand in moved
            )
            if needed <= free:
                return index, count
            if count == extent:
                break
            count = min(extent, 2 * count)
        best = best or (index, extent)
    index = best[0] if best is not None else next(iter(loop.extents))
    box = {**loop.extents, index: 1}
    needed = sum(footprint(operand, box, places.bits[operand.tensor]) for operand in moved)
    raise CapacityError(
        f"{loop.name}: one iteration of {index} needs {format_bytes(needed)} in {pad}, "
        f"of which {format_bytes(free)} are free; choose smaller sizes or a larger {pad}.size"
    )
