"""What a run on an array posts to the energy ledger, counted by hand, and that results leave the chip."""

from __future__ import annotations

import pytest

from hwsim.api import run_all
from hwsim.energy import Ledger

SIDE = 64


def test_every_action_of_a_product_is_counted() -> None:
    """64³ on 16 x 16, as one tile: inputs are read for each of 4 columns of folds, sums written for each of 4 rows."""
    whole = {f"mapping.tile_{name}": SIDE for name in "mnk"}
    counts = run_all("gemmini16", "matmul", parameters={"n": SIDE, **whole}).outcome.ledger.counts()
    assert counts["array.mac.int8"] == SIDE**3
    assert counts["array.hop"] == 2 * SIDE**3  # an input to the right, a sum downwards
    moved_in = 2 * SIDE**2
    moved_out = 4 * SIDE**2  # sums of 32 bits, in elements of 8
    assert counts["scratchpad.read"] == 4 * SIDE**2 + SIDE**2
    assert counts["scratchpad.write"] == moved_in
    assert counts["accumulator.write"] == 4 * SIDE**2
    assert counts["accumulator.read"] == 3 * SIDE**2 + SIDE**2 + moved_out
    assert counts["dram.read"] * 64 == moved_in
    assert counts["dram.write"] * 64 == moved_out


def test_what_the_vector_unit_does_is_counted_by_kind() -> None:
    counts = run_all("gemmini16", "relu", parameters={"precision": "bf16"}).outcome
    assert counts.ledger.counts()["array.vector.add"] == counts.flops


@pytest.mark.parametrize("machine", ["tpu_v3", "tpu_v4", "edge_npu", "gemmini16", "scalesim_32"])
def test_a_result_goes_to_memory_also_where_it_would_fit_on_the_chip(machine: str) -> None:
    outcome = run_all(machine, "matmul", parameters={"n": SIDE}).outcome
    assert outcome.use["array"]["levels"] == {"A": "dram", "B": "dram", "C": "dram"}
    assert outcome.tensors["C"].stores == SIDE**2


def test_a_ledger_is_split_without_remainder_and_by_component() -> None:
    """Ten reads of 80 bits by weights of 1 and 3: two and eight, floor by floor; others only where they are named."""
    ledger = Ledger()
    ledger.post("l1", "read", 10, bits=80, cause="data")
    ledger.post("dram", "write", 4, bits=400)
    assert [part.counts() for part in ledger.split([1, 3])] == [
        {"l1.read": 2, "dram.write": 1}, {"l1.read": 8, "dram.write": 3},
    ]  # fmt: skip
    assert [part.counts() for part in ledger.split([1, 3], {"l1"})] == [{"l1.read": 2}, {"l1.read": 8}]
    assert [part.counts() for part in ledger.split([1, 1], {"dram"})] == [{"dram.write": 2}, {"dram.write": 2}]
