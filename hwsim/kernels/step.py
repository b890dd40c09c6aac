"""Blocks and Steps: how a kernel tells what it does, without knowing on what.

A Block is an independent piece of the output; a Step is a piece of a Block that runs in sequence. A Step
carries what is computed (`work`), in which order a load/store machine touches memory (`nests`), and which
rectangular pieces a machine with software-managed memory would move (`tiles`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from hwsim.trace.nest import Nest, Size
from hwsim.trace.work import Chain, ChainOp, Instructions, Work

__all__ = ["Block", "Chain", "ChainOp", "Instructions", "Stage", "Step", "Tile", "Work"]


@dataclass(frozen=True)
class Tile:
    """A rectangular piece of a tensor that a machine with software-managed memory moves, `count` times
    in a Step."""

    tensor: str
    shape: tuple[int, ...]
    element_bits: Size
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


@dataclass(frozen=True)
class Stage:
    """Blocks that may run at the same time, in any order; the next stage begins when all of them are done."""

    name: str
    blocks: tuple[Block, ...]
