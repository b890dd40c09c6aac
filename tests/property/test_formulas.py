"""Any affine formula, in any order, with any tiles: the same as adding up term by term."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from hwsim.program.bind import bind, statement_indices
from hwsim.program.expression import Apply, Element
from hwsim.program.statement import parse_statements
from tests.unit.kernels.helpers import kernel, steps

INDICES = "abcd"
extents = st.integers(1, 4)
quick = settings(max_examples=60, deadline=None)
CONV = "O[n,co,h,w] += I[n,ci,h+kh,w+kw] * W[co,ci,kh,kw]"


@st.composite
def positions(draw, indices):
    """A sum of one or two indices, each with a factor, and perhaps a constant."""
    parts = []
    for index in draw(st.lists(st.sampled_from(indices), min_size=1, max_size=2)):
        factor = draw(st.integers(1, 3))
        parts.append(index if factor == 1 else f"{factor}*{index}")
    if draw(st.booleans()):
        parts.append(str(draw(st.integers(0, 2))))
    return "+".join(parts)


@st.composite
def formulas(draw):
    """One or two terms of one or two factors; the output has some of the indices, the others are summed over."""
    indices = INDICES[: draw(st.integers(1, 4))]
    kept = draw(st.lists(st.sampled_from(indices), min_size=1, unique=True))
    tensors = iter("PQRS")
    terms = []
    for _ in range(draw(st.integers(1, 2))):
        factors = []
        for _ in range(draw(st.integers(1, 2))):
            axes = draw(st.lists(positions(indices), min_size=1, max_size=3))
            factors.append(f"{next(tensors)}[{','.join(axes)}]")
        terms.append(" * ".join(factors))
    return f"O[{','.join(kept)}] += {' + '.join(terms)}"


@st.composite
def schedules(draw, indices):
    def cuts(most):
        return st.dictionaries(st.sampled_from(indices), st.integers(1, most))

    return {
        "order": tuple(draw(st.permutations(indices))),
        "tile": draw(cuts(5)),
        "unroll": draw(cuts(2)),
        "vector": draw(st.booleans()),
        "parallel": draw(st.sampled_from(["none", "rows"])),
    }


def bound(text):
    """The one statement of a formula, with its positions as sums of indices."""
    (statement,) = bind(parse_statements(text), sizes=dict.fromkeys(used(text), 1)).lines
    return statement


def used(text):
    return tuple(index for index in INDICES if index in text)


def terms(expr):
    """The products that are added up, each as its factors."""
    if isinstance(expr, Apply) and expr.function == "+":
        return [each for part in expr.arguments for each in terms(part)]
    return [list(expr.arguments) if isinstance(expr, Apply) else [expr]]


def term_by_term(statement, sizes, arrays):
    """The definition: one point of the loops after the other, each index a plain number."""

    def element(ref: Element, point):
        places = (p.constant + sum(f * point[i] for i, f in p.factors) for p in ref.positions)
        return arrays[ref.tensor][tuple(places)]

    indices = statement_indices(statement)
    output = np.zeros([sizes[index] for index in statement.target.indices])
    for counters in product(*(range(sizes[index]) for index in indices)):
        point = dict(zip(indices, counters, strict=True))
        here = tuple(point[index] for index in statement.target.indices)
        for factors in terms(statement.value):
            output[here] += np.prod([element(ref, point) for ref in factors])
    return output


@quick
@given(st.data(), formulas(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 3]), st.sampled_from(["fp64", "fp32"]))
def test_any_formula_with_any_schedule_is_its_definition(data, text, lanes, cores, precision):
    statement = bound(text)
    sizes = {index: data.draw(extents) for index in used(text)}
    schedule = data.draw(schedules(used(text)))
    made = kernel("formula", sizes, formula=text, lanes=lanes, cores=cores, precision=precision, **schedule)
    work = [step.work for step in steps(made)]
    expected = term_by_term(statement, sizes, {name: array.astype(np.float64) for name, array in made.arrays.items()})
    error = np.abs(made.output - expected).max() / max(1.0, np.abs(expected).max())
    assert error <= max(made.tolerance, 1e-15)
    points = int(np.prod(list(sizes.values())))
    assert sum(each.flops for each in work) == points * made.loops[0].flops_per_point


@quick
@given(
    st.fixed_dictionaries(dict.fromkeys(("n", "co", "h", "w", "ci", "kh", "kw"), extents)),
    st.data(),
    st.sampled_from([1, 4]),
)
def test_a_convolution_with_any_schedule_is_a_sum_over_windows(sizes, data, lanes):
    schedule = data.draw(schedules(tuple(sizes)))
    made = kernel("formula", sizes, formula=CONV, lanes=lanes, cores=2, precision="fp64", **schedule)
    steps(made)
    windows = sliding_window_view(made.arrays["I"], (sizes["kh"], sizes["kw"]), axis=(2, 3))
    expected = np.einsum("nihwab,oiab->nohw", windows, made.arrays["W"])
    np.testing.assert_allclose(made.output, expected, rtol=1e-12, atol=1e-12)
    assert made.useful_flops == 2 * int(np.prod(list(sizes.values())))


@pytest.mark.parametrize("lanes", [16, 64])
def test_vectors_that_must_be_gathered_are_narrowed_until_they_can_be_described(lanes):
    made = kernel("formula", {"i": 130, "k": 3}, formula="C[i] += A[3*i+k] * B[2*i+k]", order=("k", "i"), vector=True,
                  lanes=lanes, precision="fp64")  # fmt: skip
    steps(made)
    np.testing.assert_allclose(made.output, made.reference(), rtol=1e-13)
