"""The compiled walk makes the events of a nest, in any number of pieces."""

from __future__ import annotations

import numpy as np
import pytest

from hwsim.errors import TraceError
from hwsim.trace.nest import (
    BYTES_MASK,
    BYTES_SHIFT,
    KIND,
    LINE_SHIFT,
    STORE,
    Access,
    Nest,
    OffsetTable,
    address_limit,
    event_template,
    split_accesses,
)
from hwsim.trace.walk import begin, fill, lines_touched, pack_nest

GRAIN = 64
NESTS = {
    "outside all loops": Nest((), (Access(100, ()), Access(60, (), 8, write=True, after=True))),
    "no body": Nest((7, 9), (Access(0, ()), Access(4096, (8,)), Access(8192, (8,), write=True, after=True))),
    "product": Nest(
        (3, 4, 50),
        (Access(0, (400, 0, 8)), Access(4096, (0, 8, 32)), Access(9000, (32, 8), write=True, after=True)),
    ),
    "unit stride": Nest((3, 70), (Access(0, (560, 8)), Access(4104, (560, 8), write=True), Access(8192, (8,)))),
    "straddling": Nest((40,), (Access(60, (12,), 30), Access(5000, (-7,), 200, write=True))),
    "backwards": Nest((2, 33), (Access(9000, (8, -8)), Access(20000, (0, 0), write=True))),
    "gather": Nest((2, 3), (Access(0, (0, 0), table=OffsetTable(np.array([640, 0, 7, 64, 130, 60]), (3, 1))),)),
}


def walked(nest: Nest, size: int | None = None, limit: int = 0) -> tuple[list[np.uint64], list[int], int]:
    """All events, how many each call gave, and how many accesses run compression left out."""
    packed = pack_nest(nest, GRAIN)
    cursor = begin(packed)
    buffer = np.zeros(size or packed.buffer_events, np.uint64)
    events: list[np.uint64] = []
    counts = []
    while not cursor.done:
        count = fill(
            packed.trips, packed.strides, packed.template, packed.order, packed.table, packed.table_strides,
            cursor.counters, cursor.address, cursor.entry, cursor.skipped, buffer, 6, 64, limit,
        )  # fmt: skip
        assert count <= len(buffer)
        counts.append(int(count))
        events += buffer[:count].tolist()
    return events, counts, int(cursor.skipped.sum())


def expected(nest: Nest) -> list[tuple[int, int, bool]]:
    """(line, bytes, write) of each access, cut at lines, from the plain-Python order of `addresses`."""
    pieces = []
    for address, nbytes, write in nest.addresses():
        end = address + nbytes
        while address < end:
            stop = min(end, (address // GRAIN + 1) * GRAIN)
            pieces.append((address // GRAIN, stop - address, write))
            address = stop
    return pieces


def decoded(events: list[np.uint64]) -> list[tuple[int, int, bool]]:
    return [
        (int(e) >> int(LINE_SHIFT), (int(e) >> int(BYTES_SHIFT) & int(BYTES_MASK)) + 1, int(e) & int(KIND) == STORE)
        for e in events
    ]  # fmt: skip


@pytest.mark.parametrize("name", NESTS)
def test_the_walk_makes_the_accesses_of_the_nest(name: str) -> None:
    assert decoded(walked(NESTS[name])[0]) == expected(NESTS[name])


@pytest.mark.parametrize("name", NESTS)
@pytest.mark.parametrize("size", [48, 52, 61, 80])
def test_a_walk_in_small_pieces_goes_on_where_it_stopped(name: str, size: int) -> None:
    whole, _, _ = walked(NESTS[name])
    pieces, counts, _ = walked(NESTS[name], size)
    assert pieces == whole
    assert len(counts) > 1 or len(whole) <= size


@pytest.mark.parametrize("size", [None, 48, 61])
def test_a_compressed_walk_stands_for_every_access(size: int | None) -> None:
    nest = NESTS["unit stride"]
    events, _, skipped = walked(nest, size, limit=8)
    assert len(events) + skipped == nest.length
    assert skipped > 0
    assert {line for line, _, _ in decoded(events)} == {line for line, _, _ in expected(nest)}


def test_one_event_stands_for_a_line_of_each_aligned_access() -> None:
    """64 doubles are 8 lines: 8 runs, one event of each of the two accesses in each of them."""
    nest = Nest((64,), (Access(0, (8,)), Access(4096, (8,), write=True)))
    events, _, skipped = walked(nest, limit=8)
    assert [line for line, _, _ in decoded(events)] == [n for line in range(8) for n in (line, 64 + line)]
    assert skipped == 2 * 64 - 16


def test_accesses_that_turn_over_lines_at_different_places_are_cut_at_both() -> None:
    """The second begins in the middle of a line: runs of 4 iterations, not of 8."""
    nest = Nest((64,), (Access(0, (8,)), Access(4096 + 32, (8,))))
    events, _, skipped = walked(nest, limit=8)
    assert len(events) == 2 * 16
    assert skipped == 2 * 64 - 32


def test_lines_that_could_drive_each_other_out_are_not_compressed() -> None:
    """Three lines of one set, while the limit is two."""
    nest = Nest((8,), tuple(Access(number * 4096, (8,)) for number in range(3)))
    assert walked(nest, limit=2)[2] == 0
    assert walked(nest, limit=3)[2] == 3 * 7


def test_lines_touched_is_an_upper_bound() -> None:
    for nest in NESTS.values():
        assert lines_touched(nest, GRAIN) >= len({line for line, _, _ in expected(nest)})


def test_an_event_carries_kind_bytes_and_access() -> None:
    event = event_template(STORE, 4096, 63)
    assert (event & 3, (event >> 2 & 0xFFF) + 1, event >> 14) == (STORE, 4096, 63)


def accesses(*triples: tuple[int, bool, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    addresses, writes, sizes = zip(*triples, strict=True)
    return np.array(addresses, np.uint64), np.array(writes, np.bool_), np.array(sizes, np.uint16)


def test_given_accesses_are_split_at_lines() -> None:
    events = split_accesses(*accesses((60, False, 8), (64, True, 64), (0, True, 200)), GRAIN)
    assert decoded(events.tolist()) == [
        (0, 4, False), (1, 4, False), (1, 64, True), (0, 64, True), (1, 64, True), (2, 64, True), (3, 8, True),
    ]  # fmt: skip


def test_no_accesses_make_no_events() -> None:
    empty = np.zeros(0, np.uint64), np.zeros(0, np.bool_), np.zeros(0, np.uint16)
    assert len(split_accesses(*empty, GRAIN)) == 0


def test_the_largest_address_is_tight() -> None:
    limit = address_limit(GRAIN)
    assert len(split_accesses(*accesses((limit - 9, False, 8)), GRAIN)) == 1
    with pytest.raises(TraceError, match=f"limit is {limit:#x}"):
        split_accesses(*accesses((limit - 8, False, 8)), GRAIN)


@pytest.mark.parametrize("base", [-8, address_limit(GRAIN) - 8 * 9])
def test_a_nest_outside_all_addresses_is_refused(base: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        pack_nest(Nest((10,), (Access(base, (8,)),)), GRAIN)
