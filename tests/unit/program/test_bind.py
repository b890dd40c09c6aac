"""Thin indices: where they run over one thing they make no loop, and the same numbers come out."""

from __future__ import annotations

import numpy as np

from hwsim.program.bind import Program, bind
from hwsim.program.evaluate import Frame, evaluate
from hwsim.program.expression import Apply, Element, indices_of
from hwsim.program.statement import TileBlock, all_statements, parse_statements

TEXT = """
for n by 1:
    for i by 2 while n + i < 4:
        Y[n,i] = X[n,i] * |i| + n
Z[n] += Y[n,i]
"""


def bound(count: int, thin: tuple[str, ...] = ("n",)) -> Program:
    return bind(parse_statements(TEXT), shapes={"X": (count, 6)}, thin=thin)


def test_a_thin_index_over_one_thing_makes_no_loop() -> None:
    """As if the text were without it, which is 0 everywhere: neither loops nor positions nor conditions name it."""
    program = bound(1)
    block, total = program.lines
    assert isinstance(block, TileBlock) and block.index == "i"
    assert block.condition is not None and tuple(indices_of(block.condition)) == ("i",)
    assert [each.indices for each in all_statements(program.lines)] == [("i",), ("i",)]
    assert program.shapes == {"X": (1, 6), "Y": (1, 6), "Z": (1,)}
    (made,) = block.body
    assert made.reads[0].positions[0].factors == ()  # type: ignore[union-attr]
    assert isinstance(made.value, Apply) and isinstance(total.target, Element)  # type: ignore[union-attr]
    here = Frame((), {}, lambda _: np.asarray(5.0), np.dtype(np.float64), {})
    assert float(evaluate(made.value, here)) == 5.0 * 6 + 0  # type: ignore[union-attr]


def test_a_thin_index_over_more_and_one_that_is_not_thin_keep_their_loops() -> None:
    for program in (bound(2), bound(1, ())):
        block = program.lines[0]
        assert isinstance(block, TileBlock) and block.index == "n"
        assert [each.indices for each in all_statements(program.lines)] == [("n", "i"), ("n", "i")]
