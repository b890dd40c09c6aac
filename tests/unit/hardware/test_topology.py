"""Which caches a machine has, what they are called, and which of them each core goes through."""

from __future__ import annotations

from hwsim.memory.counters import Topology
from hwsim.spec.machine import CacheSpec


def level(name: str, shared_by: int | str = 1, **fields: object) -> CacheSpec:
    given = {"kind": "cache", "name": name, "size": "4 KiB", "ways": 4, "shared_by": shared_by, **fields}
    return CacheSpec.model_validate(given)


def names(topology: Topology) -> list[str]:
    return [instance.name for instance in topology.instances]


def test_private_levels_are_named_for_their_core_and_shared_ones_for_themselves() -> None:
    topology = Topology.build([level("l1"), level("l3", "all")], cores=2)
    assert names(topology) == ["core[0].l1", "core[1].l1", "l3"]
    assert topology.chains.tolist() == [[0, 2], [1, 2]]


def test_a_level_shared_by_some_is_numbered() -> None:
    topology = Topology.build([level("l1"), level("l2", 2), level("l3", "all")], cores=4, unit="sm")
    assert names(topology) == ["sm[0].l1", "sm[1].l1", "sm[2].l1", "sm[3].l1", "l2[0]", "l2[1]", "l3"]
    assert topology.chains.tolist() == [[0, 4, 6], [1, 4, 6], [2, 5, 6], [3, 5, 6]]


def test_cores_that_do_not_fill_the_last_shared_instance_still_have_one() -> None:
    topology = Topology.build([level("l2", 2)], cores=3)
    assert names(topology) == ["l2[0]", "l2[1]"]
    assert topology.chains.tolist() == [[0], [0], [1]]


def test_one_core_has_private_and_shared_names() -> None:
    assert names(Topology.build([level("l1"), level("l2", 8), level("l3", "all")])) == [
        "core[0].l1",
        "l2",
        "l3",
    ]


def test_the_grain_is_the_sector_of_the_first_level() -> None:
    assert Topology.build([level("l1", sector="32 B"), level("l2")]).grain == 32
    assert Topology.build([level("l1", line="128 B")]).grain == 128
    assert Topology.build([]).grain == 64


def test_random_starts_differ_between_instances_and_seeds_and_are_never_zero() -> None:
    topology = Topology.build([level("l1")], cores=8)
    first, again, other = (topology.random_seeds(seed).tolist() for seed in (0, 0, 1))
    assert first == again
    assert len({*first, *other}) == 16
    assert all(first)
