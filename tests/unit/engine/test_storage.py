"""A level behind DRAM: each page of the inputs crosses its link once (row M5 of the mission)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hwsim
from hwsim.errors import CapacityError, InputError

MACHINE = """
format: 1
name: with_disk
extends: course_cpu
description: Registers, L1, L2, DRAM and a disk.
memory:
  - {name: disk, after: dram, kind: storage, shared_by: all, size: 1 GiB, latency: 100 us,
     bandwidth: 1 GB/s, source: test}
"""
PRICE = """
energy:
  actions:
    disk.read: {energy: 100 pJ/bit, source: test}
"""
STAGING = "staging from disk"


@pytest.fixture
def machine(tmp_path: Path) -> str:
    path = tmp_path / "with_disk.yaml"
    path.write_text(MACHINE + PRICE, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("workload", "sizes", "inputs"),
    [
        ("add", {"n": 65536}, 2 * 65536 * 4),
        ("unfused", {"n": 65536}, 4 * 65536 * 4),
        ("matmul_tiled", {"n": 64}, 2 * 64 * 64 * 4),
        ("stream_read", {"bytes": "64 KiB", "passes": 8}, 64 * 1024),
    ],
)
def test_every_input_byte_is_staged_once(machine: str, workload: str, sizes: dict[str, Any], inputs: int) -> None:
    """What is read again, and what the run makes itself, comes from DRAM. Three passes pay three latencies."""
    result = hwsim.run(machine, workload, **sizes)
    assert result.verified
    steps = 3 if workload == "unfused" else 1
    assert result.bounds["parts"][STAGING] == pytest.approx(steps * 100e-6 + inputs / 1e9)
    assert result.energy_by_cause is not None
    assert result.energy_by_cause["memory"]["disk.read"]["count"] == 8 * inputs


def test_the_disk_decides_the_time_of_a_single_pass(machine: str) -> None:
    with_disk, without = (hwsim.run(name, "add", n=65536) for name in (machine, "course_cpu"))
    assert with_disk.time_s == pytest.approx(100e-6 + 2 * 65536 * 4 / 1e9)
    assert with_disk.memory == without.memory
    assert with_disk.attribution["core[0]"]["waiting"][STAGING] > 0


def test_cores_share_the_link_of_the_disk(machine: str) -> None:
    """Each stages its half; together they take no less than all bytes at 1 GB/s."""
    result = hwsim.run(machine, "add", n=65536, parallel="rows", cores=2)
    assert result.time_s > 2 * 65536 * 4 / 1e9
    assert result.energy_by_cause is not None
    assert result.energy_by_cause["memory"]["disk.read"]["count"] == 8 * 2 * 65536 * 4


def test_without_overlap_staging_comes_on_top(machine: str) -> None:
    result, without = (
        hwsim.run(name, "add", n=65536, set={"core.overlap": "none"}) for name in (machine, "course_cpu")
    )
    assert result.time_s == pytest.approx(without.time_s + 100e-6 + 2 * 65536 * 4 / 1e9)


def test_a_run_that_needs_more_than_the_disk_has_is_refused(machine: str) -> None:
    with pytest.raises(CapacityError, match=r"needs 768 KiB from disk, which has 64 KiB"):
        hwsim.run(machine, "add", n=65536, set={"disk.size": "64 KiB"})


def test_reading_the_disk_has_a_price_or_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "with_disk.yaml"
    path.write_text(MACHINE, encoding="utf-8")
    with pytest.raises(InputError, match=r"no energy price for disk\.read"):
        hwsim.run(str(path), "add", n=64)
