"""Section 2 of the mission: arithmetic intensity and fusion, rows A1 to A5 and A7."""

from __future__ import annotations

from typing import Any

import pytest

import hwsim
from hwsim import RunResult
from tests.cli.command_line import hwsim as command

SCALAR = {"vector": False}


def dram_bytes(result: RunResult) -> int:
    return result.memory["dram"].bytes_read + result.memory["dram"].bytes_written


def speed_up(n: int, **more: Any) -> float:
    """How much faster E = D + (A + B) * C runs in one pass than in three."""
    unfused, fused = (hwsim.run("course_cpu", name, n=n, math=False, **more) for name in ("unfused", "fused"))
    return unfused.time_s / fused.time_s


def test_a1_every_result_has_the_intensity_of_every_level() -> None:
    """A1: operations over bytes, at each level."""
    result = hwsim.run("tinytorch_cpu", "matmul_tiled", n=48, tile=16)
    assert list(result.intensity["levels"]) == ["l1", "l2", "l3", "dram"]
    for name, counts in result.memory.items():
        moved = counts.bytes_read + counts.bytes_written
        assert result.intensity["levels"][name] == pytest.approx(2 * 48**3 / moved)


@pytest.mark.parametrize("workload", ["add", "mul"])
def test_a2_a3_an_elementwise_operation_makes_three_accesses(workload: str) -> None:
    """A2, A3: 2n loads, n stores, n operations: 1/3 per element accessed, 1/12 per byte in fp32."""
    result = hwsim.run("course_cpu", workload, n=1000, **SCALAR)
    assert (result.work["loads"], result.work["stores"], result.work["flops"]) == (2000, 1000, 1000)
    assert result.intensity["element"] == pytest.approx(1 / 3)
    assert result.intensity["byte"] == pytest.approx(1 / 12)


def test_a2_the_screen_labels_both() -> None:
    screen = command("run", "add", "n=1000").out
    assert "operations per element moved: 1/3" in screen
    assert "arithmetic intensity: 1/12" in screen


def test_a4_three_kernels_make_nine_accesses_for_three_operations() -> None:
    """A4: 6n loads, 3n stores, 3n operations: again 1/3."""
    result = hwsim.run("course_cpu", "unfused", n=1000, **SCALAR)
    assert (result.work["loads"], result.work["stores"], result.work["flops"]) == (6000, 3000, 3000)
    assert result.intensity["element"] == pytest.approx(1 / 3)


def test_a5_one_kernel_makes_five() -> None:
    """A5: 4n loads, n stores, 3n operations: 3/5 per element, 3/20 per byte; 9 accesses become 5."""
    result = hwsim.run("course_cpu", "fused", n=1000, **SCALAR)
    assert (result.work["loads"], result.work["stores"], result.work["flops"]) == (4000, 1000, 3000)
    assert result.intensity["element"] == pytest.approx(3 / 5)
    assert result.intensity["byte"] == pytest.approx(3 / 20)


PASS_STORES_ON = {"l1.write_allocate": "false", "l2.write_allocate": "false"}
"""A store that misses brings no line in, as the course counts."""


def test_a5_fusion_is_1_8_times_faster_where_bandwidth_is_the_limit() -> None:
    """A5: 36 bytes per element become 20, if stores that miss do not fetch their line first, as the course counts."""
    unfused, fused = (
        hwsim.run("course_cpu", name, n=2**18, math=False, set=PASS_STORES_ON) for name in ("unfused", "fused")
    )
    assert (dram_bytes(unfused), dram_bytes(fused)) == (36 * 2**18, 20 * 2**18)
    assert unfused.time_s / fused.time_s == pytest.approx(1.8, rel=0.02)


def test_a5_write_allocate_makes_it_almost_two() -> None:
    """Each store fetches its line too: 48 bytes per element become 24, but for lines that are left in the cache."""
    assert 1.8 < speed_up(2**18) < 2.0


def test_a5_arrays_that_stay_in_the_cache_gain_otherwise() -> None:
    """A5: five arrays of 4 KiB are read from DRAM once, in one pass or three; only the two between are saved."""
    unfused, fused = (hwsim.run("course_cpu", name, n=1024, math=False) for name in ("unfused", "fused"))
    assert (dram_bytes(unfused), dram_bytes(fused)) == (7 * 4096, 5 * 4096)
    assert unfused.time_s / fused.time_s < 1.8


def test_a5_fusion_gains_nothing_where_arithmetic_is_the_limit() -> None:
    """A5: two additions per element through one adder take as long in one pass as in three."""
    rest = {f"core.ports.{port}": 64 for port in ("mul", "load", "store")}
    endless = {
        "l1.size": "inf",
        "l1.bandwidth": "inf",
        "l2.bandwidth": "inf",
        "dram.bandwidth": "inf",
        "dram.latency": "7 ns",
    }
    machine = {"core.ports.fma": 0, "core.issue_width": 64, **rest, **endless}
    assert speed_up(2**14, set=machine, **SCALAR) == pytest.approx(1.0, abs=0.1)


def test_a7_predicted_and_simulated_loads_stand_side_by_side(tmp_path: Any) -> None:
    """A7: estimating the intensity is counting loads."""
    file = tmp_path / "run.json"
    assert command("run", "fused", "n=1000", "vector=false", "--json", str(file)).code == 0
    rows = {row["compare"]: row for row in RunResult.from_json(file.read_text()).formulas}
    for name, expected in (("loads", 4000), ("stores", 1000), ("intensity.element", 0.6)):
        assert rows[name]["predicted"] == rows[name]["simulated"] == pytest.approx(expected)
    screen = command("explain", str(file)).out
    assert "Predicted and simulated" in screen
    assert "exact" in screen
