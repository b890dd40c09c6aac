"""Loops as a schedule cuts them: operands in strides, the plan of the loops, and what comes out of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lcm
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hwsim.trace.nest import Nest, Size

Range = tuple[int, int]
"""First position of an index, and how many."""

Stretch = tuple[int, int]
"""Offset and width of one access along an index: a vector, or a single element."""


@dataclass(frozen=True, eq=False)
class Gather:
    """Where an operand is found for each position of an index: bytes from its base, looked up in a table."""

    index: str
    offsets: NDArray[np.int64]
    per_byte: int = 1
    """Offsets count so many parts of a byte, where rows of packed numbers begin inside one."""


def gather(index: str, *moves: tuple[NDArray[np.int64], Size]) -> Gather:
    """A table of places: the sum of positions times the bytes from one position to the next."""
    per_byte = lcm(*(step.denominator for _, step in moves))
    offsets = sum((places.astype(np.int64) * int(step * per_byte) for places, step in moves), np.int64(0))
    return Gather(index, np.asarray(offsets, np.int64), per_byte)


@dataclass(frozen=True)
class Operand:
    """A tensor as the loops see it: how many bytes it moves by for a step of each index that it depends
    on."""

    tensor: str
    base: Size
    element_bytes: Size
    strides: Mapping[str, Size]
    far: Mapping[str, tuple[int, Size]] = field(default_factory=dict)
    """For tensors stored block by block: elements in a block, and bytes from one block to the next, by index. Scratch
    space for one tile is a block with no distance to the next."""
    gather: Gather | None = None
    """For rows that are looked up; the operand has a stride of zero along that index."""

    def distance(self, index: str, position: int) -> Size:
        """Bytes from the first element to the one at a position of an index."""
        if index not in self.strides:
            return 0
        block, far = self.far.get(index, (0, 0))
        if not block:
            return position * self.strides[index]
        return position // block * far + position % block * self.strides[index]

    def has_neighbours(self, index: str, count: int) -> bool:
        """Whether `count` elements along an index lie side by side, wherever a vector begins."""
        block = self.far.get(index, (0, 0))[0]
        whole = not block or block % count == 0 or self.is_local(index)
        return self.strides[index] == self.element_bytes and whole

    def is_local(self, index: str) -> bool:
        """Whether every tile of an index finds the same memory: scratch space that is used over and over."""
        return index in self.far and self.far[index][1] == 0


@dataclass(frozen=True)
class LoopPlan:
    """In which order the loops run, and how they are cut."""

    order: tuple[str, ...]
    tile: Mapping[str, int] = field(default_factory=dict)
    unroll: Mapping[str, int] = field(default_factory=dict)
    vector: str | None = None
    lanes: int = 1
    accumulate: Literal["register", "memory"] = "register"

    def step(self, index: str) -> int:
        """Iterations that one pass through the body covers."""
        unroll = self.unroll.get(index, 1)
        return max(unroll, self.lanes) if index == self.vector and index == self.order[-1] else unroll

    def completes(self, operation: LoopOperation) -> bool:
        """Whether each output value is finished in a register: all sums run inside the loops of the output, uncut."""
        output = operation.output
        if output is None or self.accumulate == "memory" or self.order[-1] in output.strides:
            return False
        summed = [index for index in self.order if index not in output.strides]
        return self.order[-len(summed) :] == tuple(summed) and not any(index in self.tile for index in summed)

    def runs(self, index: str, count: int) -> list[Stretch]:
        """`count` iterations of an index as vectors and single elements."""
        lanes = self.lanes if index == self.vector else 1
        if 1 < count < lanes:
            lanes = 1 << (count.bit_length() - 1)
        whole = count // lanes
        return [(i * lanes, lanes) for i in range(whole)] + [(i, 1) for i in range(whole * lanes, count)]


@dataclass(frozen=True)
class LoopOperation:
    """``output += f(inputs)`` for each point of the loops, or ``output = …`` where nothing is added up.

    `late` operands are loaded when an output value is finished, just before it is stored: a bias, a residual.
    `stores` are results beside the output: stored in the innermost loop if that moves them, else after it.
    """

    inputs: tuple[Operand, ...]
    output: Operand | None
    accumulates: bool = True
    late: tuple[Operand, ...] = ()
    stores: tuple[Operand, ...] = ()
    continues: bool | None = None
    """Whether the output holds a sum from before the loop, to which the loop adds; if not said, it does where some
    index that is summed over does not begin at 0."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Everything that is touched."""
        return (*self.inputs, *self.late, *self.stores, *([self.output] if self.output is not None else []))


def is_resumed(operation: LoopOperation, ranges: Mapping[str, Range]) -> bool:
    """Whether the output already holds a part of its sums: some index that is summed over does not begin at 0."""
    output = operation.output
    if output is None or not operation.accumulates:
        return False
    if operation.continues is not None:
        return operation.continues
    return any(first > 0 for index, (first, _) in ranges.items() if index not in output.strides)


@dataclass(frozen=True)
class Piece:
    """A Nest and what is computed in it."""

    nest: Nest
    body_runs: int
    """Arithmetic instructions for each operation of the loop body: points of the loops over vector lanes."""
    iterations: int
    """Of the innermost loop."""
    starts: int
    """How often the innermost loop begins."""
    gathered: int
    """Elements that were put into vectors, or taken out of them, one by one."""
    chain: int
    """Dependent operations of one accumulation, over all loops that go on with the same sum in its register; 0 if there
    is no such chain."""
    sums: int
    """How often such an accumulation begins."""
    parallel: int
    loads: int
    stores: int
    results: int
    """Stores of the output alone."""
    operands: tuple[Operand, ...] = ()
    """The operand behind each access of the nest."""
