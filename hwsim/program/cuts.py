"""How a schedule cuts the loops of a program, and how its statements see a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hwsim.numerics.format import Array
from hwsim.program.bind import Program, plus, times
from hwsim.program.expression import Affine
from hwsim.program.group import Group
from hwsim.program.loops import LoopOperation, LoopPlan, Operand
from hwsim.program.tensors import Storage
from hwsim.trace.view import TensorView

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
