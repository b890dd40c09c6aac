"""CpuCore: what a step costs on a core, in cycles, part by part. No clock, no waiting for others.

Compute is bound by the units (operations over ports), by issue, by the load and store ports, and by chains of
dependent operations, of which the window of an out-of-order core hides the beginning. Memory is bound, at every level,
by bytes over bandwidth and by the latency of the next level over the number of misses that can be outstanding at once;
crowded sets and unknown pages take their time beside these (`hazards.py`). Sums in memory, short rows of C for
instance, wait at each addition until the store before it has been forwarded to the load.
Which parts run at the same time is the machine's `overlap`; the engine adds them up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, prod, sqrt
from typing import Any, TypeVar

from hwsim.errors import InputError
from hwsim.memory.hierarchy import Traffic
from hwsim.numerics.format import Format
from hwsim.spec.machine import CacheSpec, DramSpec, MachineSpec, RegistersSpec
from hwsim.targets.cpu.hazards import MOST_KNOWN, PARTS, MissCosts
from hwsim.targets.cpu.spec import CoreFormatSpec, CpuSpec, MatrixSpec, RegisterFile, Spills, lanes_of
from hwsim.targets.cpu.tally import ZERO, Chunk, CostPart, Cycles, StepCost, Transfer, total
from hwsim.trace.nest import Chain, Instructions, Nest, Work
from hwsim.units import Bandwidth

Found = TypeVar("Found")

FEWEST_MSHRS = 16
"""Misses that any cache is taken to have outstanding, if nothing is said."""
TRANSLATION = "address translation"


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
class Reload:
    """A sum that goes through memory: so many times, each of `links` additions with `inside` iterations between."""

    sums: int
    links: int
    inside: int


def find_reload(nest: Nest) -> Reload | None:
    """The innermost loop whose every iteration loads what the one before has stored; None without such a loop."""
    found = []
    stored = {(a.tensor, a.base, a.strides) for a in nest.accesses if a.write and a.depth == nest.depth}
    for access in nest.accesses:
        if access.write or access.table is not None or (access.tensor, access.base, access.strides) not in stored:
            continue
        for loop in reversed(range(nest.depth)):
            if access.strides[loop] == 0 and nest.trips[loop] > 1:
                found.append(Reload(prod(nest.trips[:loop]), nest.trips[loop], prod(nest.trips[loop + 1 :])))
                break
    return min(found, key=lambda reload: reload.inside, default=None)


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
        self.levels: tuple[CacheSpec | DramSpec, ...] = (*self.caches, self.dram)
        self._near = self.caches[0] if self.caches and self.caches[0].shared_by == 1 else None
        self._one_at_a_time = {self.dram.name, *(cache.name for cache in self.caches if not cache.dual_port)}
        self._issued: dict[Work, Instructions] = {}
        self._flights: dict[Work, Fraction] = {}
        self._shares: dict[tuple[Work, int, int], Shared] = {}
        self._rates: dict[tuple[str, int], Fraction | None] = {}
        self._latencies: dict[str, Cycles] = {}
        self._reads: dict[str, Fraction | None] = {}
        self.misses = MissCosts(self)
        self._known: dict[object, tuple[tuple[Nest, ...], Any]] = {}
        """Costs and parts of them, by work and by what a chunk counted; with its nests, so that no other ones get their
        identity."""

    def cost(self, work: Work, chunk: Chunk) -> StepCost:
        """What a piece of a step takes, given the work of the whole step and what the piece moved.

        Many pieces are equal in all that it depends on, but for where they are.
        """
        alike = [
            (*self.misses.lie(nest, moved), moved.accesses)
            for nest, moved in zip(chunk.nests, chunk.traffic, strict=True)
        ]
        key = (
            work,
            not chunk.begin,
            *chunk.share.as_integer_ratio(),
            chunk.executions,
            *alike,
            *((moved.dram, *moved.levels.values(), *moved.misses.values()) for moved in chunk.traffic),
        )
        return self.once(key, chunk, lambda: self._cost(work, chunk, alike))

    def once(self, key: object, chunk: Chunk, find: Callable[[], Found]) -> Found:
        """What was found before, or is now."""
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = chunk.nests, find()
        found: Found = known[1]
        return found

    def _cost(self, work: Work, chunk: Chunk, alike: Sequence[object]) -> StepCost:
        dependent = work.chain is not None and work.chain.op == "load"
        shared = self._shared(work, chunk.share)
        chain = self._load_chain(work, chunk) if dependent else (*shared.chain, *self._reloads(work, chunk))
        compute = self._compute(shared.units, chunk)
        busy = max(shared.busy, compute[-1].cycles) if len(compute) > len(shared.units) else shared.busy
        return StepCost(
            compute=compute,
            chain=chain,
            delays=(shared.loop_start, self.misses.short_runs(chunk, alike, max(ZERO, total(chain) - busy))),
            transfers=self._transfers(work, chunk, alike, None if dependent else busy),
        )

    def _shared(self, work: Work, share: Fraction) -> Shared:
        """What a share of some work takes, whatever it moves."""
        key = work, share.numerator, share.denominator
        known = self._shares.get(key)
        if known is not None:
            return known
        if share == 1:
            known = Shared(self._units(work), self._chain(work), CostPart("loop start", self._loop_start(work)))
        else:
            known = self._shared(work, Fraction(1)).scaled(share)
        if len(self._shares) >= MOST_KNOWN:
            self._shares.clear()
        self._shares[key] = known
        return known

    def _loop_start(self, work: Work) -> Cycles:
        """What the starts of innermost loops take."""
        each = self.unit.vector_loop_start if work.lanes > 1 else self.unit.loop_start
        return Fraction(each * work.loop_starts)

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
            known = level.latency.seconds(self.clock_of(level)) * self.clock_hz if level.latency else ZERO
            self._latencies[level.name] = known
        return known

    def mshrs(self, cache: CacheSpec) -> int:
        """Misses of a cache that may be outstanding at once; if not said, what the next level's bandwidth needs."""
        if cache.mshrs is not None:
            return cache.mshrs
        further = self.levels[self.caches.index(cache) + 1]
        rate = self.read_rate(further)
        return (
            FEWEST_MSHRS if rate is None else max(FEWEST_MSHRS, ceil(rate * self.latency_cycles(further) / cache.line))
        )

    @cached_property
    def reach_cycles(self) -> Cycles:
        """How far the core runs ahead of itself at most: until all that can be in flight has arrived."""
        times = [ZERO]
        for inner, outer in zip(self.levels, self.levels[1:], strict=False):
            assert isinstance(inner, CacheSpec)
            times += [self.latency_cycles(outer), self.over(self.mshrs(inner) * inner.line, self.read_rate(outer))]
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

    def _waited(self, work: Work, links: int, per_link: Fraction, latency: int, begun: Fraction | int = 0) -> Cycles:
        """How long links take that wait for each other, of which the window lets some overlap with other chains.

        A chain much shorter than the window is hidden, and of a long one what the window holds. Where both are about as
        long, the window ends inside a chain now and then: measured scalar sums follow the root of the squares. While
        inner loops begin, the core fetches nothing: the window reaches less far, by as many instructions as `begun`.
        """
        window = self.in_flight(work)
        hidden = ZERO
        if window > 1:
            shorter = 1 / sqrt(float(links) ** -2 + float(window / (per_link + begun)) ** -2)
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
        """Sums that go through memory: each addition waits for the store before it to be forwarded."""
        if work.chain is not None or not (work.instructions.fma or work.instructions.add):
            return ()
        latency = self.unit.latency
        summed = latency.fma if work.instructions.fma and self.unit.ports.fma else latency.add
        spread = self.per_iteration(work, chunk)
        cycles = ZERO
        for nest, moved in zip(chunk.nests, chunk.traffic, strict=True):
            reload = find_reload(nest) if nest.length else None
            if reload is not None:
                begun = self._loop_start(work) * self.unit.issue_width * spread / self.issued(work).total
                waited = self._waited(
                    work, reload.links, spread * reload.inside, latency.forward + summed, begun * reload.inside
                )
                cycles += reload.sums * waited * Fraction(moved.accesses, nest.length)
        return (CostPart("store forwarding", cycles),) if cycles else ()

    def per_iteration(self, work: Work, chunk: Chunk) -> Fraction:
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
        nearest = self.levels[0]
        loads = work.chain.length * work.sums * chunk.share
        parts = [CostPart(f"latency of {nearest.name}", loads * self.latency_cycles(nearest))]
        for inner, outer in zip(self.levels, self.levels[1:], strict=False):
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
        return level.mean_latency(hits, misses, conflicts, self.clock_of(level)) * self.clock_hz

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
        for number, level in enumerate(self.levels):
            if level is self._near:
                continue
            main = level is self.dram
            read, written = self._bytes(level, traffic)
            rows = self._row_cycles(traffic) if main else ZERO
            cycles = max(rows, self.bandwidth_cycles(level, read, written))
            ahead = ZERO
            if number > 0 and busy is not None:
                late = self.misses.late(number, work, chunk, alike)
                refill = late.fresh
                if refill and self.unit.overlap == "full":
                    refill = min(busy + refill, late.every)
                cycles = max(cycles, late.cycles, refill)
                ahead = late.ahead
            shared = ZERO
            if main or level.shared_by != 1:
                shared = max(rows, self.instance_cycles(level, read, written)) * (
                    self._rate(level, level.bandwidth) or 0
                )
            if cycles or shared:
                moved.append(Transfer(self._link(number), level.name, cycles, shared, cycles * ahead))
        pages = self.misses.page_cycles(chunk)
        if pages:
            moved.append(Transfer(TRANSLATION, "tlb", pages, 0))
        return tuple(moved)

    def _link(self, number: int) -> str:
        """The name of the link from a level to the one nearer the core."""
        if number > 0:
            return f"{self.levels[number].name}→{self.levels[number - 1].name}"
        return f"{self.levels[0].name}→{self.registers.name if self.registers else self.unit.name}"

    def _bytes(self, level: CacheSpec | DramSpec, traffic: Sequence[Traffic]) -> tuple[int, int]:
        counters = [each.dram if level is self.dram else each.levels[level.name] for each in traffic]
        return sum(each.bytes_read for each in counters), sum(each.bytes_written for each in counters)

    def bandwidth_cycles(self, level: CacheSpec | DramSpec, read: int, written: int) -> Cycles:
        """A cache with two ports reads and writes at the same time; DRAM has one bus for both."""
        reading = self.over(read, self.read_rate(level))
        writing = self.over(written, self.write_rate(level))
        return reading + writing if level.name in self._one_at_a_time else max(reading, writing)

    def instance_cycles(self, level: CacheSpec | DramSpec, read: int, written: int) -> Cycles:
        """The same for the level itself, whatever a single core can draw from it."""
        reading = self.over(read, self._rate(level, level.bandwidth))
        writing = self.over(written, self._rate(level, level.write_bandwidth or level.bandwidth))
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
            hz = self.clock_of(level)
            rate = bandwidth.bytes_per_cycle(hz) if bandwidth else None
            self._rates[key] = None if rate is None else rate * hz / self.clock_hz
        return self._rates[key]

    def over(self, nbytes: int, rate: Fraction | None) -> Cycles:
        return nbytes / rate if rate and nbytes else ZERO

    def _row_cycles(self, traffic: Sequence[Traffic]) -> Cycles:
        """Every activation holds its bank for a row cycle; all banks work side by side, but for their refreshes.

        A row stays open as long as the device demands, and at least until its column has been read.
        """
        activates = sum(each.dram.activates for each in traffic)
        return activates * self.activate_cycles if activates else ZERO

    @cached_property
    def activate_cycles(self) -> Cycles:
        """One activation, with all banks at work."""
        dram, timing = self.dram, self.dram.timing
        if timing is None:
            return ZERO
        hz = self._machine.clock_hz(dram.clock)
        read = timing.trcd.seconds(hz) + timing.cl.seconds(hz)
        row_cycle = max(timing.tras.seconds(hz), read) + timing.trp.seconds(hz)
        available = 1 - timing.trfc.seconds(hz) / timing.trefi.seconds(hz)
        return row_cycle * self.clock_hz / (dram.channels * dram.ranks * dram.banks * available)

    def clock_of(self, level: CacheSpec | DramSpec) -> int:
        return self._machine.clock_hz(level.clock)
