"""From a kernel to passes: each loop is a product for the array, work for the vector unit, or part of fused tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from hwsim.errors import InputError
from hwsim.kernels.kernel import Kernel
from hwsim.kernels.loop.program import Item, Loop
from hwsim.kernels.loop_kernel import LoopKernel
from hwsim.mapping.chip import Chip
from hwsim.mapping.fused import map_fused
from hwsim.mapping.gemm import gemm_view
from hwsim.mapping.place import Places, find_places
from hwsim.mapping.product import map_product
from hwsim.mapping.step import ArrayWork, Move, Pass, TileStep
from hwsim.mapping.vector import map_vector
from hwsim.spec.mapping import MappingSpec

MOST_STEPS = 2048
"""Steps of a pass that are played one by one; of a longer pass, neighbours are played together."""


@dataclass(frozen=True)
class Mapped:
    """A kernel as passes over tiles, and where its tensors lie."""

    passes: tuple[Pass, ...]
    places: Places

    def taken(self, pad: str, during: Pass) -> int:
        """Bytes of a scratchpad that tiles and tensors take during a pass."""
        return during.held.get(pad, 0) + self.places.taken(pad, during.number)


def map_kernel(chip: Chip, kernel: Kernel, asked: MappingSpec | None = None, buffers: int = 2) -> Mapped:
    """Every loop of a kernel, in order; with one buffer, no transfer overlaps with work."""
    items = program_of(chip, kernel)
    assert isinstance(kernel, LoopKernel)
    stages = [phase.name or kernel.name for phase in kernel.program for _ in phase.items]
    asked = asked or MappingSpec()
    places = find_places(chip, kernel, items, keep=asked.keep == "auto")
    passes = []
    for number, (item, stage) in enumerate(zip(items, stages, strict=True)):
        passes.append(_shortened(chip, _map(chip, item, number, places, asked, buffers)))
        passes[-1].stage = stage
    return Mapped(tuple(passes), places)


def program_of(chip: Chip, kernel: Kernel) -> list[Item]:
    """What a kernel runs, in order; refuses a kernel that is no list of loops."""
    if not isinstance(kernel, LoopKernel):
        raise InputError(
            f"{kernel.name} is no sum over tiles that an array could work on; run it on a machine with a CPU core"
        )
    return [item for phase in kernel.program for item in phase.items]


def _map(chip: Chip, item: Item, number: int, places: Places, asked: MappingSpec, buffers: int) -> Pass:
    if not isinstance(item, Loop):
        return map_fused(chip, item, number, places, buffers)
    view = gemm_view(item)
    if view is None:
        return map_vector(chip, item, number, places, buffers)
    return map_product(chip, view, number, places, asked, buffers)


def _shortened(chip: Chip, whole: Pass) -> Pass:
    """Neighbouring steps as one, so that a pass has few enough of them."""
    together = -(-len(whole.steps) // MOST_STEPS)
    if together == 1:
        return whole
    whole.steps = [merge(chip, whole.steps[n : n + together]) for n in range(0, len(whole.steps), together)]
    return whole


def merge(chip: Chip, steps: list[TileStep]) -> TileStep:
    """Steps one after the other as one step: the same bytes, requests and cycles."""
    loads = _sum_moves([move for step in steps for move in step.loads])
    stores = _sum_moves([move for step in steps for move in step.stores])
    works = [step.work for step in steps if step.work is not None]
    chained = steps[0].chained
    gap = chip.array.fill_cycles + chip.array.drain_cycles
    work = None
    if works:
        body = works[0].body
        for before, after in pairwise(works):
            between = gap if chained or chip.array.folding == "serial" else max(0, chip.array.rows - before.last)
            body += after.body + (0 if after.goes_on else between)
        fed = body + sum(max(0, each.fed - each.body) for each in works)
        work = ArrayWork(sum(each.busy for each in works), body, works[-1].last, fed, works[0].goes_on)
    cycles = sum(step.vector_cycles for step in steps)
    return TileStep(steps[0].name, loads, stores, work, cycles, any(step.opens for step in steps), chained)


def _sum_moves(moves: list[Move]) -> tuple[Move, ...]:
    found: dict[tuple[str, str, str, int], Move] = {}
    for move in moves:
        key = (move.role, move.tensor, move.level, move.after)
        old = found.get(key)
        found[key] = (
            move
            if old is None
            else replace(old, nbytes=old.nbytes + move.nbytes, requests=old.requests + move.requests)
        )
    return tuple(found.values())
