"""CpuCore: what a step costs on a core, in cycles, part by part. No clock, no waiting for others.

Compute is bound by the units (operations over ports), by issue, by the load and store ports, and by chains of
dependent operations, of which the window of an out-of-order core hides the beginning. Memory is bound, at every level,
by bytes over bandwidth and by the latency of the next level over the number of misses that can be outstanding at once.
Which parts run at the same time is the machine's `overlap`; the engine adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from hwsim.hardware.formats import lanes_of
from hwsim.hardware.hierarchy import Traffic
from hwsim.hardware.pattern import is_stream
from hwsim.hardware.registers import RegisterFile, Spills
from hwsim.numerics.format import Format
from hwsim.spec.compute import CoreFormatSpec, CpuSpec, MatrixSpec
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import CacheSpec, DramSpec, RegistersSpec
from hwsim.trace.nest import Nest
from hwsim.trace.work import Chain, Instructions, Work
from hwsim.units import Bandwidth

Cycles = Fraction

ZERO = Fraction(0)


@dataclass(frozen=True)
class Part:
    """Something that takes time by itself: a unit at work, or a resource that is waited for."""

    name: str
    cycles: Cycles
    busy: bool = False
    """Whether the core does useful work meanwhile."""


@dataclass(frozen=True)
class Transfer:
    """What a step moves over the link from a level to the one nearer the core."""

    link: str
    level: str
    cycles: Cycles
    """How long it takes when nobody else uses the link."""
    shared_bytes: Fraction | int
    """Bytes that go over a link which other cores use as well, or what takes it as long; 0 for a private one."""


@dataclass(frozen=True)
class StepCost:
    """The parts of a step."""

    compute: tuple[Part, ...]
    """Units, ports, issue and the link to the first level, all at the same time."""
    chain: tuple[Part, ...]
    """Operations that wait for each other, one after the other; as a whole at the same time as `compute`."""
    delays: tuple[Part, ...]
    """What nothing overlaps with."""
    transfers: tuple[Transfer, ...]

    @property
    def work_cycles(self) -> Cycles:
        """How long units, ports and issue are at work, delays counted in."""
        return max((part.cycles for part in self.compute), default=ZERO) + _total(self.delays)

    @property
    def chain_cycles(self) -> Cycles:
        """How long it takes at least because operations wait for each other."""
        return _total(self.chain) + _total(self.delays)


def _in_matrices(issued: Instructions, matrix: MatrixSpec) -> Instructions:
    """The same work with matrix instructions: operands and sums move in the pieces they take, loops in steps of k."""
    piece = min(matrix.m * matrix.k, matrix.k * matrix.n)
    fewer = {"fma": matrix.macs, "load": piece, "store": matrix.m * matrix.n, "other": matrix.k}
    return replace(issued, **{name: -(-getattr(issued, name) // by) for name, by in fewer.items()})


def _total(parts: Sequence[Part]) -> Cycles:
    return sum((part.cycles for part in parts), ZERO)


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
        self.spilled = self._spills(1).values
        self._machine = machine
        self._levels: tuple[CacheSpec | DramSpec, ...] = (*self.caches, self.dram)
        self._near = self.caches[0] if self.caches and self.caches[0].shared_by == 1 else None
        self._issued: dict[Work, Instructions] = {}
        self._busy: dict[Work, tuple[Part, ...]] = {}
        self._waits: dict[Work, tuple[Part, ...]] = {}
        self._rates: dict[tuple[str, int], Fraction | None] = {}
        self._latencies: dict[str, Cycles] = {}

    def cost(self, work: Work, nests: Sequence[Nest], traffic: Sequence[Traffic]) -> StepCost:
        """What a step takes, given what its nests moved."""
        dependent = work.chain is not None and work.chain.op == "load"
        start = self.unit.vector_loop_start if work.lanes > 1 else self.unit.loop_start
        return StepCost(
            compute=self._compute(work, traffic),
            chain=self._load_chain(work, traffic) if dependent else self._chain(work),
            delays=(Part("loop start", Fraction(start * work.loop_starts)),),
            transfers=self._transfers(work, nests, traffic, dependent),
        )

    def peak_flops_per_cycle(self, fmt: Format) -> Fraction:
        """Additions and multiplications that all ports together can start in a cycle."""
        lanes = lanes_of(self.unit, fmt)
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
        spills = self._spills(iterations)
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

    def _spills(self, iterations: int) -> Spills:
        """Values that find no register, each used and changed in every iteration."""
        return self._file.spills(self.registers_needed, iterations, iterations) if self._file else Spills()

    def latency_cycles(self, level: CacheSpec | DramSpec) -> Cycles:
        """Load-to-use time of a level in cycles of this core, whatever clock the level runs at."""
        known = self._latencies.get(level.name)
        if known is None:
            known = level.latency.seconds(self._clock_of(level)) * self.clock_hz if level.latency else ZERO
            self._latencies[level.name] = known
        return known

    # Compute ----------------------------------------------------------------------------------------------------------

    def _compute(self, work: Work, traffic: Sequence[Traffic]) -> tuple[Part, ...]:
        parts = self._busy.get(work)
        if parts is None:
            parts = self._busy[work] = self._units(work)
        if self._near is None:
            return parts
        near = Part(self._link(0), self.bandwidth_cycles(self._near, *self._bytes(self._near, traffic)))
        return (*parts, near) if near.cycles else parts

    def _units(self, work: Work) -> tuple[Part, ...]:
        """Operations over ports, and instructions over issue slots."""
        count, ports = self.issued(work), self.unit.ports
        multipliers, rate = max(ports.fma, ports.mul), self.format_rate(work.fmt)
        parts = [
            Part("fma", Fraction(count.fma + count.mul, multipliers) / rate, busy=True),
            Part("add", Fraction(count.add, ports.add) / rate, busy=True),
            Part("special", Fraction(count.special, ports.special) / rate, busy=True),
            Part("load port", Fraction(count.load, ports.load)),
            Part("store port", Fraction(count.store, ports.store)),
            Part("issue", Fraction(count.total, self.unit.issue_width)),
        ]
        return tuple(part for part in parts if part.cycles)

    def _chain(self, work: Work) -> tuple[Part, ...]:
        """Each link waits for the one before; the window lets the first links of the next sum start meanwhile."""
        chain = work.chain
        if chain is None:
            return ()
        if work not in self._waits:
            self._waits[work] = (Part("dependency chain", self._chain_cycles(work, chain)),)
        return self._waits[work]

    def _chain_cycles(self, work: Work, chain: Chain) -> Cycles:
        sums = work.sums
        length = self._links(chain)
        per_link = Fraction(max(1, self.issued(work).total), sums * length)
        hidden = min(Fraction(length), self.unit.window / per_link) if self.unit.window > 1 else ZERO
        exposed = (length - hidden) * self._op_latency(chain)
        return sums * (exposed + hidden * per_link / self.unit.issue_width)

    def _links(self, chain: Chain) -> int:
        """Instructions that wait for each other: a matrix instruction sums several products at once."""
        summed = self.unit.matrix.k if self.unit.matrix and chain.op == "fma" else 1
        return -(-chain.length // summed)

    def _load_chain(self, work: Work, traffic: Sequence[Traffic]) -> tuple[Part, ...]:
        """Loads whose addresses come from the load before: each waits for the level that has its line."""
        assert work.chain is not None
        nearest = self._levels[0]
        loads = work.chain.length * work.sums
        parts = [Part(f"latency of {nearest.name}", loads * self.latency_cycles(nearest))]
        for inner, outer in zip(self._levels, self._levels[1:], strict=False):
            misses = sum(sum(each.misses[inner.name]) for each in traffic)
            further = self.latency_cycles(outer) - self.latency_cycles(inner)
            parts.append(Part(f"latency of {outer.name}", misses * further))
        return tuple(part for part in parts if part.cycles)

    def _op_latency(self, chain: Chain) -> int:
        if chain.op == "fma" and not self.unit.ports.fma:
            return self.unit.latency.add
        return int(getattr(self.unit.latency, chain.op))

    # Memory -----------------------------------------------------------------------------------------------------------

    def _transfers(
        self, work: Work, nests: Sequence[Nest], traffic: Sequence[Traffic], dependent: bool
    ) -> tuple[Transfer, ...]:
        """One transfer per link, from the nearest to main memory; a private first level is a part of the core."""
        moved = []
        for number, level in enumerate(self._levels):
            if level is self._near:
                continue
            read, written = self._bytes(level, traffic)
            rows = self._row_cycles(level, traffic) if isinstance(level, DramSpec) else ZERO
            cycles = max(rows, self.bandwidth_cycles(level, read, written))
            if number > 0 and not dependent:
                cycles = max(cycles, self._miss_cycles(self.caches[number - 1], level, work, nests, traffic))
            shared = ZERO
            if level.shared_by != 1 or isinstance(level, DramSpec):
                shared = max(rows, self.instance_cycles(level, read, written)) * (
                    self._rate(level, level.bandwidth) or 0
                )
            if cycles or shared:
                moved.append(Transfer(self._link(number), level.name, cycles, shared))
        return tuple(moved)

    def _link(self, number: int) -> str:
        """The name of the link from a level to the one nearer the core."""
        if number > 0:
            return f"{self._levels[number].name}→{self._levels[number - 1].name}"
        return f"{self._levels[0].name}→{self.registers.name if self.registers else self.unit.name}"

    def _bytes(self, level: CacheSpec | DramSpec, traffic: Sequence[Traffic]) -> tuple[int, int]:
        counters = [each.dram if isinstance(level, DramSpec) else each.levels[level.name] for each in traffic]
        return sum(each.bytes_read for each in counters), sum(each.bytes_written for each in counters)

    def bandwidth_cycles(self, level: CacheSpec | DramSpec, read: int, written: int) -> Cycles:
        """A cache reads and writes at the same time; DRAM has one bus for both."""
        reading = self._over(read, self.read_rate(level))
        writing = self._over(written, self.write_rate(level))
        return reading + writing if isinstance(level, DramSpec) else max(reading, writing)

    def instance_cycles(self, level: CacheSpec | DramSpec, read: int, written: int) -> Cycles:
        """The same for the level itself, whatever a single core can draw from it."""
        reading = self._over(read, self._rate(level, level.bandwidth))
        writing = self._over(written, self._rate(level, level.write_bandwidth or level.bandwidth))
        return reading + writing if isinstance(level, DramSpec) else max(reading, writing)

    def read_rate(self, level: CacheSpec | DramSpec) -> Fraction | None:
        """Bytes per core cycle that this core can draw from a level; None without a limit."""
        rates = [self._rate(level, limit) for limit in (level.bandwidth, level.unit_bandwidth)]
        return min((rate for rate in rates if rate is not None), default=None)

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

    def _row_cycles(self, dram: DramSpec, traffic: Sequence[Traffic]) -> Cycles:
        """Every activation holds its bank for a row cycle; all banks work side by side, but for their refreshes.

        A row stays open as long as the device demands, and at least until its column has been read.
        """
        activates = sum(each.dram.activates for each in traffic)
        if dram.timing is None or not activates:
            return ZERO
        hz, timing = self._machine.clock_hz(dram.clock), dram.timing
        read = timing.trcd.seconds(hz) + timing.cl.seconds(hz)
        row_cycle = max(timing.tras.seconds(hz), read) + timing.trp.seconds(hz)
        available = 1 - timing.trfc.seconds(hz) / timing.trefi.seconds(hz)
        return activates * row_cycle * self.clock_hz / (dram.channels * dram.ranks * dram.banks * available)

    def _miss_cycles(
        self,
        inner: CacheSpec,
        outer: CacheSpec | DramSpec,
        work: Work,
        nests: Sequence[Nest],
        traffic: Sequence[Traffic],
    ) -> Cycles:
        """Latency of the next level over the misses that are outstanding at once, for streams and for jumps.

        A store that goes on to the next level without bringing its line in is sent off and not waited for. Nothing
        overlaps with the first miss, so a step that misses takes the latency at least.
        """
        latency = self.latency_cycles(outer)
        executions = max(1, sum(nest.length for nest in nests))
        spread = Fraction(max(work.instructions.total, 1), executions)
        total = ZERO
        for nest, moved in zip(nests, traffic, strict=True):
            waited = [
                (misses, is_stream(nest, access, inner.line))
                for access, misses in zip(nest.accesses, moved.misses[inner.name], strict=False)
                if misses and (inner.write_allocate or not access.write)
            ]
            streamed = sum(misses for misses, stream in waited if stream)
            jumping = sum(misses for misses, stream in waited if not stream)
            total += streamed * latency / inner.mshrs
            if jumping:
                total += jumping * latency / self._parallel(inner, spread * nest.length / jumping)
        return max(total, latency) if total else ZERO

    def _parallel(self, inner: CacheSpec, per_miss: Fraction) -> Fraction:
        """How many jumps overlap, one in `per_miss` instructions: what the caches allow and the window reaches."""
        nearer = self.caches[: self.caches.index(inner) + 1]
        outstanding = Fraction(min(level.mshrs for level in nearer))
        if inner.strided_misses is not None:
            outstanding = min(outstanding, Fraction(inner.strided_misses))
        return max(Fraction(1), min(outstanding, self.unit.window / per_miss))

    def _clock_of(self, level: CacheSpec | DramSpec) -> int:
        return self._machine.clock_hz(level.clock)
