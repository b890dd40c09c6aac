"""The order of accesses, against the plain loops of tests/conventions.py."""

from __future__ import annotations

import pytest

from tests import conventions
from tests.unit.kernels.helpers import kernel, matrices, touches

SIZES = [(4, 4, 4), (5, 7, 3), (1, 1, 1), (8, 10, 6), (6, 1, 9)]  # rows, columns, inner


@pytest.mark.parametrize("order", ["ijk", "ikj", "jik", "jki", "kij", "kji"])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_every_loop_order_touches_memory_as_the_plain_loops_do(order, m, n, k):
    made = kernel("matmul", {"m": m, "n": n, "k": k}, order=order, precision="fp64")
    assert touches(made) == list(getattr(conventions, f"mm_{order}")(*matrices(made), m, n, k))


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_a_sum_in_memory_is_loaded_and_stored_each_time(m, n, k):
    made = kernel("matmul", {"m": m, "n": n, "k": k}, accumulate="memory")
    assert touches(made) == list(conventions.mm_ijk_rmw(*matrices(made), m, n, k))


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_a_transposed_b_is_read_along_its_rows(m, n, k):
    made = kernel("matmul", {"m": m, "n": n, "k": k}, b_layout="jk", ld=12)
    assert touches(made) == list(conventions.mm_ijk_bt(*matrices(made), m, n, k))


@pytest.mark.parametrize("order", ["ijk", "ikj"])
@pytest.mark.parametrize("tile", [1, 2, 3, 4, 20])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_tiles_are_walked_as_the_plain_tiled_loops_do(order, tile, m, n, k):
    made = kernel("matmul", {"m": m, "n": n, "k": k}, order=order, tile=tile, ld=16)
    assert touches(made) == list(getattr(conventions, f"mm_tiled_{order}")(*matrices(made), m, n, k, tile))


def test_tiles_that_divide_are_one_nest():
    (block,) = kernel("matmul", {"n": 64}, tile=16, math=False).blocks()
    (step,) = block.steps()
    (nest,) = step.nests
    assert nest.trips == (4, 4, 4, 16, 16, 16)


def test_add_loads_both_operands_and_stores_the_result():
    made = kernel("add", {"n": 10}, precision="fp64")
    a, b, c = (made.tensors[name].base for name in "ABC")
    assert touches(made) == list(conventions.add(a, b, c, 8, 10))


def test_row_sums_and_column_sums():
    rows = kernel("sum2d", {"m": 4, "n": 6}, order="rows", result="each", ld=7)
    assert touches(rows) == list(conventions.rowsum(matrices(rows)[0], rows.tensors["S"].base, 4, 6))
    columns = kernel("sum2d", {"m": 4, "n": 6}, order="columns", result="each")
    assert touches(columns) == list(conventions.colsum(matrices(columns)[0], columns.tensors["S"].base, 4, 6))


def test_a_transpose_given_as_a_formula():
    made = kernel("formula", {"i": 4, "j": 6}, formula="C[j,i] = A[i,j]", order=("i", "j"))
    assert touches(made) == list(conventions.transpose(*matrices(made), 4, 6))


def test_a_convolution_given_as_a_formula():
    sizes = {"co": 2, "y": 4, "x": 5, "ci": 3, "ky": 3, "kx": 3}
    made = kernel("formula", sizes, formula="Y[co,y,x] += X[ci,y+ky,x+kx] * W[co,ci,ky,kx]", precision="fp64")
    x, w, y = (made.tensors[name].base for name in "XWY")
    assert touches(made) == list(conventions.conv3x3(x, w, y, 8, 6, 7, 3, 2))


@pytest.mark.parametrize("copied", [False, True])
def test_a_transposed_view_is_read_against_the_layout(copied):
    made = kernel("view", {"m": 3, "n": 4}, view="transpose", contiguous=copied, reuses=2)
    base = made.tensors["A"].base
    through_view = [(base + (i * 4 + j) * 4, 4, False) for j in range(4) for i in range(3)]
    if not copied:
        assert touches(made) == through_view * 2
        return
    copy = made.tensors["copy"].base
    copying = [t for n, read in enumerate(through_view) for t in (read, (copy + n * 4, 4, True))]
    assert touches(made) == copying + [(copy + n * 4, 4, False) for n in range(12)] * 2
