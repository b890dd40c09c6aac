"""The energy ledger: counts first, prices last.

Components post actions while a run goes on (`l1.read`, `core.fma.fp32`, `core.instruction`, `dram.activate`); the
machine's table prices them at the end, and static power times simulated time is added. An action without a price is an
error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from math import fsum

from hwsim.errors import InputError
from hwsim.spec.machine import EnergySpec, PriceSpec
from hwsim.units import EnergyPrice

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
        self._actions: Counter[tuple[str, str]] = Counter()
        self._bits: Counter[tuple[str, str]] = Counter()
        self._causes: dict[tuple[str, str], str] = {}

    def post(self, component: str, action: str, count: int, *, bits: int = 0, cause: str = MEMORY) -> None:
        """Note that a component did something `count` times, moving `bits` in all."""
        if count:
            self._actions[component, action] += count
            self._bits[component, action] += bits
            self._causes[component, action] = cause

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
