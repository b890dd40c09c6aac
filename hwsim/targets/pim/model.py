"""What units at banks take for a piece of work, in cycles. No clock.

All units do the same at the same time, each with the columns of its own bank. A column takes a cycle; a row has to be
opened before its first column, and nothing hides that where a unit has one bank: it has one row buffer. Of several
banks, one opens a row while another is read. Refreshes stop them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from hwsim.errors import CapacityError, InputError
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import DramSpec, ScratchpadSpec
from hwsim.targets.pim.spec import PimSpec
from hwsim.units import format_bytes


@dataclass(frozen=True)
class Banks:
    """All units of a machine, with the memory around them."""

    machine: MachineSpec
    unit: PimSpec
    latch: ScratchpadSpec
    """What a unit holds of its bank."""
    buffer: ScratchpadSpec
    """What all units of a channel are told."""
    dram: DramSpec

    @classmethod
    def of(cls, machine: MachineSpec, fmt: str | None = None) -> Banks:
        """The units of a machine; refuses a format that they do not have."""
        unit = machine.compute[0]
        if not isinstance(unit, PimSpec):
            raise InputError(f"machine {machine.name} has no units at its banks: its {unit.name} is a {unit.kind}")
        if fmt is not None and fmt not in unit.formats:
            have = ", ".join(unit.formats)
            raise InputError(
                f"{unit.name} of {machine.name} has no rate for {fmt}; its formats are {have}: "
                f"choose precision={next(iter(unit.formats))}"
            )
        pads = machine.scratchpads
        latch, buffer = (next(pad for pad in pads if role in pad.holds) for role in ("weight", "input"))
        if latch.size < unit.count * unit.width:
            raise CapacityError(
                f"a column of {format_bytes(unit.width)} for each of {unit.count} units needs "
                f"{format_bytes(unit.count * unit.width)} in {latch.name}, which has {format_bytes(latch.size)}"
            )
        return cls(machine, unit, latch, buffer, machine.dram)

    @cached_property
    def clock_hz(self) -> int:
        return self.machine.clock_hz(self.unit.clock)

    @cached_property
    def timing(self) -> Mapping[str, Fraction]:
        """Times of the device in cycles of the units."""
        assert self.dram.timing is not None, "the rules of the class demand one"
        hz = self.machine.clock_hz(self.dram.clock)
        return {name: time.seconds(hz) * self.clock_hz for name, time in self.dram.timing}

    def opening_cycles(self, rows: int, columns: int) -> Fraction:
        """Cycles in which a unit reads nothing because rows of its banks are closed and opened.

        A row stays open as long as the device demands. With several banks for each unit, the others are read meanwhile.
        """
        if not rows:
            return Fraction(0)
        own = self.dram.channels * self.dram.ranks * self.dram.banks // self.unit.count
        read = Fraction(columns, rows)
        closed = max(self.timing["trcd"], self.timing["tras"] - read) + self.timing["trp"]
        return rows * max(Fraction(0), (read + closed) / own - read)

    @cached_property
    def first_cycles(self) -> Fraction:
        """Cycles from a command to the first data of a column."""
        return self.timing["cl"]

    @cached_property
    def refresh_share(self) -> Fraction:
        """Cycles that refreshes add to each cycle of work."""
        busy = self.timing["trfc"] / self.timing["trefi"]
        if busy >= 1:
            raise InputError(f"{self.dram.name}.timing.trfc is no less than trefi: refreshes leave no time for work")
        return busy / (1 - busy)

    @cached_property
    def access_seconds(self) -> Fraction:
        """From the host's read of a result to its arrival."""
        latency = self.dram.latency
        return Fraction(0) if latency is None else latency.seconds(self.machine.clock_hz(self.dram.clock))

    @cached_property
    def channel_bytes_per_second(self) -> Fraction | None:
        """What all channels together carry between the host and the chips."""
        hz = self.machine.clock_hz(self.dram.clock)
        rate = self.dram.bandwidth.bytes_per_cycle(hz) if self.dram.bandwidth is not None else None
        return None if rate is None else rate * hz

    def lanes(self, element_bits: int) -> int:
        return max(1, 8 * self.unit.width // element_bits)

    def columns(self, nbytes: int) -> int:
        """Column accesses for so many bytes of one bank that lie side by side."""
        return -(-nbytes // self.unit.width)

    def rows(self, nbytes: int) -> int:
        """Rows that have to be opened for them."""
        return -(-nbytes // self.dram.row)
