"""Operator: one operation on named tensors, to be run alone or as a part of a chain.

An operator says which tensors it needs (`inputs`) and makes (`outputs`), gives its answer in float64 (`reference`), and
adds its loops and its math to a LoopKernel (`emit`). `OperatorKernel` is a kernel of one operator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from hwsim.errors import InputError
from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop_kernel import LoopKernel
from hwsim.kernels.rounding import MOST, Rounding
from hwsim.numerics.format import FORMATS, Array, Format, find_format
from hwsim.spec.number import FormatSpec
from hwsim.spec.ops.common import ParallelSchedule
from hwsim.spec.workload import WorkloadSpec

Names = Mapping[str, str]
"""The tensor of the kernel behind each port of an operator."""


@dataclass(frozen=True)
class Port:
    """A tensor that an operator reads or writes."""

    name: str
    shape: tuple[int, ...]
    halo: tuple[int, ...] = ()
    """Zeros around it that the operator reads too, so many on each side of each axis: the padding of a convolution."""
    wide: bool = False
    """Whether it holds sums, in the format that a sum of products is kept in."""
    positive: bool = False
    """Whether random values must not be negative: variances, and sums that must not cancel."""
    below: int = 0
    """For positions in a table: they are whole numbers from 0 up to this."""
    over: str = ""
    """The input whose memory an output takes when the operator runs alone: an update in place."""


class Operator(ABC):
    """What is computed, as loops with their math. Knows no machine; `kernel.setting` has lanes and cores."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    """What it makes; the main result last."""
    registers_needed: int = 1
    reads: frozenset[str] = frozenset()
    """Which of `accumulate` and `chunk` of a workload mean something to it: see `Kernel.reads`."""
    alone: bool = True
    """Whether the kernel has no tensors but its own. In a chain there are others, of any name."""

    @abstractmethod
    def emit(self, kernel: LoopKernel, names: Names) -> None:
        """Add scratch space and loops to a kernel that already holds the tensors of all ports.

        Views are `kernel.tensor(names[port])`, values `kernel.arrays[names[port]]`, both without the halo;
        `kernel.padded(names[port], halo)` has them with it.
        """

    @abstractmethod
    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Each output in float64, from all inputs in float64, both by port, by other means than `emit` uses."""

    def tolerance(self, rounding: Rounding) -> float:
        """Largest error, relative to the largest element of the reference, that rounding explains."""
        return rounding.stored + rounding.operations(4)

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        return ()

    def scratch(self, name: str, names: Names) -> str:
        """The name of a scratch tensor of this operator: its own, told apart from others by the output's.

        No file can name a tensor with a dot, so nothing in a chain is called as its scratch space is.
        """
        output = self.outputs[-1].name
        return name if self.alone and names[output] == output else f"{names[output]}.{name}"


@dataclass(frozen=True)
class OperatorRun:
    """How an operator runs alone: name, precision, cores, and the values that the user gives."""

    name: str
    precision: str | FormatSpec
    parallel: ParallelSchedule
    given: Mapping[str, Array] = field(default_factory=dict)


class OperatorKernel(LoopKernel):
    """A kernel of one operator, whose tensors are called as its ports are."""

    def __init__(self, operator: Operator, run: OperatorRun, setting: Setting) -> None:
        super().__init__(run.name, find_format(run.precision), setting, run.parallel, run.given)
        self.operator = operator
        self.reads = operator.reads
        self.sum_fmt = self.find_sum_format()
        for port in operator.inputs:
            fmt = self.sum_fmt if port.wide else self.fmt
            self.add_input(port.name, *port.shape, halo=port.halo, positive=port.positive, fmt=fmt, below=port.below)
        self._names = {port.name: port.over or port.name for port in (*operator.inputs, *operator.outputs)}
        for port in operator.outputs:
            if not port.over:
                self.add_result(port.name, *port.shape, fmt=self.sum_fmt if port.wide else self.fmt, halo=port.halo)
        updated = [port.over for port in operator.outputs if port.over] if setting.math else []
        self._before = {name: self.arrays[name].copy() for name in updated}
        self.results = [self._names[port.name] for port in operator.outputs]
        self.registers_needed = operator.registers_needed
        operator.emit(self, self._names)

    @property
    def tolerance(self) -> float:
        return min(MOST, self.operator.tolerance(self.rounding))

    def formulas(self) -> tuple[Formula, ...]:
        return self.operator.formulas(self.setting, self.fmt)

    def answers(self) -> Iterator[tuple[str, Array, Array]]:
        self._need_math("answer")
        references = self._references()
        for port in self.operator.outputs:
            yield port.name, self.arrays[self._names[port.name]], references[port.name]

    def _reference(self) -> Array:
        return self._references()[self.operator.outputs[-1].name]

    def _references(self) -> dict[str, Array]:
        inputs = {port.name: self.arrays[port.name] for port in self.operator.inputs} | self._before
        return self.operator.reference({name: values.astype(np.float64) for name, values in inputs.items()})


def run_of(workload: WorkloadSpec, schedule: ParallelSchedule, given: Mapping[str, Array] | None) -> OperatorRun:
    """How a workload runs that is one operator."""
    return OperatorRun(workload.name, workload.precision, schedule, given or {})


def need_floats(name: str, fmt: Format) -> None:
    """Roots, quotients and means have no meaning in whole numbers."""
    if fmt.is_integer:
        usable = ", ".join(each.name for each in FORMATS.values() if not each.is_integer)
        raise InputError(f"{name} cannot be computed in {fmt.name}: precision must be one of {usable}")
