"""What a simulation leaves behind: plain data, before it becomes a result for people.

Time is an integer: femtoseconds between clock domains, cycles inside one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hwsim.energy import Ledger
from hwsim.memory.counters import CacheCounters, DramCounters, ScratchpadCounters
from hwsim.record import Record
from hwsim.trace.nest import Instructions

FEMTOSECONDS = 10**15


@dataclass(frozen=True)
class AgentTime:
    """How one core spent its time, in femtoseconds: busy by unit, waiting by resource, together `elapsed_fs`."""

    name: str
    elapsed_fs: int
    busy: dict[str, int]
    waiting: dict[str, int]


@dataclass(frozen=True)
class Span:
    """Something that held a resource: one event of the timeline."""

    lane: str
    name: str
    start_fs: int
    end_fs: int


@dataclass(frozen=True)
class Pulse:
    """What happened between two moments, for power over time."""

    start_fs: int
    end_fs: int
    ledger: Ledger


@dataclass(frozen=True)
class TensorTraffic(Record):
    """Elements of one tensor that were loaded and stored, and its misses in each level."""

    loads: int = 0
    stores: int = 0
    misses: dict[str, int] = field(default_factory=dict)

    def __sub__(self, earlier: TensorTraffic) -> TensorTraffic:
        """What was moved since."""
        misses = {level: count - earlier.misses.get(level, 0) for level, count in self.misses.items()}
        return TensorTraffic(self.loads - earlier.loads, self.stores - earlier.stores, misses)

    def __add__(self, more: TensorTraffic) -> TensorTraffic:
        levels = self.misses.keys() | more.misses.keys()
        misses = {level: self.misses.get(level, 0) + more.misses.get(level, 0) for level in sorted(levels)}
        return TensorTraffic(self.loads + more.loads, self.stores + more.stores, misses)

    @property
    def moved(self) -> bool:
        return bool(self.loads or self.stores)


@dataclass(frozen=True)
class StageOutcome:
    """What one stage of a kernel took and moved; the next one began when it was done."""

    name: str
    elapsed_fs: int
    flops: int
    tensors: dict[str, TensorTraffic]

    def __add__(self, more: StageOutcome) -> StageOutcome:
        """Both, one after the other, under the name of the first."""
        names = [*self.tensors, *(name for name in more.tensors if name not in self.tensors)]
        nothing = TensorTraffic()
        tensors = {name: self.tensors.get(name, nothing) + more.tensors.get(name, nothing) for name in names}
        return StageOutcome(self.name, self.elapsed_fs + more.elapsed_fs, self.flops + more.flops, tensors)


@dataclass(frozen=True)
class Outcome:
    """Everything that was counted and timed."""

    elapsed_fs: int
    clock_hz: int
    agents: tuple[AgentTime, ...]
    parts: dict[str, int]
    """Femtoseconds that each part of the work would take alone, the busiest agent's: units, ports, chain, each link."""
    levels: Mapping[str, CacheCounters | ScratchpadCounters]
    dram: DramCounters
    tensors: dict[str, TensorTraffic]
    stages: tuple[StageOutcome, ...]
    flops: int
    macs: int
    loads: int
    stores: int
    """Elements that went from memory to registers, or to the chip, and back."""
    ledger: Ledger
    peak_flops_per_s: float
    """What the units at work could have done."""
    model: str
    """Which model replayed the accesses: `stream` or `coupled` for caches, or the class of an accelerator."""
    reached: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """For each level, how much of each tensor got there: its energy is shared out in this proportion."""
    instructions: Instructions = field(default_factory=Instructions)
    warnings: tuple[str, ...] = ()
    """What the machine made of the schedule and a user should know."""
    workspace_bytes: int = 0
    """Memory that this machine needs beside the tensors of the program."""
    use: Mapping[str, Any] = field(default_factory=dict)
    """What only this class of machines has to tell: launches of a GPU, passes of an array."""
    accesses: int = 0
    skipped: int = 0
    """Accesses replayed, and how many of them warping did not have to walk."""
    walk_seconds: float = 0.0
    math_seconds: float = 0.0
    """Wall time of the replay or the mapping, and of the real math; for benchmarks, never part of a result."""
    events: int = 0
    """Events that the run took; filled in by the engine, as are those below."""
    spans: tuple[Span, ...] = ()
    pulses: tuple[Pulse, ...] = ()
    """What each step did, in order of time; like `spans` only where a timeline was asked for."""

    @property
    def cycles(self) -> int:
        return -(-self.elapsed_fs * self.clock_hz // FEMTOSECONDS)

    @property
    def lower_fs(self) -> int:
        """No run can be shorter: its longest part."""
        return max(self.parts.values(), default=0)

    @property
    def upper_fs(self) -> int:
        """Nothing overlaps: the sum of all parts."""
        return sum(self.parts.values())


def cycles_to_fs(cycles: Fraction | int, clock_hz: int) -> int:
    """Femtoseconds that so many cycles take; a part of a femtosecond counts as a whole one."""
    return -(-cycles.numerator * FEMTOSECONDS // (cycles.denominator * clock_hz))


def seconds_to_fs(seconds: Fraction) -> int:
    exact = seconds * FEMTOSECONDS
    return -(-exact.numerator // exact.denominator)
