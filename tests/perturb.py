"""Numbers of a machine file, changed one at a time: does any number of some small runs change with them?

A field that no run follows is either not modelled, which a reader of the file cannot know, or tells people something:
then its declaration says so, with `json_schema_extra={"descriptive": "why"}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from pydantic import BaseModel, ValidationError

from hwsim.api import resolve_workload, run_all
from hwsim.catalog import load_machine
from hwsim.engine import play
from hwsim.errors import HwsimError
from hwsim.spec.fields import PART_LISTS, as_data
from hwsim.spec.machine import MachineSpec
from hwsim.spec.rules import check_level, check_machine
from hwsim.units import plain

Path = tuple[str | int, ...]
Numbers = Mapping[str, Any] | None
"""What a run found out; None where it was refused."""

SIMULATED = (
    "cycles", "time_s", "energy_j", "energy", "memory", "error", "attribution", "peak_memory_bytes", "bounds",
    "energy_by_cause", "energy_by_tensor", "throttle", "tensors", "stages", "numeric",
)  # fmt: skip
"""What of a result came out of the run; the rest repeats the machine, such as peak rates, or stands beside it."""
PRICE = ("price", "per", "source")
"""What the ledger repeats of a price, whether or not the action was ever taken."""
QUANTITY = re.compile(r"([0-9.]+)(\s*[a-zA-Zµ].*)")
STRUCTURE = frozenset({"format", "source", "name", "kind", "description"})
FACTORS = (Fraction(2), Fraction(1, 2), Fraction(1, 16), Fraction(64), Fraction(1, 2**24))
"""Twice and half as much; then so much more or less that a limit is met that was far away."""


@dataclass(frozen=True)
class Trial:
    """A small run."""

    workload: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    math: bool = False

    def __call__(self, machine: MachineSpec) -> Numbers:
        try:
            result = run_all(machine, self.workload, math=self.math, parameters=self.parameters).result
        except HwsimError:
            return None
        return _simulated(result.to_dict())


Runs = Callable[[MachineSpec], Numbers]


@dataclass(frozen=True)
class MeasuredAttention:
    """Fused attention by a kernel of the library that has a name, as `hwsim validate gpu` runs it."""

    kernel: str
    head_dim: int
    queries: int
    heads: int

    def __call__(self, machine: MachineSpec) -> Numbers:
        from hwsim.targets.gpu.lower import Conditions
        from hwsim.targets.gpu.target import GpuTarget

        sizes = {"n": 4 * self.queries, "d": self.head_dim, "heads": self.heads}
        decoding = {"queries": 1} if self.kernel == "flash_decode" else {"queries": self.queries}
        try:
            target = GpuTarget(machine)
            work = target.defaults(resolve_workload("attention_fused", {**sizes, **decoding}))
            crew = target.crew(target.prepare(work, math=False), work, conditions=Conditions(attention=self.kernel))
            outcome = play(crew)
        except HwsimError:
            return None
        return {"time": outcome.elapsed_fs, "parts": dict(outcome.parts), "flops": outcome.flops}


@dataclass(frozen=True)
class OnUnit:
    """A matrix product on the lanes or the tensor cores of a GPU, whatever its library would take for the format."""

    precision: str
    unit: str

    def __call__(self, machine: MachineSpec) -> Numbers:
        sm: Any = machine.compute[0]
        units = sm.library.units | {self.precision: self.unit}
        told = sm.model_copy(update={"library": sm.library.model_copy(update={"units": units})})
        changed = machine.model_copy(update={"compute": (told,)})
        return Trial("matmul", {"n": 256, "precision": self.precision})(changed)


@dataclass(frozen=True)
class KernelAlone:
    """One matrix kernel of a GPU's library by itself, also for shapes that the library would take another one for."""

    tiles: str
    number: int
    precision: str

    def __call__(self, machine: MachineSpec) -> Numbers:
        from hwsim.program.contraction import GemmShape
        from hwsim.targets.gpu.model import GpuModel

        sm: Any = machine.compute[0]
        tile = getattr(sm.library, self.tiles)[self.number]
        try:
            cost = GpuModel(machine).gemm(GemmShape(2048, 2048, 2048), self.precision, tile=tile)
        except HwsimError:
            return None
        return {"seconds": cost.seconds, "parts": dict(cost.parts), "resident": cost.resident}


@dataclass(frozen=True)
class Leaf:
    """A number that a machine file writes."""

    path: Path
    shown: str
    value: int | float | str

    def others(self) -> Iterator[int | float | str]:
        """Other values for it, the plainest change first."""
        if isinstance(self.value, str):
            found = QUANTITY.fullmatch(self.value)
            assert found is not None
            amount, unit = Fraction(found[1]), found[2]
            yield from (f"{plain(amount * factor)}{unit}" for factor in FACTORS if amount)
            yield from (f"{plain(amount + step)}{unit}" for step in (1, -1) if amount + step > 0)
        elif isinstance(self.value, int):
            made = [self.value * factor for factor in FACTORS] + [
                Fraction(each) for each in (self.value + 1, self.value - 1, 1)
            ]
            yield from dict.fromkeys(int(each) for each in made if each.denominator == 1 and each != self.value)
        else:
            yield from (float(self.value * factor) for factor in FACTORS)


@dataclass(frozen=True)
class Subject:
    """A machine, and the numbers that its file and those that it extends write."""

    spec: MachineSpec
    data: dict[str, Any]
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, name: str) -> Subject:
        loaded = load_machine(name)
        data = as_data(loaded.spec)
        return cls(loaded.spec, data, tuple(leaf for leaf in _walk(data, data, ()) if leaf.shown in loaded.places))

    def unread(self, leaves: Sequence[Leaf], trials: Callable[[Leaf], Sequence[Runs]]) -> list[Leaf]:
        """The numbers that none of the runs follows, whatever they are changed to."""
        known: dict[int, Numbers] = {}
        return [leaf for leaf in leaves if not self._counts(leaf, trials(leaf), known)]

    def changed(self, path: Path, value: object) -> MachineSpec | None:
        """The machine with another number; None where the rules refuse it."""
        data = _with(self.data, path, value)
        try:
            made = MachineSpec.model_validate(data, strict=False, context={"strict": False})
        except ValidationError:
            return None
        findings = [each for index, level in enumerate(made.memory) for each in check_level(level, index)]
        return None if findings or any(check_machine(made)) else made

    def _counts(self, leaf: Leaf, trials: Sequence[Runs], known: dict[int, Numbers]) -> bool:
        for value in leaf.others():
            other = self.changed(leaf.path, value)
            if other is None:
                continue
            for trial in trials:
                if id(trial) not in known:
                    known[id(trial)] = trial(self.spec)
                if trial(other) != known[id(trial)]:
                    return True
        return False


def _with(data: Any, path: Path, value: object) -> Any:
    """Data with another value at a path; what is not on the way stays shared."""
    if not path:
        return value
    copied: Any = list(data) if isinstance(data, list) else dict(data)
    copied[path[0]] = _with(data[path[0]], path[1:], value)
    return copied


def descriptive(machine: MachineSpec, leaf: Leaf) -> str | None:
    """Why the number only tells people something, as its declaration has it; None where it should count."""
    here: Any = machine
    reason: str | None = None
    for part in leaf.path:
        if isinstance(here, BaseModel):
            extra = type(here).model_fields[str(part)].json_schema_extra
            reason = str(extra["descriptive"]) if isinstance(extra, dict) and "descriptive" in extra else reason
            here = getattr(here, str(part))
        else:
            here = here[part]
    return reason


def _walk(data: Mapping[str, Any], here: Any, path: Path) -> Iterator[Leaf]:
    if isinstance(here, dict | list):
        items: Any = here.items() if isinstance(here, dict) else enumerate(here)
        for key, child in items:
            if key not in STRUCTURE:
                yield from _walk(data, child, (*path, key))
    elif _is_number(here):
        yield Leaf(path, _shown(data, path), here)


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return QUANTITY.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(data: Mapping[str, Any], path: Path) -> str:
    """As `--set` and messages write it."""
    start, rest = "", path
    if path[0] in PART_LISTS:
        start = PART_LISTS[str(path[0])] + str(data[str(path[0])][path[1]]["name"])
        rest = path[2:]
    for part in rest:
        start += f"[{part}]" if isinstance(part, int) else f".{part}" if start else part
    return start


def _simulated(data: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that came out of a run."""
    made = {name: data[name] for name in SIMULATED}
    made["energy_by_cause"] = {
        cause: {
            action: {key: each for key, each in entry.items() if key not in PRICE} for action, entry in taken.items()
        }
        for cause, taken in (data["energy_by_cause"] or {}).items()
    }
    return made
