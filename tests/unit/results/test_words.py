"""Bound by what: a sentence and an advice for each kind of bound, from parts made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hwsim
from hwsim.cli.run import _bar_words
from hwsim.lessons import OVER_LONGEST, write_number
from hwsim.record import ErrorBar
from hwsim.result import TimeBounds
from hwsim.results.bar_table import _listed
from hwsim.results.explanation import _beside, explain
from hwsim.targets.cpu.why import part_words
from tests.unit.results.made import bound_by, small, with_schedule


@pytest.mark.parametrize(
    ("part", "kind", "says"),
    [
        ("fma", "compute", "Bound by arithmetic"),
        ("dependency chain", "chain", "each waits 4 cycles for the one before"),
        ("issue", "issue", "Bound by instruction issue"),
        ("load port", "port", "Bound by loads into registers"),
        ("store port", "port", "Bound by stores"),
        ("loop start", "loop", "short loops"),
        ("latency of dram", "chase", "latency of dram, 200 ns"),
        ("l1→regs", "bandwidth", "bandwidth of l1 (64 B/cycle)"),
        ("spawn", "parallel", "too little work"),
        ("barrier", "parallel", "too little work"),
        ("something new", "other", "Bound by something new"),
    ],
)
def test_each_bound_has_its_words(part: str, kind: str, says: str) -> None:
    base = replace(small(), bounds=TimeBounds(1.0, 1.0, {}))
    bound = explain(bound_by(part, base)).bound
    assert (bound.part, bound.kind) == (part, kind)
    assert says in bound.words


def test_whole_numbers_wait_as_long_as_whole_numbers_do() -> None:
    """sum_rows adds int32: one cycle for each addition, where those of floating point would take three on a Zen 4."""
    result = hwsim.run("zen4", "sum_rows", m=64, n=64, math=False)
    words = explain(bound_by("dependency chain", result)).bound.words
    assert "each waits 1 cycle for the one before" in words


def test_a_link_at_full_bandwidth_is_bound_by_bandwidth_and_else_by_latency() -> None:
    """DRAM of course_cpu moves 25.6 GB/s, so the run's bytes take bytes / 25.6e9 seconds at least."""
    base = small("add", n=4096)
    dram = base.memory["dram"]
    at_full_rate = (dram.bytes_read + dram.bytes_written) / 25.6e9
    for factor, kind in ((1.0, "bandwidth"), (10.0, "latency")):
        slow = replace(base, time_s=at_full_rate * factor)
        assert explain(bound_by("dram→l2", slow)).bound.kind == kind


def test_a_column_that_crowds_into_few_sets_is_named() -> None:
    """Rows of 256 fp32 are 16 lines; 64 sets hold every 16th line in 4 sets."""
    result = bound_by("l2→l1", small("matmul_naive", n=256))
    words = explain(result).bound.words
    assert "Rows of B are 1,024 B apart" in words
    assert "only 4 of the 64 sets of l1" in words
    assert dict(explain(result).advice.parameters) == {"ld": "272"}


def test_without_parts_the_attribution_decides() -> None:
    base = replace(
        small(),
        bounds=TimeBounds(1.0, 1.0, {}),
        attribution={"core[0]": {"busy": {"fma": 10}, "waiting": {"dependency chain": 30}}},
    )
    bound = explain(base).bound
    assert (bound.kind, bound.share) == ("chain", 0.75)


def test_both_bounds_are_told_with_what_the_machine_overlaps() -> None:
    assert "this machine overlaps all but loop starts" in explain(small()).bounds


@pytest.mark.parametrize(
    ("part", "schedule", "advice"),
    [
        ("dependency chain", {"vector": False, "tile": 16}, {"vector": "true"}),
        ("dependency chain", {"vector": False, "tile": 8}, {"v1": "4"}),  # a row of a tile is one vector
        ("dependency chain", {"vector": True, "v1": 1}, {"v1": "4"}),
        ("fma", {"vector": True, "v1": 4}, {"parallel": "rows"}),
        ("l2→l1", {"tile": None}, {"tile": "32"}),
        ("l2→l1", {"tile": None, "order": "ikj"}, {"v1": "4"}),  # a tile would cut its rows short
        ("loop start", {"vector": True, "order": "ikj", "tile": 8}, {"tile": "32"}),
        ("loop start", {"vector": True, "order": "ijk", "tile": 8}, {"v1": "4"}),
        ("l1→regs", {"tile": None}, {"v1": "4"}),
    ],
)
def test_the_advice_fits_the_bound(part: str, schedule: dict[str, object], advice: dict[str, str]) -> None:
    base = small("matmul_tiled", n=120, tile=60) if part == "l2→l1" else small()  # of which lines come more than once
    assert dict(explain(with_schedule(bound_by(part, base), **schedule)).advice.parameters) == advice


def test_where_each_line_comes_once_no_tile_is_advised() -> None:
    advice = explain(with_schedule(bound_by("l2→l1", small()), tile=None)).advice
    assert "tile" not in dict(advice.parameters) and advice.settings


@pytest.mark.parametrize(
    ("part", "settings"),
    [
        ("l1→regs", ("l1.bandwidth=inf",)),
        ("loop start", ("core.loop_start=0",)),
        ("load port", ("core.ports.load=4",)),
        ("issue", ("core.issue_width=8",)),
        ("store forwarding", ("core.latency.forward=1",)),
        ("address translation", ("core.tlb=null",)),
    ],
)
def test_where_nothing_fits_the_advice_is_a_perfect_part(part: str, settings: tuple[str, ...]) -> None:
    """What it costs: the part that decides, and no other."""
    chosen = {"tile": 8, "v1": 4, "vector": None, "parallel": "rows"}
    assert explain(with_schedule(bound_by(part, small("matmul_tiled", tile=8)), **chosen)).advice.settings == settings


def test_every_part_has_a_name_for_the_table() -> None:
    assert part_words("fma") == "fma unit at work"
    assert part_words("dram→l2") == "waits for dram → l2"
    assert part_words("latency of l2") == "waits for the latency of l2"
    assert part_words("unheard of") == "waits for unheard of"


def test_a_part_that_takes_all_of_the_time_decides_over_a_larger_row_and_says_so() -> None:
    """Everything overlaps: without the fma unit at work the run would take as long."""
    base = small()
    attribution = {"core[0]": {"busy": {"fma": 80}, "waiting": {"dram→l2": 20}}}
    bounds = TimeBounds(base.time_s, base.time_s, {"fma": 0.8 * base.time_s, "dram→l2": base.time_s})
    bound = explain(replace(base, attribution=attribution, bounds=bounds)).bound
    assert bound.part == "dram→l2"
    assert "the table puts first what it overlaps with (fma unit at work, 80.0 %)" in bound.words


def test_where_no_part_takes_nearly_all_of_the_time_the_largest_row_decides() -> None:
    base = small()
    attribution = {"core[0]": {"busy": {"fma": 60}, "waiting": {"dram→l2": 40}}}
    parts = {"fma": 0.6 * base.time_s, "dram→l2": 0.7 * base.time_s}
    bounds = TimeBounds(base.time_s, base.time_s, parts)
    bound = explain(replace(base, attribution=attribution, bounds=bounds)).bound
    assert (bound.part, bound.share) == ("fma", 0.6)


@pytest.mark.parametrize(
    ("busy", "says"), [(96, "the fma unit always has work"), (75, "is at work 75.0 % of the time")]
)
def test_a_unit_that_rests_is_not_said_never_to(busy: int, says: str) -> None:
    attribution = {"core[0]": {"busy": {"fma": busy}, "waiting": {"issue": 100 - busy}}}
    words = explain(bound_by("fma", replace(small(), attribution=attribution))).bound.words
    assert says in words
    assert ("always has work" in words) == (busy >= 95)
    assert ("as not all it does is whole vectors" in words) == (busy >= 95)


def test_what_is_said_beside_a_metric() -> None:
    """Cycles beside a time, the mean power beside an energy, nothing beside anything else."""
    result = small()
    assert result.power_w is not None
    assert result.energy_j == pytest.approx(result.power_w * result.time_s)
    assert _beside("time_s", result)[0] == f"{result.cycles:,} cycles"
    (power,) = _beside("energy_j", result)
    assert power.endswith(" on average")
    assert "W" in power
    assert _beside("energy_j", replace(result, power_w=None)) == []
    assert _beside("flops", result) == []


def test_names_are_listed_up_to_three_and_then_counted() -> None:
    assert _listed(["a"]) == "a"
    assert _listed(["a", "b"]) == "a and b"
    assert _listed(["a", "b", "c"]) == "a, b and c"
    assert _listed(["a", "b", "c", "d"]) == "a, b and 2 more"
    assert _listed(list("abcdefg")) == "a, b and 5 more"


def test_no_words_stand_for_a_bar_that_is_not_there() -> None:
    assert _bar_words(None) == ""
    known = ErrorBar(2.0, "s", 1.8, 2.2, 0.9, 5, "measured", "a table")
    assert _bar_words(known) == " ± 10 %"
    assert _bar_words(ErrorBar(2.0, "s", None, None, 0.9, 0, "never", "nothing")) == ""


def test_a_ratio_in_a_lesson_has_its_sign() -> None:
    assert write_number(OVER_LONGEST, 1.5) == "1.5×"
    assert write_number("share.fma", 0.25) == "25.0 %"
    assert write_number("bounds.fma", 2e-6).endswith("s")
    assert write_number("l1.misses", 1234567.0) == "1,234,567"
    assert write_number("l1.misses", None) == "–"
