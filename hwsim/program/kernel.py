"""Kernel: an operation with a schedule, which computes the real answer and describes how it got there.

How large an error rounding explains, relative to the largest element of the exact answer.

Arithmetic runs in float32 (float64 for fp64); a narrow format rounds only what is stored. So a product of two bf16
matrices has the errors of a float32 sum, and that of one rounding to bf16 at the end. An answer that is further off is
wrong; one that is off by most of itself always is, whatever the format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import ceil, hypot, inf, prod, sqrt

import numpy as np

from hwsim.errors import InputError
from hwsim.numerics.datapath import Datapath, dot
from hwsim.numerics.datapath import Operand as Factor
from hwsim.numerics.format import Array, BlockFormat, Format, find_format
from hwsim.numerics.quantize import QuantizedArray, ScaledFormat, Scaling, with_scales
from hwsim.program.loops import MOST_STEPS, LoopPlan
from hwsim.spec.base import FormatSpec
from hwsim.trace.nest import Nest, Work
from hwsim.trace.view import AddressSpace, TensorView

SLACK = 8
"""Errors of a sum of random terms grow about as the square root of their number; none of many was ever so many times
that."""

MOST = 0.75
"""No rounding explains more than this: zeros in the place of an answer are off by 1."""


@dataclass(frozen=True)
class Rounding:
    """What one rounding costs: the relative errors that a kernel's formats make."""

    fmt: Format
    """The format of the tensors."""
    stored: float
    """A number that is stored in it."""
    kept: float
    """A number that is stored in the format that sums are kept in."""
    computed: float
    """One operation."""
    chunk: int | None = None
    """Products between two roundings of a sum, where it is rounded to `kept` on the way; None where it is not."""
    at_tiles: bool = True
    """Whether a sum goes to memory at the tiles of a schedule."""

    @property
    def moved(self) -> float:
        """A stored number that is stored again elsewhere: exact, but where it shares a scale with other neighbours."""
        return self.stored if isinstance(self.fmt, BlockFormat | ScaledFormat) else 0.0

    def operations(self, count: int = 1) -> float:
        """Of operations on a number, one after the other."""
        return SLACK * self.computed * count

    def sum(self, terms: int) -> float:
        """Of a sum of so many terms in a register."""
        found = SLACK * self.computed * sqrt(1 + terms)
        if self.chunk is not None:
            found += SLACK * self.kept * sqrt(1 + terms / self.chunk)
        return found

    def kept_sum(self, pieces: int = 1) -> float:
        """Of a sum that goes to memory and comes back so many times before it is whole."""
        return self.kept if pieces == 1 or not self.at_tiles else 2 * self.kept * sqrt(pieces)


def make_rounding(fmt: Format, kept: Format, chunk: int | None = None, at_tiles: bool = True) -> Rounding:
    """The rounding of tensors in a format, with sums kept in another."""
    computed = 0.0 if fmt.is_integer else float(np.finfo(fmt.computed).eps) / 2
    return Rounding(fmt, storing_error(fmt), storing_error(kept), computed, chunk, at_tiles)


def storing_error(fmt: Format) -> float:
    """The largest error of storing a number, relative to the largest number of its tensor.

    The scale of a block is a power of two: its largest elements may lie above the largest number, and lose what is
    above.
    """
    if isinstance(fmt, BlockFormat):
        grid = fmt.element.grid
        return max(fmt.roundoff, 1 - fmt.element.largest / 2.0 ** (grid.highest + 1))
    return fmt.roundoff


def joined(errors: Iterable[float]) -> float:
    """Errors that have nothing to do with each other: the root of the sum of their squares."""
    return hypot(*errors)


def sum_pieces(plan: LoopPlan, extents: Mapping[str, int], summed: Iterable[str]) -> int:
    """How many times at most a sum goes to memory: at each tile of it, or at each Step where its loop is outermost."""
    inside = set(summed) & set(plan.order)
    pieces = prod(-(-extents[index] // plan.tile.get(index, extents[index])) for index in inside)
    tiled = [index for index in plan.order if index in plan.tile]
    outer = tiled[0] if tiled else plan.order[0]
    return max(pieces, min(MOST_STEPS, extents[outer])) if outer in inside else pieces


@dataclass(frozen=True)
class Step:
    """A piece of a Block."""

    name: str
    work: Work
    nests: tuple[Nest, ...]


@dataclass
class OutputBlock:
    """An independent piece of the output. `steps()` does the real math as it yields."""

    index: int
    steps: Callable[[], Iterator[Step]]


@dataclass(frozen=True)
class Stage:
    """Blocks that may run at the same time, in any order; the next stage begins when all of them are done."""

    name: str
    blocks: tuple[OutputBlock, ...]


@dataclass(frozen=True)
class Formula:
    """A closed form of the course, to be set beside what was simulated.

    `compare` names the simulated number: ``loads``, ``stores``, ``loads.A`` (one tensor), ``l1.fills`` (lines brought
    into a level), ``dram.bytes_read``, ``flops``, ``macs``, ``bytes.A`` (memory of a tensor), ``intensity.element``,
    ``intensity.byte``, ``intensity.far`` (of the furthest level) or ``time_s``. A time needs a machine: `value` is then
    0, and `far` and `near` are the bytes that the formula moves from main memory and from the first cache.
    """

    name: str
    expression: str
    value: int | float
    unit: str
    compare: str
    far: int = 0
    near: int = 0


@dataclass(frozen=True)
class Numbers:
    """What a workload says about its numbers, beside their precision."""

    accumulate: str | FormatSpec | None = None
    chunk: int | None = None
    scale: Scaling = "none"
    scale_block: int = 32
    distribution: str = "uniform"
    at_tiles: bool = True
    """Whether sums are rounded at the tiles of the schedule: see `SumRule`."""

    def asked(self) -> list[str]:
        """The fields that not every kernel has a use for, where they say something."""
        found = {"accumulate": self.accumulate, "chunk": self.chunk}
        return [name for name, value in found.items() if value]


@dataclass(frozen=True)
class Setting:
    """What a run decides for a kernel: everything about it that its sizes and its schedule do not say."""

    seed: int = 0
    lanes: int = 1
    """Elements in one vector of the run's precision; 1 on a scalar machine."""
    cores: int = 1
    math: bool = True
    line_bytes: int = 64
    numbers: Numbers = Numbers()
    compute: str = ""
    """The format that arithmetic runs in, where the machine lacks that of the tensors; their own if empty."""
    align: int | None = None
    """Where every tensor begins, a multiple of so many bytes; where an allocator would put it if None."""


_MOST_ELEMENTS: ContextVar[float] = ContextVar("most elements", default=inf)


@contextmanager
def small_tensors(elements: int) -> Iterator[None]:
    """Within it, a kernel whose tensors have more elements raises MemoryError before it makes them."""
    token = _MOST_ELEMENTS.set(elements)
    try:
        yield
    finally:
        _MOST_ELEMENTS.reset(token)


class Kernel(ABC):
    """The blocks of a stage may run in any order, and on different cores. Together they compute `output`, once."""

    name: str
    fmt: Format
    space: AddressSpace
    tensors: dict[str, TensorView]
    reads: frozenset[str] = frozenset()
    """Which of `accumulate` and `chunk` mean something to this kernel."""
    registers_needed: int = 1
    """Registers that the innermost loops hold at once, of the width that the schedule computes in."""

    def __init__(self, name: str, fmt: Format, setting: Setting) -> None:
        self.name = name
        numbers = setting.numbers
        self.fmt = with_scales(fmt, numbers.scale, numbers.scale_block)
        self.setting = setting
        self.space = AddressSpace(setting.align)
        self.tensors = {}
        self.arrays: dict[str, Array] = {}
        self._elements = 0
        self.sketch = False
        """Whether its nests are for an estimate, and one may stand for many."""

    def take(self, elements: int) -> None:
        """To be called before values of so many elements are made."""
        self._elements += elements
        if self.setting.math and self._elements > _MOST_ELEMENTS.get():
            raise MemoryError

    def drop_values(self, but_results: bool = False) -> None:
        """Give the memory of values back, which cycles of references would keep for some time."""
        if not but_results:
            self.arrays.clear()

    @abstractmethod
    def stages(self) -> Sequence[Stage]:
        """The independent pieces, stage by stage; walking their steps does the math."""

    def blocks(self) -> Sequence[OutputBlock]:
        """The blocks of all stages, in an order in which one core could take them."""
        return [block for stage in self.stages() for block in stage.blocks]

    def answers(self) -> Iterator[tuple[str, Array, Array]]:
        """Each computed tensor that is an answer: its name, its values, and its reference in float64."""
        yield "output", self.output, self.reference()

    @property
    def compute_fmt(self) -> Format:
        """The format that arithmetic runs in."""
        return find_format(self.setting.compute) if self.setting.compute else self.fmt

    @property
    def input_names(self) -> Sequence[str]:
        """The tensors that were filled from outside."""
        return ()

    def stored_input(self, name: str) -> Array | QuantizedArray:
        """An input as it is stored."""
        return self.arrays[name]

    def input_format(self, name: str) -> Format:
        return self.fmt

    @property
    def output_format(self) -> Format:
        """The format in which the main answer is stored."""
        return self.fmt

    def answer_format(self, name: str) -> Format:
        """The format in which an answer is stored."""
        return self.output_format

    def find_sum_format(self) -> Format:
        """The format that sums of products are kept in: the one asked for, or the one that suits the tensors."""
        found = find_format(self.setting.numbers.accumulate or self.fmt.sum_name)
        if found.is_integer and isinstance(self.fmt, ScaledFormat):
            return find_format(self.fmt.sum_name)  # exact sums of integers, brought to their size
        if found.is_integer != self.fmt.is_integer:
            raise InputError(f"accumulate: {found.name} does not sum products of {self.fmt.name}")
        return found

    def dot(self, a: Factor, b: Factor, onto: Array | None = None) -> Array:
        """The product of stored matrices: its sum wide or, where that is asked for, rounded to a format of its own.

        Numbers whose scales are kept apart are multiplied without them. `onto` holds sums, as they are stored, to which
        the product is added.
        """
        if isinstance(a, QuantizedArray) and isinstance(b, QuantizedArray):
            return self._scaled_path(a, b).dot(a, b, onto)
        left, right = (each.dequantize() if isinstance(each, QuantizedArray) else each for each in (a, b))
        if not self.setting.numbers.asked() and onto is None:
            return dot(left, right, self.fmt)
        if right.ndim == 1:
            return np.asarray(self.dot(left, right[:, None])[..., 0])
        path = Datapath(self.fmt, self.fmt, self.find_sum_format(), self.setting.numbers.chunk)
        return path.dot(left, right, onto)

    def _scaled_path(self, a: QuantizedArray, b: QuantizedArray) -> Datapath:
        """What multiplies numbers whose scales are kept apart."""
        numbers = self.setting.numbers
        sums = find_format(numbers.accumulate or a.fmt.sum_name)
        return Datapath(a.fmt, b.fmt, sums, numbers.chunk, a.per, b.per, numbers.scale_block)

    @property
    def rounding(self) -> Rounding:
        """What one rounding costs here."""
        numbers = self.setting.numbers
        return make_rounding(self.fmt, self.find_sum_format(), numbers.chunk, numbers.at_tiles)

    @property
    def workers(self) -> int:
        """How many cores may take blocks."""
        return self.setting.cores

    @property
    @abstractmethod
    def useful_flops(self) -> int:
        """Operations that the problem needs, whatever the schedule does."""

    @property
    def output(self) -> Array:
        """The computed answer as stored; whole after all blocks have run."""
        self._need_math("output")
        return self._output()

    def reference(self) -> Array:
        """The answer in float64, from the inputs as they are stored."""
        self._need_math("reference")
        return self._reference()

    @property
    def tolerance(self) -> float:
        """Largest error, relative to the largest element of the reference, that rounding explains."""
        return min(MOST, 4 * self.fmt.roundoff)

    def formulas(self) -> tuple[Formula, ...]:
        return ()

    def bytes_of(self, tensor: str) -> int | None:
        """Memory of a tensor; of scratch space, what one core has. None if there is no such tensor."""
        view = self.tensors.get(tensor)
        return None if view is None else ceil(view.size * view.element_bytes)

    def warnings(self) -> tuple[str, ...]:
        """What was asked for and cannot have an effect."""
        return ()

    @abstractmethod
    def _output(self) -> Array: ...

    @abstractmethod
    def _reference(self) -> Array: ...

    def _need_math(self, what: str) -> None:
        if not self.setting.math:
            raise InputError(f"{self.name} ran without math, so it has no {what}")


def rows_of(kernel: Kernel) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes from one row to the next of each tensor with two axes, and its number of rows."""
    flat = {name: view for name, view in kernel.tensors.items() if len(view.shape) == 2}
    return (
        {name: int(view.strides[0] * view.element_bytes) for name, view in flat.items()},
        {name: view.shape[0] for name, view in flat.items()},
    )
