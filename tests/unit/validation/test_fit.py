"""`hwsim fit`: what it finds on one half of a table, and what it writes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hwsim.catalog import load_machine
from hwsim.errors import InputError
from hwsim.targets.gpu.target import GpuTarget
from hwsim.validation.fit import Fit, FitStep, as_variant, fit
from hwsim.validation.gpu import modelled_seconds
from hwsim.validation.gpu_workload import COLUMNS, MeasuredKernel

TRUE_START = 3000


def made_up(path: Path, rows: int = 16) -> Path:
    """Times of a machine that hwsim itself plays, whose blocks start more slowly than the file says."""
    target = GpuTarget(load_machine("v100", [f"sm.library.block_start={TRUE_START}"]).spec)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for number in range(rows):
            sizes = {"m": 64 + 16 * number, "n": 512, "k": 128}
            about = {"family": "gemm_tensor", "machine": "v100", "op": "gemm", "dtype": "fp16", "timing": "cuda_event"}
            record = dict.fromkeys(COLUMNS, "") | about | {name: str(size) for name, size in sizes.items()}
            row = MeasuredKernel(path, {**record, "latency_us": "1", "__line__": "2"})
            writer.writerow(record | {"latency_us": str(modelled_seconds(target, row) * 1e6)})
    return path


def test_times_of_a_known_machine_lead_back_to_it(tmp_path: Path) -> None:
    """The error of rows that were not searched on all but vanishes, and the file that is written can be loaded."""
    *said, found = fit(load_machine("v100").spec, made_up(tmp_path / "made_up.csv"), rows=6)
    assert isinstance(found, Fit) and all(isinstance(each, FitStep) for each in said)
    assert found.before["gemm_tensor"] > 0.05
    assert found.after["gemm_tensor"] < 0.02
    path = tmp_path / "slow_v100.yaml"
    path.write_text(as_variant(found, "v100", "slow_v100"))
    spec = load_machine(path).spec
    assert spec.name == "slow_v100"
    assert GpuTarget(spec).device.sm.library.block_start == float(found.constants["library.block_start"])


def test_a_table_of_other_machines_is_refused_with_what_it_has(tmp_path: Path) -> None:
    path = made_up(tmp_path / "other.csv", 2)
    path.write_text(path.read_text().replace("v100", "h800", 1))
    with pytest.raises(InputError, match="no row has the machine 'a100_40'; it has h800, v100"):
        list(fit(load_machine("a100_40").spec, path))
