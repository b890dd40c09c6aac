"""How a schedule cuts the loops of a program: tiles, vectors and unrolling, and how its statements see a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from hwsim.numerics.format import Array
from hwsim.program.bind import Program, plus, times
from hwsim.program.expression import Affine
from hwsim.program.group import Group
from hwsim.program.loops import LoopOperation, LoopPlan, Operand
from hwsim.program.tensors import Storage
from hwsim.trace.nest import MAX_ACCESSES
from hwsim.trace.view import TensorView


def fit_plan(
    order: Sequence[str],
    extents: Mapping[str, int],
    operation: LoopOperation,
    *,
    tile: Mapping[str, int] | None = None,
    unroll: Mapping[str, int] | None = None,
    along: str = "",
    lanes: int = 1,
) -> LoopPlan:
    """The loops of a sum, with vectors along one of them: narrower where too many accesses would have to be made."""
    asked = {index: min(size, extents[index]) for index, size in (unroll or {}).items() if index in extents}
    vector = along if lanes > 1 and along in extents else None
    plan = LoopPlan(
        order=tuple(order),
        tile={index: min(size, extents[index]) for index, size in (tile or {}).items() if index in extents},
        unroll={index: size for index, size in asked.items() if (unroll or {})[index] > 1},
        vector=vector,
        lanes=lanes if vector else 1,
    )
    if vector is None:
        return plan
    while True:
        fitted = _with_vector(plan, extents, unroll or {})
        if fitted.lanes == 1 or accesses(fitted, extents, operation) <= MAX_ACCESSES:
            return fitted if fitted.lanes > 1 else replace(plan, vector=None, lanes=1)
        plan = replace(plan, lanes=plan.lanes // 2)


def _with_vector(plan: LoopPlan, extents: Mapping[str, int], asked: Mapping[str, int]) -> LoopPlan:
    """A loop that is not the innermost one is unrolled by its vectors: by two where others are unrolled too."""
    index = plan.vector
    assert index is not None
    if index == plan.order[-1] or index in asked:
        return plan
    vectors = 2 if any(size > 1 for name, size in plan.unroll.items() if name != index) else 1
    return replace(plan, unroll={**plan.unroll, index: min(vectors * plan.lanes, extents[index])})


def accesses(plan: LoopPlan, extents: Mapping[str, int], operation: LoopOperation) -> int:
    """How many accesses the body of the innermost loop makes at most, over all edges."""
    total = sum(_copies(plan, extents, operand) for operand in (*operation.inputs, *operation.late))
    if operation.output is not None:
        total += 2 * _copies(plan, extents, operation.output, joined=True)
    return total


def _copies(plan: LoopPlan, extents: Mapping[str, int], operand: Operand, joined: bool = False) -> int:
    return prod(_copies_along(plan, extents, operand, index, joined) for index in operand.strides if index in extents)


def _copies_along(plan: LoopPlan, extents: Mapping[str, int], operand: Operand, index: str, joined: bool) -> int:
    step = min(plan.step(index), extents[index])
    if index != plan.vector:
        return step
    neighbours = operand.has_neighbours(index, plan.lanes)
    if index == plan.order[-1]:
        return len(plan.runs(index, step)) + (step - 1).bit_length() if neighbours else 2 * step
    if not neighbours:
        return step
    tile = min(plan.tile.get(index, extents[index]), extents[index])
    counts = {min(step, size) for size in (tile, extents[index] % tile) if size}
    counts |= {size % step for size in (tile, extents[index] % tile) if size % step}
    return 1 if joined else max(len(plan.runs(index, count)) for count in counts)


def count_registers(plan: LoopPlan, operands: Sequence[Operand]) -> int:
    """Values that the innermost loop holds: of each operand, as many as its loops are unrolled; a vector is one."""
    lanes = {index: plan.lanes if index == plan.vector else 1 for index in plan.order}
    return sum(
        prod(-(-plan.unroll.get(i, 1) // lanes[i]) for i in operand.strides if i in lanes) for operand in operands
    )


Planner = Callable[[Group, Mapping[str, int], Sequence[Operand]], LoopPlan | None]
"""The loop order, tiles and vectors of a group; None takes the order of its indices."""


@dataclass(frozen=True)
class AxisView:
    """A tensor as statements see it: its axes split or joined, then in another order."""

    port: tuple[int, ...]
    """Its shape in memory."""
    split: tuple[int, ...]
    order: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.split[axis] for axis in self.order) if self.order else self.split

    def of(self, tensor: TensorView) -> TensorView:
        split = tensor.reshape(*self.split)
        return split.permute(*self.order) if self.order else split

    def values(self, array: Array) -> Array:
        """Without a copy."""
        split = array.reshape(self.split)
        return split.transpose(self.order) if self.order else split

    def along(self, positions: Sequence[Affine]) -> list[Affine]:
        """The place along each axis in memory of an element at these positions of the axes that are seen."""
        order = self.order or tuple(range(len(self.split)))
        left = [(extent, positions[order.index(axis)]) for axis, extent in enumerate(self.split)]
        found = []
        for extent in reversed(self.port):
            place, step = Affine(()), 1
            while left and step * left[-1][0] <= extent:
                size, position = left.pop()
                place = plus(place, times(position, step))
                step *= size
            found.append(place)
        return found[::-1]

    def stored(self, values: Array) -> Array:
        """Values that statements see, as they lie in memory."""
        back = values.transpose(np.argsort(self.order)) if self.order else values
        return back.reshape(self.port)


@dataclass(frozen=True)
class LoopCuts:
    """How the loops of a program are cut: what a schedule says of them."""

    vector: bool = True
    fuse: bool = True
    together: Mapping[str, int] = field(default_factory=dict)
    """Iterations of outer indices that go through all loops before the next ones begin."""
    order: tuple[str, ...] = ()
    """Loops, outermost first; results first and sums inside if not said."""
    plan: Planner = lambda group, extents, operands: None
    """Tiles and vectors of a group, beyond its order."""
    share: tuple[str, ...] = ()
    """Indices that cores share, the first with enough iterations for all, else the last; any if not said."""
    phases: bool = False
    """Whether every group waits for all cores to finish the one before."""
    titles: bool = True
    """Whether the result tells these phases apart, by the names of their loops."""
    storage: Mapping[str, Storage] = field(default_factory=dict)
    """How tensors lie in memory when the operation runs alone; row by row where nothing is said."""
    stages: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Where all cores wait for each other, where that is said and not found: before the loop that makes a tensor. The
    name of what begins there ("": nobody waits), and the index that is shared out ("": the first)."""
    narrow: bool = False
    """Whether a vector has as many lanes as fit of its widest operand, but in products."""
    returned: frozenset[str] = frozenset()
    """Outputs that stay in a register, as what a function returns does: nothing is stored."""
    whole_sums: bool = False
    """Whether the pieces of a sum that tiles cut are added up in the format of sums before they are stored."""

    def extents(self, group: Group, program: Program) -> dict[str, int]:
        """The loops of a group in their order."""
        own = [index for index in self.order if index in group.indices]
        return {index: program.extents[index] for index in (*own, *(i for i in group.indices if i not in own))}

    def completes(self, program: Program) -> Callable[[Group], bool]:
        """Whether the loops of a group finish each sum in its register."""

        def check(group: Group) -> bool:
            extents = self.extents(group, program)
            plan = self.plan(group, extents, ()) or LoopPlan(tuple(extents))
            target = Operand("", 0, 1, dict.fromkeys(group.result.indices, 1))
            return plan.completes(LoopOperation((), target))

        return check
