"""Energy by tensor, as a table, over time, and for each operation."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

import pytest

import hwsim
from hwsim.api import run_all
from hwsim.catalog import load_machine
from hwsim.results.metrics import energy_csv
from hwsim.results.plot.style import plot_energy_stack
from hwsim.results.plot.timeline import power_over_time


@pytest.fixture(scope="module")
def result() -> hwsim.RunResult:
    return hwsim.run("course_cpu", "matmul_naive", n=32)


def test_tensors_share_the_energy_of_memory_without_remainder(result: hwsim.RunResult) -> None:
    assert result.energy_by_tensor is not None
    assert result.energy_by_cause is not None
    for level in ("l1", "l2", "dram"):
        spent = sum(
            line["joules"] for name, line in result.energy_by_cause["memory"].items() if name.startswith(f"{level}.")
        )
        assert sum(levels.get(level, 0.0) for levels in result.energy_by_tensor.values()) == pytest.approx(spent)
    assert result.energy_by_tensor["A"]["l1"] > result.energy_by_tensor["C"]["l1"]  # n loads of A for one store of C


def test_the_table_multiplies_out(result: hwsim.RunResult) -> None:
    rows = list(csv.DictReader(StringIO(energy_csv(result))))
    for row in rows:
        unit = 1.0 if row["price_unit"] == "W" else 1e-12
        assert float(row["joules"]) == pytest.approx(float(row["count"]) * float(row["price"]) * unit)
        assert row["source"]
    assert sum(float(row["joules"]) for row in rows) == pytest.approx(result.energy_j)
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1)


def test_energy_per_operation_and_times_delay(result: hwsim.RunResult) -> None:
    assert result.energy_j is not None
    assert result.energy_per_op_pj == pytest.approx(result.energy_j / (2 * 32**3) * 1e12)
    assert result.edp_js == result.energy_j * result.time_s


@pytest.mark.parametrize("workload", ["matmul_tiled", "matmul_parallel", "unfused"])
def test_power_over_time_has_the_mean_of_the_run(workload: str) -> None:
    run = run_all("course_cpu", workload, parameters={"n": 48}, timeline=True)
    pieces = power_over_time(load_machine("course_cpu").spec, run.outcome, bins=50)
    assert len(pieces) == 50
    assert pieces[0].start_fs == 0
    assert pieces[-1].end_fs == run.outcome.elapsed_fs
    mean = sum(piece.watts * (piece.end_fs - piece.start_fs) for piece in pieces) / run.outcome.elapsed_fs
    assert mean == pytest.approx(run.result.power_w, rel=1e-6)
    assert all(piece.watts >= 13 for piece in pieces)  # static power flows whatever happens


def test_without_a_timeline_there_is_no_power_over_time() -> None:
    run = run_all("course_cpu", "matmul_tiled", parameters={"n": 32})
    assert power_over_time(load_machine("course_cpu").spec, run.outcome) == ()


@pytest.mark.parametrize("shares", [False, True])
def test_the_stack_is_drawn(result: hwsim.RunResult, tmp_path: Path, shares: bool) -> None:
    plot_energy_stack({"one": result, "two": result}, tmp_path / "stack.svg", "title", shares=shares)
    drawn = (tmp_path / "stack.svg").read_text(encoding="utf-8")
    assert "<svg" in drawn
