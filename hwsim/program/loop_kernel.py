"""LoopKernel: a kernel that is one loop nest after another, each with its math beside it.

This is what most kernels are made of, and what a kernel of your own starts from: allocate tensors with
`add_input` and `add_result`, say with `at` which index moves along which axis, and describe each loop with
`add_loop`. Loops that run tile by tile, one after the other in each tile, are made with `make_loop` and put into a
`TileLoop`; where a loop needs what all cores have computed before, `begin_phase` lets them wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from hwsim.errors import InputError, ShapeError
from hwsim.numerics.format import Array, Format
from hwsim.program.kernel import Setting
from hwsim.program.loops import (
    Compute,
    Item,
    Loop,
    LoopOperation,
    LoopPlan,
    Operand,
    Phase,
    Range,
    Ranges,
    TileLoop,
    all_loops,
    cut_steps,
    extent_of,
    most_shares,
    split_work,
    summed,
    unit_of,
    walk,
)
from hwsim.program.steps import OutputBlock, Stage, Step
from hwsim.program.tensors import TensorKernel
from hwsim.spec.schedule import ParallelSchedule
from hwsim.trace.nest import MAX_ACCESSES, Instructions, Size
from hwsim.trace.view import TensorView

if TYPE_CHECKING:
    from hwsim.program.steps import Template

__all__ = ["Compute", "Loop", "LoopKernel", "Ranges", "TileLoop", "at", "part"]


NOTHING = Instructions()


class LoopKernel(TensorKernel):
    """Loops run one after the other; with several cores, each takes its share of one index through all loops of a
    phase."""

    def __init__(
        self,
        name: str,
        fmt: Format,
        setting: Setting,
        parallel: ParallelSchedule | None = None,
        given: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(name, fmt, setting, given)
        self.program: list[Phase] = [Phase()]
        self.expected: Callable[[], Array] | None = None
        """The answer by other means, for a kernel of your own: NumPy in float64 on `arrays`."""
        self._parallel = parallel or ParallelSchedule()
        self._templates: dict[tuple[object, ...], Template] = {}
        self._private: dict[str, Size] = {}
        """Bytes of the tensors of which each share has its own."""

    @property
    def loops(self) -> list[Loop]:
        """Every loop once, in program order."""
        return [loop for phase in self.program for loop in all_loops(phase.items)]

    @property
    def shared_index(self) -> str:
        """The index of the present phase that is shared out among cores."""
        return self.program[-1].shared_index

    @shared_index.setter
    def shared_index(self, index: str) -> None:
        self.program[-1].shared_index = index

    @property
    def workers(self) -> int:
        """How many cores share the work."""
        if self._parallel.parallel == "none" or not any(phase.shared_index for phase in self.program):
            return 1
        return self._parallel.cores or self.setting.cores

    @property
    def useful_flops(self) -> int:
        return sum(summed(phase.items, {}, Loop.flops) for phase in self.program)

    def bytes_of(self, tensor: str) -> int | None:
        return ceil(self._private.get(tensor, 0)) or super().bytes_of(tensor)

    def begin_phase(self, name: str = "") -> None:
        """What follows needs what all cores have done before."""
        if self.program[-1].items:
            self.program.append(Phase())
        self.program[-1].name = name

    def add(self, item: Item) -> None:
        """One more loop, or loop over tiles."""
        phase = self.program[-1]
        phase.items.append(item)
        phase.shared_index = phase.shared_index or (next(iter(item.extents)) if isinstance(item, Loop) else item.index)

    def add_loop(
        self,
        name: str,
        extents: Mapping[str, int],
        reads: Sequence[Operand],
        write: Operand | None,
        body: Instructions,
        compute: Compute,
        *,
        plan: LoopPlan | None = None,
        vector: bool = False,
        accumulates: bool = False,
    ) -> None:
        """One more loop nest; without a plan its loops run in the order of `extents`."""
        self.add(
            self.make_loop(
                name, extents, reads, write, body, compute, plan=plan, vector=vector, accumulates=accumulates
            )
        )

    def make_loop(
        self,
        name: str,
        extents: Mapping[str, int],
        reads: Sequence[Operand],
        write: Operand | None,
        body: Instructions,
        compute: Compute,
        *,
        plan: LoopPlan | None = None,
        vector: bool = False,
        accumulates: bool = False,
        late: Sequence[Operand] = (),
        late_body: Instructions = NOTHING,
        stores: Sequence[Operand] = (),
        continues: bool | None = None,
        follows: Mapping[str, tuple[str, int]] | None = None,
    ) -> Loop:
        """A loop nest to be added, or to be put into a loop over tiles.

        `late` operands and `late_body` finish an output value in its register before it is stored: this needs an order
        in which a sum is completed there. `stores` are further results of the loop; with `continues` the output already
        holds a sum to which the loop adds, also in the first tile; without (False) it never does.
        """
        operation = LoopOperation(tuple(reads), write, accumulates, tuple(late), tuple(stores), continues)
        if plan is None:
            order = tuple(extents)
            operands = operation.operands
            lanes = vector_lanes(self.setting.lanes, order[-1], extents[order[-1]], operands) if vector else 1
            plan = LoopPlan(order, vector=order[-1] if lanes > 1 else None, lanes=lanes)
        sums_lanes = accumulates and write is not None and plan.vector not in (None, *write.strides)
        assert not (late or late_body.total) or plan.completes(operation), f"{name}: no value is finished in a register"
        return Loop(name, extents, operation, plan, body, compute, sums_lanes, late_body, follows or {})

    def warnings(self) -> tuple[str, ...]:
        """What was asked for and cannot have an effect here."""
        found = []
        for phase in self.program:
            if self._parallel.parallel != "none" and phase.shared_index:
                shares = len(self.shares(phase))
                if shares < self.workers:
                    found.append(f"only {shares} shares for {self.workers} cores: the rest stay idle")
        for loop in self.loops:
            for index, size in loop.plan.tile.items():
                if size == loop.extents[index] > 1:
                    found.append(f"a tile covers all {size} iterations of {index}: there is nothing to cut")
        return tuple(dict.fromkeys(found))

    def stages(self) -> Sequence[Stage]:
        self._check_given()
        return [Stage(phase.name or self.name, tuple(self._blocks(phase))) for phase in self.program]

    def compute_loops(self) -> None:
        """The real math of all loops, in order. Refuses given tensors that the kernel does not have."""
        self._check_given()
        for phase in self.program:
            for loop, ranges, _ in walk(phase.items, {}):
                loop.compute(ranges)

    def add_private(self, name: str, *shape: int, fmt: Format | None = None) -> TensorView:
        """Scratch space that no two cores share: a copy for each Block. Its values are up to the loops that use it."""
        cores = 1 if self._parallel.parallel == "none" else self._parallel.cores or self.setting.cores
        copies = most_shares(cores, self._parallel.split)
        view = self.space.allocate(name, (copies, *shape), fmt or self.fmt)
        self.tensors[name] = view
        self._private[name] = view.byte_stride(0)
        return view.slice(0)

    def is_private(self, tensor: str) -> bool:
        """Whether each core has a tensor of its own."""
        return tensor in self._private

    def _blocks(self, phase: Phase) -> list[OutputBlock]:
        if self.workers == 1 or not phase.shared_index:
            return [OutputBlock(0, lambda: self._steps(phase, {}, 0))]
        index = phase.shared_index
        assert all(item.moves_with(index) for item in phase.items), f"{index} does not move all of {phase.name}"

        def block(number: int, share: Range) -> OutputBlock:
            return OutputBlock(number, lambda: self._steps(phase, {index: share}, number))

        return [block(number, share) for number, share in enumerate(self.shares(phase))]

    def shares(self, phase: Phase) -> list[Range]:
        """The ranges of the shared index, one for each Block."""
        extent, unit = extent_of(phase.items, phase.shared_index), unit_of(phase.items, phase.shared_index)
        return split_work(extent, self.workers, unit, self._parallel.split)

    def _steps(self, phase: Phase, share: Ranges, number: int) -> Iterator[Step]:
        shared = self.workers > 1 and bool(phase.shared_index)
        private = {name: number * copy_bytes for name, copy_bytes in self._private.items()} if number else {}
        for loop, ranges, tiled in walk(phase.items, share):
            for cut in cut_steps(loop.plan, ranges, fine=shared and not tiled):
                if self.setting.math:
                    loop.compute(cut)
                yield self._step(loop, cut, private)

    def _step(self, loop: Loop, ranges: Ranges, private: Mapping[str, Size]) -> Step:
        from hwsim.program.steps import make_template, template_key  # only where accesses are walked

        key = template_key(loop, ranges)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = make_template(loop, ranges, self.fmt.name, sketch=self.sketch)
        return template.at(ranges, private)

    def _reference(self) -> Array:
        if self.expected is None:
            raise InputError(f"{self.name} does not say what its answer should be: set kernel.expected")
        return np.asarray(self.expected(), np.float64)


def vector_lanes(lanes: int, index: str, extent: int, operands: Sequence[Operand]) -> int:
    """The widest vector whose body can be described: one that is gathered takes an access for each of its lanes."""

    def accesses(width: int) -> int:
        count = 0
        for operand in operands:
            if index in operand.strides:
                rest = extent % width
                gathered = width > 1 and not operand.has_neighbours(index, width)
                count += width + rest if gathered else 1 + rest.bit_count()
        return count

    while lanes > 1 and accesses(lanes) > MAX_ACCESSES:
        lanes //= 2
    return lanes


def at(view: TensorView, *indices: str | None, tiles: Mapping[str, int] | None = None) -> Operand:
    """A tensor as a loop sees it: the index that moves along each of its axes (None where none does).

    `tiles` gives the extent of a tile of an index for scratch space that holds one tile at a time.
    """
    if len(indices) != len(view.shape):
        raise ShapeError(f"{view.name} of shape {view.shape} needs {len(view.shape)} indices, found {indices}")
    strides: dict[str, Size] = {}
    for axis, index in enumerate(indices):
        if index is not None:
            strides[index] = strides.get(index, 0) + view.byte_stride(axis)
    local = {index: (tile, 0) for index, tile in (tiles or {}).items() if index in strides}
    return Operand(view.name, view.start, view.element_bytes, strides, local)


def part(ranges: Ranges, *indices: str) -> tuple[slice, ...]:
    """The slices that a range of a loop means for an array."""
    return tuple(slice(ranges[index][0], sum(ranges[index])) for index in indices)
