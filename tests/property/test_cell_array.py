"""The formulas of a systolic array against the same array built of cells and wires, cycle by cycle."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hwsim.numerics.datapath import accumulate, dot
from hwsim.numerics.format import Array, find_format
from hwsim.program.contraction import GemmShape
from hwsim.targets.systolic.model import SystolicArray
from hwsim.targets.systolic.spec import Dataflow, Folding
from hwsim.targets.systolic.tiling import cut_to
from tests import cell_array
from tests.cell_array import run_cells

sides = st.integers(1, 16)
dataflows = st.sampled_from(["ws", "os", "is"])
foldings = st.sampled_from(["serial", "pipelined"])


def operands(m: int, n: int, k: int, seed: int = 0) -> tuple[Array, Array]:
    values = np.random.default_rng(seed)
    return values.integers(-128, 128, (m, k)), values.integers(-128, 128, (k, n))


@settings(max_examples=60, deadline=None)
@given(sides, sides, sides, sides, sides, dataflows, foldings, st.integers(0, 99))
@example(1, 1, 1, 1, 1, "os", "pipelined", 0)
@example(3, 16, 16, 4, 16, "ws", "pipelined", 0)  # streams shorter than the array is deep, and wide rows
@example(16, 16, 2, 5, 3, "os", "pipelined", 0)
def test_formula_and_cells_agree_in_cycles_reads_writes_and_values(
    m: int, n: int, k: int, rows: int, columns: int, dataflow: str, folding: str, seed: int
) -> None:
    a, b = operands(m, n, k, seed)
    kinds = cast(Dataflow, dataflow), cast(Folding, folding)
    cells = run_cells(a, b, rows, columns, *kinds)
    formula = SystolicArray(rows, columns, *kinds).occupy(GemmShape(m, n, k))
    assert cells.cycles == formula.cycles
    assert cells.input_reads == formula.input_reads
    assert cells.weight_reads == formula.weight_reads
    assert cells.output_writes == formula.output_writes
    np.testing.assert_array_equal(cells.output, a @ b)


@settings(max_examples=30, deadline=None)
@given(sides, sides, sides, st.integers(1, 8), st.integers(1, 8))
def test_sums_in_pieces_of_the_rows_are_those_of_the_cells(m: int, n: int, k: int, rows: int, columns: int) -> None:
    """What the real math of a run does: the product of each piece along k, added up in the accumulator's format."""
    a, b = operands(m, n, k)
    total = np.zeros((m, n), np.int32)
    for ranges in cut_to({"k": k}, rows).ranges():
        first, count = ranges["k"]
        piece = slice(first, first + count)
        accumulate(
            total, dot(a[:, piece].astype(np.int8), b[piece].astype(np.int8), find_format("int8")), find_format("int32")
        )
    np.testing.assert_array_equal(run_cells(a, b, rows, columns, "ws", "serial").output, total)


@pytest.mark.parametrize("dataflow", ["ws", "is"])
def test_a_fold_that_starts_a_cycle_too_early_computes_with_weights_still_on_their_way(
    dataflow: Dataflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule is tight: one cycle less, and the answer is wrong."""
    a, b = operands(2, 6, 6)
    ready = cell_array._Shadow.loaded
    monkeypatch.setattr(cell_array._Shadow, "loaded", lambda self, cycle: ready(self, cycle + 1))
    assert not np.array_equal(run_cells(a, b, 3, 3, dataflow, "pipelined").output, a @ b)


def test_sums_that_leave_too_early_meet_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of two values on five rows: the next fold has to wait five cycles, and not two."""
    a, b = operands(10, 3, 2)
    monkeypatch.setattr(
        cell_array,
        "_may_start",
        lambda run, streamed, rows, cycle, *_: not run.starts or cycle >= run.starts[-1] + streamed,
    )
    with pytest.raises(AssertionError, match="wire"):
        run_cells(a, b, 5, 3, "os", "pipelined")


def test_pipelined_folds_start_a_stream_apart_or_as_far_as_the_array_is_deep() -> None:
    a, b = operands(9, 8, 8)
    assert run_cells(a, b, 4, 4, "ws", "pipelined").starts == [4, 13, 22, 31]
    a, b = operands(2, 8, 8)
    assert run_cells(a, b, 4, 4, "ws", "pipelined").starts == [4, 8, 12, 16]
