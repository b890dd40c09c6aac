"""Any shape, tile, precision and number of cores gives the attention of the definition, and touches what it should."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kernels.helpers import counts, kernel, steps

quick = settings(max_examples=50, deadline=None)
few = settings(max_examples=25, deadline=None)


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """Any mix of heads, batches and lengths, causal or not."""
    kv_heads = draw(st.integers(1, 2))
    n = draw(st.integers(1, 23))
    causal = draw(st.booleans())
    return {
        "n": n,
        "queries": draw(st.integers(1, n if causal else 23)),
        "d": draw(st.integers(1, 11)),
        "heads": kv_heads * draw(st.integers(1, 3)),
        "kv_heads": kv_heads,
        "batch": draw(st.integers(1, 2)),
        "causal": causal,
    }


variants = st.sampled_from([("fused", None), ("naive", "plain"), ("naive", "rows"), ("naive", "online")])
tiles = st.integers(1, 9)
cores = st.sampled_from([{}, {"cores": 3, "parallel": "rows"}, {"cores": 2, "parallel": "rows", "split": "dynamic"}])
precisions = st.sampled_from(["fp64", "fp32"])


def definition(shape: dict[str, Any], q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Query by query: weights exp(q·k/√d) over the keys that it sees, and the mean of their values with these."""
    output = np.zeros_like(q)
    share = shape["heads"] // shape["kv_heads"]
    for b in range(shape["batch"]):
        for h in range(shape["heads"]):
            for i in range(shape["queries"]):
                seen = i + shape["n"] - shape["queries"] + 1 if shape["causal"] else shape["n"]
                weights = np.exp(k[b, h // share, :seen] @ q[b, h, i] / np.sqrt(shape["d"]))
                output[b, h, i] = weights @ v[b, h // share, :seen] / weights.sum()
    return output


def elements(step: Any, tensor: str) -> set[int]:
    """Addresses of the elements of a tensor that a step touches."""
    found: set[int] = set()
    for nest in step.nests:
        for access in nest.accesses:
            if access.tensor == tensor:
                for address, nbytes, _ in type(nest)(nest.trips, (access,)).addresses():
                    found.update(range(address, address + nbytes, 4))
    return found


def wide(made: Any, *names: str) -> list[np.ndarray]:
    return [made.arrays[name].astype(np.float64) for name in names]


@quick
@given(shapes(), variants, tiles, tiles, st.sampled_from([1, 4]), precisions, cores, st.booleans())
def test_attention_is_what_its_definition_says(shape, variant, br, bc, lanes, precision, shared, vector):
    how, softmax = variant
    made = kernel(
        "attention", shape, lanes=lanes, precision=precision, variant=how, softmax=softmax, br=br, bc=bc,
        vector=vector, **shared,
    )  # fmt: skip
    steps(made)
    expected = definition(shape, *wide(made, "Q", "K", "V"))
    error = np.abs(made.output - expected).max() / np.abs(expected).max()
    assert error <= made.tolerance
    np.testing.assert_allclose(made.reference(), expected, rtol=1e-10, atol=1e-12)


@quick
@given(shapes(), st.sampled_from(["naive", "fused"]), tiles, tiles, st.sampled_from([1, 4]))
def test_work_is_what_the_closed_form_counts(shape, variant, br, bc, lanes):
    """Naive computes every score; causal fused stops at the last key that a tile of queries sees."""
    made = kernel("attention", shape, lanes=lanes, math=False, variant=variant, br=br, bc=bc)
    n, queries, d = shape["n"], shape["queries"], shape["d"]
    scores = 0
    for start in range(0, queries, br):
        rows = min(br, queries - start)
        last = min(n, start + rows + n - queries) if shape["causal"] and variant == "fused" else n
        scores += rows * last
    heads = shape["heads"] * shape["batch"]
    products = [step for step in steps(made) if step.name in ("scores", "weigh")]
    assert sum(step.work.macs for step in products) == 2 * heads * scores * d
    # Softmax of naive attention: a maximum; a difference, an exponential and a sum; a quotient; scale, and mask.
    if variant == "naive":
        softmax = (5 + 1 + shape["causal"]) * heads * queries * n
        assert made.useful_flops == 4 * heads * scores * d + softmax


@few
@given(shapes(), tiles, tiles, st.sampled_from([1, 4]))
def test_fused_attention_touches_the_keys_that_a_tile_of_queries_sees_and_stores_o_once(shape, br, bc, lanes):
    made = kernel("attention", shape, lanes=lanes, math=False, variant="fused", br=br, bc=bc)
    n, queries, d = shape["n"], shape["queries"], shape["d"]
    seen = sum(
        min(n, min(start + br, queries) + n - queries) if shape["causal"] else n for start in range(0, queries, br)
    )
    groups = shape["kv_heads"] * shape["batch"]
    assert sum(len(elements(step, "K")) for step in steps(made)) == groups * seen * d
    assert sum(len(elements(step, "V")) for step in steps(made)) == groups * seen * d
    stored = Counter(place for step in steps(made) for place in elements(step, "O"))
    assert len(stored) == shape["heads"] * shape["batch"] * queries * d
    assert set(stored.values()) == {1}


@few
@given(shapes(), st.sampled_from(["naive", "fused"]), tiles, tiles, st.sampled_from(["static", "dynamic"]))
def test_cores_touch_together_what_one_core_touches_but_for_their_own_scratch_space(shape, variant, br, bc, split):
    alone = kernel("attention", shape, lanes=4, math=False, variant=variant, br=br, bc=bc)
    shared = kernel(
        "attention", shape, lanes=4, cores=3, math=False, variant=variant, br=br, bc=bc, parallel="rows", split=split
    )
    private = {"S", "P", "acc", "max", "new_max", "sum", "shrink"} if variant == "fused" else set()

    def touched(made: Any) -> set[tuple[str, int]]:
        names = made.tensors.keys() - private
        bases = {name: made.tensors[name].base for name in names}
        return {(n, place - bases[n]) for step in steps(made) for n in names for place in elements(step, n)}

    assert touched(shared) == touched(alone)
    blocks = shared.blocks()
    places = [
        {a.base for step in block.steps() for nest in step.nests for a in nest.accesses if a.tensor in private}
        for block in blocks
    ]
    for number, mine in enumerate(places):
        assert all(not mine & other for other in places[number + 1 :])


@quick
@given(shapes(), tiles, tiles, st.sampled_from([1, 4]), precisions, cores, st.sampled_from(["recompute", "stored"]))
def test_gradients_are_those_of_the_closed_form(shape, br, bc, lanes, precision, shared, probabilities):
    """The reference by einsum is itself held to central differences in tests/unit/kernels/test_attention.py."""
    made = kernel(
        "attention_backward", shape, lanes=lanes, precision=precision, br=br, bc=bc, probabilities=probabilities,
        **shared,
    )  # fmt: skip
    for stage in made.stages():
        for block in stage.blocks:
            list(block.steps())
    for _, values, expected in made.answers():
        scale = np.abs(expected).max() or 1.0
        assert np.abs(values - expected).max() <= made.tolerance * max(scale, 1.0)
    products = ("scores", "dP", "dQ", "dK", "dV")[probabilities == "stored" :]
    done = Counter(step.name for step in steps(made))
    assert all(done[name] for name in products)
    size = shape["heads"] * shape["batch"] * shape["queries"] * shape["n"]
    macs = sum(step.work.macs for step in steps(made) if step.name in products)
    assert macs == len(products) * size * shape["d"]


@quick
@given(
    st.integers(1, 9), st.integers(1, 150), st.sampled_from(["passes", "online"]),
    st.sampled_from([None, 1, 2, 5]), st.sampled_from([1, 8]), precisions, cores,
)  # fmt: skip
def test_softmax_is_what_its_definition_says(m, n, variant, block, lanes, precision, shared):
    made = kernel("softmax", {"m": m, "n": n}, lanes=lanes, precision=precision, variant=variant, block=block, **shared)
    steps(made)
    (x,) = wide(made, "X")
    expected = np.array([np.exp(row) / sum(np.exp(row)) for row in x])
    assert np.abs(made.output - expected).max() <= made.tolerance * expected.max()
    moved = counts(kernel("softmax", {"m": m, "n": n}, math=False, variant=variant, block=block))
    assert (moved["loads.X"], moved["loads.Y"], moved["stores.Y"]) == (
        (2 * m * n, m * n, 2 * m * n) if variant == "passes" else (2 * m * n, 0, m * n)
    )


@pytest.mark.parametrize("variant", ["passes", "online"])
def test_softmax_of_huge_numbers_does_not_overflow(variant):
    x = np.array([[1000.0, 999.0, -1000.0], [-5000.0, -5000.0, -5001.0]])
    made = kernel("softmax", {"m": 2, "n": 3}, variant=variant, inputs={"X": x})
    steps(made)
    e = np.exp(-1.0)
    np.testing.assert_allclose(made.output, [[1 / (1 + e), e / (1 + e), 0], [1 / (2 + e), 1 / (2 + e), e / (2 + e)]])
