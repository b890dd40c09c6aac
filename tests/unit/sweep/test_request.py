"""Grids: counted before they are made, and refused where nobody can mean them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hwsim.errors import InputError, OverrideError
from hwsim.sweep.grid import SweepRequest, make_request
from hwsim.sweep.point import check_request, resolve_points
from hwsim.sweep.result_set import _kind


def request(parameters: dict[str, object] | None = None, **more: object) -> SweepRequest:
    return make_request(
        more.pop("machines", "course_cpu"), more.pop("workloads", "matmul_tiled"), parameters or {}, more
    )


def test_a_grid_is_every_combination_and_the_last_axis_changes_fastest() -> None:
    grid = request({"n": [16, 32], "tile": [4, 8]}, machines=["course_cpu", "zen3"])
    places = [(c["machine"], c["n"], c["tile"]) for c in grid.coordinates()]
    assert grid.count == len(places) == 8
    assert places[:3] == [("course_cpu", 16, 4), ("course_cpu", 16, 8), ("course_cpu", 32, 4)]
    assert grid.size_words() == "2 machine × 2 n × 2 tile"


def test_a_huge_grid_is_counted_without_being_made() -> None:
    grid = request(dict.fromkeys(("n", "m", "k"), "1..10000"))
    assert grid.count == 10**12
    with pytest.raises(InputError, match=r"1,000,000,000,000 points.*--yes"):
        grid.check_size(yes=False)
    grid.check_size(yes=True)


def test_99_999_points_run_at_once_and_100_000_ask() -> None:
    request({"n": "1..99999"}).check_size(yes=False)
    with pytest.raises(InputError, match="100,000 points"):
        request({"n": "1..100000"}).check_size(yes=False)


def test_a_request_survives_json() -> None:
    grid = request({"n": [16, 32], "vector": [True, False]}, **{"l1.size": ["32 KiB", "inf"]})
    assert SweepRequest.from_json(grid.to_json()) == grid


def test_what_is_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="zen3 is given twice"):
        request(machines="zen3,zen3")
    with pytest.raises(InputError, match="n is given twice"):
        make_request("zen3", "add", {"n": 1}, {"n": 2})
    with pytest.raises(InputError, match="missing between commas"):
        request(machines="zen3,")


@pytest.mark.parametrize(
    ("parameters", "settings", "words"),
    [
        ({"tiel": [8]}, {}, "tiel: matmul_tiled has no such parameter; did you mean 'tile'"),
        ({"l1.size": ["32 KiB"]}, {}, "belongs to the machine; write --set l1.size"),
        ({"precision": ["fp32", "fp31"]}, {}, "precision=fp31"),
        ({"tile": [0, 8]}, {}, "tile=0"),
        ({}, {"l1.sise": ["32 KiB"]}, "there is no 'l1.sise' to set; did you mean 'l1.size'"),
        ({}, {"l1.size": ["32 KiB", "32"]}, "no unit"),
        ({"n": [64], "ld": [32]}, {}, "ld 32 is less"),
    ],
)
def test_a_slip_stops_the_sweep_before_it_starts(
    parameters: dict[str, object], settings: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        check_request(make_request("course_cpu", "matmul_tiled", parameters, settings))


def test_every_workload_must_know_every_parameter() -> None:
    with pytest.raises(OverrideError, match="add has no such parameter"):
        check_request(request({"tile": [8]}, workloads="matmul_tiled,add"))


def test_values_that_only_some_combinations_refuse_are_points_that_fail() -> None:
    grid = request({"n": [32, 64], "ld": [48, 64]})
    check_request(grid)
    points = list(resolve_points(grid))
    assert [point.inputs is None for point in points] == [False, False, True, False]
    assert "ld 48 is less" in points[2].error


def test_the_key_changes_with_every_input_and_with_nothing_else() -> None:
    one = next(resolve_points(request({"n": [32]})))
    same = next(resolve_points(request({"n": [32], "tile": [32]}))), next(resolve_points(request({"n": "32"})))
    assert {point.key for point in same} == {one.key}
    others = [
        request({"n": [33]}),
        request({"n": [32]}, machines="zen3"),
        request({"n": [32]}, **{"l1.size": ["64 KiB"]}),
        request({"n": [32], "precision": ["fp64"]}),
        make_request("course_cpu", "matmul_tiled", {"n": 32}, {}, seed=1),
        make_request("course_cpu", "matmul_tiled", {"n": 32}, {}, math=False),
    ]
    keys = {next(resolve_points(other)).key for other in others}
    assert len(keys | {one.key}) == len(others) + 1


def test_another_model_gives_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = next(resolve_points(request({"n": [32]}))).key
    monkeypatch.setattr("hwsim.sweep.point.model_version", lambda: "other")
    assert next(resolve_points(request({"n": [32]}))).key != before


@pytest.mark.parametrize(
    ("axes", "kind"),
    [
        ({"n": [16, 20, 24], "tile": 4}, "lines"),
        ({"n": [16, 20], "tile": 4}, "energy"),
        ({"n": [16, 20, 24, 28, 32], "tile": [1, 2, 4, 8, 16]}, "heat"),
        ({"n": [16, 20, 24, 28], "tile": [1, 2, 4, 8, 16]}, "lines"),
    ],
)
def test_three_numbers_make_a_line_and_two_axes_of_five_a_map(axes: dict[str, Any], kind: str) -> None:
    request = make_request("course_cpu", "matmul_tiled", axes, {})
    results = SimpleNamespace(request=request, done=[{"energy_j": 1.0}], metric_names=["energy_j"])
    assert _kind(results) == kind  # type: ignore[arg-type]
