"""Chip: a machine with arrays as the mapping sees it: who holds what, how much room there is, and how fast it moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from hwsim.errors import InputError
from hwsim.hardware.systolic import SystolicArray
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import DramSpec, Level, ScratchpadSpec
from hwsim.spec.systolic import SystolicSpec
from hwsim.units import Bandwidth

Role = Literal["input", "weight", "output"]
ROLES: tuple[Role, ...] = ("input", "weight", "output")


@dataclass(frozen=True)
class Chip:
    """Arrays, the scratchpad next to them for each operand, and main memory."""

    machine: MachineSpec
    unit: SystolicSpec
    array: SystolicArray
    pads: dict[Role, ScratchpadSpec]
    """The scratchpad nearest to the array that holds each operand."""
    dram: DramSpec
    sum_format: str

    @property
    def clock_hz(self) -> int:
        return self.machine.clock_hz(self.unit.clock)

    @property
    def home(self) -> str:
        """Where inputs come from and outputs go to, as long as they fit."""
        return self.unit.activations or self.dram.name

    @property
    def keeper(self) -> ScratchpadSpec | None:
        """Where something that one loop leaves for the next can stay: the largest that holds inputs and outputs."""
        found = [pad for pad in self.scratchpads if {"input", "output"} <= set(pad.holds)]
        return max(found, key=lambda pad: pad.size, default=None)

    @property
    def overlaps(self) -> bool:
        """Whether any scratchpad has room for a tile that comes while another one is used."""
        return any(pad.buffers == 2 for pad in self.scratchpads)

    @property
    def scratchpads(self) -> list[ScratchpadSpec]:
        return [level for level in self.machine.memory if isinstance(level, ScratchpadSpec)]

    @property
    def peak_macs_per_cycle(self) -> Fraction:
        return self.unit.count * self.unit.rows * self.unit.columns * self.array.rate

    def bytes_per_cycle(self, level: Level, bandwidth: Bandwidth | None = None) -> Fraction | None:
        """What a level delivers in a cycle of the array; None without a limit."""
        limit = bandwidth or level.bandwidth
        hz = self.machine.clock_hz(level.clock)
        rate = None if limit is None else limit.bytes_per_cycle(hz)
        return None if rate is None else rate * hz / self.clock_hz

    def feed_cycles(self, moved: Mapping[str, int]) -> int:
        """Cycles in which the scratchpads can deliver and take so many bits each, all at the same time."""
        needed = 0
        for pad in self.scratchpads:
            rate = self._pad_rate(pad)
            if rate is not None:
                exact = Fraction(moved.get(pad.name, 0), 8) / rate
                needed = max(needed, -(-exact.numerator // exact.denominator))
        return needed

    def _pad_rate(self, pad: ScratchpadSpec) -> Fraction | None:
        """Bytes per cycle: what its bandwidth says, and all its banks at once where the machine gives them."""
        limits = [self.bytes_per_cycle(pad)]
        if {"banks", "bank_width"} & pad.model_fields_set:
            limits.append(Fraction(pad.banks * pad.bank_width))
        return min((limit for limit in limits if limit is not None), default=None)


def find_array(machine: MachineSpec) -> SystolicSpec | None:
    """The array that a machine computes with; None where its first unit is something else."""
    unit = machine.compute[0]
    return unit if isinstance(unit, SystolicSpec) else None


def build_chip(machine: MachineSpec, fmt: str) -> Chip:
    """The chip for a run in one number format; refuses a format that the array has no rate for."""
    unit = find_array(machine)
    if unit is None:
        raise InputError(f"machine {machine.name} has no systolic array; its {machine.compute[0].name} is none")
    if fmt not in unit.formats:
        have = ", ".join(unit.formats)
        raise InputError(
            f"{unit.name} of {machine.name} has no rate for {fmt}; its formats are {have}: "
            f"choose precision={next(iter(unit.formats))}, or add {unit.name}.formats.{fmt} to the machine"
        )
    spec = unit.formats[fmt]
    rate = Fraction(spec.rate).limit_denominator(4096)
    array = SystolicArray(unit.rows, unit.columns, unit.dataflow, unit.folding, rate)
    scratchpads = [level for level in machine.memory if isinstance(level, ScratchpadSpec)]
    pads = {role: next(pad for pad in scratchpads if role in pad.holds) for role in ROLES}
    dram = next(level for level in machine.memory if isinstance(level, DramSpec))
    return Chip(machine, unit, array, pads, dram, spec.accumulate)
