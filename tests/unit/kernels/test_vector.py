"""Vectors: which accesses become wide, which are gathered, and what is left over."""

from __future__ import annotations

import pytest

from hwsim.errors import CapacityError
from hwsim.trace.nest import MAX_ACCESSES
from tests.unit.kernels.helpers import counts, kernel, steps, touches


def test_rows_of_b_and_c_are_taken_as_vectors():
    made = kernel("matmul", {"m": 1, "n": 8, "k": 1}, order="ikj", vector=True, lanes=4)
    a, b, c = (made.tensors[name].base for name in "ABC")
    half = [(b, 16, False), (c, 16, False), (c, 16, True)]
    assert touches(made) == [(a, 4, False), *half, *[(at + 16, size, write) for at, size, write in half]]


def test_what_does_not_fill_a_vector_is_done_element_by_element():
    made = kernel("matmul", {"m": 2, "n": 6, "k": 1}, order="ikj", vector=True, lanes=4)
    b, c = made.tensors["B"].base, made.tensors["C"].base
    singles = [t for j in (4, 5) for t in ((b + 4 * j, 4, False), (c + 4 * j, 4, False), (c + 4 * j, 4, True))]
    assert touches(made)[4:10] == singles
    assert counts(made) == {
        "loads": 2 * 7,
        "stores": 6,
        "loads.A": 2,
        "loads.B": 6,
        "loads.C": 6,
        "stores.C": 6,
    }


def test_a_dot_product_down_a_column_gathers_b():
    made = kernel("matmul", {"n": 8}, order="ijk", vector=True, lanes=4)
    assert counts(made)["loads.A"] == 8**3 // 4
    assert counts(made)["loads.B"] == 8**3
    assert steps(made)[0].work.instructions.fma == 8**3 // 4


def test_with_b_transposed_both_operands_are_vectors():
    made = kernel("matmul", {"n": 8}, order="ijk", vector=True, lanes=4, b_layout="jk")
    assert counts(made)["loads"] == 2 * 8**3 // 4


def test_a_row_shorter_than_a_vector_is_scalar():
    made = kernel("matmul", {"m": 2, "n": 3, "k": 2}, order="ikj", vector=True, lanes=8)
    assert {size for _, size, _ in touches(made)} == {4}


def test_a_remainder_of_31_elements_fits_one_nest():
    made = kernel("matmul", {"m": 2, "n": 63, "k": 2}, order="ikj", vector=True, lanes=32, precision="fp16")
    (step,) = steps(made)
    assert sum(size for _, size, write in step.nests[0].addresses() if write) == 2 * 2 * 63 * 2


def test_a_scalar_machine_ignores_vectors():
    assert touches(kernel("add", {"n": 9}, vector=True)) == touches(kernel("add", {"n": 9}))


def test_a_naive_dot_product_is_one_chain_and_a_register_tile_is_many():
    naive, tiled = kernel("matmul", {"n": 32}), kernel("matmul", {"n": 32}, v1=4, v2=8)
    row_wise = kernel("matmul", {"n": 32}, order="ikj")
    chains = [steps(made)[0].work.chain for made in (naive, tiled)]
    assert [(chain.op, chain.length, chain.parallel) for chain in chains] == [("fma", 32, 1), ("fma", 32, 32)]
    assert steps(row_wise)[0].work.chain is None


def test_a_vector_of_partial_sums_is_one_shorter_chain():
    made = kernel("matmul", {"n": 32}, vector=True, lanes=8, b_layout="jk")
    work = steps(made)[0].work
    assert (work.chain.length, work.chain.parallel, work.loop_starts) == (4, 1, 32 * 32)
    assert work.instructions.add == 32 * 32 * 3  # log2(8) additions fold each vector


def test_a_sum_in_memory_waits_for_its_store_too():
    made = kernel("matmul", {"n": 16}, accumulate="memory")
    assert steps(made)[0].work.chain.length == 2 * 16


def test_a_register_tile_takes_two_vectors_of_columns_unless_told_otherwise():
    made = kernel("matmul", {"n": 64}, vector=True, v1=4, lanes=8)
    assert made.registers_needed == 4 + 2 + 8
    assert counts(made)["loads.B"] == 64**3 // 4 // 8


def test_stores_of_a_register_tile_are_joined_only_where_a_nest_has_no_room_for_them():
    """v1 + v2 loads and v1 v2 stores of one number each, of which a nest describes 64."""
    exactly = kernel("matmul", {"m": 4, "n": 12, "k": 2}, v1=4, v2=12)
    assert MAX_ACCESSES == 64 == 4 + 12 + 4 * 12
    assert counts(exactly) == {"loads": 32, "loads.A": 8, "loads.B": 24, "stores": 48, "stores.C": 48}
    assert {size for _, size, _ in touches(exactly)} == {4}
    one_more = kernel("matmul", {"m": 5, "n": 10, "k": 2}, v1=5, v2=10)  # 65
    assert counts(one_more)["loads"] == 2 * 15
    assert [size for _, size, write in touches(one_more) if write] == [4 * 50]


def test_a_register_tile_may_load_as_much_as_a_nest_describes_and_no_more():
    """v1 + v2 loads and one joined store: 64, and 65."""
    assert len(steps(kernel("matmul", {"m": 3, "n": 60, "k": 2}, v1=3, v2=60))[0].nests[0].accesses) == MAX_ACCESSES
    with pytest.raises(CapacityError, match="makes 65 accesses; at most 64"):
        steps(kernel("matmul", {"m": 3, "n": 61, "k": 2}, v1=3, v2=61))
