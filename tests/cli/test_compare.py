"""`hwsim compare`, `ladder`, `roofline`, `show --diagram`, `tune`, `report` as people type them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from hwsim.cli.compare import _size
from hwsim.sweep.compare import LADDERS
from tests.cli.command_line import hwsim


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hwsim.cli.run.last_run_files", lambda: [tmp_path / "last-run.json"])


def test_compare_prints_speed_ups_against_the_first() -> None:
    done = hwsim("compare", "course_cpu", "matmul_naive,matmul_simd", "n=16", "--plot", "c.png", "--json", "c.json")
    assert done.code == 0, done.err
    rows = json.loads(Path("c.json").read_text())
    assert rows[0]["speed_up"] == 1
    assert rows[1]["speed_up"] == pytest.approx(rows[0]["time_s"] / rows[1]["time_s"])
    for word in ("speed-up", "energy", "traffic", "memory", "error", "of peak", "bound by"):
        assert word in done.out
    assert Path("c.png").stat().st_size > 5000


def test_compare_takes_several_values_of_a_parameter() -> None:
    rows = json.loads(hwsim("compare", "course_cpu", "matmul_tiled", "n=16", "tile=4,8", "--json", "-").out)
    assert [row["tile"] for row in rows] == ["4", "8"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compare", "course_cpu", "matmul_naiv"), "did you mean 'matmul_naive'"),
        (("compare", "course_cpu", "add", "n=1..100"), "use hwsim sweep"),
        (("compare", "course_cpu", "add,matmul_tiled", "tile=8"), "add has no such parameter"),
        (("ladder", "matmull"), "there is no ladder 'matmull'; did you mean 'matmul'"),
        (("roofline", "n=4"), "give a machine first"),
        (("roofline", "nonsense"), "there is no machine 'nonsense'"),
        (("tune", "course_cpu", "pointer_chase"), "say what to search"),
        (("tune", "course_cpu,zen3", "matmul"), "one machine and one workload"),
        (("tune", "course_cpu", "matmul_tiled", "tile=4,8", "--budget", "soon"), "give seconds (60s)"),
        (("tune", "course_cpu", "matmul_tiled", "n=16", "tile=4,8", "--for", "tim"), "did you mean 'time_s'"),
        (("report", "none.json"), "there is no file none.json"),
        (("report", "none.db"), "there is no file none.db"),
        (("show", "add", "--diagram"), "only a machine can be drawn"),
    ],
)
def test_bad_input_is_said_and_ends_with_2(words: tuple[str, ...], message: str) -> None:
    done = hwsim(*words)
    assert done.code == 2, done.out
    assert message in done.err
    assert "Traceback" not in done.err


def test_ladders_are_listed_and_climbed() -> None:
    listed = hwsim("ladder").out
    assert all(f"hwsim ladder {name}" in listed for name in LADDERS)
    done = hwsim("ladder", "matmul", "n=16", "--plot", "l.svg", "--json", "l.json")
    assert done.code == 0, done.err
    steps = [row["step"] for row in json.loads(Path("l.json").read_text())]
    assert steps == ["naive", "vectorised", "tiled", "parallel"]
    assert Path("l.svg").read_text().startswith("<?xml")


def test_a_ladder_on_several_machines_is_a_table_of_steps() -> None:
    done = hwsim("ladder", "fusion", "course_cpu,zen3", "n=1024", "--plot", "f.png")
    assert done.code == 0, done.err
    rows = [line for line in done.out.splitlines() if line.startswith("one pass") and "×" in line]
    assert len(rows) == 2
    assert Path("f.png").stat().st_size > 5000


def test_a_roofline_has_a_roof_per_level_and_a_ceiling_per_format() -> None:
    done = hwsim("roofline", "course_cpu", "add", "matmul_simd", "n=32", "--plot", "r.pdf", "--json", "r.json")
    assert done.code == 0, done.err
    data = json.loads(Path("r.json").read_text())
    assert set(data["roofs"]) == {"l1", "l2", "dram"}
    assert {"fp64", "fp32", "bf16", "int8"} <= set(data["ceilings"])
    assert {spot["name"] for spot in data["spots"]} == {"add", "matmul_simd"}
    assert Path("r.pdf").read_bytes().startswith(b"%PDF")


def test_a_machine_is_drawn_with_all_its_parts() -> None:
    done = hwsim("show", "zen3", "--diagram", "--plot", "d.svg")
    assert done.code == 0
    for part in ("core ×8", "l1 ×8", "l3", "dram", "shared by all"):
        assert part in done.out
    assert Path("d.svg").exists()


def test_tune_prints_the_command_that_runs_the_winner() -> None:
    done = hwsim(
        "tune", "course_cpu", "matmul_tiled", "n=32", "tile=4..32:x2", "precision=fp32,int8", "--for", "energy"
    )
    assert done.code == 0, done.err
    command = next(line.strip() for line in done.out.splitlines() if line.strip().startswith("hwsim run"))
    again = hwsim(*command.split()[1:], "--json", "-")
    data = json.loads(again.out)
    told = json.loads(
        hwsim("tune", "course_cpu", "matmul_tiled", "n=32", "tile=4..32:x2", "precision=fp32,int8",
              "--for", "energy", "--json", "-").out
    )  # fmt: skip
    assert data["energy_j"] == told["best"]["energy_j"]


def test_a_report_needs_nothing_from_outside() -> None:
    hwsim("sweep", "course_cpu", "matmul_tiled", "n=16", "tile=4,8", "precision=fp32,int8")
    assert hwsim("report", "sweep.db", "-o", "s.html", "--title", "Tiles <b>").code == 0
    hwsim("run", "course_cpu", "matmul_tiled", "n=16", "tile=4", "--json", "r.json")
    assert hwsim("report", "r.json", "-o", "r.html").code == 0
    assert hwsim("report", "-o", "last.html").code == 0
    for name in ("s.html", "r.html", "last.html"):
        text = Path(name).read_text()
        outside = [word for word in ("http://", "https://", "src=", "@import", "url(") if word in text]
        assert [word for word in outside if word not in ("http://", "url(")] == []
        assert text.replace("http://www.w3.org/2000/svg", "").count("http://") == 0
    assert "<title>Tiles &lt;b&gt;</title>" in Path("s.html").read_text()
    assert "Inputs and sources" in Path("r.html").read_text()


def test_a_timeline_and_the_sets_are_drawn_where_the_file_is_a_picture() -> None:
    words = ("run", "course_cpu", "matmul_tiled", "n=32", "tile=8")
    assert hwsim(*words, "--timeline", "t.png").code == 0
    assert hwsim(*words, "--timeline", "t.json").code == 0
    assert Path("t.png").read_bytes().startswith(b"\x89PNG")
    assert Path("t.json").read_text().startswith("{")
    assert hwsim("explain", "--plot", "sets.svg").code == 0
    assert Path("sets.svg").exists()


def test_a_comparison_says_the_sizes_once_where_they_are_the_same() -> None:
    same = hwsim("compare", "zen3,a100_40", "matmul", "n=64", "k=32", "--no-math").out
    assert same.splitlines()[0].startswith("all rows: matmul")
    assert "n=64 k=32" in same.splitlines()[0]
    unlike = hwsim("compare", "zen3", "matmul,add", "--no-math").out
    assert re.search(r"^matmul +n=256 ", unlike, re.MULTILINE)
    assert re.search(r"^add +n=65536 ", unlike, re.MULTILINE)
    swept = hwsim("compare", "zen3", "matmul", "n=32,64", "--no-math").out
    assert not re.search(r"\bn=\d", swept)


def test_of_a_model_the_lengths_are_sizes_where_there_are_tokens() -> None:
    """One that generates has two, one that only reads has one, an image has none."""
    about = {"prompt": 512, "generate": 8, "batch": 2}
    for metrics, generate, said in (
        (("tokens_per_s",), 8, "prompt=512 generate=8 batch=2"),
        (("tokens_per_s",), None, "prompt=512 batch=2"),
        (("inputs_per_s",), 8, "batch=2"),
    ):
        model = {**about, "generate": generate, "metrics": dict.fromkeys(metrics, 1.0)}
        made = SimpleNamespace(
            resolved=SimpleNamespace(workload={"sizes": {"layers": 4}}), work=SimpleNamespace(use={"model": model})
        )
        assert _size(made, ()) == said  # type: ignore[arg-type]
        assert _size(made, ("batch",)) == (said.replace("batch=2", "").strip() or "–")  # type: ignore[arg-type]


def test_of_many_sizes_those_that_are_one_are_left_out() -> None:
    """Of up to four all are said, as far as they are known and no column of their own."""
    few = {"m": 1, "n": 8, "k": None, "batch": 1}
    many = {**few, "groups": 2}
    for sizes, heads, said in (
        (few, (), "m=1 n=8 batch=1"), (many, (), "n=8 groups=2"), (many, ("n",), "groups=2"), ({"n": 4}, ("n",), "–"),
    ):  # fmt: skip
        made = SimpleNamespace(resolved=SimpleNamespace(workload={"sizes": sizes}), work=SimpleNamespace(use={}))
        assert _size(made, heads) == said  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("machines", "workloads", "named", "title"),
    [
        ("course_cpu", "matmul_naive,matmul_simd", [("matmul_naive", "course_cpu"), ("matmul_simd", "course_cpu")],
         "on course_cpu"),
        ("course_cpu,zen3", "matmul_naive", [("course_cpu", "matmul_naive"), ("zen3", "matmul_naive")], ""),
    ],
)  # fmt: skip
def test_bars_of_a_comparison_are_grouped_by_machine_where_there_are_several(
    monkeypatch: pytest.MonkeyPatch, machines: str, workloads: str, named: list[tuple[str, str]], title: str
) -> None:
    drawn: list[object] = []
    monkeypatch.setattr("hwsim.results.plot.compare.plot_compare", lambda *given: drawn.extend(given))
    assert hwsim("compare", machines, workloads, "n=8", "--no-math", "--plot", "c.png").code == 0
    entries, path, told = drawn
    assert [(each.group, each.name) for each in entries] == named  # type: ignore[attr-defined]
    assert (path, told) == (Path("c.png"), title)
    assert all(each.baseline is entries[0].result for each in entries[1:])  # type: ignore[attr-defined,index]
