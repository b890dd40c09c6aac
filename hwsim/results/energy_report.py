"""Energy from other sides: by tensor, as one table of counts, prices and sources, and what a power limit did."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import Any

from hwsim.energy import MEMORY, Entry
from hwsim.engine.outcome import Outcome, TensorTraffic
from hwsim.engine.throttle import Throttle
from hwsim.results.result import RunResult
from hwsim.results.text import watts
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import DramSpec
from hwsim.units import format_frequency

COLUMNS = ("component", "action", "cause", "count", "per", "price", "price_unit", "joules", "share", "source")


def energy_by_tensor(
    entries: Sequence[Entry] | None, outcome: Outcome, machine: MachineSpec
) -> dict[str, dict[str, float]] | None:
    """Each level's energy, given to tensors by how often they reached it: by accesses first, then by misses above."""
    if entries is None:
        return None
    if outcome.array is not None:
        return _of_main_memory(entries, outcome, machine)
    spent = {entry.component for entry in entries if entry.cause == MEMORY}
    levels = [level.name for level in machine.memory if level.name in spent]
    found: dict[str, dict[str, float]] = {name: {} for name in sorted(outcome.tensors)}
    for level in levels:
        joules = sum(entry.joules for entry in entries if entry.component == level and entry.cause == MEMORY)
        reached = _reached(level, outcome.tensors, list(outcome.levels))
        whole = sum(reached.values())
        for tensor, count in reached.items():
            if whole and count:
                found[tensor][level] = joules * count / whole
    return found


def _of_main_memory(entries: Sequence[Entry], outcome: Outcome, machine: MachineSpec) -> dict[str, dict[str, float]]:
    """On an array, what is known of each tensor is what it moved to and from main memory."""
    dram = next(level.name for level in machine.memory if isinstance(level, DramSpec))
    joules = sum(entry.joules for entry in entries if entry.component == dram and entry.cause == MEMORY)
    moved = {name: traffic.loads + traffic.stores for name, traffic in sorted(outcome.tensors.items())}
    whole = sum(moved.values())
    return {name: {dram: joules * count / whole} if count else {} for name, count in moved.items()}


def energy_rows(result: RunResult) -> Iterator[dict[str, Any]]:
    """The priced ledger, one row for each line, the dearest first."""
    lines = [
        (cause, name, line)
        for cause, actions in (result.energy_by_cause or {}).items()
        for name, line in actions.items()
    ]
    for cause, name, line in sorted(lines, key=lambda each: (-each[2]["joules"], each[1])):
        component, _, action = name.partition(".")
        static = line["per"] == "second"
        yield {
            "component": component,
            "action": action,
            "cause": cause,
            "count": result.time_s if static else line["count"],
            "per": line["per"],
            "price": line["price"],
            "price_unit": "W" if static else "pJ",
            "joules": line["joules"],
            "share": line["joules"] / result.energy_j if result.energy_j else 0.0,
            "source": line["source"],
        }


def energy_csv(result: RunResult) -> str:
    """Counts, prices and sources in one table. `count` x `price` are the energy; of static power, seconds x watts."""
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(energy_rows(result))
    return text.getvalue()


def throttle_words(throttle: Throttle) -> str:
    return (
        f"at {format_frequency(throttle.full_clock_hz)} this run would draw {watts(throttle.wanted_w)}, more than the "
        f"machine's limit of {watts(throttle.limit_w)}: the clock was lowered to {throttle.share:.1%}, "
        f"{format_frequency(throttle.clock_hz)}"
    )


def _reached(level: str, tensors: Mapping[str, TensorTraffic], caches: Sequence[str]) -> dict[str, int]:
    """How often each tensor got as far as a level: its misses in the cache inside it, or all its accesses."""
    above = caches[caches.index(level) - 1] if level in caches and caches.index(level) else None
    if level not in caches and caches:
        above = caches[-1]
    return {
        name: traffic.loads + traffic.stores if above is None else traffic.misses.get(above, 0)
        for name, traffic in tensors.items()
    }
