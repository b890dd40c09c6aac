"""`hwsim fit`: the few constants of a machine that no data sheet has, found on one half of a table of measurements.

Which half is decided by a hash of each row's shape (split.py); the other half is only reported. Constants are moved one
after the other, up and down by ever smaller steps, as long as the mean error of the rows shrinks.
Kernels are built once; only what the constants decide is worked out again.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from hwsim.errors import InputError
from hwsim.program.kernel import Kernel
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import ThreadSchedule
from hwsim.targets.gpu.device import Device
from hwsim.targets.gpu.lower import Conditions, map_launches
from hwsim.targets.gpu.model import GpuModel
from hwsim.targets.gpu.spec import LaunchSpec
from hwsim.targets.gpu.target import GpuTarget
from hwsim.validation.gpu import covered, timed_seconds
from hwsim.validation.gpu_workload import COLUMNS, MeasuredKernel, PlayedKernel, pieces_of
from hwsim.validation.report import relative_error
from hwsim.validation.table import read_table

FAMILY_ROWS = 40
"""Rows of a family that are searched on, and as many that are reported."""
STEPS = (0.3, 0.3, 0.12, 0.12, 0.05)
"""By how much a constant is moved up or down, round after round."""


@dataclass(frozen=True)
class Constant:
    """A number of a machine file that can be fitted."""

    path: str
    start: float
    """Where the search begins if the file does not say."""
    most: float
    families: tuple[str, ...]
    """Families whose rows depend on it; it is left alone where the table has none of them."""
    whole: bool = False
    unit: str = ""

    def rounded(self, value: float) -> float:
        return float(round(value)) if self.whole else float(f"{value:.3g}")

    def text(self, value: float) -> str:
        return f"{value:g}{self.unit}"


PRODUCTS = ("gemm_tensor", "gemm_8bit", "gemm_4bit", "gemm_weight_only")
LANES = ("gemm_fp32", "bmm", "conv_implicit", "conv_winograd_fft")
CONSTANTS = (
    Constant("library.tensor_share", 0.9, 1.0, PRODUCTS),
    Constant("library.lane_share", 0.85, 1.0, LANES),
    Constant("library.step_latency", 100, 2000, PRODUCTS + LANES, whole=True),
    Constant("library.block_start", 800, 20000, PRODUCTS + LANES, whole=True),
    Constant("library.tile_bandwidth", 0.8, 1.0, PRODUCTS + LANES),
    Constant("library.l2_bandwidth", 0.8, 1.0, PRODUCTS + LANES),
    Constant("library.loaded_latency", 1.5, 8, PRODUCTS + LANES),
    Constant("library.stream_bandwidth", 0.85, 1.0, ("memory_bound", "attention_decode")),
    Constant("launch.graph", 2.5, 100, PRODUCTS, unit=" us"),
    Constant("launch.stream", 6, 100, ("gemm_fp32", "bmm", "memory_bound", "conv_implicit"), unit=" us"),
)


@dataclass(frozen=True)
class BuiltRow:
    """A measured row with its kernels, which do not depend on what is fitted."""

    row: MeasuredKernel
    kernels: tuple[tuple[Kernel, ThreadSchedule | None, Conditions], ...]

    def error(self, target: GpuTarget, model: GpuModel) -> float:
        """By how much the model is off, with launches as the row was timed."""
        costs = [
            launch.cost
            for kernel, threads, conditions in self.kernels
            for launch in map_launches(model, kernel, threads, {}, conditions)
        ]
        played = PlayedKernel(sum(cost.seconds for cost in costs), sum(cost.launches for cost in costs))
        return relative_error(timed_seconds(target, self.row, played), self.row.seconds)


Half = Mapping[str, Sequence[BuiltRow]]
"""Rows by family."""


@dataclass
class Fit:
    """What was found."""

    machine: str
    unit: str
    """What the machine calls its SMs."""
    table: str
    constants: dict[str, str] = field(default_factory=dict)
    """The fitted values, by their path in the file."""
    before: dict[str, float] = field(default_factory=dict)
    """Mean error of the half that was held out, by family."""
    after: dict[str, float] = field(default_factory=dict)
    fitted_rows: dict[str, int] = field(default_factory=dict)
    held_out_rows: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def fit(machine: MachineSpec, path: Path, rows: int = FAMILY_ROWS, seed: int = 0) -> Iterator[str | Fit]:
    """Says what it does from time to time, and ends with what it found."""
    target = GpuTarget(machine)
    measured = [row for row in _rows(machine, path) if covered(row)]
    searched = _half(target, [row for row in measured if not row.held_out], rows, seed)
    reported = _half(target, [row for row in measured if row.held_out], rows, seed)
    if not searched:
        raise InputError(f"{path}: no row of {machine.name} lies in the half that is fitted on; give more rows")
    yield f"{sum(map(len, searched.values()))} rows to fit on, {sum(map(len, reported.values()))} held out"
    found = Fit(machine.name, target.device.sm.name, path.name)
    found.before = _errors(target, reported)
    constants = [each for each in CONSTANTS if set(each.families) & set(searched)]
    values = {each.path: _present(target, each) for each in constants}
    best = _mean_error(with_values(machine, values), searched)
    for number, step in enumerate(STEPS):
        for constant in constants:
            yield f"mean error {best:.2%}, round {number + 1} of {len(STEPS)}: {constant.path}"
            for factor in (1 + step, 1 / (1 + step)):
                value = constant.rounded(min(constant.most, values[constant.path] * factor))
                if value == values[constant.path]:
                    continue
                tried = values | {constant.path: value}
                error = _mean_error(with_values(machine, tried), searched)
                if error < best:
                    best, values = error, tried
                    break
    fitted = GpuTarget(with_values(machine, values))
    found.after = _errors(fitted, reported)
    found.constants = {each.path: each.text(values[each.path]) for each in constants}
    found.fitted_rows = {family: len(half) for family, half in searched.items()}
    found.held_out_rows = {family: len(half) for family, half in reported.items()}
    yield found


def _rows(machine: MachineSpec, path: Path) -> list[MeasuredKernel]:
    """The rows of this machine, by its name or by that of a machine that it is a version of."""
    every = [MeasuredKernel(path, record) for record in read_table(path, COLUMNS)]
    names = sorted({row.machine for row in every})
    own = [row for row in every if row.machine == machine.name]
    if own or len(names) == 1:
        return own or every
    raise InputError(f"{path}: no row has the machine '{machine.name}'; it has {', '.join(names)}")


def _half(target: GpuTarget, measured: Sequence[MeasuredKernel], rows: int, seed: int) -> dict[str, list[BuiltRow]]:
    """So many rows of each family, drawn with a seed, with their kernels."""
    families: defaultdict[str, list[MeasuredKernel]] = defaultdict(list)
    for row in measured:
        families[row.family].append(row)
    chosen = {
        family: random.Random(seed).sample(found, min(rows, len(found))) for family, found in sorted(families.items())
    }
    return {family: [_built(target, row) for row in found] for family, found in chosen.items()}


def _built(target: GpuTarget, row: MeasuredKernel) -> BuiltRow:
    kernels: list[tuple[Kernel, ThreadSchedule | None, Conditions]] = []
    for piece in pieces_of(target.device, row):
        if isinstance(piece.work, Kernel):
            kernels.append((piece.work, None, piece.conditions))
        else:
            kernels.append((target.prepare(piece.work, math=False), piece.work.threads, piece.conditions))
    return BuiltRow(row, tuple(kernels))


def with_values(machine: MachineSpec, values: Mapping[str, float]) -> MachineSpec:
    """The machine with other constants."""
    unit = Device.of(machine).sm
    units = {each.path: each.unit for each in CONSTANTS}
    whole = {each.path for each in CONSTANTS if each.whole}
    library, launch = {}, {}
    for path, value in values.items():
        group, _, name = path.partition(".")
        if group == "library":
            library[name] = int(value) if path in whole else value
        else:
            launch[name] = f"{value}{units[path]}"
    kept = {name: getattr(unit.launch, name) for name in LaunchSpec.model_fields}
    started = LaunchSpec.model_validate({**kept, **launch})
    changed = unit.model_copy(update={"library": unit.library.model_copy(update=library), "launch": started})
    return machine.model_copy(update={"compute": (changed, *machine.compute[1:])})


def _present(target: GpuTarget, constant: Constant) -> float:
    """What the file says, or where the search begins."""
    group, _, name = constant.path.partition(".")
    if group == "launch":
        return constant.rounded(target.device.launch_seconds(name) * 1e6)
    library = target.device.sm.library
    return float(getattr(library, name)) if name in library.model_fields_set else constant.start


def _errors(target: GpuTarget, half: Half) -> dict[str, float]:
    model = GpuModel(target.device)
    return {family: mean(row.error(target, model) for row in rows) for family, rows in half.items()}


def _mean_error(machine: MachineSpec, half: Half) -> float:
    """Over rows: of no family are there more than so many."""
    target = GpuTarget(machine)
    model = GpuModel(target.device)
    return mean(row.error(target, model) for rows in half.values() for row in rows)


def as_variant(found: Fit, base: str, name: str) -> str:
    """A machine file that extends another one by what was fitted, with where it comes from."""
    lines = [
        f"# {found.machine} with constants that `hwsim fit` found on one half of {found.table}.",
        "format: 1",
        f"name: {name}",
        f"extends: {base}",
        "compute:",
        f"  - name: {found.unit}",
    ]
    for group in ("library", "launch"):
        own = {path: text for path, text in found.constants.items() if path.startswith(f"{group}.")}
        if own:
            lines.append(f"    {group}:")
            lines += [f"      {path.partition('.')[2]}: {text}" for path, text in own.items()]
    lines.append("    source:")
    rows = sum(found.fitted_rows.values())
    held = ", ".join(f"{family} {error:.1%}" for family, error in found.after.items())
    for path in found.constants:
        lines.append(f'      {path}: "fitted: {rows} rows of {found.table}; held-out half: {held}"')
    return "\n".join(lines) + "\n"
