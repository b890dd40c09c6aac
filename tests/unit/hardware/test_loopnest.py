"""Counting a loop nest: small cases by hand, and the promises that hold for all of them."""

from __future__ import annotations

import pytest

from hwsim.errors import InputError
from hwsim.targets.grid.mapping import Convention, Convolution, NestLevel, count_accesses

ALL = frozenset(("input", "weight", "output"))
INPUT, WEIGHT, OUTPUT = (frozenset((role,)) for role in ("input", "weight", "output"))


def test_a_matrix_product_that_keeps_everything_moves_each_matrix_once() -> None:
    # 4 x 5 x 6: 20 inputs (4 x 5), 30 weights (5 x 6), 24 sums.
    flow = count_accesses(
        Convolution({"p": 4, "c": 5, "m": 6}),
        [NestLevel("dram", ALL), NestLevel("chip", ALL, (("p", 4), ("c", 5), ("m", 6)))],
    )
    dram = {role: flow.accesses["dram", role] for role in ("input", "weight", "output")}
    assert (dram["input"].reads, dram["weight"].reads, dram["output"].writes) == (20, 30, 24)
    assert dram["output"].reads == 0
    chip = flow.accesses["chip", "output"]
    assert chip.writes == 120  # every product updates a sum
    assert chip.reads == 120 - 24 + 24  # all but the first read it, and it is read once more to leave
    assert flow.steps == flow.macs == 120


def test_a_tile_is_fetched_again_when_a_loop_around_its_own_advances() -> None:
    # weights (c, m) stay while p runs inside, and come again for each p outside
    inside = count_accesses(
        Convolution({"p": 4, "c": 5}), [NestLevel("dram", ALL, (("c", 5), ("p", 4))), NestLevel("chip", ALL)]
    )
    outside = count_accesses(
        Convolution({"p": 4, "c": 5}), [NestLevel("dram", ALL, (("p", 4), ("c", 5))), NestLevel("chip", ALL)]
    )
    assert inside.accesses["dram", "weight"].reads == 5
    assert outside.accesses["dram", "weight"].reads == 20


def test_sums_that_leave_unfinished_come_back() -> None:
    # c outside p: each of 4 sums visits the chip 5 times, and comes back 4 times
    flow = count_accesses(
        Convolution({"p": 4, "c": 5}), [NestLevel("dram", ALL, (("c", 5), ("p", 4))), NestLevel("chip", ALL)]
    )
    assert flow.accesses["dram", "output"].writes == 20
    assert flow.accesses["dram", "output"].reads == 16


def test_one_read_serves_all_instances_that_need_the_same() -> None:
    spread = (("m", 8), ("c", 4))
    work = Convolution({"m": 8, "c": 4, "p": 3})
    loops = (("p", 3),)
    shared = count_accesses(
        work, [NestLevel("dram", ALL), NestLevel("buffer", ALL, loops, spread), NestLevel("pe", WEIGHT)]
    )
    apart = count_accesses(
        work,
        [NestLevel("dram", ALL), NestLevel("buffer", ALL, loops, spread, multicast=False), NestLevel("pe", WEIGHT)],
    )
    assert shared.accesses["buffer", "input"].reads == 3 * 4  # the same for all eight m
    assert apart.accesses["buffer", "input"].reads == 3 * 4 * 8
    assert shared.accesses["buffer", "output"].writes == 3 * 8  # four partial sums are added on the way
    assert shared.reduced == 3 * 8 * 3


def test_windows_side_by_side_share_rows() -> None:
    # 4 output rows and 3 kernel rows over the array: 12 pairs, and 6 rows of the input along their diagonals
    flow = count_accesses(
        Convolution({"p": 4, "r": 3}),
        [NestLevel("dram", ALL), NestLevel("buffer", INPUT | OUTPUT, (), (("p", 4), ("r", 3))), NestLevel("pe", ALL)],
    )
    assert flow.accesses["pe", "input"].writes == 12
    assert flow.accesses["buffer", "input"].reads == 6


def test_a_window_that_slides_fetches_only_what_is_new() -> None:
    work = Convolution({"q": 10, "s": 3})
    loops = (("q", 10),)
    whole = count_accesses(work, [NestLevel("dram", ALL, loops), NestLevel("pe", ALL, (("s", 3),))])
    sliding = count_accesses(work, [NestLevel("dram", ALL, loops), NestLevel("pe", ALL, (("s", 3),), slides=True)])
    assert whole.accesses["pe", "input"].writes == 30
    assert sliding.accesses["pe", "input"].writes == 12  # (10 - 1) + 3


def test_conventions_change_sums_and_nothing_else() -> None:
    work, stores = Convolution({"p": 4, "c": 5}), [NestLevel("dram", ALL), NestLevel("chip", ALL, (("p", 4), ("c", 5)))]
    plain = count_accesses(work, stores, Convention(drains=False))
    first = count_accesses(work, stores, Convention(first_reads=True, drains=False))
    assert first.accesses["chip", "output"].reads - plain.accesses["chip", "output"].reads == 4
    assert first.accesses["chip", "input"] == plain.accesses["chip", "input"]


def test_loops_have_to_make_up_the_work() -> None:
    with pytest.raises(InputError, match="loops over c make 4 iterations together; the work has 5"):
        count_accesses(Convolution({"c": 5}), [NestLevel("dram", ALL, (("c", 4),))])
    with pytest.raises(InputError, match="'x' is no loop of a convolution"):
        count_accesses(Convolution({"x": 5}), [NestLevel("dram", ALL, (("x", 5),))])
    with pytest.raises(InputError, match="everything starts in main memory"):
        count_accesses(Convolution({"c": 5}), [NestLevel("dram", WEIGHT, (("c", 5),))])
