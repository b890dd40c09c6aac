"""What decides a library's kernel beside its estimate: rows of 8-bit products, batches, channels of memory."""

from __future__ import annotations

import pytest

from hwsim.catalog import load_machine
from hwsim.program.contraction import GemmShape
from hwsim.targets.gpu.gemm import tiles_for
from hwsim.targets.gpu.model import GpuModel
from hwsim.targets.gpu.spec import TileSpec


@pytest.fixture(scope="module")
def mi100() -> GpuModel:
    return GpuModel(load_machine("mi100").spec)


def test_a_table_of_tuned_sizes_decides_the_tile_of_a_batch_whatever_its_length(mi100: GpuModel) -> None:
    four, many = (mi100.gemm(GemmShape(128, 384, 384, batch), "fp32") for batch in (4, 4096))
    assert four.tile == many.tile == (16, 16, 32)
    alone = mi100.gemm(GemmShape(128, 384, 384), "fp32")
    assert alone.tile != four.tile


def test_a_size_that_was_not_tuned_takes_the_tile_of_the_nearest() -> None:
    """Nearest by ratios: 100 is nearer to 64 than to 200, 120 is not."""
    small, large = (TileSpec(m=side, n=side, k=16, tuned=((size, 64, 64),)) for side, size in ((32, 64), (64, 200)))
    assert tiles_for((small, large), GemmShape(100, 64, 64, 8)) == (small,)
    assert tiles_for((small, large), GemmShape(120, 64, 64, 8)) == (large,)
    assert tiles_for((small, large), GemmShape(120, 64, 64)) == (small, large)  # no batch, no table


def test_zeros_that_fill_tiles_cost_no_power(mi100: GpuModel) -> None:
    """Tiles of 144 x 128: with 64 columns half of each is zeros, and the power limit lowers the clock less."""
    half, full = (mi100.gemm(GemmShape(1024, n, 1024, 512), "fp32") for n in (64, 128))
    assert half.tile == full.tile
    assert full.power.limited
    assert half.power.clock_hz > 1.2 * full.power.clock_hz


def test_rows_that_begin_in_one_channel_are_slower_than_longer_ones(mi100: GpuModel) -> None:
    """32 channels of 4 KiB: rows of 128 KiB."""
    one, spread = (mi100.gemm(GemmShape(1024, n, 1024), "fp32").seconds for n in (32768, 32768 + 64))
    assert one > 1.2 * spread


@pytest.mark.parametrize(("rows", "tile"), [(16, 32), (17, 64), (65, 64), (257, 128)])
def test_the_rows_of_an_8_bit_product_decide_its_tile(rows: int, tile: int) -> None:
    """vLLM, scaled_mm_sm100_fp8_dispatch.cuh: 16, 64 and 256 rows are the bounds."""
    cost = GpuModel(load_machine("b200").spec).gemm(GemmShape(rows, 4096, 4096), "fp8_e4m3")
    assert (cost.tile[0], cost.split_k) == (tile, 1)


def test_rows_that_lie_in_the_l2_are_rounded_without_dram() -> None:
    gpu = GpuModel(load_machine("h100").spec)
    cold, warm = (gpu.quantize(512, 4096, "bf16", "fp8_e4m3", each) for each in (False, True))
    assert cold.read_bytes == 512 * 4096 * 2
    assert warm.read_bytes == 0
    assert warm.seconds <= cold.seconds
