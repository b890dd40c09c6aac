"""The energy ledger: counts first, prices last.

Components post actions while a run goes on (`l1.read`, `core.fma.fp32`, `core.instruction`, `dram.activate`); the
machine's table prices them at the end, and static power times simulated time is added. An action without a price is an
error.

Prices: a machine's own, then those of its energy table, each with its source.

A table has the prices of a technology node, or of kinds of memory. A machine file that names a table need not repeat
its prices. A table may lie between two others: then every price that both of them have is interpolated in the
logarithms of node and energy, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from math import exp, fsum, log
from typing import Literal

from pydantic import Field

from hwsim.errors import InputError
from hwsim.spec.base import Bytes, EnergyField, Name, Nanometres, Rate, Spec
from hwsim.spec.fields import did_you_mean
from hwsim.spec.machine import CacheSpec, EnergySpec, MachineSpec, PriceSpec, RegistersSpec, ScratchpadSpec
from hwsim.units import INFINITE_BYTES, EnergyPrice, format_bytes, plain

FindTable = Callable[[str], "EnergyTableSpec"]
_DIGITS = 4
"""Significant digits of a price that was computed."""


class SramSpec(Spec):
    """The price of a memory of one size; other sizes lie between such points."""

    size: Bytes = Field(description="Capacity.", examples=["32 KiB"])
    read: EnergyField = Field(description="Per bit read.", examples=["0.3125 pJ/bit"])
    write: EnergyField | None = Field(None, description="Per bit written; as `read` if not given.")
    source: str = Field(description="Where the numbers come from.")


class DramKindSpec(Spec):
    """One kind of main memory."""

    device: EnergyField = Field(description="Per bit read or written, in the memory device.")
    controller: EnergyField | None = Field(
        None, description="Per bit, in the controller and the pins; contained in `device` if not given."
    )
    source: str = Field(description="Where the numbers come from.")


class SpecialSpec(Spec):
    """Divisions, square roots, exponentials."""

    multiply_adds: Rate = Field(description="As many as cost the same.")
    source: str = Field(description="Where the number comes from.")


class AreaSpec(Spec):
    """Silicon of one unit."""

    square_micrometres: float = Field(gt=0, le=1e12, description="Area.")
    source: str = Field(description="Where the number comes from.")


class EnergyTableSpec(Spec):
    """An energy table, as one YAML file in machines/energy describes it."""

    format: Literal[1] = Field(description="Version of this file format.")
    name: Name = Field(description="What the table is called; the file has the same name.")
    description: str = Field(description="One or two sentences for people.")
    node: Nanometres | None = Field(None, description="Technology node; none for a table of memories.")
    between: tuple[Name, Name] | None = Field(
        None, description="Two tables of a larger and a smaller node: what is not written here lies between theirs."
    )
    operations: dict[str, PriceSpec] = Field(
        {}, description="Arithmetic by kind and number format: `add.fp32`, `mul.int8`, or `fma.fp16` if it is no sum."
    )
    areas: dict[str, AreaSpec] = Field(
        {}, description="Silicon of the unit for an operation, where it is known; for the reference page, not for runs."
    )
    accumulators: dict[Name, Name] = Field(
        {}, description="Format in which products of a format are summed, where it is another."
    )
    special: SpecialSpec | None = Field(None, description="Operations that take several others.")
    instructions: dict[Name, PriceSpec] = Field(
        {}, description="Fetching, decoding and steering one instruction, by kind of core; operands not counted in."
    )
    registers: PriceSpec | None = Field(None, description="Per bit read from or written to a register file.")
    sram: tuple[SramSpec, ...] = Field((), description="Memories by size, the smallest first.")
    dram: dict[Name, DramKindSpec] = Field({}, description="Main memories by kind.")


@dataclass(frozen=True)
class SramPrice:
    """What a memory of some size costs per bit."""

    read: EnergyPrice
    write: EnergyPrice
    source: str


def resolve_table(table: EnergyTableSpec, find: FindTable, chain: tuple[str, ...] = ()) -> EnergyTableSpec:
    """A table with everything that lies between two others filled in. ``chain`` holds the tables that led here."""
    if table.between is None:
        return table
    chain = (*chain, table.name)
    for name in table.between:
        if name in chain:
            raise InputError(f"energy table {chain[0]}: between goes round in a circle: {' → '.join((*chain, name))}")
    older, newer = (resolve_table(find(name), find, chain) for name in table.between)
    if older.node is None or newer.node is None or table.node is None or not newer.node < table.node < older.node:
        raise InputError(
            f"energy table {table.name}: its node must lie between those of {older.name} and {newer.name}, "
            "the larger one named first"
        )
    place = _Between(older, newer, log(older.node / table.node) / log(older.node / newer.node))
    common = [name for name in older.operations if name in newer.operations]
    operations = {name: place.price(older.operations[name], newer.operations[name]) for name in common}
    sizes = sorted({point.size for point in (*older.sram, *newer.sram)}) if older.sram and newer.sram else []
    changes: dict[str, object] = {
        "operations": operations | table.operations,
        "accumulators": {**older.accumulators, **newer.accumulators, **table.accumulators},
        "special": table.special or newer.special or older.special,
        "sram": table.sram or tuple(place.sram(size) for size in sizes),
    }
    if table.registers is None and older.registers is not None and newer.registers is not None:
        changes["registers"] = place.price(older.registers, newer.registers)
    return table.model_copy(update=changes)


def sram_price(table: EnergyTableSpec, size: int) -> SramPrice | None:
    """The price of a memory of any size: between the points of the table in the logarithms of size and energy."""
    points = table.sram
    if not points:
        return None
    found = next((point for point in points if point.size == size), None)
    if found is not None:
        return SramPrice(found.read, found.write or found.read, found.source)
    if size >= INFINITE_BYTES:
        largest = points[-1]
        source = f"assumption: a memory without limit is priced as one of {format_bytes(largest.size)}"
        return SramPrice(largest.read, largest.write or largest.read, source)
    if len(points) == 1:
        return None
    inner = max((n for n, point in enumerate(points[:-1]) if point.size < size), default=0)
    low, high = points[inner], points[inner + 1]
    share = log(size / low.size) / log(high.size / low.size)
    where = "between" if 0 < share < 1 else "beyond"
    source = (
        f"assumption: {where} {format_bytes(low.size)} ({low.read}) and {format_bytes(high.size)} ({high.read}) of "
        f"energy table {table.name}, in the logarithms of size and energy"
    )
    writes = low.write or low.read, high.write or high.read
    return SramPrice(_between(low.read, high.read, share), _between(*writes, share), source)


@dataclass(frozen=True)
class _Between:
    """The way from an older table to a newer one; `share` of it lies behind."""

    older: EnergyTableSpec
    newer: EnergyTableSpec
    share: float

    def price(self, old: PriceSpec, new: PriceSpec) -> PriceSpec:
        return PriceSpec(energy=_between(old.energy, new.energy, self.share), source=self._source(old, new))

    def sram(self, size: int) -> SramSpec:
        old, new = sram_price(self.older, size), sram_price(self.newer, size)
        assert old is not None and new is not None
        return SramSpec(
            size=format_bytes(size),  # type: ignore[arg-type]  # parsed again
            read=_between(old.read, new.read, self.share),
            write=_between(old.write, new.write, self.share),
            source=f"assumption: between {_node(self.older)} ({old.read}) and {_node(self.newer)} ({new.read}), "
            "in the logarithms of node and energy",
        )

    def _source(self, old: PriceSpec, new: PriceSpec) -> str:
        return (
            f"assumption: between {_node(self.older)} ({old.energy}: {old.source}) and {_node(self.newer)} "
            f"({new.energy}: {new.source}), in the logarithms of node and energy"
        )


def _node(table: EnergyTableSpec) -> str:
    return f"{plain(table.node or Fraction(0))} nm"


def _between(low: EnergyPrice, high: EnergyPrice, share: float) -> EnergyPrice:
    """So far on the way from one price to another, on a logarithmic scale."""
    if low.per != high.per or not low.picojoules or not high.picojoules:
        raise InputError(f"there is nothing between {low} and {high}: both have to be more than 0, and of one kind")
    value = exp((1 - share) * log(low.picojoules) + share * log(high.picojoules))
    return EnergyPrice(Fraction(f"{value:.{_DIGITS}g}"), low.per)


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
        if unit.pays_by_instruction:
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
    name = machine.dram.name
    price = PriceSpec(energy=memory.device, controller=memory.controller, source=memory.source)
    yield f"{name}.read", price
    yield f"{name}.write", price
    inside = "assumption: the price per bit is for whole accesses and contains the activation of rows"
    yield f"{name}.activate", PriceSpec(energy=EnergyPrice(Fraction(0), "action"), source=inside)


ARITHMETIC, OPERANDS, CONTROL, MEMORY, STATIC = "arithmetic", "operand supply", "control", "memory", "static"
"""The causes of energy that a report groups by."""

CONTROLLER = "controller"
"""What is put behind an action of main memory for the share of its controller."""


@dataclass(frozen=True)
class Entry:
    """One line of the priced ledger."""

    component: str
    action: str
    count: int
    """Actions, or bits where the price is per bit; 0 for static power."""
    joules: float
    cause: str
    source: str
    price: float = 0.0
    """Picojoules of an action or bit; watts for static power."""
    per: str = "action"
    """What the price is for: `action`, `bit` or `second`."""


class Ledger:
    """What happened, counted by component and action, with the cause that it is put down to."""

    def __init__(self) -> None:
        self._actions: dict[tuple[str, str], int] = {}
        self._bits: dict[tuple[str, str], int] = {}
        self._causes: dict[tuple[str, str], str] = {}

    def post(self, component: str, action: str, count: int, *, bits: int = 0, cause: str = MEMORY) -> None:
        """Note that a component did something `count` times, moving `bits` in all."""
        if count:
            key = component, action
            self._actions[key] = self._actions.get(key, 0) + count
            self._bits[key] = self._bits.get(key, 0) + bits
            self._causes[key] = cause

    def split(self, weights: Sequence[int], components: Set[str] | None = None) -> list[Ledger]:
        """In proportion to some weights, with nothing lost in rounding; of some components alone if they are named."""
        parts = [Ledger() for _ in weights]
        whole, before = sum(weights), 0
        for part, weight in zip(parts, weights, strict=True):
            after = before + weight
            for key, count in self._actions.items():
                if components is None or key[0] in components:
                    first, last = count * before // whole, count * after // whole
                    bits = self._bits[key] * last // count - self._bits[key] * first // count
                    part.post(*key, last - first, bits=bits, cause=self._causes[key])
            before = after
        return parts

    def counts(self) -> dict[str, int]:
        return {f"{component}.{action}": count for (component, action), count in sorted(self._actions.items())}

    def priced(self, table: EnergySpec, seconds: Fraction, machine: str) -> tuple[Entry, ...]:
        """Every action at the machine's price, then static power over the time of the run."""
        missing = [name for name in self.counts() if name not in table.actions]
        if missing:
            raise InputError(
                f"machine {machine} has no energy price for {', '.join(missing)}; "
                f"add energy.actions.{missing[0]} to its file, or an energy.table that has it "
                f"(hwsim show {machine} --resolved lists the prices it has)"
            )
        actions = [entry for key in sorted(self._actions) for entry in self._lines(key, table, machine)]
        return (*actions, *_static(table, seconds))

    def _lines(self, key: tuple[str, str], table: EnergySpec, machine: str) -> Iterator[Entry]:
        component, action = key
        price = table.actions[f"{component}.{action}"]
        yield self._line(key, action, price.energy, price, machine)
        if price.controller is not None:
            yield self._line(key, f"{action}.{CONTROLLER}", price.controller, price, machine)
        if price.control is not None:
            line = self._line(key, f"{action}.{CONTROL}", price.control, price, machine)
            yield replace(line, cause=CONTROL)

    def _line(self, key: tuple[str, str], action: str, energy: EnergyPrice, price: PriceSpec, machine: str) -> Entry:
        if energy.per == "bit" and not self._bits[key]:
            raise InputError(
                f"machine {machine} prices {'.'.join(key)} per bit, and it moves no bits; give a price per action"
            )
        amount = self._bits[key] if energy.per == "bit" else self._actions[key]
        joules = float(energy.picojoules * amount) * 1e-12
        each = float(energy.picojoules)
        return Entry(key[0], action, amount, joules, self._causes[key], price.source, each, energy.per)


def dynamic_joules(entries: tuple[Entry, ...]) -> float:
    """What the actions took, static power left out."""
    return fsum(entry.joules for entry in entries if entry.cause != STATIC)


def static_watts(table: EnergySpec) -> float:
    """What flows whatever happens."""
    return float(sum((each.power + (each.clock or 0) for each in table.static.values()), Fraction(0)))


def _static(table: EnergySpec, seconds: Fraction) -> Iterator[Entry]:
    for component, static in sorted(table.static.items()):
        for action, power in (("static", static.power), ("clock", static.clock)):
            if power is not None:
                joules = float(power * seconds)
                yield Entry(component, action, 0, joules, STATIC, static.source, float(power), "second")
