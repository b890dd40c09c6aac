"""The power cap: time is stretched until idle power and the energy of the work fit into the limit."""

from __future__ import annotations

import pytest

from hwsim.catalog import load_machine
from hwsim.errors import InputError
from hwsim.program.contraction import GemmShape
from hwsim.targets.gpu.device import Activity, under_cap
from tests.unit.hardware.gpu.made import device, model


def spent(joules: float) -> Activity:
    """So much work of the SMs, at 10.4 pJ for a multiply-add."""
    return Activity(joules / 10.4e-12, "lanes", "fp32", 0.0)


def test_below_the_limit_nothing_changes() -> None:
    seconds, power = under_cap(device("a100_40"), 1.0, spent(100.0))
    assert (seconds, power.limited, power.clock_hz) == (1.0, False, 1.41e9)
    assert power.watts == pytest.approx(166)  # 66 W without work


def test_above_it_the_clock_is_lowered_until_the_power_is_the_limit() -> None:
    seconds, power = under_cap(device("a100_40"), 1.0, spent(668.0))
    assert seconds == pytest.approx(2.0)  # 668 J at the 334 W that 400 W leave
    assert (power.limited, power.core_energy) == (True, 1)
    assert (power.watts, power.clock_hz) == pytest.approx((400, 1.41e9 / 2))


def test_below_the_limit_that_a_gpu_is_sold_with_voltage_falls_too() -> None:
    """At 80 % of the clock and of the voltage, power beyond idle is 0.8 ** 3 of 334 W."""
    seconds, power = under_cap(device("a100_40", f"sm.power_limit={66 + 334 * 0.8**3} W"), 1.0, spent(334.0))
    assert seconds == pytest.approx(1 / 0.8)
    assert power.core_energy == pytest.approx(0.64)
    assert power.clock_hz == pytest.approx(0.8 * 1.41e9)


def test_energy_is_multiply_adds_and_bytes_at_the_prices_of_the_file() -> None:
    work = Activity(1e12, "lanes", "fp32", 1e9)
    assert work.joules(device("a100_40")) == pytest.approx(10.4 + 0.118)  # 5.2 pJ per flop, 118 pJ per byte


def test_a_large_product_on_h100_is_limited_by_power_and_says_so() -> None:
    cost = model("h100").gemm(GemmShape(16384, 16384, 16384), "bf16")
    assert cost.bound == "power"
    assert "power" in cost.bound_in_words
    assert cost.power.watts == pytest.approx(700)
    assert cost.power.clock_hz < 1.83e9
    assert cost.seconds > cost.full_clock_seconds


def test_a_limit_below_what_flows_when_idle_is_refused() -> None:
    with pytest.raises(InputError, match=r"sm\.power_limit: a limit of 66 W leaves nothing.*66 W flow when idle"):
        load_machine("a100_40", ["sm.power_limit=66 W"])
    load_machine("a100_40", ["sm.power_limit=67 W"])


def test_without_the_limit_it_runs_at_full_clock() -> None:
    cost = model("h100", "sm.power_limit=5000 W").gemm(GemmShape(16384, 16384, 16384), "bf16")
    assert not cost.power.limited
    assert cost.seconds == cost.full_clock_seconds


def test_a_t4_in_single_precision_runs_far_below_its_boost_clock() -> None:
    """Measured: 0.54 of the boost clock or so within 70 W (reference data, params.csv)."""
    cost = model("t4").gemm(GemmShape(8192, 8192, 8192), "fp32")
    assert cost.power.limited
    assert 0.45 < cost.power.clock_hz / 1.59e9 < 0.75
