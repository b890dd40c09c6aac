"""Loops over tiles, shifted copies of lowered loops, halos, and phases."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwsim.errors import ShapeError
from hwsim.numerics.format import find_format
from hwsim.program.graph import _behind
from hwsim.program.kernel import Setting
from hwsim.program.loop_kernel import LoopKernel, at, make_template, part, template_key
from hwsim.program.loops import Loop, LoopPlan, Ranges, TileLoop, TileRange, summed, walk
from hwsim.program.statement import parse_statements
from hwsim.spec.base import ParallelSchedule
from hwsim.trace.nest import Instructions

FP32 = find_format("fp32")


def kernel(cores: int = 1, math: bool = True, lanes: int = 1) -> LoopKernel:
    parallel = ParallelSchedule(parallel="rows" if cores > 1 else "none")
    return LoopKernel("made", FP32, Setting(cores=cores, math=math, lanes=lanes), parallel)


ADD = Instructions(add=1)


def nothing(ranges: object) -> None:
    """No math: only the accesses matter."""


def addresses(step: object) -> list[tuple[int, int, bool]]:
    return [touch for nest in step.nests for touch in nest.addresses()]  # type: ignore[attr-defined]


def scaled_copy(made: LoopKernel, rows: int, columns: int, tile: int) -> TileLoop:
    """T = 2 A, then C = T + T, row tile by row tile, with one tile of T."""
    a, c = made.add_input("A", rows, columns), made.add_result("C", rows, columns)
    t = at(made.add_scratch("T", tile, columns), "i", "j", tiles={"i": tile})
    extents = {"i": rows, "j": columns}

    def double(ranges: dict[str, tuple[int, int]]) -> None:
        made.arrays["T"][: ranges["i"][1]] = 2 * made.arrays["A"][part(ranges, "i")[0]]

    def add(ranges: dict[str, tuple[int, int]]) -> None:
        made.arrays["C"][part(ranges, "i")[0]] = 2 * made.arrays["T"][: ranges["i"][1]]

    first = made.make_loop("double", extents, [at(a, "i", "j")], t, Instructions(mul=1), double)
    second = made.make_loop("add", extents, [t], at(c, "i", "j"), Instructions(add=1), add)
    return TileLoop("i", rows, tile, (first, second))


def test_all_tiles_use_the_same_scratch_space() -> None:
    made = kernel()
    made.add(scaled_copy(made, 10, 6, 4))
    steps = [step for block in made.blocks() for step in block.steps()]
    assert [step.name for step in steps] == ["double", "add"] * 3
    low = made.tensors["T"].base
    touched = [
        a for step in steps for nest in step.nests for x in nest.accesses if x.tensor == "T" for a in nest.span(x)
    ]
    assert (min(touched), max(touched)) == (low, low + 4 * 6 * 4)
    np.testing.assert_array_equal(made.output, 4 * made.arrays["A"])
    assert made.useful_flops == sum(step.work.flops for step in steps) == 2 * 60


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_cores_share_the_tiles(cores: int) -> None:
    made = kernel(cores)
    made.add(scaled_copy(made, 10, 6, 4))
    blocks = made.blocks()
    assert len(blocks) == cores
    assert sum(step.work.flops for block in blocks for step in block.steps()) == 120


@given(
    st.tuples(*[st.integers(1, 9)] * 3),
    st.tuples(*[st.integers(1, 4)] * 3),
    st.permutations("ijk"),
    st.integers(1, 4),
)
def test_a_moved_template_is_what_lowering_at_that_place_gives(
    sizes: tuple[int, ...], tiles: tuple[int, ...], order: list[str], lanes: int
) -> None:
    made = kernel(math=False)
    extents = dict(zip("ijk", sizes, strict=True))
    cut = dict(zip("ijk", tiles, strict=True))
    a, b = made.add_input("A", extents["i"], extents["k"]), made.add_input("B", extents["k"], extents["j"])
    scratch = at(made.add_scratch("S", cut["i"], cut["j"]), "i", "j", tiles=cut)
    plan = LoopPlan(tuple(order), vector="j" if lanes > 1 else None, lanes=lanes)
    loop = made.make_loop(
        "product", extents, [at(a, "i", "k"), at(b, "k", "j")], scratch, Instructions(fma=1), nothing,
        plan=plan, accumulates=True,
    )  # fmt: skip
    item: Loop | TileLoop = loop
    for index in reversed(order):
        item = TileLoop(index, extents[index], cut[index], (item,))
    made.add(item)
    steps = [step for block in made.blocks() for step in block.steps()]
    direct = [make_template(each, ranges, "fp32").at(ranges) for each, ranges, _ in walk([item], {})]
    assert [addresses(step) for step in steps] == [addresses(step) for step in direct]
    assert [step.work for step in steps] == [step.work for step in direct]
    assert sum(step.work.macs for step in steps) == prod(sizes)
    assert len({template_key(each, ranges) for each, ranges, _ in walk([item], {})}) <= 12


def test_an_index_can_follow_another_twice_as_far() -> None:
    made = kernel()
    a, c = made.add_input("A", 7), made.add_result("C", 4)
    loop = made.make_loop(
        "halve", {"h": 7}, [at(a, "h")], at(c, None), Instructions(add=1), nothing, follows={"h": ("p", 2)}
    )
    made.add(TileLoop("p", 4, 2, (loop,)))
    assert [ranges["h"] for _, ranges, _ in walk(made.program[0].items, {})] == [(0, 4), (4, 3)]


def test_a_span_ends_a_loop_over_tiles_at_the_diagonal() -> None:
    made = kernel()
    a = made.add_input("A", 6, 6)
    loop = made.make_loop("row", {"i": 6, "j": 6}, [at(a, "i", "j")], None, Instructions(add=1), nothing)
    inner = TileLoop("j", 6, 2, (loop,), span=TileRange(frozenset("i"), lambda around: (0, sum(around["i"]))))
    found = [(ranges["i"], ranges["j"]) for _, ranges, _ in walk([TileLoop("i", 6, 3, (inner,))], {})]
    assert found == [((0, 3), (0, 2)), ((0, 3), (2, 1)), ((3, 3), (0, 2)), ((3, 3), (2, 2)), ((3, 3), (4, 2))]


def test_a_halo_lies_around_the_values_and_is_zero() -> None:
    made = kernel()
    view = made.add_input("X", 2, 3, halo=(1, 2))
    assert view.shape == (2, 3)
    assert made.tensors["X"].shape == (4, 7)
    assert view.address((0, 0)) == made.tensors["X"].address((1, 2))
    wider, values = made.padded("X", (1, 1))
    assert wider.shape == (4, 5)
    assert values is not None
    np.testing.assert_array_equal(values[1:3, 1:4], made.arrays["X"])
    assert not values[0].any() and not values[:, 0].any()
    assert made.arrays["X"].any()


def test_late_operands_are_loaded_once_for_each_result_just_before_its_store() -> None:
    made = kernel()
    a, b, c = made.add_input("A", 3, 5), made.add_input("b", 3), made.add_result("C", 3)
    loop = made.make_loop(
        "sum", {"i": 3, "k": 5}, [at(a, "i", "k")], at(c, "i"), Instructions(add=1), nothing,
        accumulates=True, late=[at(b, "i")], late_body=Instructions(add=1),
    )  # fmt: skip
    made.add(loop)
    (step,) = [step for block in made.blocks() for step in block.steps()]
    bias, result = made.tensors["b"].base, made.tensors["C"].base
    assert addresses(step)[5:7] == [(bias, 4, False), (result, 4, True)]
    assert len(addresses(step)) == 3 * (5 + 2)
    assert step.work.flops == 3 * 5 + 3
    assert step.work.instructions.add == 3 * 5 + 3


@pytest.mark.parametrize("plan", [LoopPlan(("k", "i")), LoopPlan(("i", "k"), tile={"k": 2})])
def test_nothing_is_finished_in_a_register_where_the_sum_goes_on_later(plan: LoopPlan) -> None:
    made = kernel()
    a, b, c = made.add_input("A", 3, 5), made.add_input("b", 3), made.add_result("C", 3)
    with pytest.raises(AssertionError, match="finished"):
        made.make_loop(
            "sum", {"i": 3, "k": 5}, [at(a, "i", "k")], at(c, "i"), Instructions(add=1), nothing,
            plan=plan, accumulates=True, late=[at(b, "i")],
        )  # fmt: skip


def test_each_phase_has_its_own_shares() -> None:
    made = kernel(cores=2)
    a, b, c = made.add_input("A", 4, 6), made.add_scratch("B", 4, 6), made.add_result("C", 4, 6)
    made.add(made.make_loop("first", {"i": 4, "j": 6}, [at(a, "i", "j")], at(b, "i", "j"), Instructions(), nothing))
    made.begin_phase("second")
    made.add(made.make_loop("second", {"j": 6, "i": 4}, [at(b, "i", "j")], at(c, "i", "j"), Instructions(), nothing))
    assert [phase.shared_index for phase in made.program] == ["i", "j"]
    names = [{step.name for block in stage.blocks for step in block.steps()} for stage in made.stages()]
    assert [stage.name for stage in made.stages()] == ["made", "second"]
    assert names == [{"first"}, {"second"}]
    assert [len(stage.blocks) for stage in made.stages()] == [2, 2]


def test_a_given_tensor_must_be_one_that_the_kernel_has() -> None:
    made = LoopKernel("made", FP32, Setting(), given={"Z": np.zeros(3)})
    made.add(made.make_loop("read", {"i": 3}, [at(made.add_input("A", 3), "i")], None, Instructions(), nothing))
    with pytest.raises(ShapeError, match="no input Z"):
        made.blocks()


@given(st.tuples(*[st.integers(1, 9)] * 2), st.tuples(*[st.integers(1, 4)] * 2), st.booleans(), st.integers(1, 3))
def test_a_sum_over_all_tiles_is_that_of_running_through_them(
    sizes: tuple[int, int], tiles: tuple[int, int], causal: bool, factor: int
) -> None:
    made = kernel(math=False)
    a, c = made.add_input("A", *sizes), made.add_result("C", sizes[0])
    reads = made.make_loop("row", {"i": sizes[0], "j": sizes[1]}, [at(a, "i", "j")], None, ADD, nothing)
    after = made.make_loop("done", {"i": sizes[0]}, [], at(c, "i"), Instructions(mul=1), nothing)
    wide = made.make_loop(
        "wide", {"h": factor * sizes[0] - 1 or 1}, [], None, Instructions(mul=1), nothing, follows={"h": ("i", factor)}
    )
    span = TileRange(frozenset("i"), lambda around: (0, sum(around["i"]))) if causal else None
    inner = TileLoop("j", sizes[1], tiles[1], (reads,), span)
    items = [TileLoop("b", 7, 3, (TileLoop("i", sizes[0], tiles[0], (inner, after, wide)),))]
    assert summed(items, {}, Loop.flops) == sum(loop.flops(ranges) for loop, ranges, _ in walk(items, {}))


def test_tiles_that_no_condition_asks_about_are_counted_and_not_run_through() -> None:
    """Heads around a causal mask: whatever their number, the queries and keys of one of them are looked at."""
    asked: list[object] = []

    def diagonal(around: Ranges) -> tuple[int, int]:
        asked.append(around["i"])
        return 0, sum(around["i"])

    made = kernel(math=False)
    loop = made.make_loop("row", {"i": 8, "j": 8}, [at(made.add_input("A", 8, 8), "i", "j")], None, ADD, nothing)
    inner = TileLoop("i", 8, 2, (TileLoop("j", 8, 2, (loop,), TileRange(frozenset("i"), diagonal)),))
    assert summed([TileLoop("h", 1000, 1, (inner,))], {}, Loop.flops) == 1000 * 2 * (2 + 4 + 6 + 8)
    assert len(asked) == 2 * 4  # the last head is looked at by itself


def test_what_is_fused_behind_a_result_stands_right_after_it_is_made_for_the_last_time() -> None:
    first, again, other, behind = parse_statements("A[i] = B[i]\nA[i] += C[i]\nD[i] = B[i]\nE[i] = A[i]")
    assert _behind((first, again, other), "A", (behind,)) == (first, again, behind, other)
    assert _behind((first, other, again), "A", (behind,)) == (first, other, again, behind)
    (block,) = parse_statements("for i by 4:\n  A[i] = B[i]\n  D[i] = B[i]")
    (found, last) = _behind((block, other), "A", (behind,))
    assert [line.name for line in found.body] == ["A", "E", "D"]
    assert last == other
