"""Elementwise passes, sums, views, pointer chase, streams; shapes that do not fit; kernels of one's own."""

from __future__ import annotations

import numpy as np
import pytest

import hwsim
from hwsim.errors import CapacityError, ShapeError
from hwsim.ops.pointwise import POINTWISE
from hwsim.program.loop_kernel import build_kernel
from hwsim.spec.variant import with_parameters
from hwsim.trace.nest import Instructions
from tests.unit.kernels.helpers import counts, kernel, steps, touches, workload


def test_a_product_of_shapes_that_do_not_fit_names_both():  # X6
    given = {"A": np.ones((2, 3)), "B": np.ones((2, 2))}
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(2, 2\)"):
        kernel("matmul", {"n": 2}, inputs=given)


def test_inputs_of_the_wrong_size_name_both_shapes():
    with pytest.raises(ShapeError, match=r"A has shape \(3,\).*\(4,\)"):
        kernel("add", {"n": 4}, inputs={"A": np.ones(3)})


def test_an_input_that_does_not_exist_is_refused():
    with pytest.raises(ShapeError, match="no input Z"):
        steps(kernel("add", {"n": 4}, inputs={"Z": np.ones(4)}))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("add", lambda a, b: a + b),
        ("mul", lambda a, b: a * b),
    ],
)
def test_elementwise_values(op, expected):
    a, b = np.arange(5.0), np.arange(5.0) + 2
    made = kernel(op, {"n": 5}, inputs={"A": a, "B": b})
    steps(made)
    np.testing.assert_array_equal(made.output, expected(a, b))


def test_triad_and_fused_values():
    b, c = np.arange(4.0), np.ones(4)
    triad = kernel("triad", {"n": 4}, inputs={"B": b, "C": c})
    steps(triad)
    np.testing.assert_array_equal(triad.output, b + 3)
    for fused in (True, False):
        made = kernel("fused_add_mul", {"n": 4}, fused=fused, inputs={"A": b, "B": c, "C": b, "D": c})
        steps(made)
        np.testing.assert_array_equal(made.output, c + (b + c) * b)


def test_unfused_keeps_two_more_vectors_in_memory():
    fused, unfused = (kernel("fused_add_mul", {"n": 1000}, fused=fused) for fused in (True, False))
    assert unfused.space.peak_bytes - fused.space.peak_bytes == 2 * 4000


@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("result", ["total", "each"])
def test_sums(order, result):
    a = np.arange(12).reshape(3, 4)
    made = kernel("sum2d", {"m": 3, "n": 4}, order=order, result=result, inputs={"A": a}, precision="int32")
    steps(made)
    each = a.sum(axis=1 if order == "rows" else 0)
    assert made.output.tolist() == (each.tolist() if result == "each" else [66])
    assert counts(made)["stores"] == (len(each) if result == "each" else 0)


def test_a_slice_reads_only_its_columns():
    made = kernel("view", {"m": 2, "n": 9}, view="slice", offset=1, step=4)
    base = made.tensors["A"].base
    assert [(at - base) // 4 for at, _, _ in touches(made)] == [1, 5, 10, 14]


def test_a_broadcast_row_touches_its_elements_again_and_again():  # S8
    made = kernel("view", {"m": 4, "n": 3}, view="broadcast")
    seen = [address for address, _, _ in touches(made)]
    assert len(seen) == 12
    assert len(set(seen)) == 3


def test_vectors_of_a_strided_view_are_gathered_and_of_its_copy_are_not():  # S11
    schedule = {"view": "slice", "step": 4, "offset": 0, "vector": True, "lanes": 4}
    through_view = kernel("view", {"m": 8, "n": 64}, reuses=10, **schedule)
    copied = kernel("view", {"m": 8, "n": 64}, reuses=10, contiguous=True, **schedule)
    assert counts(through_view)["loads"] == 10 * 8 * 16
    assert counts(copied)["loads"] == 8 * 16 + 10 * 8 * 16 // 4


def test_a_pointer_chase_visits_every_entry_once_in_each_round():
    made = kernel("pointer_chase", {"bytes": "1 KiB", "stride": "64 B", "steps": 40})
    seen = [address for address, _, _ in touches(made)]
    assert len(seen) == 40
    assert len(set(seen[:16])) == 16
    assert seen[:16] == seen[16:32]
    assert seen[32:] == seen[:8]
    chain = steps(made)[0].work.chain
    assert (chain.op, chain.length) == ("load", 40)
    assert {(address - seen[0]) % 64 for address in seen} == {0}


def test_a_pointer_chase_really_follows_its_pointers():
    for hops in (1, 15, 16, 17, 100):
        made = kernel("pointer_chase", {"bytes": "1 KiB", "stride": "64 B", "steps": hops}, seed=hops)
        steps(made)
        np.testing.assert_array_equal(made.output, made.reference())


def test_a_ring_of_one_pointer():
    made = kernel("pointer_chase", {"bytes": "64 B", "stride": "64 B", "steps": 3})
    assert len(set(touches(made))) == 1


def test_a_stream_reads_each_byte_once_in_each_pass():
    made = kernel("stream_read", {"bytes": "1 KiB", "passes": 3}, lanes=4)
    assert counts(made)["loads"] == 3 * 1024 // 16
    assert steps(made)[0].work.chain is None


def test_a_register_tile_that_cannot_be_described_is_refused():
    with pytest.raises(CapacityError, match="smaller register tile"):
        steps(kernel("matmul", {"n": 80}, v1=40, v2=40, math=False))


def test_a_wide_register_tile_moves_the_same_bytes_of_c_in_fewer_accesses():
    made = kernel("matmul", {"n": 32}, v1=4, v2=8, tile=16, math=False)
    (step,) = steps(made)
    (nest,) = step.nests
    stored = sum(nest.count(access) * access.nbytes for access in nest.accesses if access.write)
    assert stored == 2 * 32 * 32 * 4
    assert step.work.instructions.store == 2 * 32 * 32


def test_packed_tiles_lie_in_one_piece():  # T8
    made = kernel("matmul", {"n": 8}, tile=4, packed=True, math=False)
    base = made.tensors["A"].base
    first = [(at - base) // 4 for at, _, _ in touches(made)[1:12] if base <= at < base + 256]
    assert first == [0, 1, 2, 3, 0]
    assert made.tensors["A"].shape == (2, 2, 4, 4)
    blocks = kernel("matmul", {"n": 8}, v1=4, v2=2, v3=1, packed=True, math=False)
    assert blocks.tensors["A"].shape == (2, 8, 4, 1)


@pytest.mark.parametrize("split", ["static", "dynamic"])
def test_rows_are_shared_out_without_communication(split):  # P2
    made = kernel("matmul", {"n": 8}, parallel="rows", split=split, cores=4)
    blocks = made.blocks()
    assert len(blocks) == (4 if split == "static" else 8)
    rows = []
    for block in blocks:
        writes = [t[0] for step in block.steps() for nest in step.nests for t in nest.addresses() if t[2]]
        rows.append(sorted({(at - made.tensors["C"].base) // 32 for at in writes}))
    assert [row for share in rows for row in share] == list(range(8))
    if split == "static":
        assert rows == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("cores", [2, 4])
def test_the_parallel_shape_of_the_course(cores):  # P5
    made = kernel("matmul", {"m": 24, "n": 20, "k": 16}, parallel="rows", cores=cores, precision="fp64")
    steps(made)
    np.testing.assert_allclose(made.output, made.arrays["A"] @ made.arrays["B"])


def test_cores_of_the_schedule_win_over_those_of_the_machine():
    chosen = with_parameters(workload("matmul", {"n": 8}, parallel="rows"), {"cores": "2"})
    assert len(build_kernel(chosen, cores=4).blocks()) == 2


@pytest.mark.parametrize(
    "schedule", [{}, {"tile": 32}, {"tile": 64}, {"tile": 8}, {"order": "kij"}, {"v1": 4, "v2": 4}]
)
def test_cores_that_share_a_cache_take_steps_that_can_interleave(schedule):
    made = kernel("matmul", {"n": 256}, parallel="rows", cores=4, math=False, **schedule)
    assert len(made.blocks()) == 4
    for block in made.blocks():
        assert 4 <= len(list(block.steps())) <= 64


def test_one_core_takes_one_step():
    assert len(steps(kernel("matmul", {"n": 256}, tile=30, parallel="rows", math=False))) == 1


def test_what_has_no_effect_is_said():
    assert kernel("matmul", {"n": 8}).warnings() == ()
    (covered,) = set(kernel("matmul", {"n": 8}, tile_k=64).warnings())
    assert "all 8 iterations of k" in covered
    (idle,) = kernel("matmul", {"n": 64}, b1=32, b2=8, parallel="rows", cores=4).warnings()
    assert "2 shares for 4 cores" in idle


def test_int8_products_are_summed_in_int32():
    made = kernel(
        "matmul",
        {"n": 64},
        precision="int8",
        inputs={"A": np.full((64, 64), 100), "B": np.full((64, 64), 100)},
    )
    steps(made)
    assert (made.output == 64 * 100 * 100).all()
    assert made.tensors["A"].element_bits == 8
    assert made.tensors["C"].element_bits == 32


def test_narrow_formats_are_rounded_for_each_tile_of_k():
    one_go = kernel("matmul", {"n": 64}, precision="fp16", seed=1)
    in_tiles = kernel("matmul", {"n": 64}, precision="fp16", seed=1, tile=2)
    steps(one_go)
    steps(in_tiles)
    error = [np.abs(made.output.astype(float) - made.reference()).max() for made in (one_go, in_tiles)]
    assert error[0] < error[1] < 64 * 2**-8


def test_an_operation_of_ones_own():
    @hwsim.operation("A[n] -> C[half]", "C[i] = A[2*i+1]", n=6, half=3)
    def every_second(A):
        return A[1::2]

    made = kernel("every_second", {"n": 8})
    steps(made)
    np.testing.assert_array_equal(made.output, made.arrays["A"][1::2])
    np.testing.assert_array_equal(made.output, made.reference())
    assert touches(made)[0][0] == made.tensors["A"].base + 4


def test_an_operation_that_does_not_exist_is_an_error_with_a_suggestion():
    with pytest.raises(ValueError, match=r"'every_secon' is not one of .*; did you mean 'every_second'"):
        kernel("every_secon", {"n": 6})


def test_instructions_add_up():
    one = Instructions(fma=1, load=2, other=3)
    assert (one + one).total == one.scaled(2).total == 12


@pytest.mark.parametrize("name", [name for name in POINTWISE if name.endswith("_backward")])
def test_a_gradient_is_the_slope_of_its_function(name):
    """By central differences, away from the corner of relu."""
    function, y = POINTWISE[name.removesuffix("_backward")].check, np.linspace(-3.1, 3.1, 32)
    slope = (function(y + 1e-5) - function(y - 1e-5)) / 2e-5
    np.testing.assert_allclose(POINTWISE[name].check(2.5, y), 2.5 * slope, rtol=1e-6, atol=1e-9)


def test_a_ring_of_pointers_takes_the_memory_that_it_was_asked_for() -> None:
    made = kernel("pointer_chase", {"bytes": "1 KiB", "stride": "64 B", "steps": 3})
    assert (made.bytes_of("ring"), made.space.peak_bytes) == (1024, 1024)
