"""One table of metrics: a row that is added is seen everywhere, and every row keeps the table's promises."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import hwsim
from hwsim.results.html import render_page, run_page
from hwsim.results.metrics import METRICS, Metric, about, full_name, metrics_of, shown
from hwsim.results.plot.compare import ComparedRun, plot_compare
from hwsim.sweep.result_set import draw, sweep_page
from tests.cli.command_line import hwsim as command
from tests.unit.results.made import small

SLOWNESS = Metric(
    "cycles_per_flop", "slowness", "", lambda result: result.cycles / result.work.flops, typed="slow",
    shown=("run", "repr", "html", "compare", "sweep", "point", "best", "plot", "bars"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_more_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr("hwsim.cli.run.last_run_files", lambda: [tmp_path / "last-run.json"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(METRICS, SLOWNESS.name, SLOWNESS)
    yield


def value() -> str:
    """What the tables write of the small run."""
    from hwsim.results.metrics import write

    return write(SLOWNESS.name, SLOWNESS.of(small()))


def test_a_new_row_is_on_the_screens_of_run_sweep_and_compare() -> None:
    words = ("course_cpu", "matmul_tiled", "n=32", "tile=8")
    assert f"slowness  {value()}" in command("run", *words).out
    compared = command("compare", *words).out
    assert f"slowness: {value()}" in compared
    swept = command("sweep", "course_cpu", "matmul_tiled", "n=32", "tile=4,8").out
    assert "slowness" in swept.split("─", 1)[0] and value() in swept


def test_a_new_row_is_in_the_json_of_sweep_and_compare_and_may_be_plotted_and_tuned_for(tmp_path: Path) -> None:
    words = ("course_cpu", "matmul_tiled", "n=32", "tile=4,8")
    (first, _) = json.loads(command("compare", *words, "--json", "-").out)
    assert first["cycles_per_flop"] > 0
    drawn = command("sweep", *words, "--plot", "x.svg", "--metric", "slow")
    assert drawn.code == 0 and (tmp_path / "x.svg").exists()
    tuned = command("tune", *words, "--for", "slow", "--json", "-")
    assert json.loads(tuned.out)["metric"] == "cycles_per_flop"


def test_a_new_row_is_in_the_words_of_a_prompt_and_of_a_sweep() -> None:
    assert f"slowness  {value()}" in repr(small())
    results = hwsim.sweep("course_cpu", "matmul_tiled", n=32, tile=[4, 8])
    assert "least slowness" in repr(results)
    assert ">slowness</th>" in results._repr_html_()


def test_a_new_row_is_in_the_reports_of_a_run_and_of_a_sweep() -> None:
    assert f"Slowness: {value()}." in render_page(run_page(small()))
    page = sweep_page(hwsim.sweep("course_cpu", "matmul_tiled", n=32, tile=[4, 8]))
    assert any(column.title == "slowness" for column in page.columns)
    assert any(words.startswith("Least slowness") for words in page.words)


def test_a_new_row_has_a_panel_of_its_own_in_plots() -> None:
    runs = [ComparedRun("course_cpu", "tiled", small()), ComparedRun("course_cpu", "naive", small("matmul_naive"))]
    titles = [axes.get_title(loc="left") for axes in plot_compare(runs).axes]
    assert "Slowness (log scale)" in titles
    figure = draw(hwsim.sweep("course_cpu", "matmul_tiled", n=32, tile=[4, 8, 16]), "lines")
    assert "slowness" in [axes.get_title(loc="left") for axes in figure.axes]


def test_where_more_is_better_the_most_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    most = Metric("speed", "speediness", "", lambda result: 1 / result.time_s, "most", shown=("best",))
    monkeypatch.setitem(METRICS, "speed", most)
    results = hwsim.sweep("course_cpu", "matmul_tiled", n=32, tile=[4, 8])
    assert results.best("speed") is results.best("time")
    assert "most speediness" in repr(results)


@pytest.mark.parametrize("name", list(METRICS))
def test_a_row_goes_by_its_name_and_gives_a_number_of_a_run(name: str) -> None:
    metric = METRICS[name]
    assert metric.name == name
    assert about(name) is metric
    assert full_name(metric.typed or name) == name
    found = metric.of(small())
    assert metrics_of(small())[name] == found
    assert (found is None) == ("end of its bar" in metric.title), "course_cpu was never compared with hardware"


def test_columns_that_are_shown_have_an_order_of_their_own() -> None:
    """Two with the same place would be ordered by their heads, which nobody means."""
    for place in ("compare", "sweep"):
        columns = [metric.column for metric in shown(place)]
        assert len(set(columns)) == len(columns)
