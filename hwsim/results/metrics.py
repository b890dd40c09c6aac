"""A result as one flat row of numbers: what tables, plots and searches choose from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hwsim.results.energy_split import energy_split
from hwsim.results.result import RunResult
from hwsim.results.text import data, digits, joules, percent, rate, seconds, short, watts

Metric = float | int | str | bool | None


@dataclass(frozen=True)
class About:
    """What a metric is called, how it is written, and which direction is good."""

    title: str
    unit: str
    higher_is_better: bool = False


KNOWN: Mapping[str, About] = {
    "time_s": About("time", "s"),
    "cycles": About("cycles", ""),
    "energy_j": About("energy", "J"),
    "edp_js": About("energy × time", "J·s"),
    "power_w": About("power", "W"),
    "error_max_rel": About("largest error", ""),
    "error_rms_rel": About("rms error", ""),
    "error_of_format": About("rms error, rounding of the inputs counted in", ""),
    "peak_memory_bytes": About("peak memory", "B"),
    "utilisation": About("of peak", "%", higher_is_better=True),
    "flops": About("operations", ""),
    "flops_per_s": About("speed", "FLOP/s", higher_is_better=True),
    "loads": About("loads", ""),
    "stores": About("stores", ""),
}
SHORT_NAMES = {"time": "time_s", "energy": "energy_j", "edp": "edp_js", "error": "error_max_rel", "power": "power_w"}
"""What people type."""

_ENDINGS = {".bytes": "B", ".fills": "", ".misses": "", ".hit_rate": "%"}


def metrics_of(result: RunResult) -> dict[str, Metric]:
    """Every number of a run that a sweep may compare; levels under their own names."""
    row: dict[str, Metric] = {
        "time_s": result.time_s,
        "energy_j": result.energy_j,
        "edp_js": None if result.energy_j is None else result.energy_j * result.time_s,
        "power_w": result.power_w,
        "cycles": result.cycles,
        "error_max_rel": None if result.error is None else result.error.max_rel,
        "error_rms_rel": None if result.error is None else result.error.rms_rel,
        "error_of_format": None if result.numeric is None else result.numeric.rms_rel,
        "peak_memory_bytes": result.peak_memory_bytes,
        "utilisation": result.utilisation,
        "verified": result.verified,
    }
    row |= {name: result.work.get(name) for name in ("flops", "flops_per_s", "loads", "stores")}
    for name, counts in result.memory.items():
        row[f"{name}.bytes"] = counts.bytes_read + counts.bytes_written
    for name, cache in result.caches.items():
        row[f"{name}.fills"] = cache.misses + cache.prefetches
        row[f"{name}.misses"] = cache.misses
        row[f"{name}.hit_rate"] = cache.hits / cache.accesses if cache.accesses else None
    row |= {f"energy.{name}": amount for name, amount in energy_split(result).items()}
    return row


def full_name(name: str) -> str:
    """``time`` as ``time_s``; any other name as it is."""
    return SHORT_NAMES.get(name, name)


def about(name: str) -> About:
    """What is known of a metric, whatever levels a machine has."""
    if name in KNOWN:
        return KNOWN[name]
    if name.startswith("energy."):
        return About(f"energy: {name.removeprefix('energy.')}", "J")
    for ending, unit in _ENDINGS.items():
        if name.endswith(ending):
            what = {".bytes": "traffic", ".fills": "lines filled", ".misses": "misses", ".hit_rate": "hits"}[ending]
            return About(f"{name.removesuffix(ending)} {what}", unit, higher_is_better=ending == ".hit_rate")
    return About(name, "")


def write(name: str, value: Any) -> str:
    """A value with its unit, as people read it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    unit = about(name).unit
    if unit == "s":
        return seconds(value)
    if unit == "J":
        return joules(value)
    if unit == "W":
        return watts(value)
    if unit == "B":
        return data(value)
    if unit == "%":
        return percent(value, 1)
    if unit == "FLOP/s":
        return rate(value, "FLOP")
    if unit == "J·s" or name.startswith("error"):
        return f"{value:.2e}".replace("e-0", "e-") + (f" {unit}" if unit else "")
    if abs(value) >= 1e4 or isinstance(value, int):
        return short(value)
    return digits(value)
