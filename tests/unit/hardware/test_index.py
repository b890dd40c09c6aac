"""The hashed index spreads what the plain one puts into one set."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from hwsim.memory.hierarchy import Hierarchy
from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import Access, Nest


def cache(index: str, sets: int = 64, ways: int = 8) -> CacheSpec:
    given = {"kind": "cache", "name": "l1", "size": f"{sets * ways * 64} B", "ways": ways, "index": index}
    return CacheSpec.model_validate(given)


def test_a_column_of_a_power_of_two_matrix_fits_only_with_a_hashed_index() -> None:
    """64 rows of 4 KiB: one set of 8 ways with the low bits, all 64 sets with the hash. Two passes."""
    column = Nest((2, 64), (Access(0, (0, 4096)),))
    assert Hierarchy([cache("modulo")]).replay(column).levels["l1"].misses == 128
    assert Hierarchy([cache("xor")]).replay(column).levels["l1"].misses == 64


@pytest.mark.parametrize("sets", [1, 2, 8, 64])
def test_a_line_lies_in_the_set_that_folding_its_bits_gives(sets: int) -> None:
    lines = [int(n) for n in np.random.default_rng(5).integers(0, 1 << 40, 200)]
    hierarchy = Hierarchy([cache("xor", sets, 256)])
    count = len(lines)
    hierarchy.feed(np.array(lines, np.uint64) * np.uint64(64), np.zeros(count, np.bool_), np.full(count, 4, np.uint16))
    width = max(1, sets.bit_length() - 1)
    for number, group in enumerate(hierarchy.contents("core[0].l1")):
        for line, _ in group:
            folded = reduce(int.__xor__, (line >> shift & (sets - 1) for shift in range(0, 44, width)))
            assert folded == number
    assert sum(len(group) for group in hierarchy.contents("core[0].l1")) == len(set(lines))
