"""Break the model on purpose: the checkers have to object. A check that cannot fail proves nothing."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hwsim.memory.counters import READ_MISSES
from hwsim.memory.hierarchy import Hierarchy
from hwsim.memory.replacement import FIFO, POLICIES
from hwsim.memory.stream import StreamCaches
from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import Access, Nest
from hwsim.validation import cache as cache_family
from hwsim.validation.cache import KERNELS, Sizes, validate
from hwsim.validation.report import Report
from hwsim.validation.table import shipped
from tests.property import test_acceleration, test_conservation, test_walk_against_oracle


def validated(data: Path) -> Report:
    *_, report = validate(data)
    assert isinstance(report, Report)
    return report


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The six smallest products of the shipped table."""
    with shipped("cache.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kernel"].startswith("mm_")]
    smallest = sorted(rows, key=lambda row: int(row["accesses"]))[:6]
    path = tmp_path / "small.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(smallest[0]))
        writer.writeheader()
        writer.writerows(smallest)
    return path


def test_the_unbroken_model_passes(table: Path) -> None:
    assert validated(table).passed


def test_validate_notices_another_replacement_policy(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_fifo(specs: list[CacheSpec], **options: bool) -> Hierarchy:
        return Hierarchy([spec.model_copy(update={"replacement": "fifo"}) for spec in specs], **options)

    monkeypatch.setattr(cache_family, "Hierarchy", with_fifo)
    assert not validated(table).passed


def test_validate_notices_one_way_less(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def narrower(specs: list[CacheSpec]) -> Hierarchy:
        first = specs[0]
        fewer = max(1, first.way_count - 1)  # a direct mapped one stays as it is
        size = first.set_count * fewer * first.line
        return Hierarchy([first.model_copy(update={"ways": fewer, "size": size}), *specs[1:]])

    monkeypatch.setattr(cache_family, "Hierarchy", narrower)
    assert not validated(table).passed


def test_validate_notices_a_single_miss_too_many(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle = StreamCaches.settle

    def off_by_one(self: StreamCaches, core: int, *arguments: object) -> None:
        settle(self, core, *arguments)  # type: ignore[arg-type]
        self.counters[self.topology.chains[core][0], READ_MISSES] += np.uint64(1)

    monkeypatch.setattr(StreamCaches, "settle", off_by_one)
    assert validated(table).total.matched == 0


def test_validate_notices_swapped_loads(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B before A: the same accesses, in another order."""

    def swapped(make: Callable[[Sizes], Iterator[Nest]]) -> Callable[[Sizes], Iterator[Nest]]:
        return lambda sizes: (replace(nest, accesses=nest.accesses[::-1]) for nest in make(sizes))

    for name, make in list(KERNELS.items()):
        monkeypatch.setitem(KERNELS, name, swapped(make))
    assert not validated(table).passed


def test_the_oracle_notices_a_wrong_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The general model runs fifo where the machine says lru: the line used again is the one that leaves."""
    specs = [test_acceleration.cache("l1", 1, 2, 64, write_allocate=False)]
    program = [Nest((), tuple(Access(line * 64, ()) for line in (0, 1, 0, 2, 0)))]
    check = test_walk_against_oracle.test_the_general_model_equals_the_oracle.hypothesis.inner_test
    check(specs, program)
    monkeypatch.setitem(POLICIES, "lru", FIFO)
    with pytest.raises(AssertionError):
        check(specs, program)


def test_the_acceleration_check_notices_a_wrong_limit_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compression that believes every set has room for everything."""
    monkeypatch.setattr(StreamCaches, "run_limit", lambda self, chain: (1, 64))
    specs = [test_acceleration.cache("l1", 4, 1, 64)]
    fighting = Nest((64,), (Access(0, (8,), 8), Access(4096, (8,), 8)))
    with pytest.raises(AssertionError):
        test_acceleration.assert_same_as_plain_walk(specs, [fighting], compress=True, warp=False)


def test_the_acceleration_check_notices_a_period_taken_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warping that skips ahead without waiting for the state to repeat."""
    monkeypatch.setattr("hwsim.memory.warp._repeats", lambda *arguments: True)
    specs = [test_acceleration.cache("l1", 8, 4, 64), test_acceleration.cache("l2", 32, 4, 64)]
    with pytest.raises(AssertionError):
        test_acceleration.assert_same_as_plain_walk(
            specs, [test_acceleration.matmul("ikj", 64)], compress=True, warp=True
        )


def test_conservation_notices_lost_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody counts the bytes of plain hierarchies any more."""
    specs = [test_acceleration.cache("l1", 2, 2, 64), test_acceleration.cache("l2", 4, 2, 64)]
    program = [Nest((50,), (Access(0, (64,), write=True),))]
    check = test_conservation.test_bytes_leaving_a_level_enter_the_next.hypothesis.inner_test
    check(specs, program)
    monkeypatch.setattr(StreamCaches, "settle", lambda self, *arguments: None)
    with pytest.raises(AssertionError):
        check(specs, program)
