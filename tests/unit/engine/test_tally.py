"""Tally: work and traffic of all cores, added up for the result and for the ledger."""

from __future__ import annotations

import pytest

import hwsim
from hwsim.engine import Outcome
from hwsim.program.kernel import Step
from hwsim.trace.nest import Access, Instructions, Nest, Work
from tests.unit.engine.made import adds, play


def counts(outcome: Outcome) -> dict[str, int]:
    return outcome.ledger.counts()


def macs(count: int) -> Step:
    return Step("mac", Work(2 * count, count, Instructions(fma=count)), ())


def test_the_work_of_all_cores_is_added_up() -> None:
    outcome = play([[adds(100)], [adds(50), adds(7)]], cores=2)
    assert (outcome.flops, outcome.instructions.add) == (157, 157)


def test_a_multiply_add_is_one_operation_where_it_is_fused() -> None:
    outcome = play([[macs(10)]])
    assert (outcome.flops, outcome.macs, outcome.instructions.total) == (20, 10, 10)
    assert counts(outcome)["core.fma.fp32"] == 10


def test_a_multiply_add_is_two_operations_where_it_is_not() -> None:
    outcome = play([[macs(10)]], "core.ports.fma=0")
    assert outcome.instructions.total == 20
    assert counts(outcome)["core.mul.fp32"] == counts(outcome)["core.add.fp32"] == 10
    assert "core.fma.fp32" not in counts(outcome)


def test_operations_are_counted_by_element_and_instructions_by_vector() -> None:
    result = hwsim.run("course_cpu", "fused", n=800)
    assert result.energy_by_cause is not None
    arithmetic = result.energy_by_cause["arithmetic"]
    assert {name: line["count"] for name, line in arithmetic.items()} == {"core.add.fp32": 800, "core.fma.fp32": 800}
    assert result.work["instructions"]["fma"] == result.work["instructions"]["add"] == 100


def test_misses_are_put_down_to_their_tensor() -> None:
    nest = Nest((32,), (Access(4096, (64,), 4, tensor="A"), Access(65536, (0,), 4, True, tensor="C")))
    tensors = play([[adds(1, nest)]]).tensors
    assert (tensors["A"].loads, tensors["A"].stores, tensors["A"].misses) == (32, 0, {"l1": 32, "l2": 32})
    assert (tensors["C"].loads, tensors["C"].stores, tensors["C"].misses) == (0, 32, {"l1": 1, "l2": 1})


@pytest.mark.parametrize("workload", ["matmul_tiled", "triad", "sum_columns"])
def test_misses_of_all_tensors_are_the_misses_of_the_level(workload: str) -> None:
    result = hwsim.run("tinytorch_cpu", workload, n=64)
    for level in ("l1", "l2", "l3"):
        demand = sum(tensor["misses"][level] for tensor in result.tensors.values())
        assert demand <= result.memory[level].misses
    assert sum(tensor["misses"]["l1"] for tensor in result.tensors.values()) == result.memory["l1"].misses


def test_bits_that_a_cache_moves_are_priced_once_in_each_direction() -> None:
    """Reading 32 new lines: 32 values read out, 32 lines filled in."""
    outcome = play([[adds(1, Nest((32,), (Access(4096, (64,), 4),)))]])
    bits = outcome.ledger._bits
    assert bits["l1", "read"] == 32 * 32
    assert bits["l1", "write"] == 32 * 64 * 8
    assert bits["dram", "read"] == 32 * 64 * 8
