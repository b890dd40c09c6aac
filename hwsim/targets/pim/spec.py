"""A processing unit at a DRAM bank, as a machine file describes it, and the rules across the fields of its machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from hwsim.spec.base import Banks, Bytes, Name, Spec
from hwsim.spec.fields import Finding, unknown_formats
from hwsim.spec.machine import CacheSpec, DramSpec, MachineSpec, ScratchpadSpec, UnitSpec


class BankFormatSpec(Spec):
    """What a unit does in one number format."""

    accumulate: str = Field(description="Number format that sums are kept in.", examples=["fp32"])


class PimSpec(UnitSpec):
    """A unit that multiplies what its bank reads with what all units are told, one column access in a cycle."""

    kind: Literal["pim"]
    name: Name = Field(description="How paths and counters call one unit.", examples=["bank"])
    count: Banks = Field(description="Number of units: the banks that have one, all channels together.")
    clock: Name | None = Field(None, description="Clock domain; the machine's first clock if not given.")
    width: Bytes = Field(
        description="Bytes of a column: what a unit takes from its bank in one cycle.", examples=["32 B"]
    )
    formats: dict[Name, BankFormatSpec] = Field(min_length=1, description="Number formats of the units.")

    @property
    def column_bytes(self) -> int:
        return int(self.width)


UNIT = PimSpec


def banks_have_a_latch_and_a_buffer(machine: MachineSpec) -> Iterator[Finding]:
    """One level for what a unit holds of its bank, one for what all units are told."""
    for operand in ("weight", "input"):
        if not any(isinstance(level, ScratchpadSpec) and operand in level.holds for level in machine.memory):
            yield Finding(("memory",), f"no scratchpad holds '{operand}', which a unit at a bank needs beside its DRAM")
    for index, level in enumerate(machine.memory):
        if isinstance(level, CacheSpec):
            message = "units at banks have no caches; make this a level of kind scratchpad"
            yield Finding(("memory", index, "kind"), message)


def rows_have_a_timing(machine: MachineSpec) -> Iterator[Finding]:
    """What a row costs to open is what a bank's own unit waits for."""
    for index, level in enumerate(machine.memory):
        if isinstance(level, DramSpec) and level.timing is None:
            yield Finding(("memory", index, "timing"), "missing; units at banks wait for their rows to open")


def units_are_banks(machine: MachineSpec) -> Iterator[Finding]:
    for number, unit in enumerate(machine.compute):
        banks = sum(lv.channels * lv.ranks * lv.banks for lv in machine.memory if isinstance(lv, DramSpec))
        if isinstance(unit, PimSpec) and banks and banks % unit.count:
            message = f"{unit.count} units do not share {banks} banks evenly"
            yield Finding(("compute", number, "count"), message)


def bank_formats_are_known(machine: MachineSpec) -> Iterator[Finding]:
    for number, unit in enumerate(machine.compute):
        for name, fmt in unit.formats.items() if isinstance(unit, PimSpec) else ():
            yield from unknown_formats(("compute", number, "formats", name), name, fmt.accumulate)


RULES = (banks_have_a_latch_and_a_buffer, rows_have_a_timing, units_are_banks, bank_formats_are_known)
