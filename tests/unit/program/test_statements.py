"""The text of statements: what each line means, and how a wrong one is pointed at."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hwsim.catalog import load_workload
from hwsim.errors import InputError
from hwsim.program.bind import bind, times
from hwsim.program.contraction import find_convolution
from hwsim.program.evaluate import Frame, evaluate
from hwsim.program.expression import (
    FUNCTIONS,
    ONE,
    ZERO,
    Affine,
    Element,
    Extent,
    Local,
    Number,
    apply,
    walk,
)
from hwsim.program.gradient import build_graph
from hwsim.program.loop_kernel import build_kernel
from hwsim.program.statement import Statement, TileBlock, all_statements, parse_expression, parse_statements

NORM = """
mean:  m[...] += X[...,c]        # over the last axis
       m[...] = m[...] / |c|

apply: centred = X[...,c] - m[...]
       Y[...,c] = centred * centred
"""
BLOCKS = """
for i by 4:
    for j by cut while j <= i:
        s[i] max= X[i,j]
    Y[i] = s[i] + 1
Z[i] = Y[i]
"""


def statements(text: str) -> tuple[Statement, ...]:
    return all_statements(parse_statements(text))


def test_a_label_names_the_line_that_it_begins() -> None:
    assert [each.label for each in statements(NORM)] == ["mean", "", "apply", ""]
    assert [each.line for each in statements(NORM)] == [2, 3, 5, 6]
    assert statements("q, k and v: A[i] = B[i]")[0].label == "q, k and v"


def test_signs_and_extents() -> None:
    assert [each.sign for each in statements(NORM)] == ["+=", "=", "=", "="]
    assert any(isinstance(part, Extent) and part.index == "c" for part in walk(statements(NORM)[1].value))
    assert [each.sign for each in statements("A[i] max= B[i,j] ; C[i] min= B[i,j]")] == ["max=", "min="]


def test_a_name_without_brackets_is_a_value_in_a_register() -> None:
    local = statements(NORM)[2]
    assert local.target == Local("centred")
    program = bind(parse_statements(NORM), shapes={"X": (2, 3, 5)})
    assert program.shapes == {"X": (2, 3, 5), "m": (2, 3), "Y": (2, 3, 5)}
    assert program.between == ("m",)


def test_dots_stand_for_any_number_of_axes() -> None:
    for shape in ((5,), (2, 5), (2, 3, 4, 5)):
        program = bind(parse_statements(NORM), shapes={"X": shape})
        assert program.shapes["m"] == (shape[:-1] or (1,))


def test_blocks_are_nested_by_their_indentation() -> None:
    outer, after = parse_statements(BLOCKS)
    assert isinstance(outer, TileBlock)
    assert isinstance(after, Statement)
    inner, late = outer.body
    assert isinstance(inner, TileBlock)
    assert (outer.index, outer.size, inner.index, inner.size) == ("i", "4", "j", "cut")
    assert inner.condition is not None
    assert outer.condition is None
    assert isinstance(late, Statement)
    program = bind((outer, after), shapes={"X": (10, 7)}, parameters={"cut": 3})
    assert (program.size(program.lines[0]), program.size(program.lines[0].body[0])) == (4, 3)  # type: ignore[arg-type, union-attr]


def test_several_statements_share_a_line() -> None:
    first, second = statements("a[i] = X[i] + 1; Y[i] = a[i] * 2")
    assert isinstance(second.target, Element)
    assert (first.name, second.name, first.line, second.line) == ("a", "Y", 1, 1)


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("A[i] = B[i]\nC[i] = B[i] +", "line 2, column 14", "found the end"),
        ("A[i] = B[i]\n\n   mean: C[i = B[i]", "line 3, column 14", "expected ',' or ']', found '='"),
        ("A[i] = B[i]; C[i] = B[i] B[i]", "column 26", "expected an operator or the end, found 'B'"),
        ("for i by 4:\nA[i] = B[i]", "column 1", "what runs for each tile of i follows, further to the right"),
        ("    A[i] = B[i]\nC[i] = A[i]", "line 2, column 1", "begins further left"),
        ("s = A[i]\ns += A[i]", "line 2, column 1", "s has no axes: a sum needs a tensor, such as s[i]"),
        ("A[i] = |2| * B[i]", "column 9", "expected an index, as in |k|"),
        ("A[i] = B[i] ? 2", "column 13", "'?' has no meaning here"),
    ],
)
def test_a_line_that_makes_no_sense_is_pointed_at(text: str, where: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_statements(text)
    first, shown, pointer = str(caught.value).split("\n")
    assert first.startswith(f"formula, {where}: ")
    assert message in first
    assert pointer.index("^") - 2 == int(where.rsplit(" ", 1)[1]) - 1
    assert len(pointer) <= len(shown) + 1


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("A[i] = B[i]\n    Y[i] = A[i] * factr", "line 2, column 19", "what is factr?; did you mean 'factor'?"),
        ("A[i] = B[i]\n    Y[i,i] = A[i]", "line 2, column 5", "an index of Y appears twice"),
        ("A[i] = B[i]; Y[i] = A[i] / |q|", "column 29", "|q|: there is no index q"),
    ],
)
def test_a_name_that_means_nothing_is_pointed_at_in_its_line(text: str, where: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        bind(parse_statements(text), shapes={"B": (3,)}, parameters={"factor": 2.0})
    first, _, pointer = str(caught.value).split("\n")
    assert first.startswith(f"formula, {where}: ")
    assert message in first
    assert pointer.index("^") - 2 == int(where.rsplit(" ", 1)[1]) - 1


def test_an_unknown_function_is_answered_with_those_that_can_be_written() -> None:
    """Functions by their names; signs are no names, and neg and square are written as - and as a product."""
    with pytest.raises(InputError) as caught:
        parse_expression("xp(x)")
    told = str(caught.value).splitlines()[0].rpartition("there are ")[2].split(", ")
    assert {"exp", "log", "max", "sqrt"} <= set(told)
    assert all(word.isalpha() for word in told)
    assert not {"neg", "square"} & set(told)
    assert told == sorted(told)


def test_a_position_times_a_number_multiplies_its_factors_and_its_constant() -> None:
    position = Affine((("i", 3),), 2)
    assert times(position, 4) == Affine((("i", 12),), 8)
    assert times(position, 0) == Affine((), 0)


def test_what_has_no_window_is_no_convolution_and_what_has_one_is() -> None:
    def seen(text: str, **shapes: tuple[int, ...]) -> object:
        given = tuple(shapes)
        return find_convolution(bind(parse_statements(text), shapes=shapes, sizes={}, inputs=given, outputs=("Y",)))

    assert seen("Y[i,j] += A[i,k] * B[k,j]", A=(4, 5), B=(5, 6)) is None
    windows = seen("Y[o,h,w] += X[i,h+u,w+v] * W[o,i,u,v]", X=(2, 8, 9), W=(3, 2, 3, 3))
    assert windows is not None
    assert windows.shape.window == (3, 3)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("x", "slope"), [(2.0, 1.0), (-2.0, -1.0)])
def test_an_absolute_value_rises_by_one_on_the_right_and_falls_by_one_on_the_left(x: float, slope: float) -> None:
    assert build_graph("abs(x)").derivatives({"x": x})["x"] == slope


def test_operations_below_a_causal_diagonal_are_counted_tile_by_tile() -> None:
    """16 tokens in tiles of 4: of the keys, each tile of queries sees those up to its own last one."""
    whole, causal = (
        build_kernel(load_workload("attention_fused", [f"sizes.causal={word}"]).spec, math=False)
        for word in ("false", "true")
    )
    assert 0.5 * whole.useful_flops < causal.useful_flops < 0.75 * whole.useful_flops


def test_what_is_known_about_zeros_and_ones_changes_no_value() -> None:
    """Each function of 0, 1, 2.5 and an unknown x, in every place: as simplified, and as it is written."""
    frame = Frame((), {}, lambda _: np.asarray(0.0), np.dtype(np.float64), {"x": np.asarray(0.7)})
    choices = (ZERO, ONE, Number(2.5), Local("x"))
    for name, function in FUNCTIONS.items():
        for arguments in product(choices, repeat=function.arity):
            with np.errstate(all="ignore"):
                plain = function.compute(*(evaluate(each, frame) for each in arguments))
                made = evaluate(apply(name, *arguments), frame)
            np.testing.assert_allclose(made, plain, rtol=1e-15, err_msg=f"{name}{arguments}")


def test_sums_with_zero_and_products_with_one_are_no_work() -> None:
    x = Local("x")
    assert [apply("+", ZERO, x), apply("+", x, ZERO), apply("-", x, ZERO)] == [x, x, x]
    assert [apply("*", ONE, x), apply("*", x, ONE), apply("/", x, ONE)] == [x, x, x]
    assert [apply("*", ZERO, x), apply("*", x, ZERO)] == [ZERO, ZERO]
    assert apply("-", ZERO, x) == apply("neg", x)
    assert apply("neg", apply("neg", x)) == x
    assert apply("max", ZERO, x) != x and apply("/", ZERO, x) != x
    assert [apply(sign, Number(6.0), Number(1.5)).value for sign in "+-*/"] == [7.5, 4.5, 9.0, 4.0]  # type: ignore[attr-defined]
