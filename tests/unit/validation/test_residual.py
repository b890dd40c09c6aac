"""Intervals from residuals: made of some rows, judged by others, and found out where they are too narrow."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np

from hwsim.results.bar_table import BarTable, read_bars, shipped_table, table_file
from hwsim.validation.report import ComparisonRow, Report, report
from hwsim.validation.residual import FEWEST, Residual, coverage_of, make_table, makers_and_judges, table_text, usable
from hwsim.validation.split import FIT, INTERVAL, JUDGE, purpose_of
from hwsim.validation.standing import (
    HIGHEST,
    LOWEST,
    by_family,
    read_standings,
    standing_file,
    standing_text,
    standings,
)

BIAS = {"one": -0.05, "two": 0.0, "three": 0.05, "four": 0.1}
"""Machines differ, as real ones do."""


def drawn(rows: int = 400, sigma: float = 0.2, seed: int = 0) -> list[Residual]:
    """Rows of four machines whose log ratio is normal, each shape used as its hash says."""
    generator = np.random.default_rng(seed)
    return [
        Residual("family", machine, 2e-4, 2e-4 * float(np.exp(generator.normal(bias, sigma))), purpose_of("op", n))
        for machine, bias in BIAS.items()
        for n in range(rows)
    ]


def as_report(residuals: list[Residual]) -> Report:
    rows = [ComparisonRow(str(n), each.machine, each.error, "", each) for n, each in enumerate(residuals)]
    return report("made", "rows made by hand", rows)


def test_a_shape_makes_intervals_or_judges_them_or_is_fitted_on() -> None:
    purposes = [purpose_of("gemm", m, 256) for m in range(4000)]
    assert [round(purposes.count(each) / 1000) for each in (FIT, INTERVAL, JUDGE)] == [2, 1, 1]
    makers, judges = makers_and_judges(drawn())
    assert {each.purpose for each in makers} == {INTERVAL}
    assert {each.purpose for each in judges} == {JUDGE}


def test_a_family_of_few_rows_judges_nothing() -> None:
    few = [replace(each, purpose=JUDGE, machine="one") for each in usable(drawn(20))][: FEWEST - 1]
    makers, judges = makers_and_judges(few)
    assert (len(makers), judges) == (FEWEST - 1, [])


def test_bars_hold_as_often_as_they_say_on_rows_they_were_not_made_from() -> None:
    makers, judges = makers_and_judges(drawn())
    table = make_table(makers)
    for unseen in (False, True):
        found = coverage_of(judges, table, unseen=unseen)
        assert found.rows == len(judges) > 300
        assert 0.75 <= (found.share or 0.0) <= 0.85


def test_a_table_that_is_too_narrow_or_too_wide_is_objected_to() -> None:
    residuals = drawn()
    table = make_table(makers_and_judges(residuals)[0])

    def judged(scale: float) -> bool | None:
        groups = [replace(each, points=tuple(scale * point for point in each.points)) for each in table.groups]
        (family,) = by_family(standings("made", as_report(residuals), BarTable(groups)))
        return family.is_calibrated

    assert judged(1.0) is True
    assert judged(0.6) is False
    assert judged(1.7) is False


def test_too_few_judges_judge_nothing() -> None:
    residuals = drawn(45)
    (family,) = by_family(standings("made", as_report(residuals), make_table(residuals)))
    assert family.judged < 50 and family.is_calibrated is None


def test_rows_that_may_be_fitted_on_are_neither_reported_nor_judged() -> None:
    residuals = [replace(each, purpose=FIT) for each in drawn(20)]
    assert standings("made", as_report(residuals), make_table(residuals)) == []
    assert makers_and_judges(residuals) == ([], [])


def test_the_shipped_files_read_and_write_themselves() -> None:
    assert table_text(read_bars(table_file())) == table_file().read_text(encoding="utf-8")
    assert standing_text(read_standings(standing_file())) == standing_file().read_text(encoding="utf-8")


TOO_NARROW = {"served_output_token": (0.65, 0.75)}
"""Families whose bars hold less often than they say: rows of one engine and model on an H200 are off together, and
those that judge are others than those that the bar was made of."""


def test_the_shipped_table_holds_on_the_rows_that_judged_it() -> None:
    """What `hwsim validate --write` found: 75 to 85 %, and one standard deviation of so many rows besides."""
    families = [each for each in by_family(read_standings(standing_file())) if each.is_calibrated is not None]
    assert len(families) >= 8
    for each in families:
        chance = sqrt(0.8 * 0.2 / each.judged)
        low, high = TOO_NARROW.get(each.family, (LOWEST - chance, HIGHEST + chance))
        assert low <= (each.coverage or 0.0) <= high, each.family
    assert {group.machine for group in shipped_table().groups} > {"a100_80", "h100", "eyeriss"}
