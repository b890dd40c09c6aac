"""The row-stationary grid: mappings fit, counts are those of the layer, zeros are counted from real data."""

from __future__ import annotations

import numpy as np
import pytest

from hwsim.catalog import load_machine
from hwsim.errors import CapacityError, InputError
from hwsim.hardware.grid import Grid, gated_share
from hwsim.hardware.row_stationary import ConvShape, GridSizes, mappings

CONV1 = ConvShape(batch=4, c_in=3, c_out=96, h_in=227, w_in=227, r=11, s=11, stride=4)
CONV3 = ConvShape(batch=4, c_in=256, c_out=384, h_in=13, w_in=13, r=3, s=3, pad=1)
SIZES = GridSizes(rows=12, columns=14, inputs=12, weights=224, sums=24, buffer=51200)


@pytest.fixture(scope="module")
def grid() -> Grid:
    return Grid(load_machine("eyeriss").spec)


def test_the_first_layer_of_alexnet_is_mapped_as_the_chip_was(grid: Grid) -> None:
    # Chen et al., JSSC 2017, table III: m 96, n 1, e 7, p 16, q 1, r 1, t 2, on 154 elements
    mapping = grid.best(CONV1).mapping
    assert (mapping.m, mapping.n, mapping.e, mapping.p, mapping.q, mapping.r, mapping.t) == (96, 1, 7, 16, 1, 1, 2)
    assert mapping.active == 154


def test_every_mapping_fits(grid: Grid) -> None:
    for shape in (CONV1, CONV3):
        found = list(mappings(shape, SIZES))
        assert found
        for each in found:
            assert each.active <= SIZES.rows * SIZES.columns
            assert each.q * shape.s <= SIZES.inputs
            assert each.p * each.q * shape.s <= SIZES.weights
            assert each.p <= SIZES.sums
            rows = (each.e - 1) * shape.stride + shape.r
            inputs = each.n * each.q * each.r * min(rows, shape.h_in + 2 * shape.pad) * (shape.w_in + 2 * shape.pad)
            assert inputs + each.n * each.m * each.e * shape.columns_out <= SIZES.buffer


def test_actions_follow_the_layer(grid: Grid) -> None:
    cost = grid.best(CONV3)
    assert CONV3.macs == 4 * 384 * 13 * 13 * 256 * 9
    assert cost.actions["pe", "mac"] == CONV3.macs
    assert cost.actions["weights", "read"] == CONV3.macs
    assert cost.actions["dram", "read"] >= 4 * 256 * 13 * 13 + 384 * 256 * 9  # every input and weight once
    assert cost.actions["dram", "write"] >= 4 * 384 * 13 * 13
    assert cost.compute_cycles * grid.unit.count >= CONV3.macs


def test_zeros_stop_multipliers_and_not_the_clock(grid: Grid) -> None:
    dense, sparse = grid.best(CONV3), grid.best(CONV3, 0.75)
    assert sparse.actions["pe", "mac"] == round(dense.actions["pe", "mac"] / 4)
    assert sparse.actions["sums", "write"] == pytest.approx(dense.actions["sums", "write"] / 4)
    assert sparse.actions["buffer", "read"] == dense.actions["buffer", "read"]
    assert sparse.cycles == dense.cycles


def test_the_share_of_zeros_is_counted_from_the_data() -> None:
    shape = ConvShape(batch=1, c_in=2, c_out=3, h_in=6, w_in=5, r=3, s=2, stride=2, pad=1)
    rng = np.random.default_rng(0)
    data = rng.standard_normal((1, 2, 6, 5))
    data[rng.random(data.shape) < 0.4] = 0
    padded = np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1)))
    zero = whole = 0
    for row in range(shape.rows_out):
        for column in range(shape.columns_out):
            window = padded[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 2]
            zero += int((window == 0).sum())
            whole += window.size
    assert gated_share(data, shape) == pytest.approx(zero / whole)


def test_a_kernel_taller_than_the_grid_is_refused(grid: Grid) -> None:
    with pytest.raises(CapacityError, match="no row-stationary mapping of a 13x13 kernel"):
        grid.best(ConvShape(1, 1, 1, 20, 20, 13, 13))


def test_a_cpu_is_no_grid() -> None:
    with pytest.raises(InputError, match="core is a cpu"):
        Grid(load_machine("course_cpu").spec)
