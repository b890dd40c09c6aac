"""Blocks and Steps: how a kernel tells what it does, without knowing on what.

A Block is an independent piece of the output; a Step is a piece of a Block that runs in sequence. A Step
carries what is computed (`work`), in which order a load/store machine touches memory (`nests`), and which
rectangular pieces a machine with software-managed memory would move (`tiles`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from math import prod
from typing import Literal

from hwsim.trace.nest import Nest

ChainOp = Literal["fma", "add", "mul", "load"]


@dataclass(frozen=True)
class Instructions:
    """Issued instructions by class; a vector instruction counts once.

    `fma` is a multiply and an add on the same sum: a machine without fused multiply-add issues two
    instructions. `other` is address arithmetic, loop control and the shuffling of vectors.
    """

    fma: int = 0
    add: int = 0
    mul: int = 0
    special: int = 0
    load: int = 0
    store: int = 0
    other: int = 0

    def __add__(self, more: Instructions) -> Instructions:
        return Instructions(*(getattr(self, f.name) + getattr(more, f.name) for f in fields(self)))

    def scaled(self, times: int) -> Instructions:
        return Instructions(*(getattr(self, f.name) * times for f in fields(self)))

    @property
    def total(self) -> int:
        return sum(getattr(self, f.name) for f in fields(self))


@dataclass(frozen=True)
class Chain:
    """Operations of which each waits for the one before, in one run of the innermost loop.

    `parallel` such chains run side by side in the loop body (a vector of partial sums is one chain). A sum
    that goes through memory waits for the store as well as for the addition: it counts two operations for
    each element.
    """

    op: ChainOp
    length: int
    parallel: int = 1


@dataclass(frozen=True)
class Work:
    """What a Step computes, and the instructions that a load/store machine needs for it."""

    flops: int
    macs: int
    instructions: Instructions
    lanes: int = 1
    fmt: str = "fp32"
    chain: Chain | None = None
    loop_starts: int = 0
    """How often an innermost loop begins: each costs a few cycles on a real core."""


@dataclass(frozen=True)
class Tile:
    """A rectangular piece of a tensor that a machine with software-managed memory moves, `count` times
    in a Step."""

    tensor: str
    shape: tuple[int, ...]
    element_bits: int
    write: bool = False
    count: int = 1

    @property
    def elements(self) -> int:
        return prod(self.shape) * self.count

    @property
    def bytes(self) -> int:
        return -(-prod(self.shape) * self.element_bits // 8) * self.count


@dataclass(frozen=True)
class Step:
    """A piece of a Block; `repeat` says how often it recurs with shifted tiles."""

    name: str
    work: Work
    nests: tuple[Nest, ...]
    tiles: tuple[Tile, ...] = ()
    repeat: int = 1


@dataclass
class Block:
    """An independent piece of the output. `steps()` does the real math as it yields."""

    index: int
    steps: Callable[[], Iterator[Step]]
