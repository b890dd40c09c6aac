"""Misses by set and kind, against hand counts and against the hierarchy itself."""

from __future__ import annotations

import pytest

import hwsim.api
from hwsim.api import prepare, resolve_machine, resolve_workload
from hwsim.memory.hierarchy import Hierarchy
from hwsim.memory.locality import SetPressure, measure_set_pressure
from hwsim.spec.machine import CacheSpec
from hwsim.targets.cpu.why import elements_loaded, look_at_sets
from hwsim.trace.nest import Access, Nest

SMALL = CacheSpec(kind="cache", name="l1", size="512 B", ways=2)
"""Four sets of two ways."""


def measure(*nests: Nest, spec: CacheSpec = SMALL, **more: int) -> SetPressure:
    found = measure_set_pressure(spec, nests, **more)
    assert found is not None
    return found


def test_a_first_pass_is_cold() -> None:
    found = measure(Nest((8,), (Access(0, (64,)),)))
    assert (found.cold, found.capacity, found.conflict) == (8, 0, 0)
    assert list(found.misses) == list(found.lines) == [2, 2, 2, 2]


def test_three_lines_in_one_set_of_two_ways_are_conflicts() -> None:
    """Lines 0, 4, 8 over and over: LRU with two ways always misses; eight ways in one would always hit."""
    found = measure(Nest((10, 3), (Access(0, (0, 256)),)))
    assert (found.cold, found.capacity, found.conflict) == (3, 0, 27)
    assert list(found.conflicts) == [27, 0, 0, 0]
    assert list(found.lines) == [3, 0, 0, 0]


def test_nine_lines_in_eight_places_are_a_matter_of_capacity() -> None:
    """A cyclic sweep of one line more than fits misses always in a fully associative LRU cache.

    In four sets, set 0 gets lines 0, 4, 8 and misses always; the others keep their two lines.
    """
    found = measure(Nest((10, 9), (Access(0, (0, 64)),)))
    assert (found.cold, found.capacity, found.conflict) == (9, 27, 0)
    assert list(found.misses) == [30, 2, 2, 2]


def test_the_limit_ends_the_walk_and_says_so() -> None:
    nest = Nest((100_000,), (Access(0, (64,)),))
    assert measure(nest).complete
    cut = measure(nest, nest, limit=1000)
    assert not cut.complete
    assert 1000 <= cut.accesses < 100_000


def test_sets_mean_nothing_in_an_infinite_or_hashed_cache() -> None:
    nest = Nest((8,), (Access(0, (64,)),))
    for fields in ({"size": "inf", "ways": 2}, {"size": "512 B", "ways": 2, "index": "xor"}):
        assert measure_set_pressure(CacheSpec(kind="cache", name="l1", **fields), [nest]) is None
    assert measure_set_pressure(SMALL, []) is None


@pytest.mark.parametrize(
    ("workload", "n"), [("matmul_tiled", 64), ("matmul_naive", 64), ("matmul_simd", 72), ("add", 5000)]
)
def test_misses_equal_those_of_the_hierarchy(workload: str, n: int) -> None:
    machine = resolve_machine("course_cpu", ["l1.size=4 KiB"])
    kernel = prepare(machine, resolve_workload(workload, {"n": n}), math=False)
    nests = [nest for block in kernel.blocks() for step in block.steps() for nest in step.nests]
    hierarchy = Hierarchy(machine.caches[:1], None)
    for nest in nests:
        hierarchy.replay(nest)
    counts = hierarchy.level_counters()["l1"]
    found = measure(*nests, spec=machine.caches[0])
    assert (found.total, found.accesses) == (counts.misses, counts.accesses)


def test_the_unpadded_tiles_conflict_and_the_padded_ones_do_not() -> None:
    """256³, tile 32: 5,041,152 line fills unpadded; padded to 272 exactly those of the formula, none a conflict."""
    machine = resolve_machine("course_cpu")
    kernels = [prepare(machine, resolve_workload("matmul_tiled", {"ld": ld}), math=False) for ld in (256, 272)]
    unpadded, padded = (look_at_sets(machine, kernel, {"B": 1}) for kernel in kernels)
    assert unpadded is not None
    assert padded is not None
    assert unpadded.measured.total == 5_041_152
    assert unpadded.measured.conflict > 0.98 * unpadded.measured.total
    assert unpadded.crowding is not None
    assert (unpadded.crowding.tensor, unpadded.column_sets) == ("B", (0, 16, 32, 48))
    assert (padded.measured.total, padded.measured.conflict, padded.crowding) == (69_632, 0, None)


@pytest.mark.parametrize("vector", [False, True])
def test_a_value_is_used_as_often_as_the_register_tile_is_long(vector: bool) -> None:
    """A has no j: each of its values serves v2 columns; B has no i: v1 rows (course notes, T7)."""
    machine = resolve_machine("course_cpu")
    task = resolve_workload("matmul_register", {"n": 64, "v1": 4, "v2": 16, "vector": vector})
    loaded = elements_loaded(prepare(machine, task, math=False))
    assert (64**3 / loaded["A"], 64**3 / loaded["B"]) == (16, 4)


@pytest.mark.parametrize(
    ("setting", "assumed"),
    [
        ("", False),
        ("l1.replacement=fifo", True),
        ("l1.write=through", True),
        ("l1.write_allocate=false", True),
        ("l1.prefetch.kind=next_line", True),
    ],
)
def test_a_cache_that_is_not_as_the_measurement_assumes_says_so(setting: str, assumed: bool) -> None:
    machine = resolve_machine("course_cpu", [setting] if setting else [])
    result = hwsim.api.run_all(machine, "matmul_tiled", parameters={"n": 16, "tile": 8}, math=False).result
    found = hwsim.api.set_pressure(result)
    assert found is not None and found.assumed_lru is assumed
