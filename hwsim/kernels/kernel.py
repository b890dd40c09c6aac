"""Kernel: an operation with a schedule, which computes the real answer and describes how it got there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hwsim.errors import InputError
from hwsim.kernels.step import Block, Stage
from hwsim.numerics.format import Array, Format
from hwsim.trace.space import AddressSpace
from hwsim.trace.view import TensorView


@dataclass(frozen=True)
class Formula:
    """A closed form of the course, to be set beside what was simulated.

    `compare` names the simulated number: ``loads``, ``stores``, ``loads.A`` (one tensor), ``l1.fills`` (lines brought
    into a level), ``dram.bytes_read``, ``flops``, ``macs``, ``bytes.A`` (memory of a tensor), ``intensity.element``,
    ``intensity.byte`` or ``time_s``. A time needs a machine: `value` is then 0, and `far` and `near` are the bytes that
    the formula moves from main memory and from the first cache.
    """

    name: str
    expression: str
    value: int | float
    unit: str
    compare: str
    far: int = 0
    near: int = 0


@dataclass(frozen=True)
class Setting:
    """What a run decides for a kernel: everything about it that the workload file does not say."""

    seed: int = 0
    lanes: int = 1
    """Elements in one vector of the run's precision; 1 on a scalar machine."""
    cores: int = 1
    math: bool = True
    line_bytes: int = 64


class Kernel(ABC):
    """The blocks of a stage may run in any order, and on different cores. Together they compute `output`, once."""

    name: str
    fmt: Format
    space: AddressSpace
    tensors: dict[str, TensorView]
    registers_needed: int = 1
    """Registers that the innermost loops hold at once, of the width that the schedule computes in."""

    def __init__(self, name: str, fmt: Format, setting: Setting) -> None:
        self.name = name
        self.fmt = fmt
        self.setting = setting
        self.space = AddressSpace()
        self.tensors = {}
        self.arrays: dict[str, Array] = {}

    @abstractmethod
    def stages(self) -> Sequence[Stage]:
        """The independent pieces, stage by stage; walking their steps does the math."""

    def blocks(self) -> Sequence[Block]:
        """The blocks of all stages, in an order in which one core could take them."""
        return [block for stage in self.stages() for block in stage.blocks]

    def answers(self) -> Iterator[tuple[str, Array, Array]]:
        """Each computed tensor that is an answer: its name, its values, and its reference in float64."""
        yield "output", self.output, self.reference()

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
        return 4 * self.fmt.roundoff

    def formulas(self) -> tuple[Formula, ...]:
        return ()

    def bytes_of(self, tensor: str) -> int | None:
        """Memory of a tensor; of scratch space, what one core has. None if there is no such tensor."""
        view = self.tensors.get(tensor)
        return None if view is None else view.size * view.element_bits // 8

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
