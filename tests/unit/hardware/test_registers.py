"""Register tiles fit, spill, or are refused."""

from __future__ import annotations

import pytest

from hwsim.errors import CapacityError
from hwsim.spec.machine import RegistersSpec
from hwsim.targets.cpu.spec import RegisterFile, Spills, best_matmul_tile, matmul_tile_registers


def registers(count: int, spill: str = "count") -> RegisterFile:
    given = {"kind": "registers", "name": "reg", "count": count, "bits": 256, "spill": spill}
    return RegisterFile(RegistersSpec.model_validate(given), "core.reg")


@pytest.mark.parametrize(("tile", "values"), [((4, 8, 1), 44), ((4, 8, 4), 80), ((1, 1, 1), 3)])
def test_a_tile_of_a_product_takes_the_values_of_its_operands_and_sums(tile: tuple[int, int, int], values: int) -> None:
    assert matmul_tile_registers(*tile) == values


@pytest.mark.parametrize("tile", [(4, 8, 1), (4, 8, 4)])
def test_as_many_registers_as_values_are_enough_and_one_less_is_not(tile: tuple[int, int, int]) -> None:
    needed = matmul_tile_registers(*tile)
    assert registers(needed).fits(needed)
    assert registers(needed).spills(needed, uses=10, updates=10) == Spills(0, 0, 0)
    assert not registers(needed - 1).fits(needed)
    assert registers(needed - 1).spills(needed, uses=10, updates=4) == Spills(1, 10, 4)


def test_a_value_without_register_is_loaded_at_each_use_and_stored_at_each_change() -> None:
    assert registers(32).spills(44, uses=100, updates=50) == Spills(12, 1200, 600)


def test_values_that_never_change_are_only_loaded_again() -> None:
    assert registers(32).spills(33, uses=7) == Spills(1, 7, 0)


def test_a_machine_may_refuse_and_names_the_best_tile_that_fits() -> None:
    assert registers(44, "refuse").spills(44, uses=1) == Spills()
    with pytest.raises(CapacityError) as refusal:
        registers(32, "refuse").spills(44, uses=1)
    assert str(refusal.value) == (
        "the register tile needs 44 values in core.reg, which holds 32; "
        "the best tile of a matrix product that fits is 4x5x1, with 29 values"
    )


def test_a_register_file_too_small_for_any_product_says_so() -> None:
    with pytest.raises(CapacityError, match="not even a 1x1 tile"):
        registers(2, "refuse").spills(3, uses=1)
    assert best_matmul_tile(3) == (1, 1)


@pytest.mark.parametrize("count", range(3, 70))
def test_the_best_tile_is_the_best_of_all_that_fit(count: int) -> None:
    tiles = [(a, b) for a in range(1, count) for b in range(a, count) if matmul_tile_registers(a, b, 1) <= count]
    best = best_matmul_tile(count)
    assert best in tiles
    assert best is not None
    assert 1 / best[0] + 1 / best[1] == pytest.approx(min(1 / a + 1 / b for a, b in tiles), rel=1e-12)


@pytest.mark.parametrize("side", [1, 2, 3, 5, 15])
def test_the_best_tile_is_the_closed_form_where_that_is_whole(side: int) -> None:
    """v1 = v2 = sqrt(R + 1) - 1."""
    assert best_matmul_tile((side + 1) ** 2 - 1) == (side, side)
