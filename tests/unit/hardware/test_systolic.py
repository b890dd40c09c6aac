"""Folds of a systolic array: what lies where, how long it takes, how several arrays share a product."""

from __future__ import annotations

from fractions import Fraction

import pytest

from hwsim.program.contraction import GemmShape
from hwsim.targets.systolic.model import SystolicArray
from hwsim.targets.systolic.spec import Dataflow


@pytest.mark.parametrize(
    ("dataflow", "folds", "cycles"),
    [
        ("ws", 2 * 3, 6 * (10 + 2 * 8 + 4 - 2)),  # k 12 along 8 rows, n 9 along 4 columns, m 10 streams
        ("os", 2 * 3, 6 * (12 + 8 + 4 - 2)),  # m 10 along the rows, k streams
        ("is", 2 * 3, 6 * (9 + 2 * 8 + 4 - 2)),  # k along the rows, m along the columns, n streams
    ],
)
def test_serial_folds_fill_stream_and_drain_one_by_one(dataflow: Dataflow, folds: int, cycles: int) -> None:
    """The rules of SCALE-Sim, counted by hand for m 10, n 9, k 12 on 8 rows and 4 columns."""
    found = SystolicArray(8, 4, dataflow, "serial").occupy(GemmShape(10, 9, 12))
    assert (found.folds, found.cycles) == (folds, cycles)


def test_pipelined_folds_hide_all_fills_but_the_first() -> None:
    array = SystolicArray(8, 4, "ws", "pipelined")
    found = array.occupy(GemmShape(10, 9, 12))
    assert found.cycles == 8 + 5 * 10 + 10 + 8 + 4 - 2
    short = array.occupy(GemmShape(3, 9, 12))
    assert short.cycles == 8 + 5 * 8 + 3 + 8 + 4 - 2  # a stream of 3 waits for the 8 rows of the next tile


def test_a_partly_used_array_costs_as_much_as_a_full_one() -> None:
    array = SystolicArray(16, 16)
    assert array.occupy(GemmShape(20, 1, 1)).cycles == array.occupy(GemmShape(20, 16, 16)).cycles
    assert array.occupy(GemmShape(20, 1, 1)).mapping_efficiency == Fraction(1, 256)


def test_a_quarter_of_the_rate_makes_streams_four_times_as_long() -> None:
    slow = SystolicArray(4, 4, "ws", "serial", Fraction(1, 4))
    assert slow.occupy(GemmShape(10, 4, 4)).stream_cycles == 40
    fast = SystolicArray(4, 4, "ws", "serial", Fraction(2))
    assert fast.occupy(GemmShape(11, 4, 4)).stream_cycles == 6


def test_arrays_share_columns_of_folds_where_there_are_enough_and_rows_of_the_stream_where_not() -> None:
    array = SystolicArray(4, 4, "ws", "pipelined")
    assert array.share(GemmShape(100, 16, 4), 1, 4) == (1, 100)
    assert array.share(GemmShape(100, 4, 4), 1, 4) == (1, 25)
    assert array.share(GemmShape(100, 4, 4), 8, 4) == (2, 100)


def test_sums_that_stay_in_their_cells_are_not_shared_out() -> None:
    array = SystolicArray(4, 4, "os", "pipelined")
    assert array.share(GemmShape(4, 4, 100), 1, 4) == (1, 100)
    assert array.share(GemmShape(16, 4, 100), 1, 4) == (1, 100)
