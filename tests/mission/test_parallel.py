"""Section 6 of the mission: several cores, rows P1 to P6."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hwsim
from hwsim import RunResult

ROOT = Path(__file__).resolve().parents[2]


def speed_up(workload: str, cores: int = 4, machine: str = "course_cpu", **more: object) -> float:
    """How much faster it is on so many cores than on one."""
    alone, together = (hwsim.run(machine, workload, cores=count, math=False, **more) for count in (1, cores))
    assert together.work["cores"] == cores
    return alone.time_s / together.time_s


def busy(result: RunResult) -> list[int]:
    return [sum(parts["busy"].values()) for parts in result.attribution.values()]


def test_p1_a_vectorised_loop_is_shared_out() -> None:
    """P1: 64 vectors of four over four cores; each adds 16 of them, and all 256 elements are right."""
    result = hwsim.run("course_cpu", "add", n=256, parallel="rows", cores=4, set={"core.simd.bits": 128})
    assert result.verified
    assert busy(result) == [16] * 4


def test_p2_four_cores_take_two_rows_each() -> None:
    """P2: 8x8 on 4 cores; two rows are 2*8*8 = 128 multiply-adds."""
    result = hwsim.run("course_cpu", "matmul_naive", n=8, parallel="rows", cores=4)
    assert result.verified
    assert busy(result) == [128] * 4


def test_p2_rows_that_do_not_divide_are_spread() -> None:
    """10 rows on 4 cores: 3, 3, 2 and 2; the others wait for the slowest."""
    result = hwsim.run("course_cpu", "matmul_naive", n=10, parallel="rows", cores=4)
    assert busy(result) == [300, 300, 200, 200]
    assert result.attribution["core[3]"]["waiting"]["barrier"] > result.attribution["core[0]"]["waiting"]["barrier"]


@pytest.mark.parametrize(
    ("workload", "more"), [("matmul_parallel", {"n": 256}), ("matmul_naive", {"n": 128, "parallel": "rows"})]
)
def test_p3_four_cores_are_almost_four_times_faster_where_arithmetic_is_the_limit(
    workload: str, more: dict[str, object]
) -> None:
    """P3, and at least 3.6 for matmul_parallel."""
    assert 3.6 <= speed_up(workload, **more) <= 4.0


@pytest.mark.parametrize("n", [2**16, 2**18])
def test_p3_four_cores_hardly_help_where_dram_is_the_limit(n: int) -> None:
    """P3: elementwise addition; one core already draws 20 of the 25.6 GB/s."""
    assert speed_up("add", n=n, parallel="rows") <= 1.5


def test_p3_the_curve_bends_where_a_shared_cache_saturates() -> None:
    """P3: one core draws 32 of the 64 bytes per cycle of L3, two draw all, and more add nothing."""
    curve = [
        speed_up("stream_read", cores, "tinytorch_cpu", bytes="2 MiB", passes=100, parallel="rows")
        for cores in (2, 3, 4)
    ]
    assert curve[0] == pytest.approx(2, rel=0.1)
    assert curve[1:] == pytest.approx([curve[0]] * 2, rel=0.05)


def test_p4_small_matrices_are_slower_on_four_cores_and_large_ones_faster() -> None:
    """P4: starting cores and gathering them takes 6 µs; the notes put the crossover at about 20 rows."""
    curve = {n: speed_up("matmul_naive", n=n, parallel="rows") for n in (8, 16, 20, 24, 32, 64)}
    assert curve[8] < curve[16] < 1 < curve[32] < curve[64]
    assert list(curve.values()) == sorted(curve.values())


def test_p4_without_the_cost_of_starting_there_is_no_crossover() -> None:
    assert speed_up("matmul_naive", n=8, parallel="rows", set={"core.spawn": "0 us", "core.barrier": "0 us"}) > 1.5


@pytest.mark.parametrize("cores", [2, 4])
@pytest.mark.parametrize("split", ["static", "dynamic"])
def test_p5_the_answer_does_not_depend_on_the_cores(cores: int, split: str) -> None:
    """P5: (24x16)@(16x20)."""
    shape = {"m": 24, "k": 16, "n": 20, "tile": 4, "precision": "fp64"}
    result = hwsim.run("course_cpu", "matmul_parallel", cores=cores, split=split, **shape)
    alone = hwsim.run("course_cpu", "matmul_parallel", cores=1, **shape)
    assert result.work["cores"] == cores
    assert result.verified
    np.testing.assert_allclose(result.output, alone.output, rtol=1e-15)


def test_p6_private_caches_are_per_core_and_a_shared_one_is_common() -> None:
    """P6: four cores read the same B. Each fetches it into its own L2; L3 fetches it from DRAM once."""
    alone, together = (
        hwsim.run("tinytorch_cpu", "matmul_parallel", n=128, cores=cores, math=False) for cores in (1, 4)
    )
    lines = 128 * 128 // 16
    assert together.tensors["B"]["misses"]["l2"] == 4 * lines == 4 * alone.tensors["B"]["misses"]["l2"]
    assert together.tensors["B"]["misses"]["l3"] == alone.tensors["B"]["misses"]["l3"] == lines
    assert together.memory["dram"].bytes_read == alone.memory["dram"].bytes_read == 3 * lines * 64


def test_p6_the_table_of_the_example_shows_the_knee() -> None:
    """Linear, bent by starting cores, bent by a shared cache, flat."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "scaling.py"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    rows = {line[:24].strip(): [float(word) for word in line[24:52].split()] for line in done.stdout.splitlines()[1:]}
    assert rows["matmul, n = 192"][3] >= 3.6
    assert rows["matmul, n = 24"][1] < 1
    assert rows["reading 3 MiB in L3"][1:] == pytest.approx([2, 2, 2], rel=0.1)
    assert max(rows["add, n = 2^20"]) <= 1.5
