"""`hwsim validate energy`: its comparisons hold, other tables are taken as they are, wrong ones are explained."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from command_line import hwsim

from hwsim.catalog import load_machine
from hwsim.validation.energy import FITTED, PublishedSpec, _simulated, fit, published, read_layers, recount
from hwsim.validation.table import shipped


@pytest.fixture(scope="module")
def report() -> dict:  # type: ignore[type-arg]
    outcome = hwsim("validate", "energy", "--json", "-")
    assert outcome.code == 0
    return json.loads(outcome.out)  # type: ignore[no-any-return]


def test_every_stated_bar_holds(report: dict) -> None:  # type: ignore[type-arg]
    assert report["passed"]
    assert len(report["bars"]) == 6
    assert report["groups"]["Eyeriss layers, left out of the fit"]["mape"] <= 0.06
    for machine in ("a100_40", "a40", "h200"):
        assert report["groups"][f"FMA sweep {machine}"]["mape"] <= 0.05


def test_the_error_with_simulated_time_is_printed(report: dict) -> None:  # type: ignore[type-arg]
    assert any("with the simulated time: mean error" in note for note in report["notes"])


@pytest.mark.parametrize("spec", published(), ids=lambda spec: spec.name)
def test_other_programs_are_recounted(spec: PublishedSpec) -> None:
    found = recount(spec)
    assert found.miscounted == []
    assert found.joules == pytest.approx(float(spec.energy.picojoules) * 1e-12, rel=spec.tolerance)


def test_a_recount_objects_to_other_loops() -> None:
    spec = next(each for each in published() if each.name == "timeloop_eyeriss_like")
    changed = tuple(
        store.model_copy(update={"loops": {"q": 56, "m": 4}}) if store.name == "glb" else store for store in spec.stores
    )
    assert recount(spec.model_copy(update={"stores": changed})).miscounted


def test_exactly_two_constants_of_the_chip_are_fitted() -> None:
    energy = load_machine("eyeriss").spec.energy
    assert energy is not None
    fitted = [name for name, price in energy.actions.items() if price.source.startswith("fitted:")]
    fitted += [name for name, static in energy.static.items() if static.source.startswith("fitted:")]
    assert fitted == ["pe.mac", "machine"]


def test_the_constants_in_the_file_are_nearly_those_of_the_fit() -> None:
    layers = [layer for layer in read_layers(shipped("eyeriss.csv")) if layer.network == FITTED]
    dynamic, static = fit(layers)
    assert dynamic == pytest.approx(1, abs=0.01)
    assert static == pytest.approx(1, abs=0.01)


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def rows(name: str) -> list[dict[str, str]]:
    with shipped(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_what_a_fit_to_all_layers_would_change_is_told(report: dict) -> None:  # type: ignore[type-arg]
    """By NumPy's least squares: dynamic and static energy of each layer, relative to what was measured."""
    layers = [layer for layer in read_layers(shipped("eyeriss.csv")) if layer.network == FITTED]
    shares = [(each.dynamic_j / each.measured_j, each.static_w * each.measured_s / each.measured_j) for each in layers]
    factors = np.linalg.lstsq(np.array(shares), np.ones(len(shares)), rcond=None)[0]
    (note,) = [note for note in report["notes"] if note.startswith(f"a fit to all layers of {FITTED}")]
    told = [float(text) for text in re.findall(r"([+-][\d.]+)%", note)]
    assert told == pytest.approx(100 * (factors - 1), abs=0.06)


def test_other_layers_are_compared_and_nothing_is_fitted(tmp_path: Path) -> None:
    layer = {**rows("eyeriss.csv")[2], "network": "mine", "energy_mj": "100"}
    outcome = hwsim("validate", "energy", "--data", str(write(tmp_path / "mine.csv", [layer])), "--json", "-")
    found = json.loads(outcome.out)
    assert outcome.code == 0
    assert found["rows"] == 1
    assert found["mape"] > 0.9  # the energy was made up
    assert any("nothing was fitted" in note for note in found["notes"])


def test_other_power_is_compared(tmp_path: Path) -> None:
    chosen = [row for row in rows("power.csv") if row["gpu"] == "A40"][:3]
    outcome = hwsim("validate", "energy", "--data", str(write(tmp_path / "mine.csv", chosen)), "--json", "-")
    found = json.loads(outcome.out)
    assert (outcome.code, found["rows"]) == (0, 3)
    assert set(found["groups"]) == {"FMA sweep a40"}


@pytest.mark.parametrize(
    ("table", "changed", "message"),
    [
        ("eyeriss.csv", {"stride": "two"}, "mine.csv:2: stride: 'two' is not a whole number"),
        ("eyeriss.csv", {"total_ms": "inf"}, "mine.csv:2: total_ms: 'inf' is not a number"),
        (
            "eyeriss.csv",
            {"r": "13"},
            "mine.csv:2: mapping: a kernel of 13 rows needs 13 rows of the grid",
        ),
        ("eyeriss.csv", {"r": "13", "mapping": ""}, "no row-stationary mapping"),
        ("power.csv", {"gpu": "A999"}, "mine.csv:2: gpu: 'A999' is not one of A100-SXM4-40GB"),
        ("power.csv", {"dtype": "fp3"}, "mine.csv:2: dtype: machine a100_40 has no energy price for 'fp3'"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, table: str, changed: dict[str, str], message: str) -> None:
    row = {**rows(table)[0], **changed}
    outcome = hwsim("validate", "energy", "--data", str(write(tmp_path / "mine.csv", [row])))
    assert outcome.code == 2
    assert message in outcome.err


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    outcome = hwsim("validate", "energy", "--data", str(write(tmp_path / "mine.csv", [{"a": "1"}])))
    assert outcome.code == 2
    assert "neither a table of layers nor one of measured power" in outcome.err


def test_the_csv_of_a_run_has_counts_prices_and_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwsim.cli.run.last_run_files", lambda: [tmp_path / "last.json"])
    outcome = hwsim("run", "course_cpu", "matmul", "n=32", "tile=16", "--energy-csv", str(tmp_path / "energy.csv"))
    assert outcome.code == 0
    with (tmp_path / "energy.csv").open(encoding="utf-8", newline="") as file:
        lines = {f"{row['component']}.{row['action']}": row for row in csv.DictReader(file)}
    assert lines["core.fma.fp32"]["count"] == str(32**3)
    assert float(lines["core.fma.fp32"]["price"]) == 4.6
    assert "Horowitz" in lines["core.fma.fp32"]["source"]
    refused = hwsim("run", "n=16", "--set", "energy=null", "--energy-csv", str(tmp_path / "energy.csv"))
    assert refused.code == 2
    assert "has no energy prices" in refused.err


def test_layers_are_told_in_milliseconds_and_millijoules() -> None:
    layer = SimpleNamespace(
        name="conv1", simulated_s=2e-3, measured_s=2.5e-3, measured_j=0.7e-3, error_simulated=0.12,
        joules=lambda time_s: 0.3 * time_s,
    )  # fmt: skip
    words = _simulated([layer, layer])  # type: ignore[list-item]
    told = "conv1 2.0 ms for 2.5 ms, 0.60 mJ for 0.70 mJ"
    assert words == (
        f"Eyeriss layers with the simulated time: mean error 12.00% (simulated for measured: {told}; {told})"
    )
