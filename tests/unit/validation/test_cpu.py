"""How the CPU is judged by measured matmuls: ranks, groups, gains, and bars on both sides of what is demanded."""

from __future__ import annotations

from itertools import permutations

import pytest

from hwsim.catalog import load_machine
from hwsim.validation.cpu import (
    CURVE_AIM,
    MORE,
    Case,
    _bars,
    _case,
    _ceilings,
    _correlations,
    _ratio_error,
    simulate_case,
    spearman,
)
from hwsim.validation.report import Bar
from hwsim.validation.table import shipped

VARIANTS = ("ijk", "ikj", "tiled_ijk", "tiled_ikj")


def cases(n: int, build: str = "vec") -> list[Case]:
    return [Case(build, "f32", n, variant, 16 if "tiled" in variant else 0) for variant in VARIANTS]


def judged(sizes: tuple[int, ...], simulated: tuple[float, ...]) -> dict[str, Bar]:
    """Each size measured as 4, 2, 1 and 3 seconds, and simulated as given."""
    found = {case: time for n in sizes for case, time in zip(cases(n), (4.0, 2.0, 1.0, 3.0), strict=True)}
    made = {case: time for n in sizes for case, time in zip(cases(n), simulated, strict=True)}
    curves, groups = _correlations(found, made)
    return {bar.name: bar for bar in _bars(curves, groups, found, made)}


def test_a_rank_correlation_is_one_less_six_times_the_squares_over_n_cubed_less_n() -> None:
    """Spearman, 1904, for numbers that all differ; ties have the mean of their ranks."""
    first = (1.0, 2.0, 3.0, 4.0)
    for second in permutations(first):
        squares = sum((a - b) ** 2 for a, b in zip(first, second, strict=True))
        assert spearman(first, second) == pytest.approx(1 - 6 * squares / (4**3 - 4))
        assert spearman([10 * a for a in first], [b**3 for b in second]) == pytest.approx(spearman(first, second))
    assert spearman((1, 2, 3), (1, 1, 2)) == pytest.approx(1.5 / 3**0.5)


def test_sizes_that_are_powers_of_two_are_judged_apart_from_others() -> None:
    bars = judged((512, 500, 768), (4.0, 2.0, 1.0, 3.0))
    two, other = (f"rank correlation over all variants, {where}, median of build and type"
                  for where in ("a power of two", "another size"))  # fmt: skip
    assert bars[two].value == bars[other].value == "1.00" and bars[two].met and bars[other].met
    assert two not in judged((500,), (4.0, 2.0, 1.0, 3.0))
    assert other not in judged((512, 64), (4.0, 2.0, 1.0, 3.0))
    swapped = judged((512,), (4.0, 2.0, 3.0, 1.0))[two]  # two ranks apart: 1 - 6 * 8 / 60
    assert (swapped.value, swapped.met) == ("0.20", False)


def test_gains_over_the_naive_loops_and_errors_are_judged() -> None:
    """4 to 1 as measured; simulated 6 to 1 is a factor of 1.5 off; errors of 1/2, 0, 0 and 0."""
    bars = judged((512,), (6.0, 2.0, 1.0, 3.0))
    ratio = bars["naive-to-best ratio, median of the same groups"]
    assert (ratio.value, ratio.met) == ("a factor of 1.50 off (worst 1.50)", False)
    error = bars["mean error of the time"]
    assert error.value.startswith("12.5") and error.met
    found = dict(zip(cases(512), (4.0, 2.0, 1.0, 3.0), strict=True))
    for times, factor in (((4.0, 2.0, 1.0, 3.0), 1.0), ((2.0, 2.0, 1.0, 3.0), 2.0), ((8.0, 2.0, 1.0, 3.0), 2.0)):
        made = dict(zip(cases(512), times, strict=True))
        assert _ratio_error(("vec", "f32", 512), found, made) == pytest.approx(factor)


def test_fewer_than_four_variants_have_no_ranks() -> None:
    some = dict.fromkeys(cases(512)[:3], 1.0)
    assert _correlations(some, some) == ({}, {})
    (bar,) = _bars({}, {}, some, some)
    assert (bar.value, bar.met) == ("3 rows", False)


def test_a_curve_is_judged_where_two_measurements_of_it_agree() -> None:
    ceilings = _ceilings()
    assert ceilings and all(0 < rho <= 1 for rho in ceilings.values())
    curve = next(iter(ceilings))
    build, dtype, n, variant = curve
    times = {Case(build, dtype, n, variant, tile): float(time) for tile, time in ((4, 9), (8, 5), (16, 3), (32, 4))}
    assert _correlations(times, times)[0] == {curve: pytest.approx(1.0)}
    bars = _bars({curve: CURVE_AIM, ("vec", "f32", 1, "x"): 1.0}, {}, times, times)
    assert bars[0].value == f"{(1 + CURVE_AIM) / 2:.2f}" and bars[0].met
    assert not _bars({curve: CURVE_AIM - 0.01}, {}, times, times)[0].met


def test_a_row_is_a_case_with_a_tile_where_its_loops_have_one() -> None:
    record = {"build": "vec", "dtype": "f64", "n": "512", "variant": "tiled_ikj", "tile": "32", "seconds": "0.5"}
    case = _case(shipped("cpu.csv"), record)  # type: ignore[arg-type]
    assert case == Case("vec", "f64", 512, "tiled_ikj", 32)
    assert case.name == "vec f64 512 tiled_ikj 32"
    assert Case("vec", "f64", 512, "ijk", 0).name == "vec f64 512 ijk"


ZEN3 = load_machine("zen3", ["core.ports.fma=0"]).spec


def cycles(case: Case) -> float:
    """Of one multiply-add."""
    return simulate_case(ZEN3, case) * float(ZEN3.clocks[0].frequency) / case.n**3


@pytest.mark.parametrize(("build", "dtype", "lanes"), [("novec", "f32", 1), ("vec", "f32", 8), ("vec", "f64", 4)])
def test_some_rows_stand_for_the_whole_product(build: str, dtype: str, lanes: int) -> None:
    """Two multiplications and two additions in a cycle, of so many lanes, are the least a multiply-add can take; all
    of these are in the first two caches. Tiles that are simulated as a whole and those of which the rest is drawn on
    from two of their parts take nearly the same, and more rows of such a product as many times longer."""
    for variant, tile in (("ijk", 0), ("ikj", 0), ("tiled_ijk", 12), ("tiled_ikj", 12), ("regtile4x8", 0)):
        assert 0.5 / lanes <= cycles(Case(build, dtype, 48, variant, tile)) < 4, variant
    for variant in ("tiled_ijk", "tiled_ikj"):
        whole, drawn = (cycles(Case(build, dtype, 48, variant, tile)) for tile in (MORE, MORE + 1))
        assert drawn == pytest.approx(whole, rel=0.25)
        less, more = (simulate_case(ZEN3, Case(build, dtype, n, variant, 8)) for n in (32, 64))
        assert 7 < more / less < 11  # 8 times the work


@pytest.mark.parametrize("variant", ["ikj", "regtile4x8"])
def test_vectors_make_loops_faster_and_by_no_more_than_their_lanes(variant: str) -> None:
    """256 bits: eight floats, four doubles; scalar loops take as long with both."""
    scalar, wide, narrow = (
        cycles(Case(build, dtype, 64, variant, 0))
        for build, dtype in (("novec", "f32"), ("vec", "f32"), ("vec", "f64"))
    )
    assert 2 < scalar / wide <= 8
    assert 1.5 < scalar / narrow <= 4
    assert wide < narrow
