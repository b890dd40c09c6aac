"""Formulas beside simulated counts, and the reasons for gaps."""

from __future__ import annotations

from typing import Any

import pytest

import hwsim
from hwsim.memory.locality import find_crowding, sets_used
from hwsim.result import RunResult
from hwsim.spec.machine import CacheSpec
from tests.unit.results.made import small


def row(result: RunResult, compare: str) -> dict[str, Any]:
    return next(each for each in result.formulas if each["compare"] == compare)


def test_a_padded_tile_brings_exactly_the_lines_of_the_formula() -> None:
    """2n³/(L·b) + n²/L with n = 256, L = 16 elements, b = 32."""
    padded = row(hwsim.run("course_cpu", "matmul_tiled", n=256, tile=32, ld=272, math=False), "l1.fills")
    assert padded["predicted"] == padded["simulated"] == 69_632
    assert padded["reason"] == ""


def test_the_unpadded_gap_is_put_down_to_set_conflicts() -> None:
    found = row(hwsim.run("course_cpu", "matmul_tiled", n=256, tile=32, math=False), "l1.fills")
    assert found["simulated"] == 5_041_152
    assert found["ratio"] == pytest.approx(72.4, abs=0.05)
    assert "set conflicts: rows of B are 1,024 B apart" in found["reason"]


def test_what_the_formula_for_strips_leaves_out_is_c() -> None:
    """n² + n³/b1 counts A and B; C is n²/L = 4,096 lines more."""
    whole = row(hwsim.run("course_cpu", "matmul_blocked", n=256, math=False), "l1.fills")
    assert whole["simulated"] - whole["predicted"] == 256 * 256 // 16
    assert "leaves C out: 4,096 lines" in whole["reason"]


def test_loads_into_registers_are_exact() -> None:
    """n³ and n³ for the naive product (course notes, T2)."""
    result = small("matmul_naive", n=64)
    assert row(result, "loads.A")["simulated"] == row(result, "loads.A")["predicted"] == 262_144
    assert row(result, "stores")["simulated"] == 4_096


def test_a_formula_about_a_level_that_is_not_there_is_left_out() -> None:
    from hwsim.catalog import load_machine

    machine = load_machine("course_cpu").spec
    other = machine.model_copy(
        update={
            "memory": tuple(
                level.model_copy(update={"name": "near"}) if level.name == "l1" else level for level in machine.memory
            ),
            "energy": None,
        }
    )
    assert all(each["compare"] != "l1.fills" for each in hwsim.run(other, "matmul_tiled", n=32).formulas)


CACHE = CacheSpec(kind="cache", name="l1", size="32 KiB", ways=8)


@pytest.mark.parametrize(("row_bytes", "sets"), [(64, 64), (128, 32), (1024, 4), (4096, 1), (1088, 64), (100, 64)])
def test_a_column_visits_sets_over_the_greatest_common_divisor(row_bytes: int, sets: int) -> None:
    assert sets_used(CACHE, row_bytes) == sets


def test_only_columns_that_do_not_fit_their_sets_crowd() -> None:
    crowding = find_crowding(CACHE, {"B": 1024}, {"B": 256})
    assert crowding is not None
    assert (crowding.used_sets, crowding.room_lines, crowding.better_row_bytes) == (4, 32, 1088)
    assert find_crowding(CACHE, {"B": 1024}, {"B": 16}) is None
    assert find_crowding(CACHE, {"B": 1088}, {"B": 256}) is None
    infinite = CacheSpec(kind="cache", name="l1", size="inf", ways=8)
    assert find_crowding(infinite, {"B": 1024}, {"B": 256}) is None
