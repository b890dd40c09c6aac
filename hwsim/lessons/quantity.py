"""Numbers of runs by name: metrics, paths into a result, and ratios between two runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hwsim.errors import InputError
from hwsim.results.metrics import METRICS, energy_split, full_name, metrics_of, write
from hwsim.spec.fields import did_you_mean
from hwsim.text import percent, ratio, seconds

if TYPE_CHECKING:
    from hwsim.result import RunResult
    from hwsim.spec.lesson import QuantitySpec

INSTRUCTIONS, SHARE, OVER_LONGEST = "instructions", "share.", "time over longest part"
"""Beside metrics: all instructions, loop control left out; the share of a part in the energy that is not static; the
time over what its longest part would take alone."""
_LOOP = "other"


@dataclass(frozen=True)
class Quantity:
    """A number with how people write it."""

    number: float
    text: str


def measure(results: Mapping[str, RunResult], wanted: QuantitySpec) -> Quantity:
    """The number that a claim or an exercise is about."""
    assert wanted.run is not None
    value = number_of(results[wanted.run], wanted.metric)
    if wanted.over is None:
        return Quantity(value, write_number(wanted.metric, value))
    below = number_of(results[wanted.over], wanted.metric)
    if not below:
        raise InputError(f"{wanted.metric} of '{wanted.over}' is 0: nothing can be divided by it")
    return Quantity(value / below, ratio(value / below))


def number_of(result: RunResult, name: str) -> float:
    """A number of a run. Raises InputError where it has none of that name."""
    found = find_number(result, name)
    if found is None:
        known = [*METRICS, *(key for key in metrics_of(result) if "." in key), INSTRUCTIONS]
        raise InputError(f"a run has no number '{name}'{did_you_mean(name, known)}; numbers: {', '.join(known)}")
    return found


def find_number(result: RunResult, name: str) -> float | None:
    """A number of a run; None where this one has none of that name, as a GPU has no L1 misses."""
    found = _look_up(result, full_name(name))
    return None if isinstance(found, bool) or not isinstance(found, int | float) else float(found)


def write_number(name: str, value: float | None) -> str:
    """With its unit; a dash where there is no such number."""
    if value is None:
        return "–"
    if name.startswith(SHARE):
        return percent(value, 1)
    if name == OVER_LONGEST:
        return ratio(value)
    if name.startswith("bounds."):
        return seconds(value)
    if float(value).is_integer() and name not in METRICS and not name.startswith("energy") and ".bytes" not in name:
        return f"{int(value):,}"
    return write(full_name(name), int(value) if float(value).is_integer() and value < 2**53 else value)


def runs_best(results: Mapping[str, RunResult], metric: str) -> str:
    """The label of the run with the least of a metric; the first of equal ones."""
    return min(results, key=lambda label: number_of(results[label], metric))


def _look_up(result: RunResult, name: str) -> Any:
    row = metrics_of(result)
    if name in row:
        return row[name]
    if name == OVER_LONGEST:
        return result.time_s / result.bounds.lower_s if result.bounds.lower_s else None
    if name == INSTRUCTIONS:
        return sum(count for kind, count in result.work.instructions.items() if kind != _LOOP)
    if name.startswith(SHARE):
        return _share(result, name.removeprefix(SHARE))
    found: Any = result.to_dict()
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def _share(result: RunResult, part: str) -> float | None:
    """Of arithmetic, control, operand supply or a memory level; none where the machine has no prices."""
    split = energy_split(result)
    dynamic = sum(amount for name, amount in split.items() if name != "static")
    return split.get(part, 0.0) / dynamic if dynamic else None
