"""Convolutions on a GPU: the kernels of transforms, and what the layout of images costs. Numbers counted by hand."""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import Any

import pytest

from hwsim.catalog import load_machine
from hwsim.ops.conv import ConvWorkload
from hwsim.program.contraction import ConvShape, GemmShape
from hwsim.targets.gpu.gemm import tiles_for
from hwsim.targets.gpu.lower import Launch
from hwsim.targets.gpu.model import GpuModel
from hwsim.targets.gpu.spec import TileSpec
from hwsim.targets.gpu.target import GpuTarget


@cache
def target(name: str) -> GpuTarget:
    return GpuTarget(load_machine(name).spec)


def launches(machine: str, precision: str = "fp32", epilogue: tuple[str, ...] = (), **schedule: Any) -> list[Launch]:
    """Of two images of 14 x 14 with 24 channels and 40 filters of 3 x 3."""
    sizes = {"batch": 2, "ci": 24, "co": 40, "height": 14, "padding": 1}
    about = {"format": 1, "name": "conv2d", "description": "A test.", "op": "conv2d", "precision": precision}
    work = ConvWorkload.model_validate({**about, "sizes": sizes, "schedule": schedule, "epilogue": epilogue})
    return list(target(machine).crew(target(machine).prepare(work, math=False), work).launches)


def in_whole_tiles(launch: Launch, m: int, n: int) -> int:
    """Outputs of the tiles that cover m x n: batches on the lanes multiply the zeros around them as well."""
    rows, columns, _ = launch.cost.tile
    return ceil(m / rows) * rows * ceil(n / columns) * columns


def test_transforms_of_everything_lie_in_memory_beside_a_product_for_each_point() -> None:
    """16 tiles of 4x4 outputs, each 36 numbers for each channel."""
    filters, images, products, back = launches("a100_40", algorithm="winograd_nonfused")
    tiles, image = 2 * 16, 2 * 14 * 14
    assert filters.cost.dram_bytes == 4 * 24 * 40 * (9 + 36)
    assert images.cost.dram_bytes == 4 * 24 * (image + 36 * tiles)
    assert products.cost.activity.fma == 36 * in_whole_tiles(products, tiles, 40) * 24
    assert back.cost.dram_bytes == 4 * 40 * (36 * tiles + image)


def test_a_fused_kernel_has_a_block_for_32_tiles_and_32_filters() -> None:
    filters, fused = launches("v100", algorithm="winograd")
    tiles = 2 * 7 * 7
    assert filters.cost.dram_bytes == 4 * 24 * 40 * (9 + 16)
    assert fused.cost.blocks == ceil(tiles / 32) * ceil(40 / 32)
    assert fused.cost.activity.fma == 16 * tiles * 24 * 40
    assert set(fused.tensors) == {"x", "U", "y"}


def test_points_of_fourier_transforms_are_complex() -> None:
    """A tile of 16 a side holds each image: 16 x 9 points of two numbers."""
    _, images, products, _ = launches("a100_40", algorithm="fft")
    assert images.cost.dram_bytes == 4 * 24 * 2 * (14 * 14 + 2 * 144)
    assert images.flops == 24 * 2 * 2.5 * 256 * 8  # 2.5 N log2 N for N real numbers
    assert products.cost.activity.fma == 144 * 4 * in_whole_tiles(products, 2, 40) * 24


def test_an_epilogue_follows_transforms_in_passes_of_its_own() -> None:
    names = [each.name for each in launches("a100_40", epilogue=("bias", "relu"), algorithm="winograd")]
    assert names == ["transform_filters", "winograd", "bias", "relu"]


@pytest.mark.parametrize(
    ("precision", "layout", "count"), [("int8", "nchw", 2), ("int8", "nhwc", 1), ("fp16", "nchw", 1)]
)
def test_images_of_8_bits_are_brought_into_the_order_of_tensor_cores(precision: str, layout: str, count: int) -> None:
    found = launches("t4", precision, layout=layout)
    assert len(found) == count
    if count == 2:
        assert found[0].cost.dram_bytes == 2 * 2 * 24 * 14 * 14


def test_a_stride_skips_columns_only_where_channels_lie_together() -> None:
    shape = ConvShape(64, 32, (32, 32), (1, 1), 64, stride=(2, 2))
    rows, both = (
        GpuModel(target("v100").device).conv(shape, "fp16", channels_last=last).read_bytes for last in (False, True)
    )
    filters = 2 * 64 * 32
    assert rows - filters == pytest.approx(2 * 64 * 64 * 32 * 32 / 2, rel=1e-3)
    assert both - filters == pytest.approx(2 * 64 * 64 * 32 * 32 / 4, rel=1e-3)


def test_channels_that_fill_no_vector_are_padded_and_loaded_one_by_one() -> None:
    """3 channels become 8 for tensor cores, and take longer than 8 that are there."""
    few, whole = (ConvShape(ci, 64, (64, 64), (7, 7), 8, stride=(2, 2), padding=(3, 3)) for ci in (3, 8))
    first, other = (GpuModel(target("v100").device).conv(each, "fp16") for each in (few, whole))
    assert first.activity.fma == other.activity.fma == whole.macs
    assert first.seconds > other.seconds


def test_a_library_may_go_by_the_rows_of_a_product() -> None:
    few, many = TileSpec(m=64, n=64, k=64, most_rows=64), TileSpec(m=128, n=128, k=64, least_rows=65)
    assert tiles_for((few, many), GemmShape(64, 64, 64)) == (few,)
    assert tiles_for((few, many), GemmShape(65, 64, 64)) == (many,)
    assert tiles_for((many,), GemmShape(1, 64, 64)) == (many,)  # what there is, where nothing else is
