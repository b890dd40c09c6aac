"""Work: what a step computes, in the terms that any compute unit understands."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

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
    convert: int = 0
    """From one number format to another."""

    def __add__(self, more: Instructions) -> Instructions:
        return Instructions(*(getattr(self, f.name) + getattr(more, f.name) for f in fields(self)))

    def scaled(self, times: int) -> Instructions:
        return Instructions(*(getattr(self, f.name) * times for f in fields(self)))

    @property
    def total(self) -> int:
        return sum(getattr(self, f.name) for f in fields(self))


@dataclass(frozen=True)
class Chain:
    """Operations of which each waits for the one before: in the innermost loop, and in those around it that go on with
    the same sum in its register.

    `parallel` such chains run side by side in the loop body (a vector of partial sums is one chain). A sum
    that goes through memory waits for the store as well as for the addition: it counts two operations for
    each element.
    """

    op: ChainOp
    length: int
    parallel: int = 1
    runs: int | None = None
    """How often such a chain begins; with each innermost loop if not given."""

    def scaled(self, times: int) -> Chain:
        return self if self.runs is None else replace(self, runs=self.runs * times)


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

    def scaled(self, times: int) -> Work:
        """The same work so many times over."""
        if times == 1:
            return self
        return replace(
            self,
            flops=self.flops * times,
            macs=self.macs * times,
            instructions=self.instructions.scaled(times),
            loop_starts=self.loop_starts * times,
            chain=self.chain.scaled(times) if self.chain is not None else None,
        )

    @property
    def sums(self) -> int:
        """How often its chain begins."""
        runs = self.chain.runs if self.chain is not None else None
        return max(1, self.loop_starts if runs is None else runs)
