"""RunResult: what a run found out, as data; JSON in and out, and a few lines for a terminal or a notebook."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from hwsim.errors import InputError
from hwsim.hardware.counters import CacheCounters, DramCounters, ScratchpadCounters
from hwsim.numerics.error import NumericReport
from hwsim.numerics.format import Array
from hwsim.results.attribution import Attribution
from hwsim.results.verify import NumericError

if TYPE_CHECKING:
    from hwsim.results.plot.of_run import RunPlots

Counts = CacheCounters | DramCounters | ScratchpadCounters

FIRST_COUNTS = (
    "reads", "writes", "read_misses", "write_misses", "writebacks", "bytes_read", "bytes_written",
)  # fmt: skip
"""What JSON gives for every level, also where it must be zero; the other counters follow."""


@dataclass(frozen=True, repr=False)
class RunResult:
    """One run: what was simulated, what it cost, and where that went. Equal inputs give equal results."""

    machine: str
    workload: str
    version: str
    seed: int
    verified: bool | None
    """Whether the computed answer is right; None where none was computed."""
    cycles: int
    time_s: float
    energy_j: float | None
    """None where the machine has no energy prices."""
    power_w: float | None
    energy: dict[str, float] | None
    """Joules by component, static power counted in."""
    memory: dict[str, Counts]
    """Counters by level, all cores added up; main memory has DramCounters."""
    work: dict[str, Any]
    """Operations, loads, stores, instructions by class, cores, rate and peak rate."""
    intensity: dict[str, Any]
    """Operations per element and per byte accessed, and per byte between each level and the one above."""
    error: NumericError | None
    """The answer against float64 from the inputs as they are stored: what the computation did wrong."""
    attribution: Attribution
    """Cycles of each core, busy by unit and waiting by resource; they add up to the core's cycles."""
    peak_memory_bytes: int
    warnings: tuple[str, ...]
    resolved: dict[str, Any]
    """The machine and the workload as they were simulated, every default filled in."""
    bounds: dict[str, Any]
    """``lower_s``: all parts overlap; ``upper_s``: none do; ``parts``: seconds that each would take alone."""
    energy_by_cause: dict[str, dict[str, dict[str, Any]]] | None
    """The priced ledger: cause, then action, then its count and joules, its price, what that is per, and its source."""
    energy_by_tensor: dict[str, dict[str, float]] | None
    """Joules of each memory level by the tensor that was moved, in proportion to its accesses there."""
    throttle: dict[str, Any] | None
    """What the machine's power limit did to the clock; None where it did nothing."""
    formulas: tuple[dict[str, Any], ...]
    """Closed forms beside what was simulated, with the reason for a gap."""
    tensors: dict[str, dict[str, Any]]
    """Loads, stores, distinct bytes and misses per level of each tensor."""
    stages: tuple[dict[str, Any], ...]
    """One after the other: name, cycles, operations, and what each tensor moved meanwhile. A chain has one for each
    operation, or for each group of fused ones."""
    replay: dict[str, Any]
    """How the accesses were replayed: ``model``, ``accesses``, and those ``skipped`` because they repeat."""
    numeric: NumericReport | None
    """The answer against float64 from the inputs before they were rounded: what the precision costs in all."""
    output: Array | None = field(default=None, compare=False)
    """The computed answer; not part of JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in the order of the fields."""
        data = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "output"}
        data["memory"] = {name: _counts_data(counts) for name, counts in self.memory.items()}
        data["error"] = _error_data(self.error)
        data["numeric"] = None if self.numeric is None else self.numeric.to_dict()
        data["warnings"] = list(self.warnings)
        data["formulas"] = [dict(each) for each in self.formulas]
        data["stages"] = [dict(each) for each in self.stages]
        return data

    def to_json(self) -> str:
        """The same as indented JSON text; equal runs give equal bytes."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunResult:
        """Raises InputError where something is missing."""
        known = {each.name for each in fields(cls)} - {"output"}
        missing = sorted(known - data.keys())
        if missing:
            raise InputError(f"not the result of a run: {', '.join(missing)} missing")
        values = {name: data[name] for name in known}
        values["memory"] = {name: _counts_from(counts) for name, counts in data["memory"].items()}
        values["error"] = _error_from(data["error"])
        values["numeric"] = None if data["numeric"] is None else NumericReport.from_dict(data["numeric"])
        values["warnings"] = tuple(data["warnings"])
        values["formulas"] = tuple(data["formulas"])
        values["stages"] = tuple(data["stages"])
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> RunResult:
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InputError(f"not JSON: {error}") from error
        if not isinstance(data, dict):
            raise InputError("not the result of a run: the JSON is no object")
        return cls.from_dict(data)

    @property
    def caches(self) -> dict[str, CacheCounters]:
        return {name: each for name, each in self.memory.items() if isinstance(each, CacheCounters)}

    @property
    def utilisation(self) -> float:
        """Share of the arithmetic that the cores at work could have done."""
        peak = self.work["peak_flops_per_s"]
        return float(self.work["flops_per_s"]) / peak if peak else 0.0

    @property
    def energy_per_op_pj(self) -> float | None:
        """Picojoules for each arithmetic operation, everything counted in."""
        flops = self.work["flops"]
        return None if self.energy_j is None or not flops else self.energy_j / flops * 1e12

    @property
    def edp_js(self) -> float | None:
        """Energy times delay, in joule-seconds: what a slower, thriftier run has to be better in."""
        return None if self.energy_j is None else self.energy_j * self.time_s

    @property
    def plot(self) -> RunPlots:
        """The plots of this run: ``result.plot.split("run.png")``, energy, traffic, roofline, diagram, …"""
        from hwsim.results.plot.of_run import RunPlots

        return RunPlots(self)

    def __repr__(self) -> str:
        from hwsim.results.summary import summary_lines

        return "\n".join(summary_lines(self))

    def _repr_html_(self) -> str:
        from hwsim.results.summary import summary_html

        return summary_html(self)


def _counts_data(counts: Counts) -> dict[str, int]:
    own = counts.to_dict()
    return {name: own.get(name, 0) for name in FIRST_COUNTS} | {
        name: count for name, count in own.items() if name not in FIRST_COUNTS
    }


def _counts_from(data: Mapping[str, int]) -> Counts:
    kind: type[Counts] = CacheCounters
    if "row_hits" in data or "bytes_filled" in data:
        kind = DramCounters if "row_hits" in data else ScratchpadCounters
    return kind(**{each.name: data[each.name] for each in fields(kind)})


def _error_data(error: NumericError | None) -> dict[str, float | None] | None:
    """JSON has no infinity: an error that is none of the numbers is null."""
    if error is None:
        return None
    pairs = {"max_rel": error.max_rel, "rms_rel": error.rms_rel}
    return {name: value if value < float("inf") else None for name, value in pairs.items()}


def _error_from(data: Mapping[str, float | None] | None) -> NumericError | None:
    if data is None:
        return None
    values: Sequence[float] = [
        float("inf") if data[name] is None else float(data[name] or 0.0) for name in ("max_rel", "rms_rel")
    ]
    return NumericError(*values)
