"""Device: the numbers of a GPU that the kernel models need, taken out of its machine file once.

Times are cycles of the SMs' clock, rates are per cycle of the whole GPU unless they say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn, TypeVar

from hwsim.errors import InputError
from hwsim.spec.gpu import GpuSpec
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import CacheSpec, DramSpec, Level, RegistersSpec, ScratchpadSpec

L = TypeVar("L", bound=Level)

_FAR = 1e18
"""Bytes per cycle of a level that states no bandwidth."""


@dataclass(frozen=True)
class Device:
    """A GPU of a machine file."""

    machine: MachineSpec
    sm: GpuSpec
    registers: RegistersSpec
    shared: ScratchpadSpec
    l2: CacheSpec
    dram: DramSpec

    @classmethod
    def of(cls, machine: MachineSpec) -> Device:
        unit = machine.compute[0]
        if not isinstance(unit, GpuSpec):
            raise InputError(f"machine {machine.name} is no GPU: its {unit.name} is a {unit.kind}")
        return cls(
            machine,
            unit,
            _only(machine, RegistersSpec, "a register file (kind: registers)"),
            _only(machine, ScratchpadSpec, "shared memory (kind: scratchpad)"),
            machine.caches[-1] if machine.caches else _missing(machine, "an L2 (kind: cache, shared_by: all)"),
            _only(machine, DramSpec, "DRAM (kind: dram)"),
        )

    @cached_property
    def clock_hz(self) -> int:
        return self.machine.clock_hz(self.sm.clock)

    @property
    def count(self) -> int:
        """Number of SMs."""
        return self.sm.count

    @cached_property
    def dram_rate(self) -> float:
        """Bytes per cycle, as the data sheet has it."""
        return self._rate(self.dram)

    @cached_property
    def tile_rate(self) -> float:
        return self.dram_rate * self.sm.library.tile_bandwidth

    @cached_property
    def stream_rate(self) -> float:
        return self.dram_rate * self.sm.library.stream_bandwidth

    @cached_property
    def l2_rate(self) -> float:
        """Bytes per cycle that tiles reach."""
        return self._rate(self.l2) * self.sm.library.l2_bandwidth

    @cached_property
    def sm_rate(self) -> float:
        """Bytes per cycle that one SM can draw from the L2."""
        drawn = self.l2.unit_bandwidth
        per_cycle = None if drawn is None else drawn.bytes_per_cycle(self.clock_hz)
        return self.l2_rate if per_cycle is None else float(per_cycle)

    @cached_property
    def l1(self) -> CacheSpec:
        """The cache of one SM, in front of the L2."""
        if len(self.machine.caches) < 2:
            _missing(self.machine, "an L1 of each SM (kind: cache) in front of its L2")
        return self.machine.caches[0]

    @cached_property
    def l1_rate(self) -> float:
        """Bytes per cycle that the L1 of one SM delivers."""
        return self._rate(self.l1)

    @cached_property
    def memory_latency(self) -> float:
        """Cycles of a load that goes to DRAM."""
        return self.latency_of(self.dram)

    def latency_of(self, level: CacheSpec | DramSpec) -> float:
        """Cycles of a load that is found in a level."""
        return 0.0 if level.latency is None else float(level.latency.cycles(self.clock_hz))

    def fma_rate(self, precision: str, unit: str) -> float:
        """Fused multiply-adds per cycle of one SM."""
        rates = self.sm.tensor if unit == "tensor" else self.sm.lanes
        if precision not in rates:
            known = ", ".join(sorted({*self.sm.tensor, *self.sm.lanes}))
            raise InputError(f"{self.machine.name} has no {unit} rate for {precision}; it multiplies {known}")
        return rates[precision]

    def unit_for(self, precision: str) -> str:
        """Where the library multiplies matrices of a format: `tensor` or `lanes`."""
        chosen = self.sm.library.units.get(precision)
        if chosen is None:
            chosen = "tensor" if precision in self.sm.tensor else "lanes"
        self.fma_rate(precision, chosen)
        return chosen

    def launch_seconds(self, timing: str) -> float:
        """Time around a kernel that is started in a `graph`, in a `stream`, or by the `host`."""
        launch = self.sm.launch
        times = {"graph": launch.graph, "stream": launch.stream, "host": launch.host or launch.stream}
        if timing not in times:
            raise InputError(f"timing {timing!r} is not one of {', '.join(times)}")
        return float(times[timing].seconds(self.clock_hz))

    def picojoules(self, action: str) -> float:
        """The price of an action, per byte where the file prices bits; 0 where it has none."""
        prices = self.machine.energy.actions if self.machine.energy else {}
        if action not in prices:
            return 0.0
        price = prices[action].energy
        return float(price.picojoules) * (8 if price.per == "bit" else 1)

    @cached_property
    def idle_watts(self) -> float:
        static = self.machine.energy.static if self.machine.energy else {}
        return float(sum(entry.power for entry in static.values()))

    def _rate(self, level: Level) -> float:
        if level.bandwidth is None:
            return _FAR
        per_cycle = level.bandwidth.bytes_per_cycle(self.clock_hz)
        return _FAR if per_cycle is None else float(per_cycle)


def _only(machine: MachineSpec, kind: type[L], what: str) -> L:
    found = [level for level in machine.memory if isinstance(level, kind)]
    return found[0] if found else _missing(machine, what)


def _missing(machine: MachineSpec, what: str) -> NoReturn:
    raise InputError(f"machine {machine.name} is a GPU and needs {what} among its memory levels")
