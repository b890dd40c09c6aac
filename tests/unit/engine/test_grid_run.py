"""A convolution on the grid of Eyeriss, from a workload to a result."""

from __future__ import annotations

import numpy as np
import pytest

import hwsim
from hwsim.api import run_all
from hwsim.catalog import load_workload
from hwsim.engine.engine import simulate
from hwsim.errors import InputError
from hwsim.hardware.grid import Grid
from hwsim.hardware.row_stationary import ConvShape
from hwsim.kernels.build import build_kernel
from hwsim.spec.parameters import with_parameters


@pytest.fixture(scope="module")
def result() -> hwsim.RunResult:
    return hwsim.run("eyeriss", "conv2d", ci=8, co=16, height=14)


def test_the_answer_is_real_and_the_counts_are_those_of_the_layer(result: hwsim.RunResult) -> None:
    assert result.verified
    shape = ConvShape(batch=1, c_in=8, c_out=16, h_in=14, w_in=14, r=3, s=3, pad=1)
    assert result.work["macs"] == shape.macs
    assert result.energy_by_cause is not None
    done = result.energy_by_cause["arithmetic"]["pe.mac"]["count"]
    assert done == shape.macs - result.work["array"]["gated_macs"]
    assert 0 < result.work["array"]["gated_macs"] < shape.macs / 4  # padding, and the zeros among small integers


def test_cycles_are_put_down_without_remainder(result: hwsim.RunResult) -> None:
    (agent,) = result.attribution.values()
    assert sum(sum(group.values()) for group in agent.values()) == result.cycles
    assert result.bounds["lower_s"] <= result.time_s <= result.bounds["upper_s"] * (1 + 1e-9)


def test_energy_adds_up_and_comes_back_from_json(result: hwsim.RunResult) -> None:
    assert result.energy_j is not None
    assert result.energy is not None
    assert sum(result.energy.values()) == pytest.approx(result.energy_j)
    assert hwsim.RunResult.from_json(result.to_json()) == result
    assert "on eyeriss" in repr(result)


def test_sparse_inputs_take_less_energy_in_the_same_time() -> None:
    task = with_parameters(load_workload("conv2d").spec, {"ci": 8, "co": 16, "height": 14, "precision": "int8"})
    machine = hwsim.catalog.load_machine("eyeriss").spec
    dense = np.ones((1, 8, 14, 14), np.int8)
    sparse = dense.copy()
    sparse[:, ::2] = 0
    joules, elapsed = [], []
    for x in (dense, sparse):
        outcome = simulate(machine, build_kernel(task, inputs={"x": x}))
        joules.append(outcome.ledger.counts()["pe.mac"])
        elapsed.append(outcome.elapsed_fs)
    assert joules[1] == pytest.approx(joules[0] / 2, rel=1e-9)
    assert elapsed[0] == elapsed[1]


@pytest.mark.parametrize("workload", ["matmul", "matmul_naive"])
def test_a_matrix_product_is_a_convolution_of_one_row(workload: str) -> None:
    run = run_all("eyeriss", workload, parameters={"n": 48}, timeline=True)
    assert run.result.verified
    assert run.result.work["macs"] == 48**3
    assert run.outcome.spans


def test_what_is_no_convolution_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match=r"no convolution .* run it on a machine with a CPU core"):
        hwsim.run("eyeriss", "add", n=64)
    with pytest.raises(InputError, match="conv2d in fp32 has 32 bits, and pe of eyeriss computes with 16"):
        hwsim.run("eyeriss", "conv2d", ci=8, co=16, height=14, precision="fp32")


def test_simulated_latency_is_that_of_the_model() -> None:
    result = hwsim.run("eyeriss", "conv2d", ci=8, co=16, height=14, math=False)
    grid = Grid(hwsim.catalog.load_machine("eyeriss").spec)
    cost = grid.best(ConvShape(batch=1, c_in=8, c_out=16, h_in=14, w_in=14, r=3, s=3, pad=1))
    assert result.time_s == pytest.approx(float(cost.cycles) / 200e6)
