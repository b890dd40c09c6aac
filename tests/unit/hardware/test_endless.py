"""A cache of `size: inf` misses each line once and gives nothing up: in both models, whatever lies around it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from hwsim.memory.counters import Topology
from hwsim.memory.coupled import CoupledCaches
from hwsim.memory.dram import Dram
from hwsim.memory.hierarchy import Hierarchy
from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import Access, Nest

SWEEPS = Nest((3, 5000), (Access(0, (0, 64)), Access(1 << 24, (0, 64), write=True)))
"""Two arrays of 5000 lines, three times: more than the first hash table holds."""
LINES = 2 * 5000


def endless(name: str, **fields: object) -> CacheSpec:
    return CacheSpec.model_validate({"kind": "cache", "name": name, "size": "inf", "ways": 1, **fields})


def small(name: str, **fields: object) -> CacheSpec:
    return CacheSpec.model_validate({"kind": "cache", "name": name, "size": "4 KiB", "ways": 4, **fields})


def test_only_compulsory_misses_remain() -> None:
    hierarchy = Hierarchy([endless("l1")])
    traffic = hierarchy.replay(SWEEPS)
    assert hierarchy.model == "stream"
    assert (traffic.levels["l1"].misses, traffic.levels["l1"].writebacks) == (LINES, 0)
    assert (traffic.dram.reads, traffic.dram.writes) == (LINES, 0)


def test_the_general_model_agrees() -> None:
    specs = [small("l1"), endless("l2")]
    plain = Hierarchy(specs)
    general = CoupledCaches(Topology.build(specs), Dram.build(None), 0)
    plain.replay(SWEEPS)
    general.walk(SWEEPS, 0)
    assert (general.counters == plain.caches.counters).all()
    assert general.contents(1) == plain.contents("core[0].l2")
    assert plain.counters()["core[0].l2"].misses == LINES


@pytest.mark.parametrize(
    "specs",
    [
        [small("l1", prefetch={"kind": "next_line", "degree": 4}), endless("l2")],
        [
            small("l1", prefetch={"kind": "stride", "degree": 64}),
            endless("l2", prefetch={"kind": "next_line", "degree": 64}),
        ],
        [small("l1"), endless("l2", inclusion="inclusive")],
        [small("l1", replacement="plru"), endless("l2")],
    ],
    ids=["next line above", "far prefetches in both", "inclusive", "plru above"],
)  # fmt: skip
def test_nothing_is_asked_of_memory_twice(specs: list[CacheSpec]) -> None:
    hierarchy = Hierarchy(specs)
    hierarchy.replay(SWEEPS)
    assert hierarchy.model == "coupled"
    (contents,) = hierarchy.contents("core[0].l2")
    assert hierarchy.dram.counters.reads == len(contents) >= LINES
    assert hierarchy.dram.counters.writes == 0
    assert hierarchy.counters()["core[0].l2"].back_invalidations == 0


def test_an_exclusive_endless_cache_keeps_what_leaves_the_first() -> None:
    hierarchy = Hierarchy([small("l1"), endless("l2", inclusion="exclusive")])
    hierarchy.replay(SWEEPS)
    assert hierarchy.dram.counters.reads == LINES
    inner = sum(len(group) for group in hierarchy.contents("core[0].l1"))
    outer = sum(len(group) for group in hierarchy.contents("core[0].l2"))
    assert inner + outer == LINES


def test_an_endless_cache_in_front_hides_the_one_behind() -> None:
    hierarchy = Hierarchy([endless("l1"), small("l2", inclusion="none", replacement="srrip")])
    traffic = hierarchy.replay(SWEEPS)
    assert traffic.levels["l2"].reads == LINES


@pytest.mark.parametrize("policy", ["lru", "plru"])
def test_lines_a_power_of_two_apart_do_not_crowd_the_hash_table(policy: str) -> None:
    """Their numbers share all low bits. A poor hash puts them in a few places and takes minutes; a good one no time."""
    far = Nest((20_000,), (Access(0, (1 << 18,)),))
    Hierarchy([small("l1", replacement=policy), endless("l2")]).replay(SWEEPS)
    hierarchy = Hierarchy([small("l1", replacement=policy), endless("l2")])
    began = time.process_time()
    assert hierarchy.replay(far).levels["l2"].misses == 20_000
    assert time.process_time() - began < 0.25


def test_given_accesses_grow_the_table_too() -> None:
    for specs in ([endless("l1")], [small("l1", replacement="plru"), endless("l2")]):
        hierarchy = Hierarchy(specs)
        addresses = np.arange(50_000, dtype=np.uint64) * np.uint64(64)
        hierarchy.feed(addresses, np.zeros(50_000, np.bool_), np.full(50_000, 8, np.uint16))
        assert hierarchy.dram.counters.reads == 50_000


def test_prefetches_of_scattered_accesses_do_not_overfill_the_table() -> None:
    """Every access brings its line and eight more: a table sized by the accesses alone has no free place left."""
    hierarchy = Hierarchy([small("l1", prefetch={"kind": "next_line", "degree": 8}), endless("l2")])
    count = 20_000
    addresses = np.arange(count, dtype=np.uint64) * np.uint64(64 * 16)
    hierarchy.feed(addresses, np.zeros(count, np.bool_), np.full(count, 8, np.uint16))
    assert hierarchy.dram.counters.reads == 9 * count
