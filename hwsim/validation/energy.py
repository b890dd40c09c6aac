"""`hwsim validate energy`: energy against measured chips, and against what other programs count.

Eyeriss layers, measured GPU power, and three mappings whose energy other programs have published. A table of the user's
is one of the first two, whichever columns it has; nothing is fitted to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from hwsim.errors import Problem, SpecError
from hwsim.validation import energy_eyeriss, energy_gpu, energy_nest
from hwsim.validation.report import Bar, Report, Row, relative_error, report
from hwsim.validation.table import columns_of, shipped

WHAT = "energy against measured chips and against the counts of other programs"
LAYER_BAR, SWEEP_BAR = 0.06, 0.05


def validate(data: Path | None = None, count: int | None = None, seed: int = 0) -> Iterator[Row | int | Report]:
    """The number of rows to come, then each row as it is done, then the report. There are too few to sample."""
    rows: list[Row] = []
    bars: list[Bar] = []
    notes: list[str] = []
    parts = [_layers(shipped("eyeriss.csv")), _power(shipped("power.csv")), _nests()] if data is None else [_own(data)]
    for found, met, said in parts:
        rows += found
        bars += met if data is None else ()
        notes += said
    yield len(rows)
    yield from rows
    yield report("energy", WHAT, rows, bars, notes)


Part = tuple[list[Row], list[Bar], list[str]]


def _own(data: Path) -> Part:
    """A table of the user's, by its columns."""
    columns = columns_of(data)
    if "zero_inputs_pct" in columns:
        return _layers(data, own=True)
    if "power_w" in columns:
        return _power(data)
    needed = f"layers have {', '.join(energy_eyeriss.COLUMNS)}; measured power has {', '.join(energy_gpu.COLUMNS)}"
    raise SpecError((Problem(str(data), 1, "", f"neither a table of layers nor one of measured power: {needed}"),))


def _layers(path: Path, *, own: bool = False) -> Part:
    layers = energy_eyeriss.read_layers(path)
    rows = [
        Row(
            layer.name, "Eyeriss layers", layer.error,
            f"{layer.joules(layer.measured_s) * 1e3:.3f} mJ modelled, {layer.measured_j * 1e3:.3f} mJ measured",
        )
        for layer in layers
    ]  # fmt: skip
    notes = [_simulated(layers)]
    if own:
        return rows, [], [*notes, "nothing was fitted to this table: the constants are those of machines/eyeriss.yaml"]
    left_out = energy_eyeriss.leave_one_out(layers)
    rows += [
        Row(layer.name, "Eyeriss layers, left out of the fit", error)
        for layer, error in zip(layers, left_out, strict=True)
    ]
    dynamic, static = energy_eyeriss.fit(layers)
    notes += [
        f"a fit to all layers would change pe.mac by {dynamic - 1:+.1%} and the static power by {static - 1:+.1%}"
    ]
    return rows, [_bar("Eyeriss layers, each left out of the fit", left_out, LAYER_BAR)], notes


def _simulated(layers: Sequence[energy_eyeriss.Layer]) -> str:
    """How far the energy is off with the simulated time in place of the measured one, and that time."""
    off = mean(layer.error_simulated for layer in layers)
    times = "; ".join(
        f"{layer.name} {layer.simulated_s * 1e3:.1f} ms for {layer.measured_s * 1e3:.1f} ms, "
        f"{layer.joules(layer.simulated_s) * 1e3:.2f} mJ for {layer.measured_j * 1e3:.2f} mJ"
        for layer in layers
    )
    return f"Eyeriss layers with the simulated time: mean error {off:.2%} (simulated for measured: {times})"


def _power(path: Path) -> Part:
    samples, unusable = energy_gpu.read_samples(path)
    rows = [
        Row(each.name, each.group, each.error, f"{each.modelled_w:.0f} W modelled, {each.measured_w:.0f} W measured")
        for each in samples
    ]
    notes = [f"{unusable} rows without bytes and operations were left out"] if unusable else []
    sweep = [row.error for row in rows if row.group.startswith("FMA sweep")]
    return rows, [_bar("GPU power, FMA sweeps", sweep, SWEEP_BAR)] if sweep else [], notes


def _nests() -> Part:
    rows, bars = [], []
    for spec in energy_nest.published():
        found, expected = energy_nest.recount(spec), float(spec.energy.picojoules) * 1e-12
        error = relative_error(found.joules, expected)
        detail = "; ".join(
            [f"{found.joules * 1e6:.6f} uJ counted, {expected * 1e6:.6f} uJ published", *found.miscounted]
        )
        rows.append(Row(spec.what, "published by other programs", error, detail))
        met = error <= spec.tolerance and not found.miscounted
        bars.append(Bar(spec.what, f"within {spec.tolerance:.1%}", f"off by {error:.4%}", met))
    return rows, bars, []


def _bar(name: str, errors: Sequence[float], limit: float) -> Bar:
    value = mean(errors)
    return Bar(name, f"mean error at most {limit:.0%}", f"{value:.2%}", value <= limit)
