"""The closed forms of the course beside what was simulated, with the reason for a gap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hwsim.engine.outcome import FEMTOSECONDS, Outcome
from hwsim.hardware.core import CpuCore
from hwsim.hardware.counters import CacheCounters, DramCounters, ScratchpadCounters
from hwsim.kernels.kernel import Formula, Kernel
from hwsim.results.conflict import Crowding, find_crowding
from hwsim.results.text import counted, digits
from hwsim.spec.machine import MachineSpec

SAME = 0.001
"""Closer than this counts as equal: the formula is a real number, and the simulation counts whole lines."""


def compare_formulas(
    machine: MachineSpec,
    kernel: Kernel,
    outcome: Outcome,
    memory: Mapping[str, CacheCounters | DramCounters | ScratchpadCounters],
    intensity: Mapping[str, Any],
) -> tuple[dict[str, Any], ...]:
    """Every formula whose counterpart was simulated."""
    rows = []
    for formula in kernel.formulas():
        simulated = find_simulated(formula.compare, kernel, outcome, memory, intensity)
        predicted = _seconds(formula, machine) if formula.compare == "time_s" else formula.value
        if simulated is None or predicted is None:
            continue
        gap = simulated / predicted if predicted else None
        rows.append(
            {
                "name": formula.name,
                "expression": formula.expression,
                "unit": formula.unit,
                "compare": formula.compare,
                "predicted": predicted,
                "simulated": simulated,
                "ratio": gap,
                "reason": "" if gap is None else _reason(formula, gap, simulated, machine, kernel, outcome, intensity),
            }
        )
    return tuple(rows)


def find_simulated(
    name: str,
    kernel: Kernel,
    outcome: Outcome,
    memory: Mapping[str, CacheCounters | DramCounters | ScratchpadCounters],
    intensity: Mapping[str, Any],
) -> int | float | None:
    """The simulated number that a formula names; None where this machine has no such thing."""
    part, _, rest = name.partition(".")
    if part == "time_s":
        return outcome.elapsed_fs / FEMTOSECONDS
    if part == "macs":
        return outcome.macs
    if part == "bytes":
        return kernel.bytes_of(rest)
    if part in ("loads", "stores"):
        if not rest:
            return outcome.loads if part == "loads" else outcome.stores
        traffic = outcome.tensors.get(rest)
        return None if traffic is None else traffic.loads if part == "loads" else traffic.stores
    if part in ("flops", "macs"):
        return outcome.flops if part == "flops" else outcome.macs
    if part == "intensity":
        value: float | None = intensity[rest]
        return value
    counts = memory.get(part)
    if counts is None:
        return None
    if rest == "fills":
        return counts.misses + counts.prefetches if isinstance(counts, CacheCounters) else None
    found: int | None = getattr(counts, rest, None)
    return found


def _seconds(formula: Formula, machine: MachineSpec) -> float | None:
    """What a formula's bytes take at the bandwidths of a machine; None where one of them has no limit."""
    core = CpuCore(machine, machine.cpu)
    if not machine.caches:
        return None
    rates = core.read_rate(core.dram), core.read_rate(machine.caches[0])
    if rates[0] is None or rates[1] is None:
        return None
    return float((formula.far / rates[0] + formula.near / rates[1]) / core.clock_hz)


def _reason(
    formula: Formula,
    gap: float,
    simulated: int | float,
    machine: MachineSpec,
    kernel: Kernel,
    outcome: Outcome,
    intensity: Mapping[str, Any],
) -> str:
    """Why the two differ, as far as the counts tell; nothing where they agree."""
    if abs(gap - 1) <= SAME:
        return ""
    if formula.compare == "time_s":
        return "the formula adds up two transfers, and leaves out arithmetic, latency, C and what overlaps"
    if formula.compare.endswith(".fills"):
        level = formula.compare.removesuffix(".fills")
        return _fills_reason(formula, simulated, level, machine, kernel, outcome)
    if formula.compare.startswith("intensity."):
        if gap > 1:
            return "fewer bytes move than the formula counts"
        far = list(intensity["levels"])[-1]
        per_far = intensity["levels"][far]
        beyond = f"; per byte from {far} it is {digits(per_far)}" if per_far else ""
        return f"elements are loaded into registers more than once{beyond}"
    if formula.compare.endswith((".bytes_read", ".bytes_written")):
        return _bytes_reason(formula.compare, gap)
    if formula.compare.startswith("bytes."):
        return "at the edges there are fewer outputs than the formula counts, or more"
    if formula.compare == "macs":
        return "outputs at the edges are left out" if gap < 1 else "products are counted that the formula leaves out"
    if formula.compare.startswith("loads") and gap > 1:
        return "edges of tiles and sums that come back from memory are loaded as well"
    return "vectors move several elements at once" if gap < 1 else "sums go to memory more than once"


def _bytes_reason(compare: str, gap: float) -> str:
    if gap > 1:
        return "lines that the formula leaves out, such as scratch space, move as well"
    if compare.endswith(".bytes_read"):
        return "part of it is still in a cache when it is needed again"
    return "part of it is still in a cache when the run ends"


def _fills_reason(
    formula: Formula,
    simulated: int | float,
    level: str,
    machine: MachineSpec,
    kernel: Kernel,
    outcome: Outcome,
) -> str:
    if simulated < formula.value:
        return "part of it is still in the cache when it is needed again"
    misses = {name: traffic.misses.get(level, 0) for name, traffic in outcome.tensors.items()}
    outputs = sum(count for name, count in misses.items() if outcome.tensors[name].stores)
    if outputs and abs(simulated - outputs - formula.value) <= SAME * formula.value and "A and B" in formula.name:
        lines = counted(outputs, "line")
        return f"the formula leaves C out: {lines} of it, fetched because a store that misses allocates"
    spec = next((cache for cache in machine.caches if cache.name == level), None)
    lengths, counts = rows_of(kernel)
    worst_first = sorted(lengths, key=lambda name: -misses.get(name, 0))
    crowding = None if spec is None else find_crowding(spec, {name: lengths[name] for name in worst_first}, counts)
    if crowding is not None:
        return crowding_words(crowding)
    return f"{level} does not keep everything until it is used again: too many lines come between two uses"


def rows_of(kernel: Kernel) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes from one row to the next of each tensor with two axes, and its number of rows."""
    flat = {name: view for name, view in kernel.tensors.items() if len(view.shape) == 2}
    return (
        {name: int(view.strides[0] * view.element_bytes) for name, view in flat.items()},
        {name: view.shape[0] for name, view in flat.items()},
    )


def crowding_words(crowding: Crowding) -> str:
    return (
        f"set conflicts: rows of {crowding.tensor} are {crowding.row_bytes:,} B apart, so a column falls "
        f"into only {crowding.used_sets} of {crowding.sets} sets"
    )
