"""Error bars of runs: what they rest on, how parts are put together, and what says that it was never compared."""

from __future__ import annotations

import json
from itertools import pairwise
from math import exp, hypot, log, sqrt

import numpy as np
import pytest

import hwsim
from hwsim.record import NEVER_COMPARED, interval_words, within_bars
from hwsim.results.bar_table import (
    LEVELS,
    TIME,
    VOTE_ROWS,
    BarGroup,
    BarTable,
    Interval,
    decade_of,
    estimate,
    interval_of,
    shipped_table,
)
from hwsim.target import ComparedPart, Target
from tests.cli.command_line import hwsim as command
from tests.contract.test_targets import MACHINES
from tests.unit.results.made import small

NORMAL_80 = 1.2816
"""80 % of a normal distribution lie within so many standard deviations (any table of it)."""


def normal(family: str, machine: str, middle: float, sigma: float, rows: int = 10_000, decade: int = -4) -> BarGroup:
    """The quantiles of a normal distribution, from many draws."""
    draws = np.random.default_rng(0).normal(middle, sigma, 100_000)
    return BarGroup(TIME, family, machine, decade, rows, tuple(float(point) for point in np.quantile(draws, LEVELS)))


def part(family: str, seconds: float = 2e-4) -> ComparedPart:
    return ComparedPart(family, f"the {family}", seconds)


def test_the_interval_of_many_normal_rows_is_that_of_the_normal_distribution() -> None:
    found = BarTable([normal("a", "m", 0.05, 0.1)]).interval(TIME, "a", "m", 2e-4)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.05 - 0.1 * NORMAL_80, 0.05 + 0.1 * NORMAL_80), abs=0.002)


def test_a_machine_that_was_not_measured_gets_the_spread_between_machines() -> None:
    """Two machines with the same spread: a third one may vary more than they do, by the root of 1 + 1/2."""
    table = BarTable([normal("a", "m", 0.0, 0.1), normal("a", "n", 0.0, 0.1)])
    found = table.interval(TIME, "a", "other", 2e-4)
    assert found is not None and found.machines == 2
    reach = 0.1 * NORMAL_80 * sqrt(1.5)
    assert (found.low, found.high) == pytest.approx((-reach, reach), rel=0.02)
    assert table.interval(TIME, "a", "m", 2e-4, without="n") is not None
    assert table.interval(TIME, "a", "m", 2e-4, without="m") is None, "one machine cannot tell how much two differ"
    assert table.interval(TIME, "b", "m", 2e-4) is None


def test_a_machine_of_few_rows_tells_little_about_how_much_machines_differ() -> None:
    """Equal machines, one of four rows: their mean is as that of 1.2, and one more varies by the root of 1 + 1/1.2."""
    table = BarTable([normal("a", "m", 0.0, 0.1), normal("a", "n", 0.0, 0.1, rows=4)])
    found = table.interval(TIME, "a", "other", 2e-4)
    vote = 4 / (4 + VOTE_ROWS)
    worth = (1 + vote) ** 2 / (1 + vote**2)
    assert found is not None and worth == pytest.approx(1.18, abs=0.01)
    assert found.high - found.low == pytest.approx(2 * 0.1 * NORMAL_80 * sqrt(1 + 1 / worth), rel=0.02)


@pytest.mark.parametrize("rows", [(100, 100, 100), (150, 4, 4), (150, 150, 4), (40, 40, 120, 120, 35, 9)])
def test_bars_hold_for_machines_that_are_yet_to_come(rows: tuple[int, ...]) -> None:
    """Families drawn as the measured ones are: middles of machines lie a quarter of half a bar apart, and the widths of
    their spreads differ by a factor of 1.4. Further machines are drawn from the same, and 80 % of their rows wanted."""
    generator = np.random.default_rng(7)
    shares = []
    for _ in range(120):
        groups = [
            BarGroup(TIME, "a", str(name), -4, count, tuple(np.quantile(spread(generator, count), LEVELS)))
            for name, count in enumerate(rows)
        ]
        found = BarTable(groups).interval(TIME, "a", "other", 2e-4)
        assert found is not None
        new = np.concatenate([spread(generator, 20) for _ in range(60)])
        shares.append(np.mean((found.low <= new) & (new <= found.high)))
    assert 0.77 < np.mean(shares) < 0.83


def spread(generator: np.random.Generator, rows: int) -> np.ndarray:
    """Rows of one machine, half of whose bar is about 0.1."""
    middle, width = 0.025 * generator.normal(), 0.1 * np.exp(0.35 * generator.normal())
    return middle + width * generator.laplace(size=rows) / 1.609


def test_few_rows_make_wider_bars_than_many() -> None:
    wide, narrow = (BarTable([normal("a", "m", 0.0, 0.1, rows)]).interval(TIME, "a", "m", 2e-4) for rows in (4, 400))
    assert wide is not None and narrow is not None
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)
    assert BarTable([normal("a", "m", 0.0, 0.1, 1)]).interval(TIME, "a", "m", 2e-4) is None


@pytest.mark.parametrize("unseen", [False, True])
def test_every_shipped_bar_grows_with_its_coverage(unseen: bool) -> None:
    table = shipped_table()
    assert table.groups
    for group in table.groups:
        machine = None if unseen else group.machine
        seconds = 3 * 10.0**group.decade
        found = [table.interval(group.quantity, group.family, machine, seconds, share) for share in (0.5, 0.8, 0.9)]
        ends = [(each.low, each.high) for each in found if each is not None]
        assert all(a[0] >= b[0] and a[1] <= b[1] for a, b in pairwise(ends)), group


def test_the_ends_of_n_rows_are_those_of_conformal_prediction() -> None:
    """Of nine rows and a new one, each is equally likely to be the outermost: 1 to 9 hold 80 % of new ones."""
    rows = [(float(value), 1.0) for value in range(1, 10)]
    found = interval_of(rows, 9, 0.8)
    assert (found.low, found.middle, found.high) == (1.0, 5.0, 9.0)


def test_errors_of_one_family_add_up_and_those_of_two_as_squares() -> None:
    table = BarTable([normal("a", "m", 0.0, 0.1), normal("b", "m", 0.0, 0.1)])
    alone = estimate(table, TIME, [part("a")], "m")
    same = estimate(table, TIME, [part("a"), part("a")], "m")
    mixed = estimate(table, TIME, [part("a"), part("b")], "m")
    assert not isinstance(alone, str) and not isinstance(same, str) and not isinstance(mixed, str)
    assert alone.up == pytest.approx(exp(0.1 * NORMAL_80) - 1, rel=0.03)
    assert (same.up, same.down) == pytest.approx((alone.up, alone.down))
    assert (mixed.up, mixed.down) == pytest.approx((hypot(alone.up, alone.up) / 2, hypot(alone.down, alone.down) / 2))


def test_the_bar_of_a_chain_holds_where_families_err_together_and_apart_from_each_other() -> None:
    """Errors of two families drawn apart, both parts of a family alike: the rule is exact for sums of such errors."""
    generator = np.random.default_rng(1)
    table = BarTable([normal("a", "m", 0.0, 0.15), normal("b", "m", 0.1, 0.1)])
    found = estimate(table, TIME, [part("a"), part("a", 3e-4), part("b", 4e-4)], "m")
    assert not isinstance(found, str)
    a, b = np.exp(generator.normal(0, 0.15, 20_000)), np.exp(generator.normal(0.1, 0.1, 20_000))
    measured = (5e-4 * a + 4e-4 * b) / 9e-4
    low, high = found.ends
    assert 0.78 < np.mean((low <= measured) & (measured <= high)) < 0.82


def test_a_run_whose_parts_were_mostly_never_compared_has_no_bar() -> None:
    table = BarTable([normal("a", "m", 0.0, 0.1)])
    words = estimate(table, TIME, [part("a"), part("strange")], "m")
    assert words == f"{NEVER_COMPARED} (the strange, 50 % of the time)"
    assert not isinstance(estimate(table, TIME, [part("a", 1e-4), part("strange", 1e-6)], "m"), str)


def test_two_times_are_told_apart_only_beyond_both_bars() -> None:
    bar = (0.9, 1 / 0.9)
    reach = sqrt(2) * log(1 / 0.9)
    near, far = exp(0.99 * reach), exp(1.01 * reach)
    assert within_bars(bar, (near * bar[0], near * bar[1])) is True
    assert within_bars(bar, (far * bar[0], far * bar[1])) is False
    assert within_bars(bar, None) is None


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((0.91, 1.09), "± 9 %"),
        ((0.995, 1.005), "± 0.5 %"),
        ((0.95, 1.2), "−5 to +20 %"),
        ((1.1, 1.3), "+10 to +30 %"),
    ],
)
def test_a_bar_is_written_as_it_is(ends: tuple[float, float], words: str) -> None:
    assert interval_words(1.0, ends) == words


def test_a_measured_machine_says_what_its_bar_rests_on() -> None:
    result = hwsim.run("a100_80", "matmul", n=1024, precision="fp16", math=False)
    bar = result.time
    assert bar.basis == "machine" and bar.rows > 50 and bar.coverage == 0.8
    assert bar.low is not None and bar.high is not None and bar.low < bar.high
    assert bar.source.startswith("a100_80, products on tensor cores: ")
    assert bar.source.endswith("measured rows that were not fitted")
    assert f"{result.time.words}" in repr(result)
    data = json.loads(result.to_json())["bars"]["time"]
    assert (data["low"], data["high"], data["rows"]) == (bar.low, bar.high, bar.rows)
    assert float(bar) == result.time_s


def test_a_changed_machine_was_not_measured() -> None:
    settings = {"sm.count": 216}
    changed = hwsim.run("a100_80", "matmul", n=1024, precision="fp16", math=False, set=settings).time
    assert changed.basis == "class"
    assert changed.source.endswith("a100_80 with these changes was not measured")


def test_what_was_never_compared_says_so_everywhere() -> None:
    result = small()
    assert result.time.ends is None and result.time.basis == "never"
    assert NEVER_COMPARED in repr(result) and NEVER_COMPARED in result._repr_html_()
    words = ("course_cpu", "matmul_tiled", "n=32", "tile=8")
    assert NEVER_COMPARED in command("run", *words).out
    assert NEVER_COMPARED in command("compare", *words).out
    assert json.loads(result.to_json())["bars"]["time"]["low"] is None


@pytest.mark.parametrize("machine", MACHINES.values())
def test_every_class_says_which_counts_are_exact(machine: str) -> None:
    result = hwsim.run(machine, "matmul", math=False, **({} if machine == "course_cpu" else {"n": 64}))
    assert result.bars.exact.startswith("operations")
    assert result.bars.exact in repr(result)
    assert Target.exact == "operations"


def test_energy_that_was_measured_in_part_says_so_and_time_does_not() -> None:
    """Eyeriss was measured without its main memory, whose energy a run has."""
    result = hwsim.run("eyeriss", "conv2d", math=False)
    assert "measured without dram" in result.energy_bar.source
    assert "measured without" not in result.time.source


def test_a_size_class_is_a_decade_of_seconds() -> None:
    assert [decade_of(seconds) for seconds in (9.9e-6, 1e-5, 9.9e-5, 2.0)] == [-6, -5, -5, 0]


def test_an_uneven_interval_measures_each_side_by_its_own_end() -> None:
    """From -0.1 over 0.2 to 0.8: half the way down is 0.05, half the way up 0.5."""
    uneven = Interval(-0.1, 0.2, 0.8, 30)
    assert [uneven.distance(value) for value in (0.05, 0.5, 0.2, 1.4)] == pytest.approx([0.5, 0.5, 0.0, 2.0])
    assert (uneven.widened(2).low, uneven.widened(2).middle, uneven.widened(2).high) == pytest.approx((-0.4, 0.2, 1.4))
    one_sided = Interval(0.1, 0.2, 0.2, 30)
    assert (one_sided.distance(0.2), one_sided.distance(0.15), one_sided.distance(0.3)) == pytest.approx((0, 0.5, 1))


def test_an_interval_of_thirty_rows_is_drawn_a_quarter_of_the_way_to_that_of_its_family() -> None:
    """As by ten rows of the wider group: 30 of 40 are its own."""
    found = Interval(-0.2, 0.0, 0.4, 30).shrunk(Interval(-0.6, 0.2, 0.8, 1000, machines=7))
    assert (found.low, found.middle, found.high) == pytest.approx((-0.3, 0.05, 0.5))
    assert (found.rows, found.machines) == (30, 1)
