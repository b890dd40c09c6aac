"""What a sweep hands back."""

from __future__ import annotations

import pytest

import hwsim
from hwsim.errors import InputError
from hwsim.results.metrics import about, metrics_of, write
from hwsim.sweep.grid import make_request
from hwsim.sweep.result_set import ResultSet, Row
from tests.unit.results.made import small


def made(*pairs: tuple[float, float | None]) -> ResultSet:
    """Rows with given times and energies."""
    rows = [
        Row(i, str(i), {"machine": "m", "workload": "w", "n": i}, "done", None, {"time_s": time, "energy_j": energy})
        for i, (time, energy) in enumerate(pairs)
    ]
    return ResultSet(make_request("m", "w", {"n": list(range(len(pairs)))}, {}), rows, lambda key: small())


def test_the_best_has_the_least_time_and_the_first_of_equals_wins() -> None:
    results = made((3, 1), (2, 5), (2, 4), (9, None))
    assert results.best()["n"] == 1
    assert results.best("energy")["n"] == 0


def test_more_is_better_where_it_is() -> None:
    results = hwsim.sweep("course_cpu", "matmul_tiled", n=32, tile=[4, 8])
    best = max(results, key=lambda row: row["utilisation"])
    assert results.best("utilisation") is best


def test_the_front_holds_what_nothing_beats() -> None:
    results = made((1, 9), (2, 5), (3, 5), (4, 1), (2, 5), (5, 2))
    assert [row["n"] for row in results.pareto()] == [0, 1, 4, 3]
    assert [row["n"] for row in results.pareto("time")] == [0]


def test_rows_can_be_filtered_and_read() -> None:
    results = hwsim.sweep("course_cpu", "matmul_tiled", n=[16, 32], tile=[4, 8], set={"l1.size": ["32 KiB", "64 KiB"]})
    assert len(results) == 8
    chosen = results.where(n=32, tile=8, l1__size="64 KiB")
    assert len(chosen) == 1
    assert chosen[0]["time"] == results.result(chosen[0]).time_s
    with pytest.raises(InputError, match="not a coordinate"):
        results.where(tiel=3)
    with pytest.raises(InputError, match="'tim' is not a metric of this sweep; did you mean 'time_s'"):
        results.best("tim")


def test_dictionaries_all_have_the_same_keys() -> None:
    results = hwsim.sweep("course_cpu", "matmul_tiled", n=[32, 64], ld=[48, 64], tile=8)
    rows = results.to_dicts()
    assert len({tuple(row) for row in rows}) == 1
    assert [row["status"] for row in rows] == ["done", "done", "failed", "done"]
    assert rows[0]["l1.bytes"] > 0


def test_a_set_describes_itself() -> None:
    results = hwsim.sweep("course_cpu", "matmul_tiled", n=[16, 32], tile=8)
    assert "2 points (2 n), 0 failed" in repr(results)
    assert "<table>" in results._repr_html_()


def test_metrics_are_the_numbers_of_the_result() -> None:
    result = small()
    row = metrics_of(result)
    assert row["time_s"] == result.time_s
    assert row["edp_js"] == pytest.approx(result.energy_j * result.time_s)
    assert row["l1.misses"] == result.caches["l1"].misses
    assert row["dram.bytes"] == result.memory["dram"].bytes_read + result.memory["dram"].bytes_written
    assert sum(row[name] for name in row if name.startswith("energy.")) == pytest.approx(result.energy_j)


def test_metrics_are_written_with_their_units() -> None:
    assert write("time_s", 0.00123) == "1.23 ms"
    assert write("energy.l1", 2e-6) == "2 µJ"
    assert write("l1.bytes", 2048) == "2.05 kB"
    assert write("l1.hit_rate", 0.5) == "50.0 %"
    assert write("error_max_rel", 1.5e-7) == "1.50e-7"
    assert write("energy_j", None) == "–"
    assert about("l2.fills").title == "l2 lines filled"


def test_pandas_gets_one_row_for_each_point() -> None:
    pytest.importorskip("pandas")
    frame = hwsim.sweep("course_cpu", "matmul_tiled", n=[16, 32], tile=8).to_pandas()
    assert list(frame["n"]) == [16, 32]
    assert frame["time_s"].is_monotonic_increasing


def test_an_axis_that_is_named_is_drawn_over_whatever_would_be_drawn_otherwise() -> None:
    values = {"n": [8, 16], "tile": [4, 8]}
    results = hwsim.sweep("course_cpu", "matmul_tiled", jobs=1, **values)
    over = results.plot(x="tile")
    assert any("tile" in axes.get_xlabel() for axes in over.axes) and all(axes.lines for axes in over.axes)
    heat = results.plot("heat")
    assert not any(axes.lines for axes in heat.axes)
