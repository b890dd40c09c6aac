"""`hwsim sweep` and `hwsim export` as people type them."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

import hwsim as package
from hwsim.cli.sweep import _gain, _told_apart, near_words
from hwsim.record import NEVER_COMPARED, interval_words
from tests.cli.command_line import hwsim
from tests.unit.sweep.test_result_set import made

SMALL = ("course_cpu", "matmul_tiled", "n=16", "tile=4,8")


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_sweep_prints_points_and_the_best_of_each_metric() -> None:
    done = hwsim("sweep", *SMALL, "precision=fp32,int8", "--plot", "tiles.png")
    assert done.code == 0, done.err
    assert "tile" in done.out and "the worst is" in done.out
    assert "4 points: 4 computed; kept in sweep.db" in done.out
    assert "4 points (2 tile × 2 precision): about" in done.err
    assert Path("tiles.png").read_bytes().startswith(b"\x89PNG")


def test_the_times_of_a_sweep_have_their_error_bars() -> None:
    words = ("a100_80", "matmul", "n=512,1024", "precision=bf16", "--no-math")
    points = json.loads(hwsim("sweep", *words, "--json", "-").out)
    printed = hwsim("sweep", *words).out
    for point in points:
        assert interval_words(point["time_s"], (point["time_low_s"], point["time_high_s"])) in printed


def test_the_same_command_computes_nothing_the_second_time() -> None:
    hwsim("sweep", *SMALL)
    done = hwsim("sweep", *SMALL)
    assert "2 were here already" in done.out
    assert "all of them are here already" in done.err


def test_json_is_all_that_is_printed() -> None:
    rows = json.loads(hwsim("sweep", *SMALL, "--json", "-").out)
    assert [row["tile"] for row in rows] == [4, 8]
    assert rows[0]["time_s"] == package.run("course_cpu", "matmul_tiled", n=16, tile=4).time_s


def test_several_machines_workloads_and_fields() -> None:
    words = (
        "course_cpu,cortex_a78",
        "matmul_naive,matmul_tiled",
        "n=16",
        "--set",
        "l1.size=32KiB,64KiB",
        "--json",
        "-",
    )
    rows = json.loads(hwsim("sweep", *words).out)
    assert len(rows) == 8
    assert {(row["machine"], row["workload"], row["l1.size"]) for row in rows} >= {
        ("cortex_a78", "matmul_tiled", "64KiB")
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tiel=8",), "no such parameter; did you mean 'tile'"),
        (("tile=256..8:x2",), "an empty range"),
        (("tile=8,,9",), "missing between commas"),
        (("n=1..1000", "m=1..1000"), "1,000,000 points are a lot (1,000 n × 1,000 m); say --yes"),
        (("precision=fp32,fp31",), "precision=fp31"),
        (("--set", "l1.sise=32KiB"), "did you mean 'l1.size'"),
        (("--set", "l1.size"), "write a field as path=values"),
        (("tile=8", "tile=9"), "tile is given twice"),
        (("--executor", "cluster"), "not one of auto, inprocess, processes, dask"),
        (("--jobs", "0"), "at least 1"),
        (("--plot", "x.bmp"), "a plot is one of"),
        (("--plot", "nowhere/x.png"), "there is no folder"),
        (("--out", "nowhere/x.db"), "there is no folder"),
        (("tile=4,8", "--kind", "lined", "--plot", "x.png"), "did you mean 'lines'"),
        (("tile=4,8", "--metric", "tim", "--plot", "x.png"), "did you mean 'time_s'"),
        (("tile=4,8", "--x", "m", "--plot", "x.png"), "m is not swept here"),
    ],
)
def test_bad_input_is_said_and_ends_with_2(words: tuple[str, ...], message: str) -> None:
    given = () if any(word.startswith("n=") for word in words) else ("n=16",)
    done = hwsim("sweep", "course_cpu", "matmul_tiled", *given, *words)
    assert done.code == 2, done.out
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_file_that_is_no_store_is_left_alone() -> None:
    Path("notes.txt").write_text("dear diary\n" * 100)
    done = hwsim("sweep", *SMALL, "--out", "notes.txt")
    assert done.code == 2 and "is not a sweep of hwsim" in done.err
    assert Path("notes.txt").read_text() == "dear diary\n" * 100


def test_a_store_of_another_format_or_a_damaged_one_is_left_alone() -> None:
    hwsim("sweep", *SMALL)
    with sqlite3.connect("sweep.db") as store:
        store.execute("PRAGMA user_version = 99")
    done = hwsim("sweep", *SMALL)
    assert done.code == 2 and "store format 99" in done.err
    Path("cut.db").write_bytes(Path("sweep.db").read_bytes()[:5000])
    done = hwsim("sweep", *SMALL, "--out", "cut.db")
    assert done.code == 2 and "cut.db" in done.err


def test_a_store_of_another_model_is_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    hwsim("sweep", *SMALL)
    monkeypatch.setattr("hwsim.sweep.store.model_version", lambda: "9.9+other")
    done = hwsim("sweep", *SMALL)
    assert done.code == 2 and "9.9+other" in done.err
    assert hwsim("export", "sweep.db").code == 0


def test_failed_points_are_counted_with_their_reason() -> None:
    done = hwsim("sweep", "course_cpu", "matmul_tiled", "n=32,64", "ld=48,64", "tile=8")
    assert done.code == 0
    assert "1 failed" in done.out and "ld 48 is less" in done.out


def test_export_writes_csv_and_json() -> None:
    hwsim("sweep", *SMALL)
    rows = list(csv.DictReader(hwsim("export", "sweep.db").out.splitlines()))
    assert [row["tile"] for row in rows] == ["4", "8"]
    assert hwsim("export", "sweep.db", "-o", "p.json").code == 0
    assert [row["tile"] for row in json.loads(Path("p.json").read_text())] == [4, 8]
    whole = json.loads(hwsim("export", "sweep.db", "--full").out)
    assert whole[0]["result"]["workload"] == "matmul_tiled"
    assert "2 of 2 points" in hwsim("export", "sweep.db", "--list").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none.db",), "there is no file none.db"),
        (("sweep.db", "-o", "p.xls"), "'xls' is not one of csv, json, parquet"),
        (("sweep.db", "--sweep", "7"), "--sweep 7: sweep.db has 1"),
        (("sweep.db", "--format", "parquet"), "give a file with -o"),
        (("sweep.db", "--full", "--format", "csv"), "--full is for JSON"),
    ],
)
def test_export_says_what_is_wrong(words: tuple[str, ...], message: str) -> None:
    hwsim("sweep", *SMALL)
    done = hwsim("export", *words)
    assert done.code == 2 and message in done.err


def test_parquet_holds_the_same_rows() -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    hwsim("sweep", *SMALL)
    assert hwsim("export", "sweep.db", "-o", "p.parquet").code == 0
    assert list(pandas.read_parquet("p.parquet")["tile"]) == [4, 8]


def finished_points(store: Path) -> int:
    """How many points a sweep under way has stored; none while there is no store to read."""
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as opened:
            return int(opened.execute("SELECT count(*) FROM points").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def test_ctrl_c_says_that_nothing_is_lost(tmp_path: Path) -> None:
    root = Path(package.__file__).resolve().parent.parent
    words = ["sweep", "course_cpu", "matmul_tiled", "n=16..400:4", "tile=4", "--executor", "inprocess"]
    process = subprocess.Popen(
        [sys.executable, "-m", "hwsim", *words],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # ignored in the background
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not finished_points(tmp_path / "sweep.db"):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "points are kept in sweep.db; the same command goes on from there" in said


def test_points_say_what_they_are_bound_by(tmp_path: Path) -> None:
    out = hwsim("sweep", "course_cpu", "matmul_naive", "n=16", "vector=false,true", "--out", str(tmp_path / "s.db")).out
    table = out[: out.index("best ")]
    assert "bound by" in table and table.count("dependency chain") == 1


def test_a_sweep_says_how_many_of_its_points_were_never_compared() -> None:
    compared = {"time_s": 1.0, "time_low_s": 0.9, "time_high_s": 1.1, "energy_j": 2.0}
    alone = {"time_s": 1.0, "energy_j": None}

    def words(*metrics: dict[str, float | None], near: int = 0) -> str:
        rows = [SimpleNamespace(metrics=each) for each in metrics]
        return near_words(SimpleNamespace(done=rows, near_best=lambda _: range(near)))  # type: ignore[arg-type]

    assert words(alone, alone) == f"time: {NEVER_COMPARED}"
    assert words(alone, compared, alone) == f"time: 2 of 3: {NEVER_COMPARED}; energy: {NEVER_COMPARED}"
    both = {**compared, "energy_low_j": 1.0, "energy_high_j": 3.0}
    assert words(both, both) == ""
    assert words(both, both, near=2).startswith("≈ 2 of 2 times lie within the error bars of the best")


@pytest.mark.parametrize(
    ("gain", "bounds", "words"),
    [
        (2.5, ("l1", "l1"), "2.5 times better than the default schedule (time 3 µs); bound by l1"),
        (2.5, ("l1", "l2"), "2.5 times better than the default schedule (time 3 µs); bound by l1 before, by l2 after"),
        (1.0, ("l1", "l1"), "the default schedule (time 3 µs) is the best that was found; bound by l1"),
        (0.5, ("l1", "l1"), "the default schedule is better than all of these: time 3 µs; bound by l1"),
        (None, None, "there is no default to compare with: without these choices it does not run"),
    ],
)  # fmt: skip
def test_a_search_says_what_it_gained_and_what_decides_now(
    gain: float | None, bounds: tuple[str, str] | None, words: str
) -> None:
    search = SimpleNamespace(
        gain=gain, bounds=bounds, metric="time_s", values=(3e-6, 1e-6), baseline="the default schedule"
    )
    assert _gain(search) == words  # type: ignore[arg-type]


def test_a_sweep_on_one_machine_says_how_much_of_the_peak_each_point_reaches(tmp_path: Path) -> None:
    """The column is what `run` says of each point."""
    store = str(tmp_path / "s.db")
    swept = hwsim("sweep", "h100", "matmul", "n=256,1024", "precision=bf16", "--no-math", "-o", store).out
    lines = [line for line in swept.splitlines() if line.startswith(("n ", "256 ", "1024 "))]
    assert "of peak" in lines[0]
    for line in lines[1:]:
        size = line.split()[0]
        data = json.loads(hwsim("run", "h100", "matmul", f"n={size}", "precision=bf16", "--no-math", "--json", "-").out)
        share = data["work"]["flops_per_s"] / data["work"]["peak_flops_per_s"]
        assert f" {100 * share:.1f} %" in line


def test_a_metric_that_is_named_is_a_column(tmp_path: Path) -> None:
    words = ("sweep", "course_cpu,zen3", "matmul_tiled", "n=32", "tile=8", "--no-math", "-o", str(tmp_path / "s.db"))
    assert "of peak" not in hwsim(*words).out.partition("best ")[0].replace("\n", " ")
    named = hwsim(*words, "--metric", "cycles")
    assert named.code == 0, named.err
    assert "cycles" in named.out.partition("best ")[0]


def test_a_sweep_of_a_model_says_which_phase_bounds_it(tmp_path: Path) -> None:
    """With its prompts a step of 64 is bound by their arithmetic, alone by the weights that it reads."""
    store = ("--no-math", "-o", str(tmp_path / "s.db"))
    both = hwsim("sweep", "h100", "gpt2_xl", "prompt=1024", "generate=2", "batch=8,16", *store).out
    assert both.count("prefill: ") == 2
    steps = hwsim("sweep", "h100", "gpt2_xl", "prompt=128", "phase=decode", "batch=1,2", *store).out
    assert "prefill" not in steps and "decode: " not in steps
    assert steps.count("bandwidth of dram") == 2


def test_of_points_that_cost_the_same_the_first_is_shown() -> None:
    """Time and energy both; in the order of the front."""
    rows = made((1.0, 9.0), (2.0, 5.0), (1.0, 9.0), (2.0, None), (2.0, 5.0), (3.0, 9.0), (2.0, None), (1.0, 5.0))
    assert [row["n"] for row in _told_apart(rows)] == [0, 1, 3, 5, 7]


def test_a_search_compares_with_the_default_of_what_was_searched_and_keeps_what_was_given() -> None:
    """`vector=true` was not searched for: it is no gain of the search. The default tile is that of the workload."""
    fixed = ("course_cpu", "matmul_tiled", "n=64", "vector=true", "--no-math")
    plain = json.loads(hwsim("run", *fixed, "--json", "-").out)
    found = json.loads(hwsim("tune", *fixed, "tile=2,4", "--json", "-").out)
    assert found["default"] == plain["time_s"]
    assert "better than all of these" in hwsim("tune", *fixed, "tile=2,4").out
    screen = hwsim("tune", *fixed, "precision=int8", "tile=2,64").out
    assert "the default schedule with vector=true (time " in screen


def test_a_sweep_says_what_its_estimate_rests_on_and_mends_it_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Points differ: the first is no measure of all, and the rest is told from those that are done."""
    monkeypatch.setattr("hwsim.cli.arguments.TELL_EVERY_S", 0.0)
    words = ("sweep", "course_cpu", "matmul_naive", "n=16", "order=ijk,ikj,jki", "--no-math")
    told = hwsim(*words, "--out", str(tmp_path / "s.db"), "--executor", "inprocess").err
    assert "if no other takes longer than the first: " in told
    assert re.search(r"sweeping: 2 of 3, about \S+ m?s more", told)
