"""RunResult: what a run found out, as data; JSON in and out, and a few lines for a terminal or a notebook."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import isclose
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from pydantic import ValidationError

from hwsim.engine import Attribution, TensorTraffic, Throttle
from hwsim.errors import InputError
from hwsim.memory.counters import CacheCounters, DramCounters, ScratchpadCounters
from hwsim.numerics.format import Array
from hwsim.numerics.quantize import NumericError, NumericReport
from hwsim.record import Bars, ErrorBar, Record, Signed, mismatch, plain, typed
from hwsim.spec.machine import MachineSpec
from hwsim.spec.rules import check_level, check_machine
from hwsim.spec.workload import WorkloadSpec, workload_model

if TYPE_CHECKING:
    from hwsim.results.plot.run import RunPlots


Counts = CacheCounters | DramCounters | ScratchpadCounters


def bytes_moved(counts: Counts) -> int:
    """Bytes that a level delivered and took."""
    return counts.bytes_read + counts.bytes_written


FIRST_COUNTS = (
    "reads", "writes", "read_misses", "write_misses", "writebacks", "bytes_read", "bytes_written",
)  # fmt: skip
"""What JSON gives for every level, also where it must be zero; the other counters follow."""


@dataclass(frozen=True)
class WorkDone(Record):
    """What was computed, and how fast."""

    flops: int
    useful_flops: int
    """Those that the mathematics needs: a schedule may do some twice."""
    macs: int
    loads: int
    stores: int
    """Elements that went from memory to registers, or to the chip, and back."""
    instructions: Mapping[str, int]
    """By class."""
    cores: int
    """Compute units that took part."""
    flops_per_s: float
    peak_flops_per_s: float
    """What the units at work could have done, at the clock that a power limit left them."""
    use: Mapping[str, Any] = field(default_factory=dict)
    """What only this class of machines has to tell: launches of a GPU, passes of an array. JSON has it beside the
    others."""

    def __iter__(self) -> Iterator[str]:
        return iter([*(each.name for each in fields(self) if each.name != "use"), *self.use])

    def __getitem__(self, name: str) -> Any:
        return self.use[name] if name in self.use else super().__getitem__(name)


@dataclass(frozen=True)
class Intensity(Record):
    """Operations per element and per byte accessed, and per byte between each level and the one above."""

    element: float | None
    byte: float | None
    levels: Mapping[str, float | None]


@dataclass(frozen=True)
class TimeBounds(Record):
    """What the time lies between."""

    lower_s: float
    """All parts overlap."""
    upper_s: float
    """None do."""
    parts: Mapping[str, float]
    """Seconds that each would take alone."""


@dataclass(frozen=True)
class EnergyLine(Record):
    """One action of the priced ledger."""

    count: int
    """Actions, or bits where the price is per bit; 0 for static power."""
    joules: float
    price: float
    """Picojoules of an action or bit; watts for static power."""
    per: str
    """What the price is for: `action`, `bit` or `second`."""
    source: str


@dataclass(frozen=True)
class FormulaCheck(Record):
    """A closed form beside what was simulated."""

    name: str
    expression: str
    unit: str
    compare: str
    """The simulated number that it is about: ``loads.A``, ``l1.fills``."""
    predicted: int | float
    simulated: int | float
    ratio: float | None
    reason: str
    """Why they differ; nothing where they do not."""


@dataclass(frozen=True)
class TensorUse(Record):
    """One tensor: its size, and what was moved of it."""

    elements: int
    bytes: int
    loads: int
    stores: int
    misses: Mapping[str, int]
    """By level."""
    rows: int | None
    row_bytes: int | None


@dataclass(frozen=True)
class StageResult(Record):
    """One operation of a chain, or a group of fused ones: what it took, and what each tensor moved meanwhile."""

    name: str
    cycles: int
    time_s: float
    flops: int
    tensors: Mapping[str, TensorTraffic]


@dataclass(frozen=True)
class ReplayModel(Record):
    """How the accesses were replayed."""

    model: str
    accesses: int
    skipped: int
    """Accesses that were not walked because they repeat."""


@dataclass(frozen=True)
class Resolved(Record):
    """The machine and the workload as they were simulated, every default filled in: as YAML files would say it."""

    machine: Mapping[str, Any]
    workload: Mapping[str, Any]


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
    work: WorkDone
    intensity: Intensity
    error: NumericError | None
    """The answer against float64 from the inputs as they are stored: what the computation did wrong."""
    attribution: Attribution
    """Cycles of each core, busy by unit and waiting by resource; they add up to the core's cycles."""
    peak_memory_bytes: int
    warnings: tuple[str, ...]
    resolved: Resolved
    bounds: TimeBounds
    bars: Bars
    """How far off time, energy and power are likely to be: `result.time.low`, `result.energy_bar.high`."""
    energy_by_cause: dict[str, dict[str, EnergyLine]] | None
    """The priced ledger: cause, then action."""
    energy_by_tensor: dict[str, dict[str, float]] | None
    """Joules of each memory level by the tensor that was moved, in proportion to its accesses there."""
    throttle: Throttle | None
    """What the machine's power limit did to the clock; None where it did nothing."""
    formulas: tuple[FormulaCheck, ...]
    tensors: dict[str, TensorUse]
    stages: tuple[StageResult, ...]
    """One after the other."""
    replay: ReplayModel
    numeric: NumericReport | None
    """The answer against float64 from the inputs before they were rounded: what the precision costs in all."""
    output: Array | None = field(default=None, compare=False)
    """The computed answer; not part of JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in the order of the fields."""
        data = {each.name: plain(getattr(self, each.name)) for each in fields(self) if each.name != "output"}
        data["memory"] = {name: _counts_data(counts) for name, counts in self.memory.items()}
        data["error"] = self.error and self.error.to_dict()
        data["numeric"] = self.numeric and self.numeric.to_dict()
        return data

    def to_json(self) -> str:
        """The same as indented JSON text; equal runs give equal bytes."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunResult:
        """Raises InputError where something is missing."""
        declared = _declared()
        missing = sorted(declared.keys() - data.keys())
        if missing:
            raise InputError(f"not the result of a run: {', '.join(missing)} missing")
        try:
            found = {name: typed(kind, data[name]) for name, kind in declared.items()}
            found["memory"] = {name: _counts_from(counts) for name, counts in data["memory"].items()}
            found["error"] = data["error"] and NumericError.from_dict(data["error"])
            found["numeric"] = data["numeric"] and NumericReport.from_dict(data["numeric"])
            return cls(**found)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"not the result of a run that this version knows: {error}") from error

    @classmethod
    def from_json(cls, text: str, *, checked: bool = True) -> RunResult:
        """A result from outside: all of it is looked at, so that a damaged file is refused and not explained.

        What a store of ours holds need not be `checked` again, which takes as long as reading it.
        """
        try:
            data = json.loads(text, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise InputError(f"not JSON: {error}") from error
        if not isinstance(data, dict):
            raise InputError("not the result of a run: the JSON is no object")
        if not _is_text(text, data):
            raise InputError("not the result of a run: it holds halves of letters")
        if checked and (wrong := damage(data)):
            raise InputError(f"not the result of a run as this version writes it: {wrong}")
        return cls.from_dict(data)

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: what was worked out from them can be worked out again."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def caches(self) -> dict[str, CacheCounters]:
        return {name: each for name, each in self.memory.items() if isinstance(each, CacheCounters)}

    @property
    def time(self) -> ErrorBar:
        """Seconds with their error bar: `result.time.low`, `result.time.high`, `result.time.source`."""
        return self.bars.time

    @property
    def time_bar(self) -> ErrorBar:
        """The same as `time`, beside `energy_bar` and `power_bar`."""
        return self.bars.time

    @property
    def energy_bar(self) -> ErrorBar | None:
        """Joules with their error bar; None where the machine has no energy prices."""
        return self.bars.energy

    @property
    def power_bar(self) -> ErrorBar | None:
        """Watts with their error bar; None where the machine has no energy prices."""
        return self.bars.power

    @property
    def peak_flops_per_s(self) -> float:
        """What the units at work could have done at full clock, also where a power limit lowered it."""
        peak = self.work.peak_flops_per_s
        if self.throttle is None:
            return peak
        return peak * self.throttle.full_clock_hz / max(1, self.throttle.clock_hz)

    @property
    def utilisation(self) -> float:
        """Share of the arithmetic that the cores at work could have done at full clock."""
        peak = self.peak_flops_per_s
        return self.work.flops_per_s / peak if peak else 0.0

    @property
    def energy_per_op_pj(self) -> float | None:
        """Picojoules for each arithmetic operation, everything counted in."""
        flops = self.work.flops
        return None if self.energy_j is None or not flops else self.energy_j / flops * 1e12

    @property
    def edp_js(self) -> float | None:
        """Energy times delay, in joule-seconds: what a slower, thriftier run has to be better in."""
        return None if self.energy_j is None else self.energy_j * self.time_s

    @property
    def plot(self) -> RunPlots:
        """The plots of this run: ``result.plot.split("run.png")``, energy, traffic, roofline, diagram, …"""
        from hwsim.results.plot.run import RunPlots

        return RunPlots(self)

    def __repr__(self) -> str:
        from hwsim.results.explanation import summary_lines

        return "\n".join(summary_lines(self))

    def _repr_html_(self) -> str:
        from hwsim.results.explanation import summary_html

        return summary_html(self)


def damage(data: Mapping[str, Any]) -> str:
    """What in the JSON of a result cannot be; nothing where all of it can."""
    declared = {**_declared(), **_AS_JSON}
    missing = sorted(declared.keys() - data.keys())
    if missing:
        return f"{', '.join(missing)} missing"
    for name, value in data.items():
        if name not in declared:
            return f"{name}: no result has this field"
        if wrong := mismatch(declared[name], value, name):
            return wrong
    return _disagreement(data)


@lru_cache(maxsize=1)
def _declared() -> dict[str, Any]:
    """The fields of a result, but for the answer, which JSON does not have."""
    return {name: kind for name, kind in get_type_hints(RunResult).items() if name != "output"}


def _disagreement(data: Mapping[str, Any]) -> str:
    """Numbers that say the same twice have to agree."""
    energy, split, power, time_s = data["energy_j"], data["energy"], data["power_w"], data["time_s"]
    if not time_s:
        return "time_s: must be more than 0"
    if (energy is None) != (power is None) or (energy is None) != (split is None):
        return "energy_j, power_w and energy: all of them or none"
    if energy is not None and not isclose(energy, sum(split.values()), rel_tol=_AGREE, abs_tol=_NO_JOULES):
        return f"energy_j: {energy} is not the sum of energy, {sum(split.values())}"
    if energy is not None and not isclose(energy, power * time_s, rel_tol=_AGREE, abs_tol=_NO_JOULES):
        return f"power_w: {power} W for {time_s} s is not {energy} J"
    flops, speed = data["work"]["flops"], data["work"]["flops_per_s"]
    if not isclose(flops, speed * time_s, rel_tol=_AGREE, abs_tol=1.0):
        return f"work.flops_per_s: {speed} for {time_s} s is not {flops} operations"
    if data["bounds"]["lower_s"] > data["bounds"]["upper_s"] * (1 + _AGREE):
        return "bounds: lower_s is more than upper_s"
    if data["bars"]["time"]["value"] != time_s:
        return f"bars.time.value: must be {time_s}, as time_s is"
    for name, parts in data["attribution"].items():
        if set(parts) != {"busy", "waiting"}:
            return f"attribution.{name}: must be busy and waiting"
    for part in ("machine", "workload"):
        if data["resolved"][part].get("name") != data[part]:
            return f"resolved.{part}.name: must be {data[part]!r}"
    for name, counts in data["memory"].items():
        if FIRST_COUNTS[0] not in counts or not counts.keys() >= set(FIRST_COUNTS):
            return f"memory.{name}: {', '.join(sorted(set(FIRST_COUNTS) - counts.keys()))} missing"
    return ""


def _is_text(text: str, data: object) -> bool:
    """Whether all that JSON says can be written down again: `\\ud800` alone is half a letter."""
    if "\\ud" not in text.lower():
        return True
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


_AGREE = 1e-6
_NO_JOULES = 1e-30


@dataclass(frozen=True)
class _Errors:
    """The JSON of a NumericError; null is infinite."""

    max_rel: float | None
    rms_rel: float | None


@dataclass(frozen=True)
class _NumericErrors(_Errors):
    """The JSON of a NumericReport."""

    snr_db: Signed | None
    cosine: Signed | None
    saturated: float
    flushed: float
    inputs: str


_AS_JSON: Mapping[str, Any] = {
    "memory": Mapping[str, Mapping[str, int]],
    "error": _Errors | None,
    "numeric": _NumericErrors | None,
}
"""Fields that JSON has otherwise than the class."""


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


Model = TypeVar("Model", MachineSpec, WorkloadSpec)


def machine_of(result: RunResult) -> MachineSpec:
    """The machine as it was simulated. Raises InputError for one that cannot be."""
    machine = _read(MachineSpec, result, "machine")
    found = [
        *(each for n, level in enumerate(machine.memory) for each in check_level(level, n)),
        *check_machine(machine),
    ]
    if found:
        where = ".".join(str(part) for part in found[0].path)
        raise InputError(f"the machine in this result cannot be: {where}: {found[0].message}")
    return machine


def workload_of(result: RunResult) -> WorkloadSpec:
    """The workload as it was simulated."""
    return _read(workload_model(result.resolved.workload.get("op")), result, "workload")


def _read(model: type[Model], result: RunResult, part: str) -> Model:
    try:
        return model.model_validate(
            result.resolved[part], strict=False, context={"strict": False}
        )  # JSON has lists where specs have tuples
    except (KeyError, ValidationError) as error:
        raise InputError(
            f"the {part} in this result of hwsim {result.version} is not one that this version knows"
        ) from error
