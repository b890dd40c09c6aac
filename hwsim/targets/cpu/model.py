"""CpuCore: what a step costs on a core, in cycles, part by part. No clock, no waiting for others.

Compute is bound by the units (operations over ports), by issue, by the load and store ports, and by chains of
dependent operations, of which the window of an out-of-order core hides the beginning. Memory is bound, at every level,
by bytes over bandwidth and by the latency of the next level over the number of misses that can be outstanding at once;
crowded sets, unknown pages and sums that come back from memory (`hazards.py`) take their time beside these.
Which parts run at the same time is the machine's `overlap`; the engine adds them up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from math import ceil, lcm, prod, sqrt
from typing import Any, TypeVar

from hwsim.errors import InputError
from hwsim.memory.footprint import estimate_page_misses
from hwsim.memory.hierarchy import Traffic
from hwsim.numerics.format import Format
from hwsim.spec.machine import CacheSpec, DramSpec, MachineSpec, RegistersSpec
from hwsim.targets.cpu.hazards import (
    PAGE_BYTES,
    WindowLines,
    aliases,
    burst,
    can_crowd,
    crowded,
    find_reload,
    followed,
    run_bytes,
    window_lines,
)
from hwsim.targets.cpu.spec import CoreFormatSpec, CpuSpec, MatrixSpec, RegisterFile, Spills, lanes_of
from hwsim.trace.nest import Chain, Instructions, Nest, Work
from hwsim.units import Bandwidth

Cycles = Fraction
ToFs = Callable[[Cycles], int]
Found = TypeVar("Found")

ZERO = Fraction(0)

PARTS = 1 << 20
"""Times that are estimated count in parts of a cycle."""
MOST_KNOWN = 4096
"""Shapes of nests about which hazards are remembered."""
FEWEST_MSHRS = 16
"""Misses that any cache is taken to have outstanding, if nothing is said."""
TRANSLATION = "address translation"


@dataclass(frozen=True)
class CostPart:
    """Something that takes time by itself: a unit at work, or a resource that is waited for."""

    name: str
    cycles: Cycles
    busy: bool = False
    """Whether the core does useful work meanwhile."""

    def fs(self, to_fs: ToFs) -> int:
        """The same in femtoseconds, which a core asks for again and again: always with the same clock."""
        known: int | None = self.__dict__.get("_fs")
        if known is None:
            known = self.__dict__["_fs"] = to_fs(self.cycles)
        return known

    def scaled(self, share: Fraction) -> CostPart:
        """A share of it."""
        return CostPart(self.name, self.cycles * share, self.busy)


@dataclass(frozen=True)
class Transfer:
    """What a step moves over the link from a level to the one nearer the core."""

    link: str
    level: str
    cycles: Cycles
    """How long it takes when nobody else uses the link."""
    shared_bytes: Fraction | int
    """Bytes that go over a link which other cores use as well, or what takes it as long; 0 for a private one."""
    lead_cycles: Cycles = Fraction(0)
    """How much earlier than the instructions that need it it can begin: while as much arrives as is in flight at
    once."""

    def scaled(self, share: Fraction) -> Transfer:
        """A share of it."""
        return replace(self, cycles=self.cycles * share, shared_bytes=self.shared_bytes * share)


@dataclass(frozen=True)
class Chunk:
    """A piece of a step, some accesses that follow each other, and what they moved."""

    nests: tuple[Nest, ...]
    traffic: tuple[Traffic, ...]
    """Of each nest, of which a chunk may hold a part: as many accesses as the traffic says."""
    begin: Fraction
    end: Fraction
    """Which part of the step's accesses it is; arithmetic is spread evenly over them."""
    executions: int
    """Accesses of the whole step."""

    @cached_property
    def share(self) -> Fraction:
        return self.end - self.begin

    @staticmethod
    def whole(nests: Sequence[Nest], traffic: Sequence[Traffic]) -> Chunk:
        """A step in one piece."""
        return Chunk(tuple(nests), tuple(traffic), ZERO, Fraction(1), sum(nest.length for nest in nests))


@dataclass(frozen=True)
class StepTimes:
    """The parts of a step in femtoseconds, by name."""

    parts: tuple[tuple[str, int], ...]
    """All but transfers."""
    busiest: tuple[str, int] | None
    """The unit that works longest."""
    waits: tuple[tuple[str, int], ...]
    """What else limits the units, the shortest first."""
    chain: tuple[tuple[str, int], ...]
    delays: tuple[tuple[str, int], ...]
    work_fs: int
    chain_fs: int
    transfers: tuple[tuple[Transfer, int, int], ...]
    """Each with its duration and how much earlier it can begin."""


@dataclass(frozen=True)
class StepCost:
    """The parts of a step, or of a piece of it."""

    compute: tuple[CostPart, ...]
    """Units, ports, issue and the link to the first level, all at the same time."""
    chain: tuple[CostPart, ...]
    """Operations that wait for each other, one after the other; as a whole at the same time as `compute`."""
    delays: tuple[CostPart, ...]
    """What nothing overlaps with."""
    transfers: tuple[Transfer, ...]

    @cached_property
    def work_cycles(self) -> Cycles:
        """How long units, ports and issue are at work, delays counted in."""
        return max((part.cycles for part in self.compute), default=ZERO) + _total(self.delays)

    @cached_property
    def chain_cycles(self) -> Cycles:
        """How long it takes at least because operations wait for each other."""
        return _total(self.chain) + _total(self.delays)

    def times(self, to_fs: ToFs) -> StepTimes:
        """The same in femtoseconds; kept as well."""
        known: StepTimes | None = self.__dict__.get("_times")
        if known is None:
            known = self.__dict__["_times"] = self._in_fs(to_fs)
        return known

    def _in_fs(self, to_fs: ToFs) -> StepTimes:
        def named(parts: Sequence[CostPart]) -> tuple[tuple[str, int], ...]:
            return tuple((part.name, part.fs(to_fs)) for part in parts)

        def length(part: CostPart) -> tuple[int, Cycles]:
            return part.fs(to_fs), part.cycles

        busiest = max((part for part in self.compute if part.busy), key=length, default=None)
        waits = sorted((part for part in self.compute if not part.busy), key=length)
        chain, delays = named(self.chain), named(self.delays)
        return StepTimes(
            parts=(*named(self.compute), *chain, *delays),
            busiest=None if busiest is None else (busiest.name, busiest.fs(to_fs)),
            waits=named(waits),
            chain=chain,
            delays=delays,
            work_fs=to_fs(self.work_cycles),
            chain_fs=to_fs(self.chain_cycles),
            transfers=tuple((each, to_fs(each.cycles), to_fs(each.lead_cycles)) for each in self.transfers),
        )


SHORT_RUN = "short run"
"""Lines from far away in runs that end before a prefetcher has found out about them."""


@dataclass(frozen=True)
class Misses:
    """Misses of one level: how many, and how many of them are outstanding at once."""

    counts: tuple[tuple[int, Fraction], ...]

    def cycles(self, latency: Cycles, *, first: bool) -> Cycles:
        """Latency of the next level over the misses that are outstanding at once.

        Nothing overlaps with the first miss of a step, so a step that begins with misses takes the latency at least.
        """
        total = sum((count * latency / parallel for count, parallel in self.counts), ZERO)
        return max(total, latency) if total and first else total

    @property
    def ahead(self) -> Fraction:
        """The share of them that can be under way before the first instruction that needs one is reached.

        These are as many as are outstanding at once: what the MSHRs hold of a stream that a prefetcher follows, and as
        far as the window reaches of jumps.
        """
        if not self.counts:
            return ZERO
        held = max(min(Fraction(count), parallel) for count, parallel in self.counts)
        return held / sum(count for count, _ in self.counts)


def _in_matrices(issued: Instructions, matrix: MatrixSpec) -> Instructions:
    """The same work with matrix instructions: operands and sums move in the pieces they take, loops in steps of k."""
    piece = min(matrix.m * matrix.k, matrix.k * matrix.n)
    fewer = {"fma": matrix.macs, "load": piece, "store": matrix.m * matrix.n, "other": matrix.k}
    return replace(issued, **{name: -(-getattr(issued, name) // by) for name, by in fewer.items()})


@dataclass(frozen=True)
class Shared:
    """What some work takes, spread evenly over its accesses."""

    units: tuple[CostPart, ...]
    chain: tuple[CostPart, ...]
    loop_start: CostPart

    @cached_property
    def busy(self) -> Cycles:
        """How long units and ports are at work."""
        return max((part.cycles for part in self.units), default=ZERO)

    def scaled(self, share: Fraction) -> Shared:
        """A share of each."""
        units, chain = (tuple(part.scaled(share) for part in parts) for parts in (self.units, self.chain))
        return Shared(units, chain, self.loop_start.scaled(share))


@dataclass(frozen=True)
class Late:
    """What the misses of a cache take at the level behind it."""

    cycles: Cycles
    """Latency over what is outstanding at once."""
    fresh: Cycles
    every: Cycles
    """Fills of the busiest set that follow each other: of lines that are not there yet, and of all."""
    banks: Cycles
    """Lines that follow each other out of the busiest bank of the level."""
    ahead: Fraction
    """The share that can be under way before it is needed."""


def _short_lines(inner: CacheSpec, nests: Sequence[Nest], missed: Sequence[tuple[int, ...]]) -> int:
    """Lines that a cache misses in streams shorter than a page."""
    lines = 0
    for nest, row in zip(nests, missed, strict=True):
        for access, misses, stream in zip(nest.accesses, row, followed(nest, inner.line), strict=False):
            if misses and stream and not access.write and run_bytes(nest, access) < PAGE_BYTES:
                lines += misses
    return lines


def _total(parts: Sequence[CostPart]) -> Cycles:
    return sum((part.cycles for part in parts), ZERO)


def core_spec(machine: MachineSpec) -> CpuSpec:
    """The core of a machine, which has to have one."""
    unit = machine.compute[0]
    if not isinstance(unit, CpuSpec):
        raise InputError(f"machine {machine.name} has no CPU core to run a kernel on: its {unit.name} is a {unit.kind}")
    return unit


class CpuCore:
    """One kind of core of a machine."""

    def __init__(self, machine: MachineSpec, unit: CpuSpec, registers_needed: int = 0) -> None:
        self.unit = unit
        self.clock_hz = machine.clock_hz(unit.clock)
        self.caches = machine.caches
        self.registers = next((level for level in machine.memory if isinstance(level, RegistersSpec)), None)
        self.dram = next(level for level in machine.memory if isinstance(level, DramSpec))
        self.registers_needed = registers_needed
        self._file = RegisterFile(self.registers) if self.registers else None
        self.spilled = self._spills(1, vector=unit.simd is not None).values
        self._machine = machine
        self._levels: tuple[CacheSpec | DramSpec, ...] = (*self.caches, self.dram)
        self._near = self.caches[0] if self.caches and self.caches[0].shared_by == 1 else None
        self._one_at_a_time = {self.dram.name, *(cache.name for cache in self.caches if not cache.dual_port)}
        self._issued: dict[Work, Instructions] = {}
        self._flights: dict[Work, Fraction] = {}
        self._shares: dict[tuple[Work, int, int], Shared] = {}
        self._rates: dict[tuple[str, int], Fraction | None] = {}
        self._latencies: dict[str, Cycles] = {}
        self._windows: dict[object, tuple[WindowLines, ...]] = {}
        self._pages: dict[object, float] = {}
        self._reads: dict[str, Fraction | None] = {}
        self._known: dict[object, tuple[tuple[Nest, ...], Any]] = {}
        """Costs and parts of them, by work and by what a chunk counted; with its nests, so that no other ones get their
        identity."""

    def cost(self, work: Work, chunk: Chunk) -> StepCost:
        """What a piece of a step takes, given the work of the whole step and what the piece moved.

        Many pieces are equal in all that it depends on, but for where they are.
        """
        alike = [
            (*self._lie(nest, moved), moved.accesses) for nest, moved in zip(chunk.nests, chunk.traffic, strict=True)
        ]
        key = (
            work,
            not chunk.begin,
            *chunk.share.as_integer_ratio(),
            chunk.executions,
            *alike,
            *((moved.dram, *moved.levels.values(), *moved.misses.values()) for moved in chunk.traffic),
        )
        return self._once(key, chunk, lambda: self._cost(work, chunk, alike))

    def _once(self, key: object, chunk: Chunk, find: Callable[[], Found]) -> Found:
        """What was found before, or is now."""
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = chunk.nests, find()
        found: Found = known[1]
        return found

    def _lie(self, nest: Nest, moved: Traffic) -> tuple[object, ...]:
        """What tells nests apart: the same loops, moved to other places, are the same if all accesses to a tensor have
        moved alike, and those that miss begin in the same sets. As long as one of them lives."""
        firsts: dict[str, int] = {}
        places = [access.base - firsts.setdefault(access.tensor, access.base) for access in nest.accesses]
        names, way = self._crowding
        rows = [moved.misses[name] for name in names]
        sets = [
            access.base % (way * nest.per_byte)
            for number, access in enumerate(nest.accesses)
            if any(row[number] for row in rows)
        ]
        return id(nest.packed), *places, *sets

    @cached_property
    def _crowding(self) -> tuple[tuple[str, ...], int]:
        """The caches in which lines can crowd, and the bytes after which the sets of all of them begin anew."""
        found = [cache for n, cache in enumerate(self.caches) if self._set_refill(n) and can_crowd(cache)]
        return tuple(cache.name for cache in found), lcm(*(cache.set_count * cache.line for cache in found))

    def _cost(self, work: Work, chunk: Chunk, alike: Sequence[object]) -> StepCost:
        dependent = work.chain is not None and work.chain.op == "load"
        shared = self._shared(work, chunk.share)
        chain = self._load_chain(work, chunk) if dependent else (*shared.chain, *self._reloads(work, chunk))
        compute = self._compute(shared.units, chunk)
        busy = max(shared.busy, compute[-1].cycles) if len(compute) > len(shared.units) else shared.busy
        return StepCost(
            compute=compute,
            chain=chain,
            delays=(shared.loop_start, self._short_runs(chunk, alike, max(ZERO, _total(chain) - busy))),
            transfers=self._transfers(work, chunk, alike, None if dependent else busy),
        )

    def _shared(self, work: Work, share: Fraction) -> Shared:
        """What a share of some work takes, whatever it moves."""
        key = work, share.numerator, share.denominator
        known = self._shares.get(key)
        if known is not None:
            return known
        if share == 1:
            start = self.unit.vector_loop_start if work.lanes > 1 else self.unit.loop_start
            loop_start = CostPart("loop start", Fraction(start * work.loop_starts))
            known = Shared(self._units(work), self._chain(work), loop_start)
        else:
            known = self._shared(work, Fraction(1)).scaled(share)
        if len(self._shares) >= MOST_KNOWN:
            self._shares.clear()
        self._shares[key] = known
        return known

    def peak_flops_per_cycle(self, fmt: Format) -> Fraction:
        """Additions and multiplications that all ports together can start in a cycle."""
        lanes = Fraction(lanes_of(self.unit, fmt), self.unit.simd.passes if self.unit.simd else 1)
        ports = self.unit.ports
        fused = 2 * ports.fma * (self.unit.matrix.macs if self.unit.matrix else 1)
        return lanes * self.format_rate(fmt.name) * (fused if ports.fma else ports.add + ports.mul)

    def format_rate(self, name: str) -> Fraction:
        """Share of its operations per cycle that the core reaches in a format."""
        found = self.unit.formats.get(name, 1)
        return Fraction(found.rate if isinstance(found, CoreFormatSpec) else found).limit_denominator(1 << 16)

    def issued(self, work: Work) -> Instructions:
        """The instructions of a step as this core issues them.

        Without fused multiply-add, two for one; a matrix instruction does many. A value that has no register is loaded
        and stored again in every iteration of the innermost loop; a chain or, without one, loop control tells how
        many there are.
        """
        known = self._issued.get(work)
        if known is None:
            known = self._issued[work] = self._issue(work)
        return known

    def _issue(self, work: Work) -> Instructions:
        iterations = work.sums * work.chain.length if work.chain else work.instructions.other // 2
        spills = self._spills(iterations, vector=work.lanes > 1)
        issued = work.instructions + Instructions(load=spills.loads, store=spills.stores)
        if self.unit.matrix is not None and issued.fma:
            issued = _in_matrices(issued, self.unit.matrix)
        if not self.unit.ports.fma:
            issued += Instructions(fma=-issued.fma, mul=issued.fma, add=issued.fma)
        return issued

    def fetched(self, work: Work) -> int:
        """Instructions that are fetched and decoded; of a core with long ones, as many as start all the parts."""
        if not self.unit.vliw:
            return self.issued(work).total
        return ceil(max((part.cycles for part in self._units(work)), default=ZERO))

    def _spills(self, iterations: int, *, vector: bool) -> Spills:
        """Values that find no register, each used and changed in every iteration; a wide vector takes several."""
        if self._file is None:
            return Spills()
        each = -(-self.unit.simd.bits // self._file.spec.bits) if vector and self.unit.simd else 1
        return self._file.spills(self.registers_needed * each, iterations, iterations)

    def latency_cycles(self, level: CacheSpec | DramSpec) -> Cycles:
        """Load-to-use time of a level in cycles of this core, whatever clock the level runs at."""
        known = self._latencies.get(level.name)
        if known is None:
            known = level.latency.seconds(self._clock_of(level)) * self.clock_hz if level.latency else ZERO
            self._latencies[level.name] = known
        return known

    def mshrs(self, cache: CacheSpec) -> int:
        """Misses of a cache that may be outstanding at once; if not said, what the next level's bandwidth needs."""
        if cache.mshrs is not None:
            return cache.mshrs
        further = self._levels[self.caches.index(cache) + 1]
        rate = self.read_rate(further)
        return (
            FEWEST_MSHRS if rate is None else max(FEWEST_MSHRS, ceil(rate * self.latency_cycles(further) / cache.line))
        )

    @cached_property
    def reach_cycles(self) -> Cycles:
        """How far the core runs ahead of itself at most: until all that can be in flight has arrived."""
        times = [ZERO]
        for inner, outer in zip(self._levels, self._levels[1:], strict=False):
            assert isinstance(inner, CacheSpec)
            times += [self.latency_cycles(outer), self._over(self.mshrs(inner) * inner.line, self.read_rate(outer))]
        return max(times)

    # Compute ----------------------------------------------------------------------------------------------------------

    def _compute(self, units: tuple[CostPart, ...], chunk: Chunk) -> tuple[CostPart, ...]:
        """Units and ports, and the link to the first level."""
        if self._near is None:
            return units
        near = CostPart(self._link(0), self.bandwidth_cycles(self._near, *self._bytes(self._near, chunk.traffic)))
        return (*units, near) if near.cycles else units

    def _units(self, work: Work) -> tuple[CostPart, ...]:
        """Operations over ports, and instructions over issue slots."""
        count, ports = self.issued(work), self.unit.ports
        multipliers, rate = max(ports.fma, ports.mul), self.format_rate(work.fmt)
        special = Fraction(self.unit.special_interval).limit_denominator(1 << 16)
        if work.lanes > 1 and self.unit.simd:
            rate /= self.unit.simd.passes
        parts = [
            CostPart("fma", Fraction(count.fma + count.mul, multipliers) / rate, busy=True),
            CostPart("add", Fraction(count.add, ports.add) / rate, busy=True),
            CostPart("special", count.special * special / ports.special / rate, busy=True),
            CostPart("load port", Fraction(count.load, ports.load)),
            CostPart("store port", Fraction(count.store, ports.store)),
            CostPart("issue", Fraction(count.total, self.unit.issue_width)),
        ]
        return tuple(part for part in parts if part.cycles)

    def _chain(self, work: Work) -> tuple[CostPart, ...]:
        """Each link waits for the one before; the window lets the first links of the next sum start meanwhile."""
        if work.chain is None or work.chain.op == "load":
            return ()
        return (CostPart("dependency chain", self._chain_cycles(work, work.chain)),)

    def _chain_cycles(self, work: Work, chain: Chain) -> Cycles:
        sums = work.sums
        length = self._links(chain)
        per_link = Fraction(max(1, self.issued(work).total), sums * length)
        first = self._operand_latency(work, chain) * (sums if self.unit.window == 1 else 1)
        return sums * self._waited(work, length, per_link, self._op_latency(chain, work.fmt)) + first

    def _waited(self, work: Work, links: int, per_link: Fraction, latency: int) -> Cycles:
        """How long links take that wait for each other, of which the window lets some overlap with other chains.

        A chain much shorter than the window is hidden, and of a long one what the window holds. Where both are about as
        long, the window ends inside a chain now and then: measured scalar sums follow the root of the squares.
        """
        window = self.in_flight(work)
        hidden = ZERO
        if window > 1:
            shorter = 1 / sqrt(float(links) ** -2 + float(window / per_link) ** -2)
            hidden = min(Fraction(links), Fraction(round(shorter * PARTS), PARTS))
        return (links - hidden) * latency + hidden * per_link / self.unit.issue_width

    def in_flight(self, work: Work) -> Fraction:
        """Instructions in flight at once: what the reorder buffer holds, and no more loads than their queue does."""
        known = self._flights.get(work)
        if known is None:
            issued, queue = self.issued(work), self.unit.load_queue
            known = Fraction(self.unit.window)
            if queue and issued.load:
                known = min(known, Fraction(queue * issued.total, issued.load))
            self._flights[work] = known
        return known

    def _reloads(self, work: Work, chunk: Chunk) -> tuple[CostPart, ...]:
        """Sums that go through memory: each addition waits for the store before it to be forwarded.

        So does the multiplication before it, where its operand seems to lie where the sum was stored.
        """
        if work.chain is not None or not (work.instructions.fma or work.instructions.add):
            return ()
        latency = self.unit.latency
        summed = latency.fma if work.instructions.fma and self.unit.ports.fma else latency.add
        spread = self._per_iteration(work, chunk)
        cycles = ZERO
        for nest, moved in zip(chunk.nests, chunk.traffic, strict=True):
            reload = find_reload(nest) if nest.length else None
            if reload is not None:
                late = latency.mul if self.unit.alias and aliases(nest, self.unit.alias) else 0
                waited = self._waited(work, reload.links, spread * reload.inside, latency.forward + late + summed)
                cycles += reload.sums * waited * Fraction(moved.accesses, nest.length)
        return (CostPart("store forwarding", cycles),) if cycles else ()

    def _per_iteration(self, work: Work, chunk: Chunk) -> Fraction:
        """Instructions of one iteration of the innermost loop, on average."""
        accesses = sum(nest.length for nest in chunk.nests)
        iterations = sum(prod(nest.trips) for nest in chunk.nests)
        total = Fraction(max(1, self.issued(work).total) * max(1, accesses), max(1, chunk.executions))
        return total / max(1, iterations)

    def _operand_latency(self, work: Work, chain: Chain) -> int:
        """Cycles until the first operand of a sum is there: a product, an exponential."""
        issued, latency = self.issued(work), self.unit.latency
        made = [latency.mul] if issued.mul else []
        made += [latency.special] if issued.special else []
        return sum(made) if chain.op in ("fma", "add") else 0

    def _links(self, chain: Chain) -> int:
        """Instructions that wait for each other: a matrix instruction sums several products at once."""
        summed = self.unit.matrix.k if self.unit.matrix and chain.op == "fma" else 1
        return -(-chain.length // summed)

    def _load_chain(self, work: Work, chunk: Chunk) -> tuple[CostPart, ...]:
        """Loads whose addresses come from the load before: each waits for the level that has its line."""
        assert work.chain is not None
        nearest = self._levels[0]
        loads = work.chain.length * work.sums * chunk.share
        parts = [CostPart(f"latency of {nearest.name}", loads * self.latency_cycles(nearest))]
        for inner, outer in zip(self._levels, self._levels[1:], strict=False):
            misses = sum(sum(each.misses[inner.name]) for each in chunk.traffic)
            further = self._arrival(outer, chunk.traffic) - self.latency_cycles(inner)
            parts.append(CostPart(f"latency of {outer.name}", misses * further))
        return tuple(part for part in parts if part.cycles)

    def _arrival(self, level: CacheSpec | DramSpec, traffic: Sequence[Traffic]) -> Cycles:
        """Core cycles until a load that waits for nothing else has its data; main memory's depend on its open rows."""
        if not isinstance(level, DramSpec) or level.latency_of == "any":
            return self.latency_cycles(level)
        hits, misses, conflicts = (
            sum(getattr(each.dram, name) for each in traffic) for name in ("row_hits", "row_misses", "row_conflicts")
        )
        return level.mean_latency(hits, misses, conflicts, self._clock_of(level)) * self.clock_hz

    def _op_latency(self, chain: Chain, fmt: str) -> int:
        adds = chain.op == "add" or (chain.op == "fma" and not self.unit.ports.fma)
        if adds:
            return self.unit.latency.integer if fmt.startswith("int") else self.unit.latency.add
        return int(getattr(self.unit.latency, chain.op))

    # Memory -----------------------------------------------------------------------------------------------------------

    def _transfers(
        self, work: Work, chunk: Chunk, alike: Sequence[object], busy: Cycles | None
    ) -> tuple[Transfer, ...]:
        """One transfer per link, from the nearest to main memory; a private first level is a part of the core.

        `busy` is how long units and ports are at work; None where loads wait for each other instead."""
        moved = []
        traffic = chunk.traffic
        for number, level in enumerate(self._levels):
            if level is self._near:
                continue
            main = level is self.dram
            read, written = self._bytes(level, traffic)
            rows = self._row_cycles(traffic) if main else ZERO
            cycles = max(rows, self.bandwidth_cycles(level, read, written))
            ahead = ZERO
            if number > 0 and busy is not None:
                late = self._late(number, work, chunk, alike)
                refill = late.fresh
                if refill and self.unit.overlap == "full":
                    refill = min(busy + refill, late.every)
                cycles = max(cycles, late.cycles, late.banks, refill)
                ahead = late.ahead
            shared = ZERO
            if main or level.shared_by != 1:
                shared = max(rows, self.instance_cycles(level, read, written)) * (
                    self._rate(level, level.bandwidth) or 0
                )
            if cycles or shared:
                moved.append(Transfer(self._link(number), level.name, cycles, shared, cycles * ahead))
        pages = self._page_cycles(chunk)
        if pages:
            moved.append(Transfer(TRANSLATION, "tlb", pages, 0))
        return tuple(moved)

    def _late(self, number: int, work: Work, chunk: Chunk, alike: Sequence[object]) -> Late:
        """What the misses of the cache before a level take; equal ones are asked for again and again."""
        inner = self.caches[number - 1]
        rows = [each.misses[inner.name] for each in chunk.traffic]
        first = not chunk.begin
        key = number, work, first, chunk.executions, *alike, *rows

        def find() -> Late:
            misses = self._misses(inner, work, chunk)
            cycles = misses.cycles(self.latency_cycles(self._levels[number]), first=first)
            return Late(cycles, *self._refill_cycles(number - 1, work, chunk), misses.ahead)

        return self._once(key, chunk, find)

    def _page_cycles(self, chunk: Chunk) -> Cycles:
        """Translations that the TLB does not hold, looked up one after the other."""
        tlb = self.unit.tlb
        if tlb is None:
            return ZERO
        missed = 0.0
        for nest, moved in zip(chunk.nests, chunk.traffic, strict=True):
            key = nest.trips, tuple(access.strides for access in nest.accesses)
            if key not in self._pages:
                if len(self._pages) >= MOST_KNOWN:
                    self._pages.clear()
                self._pages[key] = estimate_page_misses(nest, tlb.entries, tlb.page)
            missed += self._pages[key] * moved.accesses / max(1, nest.length)
        return Fraction(round(missed * tlb.miss * PARTS), PARTS)

    def _short_runs(self, chunk: Chunk, alike: Sequence[object], hidden: Cycles) -> CostPart:
        """How long the core waits for lines that come from behind the second cache in runs shorter than a page.

        The window hides what the second cache takes, and a prefetcher what comes in a long stream; it finds out about a
        short one when most of it has passed. Instructions and such lines add up; operations that wait for each other
        hide them.
        """
        cycles = ZERO
        if self.unit.overlap == "full":
            for inner, level in zip(self.caches[1:], self._levels[2:], strict=False):
                rows = [each.misses[inner.name] for each in chunk.traffic]
                lines = self._once((inner.name, *alike, *rows), chunk, partial(_short_lines, inner, chunk.nests, rows))
                cycles = max(cycles, self._over(lines * inner.line, self.read_rate(level)))
        return CostPart(SHORT_RUN, max(ZERO, cycles - hidden))

    def _refill_cycles(self, number: int, work: Work, chunk: Chunk) -> tuple[Cycles, Cycles, Cycles]:
        """How long the busiest set of a cache is being filled: its fills follow each other. With the lines that are
        there, and as if none were; and how long the busiest bank of the next level gives its lines.

        Loads wait in a queue, those of one line together. When it is full, the core waits until the lines have come,
        and then goes on: fills and instructions add up, unless even without the lines that are there, fills take less.
        """
        cache, refill = self.caches[number], self._set_refill(number)
        if not refill or not can_crowd(cache):
            return ZERO, ZERO, ZERO
        banks, interval = self._banks(self._levels[number + 1])
        fresh = every = bank = ZERO
        for nest, moved in zip(chunk.nests, chunk.traffic, strict=True):
            missed = moved.misses[cache.name]
            if not any(missed):
                continue
            share = Fraction(moved.accesses, nest.length)
            ahead = followed(nest, cache.line)
            iterations = self._waiting(work, chunk, nest, missed, ahead, share)
            windows = self._windows_of(nest, tuple(map(bool, missed[: len(nest.accesses)])), iterations, cache)
            often = prod(nest.trips) * share / iterations
            beyond = missed if cache is self.caches[-1] else moved.misses[self.caches[number + 1].name]
            fills = crowded(nest, windows, missed, ahead, share, cache, banks, beyond)
            fresh += Fraction(round(fills.fresh * PARTS), PARTS) * often
            every += Fraction(round(fills.every * PARTS), PARTS) * often
            bank += Fraction(round(fills.bank * PARTS), PARTS) * often
        return fresh * refill, every * refill, bank * interval

    def _banks(self, level: CacheSpec | DramSpec) -> tuple[int, Cycles]:
        """Banks of a level that lines come from in turn, and the cycles between two lines of one."""
        if not isinstance(level, CacheSpec) or level.banks is None or level.bank_interval is None:
            return 1, ZERO
        return level.banks, level.bank_interval.seconds(self._clock_of(level)) * self.clock_hz

    def _waiting(
        self, work: Work, chunk: Chunk, nest: Nest, missed: Sequence[int], ahead: Sequence[bool], share: Fraction
    ) -> int:
        """Iterations of the innermost loop whose loads wait together: what is in flight, and as many misses as wait."""
        iterations = self.in_flight(work) / self._per_iteration(work, chunk)
        rows = zip(nest.accesses, missed, ahead, strict=False)
        jumps = sum(count for access, count, stream in rows if not stream and not access.write)
        if self.unit.waiting_loads and jumps:
            iterations = min(iterations, self.unit.waiting_loads * prod(nest.trips) * share / jumps)
        return max(1, int(iterations))

    def _set_refill(self, number: int) -> Cycles:
        cache = self.caches[number]
        if cache.set_refill is not None:
            return cache.set_refill.seconds(self._clock_of(cache)) * self.clock_hz
        if number or len(self.caches) == 1:  # what main memory sends waits in the MSHRs, not in front of its set
            return ZERO
        return max(ZERO, self.latency_cycles(self._levels[1]) - self.latency_cycles(cache))

    def _windows_of(
        self, nest: Nest, missed: tuple[bool, ...], iterations: int, cache: CacheSpec
    ) -> tuple[WindowLines, ...]:
        """The lines that each access touches in one window; of nests that lie alike in the sets, asked once."""
        way = cache.set_count * cache.line * nest.per_byte
        places = tuple((access.base % way, access.strides, id(access.table)) for access in nest.accesses)
        key = cache.name, iterations, nest.trips, places, missed
        known = self._windows.get(key)
        if known is None:
            if len(self._windows) >= MOST_KNOWN:
                self._windows.clear()
            known = self._windows[key] = window_lines(nest, missed, iterations, cache)
        return known

    def _link(self, number: int) -> str:
        """The name of the link from a level to the one nearer the core."""
        if number > 0:
            return f"{self._levels[number].name}→{self._levels[number - 1].name}"
        return f"{self._levels[0].name}→{self.registers.name if self.registers else self.unit.name}"

    def _bytes(self, level: CacheSpec | DramSpec, traffic: Sequence[Traffic]) -> tuple[int, int]:
        counters = [each.dram if level is self.dram else each.levels[level.name] for each in traffic]
        return sum(each.bytes_read for each in counters), sum(each.bytes_written for each in counters)

    def bandwidth_cycles(self, level: CacheSpec | DramSpec, read: int, written: int) -> Cycles:
        """A cache with two ports reads and writes at the same time; DRAM has one bus for both."""
        reading = self._over(read, self.read_rate(level))
        writing = self._over(written, self.write_rate(level))
        return reading + writing if level.name in self._one_at_a_time else max(reading, writing)

    def instance_cycles(self, level: CacheSpec | DramSpec, read: int, written: int) -> Cycles:
        """The same for the level itself, whatever a single core can draw from it."""
        reading = self._over(read, self._rate(level, level.bandwidth))
        writing = self._over(written, self._rate(level, level.write_bandwidth or level.bandwidth))
        return reading + writing if level.name in self._one_at_a_time else max(reading, writing)

    def read_rate(self, level: CacheSpec | DramSpec) -> Fraction | None:
        """Bytes per core cycle that this core can draw from a level; None without a limit."""
        if level.name not in self._reads:
            rates = [self._rate(level, limit) for limit in (level.bandwidth, level.unit_bandwidth)]
            self._reads[level.name] = min((rate for rate in rates if rate is not None), default=None)
        return self._reads[level.name]

    def write_rate(self, level: CacheSpec | DramSpec) -> Fraction | None:
        if level.write_bandwidth is None:
            return self.read_rate(level)
        return self._rate(level, level.write_bandwidth)

    def _rate(self, level: CacheSpec | DramSpec, bandwidth: Bandwidth | None) -> Fraction | None:
        """Bytes per core cycle of a bandwidth of a level."""
        key = level.name, id(bandwidth)
        if key not in self._rates:
            hz = self._clock_of(level)
            rate = bandwidth.bytes_per_cycle(hz) if bandwidth else None
            self._rates[key] = None if rate is None else rate * hz / self.clock_hz
        return self._rates[key]

    def _over(self, nbytes: int, rate: Fraction | None) -> Cycles:
        return nbytes / rate if rate and nbytes else ZERO

    def _row_cycles(self, traffic: Sequence[Traffic]) -> Cycles:
        """Every activation holds its bank for a row cycle; all banks work side by side, but for their refreshes.

        A row stays open as long as the device demands, and at least until its column has been read.
        """
        activates = sum(each.dram.activates for each in traffic)
        return activates * self._activate_cycles if activates else ZERO

    @cached_property
    def _activate_cycles(self) -> Cycles:
        """One activation, with all banks at work."""
        dram, timing = self.dram, self.dram.timing
        if timing is None:
            return ZERO
        hz = self._machine.clock_hz(dram.clock)
        read = timing.trcd.seconds(hz) + timing.cl.seconds(hz)
        row_cycle = max(timing.tras.seconds(hz), read) + timing.trp.seconds(hz)
        available = 1 - timing.trfc.seconds(hz) / timing.trefi.seconds(hz)
        return row_cycle * self.clock_hz / (dram.channels * dram.ranks * dram.banks * available)

    def _misses(self, inner: CacheSpec, work: Work, chunk: Chunk) -> Misses:
        """The misses of a level that are waited for, in streams and in jumps, and how many are outstanding at once.

        A store that goes on to the next level without bringing its line in is sent off and not waited for.
        """
        spread = Fraction(max(work.instructions.total, 1), max(1, chunk.executions))
        window = self.in_flight(work)
        found = []
        for nest, moved in zip(chunk.nests, chunk.traffic, strict=True):
            waited = [
                (access, misses, stream)
                for access, misses, stream in zip(
                    nest.accesses, moved.misses[inner.name], followed(nest, inner.line), strict=False
                )
                if misses and (inner.write_allocate or not access.write)
            ]
            streamed = sum(misses for _, misses, stream in waited if stream)
            jumping = sum(misses for _, misses, stream in waited if not stream)
            if streamed:
                found.append((streamed, self._followed(inner)))
            if jumping:
                looked_up = any(access.table is not None for access in nest.accesses)
                jumps = tuple(access for access, _, stream in waited if not stream)
                reach = max(Fraction(jumping, max(1, moved.accesses)), burst(nest, jumps, window / spread))
                found.append((jumping, self._parallel(inner, window / spread * reach, looked_up)))
        return Misses(tuple(found))

    def _followed(self, inner: CacheSpec) -> Fraction:
        """How many misses of a stream overlap: what the caches on the way allow, but for the first, which prefetchers
        pass by."""
        nearer = self.caches[1 : self.caches.index(inner) + 1] or (inner,)
        return Fraction(min(self.mshrs(level) for level in nearer))

    def _parallel(self, inner: CacheSpec, reach: Fraction, looked_up: bool) -> Fraction:
        """How many jumps overlap: what the caches allow, and as many as the window reaches.

        Where the machine says how many of equal steps overlap, a prefetcher follows these as far as that.
        """
        nearer = self.caches[: self.caches.index(inner) + 1]
        outstanding = Fraction(min(self.mshrs(level) for level in nearer))
        if inner.strided_misses is not None and self.unit.window > 1:
            strided = min(outstanding, Fraction(inner.strided_misses))
            return max(Fraction(1), min(strided, reach)) if looked_up else strided
        return max(Fraction(1), min(outstanding, reach))

    def _clock_of(self, level: CacheSpec | DramSpec) -> int:
        return self._machine.clock_hz(level.clock)
