"""Section 4 of the mission: layout, strides and views, rows S1 to S13. Views alone are in tests/unit/test_view.py."""

from __future__ import annotations

import numpy as np
import pytest

import hwsim
from hwsim.errors import ShapeError
from hwsim.trace.view import TensorView
from tests.unit.kernels.helpers import kernel


def positions(view: TensorView) -> list[int]:
    """Where each element lies, in elements from the base, row by row of the view."""
    return [(view.address(index) - view.base) // view.element_bytes for index in np.ndindex(view.shape)]


def row_major(*shape: int) -> TensorView:
    return TensorView.row_major("A", 0, shape)


def test_s1_s2_s4_row_and_column_major() -> None:
    """S1: i*shape[1] + j. S2: j*shape[0] + i (one slide prints i*shape[0]+i). S4: the strides that say so."""
    rows, columns = row_major(3, 5), TensorView.column_major("A", 0, (3, 5))
    for i, j in np.ndindex(3, 5):
        assert rows.address((i, j)) == (i * 5 + j) * 4
        assert columns.address((i, j)) == (j * 3 + i) * 4
    assert (rows.strides, columns.strides) == ((5, 1), (1, 3))


def test_s3_every_address_of_a_run_comes_from_a_view() -> None:
    """S3: offset + i*s0 + j*s1. The accesses of a slice are the addresses of the view, and nothing else."""
    made = kernel("view", {"n": 12, "m": 5}, view="slice", offset=2, step=3)
    touched = [
        touch[0]
        for block in made.blocks()
        for step in block.steps()
        for nest in step.nests
        for touch in nest.addresses()
    ]
    base = made.tensors["A"].base
    assert touched == [base + (i * 12 + 2 + 3 * j) * 4 for i in range(5) for j in range(4)]


def test_s5_s6_strides_of_a_tensor_and_of_its_permutation() -> None:
    """S5: (24, 12, 4, 1). S6: contiguous after permute(1, 2, 3, 0) only because the moved axis has length 1."""
    tensor = row_major(1, 2, 3, 4)
    assert tensor.strides == (24, 12, 4, 1)
    moved = tensor.permute(1, 2, 3, 0)
    assert (moved.strides, moved.base, moved.is_contiguous()) == ((12, 4, 1, 24), tensor.base, True)
    assert not row_major(2, 2, 3, 4).permute(1, 2, 3, 0).is_contiguous()


def test_s7_a_slice() -> None:
    """S7: offset 1, shape [3, 2], strides (5, 1); the elements 1, 2, 6, 7, 11, 12 of the same storage."""
    view = row_major(3, 5).slice(slice(None), slice(1, 3))
    assert (view.offset, view.shape, view.strides) == (1, (3, 2), (5, 1))
    assert positions(view) == [1, 2, 6, 7, 11, 12]
    assert not view.is_contiguous()


def test_s8_a_broadcast_is_read_from_memory_once() -> None:
    """S8: strides (0, 1); a row of 512 fp32 seen as 512 rows is 32 lines, all other accesses hit."""
    assert row_major(1, 3).broadcast_to((4, 3)).strides == (0, 1)
    result = hwsim.run("course_cpu", "view_broadcast", n=512, m=512, vector=False)
    assert result.verified
    assert result.work["loads"] == 512 * 512
    assert result.memory["l1"].misses == 512 // 16
    assert result.memory["dram"].bytes_read == 512 * 4


def test_s8_three_elements_not_twelve() -> None:
    result = hwsim.run("course_cpu", "view_broadcast", n=3, m=4, vector=False)
    assert (result.work["loads"], result.memory["l1"].misses) == (12, 1)
    assert result.tensors["A"]["elements"] == 3


def test_s9_swapped_quadrants_are_a_view_of_four_axes_and_flat_only_as_a_copy() -> None:
    """S9: strides (2, 4, 8, 1)."""
    quadrants = row_major(4, 4).reshape(2, 2, 2, 2).permute(2, 1, 0, 3)
    assert quadrants.strides == (2, 4, 8, 1)
    with pytest.raises(ShapeError, match="without a copy"):
        quadrants.reshape(4, 4)


def test_s9_a_contiguous_copy_costs_a_read_and_a_write_and_is_then_read_by_lines() -> None:
    """S9: n² gathered loads read the view; the copy is stored and read in n²/8 vectors of eight."""
    view = hwsim.run("course_cpu", "view_transpose", n=64)
    copy = hwsim.run("course_cpu", "contiguous_copy", n=64, reuses=1)
    assert view.verified
    assert copy.verified
    assert view.work["instructions"]["load"] == 64 * 64
    assert copy.work["instructions"]["load"] == 64 * 64 + 64 * 64 // 8
    assert copy.work["instructions"]["store"] == 64 * 64 // 8
    assert copy.tensors["copy"]["misses"]["l1"] == 64 * 64 // 16


def test_s10_another_shape_shares_the_memory() -> None:
    """S10: view(16), view(-1, 8)."""
    tensor = row_major(4, 4)
    assert positions(tensor.reshape(16)) == positions(tensor.reshape(-1, 8)) == list(range(16))


@pytest.mark.parametrize(("step", "lines"), [(1, 4), (2, 8), (4, 16), (16, 64), (32, 64)])
def test_s11_a_vector_over_a_stride_touches_more_lines(step: int, lines: int) -> None:
    """S11: 64 elements in vectors of 8; a vector touches min(8, 8*step*4/64) lines, or a part of one."""
    result = hwsim.run("course_cpu", "view_slice", n=64 * step, m=1, offset=0, step=step)
    assert result.verified
    assert result.memory["l1"].misses == lines
    assert result.work["instructions"]["load"] == (8 if step == 1 else 64)


def test_s11_a_contiguous_copy_pays_if_it_is_read_often_enough() -> None:
    """S11: a transpose of 512 x 512 fits no cache: one reading is cheaper through the view, many through a copy."""
    times = {
        (name, reuses): hwsim.run("course_cpu", name, n=512, reuses=reuses, math=False).time_s
        for name in ("view_transpose", "contiguous_copy")
        for reuses in (1, 4)
    }
    assert times["view_transpose", 1] < times["contiguous_copy", 1]
    assert times["contiguous_copy", 4] < times["view_transpose", 4]


def test_s12_column_order_fetches_sixteen_times_the_lines() -> None:
    """S12: M*N/16 lines by rows; M*N by columns, where a column of 1,024 lines does not stay in 512.

    In vectors: one scalar sum of everything waits for its own additions in either order.
    """
    rows, columns = (
        hwsim.run("course_cpu", name, n=64, m=1024, precision="int32", vector=True)
        for name in ("sum_rows", "sum_columns")
    )
    assert rows.verified
    assert columns.verified
    assert rows.memory["l1"].misses == 1024 * 64 // 16
    assert columns.memory["l1"].misses == 1024 * 64
    assert rows.output == columns.output
    assert columns.time_s > 4 * rows.time_s


def test_s13_memory_is_flat_and_labels_are_added() -> None:
    """S13: a trace has addresses; which tensor one belongs to follows from where the tensors lie."""
    made = kernel("add", {"n": 3})
    bases = {name: view.base for name, view in made.tensors.items()}
    nests = [nest for block in made.blocks() for step in block.steps() for nest in step.nests]
    labels = [[access.tensor for access in nest.accesses] for nest in nests]
    assert labels == [["A", "B", "C"]]
    flat = [address for nest in nests for address, _, _ in nest.addresses()]
    assert flat == [bases[name] + 4 * i for i in range(3) for name in "ABC"]


@pytest.mark.parametrize("workload", ["transpose", "transpose_tiled", "sum_columns", "matmul_naive"])
def test_one_size_alone_means_a_square(workload: str) -> None:
    """Rows follow columns where only columns are given, as the rows and the inner length of a product do."""
    alone = hwsim.run("course_cpu", workload, n=48, math=False)
    both = hwsim.run("course_cpu", workload, n=48, m=48, math=False)
    assert (alone.cycles, alone.work.loads, alone.work.stores) == (both.cycles, both.work.loads, both.work.stores)
    assert hwsim.run("course_cpu", workload, n=48, m=16, math=False).work.loads < alone.work.loads
