"""Operator: one operation on named tensors, to be run alone or as a part of a chain.

An operator says which tensors it needs (`inputs`) and makes (`outputs`), gives its answer in float64 (`reference`), and
adds its loops and its math to a LoopKernel (`emit`). `OperatorKernel` is a kernel of one operator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from hwsim.errors import InputError, ShapeError
from hwsim.numerics.datapath import WEIGHT_ONLY, Datapath
from hwsim.numerics.format import FORMATS, Array, Format, find_format
from hwsim.numerics.quantize import ScaledFormat, with_scales
from hwsim.program.kernel import Formula, Numbers, Setting
from hwsim.program.loop_kernel import LoopKernel
from hwsim.program.rounding import MOST, Rounding, storing_error
from hwsim.program.tensors import PLAIN, Storage
from hwsim.spec.base import FormatSpec
from hwsim.spec.schedule import ParallelSchedule
from hwsim.spec.workload import WorkloadSpec

if TYPE_CHECKING:
    from hwsim.program.convolution import ConvView


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
    fmt: str = ""
    """Its number format, where that is neither the format of the tensors nor that of sums."""


class Operator(ABC):
    """What is computed, as loops with their math. Knows no machine; `kernel.setting` has lanes and cores."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    """What it makes; the main result last."""
    registers_needed: int = 1
    reads: frozenset[str] = frozenset()
    """Which of `accumulate` and `chunk` of a workload mean something to it: see `Kernel.reads`."""
    convolution: ConvView | None = None
    """Its product as a convolution of images, where that is one."""
    alone: bool = True
    """Whether the kernel has no tensors but its own. In a chain there are others, of any name."""

    @property
    def before_results(self) -> Mapping[str, tuple[int, ...]]:
        """Scratch tensors that lie before the results when it runs alone; others lie behind them."""
        return {}

    @property
    def factors(self) -> Mapping[str, int]:
        """Inputs that are factors of products of matrices, and the axis that these sum along."""
        return {}

    @property
    def weights(self) -> Mapping[str, int]:
        """Inputs that are right factors of products, which a weight-only format stores more narrowly; and that axis."""
        return {}

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

    def follow(self, tensors: Mapping[str, Array]) -> Mapping[str, Array]:
        """Inputs whose values follow from those of the others, where nobody gives them."""
        return {}

    def storage(self, lanes: int) -> Mapping[str, Storage]:
        """How its tensors lie in memory when it runs alone, where that is not row by row."""
        return {}

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
        super().__init__(run.name, tensor_format(run.precision, operator.weights), setting, run.parallel, run.given)
        self.operator = operator
        self._factors, self._weights = operator.factors, operator.weights
        self.reads = operator.reads
        self.sum_fmt = self.find_sum_format()
        if isinstance(self.fmt, ScaledFormat) and self._factors:
            base, numbers = self.fmt.base, setting.numbers
            Datapath(base, base, find_format(numbers.accumulate or base.sum_name), numbers.chunk)  # or an error
        self.weight_fmt = weight_format(run.precision, setting.numbers)
        """The format of weights, where it is not that of the tensors."""
        _check_given(operator.inputs, run.given)
        storage = operator.storage(setting.lanes)
        for port in operator.inputs:
            self.add_input(
                port.name, *port.shape, halo=port.halo, positive=port.positive, fmt=self._format_of(port),
                below=port.below, storage=self._stored_as(port, storage.get(port.name, PLAIN)),
            )  # fmt: skip
        if setting.math:
            for name, values in operator.follow(self.arrays).items():
                if name not in run.given:
                    self.arrays[name][...] = self.formats[name].store(values)
        self._names = {port.name: port.over or port.name for port in (*operator.inputs, *operator.outputs)}
        for name, shape in operator.before_results.items():
            self.add_scratch(name, *shape)
        for port in operator.outputs:
            if not port.over:
                kept = storage.get(port.name, PLAIN)
                self.add_result(port.name, *port.shape, fmt=self._format_of(port), halo=port.halo, storage=kept)
        updated = [port.over for port in operator.outputs if port.over] if setting.math else []
        self._before = {name: self.arrays[name].copy() for name in updated}
        self.results = [self._names[port.name] for port in operator.outputs]
        self.registers_needed = operator.registers_needed
        operator.emit(self, self._names)
        for phase in self.program:
            phase.operator, phase.names = operator, self._names

    @property
    def tolerance(self) -> float:
        turned = storing_error(self.fmt) if self.turned else 0.0
        return min(MOST, self.operator.tolerance(self.rounding) + turned)

    def formulas(self) -> tuple[Formula, ...]:
        return self.operator.formulas(self.setting, self.fmt)

    def answers(self) -> Iterator[tuple[str, Array, Array]]:
        self._need_math("answer")
        references = self._references()
        for port in self.operator.outputs:
            yield port.name, self.arrays[self._names[port.name]], references[port.name]

    def _format_of(self, port: Port) -> Format:
        if port.fmt:
            return find_format(port.fmt)
        if self.weight_fmt is not None and port.name in self._weights:
            return self.weight_fmt
        return self.sum_fmt if port.wide else self.fmt

    def _stored_as(self, port: Port, storage: Storage) -> Storage:
        """With the axis along which scales run: that of the products which read the tensor."""
        if self.weight_fmt is not None and port.name in self._weights:
            return replace(storage, along=self._weights[port.name], apart=True)
        if port.name not in self._factors or port.wide or port.fmt:
            return storage
        return replace(storage, along=self._factors[port.name], apart=isinstance(self.fmt, ScaledFormat))

    def _reference(self) -> Array:
        return self._references()[self.operator.outputs[-1].name]

    def _references(self) -> dict[str, Array]:
        inputs = {port.name: self.arrays[port.name] for port in self.operator.inputs} | self._before
        return self.operator.reference({name: values.astype(np.float64) for name, values in inputs.items()})


def run_of(workload: WorkloadSpec, schedule: ParallelSchedule, given: Mapping[str, Array] | None) -> OperatorRun:
    """How a workload runs that is one operator."""
    return OperatorRun(workload.name, workload.precision, schedule, given or {})


def _check_given(ports: Sequence[Port], given: Mapping[str, Array]) -> None:
    """Several tensors that do not fit are named together: which of them is wrong, the user knows."""
    own = [port for port in ports if port.name in given]
    if len(own) > 1 and any(np.shape(given[port.name]) != port.shape for port in own):
        found = " and ".join(f"{port.name} has shape {np.shape(given[port.name])}" for port in own)
        raise ShapeError(f"{found}; the sizes of the workload need {' and '.join(str(port.shape) for port in own)}")


def tensor_format(precision: str | FormatSpec, weights: Collection[str]) -> Format:
    """The format of tensors in a precision: of activations, where it is one for weights and there are some."""
    found = WEIGHT_ONLY.get(precision) if isinstance(precision, str) else None
    return find_format(precision if found is None or not weights else found.activations)


def weight_format(precision: str | FormatSpec, numbers: Numbers) -> Format | None:
    """The format of weights in a precision that stores them more narrowly than the rest; None in any other."""
    found = WEIGHT_ONLY.get(precision) if isinstance(precision, str) else None
    if found is None:
        return None
    if numbers.scale != "none":
        raise InputError(f"scale: {precision} has its own scales, one per {found.scale} of weights; leave it out")
    return with_scales(find_format(found.weights), found.scale, found.block)


def need_floats(name: str, fmt: Format) -> None:
    """Roots, quotients and means have no meaning in whole numbers."""
    if fmt.is_integer:
        usable = ", ".join(each.name for each in FORMATS.values() if not each.is_integer)
        raise InputError(
            f"{name} cannot be computed in {fmt.name}: precision must be one of {usable}; or whole numbers stand for "
            "fractions by a scale: scale=tensor"
        )
