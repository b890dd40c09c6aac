"""Energy from other sides: by cause and level, by tensor, as a table of prices and sources; a power limit in words."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Any

from hwsim.energy import MEMORY, Entry
from hwsim.engine.outcome import Outcome
from hwsim.engine.throttle import Throttle
from hwsim.result import RunResult
from hwsim.text import csv_cell, watts
from hwsim.units import format_frequency

COLUMNS = ("component", "action", "cause", "count", "per", "price", "price_unit", "joules", "share", "source")


def energy_by_tensor(entries: Sequence[Entry] | None, outcome: Outcome) -> dict[str, dict[str, float]] | None:
    """Each level's energy, given to tensors by how much of them got there."""
    if entries is None:
        return None
    found: dict[str, dict[str, float]] = {name: {} for name in sorted(outcome.tensors)}
    for level, reached in outcome.reached.items():
        spent = [entry.joules for entry in entries if entry.component == level and entry.cause == MEMORY]
        joules = sum(spent)
        whole = sum(reached.values())
        for tensor, count in reached.items():
            if spent and whole and count:
                found[tensor][level] = joules * count / whole
    return found


def energy_rows(result: RunResult) -> Iterator[dict[str, Any]]:
    """The priced ledger, one row for each line, the dearest first."""
    lines = [
        (cause, name, line)
        for cause, actions in (result.energy_by_cause or {}).items()
        for name, line in actions.items()
    ]
    for cause, name, line in sorted(lines, key=lambda each: (-each[2]["joules"], each[1])):
        component, _, action = name.partition(".")
        static = line.per == "second"
        yield {
            "component": component,
            "action": action,
            "cause": cause,
            "count": result.time_s if static else line.count,
            "per": line.per,
            "price": line.price,
            "price_unit": "W" if static else "pJ",
            "joules": line.joules,
            "share": line.joules / result.energy_j if result.energy_j else 0.0,
            "source": line.source,
        }


def energy_csv(result: RunResult) -> str:
    """Counts, prices and sources in one table. `count` x `price` are the energy; of static power, seconds x watts."""
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in energy_rows(result))
    return text.getvalue()


def throttle_words(throttle: Throttle) -> str:
    return (
        f"at {format_frequency(throttle.full_clock_hz)} this run would draw {watts(throttle.wanted_w)}, more than the "
        f"machine's limit of {watts(throttle.limit_w)}: the clock was lowered to {throttle.share:.1%}, "
        f"{format_frequency(throttle.clock_hz)}"
    )


def energy_split(result: RunResult) -> dict[str, float]:
    """Joules by cause, memory level by level; the largest first. Empty without energy prices."""
    shares: dict[str, float] = {}
    for cause, actions in (result.energy_by_cause or {}).items():
        for action, line in actions.items():
            group = action.partition(".")[0] if cause == MEMORY else cause
            shares[group] = shares.get(group, 0.0) + line.joules
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))
