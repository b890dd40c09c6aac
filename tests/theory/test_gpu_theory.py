"""What any GPU model has to obey: peaks, compulsory traffic, whole tiles and waves, fused attention's traffic."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.api import resolve_machine, resolve_workload, run_all
from hwsim.ops.attention_shape import AttentionShape
from hwsim.program.contraction import ConvShape, GemmShape
from hwsim.target import find_target
from hwsim.targets.gpu.gemm import GemmBytes
from hwsim.targets.gpu.model import as_gemm
from hwsim.targets.gpu.spec import TileSpec
from tests.unit.hardware.gpu.made import model

GPUS = ["a100_40", "a100_80", "h100", "h200", "v100", "t4", "a6000", "rtx3090", "a40", "mali_g78"]
sizes = st.integers(1, 5000)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(GPUS), sizes, sizes, sizes)
def test_no_product_beats_the_peak_rate_or_the_compulsory_traffic(name: str, m: int, n: int, k: int) -> None:
    gpu = model(name)
    cost = gpu.gemm(GemmShape(m, n, k), "fp16")
    unit = gpu.device.unit_for("fp16")
    peak = gpu.device.fma_rate("fp16", unit) * gpu.device.count * gpu.device.clock_hz
    compulsory = 2 * (m * k + n * k + m * n)
    assert cost.seconds >= m * n * k / peak
    assert cost.dram_bytes >= compulsory * (1 - 1e-9)
    assert cost.seconds >= compulsory / (gpu.device.dram_rate * gpu.device.clock_hz)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(GPUS), sizes, sizes, sizes)
def test_twice_the_products_take_between_once_and_a_little_over_twice_the_time(
    name: str, m: int, n: int, k: int
) -> None:
    one, two = (model(name).gemm(GemmShape(m, n, k, batch), "fp16").seconds for batch in (1, 2))
    assert 0.97 * one <= two <= 2.06 * one


def test_one_row_more_than_a_tile_costs_a_tile_and_one_tile_more_than_a_wave_costs_a_wave() -> None:
    """A100 of 108 SMs, one 256 x 128 block on each: 12 x 9 tiles are a wave."""
    tile = TileSpec(m=256, n=128, k=32, stages=3, threads=256)
    full, over = (
        model("a100_40").gemm(GemmShape(m, 9 * 128, 8192), "fp16", tile=tile, split=1) for m in (12 * 256, 12 * 256 + 1)
    )
    assert (full.blocks, full.waves) == (108, 1.0)
    assert over.blocks == 117
    assert 1.5 < over.seconds / full.seconds < 2.1


def test_a_long_sum_over_few_tiles_is_split() -> None:
    gpu = model("a100_80")
    cost = gpu.gemm(GemmShape(64, 64, 65536), "bf16")
    alone = gpu.gemm(GemmShape(64, 64, 65536), "bf16", split=1)
    assert cost.split_k > 1 and cost.launches == 2
    assert gpu.seconds(cost) < gpu.seconds(alone) / 3


def test_operands_in_the_l2_are_not_read_from_dram() -> None:
    gpu, shape = model("a100_80"), GemmShape(16, 16384, 512)
    cold = gpu.gemm(shape, "bf16", split=1)
    warm = gpu.gemm(shape, "bf16", GemmBytes(2, 2, 2, warm_a=True, warm_b=True), split=1)
    assert cold.dram_bytes - warm.dram_bytes == pytest.approx(2 * (16 * 512 + 512 * 16384))
    assert warm.seconds < cold.seconds


def test_fused_attention_saves_traffic_in_proportion_to_the_length_of_the_sequence() -> None:
    """Closed form for n queries and keys of size d, 2 bytes each: fused 4nd, unfused 4nd + 4n^2 elements (scores
    written and read, weights written and read), so that the ratio is 1 + n/d."""
    gpu = model("a100_40")
    for n in (512, 1024, 2048):
        shape = AttentionShape(n, n, 64, 8, 8, 16)
        fused = gpu.attention(shape, "fp16").dram_bytes
        unfused = sum(cost.dram_bytes for cost in gpu.attention_unfused(shape, "fp16"))
        assert fused == 4 * n * 64 * 16 * 8 * 2
        assert unfused / fused == pytest.approx(1 + n / 64, rel=0.02)


def test_a_causal_mask_halves_the_work_of_a_long_sequence() -> None:
    shape = AttentionShape(16384, 16384, 128, 16, 16, 4)
    masked = AttentionShape(16384, 16384, 128, 16, 16, 4, causal=True)
    whole, half = (model("h100").attention(each, "bf16") for each in (shape, masked))
    assert half.activity.fma / whole.activity.fma == pytest.approx(0.5, rel=0.02)
    assert half.seconds / whole.seconds == pytest.approx(0.5, rel=0.05)


def test_decoding_moves_each_key_and_value_once_and_splits_them_among_idle_sms() -> None:
    shape = AttentionShape(1, 65536, 128, 32, 8)
    gpu = model("a100_80")
    split, whole = gpu.decode(shape, "bf16"), gpu.decode(shape, "bf16", split=False)
    assert split.dram_bytes == 2 * 128 * (2 * 32 + 2 * 8 * 65536)
    assert split.blocks > whole.blocks == 8
    assert gpu.seconds(split) < gpu.seconds(whole) / 4


@pytest.mark.parametrize(
    ("shape", "m", "n", "k"),
    [
        (ConvShape(64, 128, (56, 56), (3, 3), 2, padding=(1, 1)), 2 * 56 * 56, 128, 576),
        (ConvShape(3, 64, (224, 224), (7, 7), stride=(2, 2), padding=(3, 3)), 112 * 112, 64, 147),
    ],
)
def test_a_convolution_is_the_product_of_pixels_and_taps(shape: ConvShape, m: int, n: int, k: int) -> None:
    assert as_gemm(shape) == GemmShape(m, n, k)


def test_a_1x1_convolution_reads_its_input_once_and_a_stride_of_two_a_quarter_of_it() -> None:
    """With channels together; otherwise columns that are skipped lie in sectors that are read."""
    gpu = model("v100")
    one = gpu.conv(ConvShape(256, 64, (56, 56), (1, 1), 16), "fp32")
    two = gpu.conv(ConvShape(256, 64, (56, 56), (1, 1), 16, (2, 2)), "fp32", channels_last=True)
    inputs, outputs, weights = 16 * 256 * 56 * 56 * 4, 16 * 64 * 56 * 56 * 4, 256 * 64 * 4
    for cost, share in ((one, 1), (two, 4)):
        once = (inputs + outputs) // share
        assert once + weights <= cost.dram_bytes <= once + weights * ceil(cost.waves), "weights once, or once a wave"


def test_a_row_that_fits_registers_is_read_once_and_long_rows_three_times() -> None:
    gpu = model("v100_pcie")
    rows = 100_000
    assert gpu.softmax(rows, 1024, "fp32").dram_bytes == rows * 1024 * 4 * 2
    assert gpu.softmax(rows, 16384, "fp32").dram_bytes == rows * 16384 * 4 * 4
    assert gpu.layernorm(rows, 16384, "fp32").dram_bytes == rows * 16384 * 4 * 3
    assert gpu.elementwise(rows, "fp32", reads=2).dram_bytes == rows * 4 * 3
    assert gpu.elementwise(rows, "fp32", writes=0).dram_bytes == rows * 4
    assert gpu.quantize(rows, 64, "bf16", "fp8_e4m3").dram_bytes == rows * 64 * 3


def test_fused_attention_takes_an_exponential_for_every_score_and_a_causal_one_for_half() -> None:
    """n² scores for each head, in whole tiles; under a causal mask those on and below the diagonal."""
    heads, n, d = 4, 1024, 64
    counted = {}
    for causal in (False, True):
        sizes = {"n": n, "d": d, "heads": heads, "precision": "fp16", "causal": causal}
        ledger = run_all("a100_40", "attention_fused", parameters=sizes, math=False).outcome.ledger.counts()
        counted[causal] = ledger["sm.special"]
        assert ledger["sm.tensor.fp16"] >= 2 * counted[causal] * d  # Q Kᵀ and P V
    assert counted[False] == heads * n * n
    assert heads * n * (n + 1) / 2 <= counted[True] <= heads * n * (n + 256) / 2


@pytest.mark.parametrize(("precision", "unit"), [("fp16", "tensor_tiles"), ("fp32", "lane_tiles")])
def test_a_product_is_tuned_over_the_tiles_of_the_unit_that_runs_it(precision: str, unit: str) -> None:
    machine = resolve_machine("a100_40", ())
    tiles = getattr(machine.compute[0].library, unit)
    knobs = find_target(machine).reads(resolve_workload("matmul", {"precision": precision}))
    sides = {int(side) for side in knobs["tile.shared.m"].tries.split(",")}
    assert sides == {side for tile in tiles for side in (tile.m, tile.n) if side >= 64}
    assert {tile.k for tile in tiles} <= {int(k) for k in knobs["tile.shared.k"].tries.split(",")}


@pytest.mark.parametrize("name", ["a100_40", "h100", "v100"])
def test_blocks_that_are_played_take_what_the_closed_form_says(name: str) -> None:
    """Streams and rows nearly to the byte; products up to what waves find in the L2 of the waves before."""
    gpu = model(name)
    streams = [
        gpu.softmax(100_000, 1024, "fp16"), gpu.layernorm(100_000, 1024, "fp16"), gpu.softmax(50_000, 512, "fp32"),
        gpu.elementwise(10**8, "fp32", reads=2), gpu.quantize(100_000, 1024, "fp16", "int8"),
    ]  # fmt: skip
    for cost in streams:
        assert cost.dram_bytes == pytest.approx(cost.closed.dram_bytes, rel=0.01), cost.name
        assert cost.seconds == pytest.approx(cost.closed.seconds, rel=0.05), cost.name
    sizes = (4096, 4096, 4096, "fp16"), (2048, 2048, 2048, "fp32"), (16, 8192, 8192, "fp16"), (64, 64, 8192, "fp16")
    for m, n, k, precision in sizes:
        cost = gpu.gemm(GemmShape(m, n, k), precision)
        assert cost.seconds == pytest.approx(cost.closed.seconds, rel=0.15), (m, n, k, precision)
        assert 1 / 1.5 < cost.dram_bytes / cost.closed.dram_bytes < 1.5, (m, n, k, precision)
