"""`hwsim run`: the first screen, JSON, timeline, plot, and what happens when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import hwsim

from hwsim.result import RunResult


@pytest.fixture(autouse=True)
def _own_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwsim.cli.run.last_run_files", lambda: [tmp_path / "cache" / "last-run.json"])


def test_run_alone_works_and_its_screen_has_the_key_facts() -> None:
    outcome = hwsim("run")
    assert (outcome.code, outcome.err) == (0, "")
    for fact in (
        "matmul_tiled on course_cpu: n=256 order=ijk tile=32 fp32, 1 of 4 cores",
        "✓ verified: max rel err",
        "GFLOP/s",
        "of the peak of 1 core (32 GFLOP/s)",
        "energy",
        "hit rate",
        "flop/byte",
        "why: cycles of 1 core",
        "Bound by",
        "if all parts overlapped",
        "2n³/(L·b) + n²/L",
        "5,041,152 lines",
        "set conflicts",
        "next  hwsim run course_cpu matmul_tiled",
    ):
        assert fact in outcome.out, fact
    lines = outcome.out.splitlines()
    assert len(lines) <= 49  # Rich 13 wraps one line more
    assert max(len(line.rstrip()) for line in lines) <= 100


def test_json_to_stdout_is_json_alone_and_equal_each_time() -> None:
    first, second = (hwsim("run", "n=32", "tile=8", "--json", "-") for _ in range(2))
    assert first.code == 0
    assert first.out == second.out
    data = json.loads(first.out)
    assert (data["machine"], data["workload"], data["verified"]) == ("course_cpu", "matmul_tiled", True)
    assert data["resolved"]["workload"]["sizes"]["n"] == 32


def test_json_to_a_file_comes_beside_the_screen(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    outcome = hwsim("run", "add", "n=1000", "--json", str(target))
    assert "add on course_cpu" in outcome.out
    assert RunResult.from_json(target.read_text()).workload == "add"


@pytest.mark.parametrize(
    ("words", "machine", "workload"),
    [
        (("course_cpu", "n=16"), "course_cpu", "matmul_tiled"),
        (("add", "n=16"), "course_cpu", "add"),
        (("n=16", "zen3", "add"), "zen3", "add"),
    ],
)
def test_machine_and_workload_may_be_left_out(words: tuple[str, ...], machine: str, workload: str) -> None:
    data = json.loads(hwsim("run", *words, "--json", "-").out)
    assert (data["machine"], data["workload"]) == (machine, workload)


def test_set_changes_the_machine_and_the_next_command_keeps_it() -> None:
    outcome = hwsim("run", "n=64", "--set", "l1.size=inf")
    assert "--set l1.size=inf" in outcome.out
    data = json.loads(hwsim("run", "n=64", "--set", "l1.size=inf", "--json", "-").out)
    assert data["memory"]["l1"]["read_misses"] + data["memory"]["l1"]["write_misses"] == 3 * 64 * 64 // 16


def test_the_next_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    line = next(line for line in hwsim("run", "matmul_naive", "n=64").out.splitlines() if line.startswith("next"))
    words = shlex.split(line.removeprefix("next"))
    assert words[:2] == ["hwsim", "run"]
    assert hwsim(*words[1:]).code == 0


def test_a_tile_larger_than_the_sizes_is_said_to_be_cut() -> None:
    """A tile of 128 in a product of 64 is one of 64: said once for all three loops, and beside what was asked."""
    cut = " ".join(hwsim("run", "n=64", "tile=128").out.split())
    assert "tile=128 is cut to 64, and a tile covers all 64 iterations of i, j and k: there is nothing to cut" in cut
    whole = " ".join(hwsim("run", "n=64", "tile=64").out.split())
    assert "is cut" not in whole
    assert whole.count("there is nothing to cut") == 1


def test_without_math_the_screen_says_so() -> None:
    outcome = hwsim("run", "n=64", "--no-math")
    assert outcome.code == 0
    assert "not verified: ran without math" in outcome.out


def test_a_wrong_answer_ends_with_1_and_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from hwsim.program.loop_kernel import OperatorKernel

    right = OperatorKernel.answers
    off = np.float32(1e-3)
    monkeypatch.setattr(OperatorKernel, "answers", lambda self: [(name, c + off, ref) for name, c, ref in right(self)])
    outcome = hwsim("run", "n=32")
    assert outcome.code == 1
    assert "WRONG ANSWER" in outcome.out
    assert "error: matmul_tiled: the answer is wrong" in outcome.err
    quiet = hwsim("run", "n=32", "--json", "-")
    assert (quiet.code, json.loads(quiet.out)["verified"]) == (1, False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("n=abc",), "n=abc: must be a whole number"),
        (("tyle=32",), "did you mean 'tile'?"),
        (("n=",), "write a parameter as key=value"),
        (("n=1", "n=2"), "n is given twice"),
        (("course_cpv", "add"), "did you mean 'course_cpu'?"),
        (("matmul_tild",), "did you mean 'matmul_tiled'?"),
        (("a", "b", "c"), "'c': only a machine and a workload are expected"),
        (("l1.size=64 KiB",), "this belongs to the machine; write --set 'l1.size=64 KiB'"),
        (("--set", "l1.sise=3"), "did you mean 'l1.size'?"),
        (("matmul_parallel", "cores=9"), "cores=9: course_cpu has 4"),
        (("seed=1", "--seed", "2"), "give the seed once"),
        (("--plot", "x.bmp"), "a plot is one of"),
        (("--json", "no/such/folder.json"), "there is no folder"),
        (("--timeline", "."), "this is a folder"),
    ],
)
def test_wrong_input_ends_with_2_before_anything_runs(words: tuple[str, ...], says: str) -> None:
    outcome = hwsim("run", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err


def test_a_workload_that_does_not_fit_memory_is_refused() -> None:
    outcome = hwsim("run", "n=64", "--set", "dram.size=16 KiB")
    assert outcome.code == 2
    assert "matmul_tiled needs 48 KiB in dram, which has 16 KiB" in outcome.err


def test_timeline_and_plot_are_written(tmp_path: Path) -> None:
    timeline, plot = tmp_path / "t.json", tmp_path / "p.png"
    assert hwsim("run", "n=64", "--timeline", str(timeline), "--plot", str(plot)).code == 0
    lanes = {e["args"]["name"] for e in json.loads(timeline.read_text())["traceEvents"] if e["name"] == "thread_name"}
    assert "core[0]" in lanes
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hwsim.api.simulate", stop)
    outcome = hwsim("run", "n=32")
    assert outcome.code == 130
    assert "Traceback" not in outcome.err


def test_a_machine_and_a_workload_in_the_wrong_order_are_told_apart() -> None:
    outcome = hwsim("run", "matmul_tiled", "course_cpu")
    assert outcome.code == 2
    assert "'matmul_tiled' is a workload, and a machine is needed here" in outcome.err


def test_tensors_that_do_not_fit_this_computer_are_an_error_that_says_what_to_do() -> None:
    outcome = hwsim("run", "n=900000000")
    assert outcome.code == 2
    assert "--no-math" in outcome.err
    assert "Traceback" not in outcome.err


def test_cores_without_a_parallel_loop_are_warned_about() -> None:
    outcome = hwsim("run", "n=16", "cores=2")
    assert "cores has no effect without parallel=rows" in " ".join(outcome.out.split())


def test_no_run_that_misses_dram_is_shorter_than_its_latency() -> None:
    outcome = hwsim("run", "n=1", "--json", "-")
    assert json.loads(outcome.out)["time_s"] >= 200e-9


def test_idle_cores_are_explained_by_what_was_asked_for() -> None:
    shared = "course_cpu", "matmul_tiled", "n=128", "parallel=rows", "vector=true", "v1=4", "v2=16", "ld=144"
    one = " ".join(hwsim("run", *shared, "tile=128").out.split())
    assert "only 1 share for 4 cores" in one and "Smaller tiles would leave rows for the 3 cores that stay idle" in one
    assert "more could share the work" not in one
    four = " ".join(hwsim("run", *shared, "tile=32").out.split())
    assert "idle" not in four and "4 cores" in four
