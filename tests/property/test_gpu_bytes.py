"""Bytes of GPU kernels: what DRAM delivers passes the L2, results are written once, nothing is read too often."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hwsim
from hwsim.api import run_all
from hwsim.catalog import load_machine
from hwsim.engine import total
from hwsim.ops.attention_shape import AttentionShape
from hwsim.program.contraction import ConvShape, GemmShape
from hwsim.results.plot.timeline import power_over_time
from hwsim.targets.gpu.device import KernelCost
from hwsim.targets.gpu.gemm import GemmBytes
from tests.unit.hardware.gpu.made import model

GPUS = st.sampled_from(["a100_40", "h100", "v100", "t4", "mali_g78"])
sizes = st.integers(1, 3000)


def within_bounds(cost: KernelCost) -> None:
    assert cost.read_bytes + cost.write_bytes <= cost.l2_bytes
    assert cost.dram_bytes == cost.read_bytes + cost.write_bytes
    for grid in cost.grids:
        for portion in grid.portions:
            assert portion.dram_bytes <= portion.l2_bytes


@settings(max_examples=60, deadline=None)
@given(GPUS, sizes, sizes, sizes, st.integers(1, 5), st.booleans())
def test_a_product_reads_no_less_than_once_and_writes_its_results_once(
    name: str, m: int, n: int, k: int, batch: int, warm: bool
) -> None:
    cost = model(name).gemm(GemmShape(m, n, k, batch), "fp16", GemmBytes(2, 2, 2, warm, warm))
    within_bounds(cost)
    partial = batch * m * n * 4 * cost.split_k if cost.split_k > 1 else 0
    assert cost.write_bytes == batch * m * n * 2 + partial
    if not warm:
        assert cost.read_bytes >= 2 * batch * (m * k + k * n)


@settings(max_examples=30, deadline=None)
@given(
    GPUS, st.integers(1, 8), st.integers(1, 64), st.integers(7, 60), st.integers(1, 64), st.sampled_from([1, 3, 5, 7])
)
def test_a_convolution_writes_its_results_once(name: str, batch: int, c: int, side: int, out: int, taps: int) -> None:
    shape = ConvShape(c, out, (side, side), (taps, taps), batch, padding=(taps // 2, taps // 2))
    cost = model(name).conv(shape, "fp16")
    within_bounds(cost)
    assert cost.write_bytes == batch * side * side * out * 2


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["a100_40", "h100"]), st.integers(1, 4), st.sampled_from([1, 2, 4]), st.integers(1, 3000),
    st.integers(1, 3000), st.booleans(),
)  # fmt: skip
def test_fused_attention_reads_all_it_needs_and_writes_its_results_once(
    name: str, batch: int, sharing: int, queries: int, keys: int, causal: bool
) -> None:
    shape = AttentionShape(queries, max(queries, keys), 64, 4, 4 // sharing, batch, causal)
    for cost in (model(name).attention(shape, "fp16"), model(name).decode(shape, "fp16")):
        within_bounds(cost)
        assert cost.write_bytes == batch * 4 * queries * 64 * 2
        rows = 2 * shape.heads * queries + 2 * shape.kv_heads * shape.keys
        assert cost.dram_bytes >= batch * 64 * 2 * rows * (1 if not causal else 0.5)


@settings(max_examples=30, deadline=None)
@given(GPUS, st.integers(1, 20_000), st.integers(1, 5000))
def test_rows_and_streams_read_once_or_in_every_pass(name: str, rows: int, columns: int) -> None:
    gpu, nbytes = model(name), rows * columns * 2
    for cost, passes in (
        (gpu.softmax(rows, columns, "fp16"), 3),
        (gpu.layernorm(rows, columns, "fp16"), 2),
        (gpu.elementwise(rows * columns, "fp16"), 1),
    ):
        within_bounds(cost)
        assert nbytes <= cost.read_bytes <= passes * nbytes
        assert cost.write_bytes == nbytes


@pytest.mark.parametrize(
    ("machine", "workload", "settings"),
    [
        ("a100_40", "matmul", {"n": 300, "precision": "fp16"}),
        ("h100", "attention_fused", {"n": 512}),
        ("t4", "conv2d", {}),
        ("v100", "softmax", {}),
        ("a6000", "gpu_matmul_shared", {"n": 256}),
    ],
)
def test_a_run_moves_through_the_l2_what_dram_delivers_and_loses_no_cycle(
    machine: str, workload: str, settings: dict
) -> None:
    result = hwsim.run(machine, workload, math=False, **settings)
    l2, dram = result.memory["l2"], result.memory["dram"]
    assert dram.bytes_read + dram.bytes_written <= l2.bytes_read + l2.bytes_written
    assert (l2.bytes_fetched, l2.bytes_evicted) == (dram.bytes_read, dram.bytes_written)
    (agent,) = result.attribution.values()
    assert total(agent) == result.cycles


def test_a_timeline_of_a_gpu_has_sms_links_launches_and_power() -> None:
    run = run_all("a100_40", "matmul", parameters={"n": 4096, "precision": "fp16"}, math=False, timeline=True)
    lanes = {span.lane for span in run.outcome.spans}
    assert {"sm", "l2", "dram", "launch"} <= lanes
    waves = [span for span in run.outcome.spans if span.lane == "sm"]
    assert len(waves) == ceil(run.result.work["gpu"]["launches"][0]["waves"])
    whole = run.outcome.ledger.counts()
    posted: dict[str, int] = {}
    for pulse in run.outcome.pulses:
        for name, count in pulse.ledger.counts().items():
            posted[name] = posted.get(name, 0) + count
    assert posted["sm.tensor.fp16"] == whole["sm.tensor.fp16"] == 4096**3
    assert posted["dram.read"] == pytest.approx(whole["dram.read"], rel=1e-6)
    bins = power_over_time(load_machine("a100_40").spec, run.outcome)
    mean = sum(each.watts * (each.end_fs - each.start_fs) for each in bins) / run.outcome.elapsed_fs
    assert mean == pytest.approx(sum(run.result.energy.values()) / run.result.time_s, rel=1e-3)
