"""Power over time: what each step took, spread over the time that it took, on top of what flows whatever happens."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hwsim.energy import dynamic_joules, static_watts
from hwsim.engine.outcome import FEMTOSECONDS, Outcome
from hwsim.spec.machine import MachineSpec

MOST_BINS = 1000


@dataclass(frozen=True)
class PowerBin:
    """Average power between two moments."""

    start_fs: int
    end_fs: int
    watts: float


def power_over_time(machine: MachineSpec, outcome: Outcome, bins: int = MOST_BINS) -> tuple[PowerBin, ...]:
    """The run in equal pieces of time, whose mean is the run's power. Empty without a timeline or without prices."""
    if machine.energy is None or not outcome.pulses or not outcome.elapsed_fs:
        return ()
    joules = [0.0] * min(bins, outcome.elapsed_fs)
    width = outcome.elapsed_fs / len(joules)
    for pulse in outcome.pulses:
        taken = dynamic_joules(pulse.ledger.priced(machine.energy, Fraction(0), machine.name))
        _spread(joules, width, pulse.start_fs, max(pulse.end_fs, pulse.start_fs + 1), taken)
    idle = static_watts(machine.energy)
    edges = [round(number * width) for number in range(len(joules) + 1)]
    return tuple(
        PowerBin(start, end, idle + taken / width * FEMTOSECONDS)
        for start, end, taken in zip(edges, edges[1:], joules, strict=False)
    )


def _spread(joules: list[float], width: float, start: int, end: int, taken: float) -> None:
    first, last = min(int(start / width), len(joules) - 1), min(int(end / width), len(joules) - 1)
    for number in range(first, last + 1):
        inside = min(end, (number + 1) * width) - max(start, number * width)
        if number == last:
            inside = max(inside, end - max(start, number * width))
        joules[number] += taken * max(0.0, inside) / (end - start)
