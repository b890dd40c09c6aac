"""Distinct bytes of a tile, against a plain list of all its addresses."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from hwsim.program.contraction import distinct, footprint, slides
from hwsim.program.loops import Operand


def addresses(operand: Operand, box: dict[str, int]) -> set[int]:
    indices = list(operand.strides)
    return {
        sum(operand.strides[index] * position for index, position in zip(indices, corner, strict=True))
        for corner in product(*(range(box[index]) for index in indices))
    }


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_windows_of_a_convolution_are_counted_exactly(
    stride: int, height: int, width: int, rows: int, columns: int, channels: int
) -> None:
    wide = stride * (width - 1) + columns
    strides = {"c": 1, "s": channels, "x": stride * channels, "r": wide * channels, "y": stride * wide * channels}
    box = {"c": channels, "s": columns, "x": width, "r": rows, "y": height}
    operand = Operand("I", 0, 1, strides)
    assert distinct(operand, box) == len(addresses(operand, box))


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=4))
def test_two_indices_of_any_strides_are_counted_exactly(steps: list[tuple[int, int]]) -> None:
    """All strides that mix end up in one cluster; those that lie apart multiply."""
    by_size = sorted(steps)
    apart = [by_size[0]]
    for stride, extent in by_size[1:]:
        reach = sum(s * (e - 1) for s, e in apart)
        apart.append((stride if stride == apart[-1][0] else stride + reach + 1, extent))
    operand = Operand("T", 0, 1, {f"i{n}": stride for n, (stride, _) in enumerate(apart)})
    box = {f"i{n}": extent for n, (_, extent) in enumerate(apart)}
    assert distinct(operand, box) == len(addresses(operand, box))


def test_a_3_by_3_window_reads_each_pixel_once_and_not_nine_times() -> None:
    operand = Operand("I", 0, 1, {"y": 10, "x": 1, "r": 10, "s": 1})
    box = {"y": 8, "x": 8, "r": 3, "s": 3}
    assert distinct(operand, box) == 100
    assert slides(operand, box)


def test_rows_that_are_padded_count_what_is_touched() -> None:
    matrix = Operand("A", 0, 4, {"i": 512, "k": 4})
    assert footprint(matrix, {"i": 3, "k": 5}, 32) == 60
    assert not slides(matrix, {"i": 3, "k": 5})


def test_elements_of_four_bits_take_half_a_byte() -> None:
    assert footprint(Operand("A", 0, 1, {"i": 1}), {"i": 7}, 4) == 4
