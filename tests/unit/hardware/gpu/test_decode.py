"""Decoding attention, long rows and padded batches on GPUs; expected values by hand, or from what others measured."""

from __future__ import annotations

import pytest

from hwsim.ops.attention_shape import AttentionShape
from hwsim.program.contraction import GemmShape
from hwsim.targets.gpu.attention import find_kernel, fused, parts_of_keys
from hwsim.targets.gpu.decode import decode
from hwsim.targets.gpu.gemm import lane_share, padded
from hwsim.targets.gpu.spec import TileSpec
from tests.unit.hardware.gpu.made import device, model


def decoding(keys: int, batch: int = 2) -> AttentionShape:
    """Eight heads of 128 that share their keys."""
    return AttentionShape(1, keys, 128, 8, 1, batch, False)


@pytest.mark.parametrize(
    ("tiles", "steps", "parts"),
    [
        (2, 64, 64),  # 128 of 216 slots, and 33 to 63 parts would leave two steps to the longest as 32 do
        (2, 128, 64),  # as good a use as 128 parts, with half as many to join
        (2, 256, 86),  # 172 of 216 slots; 87 to 127 parts leave three steps to the longest as well
        (32, 32, 6),  # 192 of 216 slots; 32 parts would use 1024 of 1080
        (172, 1000, 5),  # just below four fifths of the slots: 860 of 864 in four rounds
        (173, 1000, 1),  # full
        (5, 1, 1),  # nothing to split
    ],
)
def test_keys_are_split_as_flash_attention_2_splits_them(tiles: int, steps: int, parts: int) -> None:
    """By hand from the rule that FlashAttention-2 publishes (num_splits_heuristic), for 108 SMs of two blocks."""
    assert parts_of_keys(tiles, 216, steps) == parts


def test_joining_waits_for_every_part_and_a_kernel_that_joins_itself_starts_no_second() -> None:
    """16 parts at 2048 keys and 64 at 8192: one step each, so that only what is joined differs."""
    gpu = model("a100_80")
    few, many = (gpu.decode(decoding(keys, batch=1), "bf16") for keys in (2048, 8192))
    assert (few.launches, many.launches) == (2, 2)
    waited = (many.seconds - few.seconds) * gpu.device.clock_hz / (64 - 16)
    assert waited == pytest.approx(310, rel=0.05)  # and some bytes
    assert model("b200").decode(decoding(8192), "bf16").launches == 1


def decoded(name: str, shape: AttentionShape, **changed: float | bool) -> float:
    """Cycles of decoding with some constants of its kernel changed."""
    gpu = model(name)
    spec = find_kernel(gpu.device, "flash_decode", shape.d).model_copy(update=changed)
    return decode(gpu.device, shape, "bf16", spec).seconds * gpu.device.clock_hz


def test_nothing_is_loaded_before_blocks_have_started() -> None:
    """268 MB take an H100 far longer than its blocks work: each cycle by which they start later is seen."""
    shape = decoding(4096, batch=128)
    early, late = (decoded("h100", shape, block_start=each) for each in (4000, 6000))
    assert late - early == pytest.approx(2000, rel=0.01)


def test_blocks_search_batches_that_the_library_plans() -> None:
    """FlashAttention-3 plans blocks of up to 992 sequences, 31 for each of 32 warps."""
    waits = {
        batch: [decoded("h100", decoding(16, batch), sequence_wait=each) for each in (0, 40)] for batch in (992, 993)
    }
    assert waits[992][1] - waits[992][0] == pytest.approx(40 * 992, rel=0.01)
    assert waits[993][0] == waits[993][1]


def test_a_joining_kernel_may_start_early_and_keys_may_stream() -> None:
    few, many = decoding(4096, batch=1), decoding(65536, batch=32)
    early, late = (decoded("h100", few, joins_early=each, block_start=4000) for each in (True, False))
    assert 4000 <= late - early < 4100  # and the drain of its pipeline
    streams, tiles = (decoded("b200", many, streams_keys=each) for each in (True, False))
    library = device("b200").sm.library
    assert tiles / streams == pytest.approx(library.stream_bandwidth / library.tile_bandwidth, rel=0.03)


def test_a_head_that_starts_with_its_shortest_blocks_ends_late() -> None:
    """One head of 64 x 128 queries: by turns of 108 SMs the longest block of 64 steps begins at once, or last."""
    gpu = model("a100_80")
    shape = AttentionShape(64 * 128, 64 * 128, 128, 4, 4, 1, True)
    spec = next(
        each for each in gpu.device.sm.library.attention if each.name == "flash2_paged" and each.head_dim == 128
    )
    first, last = (
        fused(gpu.device, shape, "bf16", spec.model_copy(update={"longest_first": each})) for each in (True, False)
    )
    assert first.blocks == last.blocks == 4 * 128
    assert 1.05 < last.seconds / first.seconds < 1.5


def test_packed_heads_fill_tiles_and_few_prompts_split_their_keys() -> None:
    """On H100 eight heads of 16 queries are one tile of 128 rows; 16 of their tiles leave 116 SMs to parts of keys."""
    gpu = model("h100")
    assert gpu.attention(AttentionShape(16, 16, 128, 8, 1, 1, True), "bf16", "flash3_paged").blocks == 1
    few = gpu.attention(AttentionShape(2048, 2048, 128, 1, 1, 1, True), "bf16", "flash3_paged")
    assert few.launches == 2 and few.blocks == 16 * parts_of_keys(16, 132, 16)
    many = gpu.attention(AttentionShape(2048, 2048, 128, 16, 16, 1, True), "bf16", "flash3_paged")
    assert many.launches == 1 and many.blocks == 16 * 16


def test_warm_keys_come_from_the_l2() -> None:
    gpu = model("l40s")
    shape = decoding(4096, batch=32)
    cold, warm = (gpu.decode(shape, "bf16", warm=each) for each in (False, True))
    keys = 2 * 32 * 4096 * 128 * 2
    assert cold.read_bytes - warm.read_bytes == keys
    assert warm.seconds < cold.seconds


def test_a_softmax_on_amd_loses_most_of_its_bandwidth_beyond_1024_columns() -> None:
    """PyTorch on MI210 took 70 us for 7113 rows of 1018 and 460 us for 14473 of 1034: 826 and 261 GB/s (NeuSight)."""
    gpu = model("mi210")
    rate = {columns: 2 * 8192 * columns * 4 / gpu.softmax(8192, columns, "fp32").seconds for columns in (1018, 1034)}
    assert rate[1018] / rate[1034] > 2.5
    # where rows begin at multiples of 16 bytes, a thread takes four numbers at a time: 4044 columns 793 GB/s, 4017 519
    fast, slow = (gpu.softmax(8192, columns, "fp32").seconds for columns in (4044, 4017))
    assert 1.3 < slow / fast < 2


def test_zeros_that_fill_a_tile_are_counted_and_take_less_of_the_clock() -> None:
    """Batches of 512 x 64 x 512 in tiles of 128 x 128: half of each tile is zeros."""
    gpu, tile = device("a100_40"), TileSpec(m=128, n=128, k=8, stages=2, threads=256)
    half, whole = GemmShape(512, 64, 512, 256), GemmShape(512, 128, 512, 256)
    assert (padded(tile, half), padded(tile, whole)) == (2, 1)
    assert lane_share(gpu, tile, whole) == gpu.sm.library.lane_share < lane_share(gpu, tile, half) <= 0.97
    cost = model("a100_40").gemm(half, "fp32")
    assert cost.activity.fma == 2 * half.macs
