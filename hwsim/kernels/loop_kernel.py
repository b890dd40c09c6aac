"""LoopKernel: a kernel that is one loop nest after another, each with its math beside it.

This is what most kernels are made of, and what a kernel of your own starts from: allocate tensors with
`add_input` and `add_result`, say with `at` which index moves along which axis, and describe each loop with
`add_loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from hwsim.errors import InputError, ShapeError
from hwsim.kernels.count import count_tiles, count_work
from hwsim.kernels.data import make_input
from hwsim.kernels.grain import cut_steps, split_work, step_unit
from hwsim.kernels.kernel import Kernel, Setting
from hwsim.kernels.loops import LoopOperation, LoopPlan, Operand, Range
from hwsim.kernels.lower import lower
from hwsim.kernels.step import Block, Instructions, Step
from hwsim.numerics.format import Array, Format
from hwsim.spec.operation import ParallelSchedule
from hwsim.trace.nest import MAX_ACCESSES
from hwsim.trace.view import TensorView

Ranges = Mapping[str, Range]
Compute = Callable[[Ranges], None]


@dataclass(frozen=True)
class Loop:
    """One loop nest: its extents, what it touches, what one point costs, and the math over a range of it."""

    name: str
    extents: Mapping[str, int]
    operation: LoopOperation
    plan: LoopPlan
    body: Instructions
    compute: Compute
    sums_lanes: bool = False

    @property
    def flops_per_point(self) -> int:
        return 2 * self.body.fma + self.body.add + self.body.mul + self.body.special


class LoopKernel(Kernel):
    """Loops run one after the other; with several cores, each takes its share of one index through all
    of them."""

    def __init__(
        self,
        name: str,
        fmt: Format,
        setting: Setting,
        parallel: ParallelSchedule | None = None,
        given: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(name, fmt, setting)
        self.loops: list[Loop] = []
        self.result = ""
        """The tensor that holds the answer; the one added last if nothing else is said."""
        self.expected: Callable[[], Array] | None = None
        """The answer by other means, for a kernel of your own: NumPy in float64 on `arrays`."""
        self.shared_index = ""
        """The index that is shared out among cores."""
        self._parallel = parallel or ParallelSchedule()
        self._given = dict(given or {})

    @property
    def workers(self) -> int:
        """How many cores share the work."""
        if self._parallel.parallel == "none" or not self.shared_index:
            return 1
        return self._parallel.cores or self.setting.cores

    @property
    def useful_flops(self) -> int:
        return sum(prod(loop.extents.values()) * loop.flops_per_point for loop in self.loops)

    def add_input(self, name: str, *shape: int, ld: int | None = None, positive: bool = False) -> TensorView:
        """Memory for an input, filled with the given values or with random ones."""
        view = self.space.allocate(name, shape, self.fmt, ld)
        if self.setting.math:
            number = len(self.tensors)
            given = self._given.get(name)
            self.arrays[name] = make_input(self.setting.seed, number, name, shape, self.fmt, given, positive)
        self.tensors[name] = view
        return view

    def add_result(self, name: str, *shape: int, fmt: Format | None = None) -> TensorView:
        """Memory for a result or for something between, filled with zeros."""
        fmt = fmt or self.fmt
        view = self.space.allocate(name, shape, fmt)
        if self.setting.math:
            self.arrays[name] = np.zeros(shape, fmt.held)
        self.tensors[name] = view
        self.result = name
        return view

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
        if plan is None:
            order = tuple(extents)
            operands = [*reads, *([write] if write is not None else [])]
            lanes = _vector_lanes(self.setting.lanes, order[-1], extents[order[-1]], operands) if vector else 1
            plan = LoopPlan(order, vector=order[-1] if lanes > 1 else None, lanes=lanes)
        sums_lanes = accumulates and write is not None and plan.vector not in (None, *write.strides)
        operation = LoopOperation(tuple(reads), write, accumulates)
        self.loops.append(Loop(name, extents, operation, plan, body, compute, sums_lanes))
        self.shared_index = self.shared_index or next(iter(extents))

    def warnings(self) -> tuple[str, ...]:
        """What was asked for and cannot have an effect here."""
        found = []
        if self._parallel.parallel != "none" and len(self._shares()) < self.workers:
            found.append(f"only {len(self._shares())} shares for {self.workers} cores: the rest stay idle")
        for loop in self.loops:
            for index, size in loop.plan.tile.items():
                if size == loop.extents[index] > 1:
                    found.append(f"a tile covers all {size} iterations of {index}: there is nothing to cut")
        return tuple(dict.fromkeys(found))

    def blocks(self) -> Sequence[Block]:
        if self._given.keys() - self.arrays.keys() and self.setting.math:
            unknown = ", ".join(sorted(self._given.keys() - self.arrays.keys()))
            raise ShapeError(f"{self.name} has no input {unknown}; its tensors are {', '.join(self.tensors)}")
        if self.workers == 1:
            return [Block(0, lambda: self._steps({}))]
        return [self._block(number, share) for number, share in enumerate(self._shares())]

    def _shares(self) -> list[Range]:
        """The ranges of the shared index, one for each Block."""
        first = self.loops[0]
        unit = step_unit(first.plan, self.shared_index)
        return split_work(first.extents[self.shared_index], self.workers, unit, self._parallel.split)

    def _output(self) -> Array:
        return self.arrays[self.result]

    def _reference(self) -> Array:
        if self.expected is None:
            raise InputError(f"{self.name} does not say what its answer should be: set kernel.expected")
        return np.asarray(self.expected(), np.float64)

    def _block(self, number: int, share: Range) -> Block:
        return Block(number, lambda: self._steps({self.shared_index: share}))

    def _steps(self, share: Ranges) -> Iterator[Step]:
        for loop in self.loops:
            whole = {index: (0, extent) for index, extent in loop.extents.items()}
            for ranges in cut_steps(loop.plan, {**whole, **share}, fine=self.workers > 1):
                if self.setting.math:
                    loop.compute(ranges)
                yield self._step(loop, ranges)

    def _step(self, loop: Loop, ranges: Ranges) -> Step:
        pieces = list(lower(loop.operation, loop.plan, ranges))
        points = prod(extent for _, extent in ranges.values())
        work = count_work(
            pieces,
            loop.body,
            points=points,
            flops_per_point=loop.flops_per_point,
            macs_per_point=loop.body.fma,
            lanes=loop.plan.lanes,
            fmt=self.fmt.name,
            sums_lanes=loop.sums_lanes,
        )
        bits = {name: view.element_bits for name, view in self.tensors.items()}
        tiles = count_tiles(loop.operation, loop.plan, ranges, bits)
        return Step(loop.name, work, tuple(piece.nest for piece in pieces), tiles)


def _vector_lanes(lanes: int, index: str, extent: int, operands: Sequence[Operand]) -> int:
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


def at(view: TensorView, *indices: str | None) -> Operand:
    """A tensor as a loop sees it: the index that moves along each of its axes (None where none does)."""
    if len(indices) != len(view.shape):
        raise ShapeError(f"{view.name} of shape {view.shape} needs {len(view.shape)} indices, found {indices}")
    strides: dict[str, int] = {}
    for axis, index in enumerate(indices):
        if index is not None:
            strides[index] = strides.get(index, 0) + view.byte_stride(axis)
    return Operand(view.name, view.address((0,) * len(view.shape)), view.element_bytes, strides)


def part(ranges: Ranges, *indices: str) -> tuple[slice, ...]:
    """The slices that a range of a loop means for an array."""
    return tuple(slice(ranges[index][0], sum(ranges[index])) for index in indices)
