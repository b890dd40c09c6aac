"""Tally: what all agents of a run did, added up for the result and the energy ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hwsim.energy import ARITHMETIC, CONTROL, OPERANDS, Ledger
from hwsim.engine.outcome import TensorTraffic
from hwsim.hardware.core import CpuCore
from hwsim.hardware.counters import CacheCounters, DramCounters
from hwsim.hardware.hierarchy import Traffic
from hwsim.spec.memory import CacheSpec
from hwsim.trace.nest import Nest, Size
from hwsim.trace.work import Instructions, Work


class Tally:
    """Counts of work and traffic. Loads and stores are counted in elements, however wide the access."""

    def __init__(self, element_bytes: Mapping[str, Size], element_bits: int = 32) -> None:
        self._element_bytes = element_bytes
        self._element_bits = element_bits
        self.instructions = Instructions()
        self.fetched = 0
        self.flops = self.macs = 0
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

    def add_traffic(self, nest: Nest, traffic: Traffic) -> None:
        self.accesses += traffic.accesses
        self.skipped += traffic.skipped
        for number, access in enumerate(nest.accesses):
            width = self._element_bytes.get(access.tensor, access.size)
            elements = int(nest.count(access) * access.size // width)
            (self._stores if access.write else self._loads)[access.tensor] += elements
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

    def ledger_of(self, work: Work, nests: Sequence[Nest], traffic: Sequence[Traffic], core: CpuCore) -> Ledger:
        """What one step posts by itself."""
        step = Tally(self._element_bytes, self._element_bits)
        step.add_work(work, core)
        for nest, moved in zip(nests, traffic, strict=True):
            step.add_traffic(nest, moved)
        levels = {
            spec.name: sum((moved.levels[spec.name] for moved in traffic), CacheCounters()) for spec in core.caches
        }
        ledger = Ledger()
        step.post(ledger, core, levels, sum((moved.dram for moved in traffic), DramCounters()), self._element_bits)
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
