"""`hwsim explain`: the longer version, from the last run or from a file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from command_line import hwsim

from hwsim.cli.run import _ago, _duration


@pytest.fixture(autouse=True)
def _own_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwsim.cli.run.last_run_files", lambda: [tmp_path / "cache" / "last-run.json"])


def test_without_a_last_run_it_says_what_to_do() -> None:
    outcome = hwsim("explain")
    assert (outcome.code, outcome.out) == (2, "")
    assert "there is no last run to explain; try: hwsim run" in outcome.err


def explained(*words: str) -> tuple[str, str]:
    """Which run is explained, and its title."""
    first, second = hwsim("explain", *words).out.splitlines()[:2]
    return first, second


def test_of_several_folders_and_terminals_the_own_last_run_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = 1
    monkeypatch.setattr("os.getsid", lambda _: session)
    here, there, nowhere = (tmp_path / name for name in ("here", "there", "nowhere"))
    for folder in (here, there, nowhere):
        folder.mkdir()
    monkeypatch.chdir(here)
    hwsim("run", "course_cpu", "copy", "n=64")
    monkeypatch.chdir(there)
    hwsim("run", "course_cpu", "matmul_naive", "n=8")
    session = 2
    hwsim("run", "course_cpu", "softmax", "n=8")
    assert explained()[0] == "the last run, just now" and "softmax" in explained()[1]
    session = 1
    assert explained()[0] == "the last run, just now" and "matmul_naive" in explained()[1]
    monkeypatch.chdir(here)
    assert "copy" in explained()[1]
    session = 3
    assert explained()[0] == "the last run in this folder, from another terminal, just now"
    assert "copy" in explained()[1]
    monkeypatch.chdir(nowhere)
    assert explained()[0] == "the last run, from another folder, just now" and "softmax" in explained()[1]
    kept = tmp_path / "cache" / "last-run.json"
    os.utime(kept, (time.time() - 7300, time.time() - 7300))
    assert explained()[0] == "the last run, from another folder, 2 hours ago"


def test_after_a_sweep_it_says_that_it_is_about_the_run_before_and_how_to_explain_a_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = ("sweep", "course_cpu", "matmul_tiled", "n=16", "tile=4,8", "--no-math")
    hwsim(*sweep)
    best = "hwsim run course_cpu matmul_tiled n=16 tile=8"
    assert f"try: {best} (the best of the last hwsim sweep)" in hwsim("explain").err
    hwsim("run", "course_cpu", "copy", "n=64", "--no-math")
    assert explained()[0] == "the last run, just now"
    hwsim(*sweep)
    shown = hwsim("explain").out.splitlines()
    assert shown[0].startswith("the last run, just now: from before the last hwsim sweep")
    assert shown[1] == f"its points are explained one by one; for the best: {best}" and "copy" in shown[2]
    hwsim(*best.split()[1:])
    assert explained()[0] == "the last run, just now" and "matmul_tiled" in explained()[1]


def test_the_energy_table_says_what_it_counts() -> None:
    """A multiply-add is counted each time, a load by its bits: 16³ of one, and at least 32 bits for each operand."""
    hwsim("run", "course_cpu", "matmul_naive", "n=16", "--no-math")
    text = hwsim("explain").out
    assert " 4,096 times " in next(line for line in text.splitlines() if "core.fma.fp32" in line)
    loaded = next(line for line in text.splitlines() if " l1.read " in line).split()
    bits = int(loaded[loaded.index("bits") - 1].replace(",", ""))
    assert bits >= 2 * 16**3 * 32


@pytest.mark.parametrize(
    ("passed_s", "words"),
    [
        (0, "just now"), (59.9, "just now"), (60, "1 minute ago"), (119, "1 minute ago"), (120, "2 minutes ago"),
        (3599, "59 minutes ago"), (3600, "1 hour ago"), (86_399, "23 hours ago"), (86_400, "1 day ago"),
        (3 * 86_400, "3 days ago"),
    ],
)  # fmt: skip
def test_how_long_ago_a_run_was_is_told_in_the_largest_unit_that_fits(passed_s: float, words: str) -> None:
    assert _ago(passed_s) == words


def test_not_more_than_a_few_last_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        hwsim("run", "course_cpu", "copy", "n=64", "--no-math")
    assert len(list((tmp_path / "cache" / "runs").iterdir())) == 16
    assert explained()[0] == "the last run, just now"


def test_on_a_gpu_the_plot_has_the_blocks(tmp_path: Path) -> None:
    hwsim("run", "a100_40", "matmul", "n=1024", "precision=fp16", "--no-math")
    assert hwsim("explain", "--plot", str(tmp_path / "blocks.svg")).code == 0
    picture = (tmp_path / "blocks.svg").read_text()
    assert "blocks of each launch on 108 sm" in picture
    assert "40 blocks" in picture and "88 blocks" in picture, "128 tiles: 20 SMs have two, 88 have one"


def test_the_last_run_is_explained_with_its_set_conflicts() -> None:
    """256³ with tile 32: set conflicts, which sets, and that padding helps."""
    assert hwsim("run").code == 0
    out = " ".join(hwsim("explain").out.split())
    for fact in (
        "5,041,152 misses",
        "99.0 % of these are set conflicts",
        "Rows of B are 1,024 B apart",
        "4 of 64 sets (0, 16, 32, 48)",
        "Padding helps",
        "ld=272",
        "uses per load",
        "dram 200 ns 400 28.6× 400×",
        "Predicted and simulated",
        "core.instruction",
        "per element accessed",
    ):
        assert fact in out, fact


def test_a_padded_run_has_no_conflicts(tmp_path: Path) -> None:
    file = tmp_path / "padded.json"
    assert hwsim("run", "ld=272", "--json", str(file)).code == 0
    out = " ".join(hwsim("explain", str(file)).out.split())
    assert "69,632 misses" in out
    assert "Hardly any are set conflicts" in out


def test_uneven_sets_get_a_histogram() -> None:
    """One column of 512 rows of 2,048 B falls into two of 64 sets."""
    hwsim("run", "sum_columns", "n=16", "m=512", "ld=512")
    out = hwsim("explain").out
    assert "for 8 ways" in out
    assert "█" in out


def test_cores_that_differ_are_shown_one_by_one() -> None:
    """80 rows in tiles of 32 make three shares, the last of them smaller."""
    hwsim("run", "matmul_parallel", "n=80")
    out = hwsim("explain").out
    assert "vector=true" in out
    assert "core[2]" in out


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    outcome = hwsim("explain", str(file))
    assert outcome.code == 2
    assert "not the result of a run" in outcome.err
    missing = hwsim("explain", str(tmp_path / "none.json"))
    assert (missing.code, missing.err.strip()) == (2, f"error: there is no file {tmp_path / 'none.json'}")


def test_lines_fit_a_hundred_columns() -> None:
    hwsim("run", "n=64")
    assert max(len(line.rstrip()) for line in hwsim("explain").out.splitlines()) <= 100


def test_the_explanation_is_available_as_json() -> None:
    assert hwsim("run", "n=64").code == 0
    outcome = hwsim("explain", "--json")
    data = json.loads(outcome.out)
    assert outcome.code == 0
    assert data["workload"] == "matmul_tiled"
    sets = data["explanation"]["sets"]
    assert sum(sets["misses"]) == sets["cold"] + sets["capacity"] + sets["conflict"]
    assert data["explanation"]["bound"]["words"].startswith("Bound by")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(59, "59 seconds"), (119, "119 seconds"), (121, "2 minutes"), (150, "2 minutes"), (7100, "118 minutes"),
     (7300, "2 hours")],
)  # fmt: skip
def test_how_long_the_arithmetic_takes_is_said_in_the_unit_that_people_use(seconds: float, words: str) -> None:
    assert _duration(seconds) == words


def test_the_plot_of_a_run_with_caches_shows_the_misses_of_each_set(tmp_path: Path) -> None:
    hwsim("run", "course_cpu", "matmul_tiled", "n=64", "--no-math")
    assert hwsim("explain", "--plot", str(tmp_path / "sets.svg")).code == 0
    picture = (tmp_path / "sets.svg").read_text()
    assert "set" in picture
    assert "blocks of each launch" not in picture
