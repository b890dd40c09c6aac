"""Products with fewer multiplications or fewer bytes: rows A12, T22 and T23."""

from __future__ import annotations

from typing import Any

import pytest

import hwsim
from hwsim import RunResult
from hwsim.ops.strassen import strassen_products

PASS_STORES_ON = {"l1.write_allocate": "false", "l2.write_allocate": "false"}
"""A store that misses brings no line in, as the course counts."""
ELEMENT_BYTES = 4
GOOD = {"vector": True, "v1": 4, "tile": 64}
"""A register tile and cache tiles, for the plain product and for those at the bottom of the recursion."""


def dram_bytes(result: RunResult) -> int:
    return result.memory["dram"].bytes_read + result.memory["dram"].bytes_written


def strassen(n: int, levels: int, **more: Any) -> RunResult:
    return hwsim.run("course_cpu", "matmul_strassen", n=n, cutoff=1, levels=levels, math=False, **GOOD | more)


def test_a12_the_compulsory_traffic_of_one_product_and_of_three() -> None:
    """A12: 3(d² + 2dn) = 61,440 elements become 3d² + 4dn = 45,056 at d = 64, n = 128: 1.36 times fewer."""
    d, n = 64, 128
    merged, separate = (hwsim.run("course_cpu", f"qkv_{name}", d=d, n=n) for name in ("merged", "separate"))
    assert merged.verified and separate.verified
    assert merged.work["macs"] == separate.work["macs"] == 3 * d * d * n
    per_byte = {}
    for name, result in (("merged", merged), ("separate", separate)):
        (row,) = (row for row in result.formulas if row["name"].startswith("arithmetic intensity"))
        per_byte[name] = row["predicted"]
    assert 6 * d * d * n / per_byte["merged"] / ELEMENT_BYTES == pytest.approx(45_056)
    assert 6 * d * d * n / per_byte["separate"] / ELEMENT_BYTES == pytest.approx(61_440)
    assert per_byte["merged"] / per_byte["separate"] == pytest.approx(1.36, abs=0.005)


def test_a12_dram_moves_exactly_that_where_each_product_begins_with_cold_caches() -> None:
    """Three products, each in a run of its own, against one: every element once, h three times or once."""
    schedule = {"order": "ijk", "v1": 4, "set": PASS_STORES_ON}
    alone = hwsim.run("course_cpu", "matmul_simd", m=64, n=128, k=64, **schedule)
    merged = hwsim.run("course_cpu", "qkv_merged", d=64, n=128, set=PASS_STORES_ON)
    assert 3 * dram_bytes(alone) == 61_440 * ELEMENT_BYTES
    assert dram_bytes(merged) == 45_056 * ELEMENT_BYTES


def test_a12_a_cache_that_keeps_h_saves_as_much_as_merging() -> None:
    """In one run, h (32 KiB) is still in the 256 KiB of L2 when the second product begins."""
    runs = [hwsim.run("course_cpu", f"qkv_{name}", set=PASS_STORES_ON) for name in ("merged", "separate")]
    assert dram_bytes(runs[0]) == dram_bytes(runs[1])


def test_t22_seven_products_instead_of_eight_on_every_level() -> None:
    """T22: at full recursion n = 1024 takes 7^10 multiplications instead of 8^10: 3.8 times fewer."""
    assert strassen_products(1024, 1024, 1024, 10) == 7**10
    assert 1024**3 / strassen_products(1024, 1024, 1024, 10) == pytest.approx(3.8, abs=0.01)
    for levels in (0, 1, 2):
        result = strassen(64, levels)
        assert result.work["macs"] == 64**3 * 7**levels // 8**levels
    assert hwsim.run("course_cpu", "matmul_strassen", n=96, cutoff=24).verified


def test_t22_fewer_multiplications_more_additions_more_traffic_more_memory() -> None:
    plain, once, twice = (strassen(128, levels) for levels in (0, 1, 2))
    assert plain.work["macs"] > once.work["macs"] > twice.work["macs"]
    additions = [result.work["flops"] - 2 * result.work["macs"] for result in (plain, once, twice)]
    assert additions[0] == 0
    assert additions[1] == 18 * 64**2
    assert additions[2] == 18 * 64**2 + 7 * 18 * 32**2
    assert dram_bytes(plain) < dram_bytes(once) < dram_bytes(twice)
    assert plain.peak_memory_bytes < once.peak_memory_bytes < twice.peak_memory_bytes
    assert once.peak_memory_bytes - plain.peak_memory_bytes == 3 * 64**2 * ELEMENT_BYTES


def test_t22_the_crossover_lies_between_288_and_544_on_the_course_machine() -> None:
    """One level saves an eighth of the multiplications; below the crossover its additions cost more than that.

    At 512 it would seem to save half: the rows of its halves no longer crowd into one set."""
    small = strassen(288, 0, tile=48).cycles, strassen(288, 1, tile=48).cycles
    large = strassen(544, 0, tile=48).cycles, strassen(544, 1, tile=48).cycles
    assert small[1] > small[0]
    assert 7 / 8 < large[1] / large[0] < 1


def test_t23_on_a_machine_bound_by_memory_the_exponent_does_not_help() -> None:
    """T23: operations per byte decide. With a sixteenth of the bandwidth the plain product wins at 544 too."""
    slow = {"dram.bandwidth": "1.6 GB/s"}
    plain, once = (strassen(544, levels, set=slow, tile=48) for levels in (0, 1))
    assert once.work["macs"] < plain.work["macs"]
    assert dram_bytes(once) > dram_bytes(plain)
    assert once.intensity["levels"]["dram"] < plain.intensity["levels"]["dram"]
    assert once.cycles > plain.cycles
