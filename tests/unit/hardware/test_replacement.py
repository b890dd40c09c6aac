"""Replacement policies against what is published of them, one set at a time and in both models of a hierarchy."""

from __future__ import annotations

import random
from math import log2

import numpy as np
import pytest

from hwsim.memory.counters import Topology
from hwsim.memory.coupled import CoupledCaches
from hwsim.memory.dram import Dram
from hwsim.memory.hierarchy import Caches
from hwsim.memory.replacement import next_random
from hwsim.memory.stream import STREAM_POLICIES, StreamCaches
from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import split_accesses

LINE = 64


class OneSet:
    """A cache of one set: which lines hit, and which are there."""

    def __init__(self, policy: str, ways: int, model: type[CoupledCaches] | type[StreamCaches] = CoupledCaches) -> None:
        given = {"kind": "cache", "name": "l1", "size": f"{ways * LINE} B", "ways": ways, "replacement": policy}
        self.caches: Caches = model(Topology.build([CacheSpec.model_validate(given)]), Dram.build(None), 0)

    @property
    def lines(self) -> set[int]:
        ((*found,),) = self.caches.contents(0)
        return {line for line, _ in found}

    def use(self, line: int) -> bool:
        """Whether it was there."""
        there = line in self.lines
        address = np.array([line * LINE], np.uint64)
        self.caches.feed(split_accesses(address, np.zeros(1, np.bool_), np.full(1, 8, np.uint16), LINE), 0)
        return there


def models_of(policy: str) -> list[type[CoupledCaches] | type[StreamCaches]]:
    return [CoupledCaches, StreamCaches] if policy in STREAM_POLICIES else [CoupledCaches]


def evicted(policy: str, ways: int, lines: list[int]) -> list[int]:
    """Lines in the order in which they leave, the same in all models."""
    orders = []
    for model in models_of(policy):
        one, left = OneSet(policy, ways, model), []
        for line in lines:
            before = one.lines
            one.use(line)
            left += sorted(before - one.lines)
        orders.append(left)
    assert all(each == orders[0] for each in orders)
    return orders[0]


def test_lru_gives_up_what_was_used_longest_ago_and_fifo_what_came_first() -> None:
    """A full set, its first line used again, then three new ones."""
    sequence = [0, 1, 2, 3, 0, 4, 5, 6]
    assert evicted("lru", 4, sequence) == [1, 2, 3]
    assert evicted("fifo", 4, sequence) == [0, 1, 2]


def test_a_tree_of_two_ways_is_lru_and_one_of_four_is_not() -> None:
    """In a tree, using line 0 turns the root to lines 2 and 3, where 2 was used before 3; then to 0 and 1."""
    lines = [random.Random(3).randrange(5) for _ in range(200)]
    assert evicted("plru", 2, lines) == evicted("lru", 2, lines)
    assert evicted("plru", 4, [0, 1, 2, 3, 0, 4, 5]) == [2, 1]


def test_srrip_keeps_what_was_used_twice_from_a_scan_as_in_its_paper() -> None:
    """Jaleel et al., ISCA 2010, figure 2: a1 a2 a2 a1, a scan of b1 to b4, and a1 a2 once more in four ways."""
    a1, a2, *scan = range(6)
    mixed = [a1, a2, a2, a1, *scan, a1, a2]
    for policy, last in (("lru", [False, False]), ("srrip", [True, True])):
        one = OneSet(policy, 4)
        assert [one.use(line) for line in mixed] == [False, False, True, True, *[False] * 4, *last]
    assert evicted("srrip", 4, mixed) == scan[:2]


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_the_longest_time_until_nothing_old_is_left_is_the_published_one(ways: int) -> None:
    """`evict` of Reineke et al., Timing predictability of cache replacement policies (2007): so many different lines
    drive out all others, and one fewer may not."""
    published = {"lru": ways, "fifo": 2 * ways - 1, "plru": ways // 2 * int(log2(ways)) + 1}
    chance = random.Random(ways)
    for policy, count in published.items():
        once_fewer = False
        for _ in range(150 if ways < 8 else 40):
            one = OneSet(policy, ways)
            for _ in range(3 * ways):
                one.use(chance.randrange(ways + 2))
            known = [line for line in sorted(one.lines) if chance.random() < 0.7]
            lines = [*chance.sample(known, len(known)), *range(100, 100 + count)][:count]
            if chance.random() < 0.5:
                chance.shuffle(lines)
            for line in lines[:-1]:
                one.use(line)
            once_fewer |= not one.lines <= set(lines[:-1])
            one.use(lines[-1])
            assert one.lines <= set(lines), (policy, lines)
        assert once_fewer or ways == 8, policy


@pytest.mark.parametrize("ways", [2, 4, 8, 16])
def test_a_line_just_used_stays_for_as_many_others_as_published(ways: int) -> None:
    """`mls` of the same: a line that was used is there until so many others were; one more than the depth of a tree."""
    stays = {"lru": ways, "plru": int(log2(ways)) + 1}
    chance = random.Random(ways)
    for policy, count in stays.items():
        one, recent = OneSet(policy, ways), []
        for _ in range(300):
            line = chance.randrange(2 * ways)
            one.use(line)
            recent = [line, *(each for each in recent if each != line)][:count]
            assert set(recent) <= one.lines, policy


def test_random_numbers_are_those_of_marsaglia() -> None:
    """Xorshift RNGs (2003), shifts 13, 7, 17: the first number after its seed, and all bits set half of the time."""
    state = np.array([88172645463325252], np.uint64)
    found = [int(next_random.py_func(state, 0)) for _ in range(1000)]
    assert found[0] == 8748534153485358512
    assert len(set(found)) == 1000
    for bit in range(64):
        assert 400 < sum(number >> bit & 1 for number in found) < 600


def test_a_random_policy_gives_up_each_way_as_often() -> None:
    """1200 lines through four ways: 299 from each, within five deviations of 15."""
    one = OneSet("random", 4)
    place: dict[int, int] = {}
    counts = [0, 0, 0, 0]
    for line in range(1200):
        before = one.lines
        one.use(line)
        gone = before - one.lines
        if gone:
            (old,) = gone
            place[line] = place.pop(old)
            counts[place[line]] += 1
        else:
            place[line] = line
    assert sum(counts) == 1196
    assert all(abs(count - 299) < 5 * 15 for count in counts)
