"""What the cores of a run did: counts for the result and the energy ledger, and where their time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from hwsim.energy import ARITHMETIC, CONTROL, OPERANDS, Ledger
from hwsim.engine import AgentTime, TensorTraffic
from hwsim.memory.counters import CacheCounters, DramCounters
from hwsim.memory.hierarchy import Traffic
from hwsim.spec.machine import CacheSpec
from hwsim.targets.cpu.model import CpuCore, StepCost, StepTimes
from hwsim.trace.nest import Instructions, Nest, Size, Work


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

Convert = Callable[[Fraction], int]


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
        to_fs: Convert,
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
