"""`hwsim fit`: the few constants of a machine that no data sheet has, found on one half of a table of measurements.

Which half is decided by a hash of each row's shape (residual.py); the other half is only reported. Constants are moved
one after the other, up and down by ever smaller steps, as long as the mean error of the rows shrinks.
Kernels are built once; of a row only what the constant that moves can change is worked out again.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from hwsim.errors import InputError
from hwsim.program.kernel import Kernel
from hwsim.spec.machine import MachineSpec, PriceSpec
from hwsim.spec.workload import ThreadSchedule
from hwsim.targets.gpu.device import Device
from hwsim.targets.gpu.lower import map_launches
from hwsim.targets.gpu.model import GpuModel
from hwsim.targets.gpu.spec import LaunchSpec
from hwsim.targets.gpu.target import GpuTarget
from hwsim.validation.gpu import covered, timed_seconds
from hwsim.validation.gpu_workload import COLUMNS, KernelPiece, MeasuredKernel, PlayedKernel, pieces_of, whole_piece
from hwsim.validation.report import relative_error
from hwsim.validation.table import read_table

FAMILY_ROWS = 60
"""Rows of a family that are searched on."""
REPORTED_ROWS = 150
"""Rows of a family of the other half that are reported, at most."""
STEPS = (1.0, 0.6, 0.3, 0.3, 0.12, 0.12, 0.05)
"""By how much a constant is moved up or down, round after round."""
MOVES = 2
"""Times that a constant is moved in a round, each time on from where the error shrank."""


@dataclass(frozen=True)
class Constant:
    """A number of a machine file that can be fitted."""

    path: str
    """In the file, from the SM on: a group, and a name in it."""
    start: float
    """Where the search begins if the file does not say."""
    most: float
    touches: tuple[str, ...]
    """What rows depend on it, by a tag of theirs; it is left alone where the table has none of them."""
    whole: bool = False
    unit: str = ""
    least: float = 0.0

    @property
    def group(self) -> str:
        return self.path.partition(".")[0]

    @property
    def name(self) -> str:
        return self.path.partition(".")[2]

    def rounded(self, value: float) -> float:
        bounded = min(self.most, max(self.least, value))
        return float(round(bounded)) if self.whole else float(f"{bounded:.3g}")

    def text(self, value: float) -> str:
        return f"{value:g}{self.unit}"


PRODUCTS = ("gemm_tensor", "gemm_8bit", "gemm_4bit", "gemm_weight_only")
LANES = ("gemm_fp32", "bmm", "conv_implicit", "conv_winograd_fft")
STREAMS = ("memory_bound", "attention_decode")
CONSTANTS = (
    Constant("launch.graph", 2.5, 100, (*PRODUCTS, "cuda_graph"), unit=" us", least=0.5),
    Constant("launch.stream", 6, 100, ("cuda_event",), unit=" us", least=0.5),
    Constant("library.tensor_share", 0.9, 1.0, PRODUCTS),
    Constant("library.lane_share", 0.85, 1.0, LANES),
    Constant("library.step_latency", 100, 2000, PRODUCTS + LANES, whole=True, least=4),
    Constant("library.byte_latency", 100, 2000, ("byte_tiles",), whole=True, least=4),
    Constant("library.block_start", 800, 20000, PRODUCTS + LANES, whole=True, least=20),
    Constant("library.tile_bandwidth", 0.8, 1.0, PRODUCTS + LANES),
    Constant("library.l2_bandwidth", 0.8, 1.0, PRODUCTS + LANES),
    Constant("library.l2_kept", 1.0, 1.0, PRODUCTS, least=0.25),
    Constant("library.loaded_latency", 1.5, 8, PRODUCTS + LANES, least=0.3),
    Constant("library.stream_bandwidth", 0.85, 1.0, STREAMS),
)
REBUILDS = "library.l2_kept"
"""Decides which operands a row finds in the L2, and so what its kernels are."""
PRICE_START, PRICE_MOST = 1.0, 100.0
"""Picojoules of a multiply-add on tensor cores."""


def attention_constants(name: str) -> tuple[Constant, ...]:
    """Those of an attention kernel of the library, the same for heads of all sizes."""
    kernel = f"attention.{name}"
    return (
        Constant(f"{kernel}.math_share", 0.8, 1.0, (kernel,), least=0.05),
        Constant(f"{kernel}.softmax_share", 0.7, 1.0, (kernel,)),
        Constant(f"{kernel}.step_latency", 200, 5000, (kernel,), whole=True, least=4),
        Constant(f"{kernel}.block_start", 1500, 50000, (kernel,), whole=True, least=20),
    )


@dataclass(frozen=True)
class BuiltRow:
    """A measured row with its kernels, which depend on little of what is fitted."""

    row: MeasuredKernel
    pieces: tuple[KernelPiece, ...]
    kernels: Mapping[int, tuple[Kernel, ThreadSchedule | None]]
    """Of each piece, by its identity."""
    tags: frozenset[str]
    """What constants may touch: its family, how it was timed, kernels of attention, formats on tensor cores."""

    @classmethod
    def of(cls, target: GpuTarget, row: MeasuredKernel) -> BuiltRow:
        pieces = tuple(pieces_of(target.device, row))
        every = list(chain.from_iterable(map(all_pieces, pieces)))
        return cls(
            row,
            pieces,
            {id(each): _prepared(target, each) for each in every},
            frozenset(_tags(target.device, row, every)),
        )

    def error(self, target: GpuTarget, model: GpuModel) -> float:
        """By how much the model is off, with launches as the row was timed."""

        def alone(piece: KernelPiece) -> PlayedKernel:
            kernel, threads = self.kernels[id(piece)]
            costs = [each.cost for each in map_launches(model, kernel, threads, {}, piece.conditions)]
            return PlayedKernel(sum(cost.seconds for cost in costs), sum(cost.launches for cost in costs))

        played = [whole_piece(piece, alone) for piece in self.pieces]
        seconds, launches = sum(each.seconds for each in played), sum(each.launches for each in played)
        return relative_error(timed_seconds(target, self.row, PlayedKernel(seconds, launches)), self.row.seconds)


def all_pieces(piece: KernelPiece) -> Iterator[KernelPiece]:
    """A piece, and those that may stand for it or run beside it."""
    yield piece
    for other in (*piece.others, *([piece.instead] if piece.instead else [])):
        yield from all_pieces(other)


def _prepared(target: GpuTarget, piece: KernelPiece) -> tuple[Kernel, ThreadSchedule | None]:
    if isinstance(piece.work, Kernel):
        return piece.work, None
    return target.prepare(piece.work, math=False), piece.work.threads


def _tags(device: Device, row: MeasuredKernel, pieces: Iterable[KernelPiece]) -> Iterator[str]:
    timing = row.record["timing"]
    yield from (row.family, "cuda_graph" if timing == "reported" else timing)
    precision = "fp16" if row.family == "gemm_weight_only" else row.precision
    if precision in device.sm.tensor and row.family in PRODUCTS and device.unit_for(precision) == "tensor":
        yield f"tensor.{precision}"
    if row.family == "gemm_8bit" and device.sm.library.byte_tiles:
        yield "byte_tiles"
    for piece in pieces:
        if piece.conditions.attention:
            yield f"attention.{piece.conditions.attention}"


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
    """The fitted values, by their path in the file from the SM on."""
    attention: list[dict[str, Any]] = field(default_factory=list)
    """The library's attention kernels with fitted constants, as a file has them."""
    before: dict[str, float] = field(default_factory=dict)
    """Mean error of the half that was held out, by family."""
    after: dict[str, float] = field(default_factory=dict)
    fitted_rows: dict[str, int] = field(default_factory=dict)
    held_out_rows: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class FitStep:
    """What the search does now, and which share of it is done."""

    doing: str
    share: float


def fit(machine: MachineSpec, path: Path, rows: int = FAMILY_ROWS, seed: int = 0) -> Iterator[FitStep | Fit]:
    """Says what it does from time to time, and ends with what it found."""
    target = GpuTarget(machine)
    measured = [row for row in _rows(machine, path) if covered(row)]
    searched = _half(target, [row for row in measured if not row.held_out], rows, seed)
    reported = _half(target, [row for row in measured if row.held_out], max(rows, REPORTED_ROWS), seed)
    if not searched:
        raise InputError(f"{path}: no row of {machine.name} lies in the half that is fitted on; give more rows")
    counts = {half: sum(map(len, found.values())) for half, found in (("fit on", searched), ("report", reported))}
    yield FitStep(f"{counts['fit on']} rows to fit on, {counts['report']} held out", 0.0)
    found = Fit(machine.name, target.device.sm.name, path.name)
    found.before = _errors(target, reported)
    search = Search(machine, [row for family in searched.values() for row in family])
    for number, step in enumerate(STEPS):
        for place, constant in enumerate(search.constants):
            share = (number + place / len(search.constants)) / len(STEPS)
            yield FitStep(f"mean error {search.error:.2%}, {constant.path}", share)
            search.move(constant, step)
    fitted = GpuTarget(with_values(machine, search.values))
    found.after = _errors(fitted, reported)
    found.constants = {each.path: each.text(search.values[each.path]) for each in search.constants}
    if any(each.group == "attention" for each in search.constants):
        kernels = fitted.device.sm.library.attention
        found.attention = [each.model_dump(mode="json", exclude_unset=True) for each in kernels]
    found.fitted_rows = {family: len(half) for family, half in searched.items()}
    found.held_out_rows = {family: len(half) for family, half in reported.items()}
    yield found


class Search:
    """Constants on their way to the least mean error of some rows."""

    def __init__(self, machine: MachineSpec, rows: Sequence[BuiltRow]) -> None:
        self._machine = machine
        self._rows = list(rows)
        target = GpuTarget(machine)
        self.constants = _constants(target.device, rows)
        self.values = {each.path: _present(target.device, each) for each in self.constants}
        self._errors = self._worked_out(self.values, range(len(rows)))

    @property
    def error(self) -> float:
        return mean(self._errors.values())

    def move(self, constant: Constant, step: float) -> None:
        """On in one direction as long as the error shrinks; in the other if the first step does not help."""
        touched = [number for number, row in enumerate(self._rows) if row.tags & {*constant.touches}]
        if constant.path == REBUILDS:
            touched = list(range(len(self._rows)))
        for factor in (1 + step, 1 / (1 + step)):
            moves = 0
            while moves < MOVES and self._try(constant, constant.rounded(self.values[constant.path] * factor), touched):
                moves += 1
            if moves:
                return

    def _try(self, constant: Constant, value: float, touched: Sequence[int]) -> bool:
        """Take a value if it is better."""
        if value == self.values[constant.path]:
            return False
        tried = self.values | {constant.path: value}
        before = self._rows
        if constant.path == REBUILDS:
            target = GpuTarget(with_values(self._machine, tried))
            self._rows = [BuiltRow.of(target, each.row) for each in before]
        errors = self._errors | self._worked_out(tried, touched)
        if mean(errors.values()) < self.error:
            self.values, self._errors = tried, errors
            return True
        self._rows = before
        return False

    def _worked_out(self, values: Mapping[str, float], numbers: Iterable[int]) -> dict[int, float]:
        target = GpuTarget(with_values(self._machine, values))
        model = GpuModel(target.device)
        return {number: self._rows[number].error(target, model) for number in numbers}


def _constants(device: Device, rows: Sequence[BuiltRow]) -> list[Constant]:
    """Those that some row depends on."""
    tags = frozenset().union(*(row.tags for row in rows))
    prices = [
        Constant(f"energy.{device.sm.name}.{tag}", PRICE_START, PRICE_MOST, (tag,), unit=" pJ", least=0.01)
        for tag in sorted(tags)
        if tag.startswith("tensor.") and device.sm.power_limit is not None and device.machine.energy is not None
    ]
    kernels = dict.fromkeys(each.name for each in device.sm.library.attention)
    attention = chain.from_iterable(map(attention_constants, kernels))
    return [each for each in (*CONSTANTS, *prices, *attention) if tags & {*each.touches}]


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
    return {family: [BuiltRow.of(target, row) for row in found] for family, found in chosen.items()}


def with_values(machine: MachineSpec, values: Mapping[str, float]) -> MachineSpec:
    """The machine with other constants."""
    unit = Device.of(machine).sm
    groups: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for path, value in values.items():
        group, _, name = path.partition(".")
        groups[group][name] = value
    whole = {each.name for each in CONSTANTS if each.whole}
    library: dict[str, Any] = {name: int(x) if name in whole else x for name, x in groups["library"].items()}
    if groups["attention"]:
        library["attention"] = tuple(
            each.model_copy(update=_of_kernel(each.name, groups["attention"])) for each in unit.library.attention
        )
    kept = {name: getattr(unit.launch, name) for name in LaunchSpec.model_fields}
    started = LaunchSpec.model_validate({**kept, **{name: f"{value} us" for name, value in groups["launch"].items()}})
    changed = unit.model_copy(update={"library": unit.library.model_copy(update=library), "launch": started})
    priced: dict[str, Any] = {}
    if groups["energy"] and machine.energy is not None:
        prices = {
            name: PriceSpec.model_validate({"energy": f"{value} pJ", "source": "fitted"})
            for name, value in groups["energy"].items()
        }
        priced["energy"] = machine.energy.model_copy(update={"actions": {**machine.energy.actions, **prices}})
    return machine.model_copy(update={"compute": (changed, *machine.compute[1:]), **priced})


def _of_kernel(name: str, values: Mapping[str, float]) -> dict[str, float]:
    own = {path.partition(".")[2]: value for path, value in values.items() if path.partition(".")[0] == name}
    return {each: int(value) if each in ("step_latency", "block_start") else value for each, value in own.items()}


def _present(device: Device, constant: Constant) -> float:
    """What the file says, or where the search begins."""
    if constant.group == "launch":
        return constant.rounded(device.launch_seconds(constant.name) * 1e6)
    if constant.group == "energy":
        return constant.rounded(device.picojoules(constant.name) or constant.start)
    if constant.group == "attention":
        name, _, number = constant.name.partition(".")
        kernels = [each for each in device.sm.library.attention if each.name == name]
        given = [float(getattr(each, number)) for each in kernels if number in each.model_fields_set]
        return constant.rounded(mean(given) if given else constant.start)
    library = device.sm.library
    given_here = constant.name in library.model_fields_set and getattr(library, constant.name) is not None
    return float(getattr(library, constant.name)) if given_here else constant.start


def _errors(target: GpuTarget, half: Half) -> dict[str, float]:
    """Mean error of each family; conditions are those of the machine as it is now."""
    model = GpuModel(target.device)
    return {
        family: mean(BuiltRow.of(target, row.row).error(target, model) for row in rows) for family, rows in half.items()
    }


def as_variant(found: Fit, base: str, name: str) -> str:
    """A machine file that extends another one by what was fitted, with where it comes from."""
    rows = sum(found.fitted_rows.values())
    held = ", ".join(f"{family} {error:.1%}" for family, error in found.after.items())
    source = f'"fitted: {rows} rows of {found.table}; held-out half: {held}"'
    groups: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for path, text in found.constants.items():
        group, _, own = path.partition(".")
        groups[group][own] = text
    lines = [
        f"# {found.machine} with constants that `hwsim fit` found on one half of {found.table}.",
        "format: 1",
        f"name: {name}",
        f"extends: {base}",
        "compute:",
        f"  - name: {found.unit}",
    ]
    for group in ("library", "launch"):
        kernels = found.attention if group == "library" else []
        if groups[group] or kernels:
            lines.append(f"    {group}:")
            lines += [f"      {own}: {text}" for own, text in groups[group].items()]
        if kernels:
            lines.append("      attention:")
            lines += [
                f"        - {{{', '.join(f'{key}: {_yaml(value)}' for key, value in each.items())}}}"
                for each in kernels
            ]
    lines.append("    source:")
    lines += [f"      {path}: {source}" for path in found.constants if path.startswith(("library.", "launch."))]
    if found.attention:
        lines.append(f"      library.attention: {source}")
    if groups["energy"]:
        lines += ["energy:", "  actions:"]
        lines += [f"    {action}: {{energy: {text}, source: {source}}}" for action, text in groups["energy"].items()]
    return "\n".join(lines) + "\n"


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
