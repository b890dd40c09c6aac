"""What follows from the statements of attention and softmax: counts as plain loops count them, answers as defined."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.ops.attention import AttentionSchedule, BackwardSchedule, attend, attention, attention_backward
from hwsim.ops.attention_shape import AttentionShape
from hwsim.ops.norm import SoftmaxSchedule, softmax
from hwsim.program.kernel import Setting
from hwsim.program.loop_kernel import OperatorKernel, OperatorRun
from hwsim.program.loops import Loop, Ranges, summed
from hwsim.program.operation import Operator
from hwsim.spec.base import ParallelSchedule

quick = settings(max_examples=40, deadline=None)
KINDS = ("fma", "add", "mul", "special")


@st.composite
def shapes(draw: st.DrawFn) -> AttentionShape:
    """Any mix of heads, batches, lengths and layouts, causal or not."""
    kv_heads, keys, causal = draw(st.integers(1, 2)), draw(st.integers(1, 17)), draw(st.booleans())
    layout = draw(st.sampled_from(["heads", "columns", "matrix"]))
    return AttentionShape(
        batch=1 if layout == "matrix" else draw(st.integers(1, 2)),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        queries=draw(st.integers(1, keys if causal else 17)),
        keys=keys,
        d=draw(st.integers(1, 9)),
        causal=causal,
        layout=layout,
    )


tiles = st.integers(1, 9)
ways = st.sampled_from([("fused", None), ("naive", "plain"), ("naive", "rows"), ("naive", "online")])
backward_ways = st.sampled_from([("fused", "recompute"), ("naive", "recompute"), ("naive", "stored")])
formats = st.sampled_from(["fp64", "fp32", "bf16"])
cores = st.sampled_from([(1, "static"), (3, "static"), (2, "dynamic")])


def make(
    operator: Operator,
    precision: str = "fp64",
    lanes: int = 1,
    shared: tuple[int, str] = (1, "static"),
    math: bool = True,
) -> OperatorKernel:
    count, split = shared
    parallel = ParallelSchedule(parallel="rows" if count > 1 else "none", split=split)
    return OperatorKernel(
        operator, OperatorRun("made", precision, parallel), Setting(lanes=lanes, cores=count, math=math)
    )


def played(made: OperatorKernel) -> OperatorKernel:
    for stage in made.stages():
        for block in stage.blocks:
            list(block.steps())
    return made


def derived(operator: Operator) -> dict[str, int]:
    """Instructions of each kind that the loops of an operator make, for single elements."""
    found = {}
    for kind in KINDS:

        def count(loop: Loop, ranges: Ranges, kind: str = kind) -> int:
            points = prod(extent for _, extent in ranges.values())
            return points * getattr(loop.body, kind) + loop.results(ranges) * getattr(loop.late_body, kind)

        found[kind] = sum(summed(phase.items, {}, count) for phase in make(operator, math=False).program)
    return found


# Plain loops, one instruction at a time -----------------------------------------------------------------------------


def kinds(found: Counter[str]) -> dict[str, int]:
    return {kind: found[kind] for kind in KINDS}


def heads(shape: AttentionShape) -> int:
    return shape.batch * shape.heads


def sees(shape: AttentionShape, i: int, j: int) -> bool:
    return not shape.causal or j <= i + shape.keys - shape.queries


def count_softmax_row(found: Counter[str], columns: int, online: bool) -> None:
    for _ in range(columns):
        if online:
            found.update(["add"])  # the larger maximum
            found.update(["add", "special", "add", "special", "fma"])  # two exponentials, and the sum that shrinks
            found.update(["add", "special", "special"])  # again, over the sum
        else:
            found.update(["add"])
            found.update(["add", "special", "add"])
            found.update(["special"])


def count_naive(shape: AttentionShape, how: str) -> dict[str, int]:
    found: Counter[str] = Counter()
    for _ in range(heads(shape)):
        for _i in range(shape.queries):
            for _j in range(shape.keys):
                found.update(["fma"] * shape.d)
                found.update(["mul", *(["add"] if shape.causal else [])])  # scale, and mask
                found.update(["fma"] * shape.d)  # P V
            count_softmax_row(found, shape.keys, how == "online")
    return kinds(found)


def key_tiles(shape: AttentionShape, rows: range, bc: int) -> list[tuple[range, bool]]:
    """Tiles of keys that some of the queries see, and whether some do not see all of a tile."""
    bc = min(bc, shape.keys)
    whole = sum(all(sees(shape, i, j) for i in rows) for j in range(shape.keys))
    seen = sum(any(sees(shape, i, j) for i in rows) for j in range(shape.keys))
    inside = seen if not shape.causal else whole // bc * bc
    plain = [(range(j, min(j + bc, inside)), False) for j in range(0, inside, bc)]
    return plain + [(range(j, min(j + bc, seen)), True) for j in range(inside, seen, bc)]


def count_fused(shape: AttentionShape, br: int, bc: int) -> dict[str, int]:
    found: Counter[str] = Counter()
    for _ in range(heads(shape)):
        for first in range(0, shape.queries, br):
            rows = range(first, min(first + br, shape.queries))
            for keys, masked in key_tiles(shape, rows, bc):
                for _i in rows:
                    for _j in keys:
                        found.update(["fma"] * shape.d)
                        found.update(["mul", *(["add"] if masked else [])])
                        found.update(["add"])  # maximum
                        found.update(["add", "special", "add"])  # exponential, sum
                        found.update(["fma"] * shape.d)
                    found.update(["add", "add", "special", "fma"])  # m', exp(m - m'), a l + sum
                    found.update(["mul"] * shape.d)
            for _i in rows:
                found.update(["special"] * shape.d)
    return kinds(found)


def count_backward(shape: AttentionShape, stored: bool) -> dict[str, int]:
    found: Counter[str] = Counter()
    for _ in range(heads(shape)):
        for _i in range(shape.queries):
            for _j in range(shape.keys):
                products = 4 if stored else 5
                found.update(["fma"] * (products * shape.d))
                found.update(["fma"])  # D
                found.update(["add", "mul", "mul"])  # dS
                if not stored:
                    found.update(["mul", *(["add"] if shape.causal else [])])
            if not stored:
                count_softmax_row(found, shape.keys, False)
    return kinds(found)


def count_fused_backward(shape: AttentionShape, br: int, bc: int) -> dict[str, int]:
    found: Counter[str] = Counter()
    for _ in range(heads(shape)):
        for _i in range(shape.queries):
            found.update(["fma"] * shape.d)  # D
        for first in range(0, shape.keys, bc):
            keys = range(first, min(first + bc, shape.keys))
            for start in range(0, shape.queries, br):
                rows = range(start, min(start + br, shape.queries))
                points = [(i, j) for i in rows for j in keys]
                if not any(sees(shape, i, j) for i, j in points):
                    continue
                masked = not all(sees(shape, i, j) for i, j in points)
                for _ in points:
                    found.update(["fma"] * (5 * shape.d))
                    found.update(["fma", "special", *(["add"] if masked else [])])  # exp(S * scale - L)
                    found.update(["add", "mul", "mul"])  # dS
    return kinds(found)


# Counts --------------------------------------------------------------------------------------------------------------


@quick
@given(shapes(), ways, tiles, tiles)
def test_counts_of_attention_are_those_of_plain_loops(shape, way, br, bc):
    variant, how = way
    operator = attend(attention, shape, AttentionSchedule(variant=variant, softmax=how, br=br, bc=bc, vector=False))
    expected = count_fused(shape, br, bc) if variant == "fused" else count_naive(shape, how)
    assert derived(operator) == expected


@quick
@given(shapes(), backward_ways, tiles, tiles)
def test_counts_of_gradients_are_those_of_plain_loops(shape, way, br, bc):
    variant, probabilities = way
    schedule = BackwardSchedule(variant=variant, probabilities=probabilities, br=br, bc=bc, vector=False)
    expected = (
        count_fused_backward(shape, br, bc) if variant == "fused" else count_backward(shape, probabilities == "stored")
    )
    assert derived(attend(attention_backward, shape, schedule)) == expected


@quick
@given(st.integers(1, 9), st.integers(1, 33), st.sampled_from(["passes", "online"]), st.sampled_from([None, 1, 4]))
def test_counts_of_softmax_are_those_of_plain_loops(rows, columns, variant, block):
    found: Counter[str] = Counter()
    for _ in range(rows):
        count_softmax_row(found, columns, variant == "online")
    schedule = SoftmaxSchedule(variant=variant, block=block, vector=False)
    assert derived(softmax.apply([(rows, columns)], schedule=schedule)) == kinds(found)


# Answers -------------------------------------------------------------------------------------------------------------


def check(made: OperatorKernel) -> None:
    for name, values, expected in played(made).answers():
        scale = max(1.0, np.abs(expected).max())
        error = np.abs(made.formats[name].load(values) - expected).max()
        assert error <= made.tolerance * scale, name


def definition(shape: AttentionShape, arrays: dict[str, Any]) -> np.ndarray:
    """Query by query, in float64: [batch, heads, queries, d]."""
    views = shape.views()
    q, k, v = (views[name].values(arrays[name].astype(np.float64)) for name in "QKV")
    output = np.zeros_like(q)
    for place in np.ndindex(*q.shape[:4]):
        b, g, _, i = place
        seen = [j for j in range(shape.keys) if sees(shape, i, j)]
        weights = np.exp(k[b, g, seen] @ q[place] * shape.factor)
        output[place] = weights @ v[b, g, seen] / weights.sum()
    return views["O"].stored(output)


@quick
@given(shapes(), ways, tiles, tiles, st.sampled_from([1, 4]), formats, cores)
def test_attention_is_what_its_definition_says_in_every_layout(shape, way, br, bc, lanes, precision, shared):
    variant, how = way
    operator = attend(attention, shape, AttentionSchedule(variant=variant, softmax=how, br=br, bc=bc))
    made = make(operator, precision, lanes, shared)
    check(made)
    np.testing.assert_allclose(made.reference(), definition(shape, made.arrays), rtol=1e-10, atol=1e-12)


@quick
@given(shapes(), backward_ways, tiles, tiles, st.sampled_from([1, 4]), formats, cores)
def test_gradients_are_those_of_the_reference_in_every_layout(shape, way, br, bc, lanes, precision, shared):
    variant, probabilities = way
    schedule = BackwardSchedule(variant=variant, probabilities=probabilities, br=br, bc=bc)
    check(make(attend(attention_backward, shape, schedule), precision, lanes, shared))


@quick
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(1, 40), st.sampled_from(["passes", "online"]),
    st.sampled_from([None, 1, 4]), st.sampled_from([1, 4]), formats, cores,
)  # fmt: skip
def test_softmax_is_that_of_the_reference(rows, columns, variant, block, lanes, precision, shared):
    schedule = SoftmaxSchedule(variant=variant, block=block)
    check(make(softmax.apply([(*rows, columns)], schedule=schedule), precision, lanes, shared))


# Gradients tile by tile ----------------------------------------------------------------------------------------------


@quick
@given(shapes(), tiles, tiles, st.sampled_from([1, 4]))
def test_gradients_tile_by_tile_are_those_with_matrices_in_memory(shape, br, bc, lanes):
    fused = played(
        make(attend(attention_backward, shape, BackwardSchedule(variant="fused", br=br, bc=bc)), lanes=lanes)
    )
    given = {name: fused.arrays[name] for name in ("Q", "K", "V", "dO")}
    run = OperatorRun("made", "fp64", ParallelSchedule(), given)
    whole = played(OperatorKernel(attend(attention_backward, shape), run, Setting()))
    for name in ("dQ", "dK", "dV"):
        np.testing.assert_allclose(fused.arrays[name], whole.arrays[name], rtol=1e-9, atol=1e-11)


def test_gradients_tile_by_tile_store_no_matrix_of_all_queries_and_keys():
    shape = AttentionShape(256, 256, 16, 2)
    sizes = {}
    for variant in ("naive", "fused"):
        schedule = BackwardSchedule(variant=variant, br=16, bc=32)
        made = make(attend(attention_backward, shape, schedule), "fp32", math=False)
        sizes[variant] = {name: view.size for name, view in made.tensors.items()}
    assert max(sizes["naive"].values()) == 2 * 256 * 256
    assert max(sizes["fused"].values()) == 2 * 256 * 16
    assert sizes["fused"]["P"] == sizes["fused"]["dS"] == 2 * 16 * 32
