"""Caches against what theory says of them, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from hwsim.memory.hierarchy import Hierarchy, Traffic
from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import Access, Nest
from hwsim.validation.cache import Sizes, nests


def cache(sets: int, ways: int, **fields: object) -> CacheSpec:
    given = {"kind": "cache", "name": "l1", "size": f"{sets * ways * 64} B", "ways": ways, **fields}
    return CacheSpec.model_validate(given)


def feed(hierarchy: Hierarchy, lines: list[int]) -> Traffic:
    addresses = np.array(lines, np.uint64) * np.uint64(64)
    return hierarchy.feed(addresses, np.zeros(len(lines), np.bool_), np.full(len(lines), 8, np.uint16))


def scattered(count: int) -> list[int]:
    return [int(n) for n in np.random.default_rng(2).integers(0, 30, count)]


def test_a_smaller_lru_cache_holds_a_part_of_a_larger_one_at_every_moment() -> None:
    """The stack property (Mattson et al., 1970): the n most recent lines are among the n + 1 most recent."""
    small, large = Hierarchy([cache(1, 6)]), Hierarchy([cache(1, 7)])
    for line in scattered(300):
        feed(small, [line])
        feed(large, [line])
        ((inner,), (outer,)) = (h.contents("core[0].l1") for h in (small, large))
        assert [n for n, _ in inner] == [n for n, _ in outer][: len(inner)]


@pytest.mark.parametrize("ways", [1, 4, 8, 11, 16])
def test_lru_misses_are_the_accesses_whose_stack_distance_exceeds_the_ways(ways: int) -> None:
    stack: list[int] = []
    far = 0
    for line in scattered(2000):
        far += line not in stack[:ways]
        stack = [line, *(other for other in stack if other != line)]
    assert feed(Hierarchy([cache(1, ways)]), scattered(2000)).levels["l1"].misses == far


@pytest.mark.parametrize("policy", ["lru", "fifo"])
@pytest.mark.parametrize("ways", [1, 2, 8, 16])
def test_a_cyclic_sweep_over_one_line_too_many_always_misses(policy: str, ways: int) -> None:
    fits = feed(Hierarchy([cache(4, ways, replacement=policy)]), list(range(4 * ways)) * 10)
    assert fits.levels["l1"].misses == 4 * ways
    one_more = [4 * number for number in range(ways + 1)] * 10
    assert feed(Hierarchy([cache(4, ways, replacement=policy)]), one_more).levels["l1"].hits == 0


@pytest.mark.parametrize("element", [1, 4, 8, 64])
@pytest.mark.parametrize("policy", ["lru", "fifo", "random", "plru", "srrip"])
def test_a_stream_misses_once_per_line(element: int, policy: str) -> None:
    nest = Nest((65536 // element,), (Access(1 << 16, (element,), element),))
    traffic = Hierarchy([cache(64, 8, replacement=policy)]).replay(nest)
    assert traffic.levels["l1"].misses == 65536 // 64
    assert traffic.dram.bytes_read == 65536


def tiled_product(ld: int) -> Traffic:
    """256 x 256 x 256 in fp32, tiles of 32, order mm_tiled_ijk, all arrays at pages; 32 KiB, 8 ways, lru."""
    n, element = 256, 4
    a, b, c = (65536 + number * (1 << 20) for number in range(3))
    (nest,) = nests("mm_tiled_ijk", Sizes(n, n, n, 32, element, a, b, c, ld, ld, ld))
    return Hierarchy([cache(64, 8)]).replay(nest)


def test_tiles_that_do_not_collide_are_loaded_once_each() -> None:
    """Rows of 272 elements spread over the sets: 2 n^3 / (16 * 32) lines of A and B, and n^2 / 16 of C."""
    n = 256
    assert 2 * n**3 // (16 * 32) + n**2 // 16 == 69_632
    assert tiled_product(272).levels["l1"].misses == 69_632


def test_tiles_of_a_power_of_two_matrix_collide() -> None:
    """Rows of 1 KiB: a tile's 32 rows fall into 4 groups of sets, and drive each other out."""
    assert tiled_product(256).levels["l1"].misses == 5_041_152
