"""A machine's description becomes the hierarchy that it describes."""

from __future__ import annotations

import numpy as np

from hwsim.catalog import load_machine
from hwsim.memory.hierarchy import build_hierarchy


def test_every_core_has_its_private_caches_and_one_chain() -> None:
    hierarchy = build_hierarchy(load_machine("course_cpu").spec)
    names = [f"core[{core}].{level}" for level in ("l1", "l2") for core in range(4)]
    assert list(hierarchy.counters()) == names
    assert hierarchy.topology.chains.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_fewer_cores_can_be_built() -> None:
    hierarchy = build_hierarchy(load_machine("course_cpu").spec, cores=1)
    assert list(hierarchy.counters()) == ["core[0].l1", "core[0].l2"]


def test_a_shared_level_is_one_instance() -> None:
    machine = load_machine("course_cpu", ["l2.shared_by=all"]).spec
    assert list(build_hierarchy(machine).counters())[4:] == ["l2"]


def test_the_rows_of_main_memory_come_from_the_machine() -> None:
    """Two lines of one 8 KiB row, then one 16 banks x 8 KiB further: the same bank, another row."""
    hierarchy = build_hierarchy(load_machine("course_cpu").spec, cores=1)
    addresses = np.array([0, 64, 16 * 8192], np.uint64)
    traffic = hierarchy.feed(addresses, np.zeros(3, np.bool_), np.full(3, 4, np.uint16))
    assert (traffic.dram.row_misses, traffic.dram.row_hits, traffic.dram.row_conflicts) == (1, 1, 1)


def test_options_reach_the_hierarchy() -> None:
    machine = load_machine("course_cpu").spec
    assert build_hierarchy(machine, cores=1).compress
    assert build_hierarchy(machine, cores=1).warp
    plain = build_hierarchy(machine, cores=1, compress=False, warp=False)
    assert not plain.compress
    assert not plain.warp
