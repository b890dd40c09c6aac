"""What the steps of a run cost, part by part, and what its cores did: counts for the result and the energy ledger, and
where their time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hwsim.energy import ARITHMETIC, CONTROL, OPERANDS, Ledger
from hwsim.engine import AgentTime, TensorTraffic
from hwsim.memory.counters import CacheCounters, DramCounters
from hwsim.memory.hierarchy import Traffic
from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import Instructions, Nest, Size, Work

if TYPE_CHECKING:
    from hwsim.targets.cpu.model import CpuCore

Cycles = Fraction
ToFs = Callable[[Cycles], int]

ZERO = Fraction(0)

# What a step costs ----------------------------------------------------------------------------------------------------


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
    lead_cycles: Cycles = ZERO
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
        return max((part.cycles for part in self.compute), default=ZERO) + total(self.delays)

    @cached_property
    def chain_cycles(self) -> Cycles:
        """How long it takes at least because operations wait for each other."""
        return total(self.chain) + total(self.delays)

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


def total(parts: Sequence[CostPart]) -> Cycles:
    return sum((part.cycles for part in parts), ZERO)


# What was done --------------------------------------------------------------------------------------------------------


class CoreTally:
    """Counts of work and traffic. Loads and stores are counted in elements, however wide the access."""

    def __init__(self, element_bytes: Mapping[str, Size], element_bits: int = 32) -> None:
        self._element_bytes = element_bytes
        self._element_bits = element_bits
        self.instructions = Instructions()
        self.fetched = 0
        self.flops = self.macs = 0
        self.expected = 0
        """Flops of the whole run."""
        self.accesses = self.skipped = 0
        self.operations: Counter[tuple[str, str]] = Counter()
        self._loads: Counter[str] = Counter()
        self._stores: Counter[str] = Counter()
        self._misses: Counter[tuple[str, str]] = Counter()

    def add_work(self, work: Work, core: CpuCore) -> None:
        self.instructions += core.issued(work)
        self.fetched += core.fetched(work)
        self.flops += work.flops
        self.macs += work.macs
        for name, count in _operations(work, fused=core.unit.ports.fma > 0).items():
            self.operations[name, work.fmt] += count

    def add_nest(self, nest: Nest) -> None:
        """What a nest loads and stores."""
        for access in nest.accesses:
            width = self._element_bytes.get(access.tensor, access.size)
            elements = nest.repeats * int(nest.count(access) * access.size // width)
            (self._stores if access.write else self._loads)[access.tensor] += elements

    def add_traffic(self, nest: Nest, traffic: Traffic) -> None:
        """What a part of a nest moved."""
        self.accesses += traffic.accesses
        self.skipped += traffic.skipped
        for number, access in enumerate(nest.accesses):
            for level, misses in traffic.misses.items():
                self._misses[access.tensor, level] += misses[number]

    @property
    def loads(self) -> int:
        return self._loads.total()

    @property
    def stores(self) -> int:
        return self._stores.total()

    def tensors(self) -> dict[str, TensorTraffic]:
        names = sorted(set(self._loads) | set(self._stores))
        return {
            name: TensorTraffic(
                self._loads[name],
                self._stores[name],
                {level: count for (tensor, level), count in self._misses.items() if tensor == name},
            )
            for name in names
        }

    def of_step(self, work: Work, nests: Sequence[Nest], core: CpuCore) -> CoreTally:
        """What one step computes, loads and stores, by itself."""
        step = CoreTally(self._element_bytes, self._element_bits)
        step.add_work(work, core)
        for nest in nests:
            step.add_nest(nest)
        return step

    def between(self, begin: Fraction, end: Fraction) -> CoreTally:
        """A share of it, in whole numbers; shares that follow each other add up."""

        def cut(counts: Counter[Any]) -> Counter[Any]:
            return Counter({name: int(count * end) - int(count * begin) for name, count in counts.items()})

        part = CoreTally(self._element_bytes, self._element_bits)
        part.fetched = int(self.fetched * end) - int(self.fetched * begin)
        part.operations = cut(self.operations)
        part._loads, part._stores = cut(self._loads), cut(self._stores)
        return part

    def ledger(self, core: CpuCore, traffic: Sequence[Traffic]) -> Ledger:
        """What it posts, with what was moved meanwhile."""
        levels = {
            spec.name: sum((moved.levels[spec.name] for moved in traffic), CacheCounters()) for spec in core.caches
        }
        ledger = Ledger()
        self.post(ledger, core, levels, sum((moved.dram for moved in traffic), DramCounters()), self._element_bits)
        return ledger

    def post(
        self,
        ledger: Ledger,
        core: CpuCore,
        levels: Mapping[str, CacheCounters],
        dram: DramCounters,
        element_bits: int,
    ) -> None:
        """Everything that costs energy."""
        unit, registers = core.unit.name, core.registers.name if core.registers else None
        ledger.post(unit, "instruction", self.fetched, cause=CONTROL)
        operands = {"fma": 3, "add": 2, "mul": 2, "special": 1}
        read = written = 0
        matrix = core.unit.matrix
        for (name, fmt), count in sorted(self.operations.items()):
            ledger.post(unit, f"{name}.{fmt}", count, cause=ARITHMETIC)
            if name == "fma" and matrix is not None:
                read += count * matrix.operands // matrix.macs
                written += count // matrix.k
            else:
                read += count * operands[name]
                written += count
        if registers is not None:
            first = next(iter(levels.values()), None)
            read_bits = read * element_bits + (8 * first.bytes_written if first else 0)
            written_bits = written * element_bits + (8 * first.bytes_read if first else 0)
            ledger.post(registers, "read", read + self.stores, bits=read_bits, cause=OPERANDS)
            ledger.post(registers, "write", written + self.loads, bits=written_bits, cause=OPERANDS)
        for spec in core.caches:
            _post_cache(ledger, spec, levels[spec.name])
        ledger.post(core.dram.name, "read", dram.reads, bits=8 * dram.bytes_read)
        ledger.post(core.dram.name, "write", dram.writes, bits=8 * dram.bytes_written)
        ledger.post(core.dram.name, "activate", dram.activates)


def _post_cache(ledger: Ledger, spec: CacheSpec, counters: CacheCounters) -> None:
    """Accesses from above, and what the cache does by itself: a fill is written, a victim read before it leaves.

    Stores that only pass through on their way down are no victims; an exclusive cache is not filled from below.
    """
    victims = counters.writebacks + counters.clean_victims
    victim_bytes = min(counters.bytes_evicted, victims * spec.line)
    filled_bytes = 0 if spec.inclusion == "exclusive" else counters.bytes_fetched
    reads = counters.reads + counters.prefetch_reads + victims
    ledger.post(spec.name, "read", reads, bits=8 * (counters.bytes_read + victim_bytes))
    writes = counters.writes + filled_bytes // spec.sector_bytes
    ledger.post(spec.name, "write", writes, bits=8 * (counters.bytes_written + filled_bytes))


def _operations(work: Work, *, fused: bool) -> Counter[str]:
    """Scalar operations by class: the multiply-accumulates, and the rest in the proportion of its instructions."""
    counts: Counter[str] = Counter()
    if fused:
        counts["fma"] += work.macs
    else:
        counts["add"] += work.macs
        counts["mul"] += work.macs
    rest = max(0, work.flops - 2 * work.macs)
    issued = {name: getattr(work.instructions, name) for name in ("special", "mul", "add")}
    for name, count in issued.items():
        share = rest * count // max(1, sum(issued.values()))
        counts[name] += share
    named = sum(counts.values()) - (work.macs if fused else 2 * work.macs)
    counts["add"] += rest - named
    return +counts


# Time -----------------------------------------------------------------------------------------------------------------

# Where time went ------------------------------------------------------------------------------------------------------


class Stopwatch:
    """Every femtosecond of an agent is put down to a unit at work or to a resource that it waited for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.parts: Counter[str] = Counter()

    @property
    def elapsed_fs(self) -> int:
        return self.busy.total() + self.waiting.total()

    def wait(self, resource: str, duration_fs: int) -> None:
        """Time in which nothing else happened."""
        if not duration_fs:
            return
        self.waiting[resource] += duration_fs
        self.parts[resource] += duration_fs

    def step(
        self,
        cost: StepCost,
        durations: Mapping[str, int],
        elapsed_fs: int,
        overlap: str,
        to_fs: ToFs,
        visible: Mapping[str, int] | None = None,
    ) -> None:
        """A step, or a piece of one: what it took as a whole, what each of its transfers took, and how much of that
        was left when it began: all of it if not given.

        The unit with the most work is busy. Beyond it, each part is charged with the time by which it is longer than
        all shorter ones: that is what would be won if it were gone.
        """
        visible = durations if visible is None else visible
        times = cost.times(to_fs)
        for name, duration in (*times.parts, *durations.items()):
            self.parts[name] += duration
        covered = self._charge_work(times, elapsed_fs)
        if overlap != "memory":
            covered = self._charge_chain(times, covered, elapsed_fs)
        left = elapsed_fs - covered
        if overlap != "full":
            covered = 0
        for link, duration in sorted(visible.items(), key=lambda item: item[1]):
            share = min(left, max(0, duration - covered))
            self.waiting[link] += share
            left -= share
            covered = 0 if overlap == "none" else max(covered, duration)
        if left and overlap == "memory":
            left = elapsed_fs - self._charge_chain(times, elapsed_fs - left, elapsed_fs)
        if left:
            # Fractions of a femtosecond, rounded up part by part.
            self.waiting[max(visible, key=lambda link: visible[link], default="issue")] += left

    def _charge_work(self, times: StepTimes, limit_fs: int) -> int:
        """Units, ports, issue, and delays; returns their time."""
        covered = 0
        if times.busiest is not None:
            name, busy_fs = times.busiest
            covered = min(limit_fs, busy_fs)
            self.busy[name] += covered
        for name, wait_fs in times.waits:
            covered += self._charge(name, min(limit_fs, wait_fs) - covered)
        for name, delay_fs in times.delays:
            covered += self._charge(name, min(limit_fs - covered, delay_fs))
        return covered

    def _charge_chain(self, times: StepTimes, covered: int, limit_fs: int) -> int:
        """What operations that wait for each other add to the time covered so far; returns the new sum."""
        chained = sum(delay_fs for _, delay_fs in times.delays)
        for name, part_fs in times.chain:
            chained += part_fs
            covered += self._charge(name, min(limit_fs, chained) - covered)
        return covered

    def _charge(self, name: str, share_fs: int) -> int:
        """Put time down to a part, if there is any; returns it."""
        if share_fs <= 0:
            return 0
        self.waiting[name] += share_fs
        return share_fs

    def result(self) -> AgentTime:
        return AgentTime(self.name, self.elapsed_fs, dict(self.busy), dict(self.waiting))
