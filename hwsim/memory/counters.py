"""Which caches a machine has, which of them each core goes through, and what is counted at each.

Four cores with private L1 and L2 and one L3 make nine instances; the chain of core 2 is `core[2].l1`, `core[2].l2`,
`l3`. The compiled models count into the columns of an integer array, a row per instance; people read the dataclasses
below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import add, sub
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hwsim.spec.machine import CacheSpec


@dataclass(frozen=True)
class Counters:
    """Integers that add up."""

    @classmethod
    def width(cls) -> int:
        return len(fields(cls))

    @classmethod
    def of(cls, row: NDArray[np.uint64]) -> Self:
        made = object.__new__(cls)  # these are made by the thousand, and a frozen class takes a call for each field
        made.__dict__.update(zip(cls.__dataclass_fields__, row.tolist(), strict=True))
        return made

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(add, vars(self).values(), vars(other).values()))

    def __sub__(self, other: Self) -> Self:
        return type(self)(*map(sub, vars(self).values(), vars(other).values()))

    def __mul__(self, times: int) -> Self:
        return type(self)(*(times * count for count in vars(self).values()))

    def to_dict(self) -> dict[str, int]:
        return dict(vars(self))


@dataclass(frozen=True)
class CacheCounters(Counters):
    """One cache. Loads and prefetches from above are apart; a write is a store or a line that comes down."""

    reads: int = 0
    writes: int = 0
    read_misses: int = 0
    write_misses: int = 0
    writebacks: int = 0
    """Lines that left with modified data."""
    prefetches: int = 0
    """Lines that this cache's own prefetcher brought in."""
    prefetch_reads: int = 0
    """Reads that a prefetcher nearer the compute unit asked for."""
    prefetch_hits: int = 0
    """Prefetched lines that were then used."""
    sector_misses: int = 0
    """Misses on a line that is present without the sector asked for; among read_misses and write_misses."""
    back_invalidations: int = 0
    """Lines taken from inner caches because this inclusive cache lost them."""
    clean_victims: int = 0
    """Unmodified lines handed to an exclusive cache below."""
    bytes_read: int = 0
    """Delivered towards the compute unit."""
    bytes_written: int = 0
    """Received from the compute unit's side."""
    bytes_fetched: int = 0
    """Received from the next level."""
    bytes_evicted: int = 0
    """Sent to the next level."""

    @property
    def accesses(self) -> int:
        return self.reads + self.writes

    @property
    def misses(self) -> int:
        return self.read_misses + self.write_misses

    @property
    def hits(self) -> int:
        return self.accesses - self.misses


@dataclass(frozen=True)
class DramCounters(Counters):
    """Main memory: requests and bytes, and what each column access found in its bank."""

    reads: int = 0
    writes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    row_hits: int = 0
    """Column accesses to the open row."""
    row_misses: int = 0
    """The bank had no open row."""
    row_conflicts: int = 0
    """The bank had another row open, which had to be closed first."""

    @property
    def activates(self) -> int:
        return self.row_misses + self.row_conflicts


@dataclass(frozen=True)
class ScratchpadCounters(Counters):
    """A memory that software fills: elements and bytes on the compute unit's side, and what was moved in and out."""

    reads: int = 0
    writes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_filled: int = 0
    """Brought in from the level behind."""
    bytes_drained: int = 0
    """Taken out to the level behind."""
    peak_bytes: int = 0
    """The most that lay in it."""


(READS, WRITES, READ_MISSES, WRITE_MISSES, WRITEBACKS, PREFETCHES, PREFETCH_READS, PREFETCH_HITS,
 SECTOR_MISSES, BACK_INVALIDATIONS, CLEAN_VICTIMS, BYTES_READ, BYTES_WRITTEN, BYTES_FETCHED, BYTES_EVICTED,
) = range(CacheCounters.width())  # fmt: skip
"""Columns of the compiled counters, in the order of the fields of CacheCounters."""

(DRAM_READS, DRAM_WRITES, DRAM_BYTES_READ, DRAM_BYTES_WRITTEN, ROW_HITS, ROW_MISSES, ROW_CONFLICTS,
) = range(DramCounters.width())  # fmt: skip
"""Columns of the compiled DRAM counters."""


# Instances ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instance:
    """One cache: its level (0 is nearest the core) and its name in paths."""

    level: int
    name: str


@dataclass(frozen=True, eq=False)
class Topology:
    """The cache levels of a machine, from the core outwards, spread over its cores."""

    specs: tuple[CacheSpec, ...]
    instances: tuple[Instance, ...]
    chains: NDArray[np.int64]
    """Row: core; column: level; value: number of the instance."""

    @classmethod
    def build(cls, specs: Sequence[CacheSpec], cores: int = 1, unit: str = "core") -> Topology:
        instances: list[Instance] = []
        chains = np.zeros((cores, len(specs)), np.int64)
        for level, spec in enumerate(specs):
            sharers = cores if spec.shared_by == "all" else min(spec.shared_by, cores)
            for first in range(0, cores, sharers):
                chains[first : first + sharers, level] = len(instances)
                instances.append(Instance(level, _instance_name(spec, unit, first, sharers, cores)))
        return cls(tuple(specs), tuple(instances), chains)

    @property
    def cores(self) -> int:
        return len(self.chains)

    @property
    def grain(self) -> int:
        """Bytes of one event: the sector of the first level, or 64 where there is no cache at all."""
        return self.specs[0].sector_bytes if self.specs else 64

    def random_seeds(self, seed: int) -> NDArray[np.uint64]:
        """A start for the random numbers of each instance; never zero, which xorshift could not leave."""
        numbers = np.random.SeedSequence(seed).generate_state(len(self.instances), np.uint64)
        return numbers | np.uint64(1)


def _instance_name(spec: CacheSpec, unit: str, first: int, sharers: int, cores: int) -> str:
    if sharers == 1 and spec.shared_by == 1:
        return f"{unit}[{first}].{spec.name}"
    return spec.name if sharers == cores else f"{spec.name}[{first // sharers}]"
