"""The mapper's choice: more bandwidth, room, arrays or cells never make it slower, and it takes what was asked for."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import hwsim
from hwsim.catalog import load_machine
from hwsim.engine import Outcome, play
from hwsim.errors import CapacityError
from hwsim.spec.workload import WorkloadSpec
from hwsim.targets.systolic.estimate import Goal
from hwsim.targets.systolic.run import ArrayCrew
from tests.property.test_array_bounds import Array, Shape, arrays, dataflows, foldings, product, traffic

PLAYED = 1.05
"""Few choices are played, and the others are ranked by an estimate: what is chosen may be so much slower."""

extents = st.sampled_from([1, 7, 16, 33, 64])
shapes = st.tuples(extents, extents, extents)
sizes = st.tuples(*[st.sampled_from([4, 8, 32])] * 3)
rates = st.sampled_from([1, 4, 16, 64])
times = st.sampled_from([2, 3, 8])
small_sides = st.sampled_from([4, 8])
small_arrays = st.tuples(small_sides, small_sides, dataflows, foldings)
filling = st.tuples(*[st.sampled_from([64, 96])] * 3)


def run(array: Array, sizes: tuple[int, ...], rate: int, shape: Shape, *more: str, goal: Goal = "time") -> Outcome:
    rows, columns, dataflow, folding = array
    changes = [
        f"array.rows={rows}",
        f"array.columns={columns}",
        f"array.dataflow={dataflow}",
        f"array.folding={folding}",
    ]
    changes += [f"{pad}.size={size} KiB" for pad, size in zip(("ifmap", "filter", "ofmap"), sizes, strict=True)]
    machine = load_machine("scalesim_32", [*changes, f"dram.bandwidth={rate} B/cycle", "dram.latency=20 ns", *more])
    try:
        return play(ArrayCrew(machine.spec, product(shape), goal=goal))
    except CapacityError:
        assume(False)
        raise


@settings(max_examples=8, deadline=None)
@given(arrays, sizes, rates, times, shapes)
def test_more_bandwidth_is_never_slower(
    array: Array, sizes: tuple[int, ...], rate: int, times: int, shape: Shape
) -> None:
    slow, fast = (run(array, sizes, each, shape) for each in (rate, times * rate))
    assert fast.cycles <= PLAYED * slow.cycles


@settings(max_examples=8, deadline=None)
@given(arrays, sizes, rates, st.tuples(*[st.sampled_from([1, 2, 3, 8])] * 3), shapes)
def test_more_room_is_never_slower(
    array: Array, sizes: tuple[int, ...], rate: int, times: tuple[int, ...], shape: Shape
) -> None:
    small = run(array, sizes, rate, shape)
    large = run(array, tuple(a * b for a, b in zip(sizes, times, strict=True)), rate, shape)
    assert large.cycles <= PLAYED * small.cycles


@settings(max_examples=8, deadline=None)
@given(arrays, sizes, rates, st.sampled_from([2, 4]), shapes)
def test_more_arrays_are_never_slower(
    array: Array, sizes: tuple[int, ...], rate: int, count: int, shape: Shape
) -> None:
    shared = [f"{pad}.shared_by=all" for pad in ("ifmap", "filter", "ofmap")]
    one, more = (run(array, sizes, rate, shape, f"array.count={each}", *shared) for each in (1, count))
    assert more.cycles <= PLAYED * one.cycles


@settings(max_examples=8, deadline=None)
@given(small_arrays, sizes, rates, st.sampled_from([(2, 1), (1, 2), (2, 2)]), filling)
def test_more_cells_are_never_slower_where_the_product_fills_them(
    array: Array, sizes: tuple[int, ...], rate: int, times: tuple[int, int], shape: Shape
) -> None:
    """Where it does not, they can be: values have a longer way in and out (600 x 600 on 512 x 512 cells, published for
    the first TPU, takes 1.8 times as long as on 256 x 256; `hwsim validate tpu` demands that)."""
    rows, columns, dataflow, folding = array
    small = run(array, sizes, rate, shape)
    large = run((times[0] * rows, times[1] * columns, dataflow, folding), sizes, rate, shape)
    assert large.cycles <= PLAYED * small.cycles


@settings(max_examples=8, deadline=None)
@given(arrays, sizes, rates, st.sampled_from([2, 3, 8]), shapes)
def test_more_room_never_means_more_traffic_where_traffic_is_asked_for(
    array: Array, sizes: tuple[int, ...], rate: int, times: int, shape: Shape
) -> None:
    small = run(array, sizes, rate, shape, goal="traffic")
    large = run(array, tuple(times * each for each in sizes), rate, shape, goal="traffic")
    assert traffic(large) <= traffic(small)


@settings(max_examples=8, deadline=None)
@given(arrays, sizes, rates, shapes)
def test_no_other_goal_is_faster_than_time(array: Array, sizes: tuple[int, ...], rate: int, shape: Shape) -> None:
    quick = run(array, sizes, rate, shape)
    sparing = run(array, sizes, rate, shape, goal="traffic")
    assert quick.cycles <= PLAYED * sparing.cycles
    assert traffic(sparing) <= traffic(quick)


@settings(max_examples=8, deadline=None)
@given(arrays, sizes, rates, shapes)
def test_nothing_is_faster_than_its_bound(array: Array, sizes: tuple[int, ...], rate: int, shape: Shape) -> None:
    outcome = run(array, sizes, rate, shape)
    (only,) = outcome.use["array"]["passes"]
    assert 0 < only["share_of_bound"] <= 1
    assert only["bound_s"] <= outcome.elapsed_fs / 1e15


def test_between_equals_the_one_is_taken_whose_weights_come_while_the_pass_before_is_at_work() -> None:
    """An im2col of some kilobytes and its product are over when main memory has answered twice, not three times."""
    sizes = {"batch": 3, "width": 33, "co": 6, "ci": 3, "height": 13}
    direct, unfolded = (hwsim.run("tpu_v4", name, math=False, **sizes) for name in ("conv2d", "conv2d_im2col"))
    assert unfolded.time_s <= 1.1 * direct.time_s


def test_the_bound_of_a_stream_is_its_bytes_over_the_bandwidth() -> None:
    """tpu_v3, 900 GB/s: two arrays of n bf16 come and one leaves."""
    n = 2**20
    (only,) = hwsim.run("tpu_v3", "add", n=n, precision="bf16", math=False).work["array"]["passes"]
    assert only["bound_s"] == pytest.approx(3 * 2 * n / 900e9, rel=1e-12)


def test_what_a_loop_does_not_reach_is_not_in_its_bound() -> None:
    """The second half of a tensor of 2 n comes, and n results leave."""
    n = 2**20
    data = {"format": 1, "name": "half", "description": "", "op": "formula", "formula": f"Y[i] = X[i+{n}]"}
    half = WorkloadSpec.model_validate({**data, "sizes": {"i": n}, "precision": "bf16"})
    (only,) = hwsim.run("tpu_v3", half, math=False).work["array"]["passes"]
    assert only["bound_s"] == pytest.approx(2 * 2 * n / 900e9, rel=1e-12)


ROWS = (256, 512, 1024, 2048, 4096)
LINEAR = 2.15
"""Twice the rows may take so many times as long: twice, and what is cut less evenly."""


@pytest.mark.parametrize(
    ("machine", "precision"),
    [
        ("tpu_v1", "int8"),
        ("tpu_v3", "bf16"),
        ("tpu_v4", "bf16"),
        ("gemmini16", "int8"),
        ("edge_npu", "int8"),
        ("trainium", "bf16"),
    ],
)
@pytest.mark.parametrize("side", [512, 2048])
def test_twice_the_rows_never_take_less_and_about_twice_as_long_at_most(
    machine: str, precision: str, side: int
) -> None:
    before = None
    for rows in ROWS[: 3 if machine in ("gemmini16", "edge_npu") else None]:
        found = hwsim.run(machine, "matmul", m=rows, n=side, k=side, precision=precision, math=False)
        where = found.work.use["array"]["levels"]
        if before is not None:
            assert found.time_s > 0.98 * before[0], rows
            if where == before[1]:  # results that no longer fit the chip come out at the speed of memory
                assert found.time_s < LINEAR * before[0], rows
        before = found.time_s, where


@pytest.mark.parametrize("rows", [2560, 3072, 4096, 8192])
def test_results_that_leave_a_chip_take_hardly_longer_than_their_memory_needs(rows: int) -> None:
    found = hwsim.run("tpu_v1", "matmul", m=rows, n=2048, k=2048, precision="int8", math=False)
    assert found.time_s < 1.15 * found.bounds.lower_s
    assert any("C (" in words and "finds no room in unified_buffer" in words for words in found.warnings)
    assert not hwsim.run("tpu_v1", "matmul", m=2048, n=2048, k=2048, precision="int8", math=False).warnings[:-1]


def test_tiles_that_fit_once_and_not_twice_are_refused_with_two_buffers() -> None:
    asked = {"mapping.tile_m": 4096, "mapping.tile_n": 256, "mapping.buffers": 2}
    with pytest.raises(CapacityError, match="two of each"):
        hwsim.run("tpu_v1", "matmul", m=4096, n=2048, k=2048, precision="int8", math=False, **asked)
