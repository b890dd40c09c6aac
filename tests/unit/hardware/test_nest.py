"""Nests: what they count, and that slices and peeled parts make the same accesses as the whole."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hwsim.trace.nest import MAX_ACCESSES, Access, Nest, OffsetTable, numbered, peel_outer, slice_outer

PRODUCT = Nest(
    (3, 4, 5),
    (
        Access(1000, (40, 0, 8)),
        Access(2000, (0, 8, 32)),
        Access(3000, (32, 8), write=True, after=True),
        Access(4000, (8,)),
    ),
)


def test_loads_and_stores_are_counted_by_the_loops_around_them() -> None:
    assert PRODUCT.loads == 3 * 4 * 5 * 2 + 3
    assert PRODUCT.stores == 3 * 4
    assert PRODUCT.length == len(list(PRODUCT.addresses()))


def test_accesses_come_before_and_after_the_inner_loops() -> None:
    nest = Nest((2,), (Access(100, ()), Access(0, (8,)), Access(200, (), write=True, after=True)))
    assert [(address, write) for address, _, write in nest.addresses()] == [
        (100, False), (0, False), (8, False), (200, True),
    ]  # fmt: skip


def test_span_covers_exactly_what_is_touched() -> None:
    nest = Nest((3, 2), (Access(1000, (-100, 8), 4),))
    touched = [address for address, _, _ in nest.addresses()]
    assert nest.span(nest.accesses[0]) == (min(touched), max(touched) + 4) == (800, 1012)


def test_span_of_a_gather_covers_its_table() -> None:
    nest = Nest((2,), (Access(1000, (0,), 8, table=OffsetTable(np.array([16, -8]), (1,))),))
    assert nest.span(nest.accesses[0]) == (992, 1024)


@pytest.mark.parametrize("cuts", [(0, 1, 3), (0, 2, 3), (0, 1, 2, 3)])
def test_slices_of_the_outer_loop_make_the_accesses_of_the_whole(cuts: tuple[int, ...]) -> None:
    pieces = [slice_outer(PRODUCT, low, high - low) for low, high in pairwise(cuts)]
    assert [a for piece in pieces for a in piece.addresses()] == list(PRODUCT.addresses())


def test_a_slice_of_a_gather_goes_on_in_its_table() -> None:
    table = OffsetTable(np.array([0, 800, 80, 8, 880, 88]), (2, 1))
    nest = Nest((3, 2), (Access(0, (0, 0), table=table),))
    assert [a for a, _, _ in slice_outer(nest, 1, 2).addresses()] == [80, 8, 880, 88]


def test_a_slice_leaves_out_what_lies_outside_the_loop() -> None:
    nest = Nest((2,), (Access(100, ()), Access(0, (8,))))
    assert [a for a, _, _ in slice_outer(nest, 1, 1).addresses()] == [8]


def test_peeled_parts_make_the_accesses_of_the_whole() -> None:
    one = slice_outer(PRODUCT, 2, 1)
    parts = peel_outer(one)
    assert [part.depth for part in parts] == [0, 2]
    assert [a for part in parts for a in part.addresses()] == list(one.addresses())


def test_a_peeled_innermost_loop_keeps_before_and_after_in_order() -> None:
    nest = Nest((1,), (Access(0, (8,), write=True, after=True), Access(64, (8,))))
    (part,) = peel_outer(nest)
    assert list(part.addresses()) == list(nest.addresses())


def test_only_a_loop_that_runs_once_is_peeled() -> None:
    with pytest.raises(ValueError, match="runs once"):
        peel_outer(PRODUCT)


def test_numbers_stay_with_accesses_through_slices_and_peels() -> None:
    parts = peel_outer(slice_outer(numbered(PRODUCT), 1, 1))
    assert sorted(a.slot for part in parts for a in part.accesses if a.slot is not None) == [0, 1, 2, 3]
    assert [a.slot for a in parts[0].accesses] == [3]


@pytest.mark.parametrize(
    ("trips", "access", "words"),
    [
        ((0,), Access(0, (8,)), "at least 1"),
        ((2,), Access(0, (8, 8)), "2 strides in a nest of 1 loops"),
        ((2,), Access(0, (8,), 0), "1 to 4096 bytes"),
        ((2,), Access(0, (8,), 4097), "1 to 4096 bytes"),
    ],
)
def test_a_nest_that_makes_no_sense_is_refused(trips: tuple[int, ...], access: Access, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Nest(trips, (access,))


def test_the_largest_number_of_accesses_is_tight() -> None:
    assert Nest((1,), (Access(0, (8,)),) * MAX_ACCESSES).length == 64
    with pytest.raises(ValueError, match="at most 64"):
        Nest((1,), (Access(0, (8,)),) * (MAX_ACCESSES + 1))
