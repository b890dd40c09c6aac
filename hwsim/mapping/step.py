"""What an array is given to do: tiles one after the other, each with what moves before and after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from hwsim.mapping.chip import Role

NEVER = 1 << 30
"""How far ahead a transfer may run where its room is never needed for anything else."""


@dataclass(frozen=True)
class Move:
    """Bytes of one operand between the scratchpad next to the array and a level behind it."""

    role: Role
    tensor: str
    level: str
    """The level behind: main memory, or a scratchpad that is home to activations."""
    nbytes: int
    after: int = -1
    """The pass that has to be over before, because it computes these bytes; -1 for none."""
    requests: int = 1
    """How often the DMA engine has to be set up."""
    store: bool = False
    """Towards the level behind."""
    piece: int = -1
    """Which piece of its operand in the scratchpad it is a part of; -1 where each step has its own."""


@dataclass(frozen=True)
class ArrayWork:
    """Folds of one tile on each array, in cycles."""

    busy: int
    """In which values enter."""
    body: int
    """From the first value of the first fold to the last value of the last fold."""
    last: int
    """Of `body`, the stream of the last fold: while it runs, the next stationary tile can move in."""
    fed: int = 0
    """How long the scratchpads need to feed it: more than `body` where they are too slow."""
    goes_on: bool = False
    """Whether the stationary tile is that of the step before, so that nothing has to be loaded into the cells."""


@dataclass(frozen=True)
class TileStep:
    """One tile: loads, work of the array or the vector unit, stores."""

    name: str
    loads: tuple[Move, ...] = ()
    stores: tuple[Move, ...] = ()
    work: ArrayWork | None = None
    vector_cycles: int = 0
    """Of the vector unit: after the array's work on the tile, or instead of it."""
    opens: bool = True
    """Whether it begins a new piece of the output, which needs room."""
    chained: bool = False
    """Whether it needs what the step before computes: then nothing of the two overlaps."""


@dataclass(frozen=True)
class Ahead:
    """How many pieces of each operand there is room for: one less of them can be under way before they are needed."""

    input: int = 1
    weight: int = 1
    output: int = 1


@dataclass
class Counts:
    """What a pass does, in elements: reads and writes by scratchpad, operations of array and vector unit."""

    macs: int = 0
    hops: int = 0
    vector: Counter[str] = field(default_factory=Counter)
    reads: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Bits by (scratchpad, read or write)."""
    elements: Counter[tuple[str, str]] = field(default_factory=Counter)

    def per_pad(self) -> dict[str, int]:
        """Bits that each scratchpad reads, or writes: the larger of the two, since both go on at once."""
        pads = {pad for pad, _ in self.reads}
        return {pad: max(self.reads[pad, "read"], self.reads[pad, "write"]) for pad in pads}

    def scaled(self, times: int) -> Counts:
        return Counts(
            self.macs * times,
            self.hops * times,
            Counter({kind: count * times for kind, count in self.vector.items()}),
            Counter({key: bits * times for key, bits in self.reads.items()}),
            Counter({key: count * times for key, count in self.elements.items()}),
        )

    def touch(self, pad: str, action: str, elements: int, bits: int) -> None:
        self.elements[pad, action] += elements
        self.reads[pad, action] += elements * bits

    def __iadd__(self, more: Counts) -> Counts:
        self.macs += more.macs
        self.hops += more.hops
        self.vector += more.vector
        self.reads += more.reads
        self.elements += more.elements
        return self


@dataclass
class Pass:
    """One loop of the kernel, mapped: its tiles in order, and what they do together."""

    number: int
    name: str
    unit: str
    """array or vector."""
    steps: list[TileStep]
    ahead: Ahead
    counts: Counts
    needs: tuple[int, ...] = ()
    """Passes whose results it reads where they lie: they have to be over before it starts."""
    held: dict[str, int] = field(default_factory=dict)
    """Bytes of each scratchpad that its tiles take, beside tensors that stay there."""
    stage: str = ""
    """The stage of the kernel that it belongs to."""
    tile: dict[str, int] = field(default_factory=dict)
    order: str = ""

    def __iter__(self) -> Iterator[TileStep]:
        return iter(self.steps)
