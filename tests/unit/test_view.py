"""TensorView: rows S1 to S11 of the mission, and what NumPy says about the same views."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwsim.errors import InputError, ShapeError
from hwsim.numerics.format import find_format
from hwsim.trace.view import FIRST_ADDRESS, AddressSpace, TensorView, start


def elements(view: TensorView) -> np.ndarray:
    """The position in memory of each element, in the shape of the view."""
    return np.array([view.address(index) // view.element_bytes for index in np.ndindex(view.shape)]).reshape(view.shape)


def row_major(*shape: int) -> TensorView:
    return TensorView.row_major("A", 0, shape)


def test_row_major_address_is_row_times_columns_plus_column():  # S1
    view = TensorView.row_major("A", 1000, (3, 5), element_bits=64)
    assert view.address((2, 4)) == 1000 + (2 * 5 + 4) * 8
    assert view.strides == (5, 1)  # S4


def test_column_major_address_is_column_times_rows_plus_row():  # S2; the notes print i*shape[0]+i
    view = TensorView.column_major("A", 0, (3, 5))
    assert view.address((2, 4)) == (4 * 3 + 2) * 4
    assert view.strides == (1, 3)  # S4


def test_strided_address_adds_the_offset():  # S3
    view = TensorView("A", 0, (4, 4, 2), (7, 3, 2), offset=11, element_bits=8)
    assert view.address((1, 2, 1)) == 11 + 7 + 6 + 2


def test_strides_of_a_contiguous_tensor():  # S5
    assert row_major(1, 2, 3, 4).strides == (24, 12, 4, 1)


def test_moving_an_axis_of_length_one_leaves_a_tensor_contiguous():  # S6
    moved = row_major(1, 2, 3, 4).permute(1, 2, 3, 0)
    assert moved.strides == (12, 4, 1, 24)
    assert moved.is_contiguous()


def test_moving_an_axis_of_length_two_does_not():  # S6
    assert not row_major(2, 2, 3, 4).permute(1, 2, 3, 0).is_contiguous()


def test_a_slice_shifts_the_offset_and_keeps_the_strides():  # S7
    view = row_major(3, 5).slice(slice(None), slice(1, 3))
    assert (view.offset, view.shape, view.strides) == (1, (3, 2), (5, 1))
    assert elements(view).tolist() == [[1, 2], [6, 7], [11, 12]]
    assert not view.is_contiguous()


def test_a_broadcast_axis_has_stride_zero_and_touches_three_elements():  # S8
    view = row_major(1, 3).broadcast_to((4, 3))
    assert view.strides == (0, 1)
    assert view.size == 12
    assert len(np.unique(elements(view))) == 3


def test_swapping_the_quadrants_of_a_4x4_matrix_is_a_four_dimensional_view():  # S9
    quadrants = row_major(4, 4).reshape(2, 2, 2, 2).permute(2, 1, 0, 3)
    assert quadrants.strides == (2, 4, 8, 1)
    swapped = np.block([[elements(quadrants)[i, :, j, :] for j in range(2)] for i in range(2)])
    assert swapped.tolist() == [[0, 1, 8, 9], [4, 5, 12, 13], [2, 3, 10, 11], [6, 7, 14, 15]]
    with pytest.raises(ShapeError, match="without a copy"):
        quadrants.reshape(4, 4)


def test_views_with_another_shape_share_the_memory():  # S10
    view = row_major(4, 4)
    assert view.reshape(16).strides == (1,)
    assert view.reshape(-1, 8).shape == (2, 8)


def test_a_transpose_cannot_be_flattened_without_a_copy():
    with pytest.raises(ShapeError, match=r"\(4, 3\).*\(12,\) without a copy"):
        row_major(3, 4).permute(1, 0).reshape(12)


def test_padding_moves_rows_apart():
    view = TensorView.row_major("A", 0, (4, 4), ld=6)
    assert view.strides == (6, 1)
    assert not view.is_contiguous()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda view: view.address((3, 0)),
        lambda view: view.address((0,)),
        lambda view: view.permute(0, 0),
        lambda view: view.slice(slice(5, 9)),
        lambda view: view.slice(7),
        lambda view: view.slice(0, 0, 0),
        lambda view: view.broadcast_to((3, 5)),
        lambda view: view.reshape(5),
        lambda view: view.reshape(-1, -1),
        lambda view: TensorView.row_major("A", 0, (3, 4), ld=3),
        lambda view: TensorView("A", 0, (3, 4), (1,)),
        lambda view: TensorView("A", 0, (0,), (1,)),
    ],
)
def test_what_does_not_fit_is_refused(wrong):
    with pytest.raises(ShapeError, match="A"):
        wrong(row_major(3, 4))


def test_an_access_moves_along_the_axis_of_each_loop():
    view = TensorView.row_major("B", 4096, (8, 16), element_bits=32)
    access = view.access(1, None, (0, 2), at=(1, 3), elements=4, write=True, after=True)
    assert access.base == 4096 + (16 + 3) * 4
    assert access.strides == (4, 0, 2 * 16 * 4)
    assert (access.nbytes, access.write, access.after, access.tensor) == (16, True, True, "B")


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(shapes, st.data())
def test_views_see_what_numpy_sees(shape, data):
    view = row_major(*shape)
    array = np.arange(np.prod(shape)).reshape(shape)
    axes = data.draw(st.permutations(range(len(shape))))
    cut = [slice(data.draw(st.integers(0, n - 1)), None, data.draw(st.integers(1, 2))) for n in shape]
    seen, expected = view.slice(*cut).permute(*axes), array[tuple(cut)].transpose(axes)
    assert elements(seen).tolist() == expected.tolist()
    assert seen.is_contiguous() == expected.flags.c_contiguous
    flat = expected.reshape(-1)
    if np.shares_memory(flat, array):
        assert elements(seen.reshape(-1)).tolist() == flat.tolist()
    else:
        with pytest.raises(ShapeError):
            seen.reshape(-1)


def test_small_tensors_follow_each_other_with_a_header_between_them():
    space = AddressSpace()
    first = space.allocate("A", (3, 5), find_format("fp64"), ld=8)
    second = space.allocate("B", (10,), find_format("fp32"))
    assert first.base == FIRST_ADDRESS
    assert second.base == FIRST_ADDRESS + 3 * 8 * 8 + 64
    assert space.live_bytes == 3 * 8 * 8 + 40


def test_large_tensors_of_one_size_begin_in_pages_of_different_colours():
    """As mmap places them: no two of five arrays of 4 MiB share a colour of a cache with ways of 32 KiB."""
    space = AddressSpace()
    bases = [space.allocate(name, (2**20,), find_format("fp32")).base for name in "ABCDE"]
    assert all(base % 4096 == 0 for base in bases)
    assert len({base // 4096 % 8 for base in bases}) == 5


def test_peak_memory_remembers_what_was_freed():
    space = AddressSpace()
    space.allocate("A", (1000,), find_format("fp32"))
    space.free("A")
    space.allocate("B", (500,), find_format("fp32"))
    assert space.live_bytes == 2000
    assert space.peak_bytes == 4000
    with pytest.raises(ValueError, match="already"):
        space.allocate("B", (1,), find_format("fp32"))


def test_an_access_without_a_number_of_elements_takes_one():
    """Two loops over a 3 x 5 matrix of fp32: element (i, 2 j), one at a time, and rows of five at once."""
    view = TensorView.row_major("A", 1000, (3, 5))
    one = view.access(0, (1, 2))
    assert (one.strides, one.nbytes, one.write) == ((20, 8), 4, False)
    rows = view.access(0, None, at=(1, 0), elements=5, write=True)
    assert (rows.strides, rows.nbytes, rows.write, rows.base) == ((20, 0), 20, True, 1020)


def test_a_row_major_tensor_is_what_one_has_without_saying_so():
    """The order of a stored tensor: rows one after the other, or columns; it can be said only at the beginning."""
    plain, row, column = start("2x3"), start("2x3").then("order", "row"), start("2x3").then("order", "column")
    assert (row.view, row.values, row.steps) == (plain.view, plain.values, ("order=row",))
    assert column.view.strides == (1, 2)
    with pytest.raises(InputError, match="order=rows: it is row or column"):
        plain.then("order", "rows")
    with pytest.raises(InputError, match="order comes first"):
        row.then("order", "column")


def test_a_copy_is_made_only_where_elements_do_not_lie_in_order():
    """A part of a tensor, a transposed one, and one that has an offset are copied; a whole one is not."""
    assert start("2x3").then("contiguous").copied == 0
    assert start("2x3").then("reshape", "3,2").then("contiguous").copied == 0
    for word, value, count in (("permute", "1,0", 6), ("slice", "1:2,0:3", 3), ("slice", "0:1,0:3", 3)):
        made = start("2x3").then(word, value).then("contiguous")
        assert (made.copied, made.view.offset, made.why_not_contiguous()) == (count, 0, "")
    assert start("2x3").then("permute", "1,0").why_not_contiguous() == "axis 1 has stride 3, and 1 would be needed"
    assert start("2x3").then("slice", "0:2,0:2").why_not_contiguous() == "axis 0 has stride 3, and 2 would be needed"
