"""Published peaks that the GPU files must carry, and how far the model may be from the shipped measurements.

Peaks: the vendors' data sheets and white papers, dense, as quoted in each file. Measured rows: the shipped table,
whose sources stand in its last column. Speed-up of fused attention: FlashAttention, arXiv:2205.14135, table 18.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import mean

import pytest

from hwsim.catalog import load_machine
from hwsim.ops.attention_shape import AttentionShape
from hwsim.program.contraction import GemmShape
from hwsim.targets.gpu.model import GpuModel
from hwsim.targets.gpu.target import GpuTarget
from hwsim.validation.gpu import (
    FAMILY_BARS,
    GROUP_BARS,
    NO_BARS,
    family_error,
    modelled_seconds,
    validate,
)
from hwsim.validation.gpu_workload import COLUMNS, LADDER, MeasuredKernel
from hwsim.validation.report import Report, relative_error
from hwsim.validation.table import read_table, shipped


def held_out(path: Path) -> list[MeasuredKernel]:
    rows = [MeasuredKernel(path, record) for record in read_table(path, COLUMNS)]
    return [row for row in rows if row.held_out]


@cache
def gpu(name: str) -> GpuModel:
    return GpuModel(load_machine(name).spec)


SAMPLE = 5
"""Rows of each family and machine, of the shipped table: all of them take half a minute (`hwsim validate gpu`)."""


@cache
def shipped_report() -> Report:
    *_, report = validate(count=SAMPLE)
    assert isinstance(report, Report)
    return report


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("v100", "fp16", 125), ("v100", "fp32", 15.7), ("v100_pcie", "fp32", 14.1),
        ("a100_40", "fp16", 312), ("a100_80", "int8", 624), ("a100_80", "tf32", 156), ("a100_40", "fp64", 19.5),
        ("h100", "bf16", 989), ("h100", "fp8_e4m3", 1979), ("h200", "fp16", 989), ("h800", "fp16", 989),
        ("a6000", "fp16", 154.8), ("a6000", "fp32", 38.7), ("a40", "fp32", 37.4), ("rtx3090", "fp16", 71),
        ("t4", "fp16", 65), ("t4", "fp32", 8.1), ("mali_g78", "fp32", 0.765),
    ],
)  # fmt: skip
def test_peak_rates_are_the_published_ones(name: str, precision: str, tflops: float) -> None:
    device = gpu(name).device
    unit = "tensor" if precision in device.sm.tensor else "lanes"
    peak = 2 * device.fma_rate(precision, unit) * device.count * device.clock_hz / 1e12
    assert peak == pytest.approx(tflops, rel=0.01)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("v100", 900), ("a100_40", 1555), ("a100_80", 2039), ("a100_pcie_80", 1935), ("h100", 3350), ("h200", 4800),
     ("a6000", 768), ("a40", 696), ("rtx3090", 936), ("t4", 320)],
)  # fmt: skip
def test_memory_bandwidths_are_the_published_ones(name: str, gigabytes: float) -> None:
    device = gpu(name).device
    assert device.dram_rate * device.clock_hz / 1e9 == pytest.approx(gigabytes)


def test_the_measured_product_of_8192_cubed_on_a100_is_met_within_the_noise_of_two_a100s() -> None:
    """LLMCompass measured 3.9614 ms (277.6 Tflop/s); other A100s reach 250, 8 to 10 % apart."""
    cost = gpu("a100_80").gemm(GemmShape(8192, 8192, 8192), "fp16")
    assert cost.seconds == pytest.approx(3.9614e-3, rel=0.12)


@pytest.mark.parametrize(("length", "speedup"), [(1024, 1270 / 680), (4096, 16470 / 8420)])
def test_fused_attention_gains_as_much_as_measured(length: int, speedup: float) -> None:
    shape = AttentionShape(length, length, 64, 8, 8, 16)
    model = gpu("a100_40")
    fused = model.seconds(model.attention(shape, "fp16", "flash1"))
    unfused = model.seconds(model.attention_unfused(shape, "fp16"))
    assert unfused / fused == pytest.approx(speedup, rel=0.25)


@pytest.mark.parametrize("family", FAMILY_BARS)
def test_every_family_with_a_bar_meets_it_on_the_shipped_rows(family: str) -> None:
    by_machine: dict[str, list[float]] = {}
    for row in shipped_report().results:
        name, machine = row.group.split(" ")
        if name == family and machine not in NO_BARS:
            by_machine.setdefault(machine, []).append(row.error)
    assert family_error(by_machine) <= FAMILY_BARS[family]


def test_matrix_products_on_a100_80_meet_their_own_bar() -> None:
    """All shipped rows of this group: a few would be a matter of chance."""
    (((family, machine), limit),) = GROUP_BARS.items()
    path, target = shipped("gpu.csv"), GpuTarget(load_machine(machine).spec)
    own = [row for row in held_out(path) if (row.family, row.machine) == (family, machine)]
    assert mean(relative_error(modelled_seconds(target, row), row.seconds) for row in own) <= limit


def test_a_model_that_is_wrong_misses_its_bar() -> None:
    """The check can object: without tensor cores' real rate the same rows are far off."""
    wrong = GpuModel(load_machine("a100_80", ["sm.library.tensor_share=0.3"]).spec)
    assert wrong.gemm(GemmShape(4096, 4096, 4096), "bf16").seconds > 2 * 548.9e-6  # measured: 548.9 us


def test_of_the_ladder_the_rungs_that_hwsim_has_are_compared() -> None:
    rungs = {row.record["impl"] for row in held_out(shipped("gpu.csv")) if row.record["op"] == "sgemm_ladder"}
    assert len(rungs) == 8 and rungs <= set(LADDER)
