"""From a kernel to passes: each loop is a product for the array, work for the vector unit, or part of fused tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from hwsim.errors import CapacityError, InputError
from hwsim.numerics.datapath import find_datapath
from hwsim.program.chain_workload import ChainStep, ChainWorkload
from hwsim.program.contraction import footprint, gemm_view
from hwsim.program.graph import make_graph
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import LoopKernel, build_kernel
from hwsim.program.loops import Item, Loop, Operand, TileLoop
from hwsim.spec.machine import MachineSpec
from hwsim.spec.variant import with_parameters
from hwsim.spec.workload import MappingSpec, WorkloadSpec
from hwsim.targets.systolic.agent import play_alone
from hwsim.targets.systolic.estimate import Goal
from hwsim.targets.systolic.fused import map_fused, weave
from hwsim.targets.systolic.gemm import OPEN, map_product
from hwsim.targets.systolic.model import Allocation, Chip, build_chip, find_places, room
from hwsim.targets.systolic.tiling import (
    NEVER,
    ArrayPass,
    Counts,
    Move,
    TileStep,
    VectorFlow,
    fetch,
    shorten,
    work_of,
)
from hwsim.units import format_bytes

if TYPE_CHECKING:
    from hwsim.ops.attention_shape import AttentionShape

CUTS_PLAYED, MOST_PIECES = 6, 128
"""So many cuts are played, of those that promise to be quickest; cuts into more pieces are tried only if none fits."""
MOST_TILES = 5
"""Sizes of a tile that are tried along queries and along keys: the side of the array, and doublings of it."""
TILES_PLAYED, SAMPLE = 4, 3
"""Of the tiles with the shortest estimates so many are played, with so many turns of each lane."""


def map_vector(chip: Chip, loop: Loop, number: int, places: Allocation, buffers: int = 2) -> ArrayPass:
    """Cut along one loop into pieces that fit: of the cuts that promise to be quick, the one that is."""
    pad = chip.worktop
    free = room(chip, places, number)[pad.name]
    found = []
    for depth in range(1, min(buffers, pad.buffers) + 1):
        cuts = _cuts(chip, loop, places, free, depth)
        found += [(time, index, count, depth) for time, index, count in cuts]
    if not found:
        raise _too_large(chip, loop, places, free, pad.name)
    best = [_pass(chip, loop, number, places, *each[1:]) for each in sorted(found)[:CUTS_PLAYED]]
    return best[0] if len(best) == 1 else min(best, key=lambda each: play_alone(chip, each))


def _pass(chip: Chip, loop: Loop, number: int, places: Allocation, index: str, count: int, depth: int) -> ArrayPass:
    extent = loop.extents[index]
    counts = Counts()
    steps = []
    size = -(-extent // count)
    for start in range(0, extent, size):
        box = {**loop.extents, index: min(size, extent - start)}
        steps.append(_step(chip, loop, number, places, box, index, start == 0, start + size >= extent, counts))
    still = [operand.tensor for operand in loop.operation.reads if chip.holds(places.level[operand.tensor])]
    return ArrayPass(
        number=number,
        name=loop.name,
        unit="vector",
        steps=steps,
        ahead={"input": depth, "weight": NEVER, "output": depth},
        counts=counts,
        needs=places.producers(still, number),
        tile={index: size},
        order=index,
        buffers=depth,
    )


def _step(
    chip: Chip,
    loop: Loop,
    number: int,
    places: Allocation,
    box: Mapping[str, int],
    index: str,
    first: bool,
    last: bool,
    counts: Counts,
) -> TileStep:
    pad = chip.worktop.name
    loads, stores = [], []
    for operand in loop.operation.reads:
        bits = places.bits[operand.tensor]
        nbytes = footprint(operand, box, bits)
        counts.touch(pad, "read", 8 * nbytes // bits, bits)
        if not chip.holds(places.level[operand.tensor]) and (first or index in operand.strides):
            loads.append(fetch(places, number, "input", operand.tensor, nbytes))
    for operand in loop.operation.writes:
        if last or index in operand.strides:
            bits = places.bits[operand.tensor]
            nbytes = footprint(operand, box, bits)
            counts.touch(pad, "write", 8 * nbytes // bits, bits)
            if not chip.holds(places.level[operand.tensor]):
                stores.append(Move("output", operand.tensor, places.level[operand.tensor], nbytes, store=True))
    cycles = work_of(chip, loop.body, prod(box.values()), counts)
    if loop.late_body.total:
        cycles += work_of(chip, loop.late_body, loop.results({i: (0, count) for i, count in box.items()}), counts)
    return TileStep(loop.name, tuple(loads), tuple(stores), None, cycles, opens=bool(stores))


def _cuts(chip: Chip, loop: Loop, places: Allocation, free: int, buffers: int) -> Iterator[tuple[float, str, int]]:
    """Indices of the output to cut, into how many pieces each, and the time that is expected of those that fit."""
    moved = _moved(chip, loop, places)
    for index in _own(loop):
        count, extent = 1, loop.extents[index]
        while True:
            box = {**loop.extents, index: -(-extent // count)}
            copies = buffers if count > 1 else 1
            needed = sum(
                footprint(operand, box, places.bits[operand.tensor]) * (copies if index in operand.strides else 1)
                for operand in moved
            )
            pieces = -(-extent // box[index])
            if needed <= free:
                yield _flow(chip, loop, places, box, index, buffers).time(pieces), index, count
            if count == extent or (needed <= free and pieces >= MOST_PIECES):
                break
            count = min(extent, 2 * count)


def _own(loop: Loop) -> list[str]:
    """Indices of the output, from the outermost; all where there is none."""
    output = loop.operation.output
    return [i for i in loop.plan.order if output is None or i in output.strides] or list(loop.plan.order)


def _moved(chip: Chip, loop: Loop, places: Allocation) -> list[Operand]:
    return [operand for operand in loop.operation.operands if not chip.holds(places.level[operand.tensor])]


def _too_large(chip: Chip, loop: Loop, places: Allocation, free: int, pad: str) -> CapacityError:
    index = _own(loop)[0]
    box = {**loop.extents, index: 1}
    needed = sum(footprint(each, box, places.bits[each.tensor]) for each in _moved(chip, loop, places))
    return CapacityError(
        f"{loop.name}: one iteration of {index} needs {format_bytes(needed)} in {pad}, "
        f"of which {format_bytes(free)} are free; choose smaller sizes or a larger {pad}.size"
    )


def _flow(chip: Chip, loop: Loop, places: Allocation, box: Mapping[str, int], index: str, buffers: int) -> VectorFlow:
    """What one piece of a loop moves and does; an operand that does not move along with the index comes once."""
    step = _step(chip, loop, 0, places, box, index, False, False, Counts())
    return VectorFlow.of(chip, [step], buffers)


@dataclass(frozen=True)
class Mapped:
    """A kernel as passes over tiles, and where its tensors lie."""

    passes: tuple[ArrayPass, ...]
    places: Allocation

    def taken(self, pad: str, during: ArrayPass) -> int:
        """Bytes of a scratchpad that tiles and tensors take during a pass."""
        return during.held.get(pad, 0) + self.places.taken(pad, during.number)


def map_kernel(chip: Chip, kernel: Kernel, asked: MappingSpec | None = None, goal: Goal = "time") -> Mapped:
    """Every loop of a kernel, in order, each with the tiles that serve the goal best."""
    items = program_of(kernel)
    assert isinstance(kernel, LoopKernel)
    stages = [phase.name or kernel.name for phase in kernel.program for _ in phase.items]
    asked = asked or OPEN
    places = find_places(chip, kernel, items, keep=asked.keep == "auto")
    passes = []
    for number, (item, stage) in enumerate(zip(items, stages, strict=True)):
        passes.append(shorten(chip, _map(chip, item, number, places, asked, goal)))
        passes[-1].stage = stage
    return Mapped(tuple(passes), places)


def program_of(kernel: Kernel) -> list[Item]:
    """What a kernel runs, in order; refuses a kernel that is no list of loops."""
    if not isinstance(kernel, LoopKernel):
        raise InputError(
            f"{kernel.name} is no sum over tiles that an array could work on; run it on a machine with a CPU core"
        )
    return [item for phase in kernel.program for item in phase.items]


def _map(chip: Chip, item: Item, number: int, places: Allocation, asked: MappingSpec, goal: Goal) -> ArrayPass:
    if not isinstance(item, Loop):
        return map_fused(chip, item, number, places, asked.buffers or 2)[0]
    view = gemm_view(item)
    if view is None:
        return map_vector(chip, item, number, places, asked.buffers or 2)
    return map_product(chip, view, number, places, asked, goal)


def with_tiles(machine: MachineSpec, work: WorkloadSpec) -> WorkloadSpec:
    """Fused attention that names no tiles, alone or in a chain, with tiles that fill the machine; all else as it is."""
    if isinstance(work, ChainWorkload):
        return _chain_with_tiles(machine, work)
    if not is_fused_attention(work):
        return work
    sizes: Any = getattr(work, "sizes", None)
    schedule: Any = getattr(work, "schedule", None)
    named = schedule.model_fields_set
    if {"br", "bc"} <= named:
        return work
    chip = build_chip(machine, find_datapath(work.precision).a.name)
    queries, keys = sizes.queries or sizes.n, sizes.n
    rows = [schedule.br] if "br" in named else list(_sizes(chip.array.rows, queries))
    columns = [schedule.bc] if "bc" in named else list(_sizes(chip.array.columns, keys))
    tried = [with_parameters(work, {"br": br, "bc": bc}) for br in rows for bc in columns]
    expected = {number: cycles for number, each in enumerate(tried) if (cycles := _expected(chip, each)) is not None}
    best = [tried[number] for number in sorted(expected, key=expected.__getitem__)[:TILES_PLAYED]]
    return min(best, key=lambda each: _played(chip, each)) if len(best) > 1 else (*best, tried[0])[0]


def is_fused_attention(work: WorkloadSpec) -> bool:
    """Whether it is attention tile by tile."""
    schedule = getattr(work, "schedule", None)
    return work.op == "attention" and schedule is not None and schedule.variant == "fused"


def _chain_with_tiles(machine: MachineSpec, work: ChainWorkload) -> WorkloadSpec:
    """Each attention of a chain in the tiles that it would have alone."""
    open_steps = [step for step in work.operations if step.op == "attention" and _tiles_are_open(step)]
    if not open_steps:
        return work
    from hwsim.ops.attention import shape_of

    operators = make_graph(work).operators()
    chosen: dict[str, ChainStep] = {}
    for step in open_steps:
        alone = with_tiles(machine, _attention(shape_of(operators[step.name]), work))
        tiles = {name: getattr(getattr(alone, "schedule", None), name) for name in ("br", "bc")}
        chosen[step.name] = step.model_copy(update=tiles)
    return work.model_copy(update={"operations": tuple(chosen.get(step.name, step) for step in work.operations)})


def _attention(shape: AttentionShape, work: ChainWorkload) -> WorkloadSpec:
    """One attention of a chain as a workload of its own."""
    sizes = {"n": shape.keys, "queries": shape.queries, "d": shape.d, "heads": shape.heads, "kv_heads": shape.kv_heads}
    data = {"format": 1, "name": work.name, "description": "", "op": "attention", "precision": work.precision}
    return WorkloadSpec.model_validate(
        {**data, "sizes": {**sizes, "batch": shape.batch, "causal": shape.causal}, "schedule": {"variant": "fused"}}
    )


def _tiles_are_open(step: ChainStep) -> bool:
    return getattr(step, "variant", None) == "fused" and not {"br", "bc"} & step.model_fields_set


def _sizes(side: int, extent: int) -> Iterator[int]:
    for number in range(MOST_TILES):
        yield min(side << number, extent)
        if side << number >= extent:
            return


def _expected(chip: Chip, work: WorkloadSpec) -> float | None:
    """The cycles of some tiles as far as the units and main memory decide them; None where a tile does not fit."""
    try:
        woven = [weave(chip, item, number, places, sample=1) for number, item, places in _loops(chip, work)]
    except CapacityError:
        return None
    return sum(each.estimate() for each in woven)


def _played(chip: Chip, work: WorkloadSpec) -> float:
    """The cycles of all turns, from those of some."""
    cycles = 0.0
    for number, item, places in _loops(chip, work):
        some, share = map_fused(chip, item, number, places, sample=SAMPLE)
        cycles += play_alone(chip, some) / share
    return cycles


def _loops(chip: Chip, work: WorkloadSpec) -> Iterator[tuple[int, TileLoop, Allocation]]:
    """The loops over tiles of a kernel, and where its tensors lie."""
    kernel = build_kernel(work, math=False)
    items = program_of(kernel)
    places = find_places(chip, kernel, items, keep=work.mapping.keep == "auto")
    for number, item in enumerate(items):
        if isinstance(item, TileLoop):
            yield number, item, places
