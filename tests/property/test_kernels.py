"""Any shape, any tiles, any order: the product is right, and how it is cut changes no access."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests import conventions
from tests.unit.kernels.helpers import counts, kernel, matrices, steps, touches

ORDERS = ["ijk", "ikj", "jik", "jki", "kij", "kji"]
extents = st.integers(1, 9)
sizes = st.fixed_dictionaries({"m": extents, "n": extents, "k": extents})
orders = st.sampled_from(ORDERS)
tiles = st.integers(1, 10)
quick = settings(max_examples=60, deadline=None)


@st.composite
def schedules(draw):
    """Any mix of order, layout, register tile and cache tile."""
    schedule = {
        "order": draw(orders),
        "b_layout": draw(st.sampled_from(["kj", "jk"])),
        "v1": draw(st.integers(1, 3)),
        "v2": draw(st.integers(1, 3)),
        "v3": draw(st.integers(1, 3)),
        "vector": draw(st.booleans()),
    }
    match draw(st.sampled_from(["none", "square", "strips", "k"])):
        case "square":
            schedule["tile"] = draw(tiles)
        case "strips":
            schedule |= {"b1": draw(tiles), "b2": draw(tiles)}
        case "k":
            schedule["tile_k"] = draw(tiles)
    if draw(st.booleans()) and ("tile" in schedule or "b1" in schedule or schedule["v1"] > 1):
        schedule["packed"] = True
    return schedule


@quick
@given(sizes, schedules(), st.sampled_from([1, 2, 4]), st.sampled_from(["fp64", "fp32", "int32"]))
def test_any_schedule_gives_the_product(shape, schedule, lanes, precision):
    made = kernel("matmul", shape, lanes=lanes, precision=precision, **schedule)
    steps(made)
    reference = made.reference()
    scale = np.abs(reference).max() or 1.0
    assert np.abs(made.output - reference).max() <= max(made.tolerance, 1e-15) * max(scale, 1.0)


@settings(max_examples=200, deadline=None)
@given(sizes, schedules(), st.sampled_from([1, 2, 4]))
@example({"m": 9, "n": 3, "k": 2}, {"order": "kji", "v1": 3, "vector": True, "packed": True}, 4)
def test_every_schedule_reads_every_element_and_writes_every_result(shape, schedule, lanes):
    made = kernel("matmul", shape, lanes=lanes, math=False, **schedule)
    seen: dict[str, set[int]] = {"A": set(), "B": set(), "C": set()}
    for nest in (nest for step in steps(made) for nest in step.nests):
        for access in nest.accesses:
            if access.tensor != "C" or access.write:
                single = type(nest)(nest.trips, (access,))
                for address, nbytes, _ in single.addresses():
                    seen[access.tensor].update(range(address, address + nbytes, 4))
    m, n, k = shape["m"], shape["n"], shape["k"]
    assert (len(seen["A"]), len(seen["B"]), len(seen["C"])) == (m * k, k * n, m * n)


@quick
@given(sizes, schedules(), st.sampled_from([1, 4]), st.integers(2, 5), st.sampled_from(["static", "dynamic"]))
def test_cutting_rows_into_steps_and_shares_changes_no_access(shape, schedule, lanes, cores, split):
    """Shares are whole tiles: one after the other, they are what a single core walks."""
    schedule["order"] = schedule["order"] if schedule["order"][0] == "i" else "ijk"
    if "tile_k" in schedule:
        del schedule["tile_k"]
        schedule.pop("packed", None)
    alone = kernel("matmul", shape, lanes=lanes, math=False, **schedule)
    shared = kernel("matmul", shape, lanes=lanes, math=False, cores=cores, parallel="rows", split=split, **schedule)
    assert touches(shared) == touches(alone)


@quick
@given(sizes, schedules(), st.sampled_from([1, 4]))
def test_any_cut_of_any_order_touches_the_same_elements_equally_often(shape, schedule, lanes):
    alone = kernel("matmul", shape, lanes=lanes, math=False, **schedule)
    shared = kernel("matmul", shape, lanes=lanes, math=False, cores=3, parallel="rows", **schedule)
    assert counts(shared)["stores"] == counts(alone)["stores"]
    assert counts(shared)["loads.A"] == counts(alone)["loads.A"]
    written = [Counter(t for t in touches(made) if t[2]) for made in (alone, shared)]
    assert written[0] == written[1]


@quick
@given(sizes, st.sampled_from(["ijk", "ikj"]), tiles)
def test_tiles_of_any_size_keep_the_order_of_the_plain_loops(shape, order, tile):
    made = kernel("matmul", shape, order=order, tile=tile, math=False)
    plain = getattr(conventions, f"mm_tiled_{order}")
    assert touches(made) == list(plain(*matrices(made), shape["m"], shape["n"], shape["k"], tile))


@quick
@given(sizes, st.permutations("ijk"), st.dictionaries(st.sampled_from("ijk"), tiles), st.integers(1, 3))
def test_a_formula_is_the_matmul_kernel_with_the_same_loops(shape, order, tile, cores):
    extent = {"i": shape["m"], "j": shape["n"], "k": shape["k"]}
    text = "C[i,j] += A[i,k] * B[k,j]"
    made = kernel(
        "formula",
        extent,
        formula=text,
        order=tuple(order),
        tile=tile,
        cores=cores,
        parallel="rows",
        precision="fp64",
    )
    steps(made)
    np.testing.assert_allclose(made.output, made.arrays["A"] @ made.arrays["B"], rtol=1e-13, atol=1e-13)
    if not tile:
        alone = kernel("formula", extent, formula=text, order=tuple(order), math=False)
        assert touches(alone) == touches(kernel("matmul", shape, order="".join(order), math=False))


@quick
@given(st.integers(1, 200), st.sampled_from([1, 4, 8]), st.integers(1, 5), st.booleans())
def test_elementwise_passes_touch_each_byte_once(n, lanes, cores, fused):
    made = kernel("fused_add_mul", {"n": n}, lanes=lanes, cores=cores, vector=True, parallel="rows", fused=fused)
    seen = Counter()
    for address, nbytes, write in touches(made):
        seen.update((byte, write) for byte in range(address, address + nbytes, 4))
    assert len(seen) == sum(seen.values()) == (5 if fused else 9) * n
    np.testing.assert_allclose(made.output, made.reference(), rtol=1e-5, atol=1e-6)
