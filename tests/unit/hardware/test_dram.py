"""DRAM: what each column access finds in its bank, by hand."""

from __future__ import annotations

import numpy as np

from hwsim.memory.hierarchy import Hierarchy
from hwsim.spec.machine import DramSpec


def dram(**fields: object) -> DramSpec:
    small = {
        "kind": "dram",
        "name": "dram",
        "channels": 1,
        "banks": 2,
        "row": "256 B",
        "burst": "64 B",
        **fields,
    }
    return DramSpec.model_validate(small)


def found(spec: DramSpec, *addresses: int, nbytes: int = 64) -> tuple[int, int, int]:
    """Row hits, misses and conflicts of reads that no cache stands in front of."""
    hierarchy = Hierarchy([], spec)
    count = len(addresses)
    hierarchy.feed(np.array(addresses, np.uint64), np.zeros(count, np.bool_), np.full(count, nbytes, np.uint16))
    counters = hierarchy.dram.counters
    assert counters.reads == count
    assert counters.activates == counters.row_misses + counters.row_conflicts
    return counters.row_hits, counters.row_misses, counters.row_conflicts


def test_a_row_stays_open_until_another_row_of_its_bank_is_wanted() -> None:
    """row:bank:column: rows of 256 B alternate between two banks; 0 and 512 are rows 0 and 1 of bank 0."""
    spec = dram(mapping="row:rank:bank:column:channel")
    assert found(spec, 0, 64, 128, 192) == (3, 1, 0)
    assert found(spec, 0, 256, 0, 256) == (2, 2, 0)
    assert found(spec, 0, 512, 0) == (0, 1, 2)


def test_with_closed_pages_every_access_opens_its_row() -> None:
    assert found(dram(page="closed"), 0, 64, 512, 0) == (0, 4, 0)


def test_the_mapping_decides_which_bank_an_address_is_in() -> None:
    """row:column:bank: neighbouring bursts lie in different banks, and a row of both banks spans 512 B."""
    spec = dram(mapping="row:rank:column:bank:channel")
    assert found(spec, 0, 64, 128, 192) == (2, 2, 0)
    assert found(spec, 0, 256) == (1, 1, 0)
    assert found(spec, 0, 512) == (0, 1, 1)


def test_channels_and_ranks_have_banks_of_their_own() -> None:
    """Lowest bits choose the channel, then the column, then the bank, then the rank: 2 x 256 B x 2 banks = 1024 B."""
    spec = dram(channels=2, ranks=2, mapping="row:rank:bank:column:channel")
    assert found(spec, 0, 64) == (0, 2, 0)
    assert found(spec, 0, 1024) == (0, 2, 0)
    assert found(spec, 0, 2048) == (0, 1, 1)


def test_a_line_longer_than_a_burst_takes_several_column_accesses() -> None:
    assert found(dram(burst="32 B"), 0, 64) == (3, 1, 0)


def test_bytes_and_requests_are_counted_without_a_description_of_rows_too() -> None:
    hierarchy = Hierarchy([])
    sizes = np.full(2, 64, np.uint16)
    hierarchy.feed(np.array([0, 64], np.uint64), np.array([False, True]), sizes)
    counters = hierarchy.dram.counters
    assert (counters.reads, counters.writes) == (1, 1)
    assert (counters.bytes_read, counters.bytes_written) == (64, 64)
    assert counters.activates == 0
