"""Section 13 of the mission: measure, compare, and the promises of a result: rows X1, X3, X6."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hwsim
from hwsim.errors import ShapeError
from hwsim.numerics.format import Array
from hwsim.program.loop_kernel import OperatorKernel
from tests.cli.command_line import hwsim as command
from tests.cli.command_line import hwsim_process
from tests.unit.kernels.helpers import kernel

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "workload", ["matmul_naive", "matmul_simd", "matmul_tiled", "matmul_packed", "matmul_parallel"]
)
def test_x1_every_version_is_checked_against_the_same_reference(workload: str) -> None:
    """X1: the same function; the error against NumPy in float64 is on the screen."""
    result = hwsim.run("course_cpu", workload, n=50)
    assert result.verified
    assert result.error is not None
    assert 0 < result.error.max_rel < 1e-5
    assert "verified: max rel err" in command("run", workload, "n=50").out


def test_x1_a_run_with_wrong_math_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: one element of the product is off by one."""
    right = OperatorKernel.answers

    def wrong(kernel: OperatorKernel) -> Iterator[tuple[str, Array, Array]]:
        for name, values, reference in right(kernel):
            yield name, values + np.eye(*values.shape, dtype=np.float32), reference

    monkeypatch.setattr(OperatorKernel, "answers", wrong)
    assert hwsim.run("course_cpu", "matmul_tiled", n=16).verified is False
    outcome = command("run", "matmul_tiled", "n=16")
    assert outcome.code == 1
    assert "wrong" in outcome.out + outcome.err


def test_x3_a_result_has_time_memory_and_utilisation() -> None:
    """X3: wall_time, memory_delta_mb and cpu_efficiency of the notes."""
    result = hwsim.run("course_cpu", "matmul_tiled", n=64)
    assert result.time_s == pytest.approx(result.cycles / 2e9, rel=1e-5)
    assert result.peak_memory_bytes == 3 * 64 * 64 * 4
    assert result.utilisation == pytest.approx(2 * 64**3 / result.time_s / 32e9)
    data = result.to_dict()
    assert {"time_s", "peak_memory_bytes", "cycles", "energy_j"} <= data.keys()


def test_x6_shapes_that_do_not_fit_raise_a_value_error_with_both_shapes() -> None:
    """X6."""
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(4, 5\)") as caught:
        kernel("matmul", {"m": 2, "k": 3, "n": 5}, inputs={"A": np.ones((2, 3)), "B": np.ones((4, 5))})
    assert isinstance(caught.value, ShapeError)


@pytest.mark.parametrize("workload", ["matmul_parallel", "pointer_chase"])
def test_done_when_5_two_processes_write_the_same_bytes(
    workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another hash seed too, which would show where the order of a set decides."""
    written = []
    for number in range(2):
        monkeypatch.setenv("PYTHONHASHSEED", str(number))
        file = tmp_path / f"{number}.json"
        sizes = ("n=40", "tile=8") if workload == "matmul_parallel" else ("steps=1000",)
        done = hwsim_process("run", "tinytorch_cpu", workload, *sizes, "--json", str(file))
        assert done.returncode == 0, done.stderr
        written.append(file.read_bytes())
    assert written[0] == written[1]


def test_done_when_5_random_replacement_is_the_same_every_time() -> None:
    random = {"l1.replacement": "random", "l2.replacement": "random"}
    runs = [hwsim.run("zen3", "matmul_tiled", n=48, tile=16, seed=7, set=random) for _ in range(2)]
    assert runs[0].to_json() == runs[1].to_json()
    assert "random" in runs[0].to_json()


def test_the_order_of_runs_does_not_matter() -> None:
    """A run on an array used to leave chains without their kernels for the rest of a session."""
    script = "import hwsim; hwsim.run('tpu_v1', 'matmul', n=16); print(hwsim.run('course_cpu', 'mlp', n=8).verified)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "True"
