"""The energy ledger: counts first, prices last.

Components post actions while a run goes on (`l1.read`, `core.fma.fp32`, `core.instruction`, `dram.activate`); the
machine's table prices them at the end, and static power times simulated time is added. An action without a price is an
error.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from hwsim.errors import InputError
from hwsim.spec.energy import EnergySpec

ARITHMETIC, OPERANDS, CONTROL, MEMORY, STATIC = "arithmetic", "operand supply", "control", "memory", "static"
"""The causes of energy that a report groups by."""


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

    def counts(self) -> dict[str, int]:
        return {f"{component}.{action}": count for (component, action), count in sorted(self._actions.items())}

    def priced(self, table: EnergySpec, seconds: Fraction, machine: str) -> tuple[Entry, ...]:
        """Every action at the machine's price, then static power over the time of the run."""
        missing = [name for name in self.counts() if name not in table.actions]
        if missing:
            raise InputError(
                f"machine {machine} has no energy price for {', '.join(missing)}; "
                f"add energy.actions.{missing[0]} to its file (hwsim show {machine} --resolved lists the prices it has)"
            )
        entries = []
        for key, count in sorted(self._actions.items()):
            component, action = key
            price = table.actions[f"{component}.{action}"]
            if price.energy.per == "bit" and not self._bits[key]:
                raise InputError(
                    f"machine {machine} prices {component}.{action} per bit, and it moves no bits; "
                    "give a price per action"
                )
            amount = self._bits[key] if price.energy.per == "bit" else count
            joules = float(price.energy.picojoules * amount) * 1e-12
            entries.append(Entry(component, action, amount, joules, self._causes[key], price.source))
        for component, static in sorted(table.static.items()):
            entries.append(Entry(component, "static", 0, float(static.power * seconds), STATIC, static.source))
        return tuple(entries)
