"""Two cores with private L1 and a shared L2: what one brings the other finds, in both models."""

from __future__ import annotations

import numpy as np
import pytest

from hwsim.memory.coupled import CoupledCaches
from hwsim.memory.dram import Dram
from hwsim.memory.hierarchy import Hierarchy
from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import Access, Nest


def levels(**l2: object) -> list[CacheSpec]:
    first = {"kind": "cache", "name": "l1", "size": "512 B", "ways": 2}
    second = {"kind": "cache", "name": "l2", "size": "2 KiB", "ways": 4, "shared_by": "all", **l2}
    return [CacheSpec.model_validate(given) for given in (first, second)]


def touch(hierarchy: Hierarchy, core: int, *addresses: int, write: bool = False) -> None:
    count = len(addresses)
    sizes = np.full(count, 8, np.uint16)
    hierarchy.feed(np.array(addresses, np.uint64), np.full(count, write), sizes, core=core)


def resident(hierarchy: Hierarchy, name: str) -> set[int]:
    return {line for group in hierarchy.contents(name) for line, _ in group}


@pytest.mark.parametrize("policy", ["lru", "plru"])
def test_a_line_brought_by_one_core_hits_in_the_shared_level_for_the_other(policy: str) -> None:
    hierarchy = Hierarchy(levels(replacement=policy), cores=2)
    touch(hierarchy, 0, 0)
    touch(hierarchy, 1, 0)
    counters = hierarchy.counters()
    assert counters["core[0].l1"].read_misses == counters["core[1].l1"].read_misses == 1
    assert (counters["l2"].reads, counters["l2"].read_misses) == (2, 1)
    assert hierarchy.dram.counters.reads == 1
    assert hierarchy.level_counters()["l1"].read_misses == 2


def test_an_inclusive_level_takes_the_line_it_loses_from_both_cores() -> None:
    """Line 0 stays in use in both L1s, which L2 does not see; four more lines of its set drive it out of L2."""
    hierarchy = Hierarchy(levels(inclusion="inclusive"), cores=2)
    touch(hierarchy, 0, 0)
    touch(hierarchy, 1, 0, write=True)
    touch(hierarchy, 0, 8 * 64, 0, 16 * 64, 0, 24 * 64, 0)
    names = ("l2", "core[0].l1", "core[1].l1")
    assert all(0 in resident(hierarchy, name) for name in names)
    touch(hierarchy, 0, 32 * 64)
    assert not any(0 in resident(hierarchy, name) for name in names)
    counters = hierarchy.counters()
    assert counters["l2"].back_invalidations == 2
    assert (counters["core[0].l1"].writebacks, counters["core[1].l1"].writebacks) == (0, 1)
    assert counters["l2"].writebacks == hierarchy.dram.counters.writes == 1


def test_a_level_that_includes_nothing_leaves_the_cores_alone() -> None:
    hierarchy = Hierarchy(levels(), cores=2)
    touch(hierarchy, 0, 0)
    touch(hierarchy, 1, *(n * 8 * 64 for n in range(1, 5)))
    assert 0 not in resident(hierarchy, "l2")
    assert 0 in resident(hierarchy, "core[0].l1")


def test_both_models_agree_on_interleaved_cores() -> None:
    specs = levels()
    plain = Hierarchy(specs, cores=2)
    general = CoupledCaches(plain.topology, Dram.build(None), 0)
    for turn in range(6):
        nest = Nest((3, 40), (Access(turn * 640, (0, 24)), Access(8192 + turn * 64, (8, 64), write=turn % 2 == 0)))
        plain.replay(nest, core=turn % 2)
        general.walk(nest, turn % 2)
    assert plain.model == "stream"
    assert (general.counters == plain.caches.counters).all()
    assert (general.dram.counts == plain.dram.counts).all()
    for number, instance in enumerate(plain.topology.instances):
        assert general.contents(number) == plain.contents(instance.name)


def test_a_replay_reports_only_the_chain_of_its_core() -> None:
    hierarchy = Hierarchy(levels(), cores=2)
    nest = Nest((4,), (Access(0, (64,)),))
    hierarchy.replay(nest, core=0)
    traffic = hierarchy.replay(nest, core=1)
    assert (traffic.levels["l1"].read_misses, traffic.levels["l2"].read_misses) == (4, 0)
    assert traffic.misses["l1"][0] == 4
    assert traffic.dram.reads == 0
