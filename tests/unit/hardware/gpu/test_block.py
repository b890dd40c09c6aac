"""Waves of equal blocks on the 108 SMs of an A100; expected cycles by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwsim.engine import FEMTOSECONDS
from hwsim.targets.gpu.agent import play_grid, wave_grid
from hwsim.targets.gpu.device import BlockCost, wave, waves_of
from tests.unit.hardware.gpu.made import device

GPU = device("a100_40")


def block(**changed: float) -> BlockCost:
    """Ten steps of a hundred cycles, and nothing else."""
    values = {
        "steps": 10, "step_math": 100.0, "step_latency": 0.0, "l2_bytes": 0.0, "dram_bytes": 0.0, "write_bytes": 0.0,
        "start_cycles": 0.0, "flight_bytes": 1e9,
    }  # fmt: skip
    return BlockCost(**{**values, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "cycles"),
    [
        (1, 1000),  # alone
        (108, 1000),  # one on each SM
        (109, 2000),  # one SM has two, which share it
        (216, 2000),
        (217, 3000),  # two whole, then one more
        (432, 4000),
    ],
)
def test_blocks_that_share_an_sm_share_its_rate_and_tails_are_spread_thinly(count: int, cycles: float) -> None:
    assert sum(each.total_cycles for each in waves_of(GPU, block(), count, resident=2)) == cycles


def test_latency_is_hidden_by_a_second_block_and_not_by_one_alone() -> None:
    slow = block(step_latency=60.0)
    assert wave(GPU, slow, 108, 1).cycles == 1600
    assert wave(GPU, slow, 216, 2).cycles == 2000


def test_a_loop_takes_its_longest_part_and_writes_come_after_it() -> None:
    moving = block(dram_bytes=1e6, write_bytes=1e5)
    found = wave(GPU, moving, 108, 1)
    assert found.parts["dram"] == pytest.approx(108e6 / GPU.tile_rate)
    assert found.cycles == pytest.approx((108e6 + 108e5) / GPU.tile_rate)


def test_a_block_alone_draws_only_what_it_has_under_way() -> None:
    """Little's law: bytes in flight over the latency of memory, which is 1.2 times 550 cycles under load."""
    starved = block(steps=1, step_math=1.0, dram_bytes=1e6, flight_bytes=1100.0)
    assert wave(GPU, starved, 1, 1).cycles == pytest.approx(1e6 / (1100 / (1.2 * 550)))


def test_the_start_of_a_later_wave_runs_under_the_blocks_beside_it() -> None:
    late = block(start_cycles=500.0)
    whole, tail = waves_of(GPU, late, 4 * 108, resident=2)
    assert (whole.repeat, whole.cycles, tail.cycles) == (1, 2250, 2500)


def test_results_leave_while_the_next_block_multiplies_where_sums_have_two_places() -> None:
    """Whole waves take the longer of products and results, the last one both; 20 bytes a cycle and SM may leave."""
    storing = block(write_bytes=10_000.0, store_rate=20.0, kept_results=True)
    after = waves_of(GPU, storing, 3 * 108, resident=1)
    beside = waves_of(GPU, replace(storing, double_sums=True), 3 * 108, resident=1)
    assert [each.cycles for each in after] == [1500, 1500]
    assert [each.cycles for each in beside] == [1000, 1500]
    slow = replace(storing, double_sums=True, store_rate=5.0)
    assert [each.cycles for each in waves_of(GPU, slow, 3 * 108, resident=1)] == [2000, 3000]
    assert sum(each.total_cycles for each in waves_of(GPU, slow, 3 * 108, resident=1)) == 7000


@pytest.mark.parametrize(("double", "cycles"), [(False, 4500), (True, 3500)])
def test_results_that_leave_beside_products_are_played_as_the_formula_has_it(double: bool, cycles: float) -> None:
    storing = block(write_bytes=10_000.0, store_rate=20.0, kept_results=True, double_sums=double)
    played = play_grid(GPU, wave_grid(GPU, storing, 3 * 108, 1))
    assert played.elapsed_fs * GPU.clock_hz / FEMTOSECONDS == pytest.approx(cycles, rel=1e-3)
