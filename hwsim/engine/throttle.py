"""The power limit: a run that would draw more has the clocks of its compute units lowered until it does not.

Energy per action stays what it is (the voltage is not lowered), so power falls because the same actions take longer.
Memory with a clock of its own keeps its pace: a run that waits for DRAM loses little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from hwsim.energy import dynamic_joules, static_watts
from hwsim.engine.outcome import FEMTOSECONDS, Outcome
from hwsim.record import Record
from hwsim.spec.machine import MachineSpec

_TRIES = 16
_CLOSE = 0.99
"""Power that is this near the limit is near enough."""
_SLOWEST = Fraction(1, 20)
_FINEST = Fraction(1, 1000)
"""Shares of the clock that are no further apart than this are as good as one."""


@dataclass(frozen=True)
class Throttle(Record):
    """What the power limit did to a run."""

    limit_w: float
    wanted_w: float
    """Average power at the full clock."""
    share: float
    """Of the full clock."""
    clock_hz: int
    full_clock_hz: int


def average_watts(machine: MachineSpec, outcome: Outcome) -> float:
    """Energy over time; 0 for a machine without prices."""
    if machine.energy is None or not outcome.elapsed_fs:
        return 0.0
    seconds = Fraction(outcome.elapsed_fs, FEMTOSECONDS)
    entries = outcome.ledger.priced(machine.energy, seconds, machine.name)
    return dynamic_joules(entries) / float(seconds) + static_watts(machine.energy)


def lower_clocks(machine: MachineSpec, share: Fraction) -> MachineSpec:
    """The machine with the clocks of its compute units, and the power of its clock trees, at a share of theirs."""
    default = machine.clocks[0].name
    slowed = {unit.clock or default for unit in machine.compute}
    clocks = tuple(
        clock.model_copy(update={"frequency": max(1, int(clock.frequency * share))}) if clock.name in slowed else clock
        for clock in machine.clocks
    )
    changes: dict[str, object] = {"clocks": clocks}
    if machine.energy is not None:
        static = {
            name: each.model_copy(update={"clock": None if each.clock is None else each.clock * share})
            for name, each in machine.energy.static.items()
        }
        changes["energy"] = machine.energy.model_copy(update={"static": static})
    return machine.model_copy(update=changes)


def keep_within_limit(
    machine: MachineSpec, outcome: Outcome, again: Callable[[MachineSpec], Outcome]
) -> tuple[MachineSpec, Outcome, Throttle | None]:
    """The run itself if it draws no more than the limit, or one at the highest clock found that does not."""
    limit = machine.energy.tdp if machine.energy is not None else None
    wanted = average_watts(machine, outcome) if limit is not None else 0.0
    if limit is None or wanted <= float(limit.power):
        return machine, outcome, None
    power = float(limit.power)
    share, slowed, result = find_share(machine, power, wanted, again)
    full = machine.clock_hz(machine.compute[0].clock)
    return slowed, result, Throttle(power, wanted, float(share), slowed.clock_hz(machine.compute[0].clock), full)


def find_share(
    machine: MachineSpec, limit_w: float, wanted_w: float, again: Callable[[MachineSpec], Outcome]
) -> tuple[Fraction, MachineSpec, Outcome]:
    """The highest share of the clock, up to a percent of power or a thousandth of the clock, that keeps to a limit.

    A run that waits for memory draws no less at a slightly lower clock, so power may stay where it is for a while and
    then fall steeply. The search goes down in steps that double, then closes in from both sides.
    """
    idle = static_watts(machine.energy) if machine.energy is not None else 0.0
    dynamic = wanted_w - idle
    guess = (limit_w - idle) / dynamic if dynamic > 0 else 1.0
    high, above_w, step = Fraction(1), wanted_w, max(_FINEST, 1 - _thousandths(guess))
    share = max(_SLOWEST, high - step)
    found: tuple[Fraction, MachineSpec, Outcome] | None = None
    for _ in range(_TRIES):
        slowed = lower_clocks(machine, share)
        outcome = again(slowed)
        watts = average_watts(slowed, outcome)
        if watts <= limit_w or share == _SLOWEST:
            found, below_w = (share, slowed, outcome), watts
            if watts >= _CLOSE * limit_w or (share == _SLOWEST and watts > limit_w):
                break
        else:
            high, above_w = share, watts
        if found is None:
            step *= 2
            share = max(_SLOWEST, high - step)
        elif high - found[0] <= _FINEST:
            break
        else:
            share = _between(found[0], below_w, high, above_w, limit_w)
    if found is None:
        slowed = lower_clocks(machine, _SLOWEST)
        found = _SLOWEST, slowed, again(slowed)
    return found


def _between(low: Fraction, low_w: float, high: Fraction, high_w: float, limit_w: float) -> Fraction:
    """Where a straight line between two shares meets the limit, at least a quarter of the way from either."""
    place = (limit_w - low_w) / (high_w - low_w)
    inside = min(0.75, max(0.25, place))
    return max(low + _FINEST, min(high - _FINEST, _thousandths(float(low) + inside * float(high - low))))


def _thousandths(share: float) -> Fraction:
    return Fraction(int(1000 * share), 1000)
