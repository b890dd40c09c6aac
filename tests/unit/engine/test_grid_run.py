"""A convolution on the grid of Eyeriss, from a workload to a result."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import hwsim
from hwsim.api import run_all, simulate
from hwsim.catalog import load_workload
from hwsim.errors import CapacityError, InputError
from hwsim.program.contraction import ConvShape
from hwsim.program.loop_kernel import build_kernel
from hwsim.spec.variant import with_parameters
from hwsim.targets.grid.agent import play_mapping
from hwsim.targets.grid.lower import find_mapping
from hwsim.targets.grid.model import PeGrid


@pytest.fixture(scope="module")
def result() -> hwsim.RunResult:
    return hwsim.run("eyeriss", "conv2d", ci=8, co=16, height=14)


def test_the_answer_is_real_and_the_counts_are_those_of_the_layer(result: hwsim.RunResult) -> None:
    assert result.verified
    shape = ConvShape(8, 16, (14, 14), (3, 3), 1, padding=(1, 1))
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
    with pytest.raises(
        InputError, match=r"no convolution .* computes convolutions .* run it on a machine with a CPU core"
    ):
        hwsim.run("eyeriss", "add", n=64)
    with pytest.raises(InputError, match=r"softmax: .* run it on a machine with a CPU core"):
        hwsim.run("eyeriss", "softmax", n=64, precision="fp16")
    with pytest.raises(InputError, match="give fused=true"):
        hwsim.run("eyeriss", "conv_maxpool", ci=8, co=16, height=14)
    with pytest.raises(InputError, match=r"norm_scale.* takes a division and a square root"):
        hwsim.run("eyeriss", "conv_bn", ci=8, co=16, height=14, precision="fp16", fused=True)
    with pytest.raises(InputError, match="conv2d in fp32 has 32 bits, and pe of eyeriss computes with 16"):
        hwsim.run("eyeriss", "conv2d", ci=8, co=16, height=14, precision="fp32")


def test_simulated_latency_is_that_of_the_passes() -> None:
    result = hwsim.run("eyeriss", "conv2d", ci=8, co=16, height=14, math=False)
    grid = PeGrid(hwsim.catalog.load_machine("eyeriss").spec)
    cost = find_mapping(grid, ConvShape(8, 16, (14, 14), (3, 3), 1, padding=(1, 1)))
    assert result.time_s == pytest.approx(play_mapping(grid, cost).elapsed_fs * 1e-15)


def test_bytes_that_leave_a_level_enter_the_next(result: hwsim.RunResult) -> None:
    """Inputs go through the buffer, weights past it; a value that is sent to several elements is written in each."""
    buffer, dram = result.memory["buffer"], result.memory["dram"]
    strips = -(-14 // result.work["array"]["passes"][0]["tile"]["e"])
    weights = 2 * 16 * 8 * 9 * strips  # each came once for each strip of rows
    assert dram.bytes_read == buffer.bytes_filled + weights
    assert dram.bytes_written == buffer.bytes_drained == 16 * 14 * 14 * 2
    assert buffer.bytes_filled == 8 * (14 + 2 * (strips - 1)) * 14 * 2  # a window of three needs two rows of the next
    assert result.memory["weights"].bytes_filled >= weights
    assert result.memory["inputs"].bytes_filled > buffer.bytes_filled
    assert 0 < buffer.peak_bytes <= 100 * 1024


def test_the_timeline_has_passes_transfers_and_all_the_energy() -> None:
    run = run_all("eyeriss", "conv2d", parameters={"ci": 24, "co": 40, "height": 20, "batch": 2}, timeline=True)
    lanes = {span.lane for span in run.outcome.spans}
    assert lanes == {"pe[0]", "pe[0] weights from dram", "pe[0] inputs from dram", "pe[0] outputs to dram"}
    assert all(span.start_fs <= span.end_fs <= run.outcome.elapsed_fs for span in run.outcome.spans)
    together: Counter[str] = Counter()
    for pulse in run.outcome.pulses:
        together.update(pulse.ledger.counts())
    assert together == run.outcome.ledger.counts()
    assert 0 < run.outcome.events < 50_000


def test_bias_and_relu_are_done_while_sums_leave() -> None:
    sizes = {"ci": 8, "co": 16, "height": 14}
    plain, fused = (hwsim.run("eyeriss", name, **sizes) for name in ("conv2d", "conv_bias_relu"))
    assert fused.verified
    assert fused.energy_by_cause is not None
    assert fused.energy_by_cause["arithmetic"]["pe.drain"]["count"] == 2 * 16 * 14 * 14
    strips = -(-14 // fused.work["array"]["passes"][0]["tile"]["e"])
    assert fused.memory["dram"].bytes_read == plain.memory["dram"].bytes_read + 2 * 16 * strips
    assert plain.time_s <= fused.time_s < 1.1 * plain.time_s


def test_pooling_stores_a_quarter() -> None:
    result = hwsim.run("eyeriss", "conv_maxpool_fused", ci=8, co=16, height=15)
    assert result.verified
    assert result.memory["dram"].bytes_written == 16 * 7 * 7 * 2
    assert result.memory["buffer"].bytes_drained >= 4 * result.memory["dram"].bytes_written


@pytest.mark.parametrize(
    "sizes",
    [
        {"dilation": 2},
        {"stride": 2, "padding": 0},
        {"height": 15, "width": 9, "kernel_w": 1, "stride_w": 2, "padding_w": 0},
        {"groups": 4},
    ],
)
def test_uneven_and_dilated_windows_run(sizes: dict[str, object]) -> None:
    result = hwsim.run("eyeriss", "conv2d", **{"ci": 8, "co": 8, "height": 14, **sizes})
    assert result.verified
    (agent,) = result.attribution.values()
    assert sum(sum(group.values()) for group in agent.values()) == result.cycles


def test_layers_of_a_chain_follow_each_other() -> None:
    run = run_all("eyeriss", "mlp", parameters={"precision": "fp16"})
    assert run.result.verified
    assert [stage.name for stage in run.outcome.stages]
    assert sum(stage.elapsed_fs for stage in run.outcome.stages) == run.outcome.elapsed_fs


def test_explain_shows_the_closed_form_beside_the_run(result: hwsim.RunResult) -> None:
    closed = result.work["array"]["passes"][0]["closed"]
    assert set(closed) == {"buffer", "dram"}
    assert closed["dram"]["counted"] * 2 == result.memory["dram"].bytes_read + result.memory["dram"].bytes_written
    assert 0.5 < closed["dram"]["counted"] / closed["dram"]["closed"] <= 1


def test_sums_of_floats_do_not_follow_the_tile_of_a_core() -> None:
    """A cache tile is nothing to a grid: the error is the same whatever it is."""
    errors = {
        hwsim.run("eyeriss", name, n=64, precision="fp16").error for name in ("matmul_tiled", "matmul_naive", "matmul")
    }
    assert len(errors) == 1


def test_a_mapping_is_chosen_on_the_command_line() -> None:
    sizes = {"ci": 16, "co": 32, "height": 20}
    result = hwsim.run("eyeriss", "conv2d", **sizes, **{"tile.sums.p": 4, "tile.inputs.q": 2, "order": "npm"})
    chosen = result.work["array"]["passes"][0]
    assert (chosen["tile"]["p"], chosen["tile"]["q"], chosen["order"]) == (4, 2, "npm")
    assert result.verified
    assert result.time_s > 0.97 * hwsim.run("eyeriss", "conv2d", **sizes).time_s
    with pytest.raises(CapacityError, match="the largest that fits, the others as they are: q=4"):
        hwsim.run("eyeriss", "conv2d", **sizes, **{"tile.inputs.q": 5})
