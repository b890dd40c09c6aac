"""Which cache instances a machine has, and which of them each core goes through.

Four cores with private L1 and L2 and one L3 make nine instances; the chain of core 2 is `core[2].l1`,
`core[2].l2`, `l3`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwsim.spec.machine import CacheSpec


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
