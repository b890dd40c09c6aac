"""How the CPU is judged by measured matmuls: ranks, groups, gains, and bars on both sides of what is demanded."""

from __future__ import annotations

from itertools import permutations

import pytest

from hwsim.validation.cpu import CURVE_AIM, Case, _bars, _case, _ceilings, _correlations, _ratio_error, spearman
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
