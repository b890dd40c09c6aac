"""Intervals from residuals: made of some rows, judged by others, and found out where they are too narrow."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np

from hwsim.results.bar_table import BarTable, read_bars, shipped_table, table_file
from hwsim.validation.report import ComparisonRow, Report, report
from hwsim.validation.residual import (
    FEWEST,
    FIRST,
    FIT,
    SECOND,
    Residual,
    coverage_of,
    judges,
    make_table,
    purpose_of,
    table_text,
    usable,
)
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


def test_a_shape_belongs_to_one_half_or_is_fitted_on() -> None:
    purposes = [purpose_of("gemm", m, 256) for m in range(4000)]
    assert [round(purposes.count(each) / 1000) for each in (FIT, FIRST, SECOND)] == [2, 1, 1]
    assert {each.purpose for each in judges(drawn())} == {FIRST, SECOND}


def test_a_family_of_few_rows_judges_nothing() -> None:
    few = [replace(each, purpose=SECOND, machine="one") for each in usable(drawn(20))][: FEWEST - 1]
    assert judges(few) == []
    assert sum(group.rows for group in make_table(few).groups) == FEWEST - 1


def test_bars_hold_as_often_as_they_say_on_rows_they_were_not_made_from() -> None:
    judged = judges(drawn())
    table = make_table(judged)
    for unseen in (False, True):
        found = coverage_of(judged, table, unseen=unseen)
        assert found.rows == len(judged) > 600
        assert 0.75 <= (found.share or 0.0) <= 0.85


def test_a_row_is_judged_by_the_half_that_it_is_not_in() -> None:
    """Where measured times of the second half are twice as long, bars that have seen them would hold for half of all
    rows at least; those of the other half never do."""
    rows = [
        replace(each, measured=each.measured * (2 if each.purpose == SECOND else 1))
        for each in usable(drawn(sigma=0.01))
    ]
    assert coverage_of(rows, make_table(rows)).inside == 0


def test_half_of_the_rows_too_narrow_are_made_good_by_the_other_half() -> None:
    """A draw that is wide in one half only holds too often there and too seldom in the other: together as it says."""
    rows = [
        replace(
            each, measured=each.simulated * (each.measured / each.simulated) ** (1.5 if each.purpose == FIRST else 1)
        )
        for each in usable(drawn())
    ]
    table = make_table(rows)
    first, second = (coverage_of([row for row in rows if row.purpose == each], table) for each in (FIRST, SECOND))
    assert (first.share or 0) < 0.75 and (second.share or 0) > 0.85
    assert 0.75 <= (first.inside + second.inside) / (first.rows + second.rows) <= 0.85


def test_bars_for_other_machines_are_as_wide_as_machines_lie_apart() -> None:
    """Machines whose middles are spread by 0.3, each with rows spread by 0.05: 80 % of a new one's rows are wanted."""
    generator = np.random.default_rng(3)
    inside = rows = 0
    for trial in range(12):
        biases = generator.normal(0, 0.3, 9)
        found = [
            Residual(
                "family", f"m{number}", 2e-4, 2e-4 * float(np.exp(generator.normal(bias, 0.05))), purpose_of(trial, n)
            )
            for number, bias in enumerate(biases)
            for n in range(60)
        ]
        covered = coverage_of(usable(found), make_table(found), unseen=True)
        inside, rows = inside + covered.inside, rows + covered.rows
    assert 0.75 <= inside / rows <= 0.87


def test_a_table_that_is_too_narrow_or_too_wide_is_objected_to() -> None:
    residuals = drawn()
    table = make_table(residuals)

    def judged(scale: float) -> bool | None:
        groups = [replace(each, points=tuple(scale * point for point in each.points)) for each in table.groups]
        (family,) = by_family(standings("made", as_report(residuals), BarTable(groups)))
        return family.is_calibrated

    assert judged(1.0) is True
    assert judged(0.6) is False
    assert judged(1.7) is False


def test_too_few_judges_judge_nothing() -> None:
    residuals = drawn(20)
    (family,) = by_family(standings("made", as_report(residuals), make_table(residuals)))
    assert family.judged < 50 and family.is_calibrated is None


def test_rows_that_may_be_fitted_on_are_neither_reported_nor_judged() -> None:
    residuals = [replace(each, purpose=FIT) for each in drawn(20)]
    assert standings("made", as_report(residuals), make_table(residuals)) == []
    assert judges(residuals) == []
    assert make_table(residuals).groups == ()


def test_the_shipped_files_read_and_write_themselves() -> None:
    assert table_text(read_bars(table_file())) == table_file().read_text(encoding="utf-8")
    assert standing_text(read_standings(standing_file())) == standing_file().read_text(encoding="utf-8")


def test_the_shipped_table_holds_on_the_rows_that_judged_it() -> None:
    """What `hwsim validate --write` found: 75 to 85 %, and one standard deviation of so many rows besides; so too with
    the machine of each row left out."""
    families = [each for each in by_family(read_standings(standing_file())) if each.is_calibrated is not None]
    assert len(families) >= 12
    for each in families:
        chance = sqrt(0.8 * 0.2 / each.judged)
        for share in (each.coverage, each.unseen_coverage):
            assert share is None or LOWEST - chance <= share <= HIGHEST + chance, each.family
    assert {group.machine for group in shipped_table().groups} > {"a100_80", "h100", "eyeriss"}
