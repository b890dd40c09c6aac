"""`hwsim validate gpu`: what it prints, how it samples, and how it refuses tables that it cannot read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import hwsim

from hwsim.catalog import load_machine
from hwsim.spec.machine import MachineSpec
from hwsim.targets.gpu.target import GpuTarget
from hwsim.validation.fit import Fit, FitStep
from hwsim.validation.table import shipped

Table = Callable[..., Path]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Writes some rows of the shipped table, fields of the first (line 2) changed."""

    def write(family: str = "gemm_tensor", count: int = 4, **changed: str) -> Path:
        with shipped("gpu.csv").open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["family"] == family][:count]
        rows[0] = {**rows[0], **changed}
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        file_path = tmp_path / "mine.csv"
        file_path.write_text(text.getvalue())
        return file_path

    return write


def test_families_and_machines_are_reported_with_mean_and_median() -> None:
    outcome = hwsim("validate", "gpu", "--sample", "1", "--json", "-")
    report = json.loads(outcome.out)
    assert outcome.code in (0, 1)  # so few rows may miss a bar
    assert {"gemm_tensor a100_80", "gemm_fp32 v100", "memory_bound t4"} <= set(report["groups"])
    assert all(set(group) >= {"mape", "median"} for group in report["groups"].values())
    assert any(note.startswith("gemm_tensor: mean error") for note in report["notes"])
    assert len(report["bars"]) == 8


def test_a_sample_takes_so_many_rows_of_each_family_and_machine(table: Table) -> None:
    path = table(count=40)
    report = json.loads(
        hwsim("validate", "gpu", "--data", str(path), "--sample", "2", "--seed", "5", "--json", "-").out
    )
    assert max(group["rows"] for group in report["groups"].values()) == 2


def test_a_table_without_an_id_column_names_rows_by_their_line(table: Table) -> None:
    path = table()
    lines = [",".join(line.split(",")[:2] + line.split(",")[3:]) for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    report = json.loads(hwsim("validate", "gpu", "--data", str(path), "--json", "-").out)
    assert "line 2" in [row["id"] for row in report["worst"]]


def test_rows_that_judge_are_not_shown_one_by_one(table: Table, tmp_path: Path) -> None:
    """By family, machine and size alone; rows of the user's own table are."""
    outcome = hwsim("validate", "gpu", "--sample", "12", "--json", str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["worst"] == []
    assert {"family", "machine", "decade", "rows", "error", "ratio"} == set(report["worst_parts"][0])
    assert min(part["rows"] for part in report["worst_parts"]) >= 5
    assert "on average over" in outcome.out and "simulated, " not in outcome.out
    assert json.loads(hwsim("validate", "gpu", "--data", str(table()), "--json", "-").out)["worst"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"machine": "a101"}, "machine: there is no machine 'a101'"),
        ({"m": "many"}, "m: 'many' is not a whole number"),
        ({"m": "0"}, "m: 0 is less than 1"),
        ({"latency_us": "-3"}, "latency_us: '-3' is not a time in microseconds"),
        ({"dtype": "fp12"}, "dtype: 'fp12' is not one of"),
        ({"timing": "sundial"}, "timing: 'sundial' is not one of"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused_with_its_line(table: Table, changed: dict[str, str], said: str) -> None:
    outcome = hwsim("validate", "gpu", "--data", str(table(**changed)))
    assert outcome.code == 2
    assert said in " ".join(outcome.err.split())
    assert "mine.csv:2" in outcome.err
    assert "Traceback" not in outcome.err


def test_an_attention_kernel_that_no_one_knows_is_refused(table: Table) -> None:
    outcome = hwsim(
        "validate", "gpu", "--data", str(table("attention_fused", 2, impl="FlashAttention-9", latency_us="900"))
    )
    assert outcome.code == 2
    assert "impl: 'FlashAttention-9' is not one of" in " ".join(outcome.err.split())


def test_heads_that_do_not_share_keys_evenly_are_refused_with_their_line(table: Table) -> None:
    outcome = hwsim("validate", "gpu", "--data", str(table("attention_decode", 2, heads="7", kv_heads="2")))
    assert outcome.code == 2
    assert "mine.csv:2" in outcome.err and "7 query heads cannot share 2 key/value heads" in " ".join(
        outcome.err.split()
    )


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("family,machine\ngemm_tensor,a100_80\n")
    outcome = hwsim("validate", "gpu", "--data", str(path))
    assert outcome.code == 2
    assert "the column 'op' is missing" in " ".join(outcome.err.split())


def test_errors_beyond_a_bar_end_with_1(table: Table) -> None:
    outcome = hwsim("validate", "gpu", "--data", str(table(count=1, latency_us="1000000")))
    assert outcome.code == 1
    assert "missed: gemm_tensor" in outcome.out


def test_a_fit_ends_with_what_it_found_and_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the search itself finds is tests/unit/validation/test_fit.py's; here it is made up."""
    found = Fit("v100", "sm", "mine.csv", {"library.block_start": "900", "energy.sm.tensor.fp16": "3 pJ"}, [],
                {"gemm_tensor": 0.4, "memory_bound": 0.1}, {"gemm_tensor": 0.021, "memory_bound": 0.1},
                {"gemm_tensor": 6}, {"gemm_tensor": 5, "memory_bound": 2})  # fmt: skip
    asked: list[object] = []

    def fit(machine: MachineSpec, path: Path, rows: int, seed: int) -> Iterator[FitStep | Fit]:
        asked.append((machine.name, path.name, rows, seed))
        yield FitStep("looking", 0.0)
        yield FitStep("still looking", 0.5)
        yield found

    monkeypatch.setattr("hwsim.validation.fit.fit", fit)
    (tmp_path / "mine.csv").write_text("op")
    words = ("fit", "v100", str(tmp_path / "mine.csv"), "--rows", "7", "--seed", "3", "-o", str(tmp_path / "slow.yaml"))
    done = hwsim(*words)
    assert done.code == 0, done.err
    rows = {cells[0]: cells[1:] for line in done.out.splitlines() if len(cells := line.split()) == 5}
    assert rows["gemm_tensor"] == ["6", "5", "40.0%", "2.1%"] and rows["memory_bound"] == ["0", "2", "10.0%", "10.0%"]
    assert "sm.library.block_start: 900" in done.out and "  energy.sm.tensor.fp16: 3 pJ" in done.out
    fitted = GpuTarget(load_machine(tmp_path / "slow.yaml").spec).device
    assert (fitted.sm.library.block_start, fitted.picojoules("sm.tensor.fp16")) == (900, 3)
    assert json.loads(hwsim(*words[:5], "--json", "-").out)["constants"] == found.constants
    assert asked == [("v100", "mine.csv", 7, 3), ("v100", "mine.csv", 7, 0)]


def test_a_sample_of_measured_times_is_not_judged_by_aims_and_matches_nothing_to_the_digit() -> None:
    sampled = hwsim("validate", "gpu", "--sample", "1").out
    assert "matched" not in sampled
    table = sampled[sampled.index("half a bar") :]
    assert " sample " in table
    assert "missed" not in table and "holds" not in table
    assert "a sample, 1 row of each group: aims are for all rows, and are not judged here" in sampled
    assert "matched" in hwsim("validate", "cache", "--sample", "1").out
