"""What decides a library's kernel beside its estimate: rows of 8-bit products, batches, channels of memory."""

from __future__ import annotations

import pytest

from hwsim.catalog import load_machine
from hwsim.program.contraction import GemmShape
from hwsim.targets.gpu.model import GpuModel


@pytest.fixture(scope="module")
def mi100() -> GpuModel:
    return GpuModel(load_machine("mi100").spec)


def test_a_library_that_sees_four_products_takes_the_same_tile_for_thousands(mi100: GpuModel) -> None:
    four, many = (mi100.gemm(GemmShape(128, 384, 384, batch), "fp32") for batch in (4, 4096))
    assert four.tile == many.tile
    alone = mi100.device.sm.library.model_copy(update={"seen_batch": None})
    unit = mi100.device.sm.model_copy(update={"library": alone})
    spec = mi100.device.machine.model_copy(update={"compute": (unit,)})
    best = GpuModel(spec).gemm(GemmShape(128, 384, 384, 4096), "fp32")
    assert best.seconds < many.seconds


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
