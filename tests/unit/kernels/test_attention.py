"""Attention and softmax as operators: gradients, layouts, scratch space, and requests that make no sense."""

from __future__ import annotations

import numpy as np
import pytest

from hwsim.errors import CapacityError, InputError, ShapeError
from hwsim.numerics.format import Array, find_format
from hwsim.ops.attention import AttentionSchedule, BackwardSchedule, attend, attention, attention_backward, shape_of
from hwsim.ops.attention_shape import AttentionShape, Room
from hwsim.ops.norm import SoftmaxSchedule, softmax
from hwsim.program.kernel import Setting
from hwsim.program.loop_kernel import OperatorKernel, OperatorRun
from hwsim.program.operation import Operator
from hwsim.spec.base import ParallelSchedule
from hwsim.units import parse_bytes
from tests.unit.kernels.helpers import counts, kernel, steps


def run(operator: Operator, given: dict[str, Array] | None = None, precision: str = "fp64") -> OperatorKernel:
    made = OperatorKernel(operator, OperatorRun("made", precision, ParallelSchedule(), given or {}), Setting(lanes=4))
    for stage in made.stages():
        for block in stage.blocks:
            list(block.steps())
    return made


def output(shape: AttentionShape, q: Array, k: Array, v: Array) -> Array:
    return attend(attention, shape).reference({"Q": q, "K": k, "V": v})["O"]


def test_an_operator_tells_the_shape_that_it_was_made_from():
    wide = {"d": 4, "heads": 6, "kv_heads": 2, "batch": 3, "scale": 0.25}
    for causal in (False, True):
        for sizes in ({"queries": 5, "keys": 9}, {"queries": 9, "keys": 9}, {"queries": 1, "keys": 7}):
            shape = AttentionShape(**sizes, **wide, causal=causal)
            for made in (attention, attention_backward):
                assert shape_of(attend(made, shape)) == shape


@pytest.mark.parametrize("variant", ["naive", "fused"])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_agree_with_central_differences(causal, variant):
    """Of the sum of dO * O, one element of Q, K or V at a time (D5)."""
    shape = AttentionShape(queries=3, keys=5, d=2, heads=4, kv_heads=2, causal=causal)
    made = run(attend(attention_backward, shape, BackwardSchedule(br=2, bc=2, variant=variant)))
    values = {name: made.arrays[name].copy() for name in ("Q", "K", "V")}
    step = 1e-6
    for name, gradient in (("Q", "dQ"), ("K", "dK"), ("V", "dV")):
        expected = np.zeros_like(values[name])
        for place in np.ndindex(expected.shape):
            ends = []
            for sign in (1, -1):
                moved = {each: array.copy() for each, array in values.items()}
                moved[name][place] += sign * step
                ends.append((made.arrays["dO"] * output(shape, moved["Q"], moved["K"], moved["V"])).sum())
            expected[place] = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(made.arrays[gradient], expected, rtol=1e-6, atol=1e-8)


def test_a_stored_p_gives_the_gradients_that_a_recomputed_one_gives():
    shape = AttentionShape(queries=6, keys=7, d=3, heads=2, kv_heads=1)
    again = run(attend(attention_backward, shape))
    q, k = again.arrays["Q"], np.repeat(again.arrays["K"], 2, axis=1)
    scores = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(3))
    given = {name: again.arrays[name] for name in ("Q", "K", "V", "dO")}
    given["P"] = scores / scores.sum(axis=-1, keepdims=True)
    stored = run(attend(attention_backward, shape, BackwardSchedule(probabilities="stored")), given)
    for name in ("dQ", "dK", "dV"):
        np.testing.assert_allclose(stored.arrays[name], again.arrays[name], atol=1e-14)
    assert stored.useful_flops < again.useful_flops


@pytest.mark.parametrize("variant", ["naive", "fused"])
def test_heads_may_lie_side_by_side_in_the_columns_of_a_matrix(variant):
    """As the projections of a transformer make them."""
    schedule = AttentionSchedule(variant=variant, br=4, bc=3)
    apart = AttentionShape(queries=9, keys=9, d=3, heads=4, kv_heads=2, causal=True)
    together = AttentionShape(queries=9, keys=9, d=3, heads=4, kv_heads=2, causal=True, layout="matrix")
    first = run(attend(attention, apart, schedule))
    columns = {name: first.arrays[name][0].transpose(1, 0, 2).reshape(9, -1) for name in ("Q", "K", "V")}
    second = run(attend(attention, together, schedule), columns)
    assert second.arrays["Q"].shape == (9, 12)
    assert second.arrays["K"].shape == (9, 6)
    expected = first.arrays["O"][0].transpose(1, 0, 2).reshape(9, -1)
    np.testing.assert_allclose(second.arrays["O"], expected, atol=1e-15)
    np.testing.assert_allclose(second.arrays["O"], second.reference(), atol=1e-14)


def test_a_batch_of_columns_and_its_gradients():
    shape = AttentionShape(queries=5, keys=6, d=2, heads=2, kv_heads=2, batch=3, layout="columns")
    forward, backward = run(attend(attention, shape)), run(attend(attention_backward, shape))
    assert forward.arrays["O"].shape == (3, 5, 4)
    np.testing.assert_allclose(forward.output, forward.reference(), atol=1e-14)
    for _, values, expected in backward.answers():
        np.testing.assert_allclose(values, expected, atol=1e-13)


def test_query_heads_that_share_keys_read_them_once_for_all():
    """Four query heads on one head of K: as many bytes of K as one query head reads, per tile of queries."""
    alone = kernel("attention", {"n": 16, "d": 4, "queries": 1}, math=False, br=1, bc=4)
    shared = kernel("attention", {"n": 16, "d": 4, "queries": 1, "heads": 4, "kv_heads": 1}, math=False, br=1, bc=4)
    loads = [sum(n.count(a) for s in steps(m) for n in s.nests for a in n.accesses if a.tensor == "K")
             for m in (alone, shared)]  # fmt: skip
    assert loads[0] == 16 * 4
    assert loads[1] == 2 * loads[0]  # two query heads at a time in registers, four in the first cache
    assert [m.tensors["K"].size for m in (alone, shared)] == [64, 64]


# Scratch space ------------------------------------------------------------------------------------------------------


def needed(br: int, bc: int, d: int) -> int:
    """Q, K, V, S, O, and four numbers for each row, in fp32."""
    return 4 * (br * d + 2 * bc * d + br * bc + br * d + 4 * br)


def fused(br: int, bc: int, scratch: str) -> None:
    kernel("attention", {"n": 1024, "d": 64}, math=False, br=br, bc=bc, scratch=scratch)


@pytest.mark.parametrize("scratch", ["8 KiB", "32 KiB", "96 KiB"])
def test_a_tile_that_does_not_fit_names_the_largest_that_does(scratch):
    with pytest.raises(CapacityError, match="scratch space") as refused:
        fused(512, 512, scratch)
    text = str(refused.value)
    side = int(text.split("largest square tile that fits is br=")[1].split(maxsplit=1)[0])
    assert f"bc={side}" in text
    assert needed(side, side, 64) <= parse_bytes(scratch) < needed(side + 1, side + 1, 64)
    fused(side, side, scratch)
    with pytest.raises(CapacityError):
        fused(side + 1, side + 1, scratch)


def test_the_other_side_of_the_tile_is_kept_where_that_is_possible():
    with pytest.raises(CapacityError, match=r"with bc=32 it is br=(\d+)") as refused:
        fused(128, 32, "32 KiB")
    rows = int(str(refused.value).rsplit("with bc=32 it is br=", 1)[1].split(";")[0])
    fused(rows, 32, "32 KiB")
    with pytest.raises(CapacityError):
        fused(rows + 1, 32, "32 KiB")


def test_scratch_space_for_nothing_says_so():
    with pytest.raises(CapacityError, match="not even br=1 bc=1, with 1044 B"):
        fused(2, 2, "512 B")


def test_a_narrow_format_keeps_s_wide_and_has_p_beside_it():
    shape = AttentionShape(queries=64, keys=64, d=16)
    room = Room(shape, find_format("fp16"), 1 << 20)
    narrow, wide = 2 * (8 * 16 + 2 * 4 * 16 + 8 * 4), 4 * (8 * 4 + 8 * 16 + 4 * 8)
    assert room.needed_bytes(8, 4) == narrow + wide


# Requests that make no sense ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["plain", "rows"])
def test_a_fused_tile_cannot_divide_by_the_sum_of_a_row_that_it_has_not_seen(how):
    """N3: softmax needs the whole row."""
    with pytest.raises(ValueError, match=r"whole row of S.*softmax: online.*variant: naive"):
        kernel("attention", {"n": 64}, variant="fused", softmax=how)


def test_gradients_tile_by_tile_have_no_stored_p():
    with pytest.raises(ValueError, match=r"no matrix P in memory.*probabilities: recompute"):
        kernel("attention_backward", {"n": 64}, variant="fused", probabilities="stored")


def test_scratch_space_is_not_for_the_naive_variant():
    with pytest.raises(ValueError, match="scratch is the space of a fused tile"):
        kernel("attention", {"n": 64}, variant="naive", scratch="1 KiB")


@pytest.mark.parametrize("op", ["attention", "attention_backward", "softmax"])
@pytest.mark.parametrize("precision", ["int8", "int32"])
def test_whole_numbers_are_refused_with_the_formats_that_work(op, precision):
    with pytest.raises(InputError, match=rf"{op}.*{precision}.*fp64, fp32"):
        kernel(op, {"n": 8}, precision=precision)


def test_heads_that_cannot_share_and_queries_that_see_nothing_are_refused():
    with pytest.raises(ValueError, match="6 query heads cannot share 4 key/value heads"):
        kernel("attention", {"n": 8, "heads": 6, "kv_heads": 4})
    with pytest.raises(ValueError, match="first of 9 queries would see none of 8 keys"):
        kernel("attention", {"n": 8, "queries": 9, "causal": True})
    with pytest.raises(ShapeError, match="cannot share"):
        AttentionShape(queries=2, keys=2, d=2, heads=3, kv_heads=2)
    with pytest.raises(ShapeError, match="see none"):
        AttentionShape(queries=3, keys=2, d=2, causal=True)
    with pytest.raises(ShapeError, match="no axis for a batch"):
        AttentionShape(queries=3, keys=2, d=2, batch=2, layout="matrix")


# Softmax ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["passes", "online"])
@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 5), (2, 1, 3, 9)])
def test_softmax_runs_along_the_last_of_any_number_of_axes(shape, variant):
    made = run(softmax.apply([shape], schedule=SoftmaxSchedule(variant=variant, block=2)))
    np.testing.assert_allclose(made.output.sum(axis=-1), 1)
    np.testing.assert_allclose(made.output, made.reference(), atol=1e-15)


def test_the_statistics_of_a_tile_are_touched_as_often_as_the_recurrence_says():
    """Per row: m and l are set; for each of three tiles of keys m', a, m and l are stored once, and read where used."""
    made = kernel("attention", {"n": 12, "d": 4, "queries": 8}, math=False, br=4, bc=4)
    moved = counts(made)
    rows, pairs = 8, 8 * 3
    assert (moved["loads.new_max"], moved["stores.new_max"]) == (pairs, pairs)
    assert (moved["loads.max"], moved["stores.max"]) == (3 * pairs, rows + pairs)
    assert (moved["loads.sum"], moved["stores.sum"]) == (pairs + rows, rows + pairs)
    assert moved["stores.S"] == 2 * 4 * pairs  # scores, and exponentials in their place
    # O is cleared; rescaled and added to for each tile of keys; divided at the end.
    assert (moved["loads.acc"], moved["stores.acc"]) == (4 * (2 * pairs + rows), 4 * (rows + 2 * pairs))
