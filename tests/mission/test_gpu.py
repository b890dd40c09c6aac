"""Rows E10, E11, E12, H1, H2: what makes GPUs good at neural networks, and the machines and shapes of the notes.

That every number of a machine has a source is checked for all machines in tests/contract/test_machine_files.py.
"""

from __future__ import annotations

import pytest

import hwsim
from hwsim.catalog import load_machine
from hwsim.ops.attention_shape import AttentionShape
from hwsim.targets.gpu.model import GpuModel

NAMED = ("v100", "a100_40", "h100", "tpu_v1")


def test_e10_a_gpu_is_many_lanes_that_hide_latency_with_warps() -> None:
    """The coalesced kernel with fewer warps on an SM waits for its loads; with all of them it does not."""
    full = hwsim.run("a6000", "gpu_matmul_coalesced", n=1024, math=False)
    few = hwsim.run(
        "a6000", "gpu_matmul_coalesced", n=1024, math=False, **{"threads.bm": 2, "threads.bn": 32}, set={"sm.warps": 2}
    )
    unit = load_machine("a6000").spec.compute[0]
    assert unit.count * unit.lanes["fp32"] == 84 * 128  # type: ignore[union-attr]
    assert full.work["gpu"]["launches"][0]["warps"] == 32
    assert few.work["gpu"]["launches"][0]["warps"] == 2
    assert few.time_s > 1.2 * full.time_s


def test_e10_loads_that_are_not_coalesced_cost_many_times_as_much() -> None:
    naive = hwsim.run("a6000", "gpu_matmul_naive", n=1024, math=False)
    coalesced = hwsim.run("a6000", "gpu_matmul_coalesced", n=1024, math=False)
    assert naive.work["gpu"]["launches"][0]["sectors_per_request"] == pytest.approx(16.5)
    assert coalesced.work["gpu"]["launches"][0]["sectors_per_request"] == pytest.approx(2.5)
    assert 6 <= naive.time_s / coalesced.time_s <= 11, "the reference data has 6 to 11 times"


@pytest.mark.parametrize("machine", ["v100", "a100_40", "h100", "t4"])
def test_e11_matrix_units_are_what_makes_a_gpu_fast_at_products(machine: str) -> None:
    lanes = hwsim.run(machine, "matmul", n=4096, precision="fp32", math=False)
    tensor = hwsim.run(machine, "matmul", n=4096, precision="fp16", math=False)
    assert lanes.work["gpu"]["unit"] == "lanes"
    assert tensor.work["gpu"]["unit"] == "tensor"
    assert tensor.time_s < lanes.time_s / 3


def test_e12_products_are_most_of_a_transformer_also_in_time() -> None:
    result = hwsim.run("a100_40", "transformer_block", n=2048, d=2048, ff=8192, heads=16, precision="fp16", math=False)
    products = [each for each in result.work["gpu"]["launches"] if each["name"].startswith(("gemm", "attention"))]
    assert len(products) == 5
    assert sum(each["seconds"] for each in products) > 0.7 * result.time_s


def test_h1_a_large_product_on_an_a100_takes_what_was_measured() -> None:
    """fp16 8192³: 3.9614 ms by the wall clock, LLMCompass, ae/figure5, with 21 µs of host time in it."""
    result = hwsim.run("a100_40", "matmul", n=8192, precision="fp16", math=False)
    assert result.time_s == pytest.approx(3.9614e-3, rel=0.1)


@pytest.mark.parametrize("workload", ["matmul", "matmul_batched", "conv2d_3x3", "conv2d_5x5", "attention_fused"])
@pytest.mark.parametrize("machine", NAMED)
def test_h2_the_shapes_of_the_notes_run_on_the_machines_of_the_notes(machine: str, workload: str) -> None:
    result = hwsim.run(machine, workload)
    assert result.verified
    assert result.time_s > 0


def test_fused_attention_saves_more_memory_traffic_the_longer_the_sequence() -> None:
    """Unfused moves Q, K, V, O and four times the n² scores; fused moves Q, K, V, O: 1 + n / d in 2-byte values."""
    model = GpuModel(load_machine("a100_40").spec)
    d = 64
    ratios = []
    for n in (1024, 2048, 4096, 8192):
        shape = AttentionShape(n, n, d, 16, 16, 8)
        apart = sum(cost.dram_bytes for cost in model.attention_unfused(shape, "fp16"))
        ratios.append(apart / model.attention(shape, "fp16").dram_bytes)
        assert ratios[-1] == pytest.approx(1 + n / d, rel=0.35)
    assert ratios == sorted(ratios)
