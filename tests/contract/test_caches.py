"""What every replacement policy promises in every model of a hierarchy that can run it."""

from __future__ import annotations

import numpy as np
import pytest

from hwsim.memory.counters import CacheCounters, Topology
from hwsim.memory.coupled import CoupledCaches
from hwsim.memory.dram import Dram
from hwsim.memory.hierarchy import Caches
from hwsim.memory.replacement import POLICIES
from hwsim.memory.stream import STREAM_POLICIES, StreamCaches
from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import split_accesses

SETS, WAYS, LINE = 4, 4, 64
PAIRS = [("coupled", policy) for policy in POLICIES] + [("stream", policy) for policy in STREAM_POLICIES]
every_policy_and_model = pytest.mark.parametrize(("model", "policy"), PAIRS)


def build(model: str, policy: str, seed: int = 0) -> Caches:
    given = {"kind": "cache", "name": "l1", "size": f"{SETS * WAYS * LINE} B", "ways": WAYS, "replacement": policy}
    topology = Topology.build([CacheSpec.model_validate(given)])
    models = {"coupled": CoupledCaches, "stream": StreamCaches}
    return models[model](topology, Dram.build(None), seed)


def feed(caches: Caches, lines: list[int], write: bool = False) -> None:
    addresses = np.array(lines, np.uint64) * np.uint64(LINE)
    sizes = np.full(len(lines), 8, np.uint16)
    caches.feed(split_accesses(addresses, np.full(len(lines), write), sizes, LINE), 0)


def counters(caches: Caches) -> CacheCounters:
    return CacheCounters.of(caches.counters[0])


def scattered(count: int = 3000) -> list[int]:
    return [int(n) for n in np.random.default_rng(11).integers(0, 40, count)]


def test_every_policy_that_a_machine_file_may_name_is_under_test() -> None:
    allowed = CacheSpec.model_json_schema()["properties"]["replacement"]["enum"]
    assert sorted(allowed) == sorted(POLICIES)


@every_policy_and_model
def test_hits_and_misses_are_all_accesses(model: str, policy: str) -> None:
    caches = build(model, policy)
    feed(caches, scattered())
    feed(caches, scattered(500), write=True)
    found = counters(caches)
    assert (found.reads, found.writes) == (3000, 500)
    assert found.hits + found.misses == 3500
    assert 0 < found.misses < 3500


@every_policy_and_model
def test_a_cache_never_holds_more_than_it_has_room_for(model: str, policy: str) -> None:
    caches = build(model, policy)
    for line in scattered(400):
        feed(caches, [line])
        groups = caches.contents(0)
        assert len(groups) == SETS
        for number, group in enumerate(groups):
            lines = [line for line, _ in group]
            assert len(lines) <= WAYS
            assert len(set(lines)) == len(lines)
            assert all(line % SETS == number for line in lines)


@every_policy_and_model
def test_the_line_just_used_is_there(model: str, policy: str) -> None:
    caches = build(model, policy)
    for line in scattered(200):
        feed(caches, [line])
        before = counters(caches).misses
        feed(caches, [line])
        assert counters(caches).misses == before


@every_policy_and_model
def test_what_fits_misses_once(model: str, policy: str) -> None:
    caches = build(model, policy)
    feed(caches, list(range(SETS * WAYS)) * 5)
    assert counters(caches).misses == SETS * WAYS


@every_policy_and_model
def test_one_line_more_than_a_set_has_ways_does_not_fit(model: str, policy: str) -> None:
    caches = build(model, policy)
    feed(caches, [SETS * n for n in range(WAYS + 1)] * 5)
    assert counters(caches).misses > WAYS + 1


@every_policy_and_model
def test_every_modified_line_is_written_back_or_still_there(model: str, policy: str) -> None:
    """Each line is stored to once: each leaves modified once, or is still there."""
    caches = build(model, policy)
    feed(caches, list(range(100)), write=True)
    dirty = sum(modified for group in caches.contents(0) for _, modified in group)
    assert counters(caches).writebacks + dirty == 100


@every_policy_and_model
def test_the_same_seed_gives_the_same_counts_and_state(model: str, policy: str) -> None:
    first, again = build(model, policy, seed=5), build(model, policy, seed=5)
    for caches in (first, again):
        feed(caches, scattered())
    assert (first.counters == again.counters).all()
    assert first.contents(0) == again.contents(0)


@every_policy_and_model
def test_another_seed_matters_to_random_alone(model: str, policy: str) -> None:
    first, other = build(model, policy, seed=5), build(model, policy, seed=6)
    for caches in (first, other):
        feed(caches, scattered())
    assert (first.contents(0) != other.contents(0)) == (policy == "random")


@pytest.mark.parametrize("policy", STREAM_POLICIES)
def test_both_models_of_a_policy_agree(policy: str) -> None:
    stream, coupled = build("stream", policy, seed=3), build("coupled", policy, seed=3)
    for caches in (stream, coupled):
        feed(caches, scattered(), write=True)
        feed(caches, scattered(1000))
    assert counters(stream).misses == counters(coupled).misses
    assert counters(stream).writebacks == counters(coupled).writebacks
    assert [set(g) for g in stream.contents(0)] == [set(g) for g in coupled.contents(0)]
