"""Choices of a schedule as people type them: refused, listed, completed, swept, tuned, on every class of machines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hwsim.cli.arguments import complete_words, with_plot_name
from tests.cli.command_line import hwsim

CLASSES = {
    "course_cpu": "tile.l1.m",
    "a100_40": "tile.shared.m",
    "scalesim_32": "tile.ifmap.m",
    "gddr6_aim": "dataflow",
}


def test_a_choice_of_another_class_is_refused_with_the_list() -> None:
    outcome = hwsim("run", "a100_40", "matmul", "tile=8")
    assert outcome.code == 2
    assert "tile means nothing on a100_40; for matmul it reads tile.shared.m (16..256:x2)" in outcome.err
    assert "hwsim show matmul --on a100_40" in outcome.err


@pytest.mark.parametrize("machine", CLASSES)
def test_show_lists_what_a_machine_reads(machine: str) -> None:
    outcome = hwsim("show", "matmul", "--on", machine)
    assert outcome.code == 0 and f"choices of matmul on {machine}" in outcome.out
    listed = json.loads(hwsim("show", "matmul", "--on", machine, "--json").out)
    names = [name for knob in listed for name in (knob["name"], *knob["also"])]
    assert CLASSES[machine] in names
    assert all(knob["default"] for knob in listed)


def test_choices_are_told_in_a_few_lines_each_with_every_loop_and_name() -> None:
    """conv2d has eleven loops, each with a tile in three caches and in registers; once, this took 300 lines."""
    listed = json.loads(hwsim("show", "conv2d", "--on", "zen4", "--json").out)
    text = hwsim("show", "conv2d", "--on", "zen4").out
    words = [word.strip(".") for word in re.findall(r"[\w.]+", text)]
    for knob in listed:
        for name in (knob["name"], *knob["also"]):
            head, _, loop = name.rpartition(".")
            assert name in words or (f"{head}.LOOP" in words and loop in words), name
        assert {*re.findall(r"\w+", knob["meaning"])} <= {*re.findall(r"\w+", text)}
    assert len(text.splitlines()) < 45
    assert re.search(r"tile\.LOOP +h 4 +1 or more", text)


@pytest.mark.parametrize("machine", CLASSES)
def test_tune_is_never_behind_the_default_on_any_class(machine: str) -> None:
    outcome = hwsim("tune", machine, "matmul", "n=16", "--json", "-", "--budget", "12")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["gain"] >= 1 and found["simulated"] <= 12
    assert found["verified"] is True
    assert "combinations of" in outcome.err
    again = json.loads(hwsim(*found["command"].split()[1:], "--json", "-").out)
    assert again["time_s"] == pytest.approx(found["best"]["time_s"], rel=1e-12)


def test_tune_tells_the_gain_and_what_decided_the_time() -> None:
    outcome = hwsim("tune", "a100_40", "matmul", "n=256", "--no-math")
    assert outcome.code == 0, outcome.err
    assert "default schedule (time" in outcome.out and "bound by" in outcome.out


def test_tune_does_no_math_while_it_searches() -> None:
    """A product of 8192 would take minutes for every point."""
    found = json.loads(
        hwsim("tune", "a100_40", "matmul", "n=8192", "precision=fp16", "--budget", "4", "--json", "-").out
    )
    assert found["verified"] is None and found["simulated"] == 4


def test_a_sweep_over_a_tile_of_a_level_is_no_flat_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("a100_40", "matmul", "n=2048", "tile.shared.m=64..256:x2", "precision=fp16,int8", "--no-math")
    outcome = hwsim("sweep", *words, "--json", "-", "--plot")
    assert outcome.code == 0, outcome.err
    times = {(row["tile.shared.m"], row["precision"]): row["time_s"] for row in json.loads(outcome.out)}
    assert len(times) == 6
    for precision in ("fp16", "int8"):
        assert len({time for (_, each), time in times.items() if each == precision}) > 1
    assert (tmp_path / "matmul_a100_40.png").is_file()
    refused = hwsim("sweep", "a100_40", "matmul", "n=64", "tile=8,16", "--no-math")
    assert refused.code == 2 and "tile means nothing on a100_40" in refused.err


def test_a_ladder_on_a_gpu_climbs_its_own_rungs() -> None:
    rows = json.loads(hwsim("ladder", "matmul", "a100_40", "n=256", "--json", "-").out)
    steps = [row["step"] for row in rows]
    assert steps[:3] == ["naive", "coalesced", "shared"] and "library" in steps
    assert len({row["time_s"] for row in rows}) == len(rows)


def test_compare_leaves_out_what_only_other_machines_read() -> None:
    outcome = hwsim("compare", "course_cpu,a100_40", "matmul", "n=32", "tile=16")
    assert outcome.code == 0 and "tile means nothing on a100_40: left out there" in outcome.err


@pytest.mark.parametrize(
    ("given", "begun", "offered"),
    [
        ([], "a100_4", "a100_40"),
        (["a100_40"], "matmul_t", "matmul_tiled"),
        (["a100_40", "matmul"], "tile.shared.", "tile.shared.m="),
        (["a100_40", "matmul"], "tile.shared.m=", "tile.shared.m=128"),
        (["course_cpu", "matmul"], "tile.l1.", "tile.l1.k="),
        (["tpu_v1", "matmul", "n=64"], "tile.u", "tile.unified_buffer.m="),
        (["tpu_v1", "matmul"], "order=m", "order=mnk"),
        (["a100_40", "matmul"], "prec", "precision="),
    ],
)
def test_the_shell_offers_what_means_something(given: list[str], begun: str, offered: str) -> None:
    assert offered in complete_words(given, begun)


def test_the_shell_offers_nothing_that_would_be_refused() -> None:
    assert not any(word.startswith(("tile=", "v1=")) for word in complete_words(["a100_40", "matmul"], ""))
    assert complete_words(["a100_40", "no_such_workload"], "n") == []


def test_a_bare_plot_is_called_after_what_it_shows() -> None:
    assert with_plot_name(["sweep", "a100_40", "matmul", "n=1,2", "--plot"])[-1] == "matmul_a100_40.png"
    assert with_plot_name(["sweep", "a,b", "matmul", "--plot", "--no-math"])[-2] == "matmul_a_b.png"
    assert with_plot_name(["run", "--plot", "x.png"]) == ["run", "--plot", "x.png"]
    assert with_plot_name(["ladder", "--plot"])[-1] == "ladder.png"


def test_the_default_of_a_search_in_data_is_the_time_of_the_run_that_nobody_tuned() -> None:
    found = json.loads(hwsim("tune", "course_cpu", "matmul_tiled", "n=16", "tile=4,8", "--json", "-").out)
    default = json.loads(hwsim("run", "course_cpu", "matmul_tiled", "n=16", "--json", "-").out)
    assert found["default"] == default["time_s"]
    assert found["gain"] == pytest.approx(found["default"] / found["best"]["time_s"]) != 1
