"""Products of a GPU's library against measured ones that nothing was fitted to."""

from __future__ import annotations

from statistics import mean

from hwsim.catalog import load_machine
from hwsim.targets.gpu.target import GpuTarget
from hwsim.validation.gpu import modelled_seconds
from hwsim.validation.gpu_workload import COLUMNS, MeasuredKernel
from hwsim.validation.standing import AIMS
from hwsim.validation.table import read_table, shipped


def test_measured_products_of_narrow_weights_are_met_as_closely_as_stated() -> None:
    """The rows of the shipped table, of which none was fitted to: a mean error of 10 %, the aim of their family."""
    path = shipped("gpu.csv")
    rows = [MeasuredKernel(path, record) for record in read_table(path, COLUMNS)]
    rows = [row for row in rows if row.family == "gemm_weight_only"]
    assert len(rows) >= 30 and all(row.held_out for row in rows)
    target = GpuTarget(load_machine("a100_80").spec)
    ratios = [modelled_seconds(target, row) / row.seconds for row in rows]
    assert mean(abs(ratio - 1) for ratio in ratios) <= AIMS["time", "gemm_weight_only"][0].limit
