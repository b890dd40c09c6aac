"""Passes over vectors: add, mul, triad, copy, and E = D + (A + B) * C in one pass or in three."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at, part
from hwsim.kernels.rounding import MOST
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array, find_format
from hwsim.spec.ops.elementwise import ElementwiseWorkload, FusedWorkload

TRIAD_SCALE = 3


@dataclass(frozen=True)
class Pass:
    """One loop over vectors: `result` from `operands`, element by element."""

    name: str
    operands: tuple[str, ...]
    result: str
    body: Instructions
    function: Callable[..., Array]


ADD, MUL = Instructions(add=1), Instructions(mul=1)

PASSES: Mapping[str, Pass] = {
    "add": Pass("add", ("A", "B"), "C", ADD, lambda a, b: a + b),
    "mul": Pass("mul", ("A", "B"), "C", MUL, lambda a, b: a * b),
    "triad": Pass("triad", ("B", "C"), "A", Instructions(fma=1), lambda b, c: b + c * c.dtype.type(TRIAD_SCALE)),
    "copy": Pass("copy", ("A",), "C", Instructions(), lambda a: a),
}

FUSED = (Pass("fused", ("A", "B", "C", "D"), "E", Instructions(fma=1, add=1), lambda a, b, c, d: d + (a + b) * c),)
UNFUSED = (
    Pass("add", ("A", "B"), "tmp1", ADD, lambda a, b: a + b),
    Pass("mul", ("tmp1", "C"), "tmp2", MUL, lambda x, c: x * c),
    Pass("add", ("D", "tmp2"), "E", ADD, lambda d, x: d + x),
)


class Elementwise(LoopKernel):
    """One pass after the other over vectors of n elements; what one pass leaves for the next lies in
    memory."""

    def __init__(
        self,
        workload: ElementwiseWorkload | FusedWorkload,
        setting: Setting,
        given: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(workload.name, find_format(workload.precision), setting, workload.schedule, given)
        self.n = workload.sizes.n
        self.passes = _passes(workload)
        results = [step.result for step in self.passes]
        names = sorted({name for step in self.passes for name in step.operands} - set(results))
        for name in names:
            self.add_input(name, self.n)
        for name in results:
            self.add_result(name, self.n)
        for step in self.passes:
            self._add_pass(step, workload.schedule.vector)
        self.registers_needed = max(len(step.operands) for step in self.passes) + 1

    @property
    def tolerance(self) -> float:
        """Each pass stores what it makes."""
        return min(MOST, len(self.passes) * self.rounding.stored + self.rounding.operations(2))

    def formulas(self) -> tuple[Formula, ...]:
        """Operations per element moved to or from memory, and per byte."""
        loads = sum(len(step.operands) for step in self.passes)
        stores = len(self.passes)
        operations = sum(loop.flops_per_point for loop in self.loops)
        element = Fraction(operations, loads + stores)
        byte = element / self.fmt.element_bytes
        found = [
            Formula("operations per element moved", str(element), float(element), "flop", "intensity.element"),
            Formula("operations per byte moved", str(byte), float(byte), "flop/B", "intensity.byte"),
        ]
        if self.loops[0].plan.lanes == 1:
            found.append(Formula("loads", f"{loads}n", loads * self.n, "elements", "loads"))
            found.append(Formula("stores", f"{stores}n", stores * self.n, "elements", "stores"))
        return tuple(found)

    def _add_pass(self, step: Pass, vector: bool) -> None:
        reads = [at(self.tensors[name], "i") for name in step.operands]
        write = at(self.tensors[step.result], "i")

        def compute(ranges: Ranges) -> None:
            (here,) = part(ranges, "i")
            values = step.function(*(self.fmt.load(self.arrays[name][here]) for name in step.operands))
            self.arrays[step.result][here] = self.fmt.store(values)

        self.add_loop(step.name, {"i": self.n}, reads, write, step.body, compute, vector=vector)

    def _output(self) -> Array:
        return self.arrays[self.passes[-1].result]

    def _reference(self) -> Array:
        wide: dict[str, Array] = {}
        for step in self.passes:
            operands = [wide.get(name, self.arrays[name].astype(np.float64)) for name in step.operands]
            wide[step.result] = step.function(*operands)
        return wide[self.passes[-1].result]


def _passes(workload: ElementwiseWorkload | FusedWorkload) -> Sequence[Pass]:
    if isinstance(workload, FusedWorkload):
        return FUSED if workload.schedule.fused else UNFUSED
    return (PASSES[workload.op],)
