"""Random statements: counts are those of plain loops, loop math is the interpreter's, derivatives are slopes."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.ops.formula import interpret
from hwsim.program.bind import bind
from hwsim.program.gradient import backward, forward
from hwsim.program.operation import find_operation
from hwsim.program.statement import parse_statements
from tests.unit.kernels.helpers import counts, kernel, steps

quick = settings(max_examples=40, deadline=None)
extents = st.integers(1, 5)
TENSORS = ("A[i,j]", "B[j,k]", "D[i]", "E[k]", "F[i,k]", "G[j]")


@st.composite
def values(draw, depth=2):
    """An expression in which no part appears twice."""
    names = draw(st.permutations(TENSORS))

    def made(level):
        kind = draw(st.sampled_from(["leaf", "leaf", "+", "-", "*", "max", "exp", "number"] if level else ["leaf"]))
        if kind == "leaf":
            return names.pop() if names else "A[i,j]"
        if kind == "number":
            return f"{made(level - 1)} * 0.{draw(st.integers(1, 9))}"
        if kind == "exp":
            return f"exp({made(level - 1)})"
        left, right = made(level - 1), made(level - 1)
        return f"max({left}, {right})" if kind == "max" else f"({left} {kind} {right})"

    return made(depth)


class Counted:
    """A number that counts the operations it goes through."""

    done = 0

    def __init__(self, value):
        self.value = value

    def _with(self, value):
        Counted.done += 1
        return Counted(value)

    def __add__(self, other):
        return self._with(self.value + getattr(other, "value", other))

    def __sub__(self, other):
        return self._with(self.value - getattr(other, "value", other))

    def __mul__(self, other):
        return self._with(self.value * getattr(other, "value", other))


def by_plain_loops(text, sizes, arrays):
    """The sums and the operations of ``C[i] += text``, one point of the loops after the other."""
    Counted.done = 0
    known = {
        "max": lambda a, b: a._with(max(a.value, b.value)),
        "exp": lambda a: a._with(math.exp(a.value)),
    }
    code = compile(re.sub(r"\b([A-H])\[([ijk,]+)\]", r"Counted(\1[\2])", text), "statement", "eval")
    found = [Counted(0.0) for _ in range(sizes["i"])]
    for point in product(*(range(extent) for extent in sizes.values())):
        here = dict(zip(sizes, point, strict=True))
        found[here["i"]] += eval(code, {"Counted": Counted, **known, **arrays}, here)
    return np.array([each.value for each in found]), Counted.done


@quick
@given(values(), st.fixed_dictionaries({"i": extents, "j": extents, "k": extents}), st.sampled_from([1, 4]))
def test_derived_counts_are_those_of_plain_loops(value, sizes, lanes):
    used = {index: extent for index, extent in sizes.items() if index == "i" or re.search(rf"[\[,]{index}[\],]", value)}
    made = kernel("formula", used, formula=f"C[i] += {value} + H[i]", lanes=lanes, precision="fp64", vector=True)
    done = sum(step.work.flops for step in steps(made))
    expected, operations = by_plain_loops(f"{value} + H[i]", used, made.arrays)
    np.testing.assert_allclose(made.output, expected, rtol=1e-11, atol=1e-12)
    assert done == operations == made.useful_flops


@quick
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_derived_accesses_are_those_of_plain_loops(i, j, k):
    """Each operand is loaded where its innermost index moves; the sum is stored once, when it is complete."""
    found = counts(kernel("formula", {"i": i, "j": j, "k": k}, formula="C[i,j] += A[i,k] * B[k,j] + D[j]", math=False))
    seen = dict.fromkeys("ABCD", 0)
    for _ in range(i):
        for _ in range(j):
            seen["D"] += 1
            for _ in range(k):
                seen["A"] += 1
                seen["B"] += 1
            seen["C"] += 1
    assert {name: found[f"loads.{name}"] for name in "ABD"} == {name: seen[name] for name in "ABD"}
    assert (found["stores.C"], found["loads.C"]) == (seen["C"], 0)


PROGRAMS = {
    "product": "C[i,j] += A[i,k] * B[k,j]\nY[i,j] = max(C[i,j] + D[j], 0)",
    "softmax": "m[i] max= A[i,j]\ne[i,j] = exp(A[i,j] - m[i])\ns[i] += e[i,j]\nY[i,j] = e[i,j] / s[i]",
    "norm": "m[i] += A[i,j]\nm[i] = m[i] / |j|\nv[i] += (A[i,j] - m[i]) ** 2\n"
            "Y[i,j] = (A[i,j] - m[i]) * rsqrt(v[i] / |j| + 1)",
    "extremes": "m[i] max= A[i,j]\nn[i] min= A[i,j]\nY[i] = m[i] - 2 * n[i]",
    "window": "C[i,j] += A[i+k,2*j] * B[k,j]",
    "local": "t = A[i,j] * B[j,i]\nu = t + 1\nY[i,j] = t * u",
    "gather": "Y[i,j] = T[I[i],j] * B[j,i] + T[J[i],j]",
    "gathered product": "C[i,j] += T[I[i],k] * B[k,j]",
    "tiles": "for j by 2:\n    s[i] += A[i,j] * B[j,i]\nY[i] = s[i] * 2",
}  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(PROGRAMS)), st.fixed_dictionaries({"i": extents, "j": extents, "k": extents}), st.data(),
    st.sampled_from(["fp64", "fp32", "fp16", "bf16", "fp8_e5m2"]), st.sampled_from([1, 4]), st.sampled_from([1, 3]),
)  # fmt: skip
def test_loop_math_is_the_interpreters(name, sizes, data, precision, lanes, cores):
    text = PROGRAMS[name]
    used = {index: extent for index, extent in sizes.items() if re.search(rf"\b{index}\b", text)}
    cuts = st.dictionaries(st.sampled_from(sorted(used)), st.integers(1, 5))
    schedule = {"tile": {} if name == "tiles" else data.draw(cuts), "vector": data.draw(st.booleans())}
    schedule |= {"fused": data.draw(st.booleans()), "parallel": "rows" if cores > 1 else "none"}
    tables = {"T": (data.draw(extents), used["k" if "T[I[i],k]" in text else "j"])} if "T[" in text else {}
    given = {"precision": precision, "lanes": lanes, "cores": cores, "tensors": tables}
    made = kernel("formula", used, formula=text, **given, **schedule)
    steps(made)
    program = bind(parse_statements(text), sizes=used, shapes=tables, padded=False)
    inputs = {each: np.asarray(made.formats[each].load(made.arrays[each]), np.float64) for each in program.inputs}
    expected = interpret(program, inputs)
    for output, found, _ in made.answers():
        scale = max(float(np.abs(expected[output]).max()), 1e-3)
        assert np.abs(np.asarray(found, np.float64) - expected[output]).max() <= max(made.tolerance, 1e-14) * scale


def gradients(program, wrt, output, inputs):
    """Adjoints by the statements of the backward pass, for a random adjoint of the output."""
    seed = np.random.default_rng(3).normal(size=program.shapes[output])
    ahead = forward(program)
    behind = backward(program, wrt, {output: f"d{output}"})
    shapes = dict(program.shapes)
    for each in ahead:
        shapes[each.name] = program.shapes[each.name.split(".")[0]]
    for name in list(shapes):
        shapes[f"d{name}"] = shapes[name]
    whole = replace(program, lines=(*ahead, *behind), shapes=shapes, inputs=(*program.inputs, f"d{output}"))
    found = interpret(whole, {**inputs, f"d{output}": seed})
    return seed, {name: found[f"d{name}"] for name in wrt}


def slopes(program, name, output, inputs, seed, step=1e-6):
    """Central differences, two evaluations for each element."""

    def total(x):
        return float((interpret(program, {**inputs, name: x})[output] * seed).sum())

    found = np.zeros_like(inputs[name])
    for place in np.ndindex(found.shape):
        up, down = inputs[name].copy(), inputs[name].copy()
        up[place] += step
        down[place] -= step
        found[place] = (total(up) - total(down)) / (2 * step)
    return found


def assert_slopes(program, inputs):
    (output,) = program.outputs
    seed, found = gradients(program, program.inputs, output, inputs)
    for name in program.inputs:
        expected = slopes(program, name, output, inputs, seed)
        np.testing.assert_allclose(found[name], expected, rtol=2e-5, atol=2e-6 * max(1, np.abs(expected).max()))


def drawn(program):
    random = np.random.default_rng(1)
    return {name: random.uniform(-1, 1, program.shapes[name]) for name in program.inputs}


@pytest.mark.parametrize(
    ("op", "shapes"), [("matmul", [(3, 4), (4, 5)]), ("softmax", [(3, 5)]), ("layernorm", [(3, 5), (5,), (5,)])]
)
def test_derivatives_of_operations_are_central_differences(op, shapes):
    program = find_operation(op).apply(shapes).program
    assert_slopes(program, drawn(program))


@settings(max_examples=15, deadline=None)
@given(values(depth=3), st.integers(1, 3), st.integers(1, 3))
def test_derivatives_of_any_expression_are_central_differences(value, i, j):
    used = {each: size for each, size in {"i": i, "j": j, "k": 2}.items() if re.search(rf"[\[,]{each}[\],]", value)}
    program = bind(parse_statements(f"Y[i] += tanh({value}) * H[i]"), sizes={**used, "i": i})
    assert_slopes(program, drawn(program))
