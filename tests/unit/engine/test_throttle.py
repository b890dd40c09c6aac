"""The power limit: the clock falls until the run stays within it, and the result says so."""

from __future__ import annotations

from fractions import Fraction

import pytest

import hwsim
from hwsim.catalog import load_machine
from hwsim.engine import _thousandths, lower_clocks, voltage
from hwsim.errors import SpecError

LIMIT = {"energy.tdp.power": "20 W"}


def test_a_run_within_its_limit_is_left_alone() -> None:
    free, limited = hwsim.run("course_cpu", "matmul", n=64), hwsim.run("course_cpu", "matmul", n=64, set=LIMIT)
    assert limited.throttle is None
    assert limited.time_s == free.time_s


def test_a_run_above_its_limit_is_slowed_until_it_is_not() -> None:
    free = hwsim.run("ladder_simd", "matmul", n=64)
    assert free.power_w is not None
    limit = 0.6 * free.power_w
    slowed = hwsim.run("ladder_simd", "matmul", n=64, set={"energy.tdp.power": f"{limit} W"})
    assert slowed.throttle is not None
    assert slowed.power_w is not None
    assert 0.97 * limit <= slowed.power_w <= limit
    assert slowed.time_s > free.time_s
    assert slowed.throttle["wanted_w"] == pytest.approx(free.power_w)
    assert slowed.throttle["clock_hz"] < slowed.throttle["full_clock_hz"] == 10**9
    assert any("the clock was lowered to" in warning for warning in slowed.warnings)
    assert not any("all the same" in warning for warning in slowed.warnings)
    assert slowed.verified
    assert slowed.energy_by_cause is not None
    assert free.energy_by_cause is not None
    assert slowed.throttle["voltage"] == max(0.7, slowed.throttle["share"]) < 1
    for cause in ("arithmetic", "memory"):  # every action as often, each at the square of the voltage but for DRAM's
        for name, line in slowed.energy_by_cause[cause].items():
            before = free.energy_by_cause[cause][name]
            share = 1 if name.startswith("dram.") else slowed.throttle["voltage"] ** 2
            assert (line.count, line.joules) == (before.count, pytest.approx(share * before.joules)), name


@pytest.mark.parametrize(("share", "lowest"), [(1, 1), (0.9, 0.9), (0.7, 0.7), (0.5, 0.7), (0.05, 0.7)])
def test_voltage_falls_with_the_clock_as_far_as_gates_allow(share: float, lowest: float) -> None:
    """The alpha-power law with a = 1.3 and a threshold of 0.3, as fast at this voltage as is asked for, or faster."""
    found = float(voltage(Fraction(share)))
    assert found == pytest.approx(lowest)
    speed = ((found - 0.3) ** 1.3 / found) / (0.7**1.3)
    assert speed == pytest.approx(share, rel=0.02) or found == pytest.approx(0.7)


def test_a_gpu_that_is_capped_lower_than_it_is_sold_spends_less_energy_until_it_waits_too_long() -> None:
    """Clock and voltage fall: less energy first, then more, when the idle power of a longer run outweighs it."""
    runs = [
        hwsim.run("a100_40", "matmul", n=4096, precision="fp16", math=False, set={"sm.power_limit": f"{limit} W"})
        for limit in (400, 500, 300, 250, 200, 120)
    ]
    stock, more, *lower = runs
    assert (more.time_s, more.energy_j) == (stock.time_s, stock.energy_j)
    times = [run.time_s for run in (stock, *lower)]
    energies = [run.energy_j or 0.0 for run in (stock, *lower)]
    assert times == sorted(times)
    assert energies[0] > energies[1] > energies[2] > energies[3] < energies[4]
    for run, limit in zip(lower, (300, 250, 200, 120), strict=True):
        assert 0.98 * limit < (run.power_w or 0.0) <= 1.001 * limit
        (launch,) = run.work.use["gpu"]["launches"]
        assert run.cycles == pytest.approx(run.time_s * launch["clock_hz"], rel=0.01)  # those that really passed
        assert run.cycles == pytest.approx(stock.cycles, rel=0.01)


def test_an_array_under_a_limit_slows_by_about_what_its_voltage_cannot_save() -> None:
    free = hwsim.run("tpu_v1", "matmul", n=1024, math=False)
    capped = hwsim.run("tpu_v1", "matmul", n=1024, math=False, set={"energy.tdp.power": "35 W"})
    assert free.time_s < capped.time_s < 2 * free.time_s
    assert any("% of the voltage" in words for words in capped.warnings)


def test_only_the_clocks_of_compute_units_are_lowered_and_clock_power_falls_with_them() -> None:
    spec = load_machine("course_cpu", ["energy.static.core.clock=2 W"]).spec
    slowed = lower_clocks(spec, Fraction(1, 2))
    assert [clock.frequency for clock in slowed.clocks] == [10**9, 1_600_000_000]
    assert slowed.energy is not None
    assert slowed.energy.static["core"].clock == 2 * Fraction(1, 2) * Fraction(7, 10) ** 2
    assert slowed.energy.static["core"].power == 8


def test_clock_power_is_a_line_of_its_own() -> None:
    result = hwsim.run("course_cpu", "matmul", n=32, tile=16, set={"energy.static.core.clock": "2 W"})
    assert result.energy_by_cause is not None
    lines = result.energy_by_cause["static"]
    assert lines["core.clock"]["joules"] == pytest.approx(2 * result.time_s)


def test_a_limit_below_the_static_power_is_refused() -> None:
    with pytest.raises(SpecError, match="13 W is no more than the static power of 13 W"):
        load_machine("course_cpu", ["energy.tdp.power=13 W"])


@pytest.mark.parametrize(
    ("machine", "workload", "limit", "slower"),
    [
        # 43.2 W at the full clock, of which 28 W are static: a fifth of a watt less may cost no more than a few percent
        ("tpu_v1", {"workload": "matmul", "n": 1024}, "43 W", 1.05),
        # bound by DRAM: a lower voltage saves enough before the clock is so low that the core decides
        ("course_cpu", {"workload": "add", "n": 262144}, "17.4 W", 1.0),
    ],
)
def test_a_limit_a_little_below_the_power_of_a_run_costs_a_little_time(
    machine: str, workload: dict[str, object], limit: str, slower: float
) -> None:
    free = hwsim.run(machine, math=False, **workload)  # type: ignore[arg-type]
    capped = hwsim.run(machine, math=False, set={"energy.tdp.power": limit}, **workload)  # type: ignore[arg-type]
    assert free.power_w is not None
    assert free.power_w > float(limit.split(maxsplit=1)[0]) >= (capped.power_w or 0.0)
    assert free.time_s <= capped.time_s <= slower * free.time_s
    assert capped.throttle is not None


def test_the_clock_falls_to_a_twentieth_and_no_further() -> None:
    """A limit a hair above the static power cannot be kept: the run goes on at the lowest clock, 5 % of the full."""
    capped = hwsim.run("course_cpu", "matmul", n=16, tile=16, math=False, set={"energy.tdp.power": "13.0001 W"})
    assert capped.throttle is not None
    assert capped.throttle.share == 0.05
    assert capped.throttle.clock_hz == capped.throttle.full_clock_hz // 20
    assert any(" are drawn all the same" in words for words in capped.warnings)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.7507, 1.0])
def test_a_clock_is_lowered_in_steps_of_a_thousandth_and_never_raised(share: float) -> None:
    found = _thousandths(share)
    assert found * 1000 == int(share * 1000)
    assert share - 0.001 < found <= share
