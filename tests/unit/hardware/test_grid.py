"""The row-stationary grid: mappings fit, counts are those of the layer, zeros are counted from real data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hwsim.catalog import load_machine, load_workload
from hwsim.errors import CapacityError, InputError
from hwsim.program.contraction import ConvShape
from hwsim.program.loop_kernel import build_kernel
from hwsim.targets.grid.lower import _operations, choices, find_mapping, layers_of
from hwsim.targets.grid.mapping import GridSizes, RowStationary, mappings, problems
from hwsim.targets.grid.model import DoubleBuffering, PeGrid, gated_share
from hwsim.trace.nest import Instructions

CONV1 = ConvShape(3, 96, (227, 227), (11, 11), 4, stride=(4, 4))
CONV3 = ConvShape(256, 384, (13, 13), (3, 3), 4, padding=(1, 1))
SIZES = GridSizes(rows=12, columns=14, inputs=12, weights=224, sums=24, buffer=51200)


@pytest.fixture(scope="module")
def grid() -> PeGrid:
    return PeGrid(load_machine("eyeriss").spec)


def test_the_first_layer_of_alexnet_is_mapped_as_the_chip_was(grid: PeGrid) -> None:
    # Chen et al., JSSC 2017, table III: m 96, n 1, e 7, p 16, q 1, r 1, t 2, on 154 elements
    mapping = find_mapping(grid, CONV1, goal="energy").mapping
    assert (mapping.m, mapping.n, mapping.e, mapping.p, mapping.q, mapping.r, mapping.t) == (96, 1, 7, 16, 1, 1, 2)
    assert mapping.active == 154


def test_every_mapping_fits(grid: PeGrid) -> None:
    for shape in (CONV1, CONV3):
        found = list(mappings(shape, SIZES))
        assert found
        for each in found:
            assert each.active <= SIZES.rows * SIZES.columns
            assert each.q * shape.window[1] <= SIZES.inputs
            assert each.p * each.q * shape.window[1] <= SIZES.weights
            assert each.p <= SIZES.sums
            rows = (each.e - 1) * shape.stride[0] + shape.window[0]
            inputs = each.n * each.q * each.r * min(rows, shape.padded[0]) * (shape.image[1] + 2 * shape.padding[0])
            assert inputs + each.n * each.m * each.e * shape.out[1] <= SIZES.buffer
            assert problems(each, SIZES) == []


def test_actions_follow_the_layer(grid: PeGrid) -> None:
    cost = find_mapping(grid, CONV3)
    assert CONV3.macs == 4 * 384 * 13 * 13 * 256 * 9
    assert cost.actions["pe", "mac"] == CONV3.macs
    assert cost.actions["weights", "read"] == CONV3.macs
    assert cost.actions["dram", "read"] >= 4 * 256 * 13 * 13 + 384 * 256 * 9  # every input and weight once
    assert cost.actions["dram", "write"] >= 4 * 384 * 13 * 13
    assert cost.compute_cycles * grid.unit.count >= CONV3.macs


def test_zeros_stop_multipliers_and_not_the_clock(grid: PeGrid) -> None:
    mapping = find_mapping(grid, CONV3).mapping
    dense, sparse = grid.cost(mapping), grid.cost(mapping, 0.75)
    assert sparse.actions["pe", "mac"] == pytest.approx(dense.actions["pe", "mac"] / 4, rel=1e-6)
    assert sparse.actions["sums", "write"] == pytest.approx(dense.actions["sums", "write"] / 4)
    assert sparse.actions["buffer", "read"] == dense.actions["buffer", "read"]
    assert sparse.estimate_cycles == dense.estimate_cycles


def test_the_share_of_zeros_is_counted_from_the_data() -> None:
    shape = ConvShape(2, 3, (6, 5), (3, 2), 1, stride=(2, 2), padding=(1, 1))
    rng = np.random.default_rng(0)
    data = rng.standard_normal((1, 2, 6, 5))
    data[rng.random(data.shape) < 0.4] = 0
    padded = np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1)))
    zero = whole = 0
    for row in range(shape.out[0]):
        for column in range(shape.out[1]):
            window = padded[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 2]
            zero += int((window == 0).sum())
            whole += window.size
    assert gated_share(data, shape) == pytest.approx(zero / whole)


def test_a_kernel_taller_than_the_grid_is_refused(grid: PeGrid) -> None:
    with pytest.raises(CapacityError, match="no row-stationary mapping of a 13x13 kernel"):
        find_mapping(grid, ConvShape(1, 1, (20, 20), (13, 13), 1))


def test_a_cpu_is_no_grid() -> None:
    with pytest.raises(InputError, match="core is a cpu"):
        PeGrid(load_machine("course_cpu").spec)


def test_zeros_are_counted_under_dilated_and_uneven_windows() -> None:
    shape = ConvShape(1, 1, (9, 8), (3, 2), 1, stride=(2, 1), padding=(1, 2), dilation=(2, 3))
    data = np.random.default_rng(1).integers(0, 2, (1, 1, 9, 8))
    padded = np.pad(data, ((0, 0), (0, 0), (1, 1), (2, 2)))
    seen = [
        padded[0, 0, 2 * row + 2 * i, column + 3 * j]
        for row in range(shape.out[0])
        for column in range(shape.out[1])
        for i in range(3)
        for j in range(2)
    ]
    assert gated_share(data, shape) == pytest.approx(np.mean(np.array(seen) == 0))


def test_time_comes_first_then_energy(grid: PeGrid) -> None:
    fast, frugal = (find_mapping(grid, CONV1, goal=goal) for goal in ("time", "energy"))
    assert fast.estimate_cycles < frugal.estimate_cycles
    assert grid.picojoules(frugal.actions) < grid.picojoules(fast.actions)
    assert fast.estimate_cycles >= grid.least_cycles(CONV1)


def test_a_mapping_that_is_asked_for_is_taken(grid: PeGrid) -> None:
    asked = {"tile.sums.p": 8, "tile.inputs.q": 2, "order": "npm"}
    mapping = find_mapping(grid, CONV3, asked=asked).mapping
    assert (mapping.p, mapping.q, mapping.order) == (8, 2, "npm")
    assert problems(mapping, grid.sizes) == []


@pytest.mark.parametrize("letter", ["n", "m", "e", "p", "q", "r", "t"])
def test_the_largest_choice_fits_and_one_more_does_not(grid: PeGrid, letter: str) -> None:
    shape = ConvShape(512, 5000, (60, 13), (3, 3), 3000, padding=(1, 1))
    name = next(each for each in choices(grid, shape) if each.endswith(f".{letter}"))
    largest = int(choices(grid, shape)[name][-1])
    assert not problems(RowStationary.of(shape, {letter: largest}), grid.sizes)
    assert getattr(find_mapping(grid, shape, asked={name: largest}).mapping, letter) == largest
    with pytest.raises(CapacityError, match=f"the largest that fits, the others as they are: {letter}={largest}$"):
        find_mapping(grid, shape, asked={name: largest + 1})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"tile.l1.p": 4}, "no choice of a grid's mapping; those are tile.buffer.n"),
        ({"order": "pqr"}, "'pqr' is not one of mnp"),
        ({"p": 0}, "give a whole number from 1"),
        ({"n": 5}, "n=5: the layer has 4"),
    ],
)
def test_a_choice_that_means_nothing_is_refused(grid: PeGrid, asked: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_mapping(grid, CONV3, asked=asked)


def test_zeros_are_multiplied_where_nothing_stops_them() -> None:
    grid = PeGrid(load_machine("eyeriss", ["pe.gate_zeros=false"]).spec)
    mapping = find_mapping(grid, CONV3).mapping
    macs = 4 * 384 * 256 * 13 * 13 * 9
    assert [grid.cost(mapping, share).actions["pe", "mac"] for share in (0.0, 0.75)] == [macs, macs]


@pytest.mark.parametrize(
    ("workload", "operations"),
    [("conv2d", 0), ("conv_bias_relu", 2)],  # an addition and a maximum for each output
)
def test_what_follows_a_convolution_is_counted_for_each_output(workload: str, operations: int) -> None:
    made = build_kernel(load_workload(workload).spec, math=False)
    (layer,) = layers_of(load_machine("eyeriss").spec, made)
    assert layer.drain.operations == operations


def test_a_multiply_add_behind_a_sum_is_two_operations() -> None:
    body, made = Instructions(fma=3, add=1, mul=2), build_kernel(load_workload("conv2d").spec, math=False)
    assert _operations(load_machine("eyeriss").spec, made, body) == 9
    with pytest.raises(InputError, match="takes exponentials"):
        _operations(load_machine("eyeriss").spec, made, Instructions(special=1))


@pytest.mark.parametrize(
    ("buffer", "inputs", "sums"), [(16, False, False), (23, False, False), (24, False, True), (26, False, True),
                                   (27, True, True), (33, True, False)],
)  # fmt: skip
def test_the_next_tile_comes_and_finished_sums_leave_where_there_is_room_for_both(
    buffer: int, inputs: bool, sums: bool
) -> None:
    """Tiles of 10 inputs and 7 sums: two of the first and one of the second are 27, one and two 24, two and two 34."""
    mapping: Any = SimpleNamespace(input_tile=10, sum_tile=7, pass_weights=5)
    sums = sums and (not inputs or buffer >= 34)

    def room(size: int, double: bool = True, weights: int = 5) -> DoubleBuffering:
        unit, sizes = SimpleNamespace(double_buffered=double), SimpleNamespace(buffer=size)
        grid: Any = SimpleNamespace(sizes=sizes, unit=unit, weight_room=weights)
        return DoubleBuffering.of(mapping, grid)

    assert room(buffer) == DoubleBuffering(weights=True, inputs=inputs, sums=sums)
    assert room(34) == DoubleBuffering(weights=True, inputs=True, sums=True)
    assert room(34, double=False) == DoubleBuffering(weights=True, inputs=False, sums=False)
    assert not room(34, weights=4).weights
