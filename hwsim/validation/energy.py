"""`hwsim validate energy`: energy against measured chips, and against what other programs count.

Eyeriss layers, measured GPU power, and three mappings whose energy other programs have published. A table of the user's
is one of the first two, whichever columns it has; nothing is fitted to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import fsum
from pathlib import Path
from statistics import mean
from typing import Annotated

from pydantic import Field

from hwsim.catalog import load_machine
from hwsim.program.contraction import ConvShape, GemmShape
from hwsim.results.bar_table import ENERGY, POWER, TIME
from hwsim.spec.base import EnergyField, Name, Spec
from hwsim.spec.load import load_spec_file
from hwsim.spec.machine import MachineSpec
from hwsim.targets.gpu.device import Device
from hwsim.targets.gpu.model import GpuModel
from hwsim.targets.grid.agent import play_mapping
from hwsim.targets.grid.lower import find_mapping
from hwsim.targets.grid.mapping import (
    Convention,
    Convolution,
    LevelAccesses,
    NestCounts,
    NestLevel,
    Role,
    RowStationary,
    count_accesses,
    problems,
)
from hwsim.targets.grid.model import PeGrid
from hwsim.units import EnergyPrice
from hwsim.validation.report import Bar, ComparisonRow, Progress, relative_error, report
from hwsim.validation.residual import FIRST, Purpose, Residual, purpose_of
from hwsim.validation.table import (
    Record,
    columns_of,
    integer,
    number,
    one_of,
    read_table,
    row_error,
    shipped,
    table_error,
)

SHAPE = ("batch", "c_in", "c_out", "h_in", "w_in", "r", "s", "stride", "pad", "groups")
LAYER_COLUMNS = ("network", "layer", *SHAPE, "zero_inputs_pct", "total_ms", "energy_mj")
MACHINE = "eyeriss"
FITTED = "alexnet"
"""The network whose layers the constants of the machine were fitted to."""


@dataclass(frozen=True)
class MeasuredLayer:
    """A measured layer with what hwsim counts for it."""

    network: str
    name: str
    measured_j: float
    measured_s: float
    dynamic_j: float
    static_w: float
    simulated_s: float

    def joules(self, seconds: float, dynamic: float = 1.0, static: float = 1.0) -> float:
        """Energy over a time; the factors change the two fitted constants."""
        return dynamic * self.dynamic_j + static * self.static_w * seconds

    @property
    def error(self) -> float:
        return relative_error(self.joules(self.measured_s), self.measured_j)

    @property
    def error_simulated(self) -> float:
        """The same with the simulated time in place of the measured one."""
        return relative_error(self.joules(self.simulated_s), self.measured_j)


def read_layers(path: Path) -> list[MeasuredLayer]:
    machine = load_machine(MACHINE).spec
    grid = PeGrid(machine)
    return [_layer(machine, grid, path, record) for record in read_table(path, LAYER_COLUMNS)]


def fitted_layers(layers: Sequence[MeasuredLayer]) -> list[MeasuredLayer]:
    """Those that the two constants of the machine were fitted to."""
    return [layer for layer in layers if layer.network == FITTED]


def leave_one_out(layers: Sequence[MeasuredLayer]) -> list[float]:
    """The error of each layer when both constants are fitted to the others."""
    errors = []
    for left_out in layers:
        dynamic, static = fit([layer for layer in layers if layer is not left_out])
        errors.append(relative_error(left_out.joules(left_out.measured_s, dynamic, static), left_out.measured_j))
    return errors


def fit(layers: Sequence[MeasuredLayer]) -> tuple[float, float]:
    """Least squares of the relative error: the factors for dynamic energy and static power."""
    rows = [
        (layer.dynamic_j / layer.measured_j, layer.static_w * layer.measured_s / layer.measured_j) for layer in layers
    ]
    aa, ab, bb = (fsum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (fsum(row[i] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    return (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant


def as_run(layers: Sequence[MeasuredLayer]) -> Iterator[ComparisonRow]:
    """What a run prints: time, and energy and power with that time. For a layer that was fitted to, both constants are
    fitted to the others."""
    fitted = fitted_layers(layers)
    for layer in layers:
        dynamic, static = fit([each for each in fitted if each is not layer]) if layer in fitted else (1.0, 1.0)
        joules = layer.joules(layer.simulated_s, dynamic, static)
        for quantity, simulated, measured, unit in (
            (TIME, layer.simulated_s, layer.measured_s, "s"),
            (ENERGY, joules, layer.measured_j, "J"),
            (POWER, joules / layer.simulated_s, layer.measured_j / layer.measured_s, "W"),
        ):
            seconds = layer.simulated_s
            residual = Residual("grid_layers", MACHINE, simulated, measured, FIRST, quantity, seconds)
            words = f"{simulated:.4g} {unit} simulated, {measured:.4g} {unit} measured"
            group = f"Eyeriss layers as run, {quantity}"
            yield ComparisonRow.of(layer.name, group, simulated, measured, words, residual)


def _layer(machine: MachineSpec, grid: PeGrid, path: Path, record: Record) -> MeasuredLayer:
    n, c, m, h, w, r, s, stride, pad, groups = (integer(path, record, column) for column in SHAPE)
    shape = ConvShape(c, m, (h, w), (r, s), n, (stride, stride), (pad, pad), groups=groups)
    zeros = number(path, record, "zero_inputs_pct") / 100
    if record.get("mapping"):
        given = RowStationary.of(shape, _letters(path, record))
        if wrong := problems(given, grid.sizes):
            raise row_error(path, record, "mapping", "; ".join(wrong))
        cost = grid.cost(given, zeros)
    else:
        cost = find_mapping(grid, shape, zeros, goal="energy")
    played = play_mapping(grid, cost, zeros)
    assert machine.energy is not None
    picojoules = sum(
        count * machine.energy.actions[f"{part}.{action}"].energy.picojoules
        for (part, action), count in played.actions.items()
        if part != "dram"
    )
    return MeasuredLayer(
        network=record["network"],
        name=f"{record['network']} {record['layer']}",
        measured_j=number(path, record, "energy_mj") * 1e-3,
        measured_s=number(path, record, "total_ms") * 1e-3,
        dynamic_j=float(picojoules) * 1e-12,
        static_w=float(sum(static.power for static in machine.energy.static.values())),
        simulated_s=played.elapsed_fs * 1e-15,
    )


def _letters(path: Path, record: Record) -> dict[str, int]:
    """``n=1 m=96 e=7``: the mapping that the chip had."""
    try:
        return {name: int(value) for name, value in (word.split("=") for word in record["mapping"].split())}
    except ValueError:
        raise row_error(path, record, "mapping", "write letters with numbers: n=1 m=96 e=7") from None


ANY_TIME = 1.0
"""Measured power is that of long runs: it has one size class."""
POWER_COLUMNS = ("gpu", "workload", "dtype", "dram_GBs", "GFLOPs", "power_w")
SWEEP = "fma_stream"
PRODUCT = re.compile(r"gemm_m(\d+)_n(\d+)_k(\d+)")
"""Matrix products, whose power is that of a run."""
MACHINES = {
    "A100-SXM4-40GB": "a100_40", "A100-SXM4-80GB": "a100_80", "A40": "a40", "A6000": "a6000", "H100": "h100",
    "H100-SXM5-80GB": "h100", "H200": "h200", "H200-SXM-141GB": "h200", "T4": "t4", "V100": "v100",
    "RTX3090": "rtx3090",
}  # fmt: skip
"""The machine file of each GPU, as tables of measured power name it; a machine's own name is good as well."""


@dataclass(frozen=True)
class Sample:
    """One measured average power."""

    name: str
    group: str
    machine: str
    measured_w: float
    modelled_w: float
    purpose: Purpose
    family: str
    """Runs are compared with kernels; sweeps over one instruction, which prices were fitted on, tell of themselves."""

    @property
    def error(self) -> float:
        return relative_error(self.modelled_w, self.measured_w)


def read_samples(path: Path) -> tuple[list[Sample], int]:
    """Rows that say how much was moved and computed, and the number of rows that do not."""
    records = read_table(path, POWER_COLUMNS)
    usable = [record for record in records if record["dram_GBs"] and record["GFLOPs"]]
    return list(_samples(path, usable)), len(records) - len(usable)


def _samples(path: Path, records: list[Record]) -> Iterator[Sample]:
    for record in records:
        sweep = record["workload"].startswith(SWEEP)
        machine, fmt, tensor = _machine(path, record), record["dtype"].partition("(")[0], record["dtype"] != "fp32"
        moved, done = number(path, record, "dram_GBs") * 1e9, number(path, record, "GFLOPs") * 1e9
        watts = modelled_watts(machine, fmt, moved, done, tensor=not sweep and tensor)
        if watts is not None and (product := PRODUCT.fullmatch(record["workload"])):
            watts = GpuModel(machine).gemm(GemmShape(*map(int, product.groups())), fmt).power.watts
        if watts is None:
            known = ", ".join(sorted(machine.energy.actions)) if machine.energy else "none"
            missing = f"machine {machine.name} has no energy price for {record['dtype']!r}; it has {known}"
            raise row_error(path, record, "dtype", missing)
        group = f"{'FMA sweep' if sweep else 'kernels'} {machine.name}"
        purpose = purpose_of(record["workload"], record["dtype"])
        name = f"{record['gpu']} {record['workload']}"
        family = "gpu_power_sweep" if sweep else "gpu_power"
        yield Sample(name, group, machine.name, number(path, record, "power_w"), watts, purpose, family)


def modelled_watts(
    machine: MachineSpec, fmt: str, bytes_per_s: float, flops_per_s: float, *, tensor: bool
) -> float | None:
    """Static power, and what flows for bytes and operations, no more than the limit; None where a price is missing."""
    unit, energy = Device.of(machine).sm, machine.energy
    if energy is None:
        return None
    operation = energy.actions.get(f"{unit.name}.{'tensor' if tensor else 'fma'}.{fmt}")
    access = energy.actions.get("dram.read")
    if operation is None or access is None:
        return None
    idle = float(sum(static.power for static in energy.static.values()))
    moved = 8 * float(access.energy.picojoules) * bytes_per_s * 1e-12
    computed = float(operation.energy.picojoules) / 2 * flops_per_s * 1e-12
    watts = idle + moved + computed
    return watts if unit.power_limit is None else min(watts, float(unit.power_limit))


def _machine(path: Path, record: Record) -> MachineSpec:
    name = MACHINES.get(record["gpu"], record["gpu"])
    if name not in MACHINES.values():
        one_of(path, record, "gpu", sorted(MACHINES))
    return _load(name)


@cache
def _load(name: str) -> MachineSpec:
    return load_machine(name).spec


Count = Annotated[int, Field(ge=1)]


class StoreSpec(Spec):
    """One level of memory of a published result."""

    name: Name = Field(description="As the other program calls it, or nearly.")
    holds: tuple[Role, ...] = Field(description="Operands that it keeps.")
    bits: Count = Field(description="Bits of a value here.")
    word: int | None = Field(None, description="Bits of an access that the prices are for; one value if not given.")
    read: EnergyField = Field(description="Of a word, or per bit.")
    write: EnergyField = Field(description="Of a word, or per bit.")
    loops: dict[str, Count] = Field({}, description="Loops that run here, from the outside in.")
    spread: dict[str, Count] = Field({}, description="Loops that are spread over the instances inside.")
    multicast: bool = Field(True, description="Whether one read serves all instances that need the same.")
    accesses: int | None = Field(None, description="Published total of values read and written.")


class PublishedSpec(Spec):
    """A mapping, its prices, and the energy that was published for it."""

    name: Name
    what: str
    source: str
    energy: EnergyField
    tolerance: float = Field(gt=0)
    sizes: dict[str, Count]
    stride: Count = 1
    steps: int | None = None
    mac: EnergyField
    first_reads: bool = False
    drains: bool = True
    stores: tuple[StoreSpec, ...]


@dataclass(frozen=True)
class Recount:
    """What hwsim counts for a published mapping."""

    published: PublishedSpec
    flow: NestCounts
    joules: float

    @property
    def miscounted(self) -> list[str]:
        """Levels, or steps, whose published totals are not those counted here."""
        wrong = []
        for store in self.published.stores:
            found = self.flow.total(store.name)
            if store.accesses is not None and found.reads + found.writes != store.accesses:
                wrong.append(f"{store.name}: {found.reads + found.writes:,} accesses, published {store.accesses:,}")
        if self.published.steps is not None and self.flow.steps != self.published.steps:
            wrong.append(f"{self.flow.steps:,} steps, published {self.published.steps:,}")
        return wrong


def published() -> list[PublishedSpec]:
    """All that come with hwsim, by name."""
    return [load_spec_file(PublishedSpec, path, path.name) for path in sorted(shipped("nests").glob("*.yaml"))]


def recount(spec: PublishedSpec) -> Recount:
    stores = [
        NestLevel(
            each.name, frozenset(each.holds), tuple(each.loops.items()), tuple(each.spread.items()),
            multicast=each.multicast,
        )
        for each in spec.stores
    ]  # fmt: skip
    work = Convolution(spec.sizes, (spec.stride, spec.stride))
    flow = count_accesses(work, stores, Convention(spec.first_reads, spec.drains))
    picojoules = flow.macs * spec.mac.picojoules
    for each in spec.stores:
        picojoules += _energy(each, flow.total(each.name))
    return Recount(spec, flow, float(picojoules) * 1e-12)


def _energy(store: StoreSpec, count: LevelAccesses) -> Fraction:
    def price(energy: EnergyPrice) -> Fraction:
        if energy.per == "bit":
            return energy.picojoules * store.bits
        return energy.picojoules * Fraction(store.bits, store.word or store.bits)

    return count.reads * price(store.read) + count.writes * price(store.write)


WHAT = "energy against measured chips and against the counts of other programs"
LAYER_BAR, UNFITTED_BAR, SWEEP_BAR = 0.06, 0.10, 0.05


def validate(data: Path | None = None, count: int | None = None, seed: int = 0) -> Progress:
    """The number of rows to come, then each row as it is done, then the report. There are too few to sample."""
    rows: list[ComparisonRow] = []
    bars: list[Bar] = []
    notes: list[str] = []
    data = None if data is not None and data.is_dir() else data
    parts = [_layers(shipped("eyeriss.csv")), _power(shipped("power.csv")), _nests()] if data is None else [_own(data)]
    for found, met, said in parts:
        rows += found
        bars += met if data is None else ()
        notes += said
    yield len(rows)
    yield from rows
    yield report("energy", WHAT, rows, bars, notes)


Part = tuple[list[ComparisonRow], list[Bar], list[str]]


def _own(data: Path) -> Part:
    """A table of the user's, by its columns."""
    columns = columns_of(data)
    if "zero_inputs_pct" in columns:
        return _layers(data, own=True)
    if "power_w" in columns:
        return _power(data)
    needed = f"layers have {', '.join(LAYER_COLUMNS)}; measured power has {', '.join(POWER_COLUMNS)}"
    raise table_error(data, 1, "", f"neither a table of layers nor one of measured power: {needed}")


def _layers(path: Path, *, own: bool = False) -> Part:
    layers = read_layers(path)
    rows = [
        ComparisonRow(
            layer.name, "Eyeriss layers", layer.error,
            f"{layer.joules(layer.measured_s) * 1e3:.3f} mJ modelled, {layer.measured_j * 1e3:.3f} mJ measured",
        )
        for layer in layers
    ]  # fmt: skip
    notes = [_simulated(layers)]
    if own:
        return rows, [], [*notes, "nothing was fitted to this table: the constants are those of machines/eyeriss.yaml"]
    fitted = fitted_layers(layers)
    left_out = leave_one_out(fitted)
    rows += [
        ComparisonRow(layer.name, "Eyeriss layers, left out of the fit", error)
        for layer, error in zip(fitted, left_out, strict=True)
    ]
    rows += as_run(layers)
    dynamic, static = fit(fitted)
    notes += [
        f"a fit to all layers of {FITTED} would change pe.mac by {dynamic - 1:+.1%} "
        f"and the static power by {static - 1:+.1%}"
    ]
    unfitted = [layer.error_simulated for layer in layers if layer.network != FITTED]
    bars = [
        _bar("Eyeriss layers, each left out of the fit", left_out, LAYER_BAR),
        _bar("Eyeriss layers of VGG-16, none of them fitted, with the simulated time", unfitted, UNFITTED_BAR),
    ]
    return rows, bars, notes


def _simulated(layers: Sequence[MeasuredLayer]) -> str:
    """How far the energy is off with the simulated time in place of the measured one, and that time."""
    off = mean(layer.error_simulated for layer in layers)
    times = "; ".join(
        f"{layer.name} {layer.simulated_s * 1e3:.1f} ms for {layer.measured_s * 1e3:.1f} ms, "
        f"{layer.joules(layer.simulated_s) * 1e3:.2f} mJ for {layer.measured_j * 1e3:.2f} mJ"
        for layer in layers
    )
    return f"Eyeriss layers with the simulated time: mean error {off:.2%} (simulated for measured: {times})"


def _power(path: Path) -> Part:
    samples, unusable = read_samples(path)
    rows = [
        ComparisonRow(
            each.name,
            each.group,
            each.error,
            f"{each.modelled_w:.0f} W modelled, {each.measured_w:.0f} W measured",
            Residual(each.family, each.machine, each.modelled_w, each.measured_w, each.purpose, POWER, ANY_TIME),
        )
        for each in samples
    ]
    notes = [f"{unusable} rows without bytes and operations were left out"] if unusable else []
    sweep = [row.error for row in rows if row.group.startswith("FMA sweep")]
    return rows, [_bar("GPU power, FMA sweeps", sweep, SWEEP_BAR)] if sweep else [], notes


def _nests() -> Part:
    rows, bars = [], []
    for spec in published():
        found, expected = recount(spec), float(spec.energy.picojoules) * 1e-12
        error = relative_error(found.joules, expected)
        detail = "; ".join(
            [f"{found.joules * 1e6:.6f} uJ counted, {expected * 1e6:.6f} uJ published", *found.miscounted]
        )
        rows.append(ComparisonRow(spec.what, "published by other programs", error, detail))
        met = error <= spec.tolerance and not found.miscounted
        bars.append(Bar(spec.what, f"within {spec.tolerance:.1%}", f"off by {error:.4%}", met))
    return rows, bars, []


def _bar(name: str, errors: Sequence[float], limit: float) -> Bar:
    value = mean(errors)
    return Bar(name, f"mean error at most {limit:.0%}", f"{value:.2%}", value <= limit)
