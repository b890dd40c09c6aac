"""The course's closed forms as exact counts; the comments name the rows of the mission."""

from __future__ import annotations

import numpy as np
import pytest

import hwsim
from tests.unit.kernels.helpers import counts, kernel, steps


def formula(made, compare):
    return {found.compare: found.value for found in made.formulas()}[compare]


def test_naive_loads_a_and_b_n_cubed_times_and_stores_c_once():  # T2
    made = kernel("matmul", {"n": 64}, math=False)
    found = counts(made)
    assert (found["loads.A"], found["loads.B"], found["stores.C"]) == (262_144, 262_144, 4_096)
    assert found["loads"] == formula(made, "loads") == 2 * 64**3
    assert found["stores"] == formula(made, "stores")
    assert made.registers_needed == 3


@pytest.mark.parametrize("v3", [1, 2, 4])
def test_a_register_tile_divides_the_loads_and_v3_does_not_matter(v3):  # T3, T5
    made = kernel("matmul", {"n": 64}, v1=4, v2=8, v3=v3, math=False)
    found = counts(made)
    assert (found["loads.A"], found["loads.B"], found["stores.C"]) == (32_768, 65_536, 4_096)
    assert found["loads"] == formula(made, "loads")
    assert found["loads.C"] == 0


@pytest.mark.parametrize(("tile", "registers"), [((4, 8, 1), 44), ((4, 8, 4), 80), ((4, 5, 1), 29), ((1, 1, 1), 3)])
def test_registers_of_a_tile(tile, registers):  # T4, T6
    v1, v2, v3 = tile
    made = kernel("matmul", {"n": 64}, v1=v1, v2=v2, v3=v3, math=False)
    assert made.registers_needed == v1 * v3 + v2 * v3 + v1 * v2 == registers


def test_strips_and_register_tile_together():  # T13 (the notes print n²/b1), T14
    made = kernel("matmul", {"n": 64}, b1=8, b2=8, v1=4, v2=4, b_layout="jk", math=False)
    assert formula(made, "l1.fills") == (64**2 + 64**3 // 8) / 16
    assert counts(made)["loads"] == 64**3 // 4 + 64**3 // 4 == formula(made, "loads")
    assert counts(made)["stores"] == 64**2


def test_square_tiles_load_c_for_each_tile_of_k():
    made = kernel("matmul", {"n": 64}, tile=16, math=False)
    found = counts(made)
    assert found["loads.C"] == found["stores.C"] == 64**2 * 4
    assert found["loads"] == formula(made, "loads")
    assert formula(made, "l1.fills") == 2 * 64**3 // (16 * 16) + 64**2 // 16


def test_square_tile_lines_of_the_padded_256_case():
    made = kernel("matmul", {"n": 256}, tile=32, ld=272, math=False)
    assert formula(made, "l1.fills") == 69_632


@pytest.mark.parametrize("tile", [2, 4])
def test_tiles_that_do_not_divide_give_the_same_product_and_exact_counts(tile):  # T20
    made = kernel("matmul", {"m": 8, "n": 10, "k": 6}, tile=tile, precision="fp64")
    found = counts(made)
    np.testing.assert_allclose(made.output, made.reference(), rtol=1e-14)
    assert found["loads.A"] == found["loads.B"] == 8 * 10 * 6
    assert found["loads.C"] == found["stores.C"] == 8 * 10 * -(-6 // tile)


def test_register_tiles_that_do_not_divide_keep_the_formula():
    made = kernel("matmul", {"m": 7, "n": 9, "k": 5}, v1=4, v2=2, math=False)
    found = counts(made)
    assert found["loads.A"] == 7 * 5 * 5 == formula(made, "loads.A")
    assert found["loads.B"] == 5 * 9 * 2 == formula(made, "loads.B")
    assert found["stores"] == 63


@pytest.mark.parametrize("schedule", [{}, {"tile": 1}, {"order": "kji"}, {"v1": 2, "v2": 2}])
def test_golden_products(schedule):  # T21
    square = {"A": np.array([[1, 2], [3, 4]]), "B": np.array([[5, 6], [7, 8]])}
    made = kernel("matmul", {"n": 2}, inputs=square, **schedule)
    steps(made)
    assert made.output.tolist() == [[19, 22], [43, 50]]
    row = kernel("matmul", {"m": 1, "n": 1, "k": 3}, inputs={"A": [[1, 2, 3]], "B": [[4], [5], [6]]}, **schedule)
    steps(row)
    assert row.output.tolist() == [[32]]


@pytest.mark.parametrize("op", ["add", "mul"])
def test_an_elementwise_operation_moves_three_elements(op):  # A2, A3
    made = kernel(op, {"n": 1000})
    found, work = counts(made), steps(made)[0].work
    assert (found["loads"], found["stores"], work.flops) == (2000, 1000, 1000)
    assert formula(made, "intensity.element") == pytest.approx(1 / 3)
    assert formula(made, "intensity.byte") == pytest.approx(1 / 12)


def test_unfused_makes_nine_accesses_and_fused_five():  # A4, A5
    unfused = kernel("fused_add_mul", {"n": 1000}, fused=False)
    fused = kernel("fused_add_mul", {"n": 1000}, fused=True)
    assert (counts(unfused)["loads"], counts(unfused)["stores"]) == (6000, 3000)
    assert (counts(fused)["loads"], counts(fused)["stores"]) == (4000, 1000)
    assert unfused.useful_flops == fused.useful_flops == 3000
    assert formula(unfused, "intensity.element") == pytest.approx(1 / 3)
    assert formula(fused, "intensity.element") == pytest.approx(3 / 5)
    assert formula(fused, "intensity.byte") == pytest.approx(3 / 20)


@pytest.mark.parametrize(("lanes", "issued"), [(1, 1024), (4, 256)])
def test_float4_adds_issue_a_quarter_of_the_instructions(lanes, issued):  # V1
    (step,) = steps(kernel("add", {"n": 256}, vector=True, lanes=lanes))
    instructions = step.work.instructions
    assert instructions.load + instructions.add + instructions.store == issued


@pytest.mark.parametrize(("order", "lines"), [("rows", 64 * 64 // 16), ("columns", 64 * 64)])
def test_rows_are_read_line_by_line_and_columns_jump(order, lines):  # S12, with a cache of one line
    made = kernel("sum2d", {"n": 64}, order=order, precision="int32")
    last, fetched = None, 0
    for nest in steps(made)[0].nests:
        for address, _, _ in nest.addresses():
            fetched += address // 64 != last
            last = address // 64
    assert fetched == lines == formula(made, "l1.fills")


def test_the_intensity_of_elements_moved_once_is_held_against_main_memory():
    """2n³ operations over three matrices of n² numbers of four bytes: n = 64 fits the caches of the course's core, so
    that main memory delivers A and B once and takes or delivers C once."""
    result = hwsim.run("course_cpu", "matmul_naive", n=64, math=False)
    (row,) = [each for each in result.formulas if each.name.startswith("arithmetic intensity")]
    assert row.predicted == pytest.approx(2 * 64**3 / (3 * 64**2 * 4))
    assert row.simulated == result.intensity.levels["dram"]
    assert row.unit == "flop/B of dram"
    assert row.ratio == pytest.approx(1, rel=0.01)
