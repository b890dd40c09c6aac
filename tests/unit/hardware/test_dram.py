"""DRAM: what each column access finds in its bank, by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hwsim.memory.hierarchy import Hierarchy
from hwsim.spec.dram_device import DEVICES
from hwsim.spec.machine import DramSpec
from hwsim.validation.dram import validate
from hwsim.validation.report import Report


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


def test_a_device_brings_what_is_not_written_and_never_more() -> None:
    """JEDEC's peak figures: a stack of HBM3E at 9.6 Gb/s has 1,024 pins, 1,229 GB/s; of HBM3 819; of HBM2E at 3.6 461.
    A chip of GDDR7 at 32 Gb/s has 32 pins, 128 GB/s; 128 bits of LPDDR5X-8533 have 136.5; a DIMM of DDR5-4800 38.4."""
    peaks = {
        ("hbm3e", 32): 1228.8,
        ("hbm3", 32): 819.2,
        ("hbm2e", 16): 460.8,
        ("gddr7_32", 4): 128,
        ("gddr6_16", 2): 64,
        ("lpddr5x_8533", 8): 136.5,
        ("lpddr5_6400", 8): 102.4,
        ("ddr5_4800", 2): 38.4,
        ("ddr4_3200", 1): 25.6,
    }
    assert {name for name, _ in peaks} == set(DEVICES)
    for (name, channels), gigabytes in peaks.items():
        spec = DramSpec.model_validate({"kind": "dram", "name": "dram", "device": name, "channels": channels})
        assert spec.bandwidth is not None and spec.timing is not None
        assert float(spec.bandwidth.bytes_per_cycle(10**9)) == pytest.approx(gigabytes, rel=1e-3)
        # A row cycle is 40 to 70 ns in every kind of DRAM: faster chips have wider buses, not faster rows.
        assert 40e-9 < float(spec.timing.tras.seconds(1) + spec.timing.trp.seconds(1)) < 70e-9
    own = dram(device="ddr4_3200", bandwidth="10 GB/s", timing=None)
    assert (own.banks, own.row, str(own.bandwidth), own.timing) == (2, 256, "10 GB/s", None)


def test_a_load_whose_row_is_open_waits_less_by_closing_and_opening() -> None:
    """Ramulator 2.1, DDR4-3200: 27.5 ns in an open row, 54 ns where another row is open; timing says 13.75 ns for
    each of the two commands between."""
    spec = DramSpec.model_validate(
        {"kind": "dram", "name": "dram", "device": "ddr4_3200", "latency": "55 ns", "latency_of": "conflict"}
    )
    hit, miss, conflict = (float(spec.mean_latency(*counts, 10**9)) for counts in ((9, 0, 0), (0, 9, 0), (0, 0, 9)))
    assert (hit, miss, conflict) == (pytest.approx(27.5e-9), pytest.approx(41.25e-9), pytest.approx(55e-9))
    assert float(spec.mean_latency(1, 0, 1, 10**9)) == pytest.approx((hit + conflict) / 2)
    assert dram(latency="55 ns", timing=None).mean_latency(9, 0, 0, 10**9) == Fraction(55, 10**9)


def test_reads_in_patterns_take_as_long_as_in_ramulator() -> None:
    *_, report = validate()
    assert isinstance(report, Report)
    assert report.passed, report.bars
    assert {row.id for row in report.results} == {"row conflict", "random"}
