"""Blocks on SMs in time: the arithmetic of waves comes out of the play, and no femtosecond is lost."""

from __future__ import annotations

import pytest

from hwsim.engine import Floor
from hwsim.ops.attention_shape import AttentionShape
from hwsim.program.contraction import GemmShape
from hwsim.targets.gpu.agent import TAIL, BlockGrid, GridPlay, Portion, folded, play_grid, queue_grid, wave_grid
from hwsim.targets.gpu.attention import EqualBlocks, makespan
from hwsim.targets.gpu.device import BlockCost, waves_of
from hwsim.targets.gpu.gemm import GemmBytes, ways
from hwsim.targets.gpu.run import GpuWatch
from tests.unit.hardware.gpu.made import device, model

GPU = device("a100_40")
MOST_EVENTS = 10_000


def block(**changed: float) -> BlockCost:
    values = {
        "steps": 10, "step_math": 100.0, "step_latency": 0.0, "l2_bytes": 0.0, "dram_bytes": 0.0, "write_bytes": 0.0,
        "start_cycles": 0.0, "flight_bytes": 1e9,
    }  # fmt: skip
    return BlockCost(**{**values, **changed})  # type: ignore[arg-type]


def cycles(grid: BlockGrid) -> float:
    return play_grid(GPU, grid).elapsed_fs * GPU.clock_hz / 1e15


@pytest.mark.parametrize("count", [1, 60, 108, 109, 216, 217, 432, 1000])
@pytest.mark.parametrize("resident", [1, 2, 5])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"step_latency": 60.0, "start_cycles": 500.0},
        {"l2_bytes": 3e5, "write_bytes": 1e4},
        {"l2_bytes": 1e6, "dram_bytes": 1e6, "flight_bytes": 4000.0},
    ],
)
def test_the_play_comes_to_what_waves_of_equal_blocks_take(count: int, resident: int, changed: dict) -> None:
    each = block(**changed)
    expected = sum(wave.total_cycles for wave in waves_of(GPU, each, count, resident))
    slack = 1e-6 + 1e-9 * expected
    found = cycles(wave_grid(GPU, each, count, resident))
    least = changed.get("flight_bytes") and count % GPU.count
    if least:  # an SM alone draws its own bytes; the formula lets those that are full draw for the others
        assert found >= expected - slack
    else:
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-3)


def test_blocks_of_different_length_go_to_whoever_is_free() -> None:
    groups = [(100, 900.0), (300, 500.0), (77, 120.0)]
    queue = queue_grid(GPU, [Portion(count, count, work=length) for count, length in groups], 1)
    assert cycles(queue) == pytest.approx(makespan([EqualBlocks(*group) for group in groups], 108))


def test_dram_is_shared_by_all_that_load_from_it() -> None:
    """Two portions at once take as long as all their bytes, whoever they belong to."""
    parts = [
        Portion(54, 54, l2_bytes=10**8, dram_bytes=10**8),
        Portion(54, 54, l2_bytes=3 * 10**8, dram_bytes=3 * 10**8),
    ]
    assert cycles(queue_grid(GPU, parts, 1)) == pytest.approx(4e8 / GPU.stream_rate, rel=1e-6)


def test_a_hundred_thousand_blocks_are_less_than_ten_thousand_events() -> None:
    cost = model("a100_40").gemm(GemmShape(40448, 40448, 1024), "fp16")
    assert cost.blocks > 49_000
    causal = model("a100_40").attention(AttentionShape(65536, 65536, 64, 48, 48, 4, causal=True), "fp16")
    assert causal.blocks > 98_000
    many = wave_grid(GPU, block(l2_bytes=1e5, dram_bytes=1e4, write_bytes=1e3), 100_000, 1)
    for grid in (*cost.grids, *causal.grids, many):
        floor = Floor()
        floor.start(GridPlay(floor, GPU, grid).play())
        floor.run()
        assert floor.events < MOST_EVENTS


def test_waves_that_are_joined_take_as_long_and_move_as_much() -> None:
    waves = [Portion(108, 216, {"start": 10.0}, 1000.0, l2_bytes=10**6, write_bytes=number) for number in range(1000)]
    few = list(folded(waves, 100))
    assert len(few) == 100
    assert sum(each.work for each in few) == sum(each.work for each in waves)
    assert sum(each.write_bytes for each in few) == sum(each.write_bytes for each in waves)
    assert sum(each.blocks for each in few) == 216_000


@pytest.mark.parametrize("slower", [1.0, 1.37])
def test_every_femtosecond_of_the_average_sm_is_work_or_a_wait_with_a_name(slower: float) -> None:
    grid = wave_grid(GPU, block(l2_bytes=2e5, dram_bytes=1e5, write_bytes=1e4, start_cycles=77.0), 500, 2)
    floor = Floor()
    game = GridPlay(floor, GPU, grid, slower)
    floor.start(game.play())
    floor.run()
    watch = GpuWatch("sm")
    watch.grid(game.time, slower)
    found = watch.result()
    assert found.elapsed_fs == floor.now
    assert found.waiting[TAIL] > 0
    assert ("power" in found.waiting) == (slower > 1)
    assert max(watch.parts.values()) <= floor.now <= sum(watch.parts.values())


def test_sms_that_find_no_block_wait_for_the_others() -> None:
    time = play_grid(GPU, wave_grid(GPU, block(), 27, 1))
    assert time.spent[TAIL] == time.elapsed_fs * (108 - 27)


def test_a_lower_clock_takes_longer_in_proportion() -> None:
    grid = wave_grid(GPU, block(l2_bytes=2e5, dram_bytes=1e5, write_bytes=1e4), 500, 2)
    times = []
    for slower in (1.0, 1.5):
        floor = Floor()
        floor.start(GridPlay(floor, GPU, grid, slower).play())
        floor.run()
        times.append(floor.now)
    assert times[1] == pytest.approx(1.5 * times[0], rel=1e-9)


def test_a_queue_is_shared_out_evenly_only_where_it_is_more_than_thirty_rounds_long() -> None:
    """108 SMs of 2 blocks are 216 slots: 30 rounds go one by one; of one more, all but ten rounds are shared out."""
    slots = 216
    short = queue_grid(GPU, [Portion(30 * slots, 30 * slots, work=7.0, write_bytes=30 * slots)], 2)
    assert (short.slots, short.sms) == (slots, 108)
    assert [(each.count, each.blocks) for each in short.portions] == [(30 * slots, 30 * slots)]
    long = queue_grid(GPU, [Portion(31 * slots, 31 * slots, work=7.0, write_bytes=31 * slots)], 2)
    first, rest = long.portions
    assert (first.count, first.blocks, first.work, first.write_bytes) == (slots, 21 * slots, 21 * 7.0, 21 * slots)
    assert (rest.count, rest.blocks, rest.work, rest.write_bytes) == (10 * slots, 10 * slots, 7.0, 10 * slots)


def test_parts_of_a_product_are_added_up_after_all_they_need_has_been_read() -> None:
    """Two parts of 64 x 64 sums of four bytes, a result of two bytes, and two more late ones of a bias."""
    for late in (0.0, 2.0):
        data = GemmBytes(2, 2, 2, late=late)
        found = next(ways(GPU, GemmShape(64, 64, 4096), "fp16", "tensor", data, None, 2)).kernel(GPU)
        expected = GPU.sm.library.block_start + 64 * 64 * (2 * 4 + 2 + late) / GPU.l2_rate
        assert found.reduction_cycles == pytest.approx(expected)
