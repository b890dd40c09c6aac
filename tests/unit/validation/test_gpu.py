"""How GPUs are judged: hand-written kernels whose order was measured, and defaults that all families share."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from hwsim.catalog import load_machine
from hwsim.cli.validate import validate_command
from hwsim.targets.gpu.target import GpuTarget
from hwsim.validation.gpu import modelled_seconds
from hwsim.validation.gpu_workload import COLUMNS, LADDER, MeasuredKernel
from hwsim.validation.report import FAMILIES
from hwsim.validation.table import read_table, shipped


def test_kernels_of_the_ladder_come_in_the_order_that_was_measured() -> None:
    """Böhm, 2022, on an A6000: each of his kernels is faster than the one before, up to 70 times the first."""
    path = shipped("gpu.csv")
    rows = [MeasuredKernel(path, each) for each in read_table(path, COLUMNS) if each["family"] == "sgemm_ladder"]
    measured = {row.record["impl"]: float(row.record["latency_us"]) / 1e6 for row in rows}
    target = GpuTarget(load_machine("a6000").spec)
    simulated = {row.record["impl"]: modelled_seconds(target, row) for row in rows}
    assert set(measured) == set(LADDER)
    assert sorted(simulated, key=lambda impl: simulated[impl]) == sorted(measured, key=lambda impl: measured[impl])
    for impl, seconds in simulated.items():
        assert seconds == pytest.approx(measured[impl], rel=0.3), impl


@pytest.mark.parametrize("family", FAMILIES)
def test_a_comparison_draws_the_rows_of_the_command_unless_it_is_told_others(family: str) -> None:
    asked = inspect.signature(import_module(f"hwsim.validation.{family}").validate).parameters
    command = inspect.signature(validate_command).parameters
    assert [asked[name].default for name in ("data", "count", "seed")] == [
        command[name].default for name in ("data", "sample", "seed")
    ]
