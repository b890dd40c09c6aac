"""Hierarchy: all caches of a machine and the memory behind them; nests and traces in, exact counts out.

    hierarchy = Hierarchy(specs, dram)
    traffic = hierarchy.replay(nest)          # state changes, counts come back; no time passes
    traffic.levels["l1"].read_misses

Promises, held by tests: hits plus misses equal accesses; bytes leaving a level equal bytes entering the next;
run compression and warping change no count and no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import sub
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hwsim.memory.counters import CacheCounters, DramCounters, Topology
from hwsim.memory.coupled import CoupledCaches
from hwsim.memory.dram import Dram
from hwsim.memory.stream import StreamCaches, can_stream
from hwsim.memory.warp import Progress, replay_warped
from hwsim.spec.machine import CacheSpec, DramSpec, MachineSpec
from hwsim.trace.nest import Nest, numbered, split_accesses


@dataclass(frozen=True)
class Traffic:
    """What a replay moved: counts per level of the core that ran it, and of main memory."""

    levels: dict[str, CacheCounters]
    dram: DramCounters
    misses: dict[str, tuple[int, ...]]
    """Per level, the misses of each access of the nest."""
    accesses: int
    skipped: int
    """Accesses that were not walked because their period repeated."""

    def __mul__(self, times: int) -> Traffic:
        """Of so many equal nests."""
        return Traffic(
            levels={name: counters * times for name, counters in self.levels.items()},
            dram=self.dram * times,
            misses={name: tuple(times * count for count in row) for name, row in self.misses.items()},
            accesses=times * self.accesses,
            skipped=times * self.skipped,
        )

    def __add__(self, more: Traffic) -> Traffic:
        """Of two parts of one nest, both together."""
        return Traffic(
            levels={name: counters + more.levels[name] for name, counters in self.levels.items()},
            dram=self.dram + more.dram,
            misses={
                name: tuple(a + b for a, b in zip(row, more.misses[name], strict=True))
                for name, row in self.misses.items()
            },
            accesses=self.accesses + more.accesses,
            skipped=self.skipped + more.skipped,
        )


class Caches(Protocol):
    """What both models of a hierarchy offer."""

    @property
    def counters(self) -> NDArray[np.uint64]: ...
    @property
    def causes(self) -> NDArray[np.uint64]: ...
    def feed(self, events: NDArray[np.uint64], core: int) -> None: ...
    def contents(self, instance: int) -> list[list[tuple[int, bool]]]: ...


class Hierarchy:
    """The caches of all cores and the memory behind them."""

    def __init__(
        self,
        specs: Sequence[CacheSpec],
        dram: DramSpec | None = None,
        *,
        cores: int = 1,
        unit: str = "core",
        seed: int = 0,
        compress: bool = True,
        warp: bool = True,
        warp_from: int = 1 << 16,
    ) -> None:
        """`warp_from`: accesses of a nest from which it pays to look for a period."""
        self.topology = Topology.build(specs, cores, unit)
        self.compress = compress
        self.warp = warp
        self.warp_from = warp_from
        self.dram = Dram.build(dram)
        self._stream = StreamCaches(self.topology, self.dram, seed) if can_stream(self.topology.specs) else None
        self._coupled = None if self._stream else CoupledCaches(self.topology, self.dram, seed)

    @property
    def model(self) -> str:
        """`stream` where every level is a plain filter, `coupled` where levels look at each other."""
        return "stream" if self._stream else "coupled"

    @property
    def caches(self) -> Caches:
        caches = self._coupled if self._stream is None else self._stream
        assert caches is not None
        return caches

    def replay(self, nest: Nest, core: int = 0) -> Traffic:
        """Run the accesses of a nest on one core."""
        first, *more = self.replay_parts(nest, core)
        return sum(more, first)

    def replay_parts(self, nest: Nest, core: int = 0, parts: int = 1, *, alone: bool = True) -> Iterator[Traffic]:
        """The same in about so many parts of equal length, what each moved; unless `alone`, other cores may run theirs
        in between.

        Parts add up to the whole, exactly: the same accesses pass in the same order.
        """
        wholes = nest.bytes_moved(write=False), nest.bytes_moved(write=True), nest.length
        walk = self._walk_parts(nest, core, parts, alone)
        share = Fraction(0)
        before: tuple[int, ...] = (0, 0, 0)
        mark = self._mark(core)
        while share != 1:
            share, skipped = next(walk)
            now = tuple(whole * share.numerator // share.denominator for whole in wholes)
            loaded, stored, accesses = map(sub, now, before)
            if self._stream is not None:
                self._stream.settle(core, mark.counters, loaded, stored)
            elif self._coupled is not None and nest.per_byte > 1:
                self._coupled.settle(core, mark.counters, loaded, stored)
            counted = self._mark(core)
            yield self._between(mark, counted, accesses, skipped, len(nest.accesses))
            mark = counted if alone else self._mark(core)
            before = now

    def _walk_parts(self, nest: Nest, core: int, parts: int, alone: bool) -> Progress:
        if self._stream is None:
            assert self._coupled is not None
            return ((share, 0) for share in self._coupled.walk_parts(nest, core, parts))
        if self.warp and nest.length >= self.warp_from:
            return replay_warped(self._stream, numbered(nest), core, self.compress, parts, alone=alone)
        return ((share, 0) for share in self._stream.walk_parts(nest, core, self.compress, parts))

    def feed(
        self,
        addresses: NDArray[np.uint64],
        writes: NDArray[np.bool_],
        sizes: NDArray[np.uint16],
        core: int = 0,
    ) -> Traffic:
        """Run accesses that are given one by one; those that cross a line are split."""
        mark = self._mark(core)
        self.caches.feed(split_accesses(addresses, writes, sizes, self.topology.grain), core)
        if self._stream is not None:
            stored = int(sizes[writes].sum(dtype=np.int64))
            self._stream.settle(core, mark.counters, int(sizes.sum(dtype=np.int64)) - stored, stored)
        return self._between(mark, self._mark(core), len(addresses), 0, 1)

    def counters(self) -> dict[str, CacheCounters]:
        """What every instance has counted so far, by its name: `core[0].l1`, `l3`."""
        rows = self.caches.counters
        return {instance.name: CacheCounters.of(rows[i]) for i, instance in enumerate(self.topology.instances)}

    def level_counters(self) -> dict[str, CacheCounters]:
        """The same, added up over the instances of each level."""
        totals = {spec.name: CacheCounters() for spec in self.topology.specs}
        for i, instance in enumerate(self.topology.instances):
            totals[self.topology.specs[instance.level].name] += CacheCounters.of(self.caches.counters[i])
        return totals

    def contents(self, name: str) -> list[list[tuple[int, bool]]]:
        """The lines of each set of one instance with their dirty bits, in the order of its policy."""
        names = [instance.name for instance in self.topology.instances]
        return self.caches.contents(names.index(name))

    def _mark(self, core: int) -> _Mark:
        caches = self.caches
        return _Mark(caches.counters[self.topology.chains[core]], self.dram.counts.copy(), caches.causes.copy())

    def _between(self, then: _Mark, now: _Mark, accesses: int, skipped: int, slots: int) -> Traffic:
        rows = now.counters - then.counters
        causes = (now.causes[:, :slots] - then.causes[:, :slots]).tolist()
        names = [spec.name for spec in self.topology.specs]
        return Traffic(
            levels={name: CacheCounters.of(row) for name, row in zip(names, rows, strict=True)},
            dram=DramCounters.of(now.dram - then.dram),
            misses={name: tuple(row) for name, row in zip(names, causes, strict=True)},
            accesses=accesses,
            skipped=skipped,
        )


class _Mark(NamedTuple):
    """The counts at one moment."""

    counters: NDArray[np.uint64]
    dram: NDArray[np.uint64]
    causes: NDArray[np.uint64]


def build_hierarchy(
    machine: MachineSpec, *, cores: int | None = None, seed: int = 0, compress: bool = True, warp: bool = True
) -> Hierarchy:
    """The caches of a machine and its main memory, all cold; `cores` to have fewer than the machine's."""
    units = sum(unit.count for unit in machine.compute)
    return Hierarchy(
        machine.caches,
        machine.dram,
        cores=units if cores is None else cores,
        unit=machine.compute[0].name,
        seed=seed,
        compress=compress,
        warp=warp,
    )
