"""A machine's prices with those of its energy table filled in, each with its source; what the file says goes first."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from hwsim.errors import InputError
from hwsim.spec.compute import CpuSpec
from hwsim.spec.energy import EnergySpec, PriceSpec
from hwsim.spec.energy_table import EnergyTableSpec, FindTable, resolve_table, sram_price
from hwsim.spec.fields import did_you_mean
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import CacheSpec, DramSpec, RegistersSpec, ScratchpadSpec
from hwsim.units import EnergyPrice, plain

MEMORIES = "dram"
"""The table of kinds of main memory."""

Priced = Iterator[tuple[str, PriceSpec]]


def with_table_prices(machine: MachineSpec, find: FindTable) -> MachineSpec:
    """The machine with a price for everything that its tables know. Raises InputError where a name is wrong."""
    energy = machine.energy
    if energy is None or (energy.table is None and energy.dram is None and energy.instruction is None):
        return machine
    known = dict(energy.actions)
    for name, price in _all(machine, energy, find):
        known.setdefault(name, price)
    return machine.model_copy(update={"energy": energy.model_copy(update={"actions": known})})


def _all(machine: MachineSpec, energy: EnergySpec, find: FindTable) -> Priced:
    if energy.table is not None:
        table = resolve_table(find(energy.table), find)
        if table.node != energy.node:
            node = "no node" if table.node is None else f"{plain(table.node)} nm"
            raise InputError(
                f"machine {machine.name}: energy.table {table.name} is for {node}, and energy.node is "
                f"{plain(energy.node)} nm; name a table of that node, or write one that lies between two (`between`)"
            )
        yield from _instructions(machine, energy, table)
        yield from _arithmetic(machine, table)
        yield from _memories(machine, table)
    elif energy.instruction is not None:
        raise InputError(f"machine {machine.name}: energy.instruction needs energy.table, which has the instructions")
    if energy.dram is not None:
        yield from _main_memory(machine, energy.dram, find(MEMORIES))


def _instructions(machine: MachineSpec, energy: EnergySpec, table: EnergyTableSpec) -> Priced:
    kind = energy.instruction
    if kind is None:
        return
    if kind not in table.instructions:
        known = ", ".join(sorted(table.instructions)) or "none"
        near = did_you_mean(kind, table.instructions)
        raise InputError(
            f"machine {machine.name}: energy.instruction '{kind}' is not in energy table {table.name}; "
            f"it has {known}{near}"
        )
    for unit in machine.compute:
        if isinstance(unit, CpuSpec):
            yield f"{unit.name}.instruction", table.instructions[kind]


def _arithmetic(machine: MachineSpec, table: EnergyTableSpec) -> Priced:
    """Every format whose multiplication and addition have a price."""
    for unit in machine.compute:
        for name, price in table.operations.items():
            yield f"{unit.name}.{name}", price
        for name in table.operations:
            kind, _, fmt = name.partition(".")
            fused = _fused(table, fmt) if kind == "mul" else None
            if fused is None:
                continue
            yield f"{unit.name}.fma.{fmt}", fused
            yield f"{unit.name}.mac.{fmt}", fused
            if table.special is not None:
                energy = fused.energy.picojoules * Fraction(str(table.special.multiply_adds))
                special = PriceSpec(energy=EnergyPrice(energy, "action"), source=table.special.source)
                yield f"{unit.name}.special.{fmt}", special


def _fused(table: EnergyTableSpec, fmt: str) -> PriceSpec | None:
    """A multiply-add: as the table says, or the product and the addition to its sum."""
    if f"fma.{fmt}" in table.operations:
        return table.operations[f"fma.{fmt}"]
    total = table.accumulators.get(fmt, fmt)
    product, addition = table.operations[f"mul.{fmt}"], table.operations.get(f"add.{total}")
    if addition is None:
        return None
    energy = EnergyPrice(product.energy.picojoules + addition.energy.picojoules, "action")
    source = f"the sum of {fmt} multiplication ({product.source}) and {total} addition ({addition.source})"
    return PriceSpec(energy=energy, source=source)


def _memories(machine: MachineSpec, table: EnergyTableSpec) -> Priced:
    for level in machine.memory:
        if isinstance(level, RegistersSpec) and table.registers is not None:
            yield f"{level.name}.read", table.registers
            yield f"{level.name}.write", table.registers
        elif isinstance(level, CacheSpec | ScratchpadSpec):
            price = sram_price(table, level.size)
            if price is not None:
                yield f"{level.name}.read", PriceSpec(energy=price.read, source=price.source)
                yield f"{level.name}.write", PriceSpec(energy=price.write, source=price.source)


def _main_memory(machine: MachineSpec, kind: str, table: EnergyTableSpec) -> Priced:
    if kind not in table.dram:
        known = ", ".join(table.dram)
        near = did_you_mean(kind, table.dram)
        raise InputError(
            f"machine {machine.name}: energy.dram '{kind}' is not in energy table {table.name}; it has {known}{near}"
        )
    memory = table.dram[kind]
    for level in machine.memory:
        if isinstance(level, DramSpec):
            price = PriceSpec(energy=memory.device, controller=memory.controller, source=memory.source)
            yield f"{level.name}.read", price
            yield f"{level.name}.write", price
            inside = "assumption: the price per bit is for whole accesses and contains the activation of rows"
            yield f"{level.name}.activate", PriceSpec(energy=EnergyPrice(Fraction(0), "action"), source=inside)
