"""Rows A14, A15, A17, A18, C7, N7, D3, D4: operations in a chain, and what fusing them saves."""

from __future__ import annotations

import numpy as np
import pytest

import hwsim
from hwsim.catalog import load_workload
from hwsim.ops.chain import ChainKernel
from hwsim.program.loop_kernel import build_kernel
from hwsim.results.explanation import find_edges
from hwsim.spec.variant import with_parameters

RESNET = {"c": 8, "h": 28, "w": 28}


def test_a14_every_edge_of_a_chain_is_written_and_read() -> None:
    """28 x 28 x 8 values of 4 bytes between any two operations of the block as it is written."""
    result = hwsim.run("course_cpu", "resnet_block_plain", **RESNET)
    edges = {(edge.producer, edge.consumer): edge for edge in find_edges(result)}
    expected = {
        ("conv1", "norm1"),
        ("norm1", "relu1"),
        ("relu1", "conv2"),
        ("conv2", "norm2"),
        ("norm2", "sum"),
        ("sum", "y"),
    }
    assert set(edges) == expected
    size = 28 * 28 * 8
    for pair, edge in edges.items():
        if pair != ("relu1", "conv2"):
            assert edge.loads == size
            assert edge.bytes == 4 * size
    assert edges["relu1", "conv2"].bytes == 4 * 30 * 30 * 8, "the padding of the second convolution lies around it"


@pytest.mark.parametrize("machine", ["course_cpu", "zen3", "cortex_a78"])
def test_a17_a18_fusing_takes_the_traffic_between_operations_away(machine: str) -> None:
    apart = hwsim.run(machine, "resnet_block_plain", **RESNET)
    fused = hwsim.run(machine, "resnet_block", **RESNET)
    assert fused.verified and apart.verified
    assert len(fused.stages) == 2
    assert [edge.tensor for edge in find_edges(fused)] == ["relu1"]
    assert fused.memory["dram"].bytes_read + fused.memory["dram"].bytes_written < 0.5 * (
        apart.memory["dram"].bytes_read + apart.memory["dram"].bytes_written
    )
    assert fused.time_s < apart.time_s
    assert fused.peak_memory_bytes < apart.peak_memory_bytes


def test_c7_a_residual_block_is_convolutions_norms_and_a_shortcut() -> None:
    """Two 3x3 convolutions: 2 · 9 c² h w multiply-adds, and the norms one for each value."""
    result = hwsim.run("course_cpu", "resnet_block_plain", **RESNET)
    c, pixels = 8, 28 * 28
    assert result.work["macs"] == 2 * 9 * c * c * pixels + 2 * c * pixels + 2 * c
    names = [stage["name"] for stage in result.stages]
    assert names == ["conv1", "norm1", "relu1", "conv2", "norm2", "sum", "y"]


def test_a15_a_group_is_one_node_and_its_inside_is_never_stored() -> None:
    fused = hwsim.run("course_cpu", "mlp", n=48)
    apart = hwsim.run("course_cpu", "mlp", n=48, fused=False)
    assert [stage["name"] for stage in fused.stages] == ["up+up_bias+act", "down+y"]
    assert not {"up", "up_bias", "down"} & set(fused.tensors)
    assert {"up", "up_bias", "down"} < set(apart.tensors)
    assert fused.work["flops"] == apart.work["flops"]


def test_n7_a_transformer_block_is_a_set_of_matrix_products() -> None:
    """4 n d² for q, k, v and the output, 2 n d ff for the layer, and n²d for causal attention tile by tile."""
    n, d, ff = 32, 32, 64
    result = hwsim.run("course_cpu", "transformer_block", n=n, d=d, ff=ff)
    assert result.verified
    macs = 4 * n * d * d + 2 * n * d * ff
    causal = n * (n + 32) * d  # tiles of 32
    products = {stage["name"]: stage["flops"] for stage in result.stages}
    assert products["q_k_v"] == 2 * 3 * n * d * d
    assert result.work["macs"] >= macs + causal
    share = 2 * (macs + causal) / result.work["flops"]
    assert share > 0.9, "nearly all of a transformer is matrix products"


def test_n7_merged_projections_read_their_input_less_often() -> None:
    """With an L1 that does not keep the input, fewer of its lines come again."""
    small = {"l1.size": "4 KiB"}
    merged = hwsim.run("course_cpu", "transformer_block", set=small, n=64, d=64, ff=64)
    separate = hwsim.run("course_cpu", "transformer_block", set=small, n=64, d=64, ff=64, rewrite=[])

    def brought(result: hwsim.RunResult, *stages: str) -> int:
        found = [stage["tensors"]["norm1"]["misses"]["l1"] for stage in result.stages if stage["name"] in stages]
        assert len(found) == len(stages)
        return sum(found)

    assert brought(merged, "q_k_v") < 0.8 * brought(separate, "q", "k", "v")
    assert merged.work["flops"] == separate.work["flops"]
    assert merged.verified and separate.verified


def test_d3_training_multiplies_about_three_times_as_much_as_inference() -> None:
    """The first layer needs no gradient of its input: 2 of 3 products for each weight but the first one's."""
    n, d, h, out = 16, 24, 40, 8
    result = hwsim.run("course_cpu", "mlp_train_step", n=n, d=d, h=h, out=out)
    forward = n * d * h + n * h * out
    assert result.work["macs"] - (d * h + h * out) == forward + 2 * n * h * out + n * d * h
    flops = {stage["name"]: stage["flops"] for stage in result.stages}
    products = sum(flops[name] for name in ("hidden", "y", "dw1", "dw2", "dact"))
    assert products == 2 * (2 * n * d * h + 3 * n * h * out)


def _train_step(**parameters: object) -> ChainKernel:
    workload = with_parameters(load_workload("mlp_train_step").spec, {"precision": "fp64", **parameters})
    made = build_kernel(workload)
    assert isinstance(made, ChainKernel)
    for block in made.blocks():
        list(block.steps())
    return made


@pytest.mark.parametrize("sizes", [{}, {"n": 16, "d": 24, "h": 40, "out": 8}], ids=["default", "small"])
def test_d4_d5_gradients_are_those_of_central_differences(sizes: dict[str, int]) -> None:
    """d loss / d w of mean (w2 relu(w1 x) - y)², whatever the sizes are."""
    made = _train_step(**sizes)
    a = {name: np.array(values) for name, values in made.arrays.items()}

    def loss(w1: np.ndarray, w2: np.ndarray) -> float:
        return float(np.mean((np.maximum(a["x"] @ w1, 0) @ w2 - a["target"]) ** 2))

    assert float(a["loss"][0]) == pytest.approx(loss(a["w1"], a["w2"]), rel=1e-12)
    epsilon = 1e-6
    for weight, gradient, place in (("w1", "dw1", (3, 5)), ("w1", "dw1", (20, 30)), ("w2", "dw2", (7, 2))):
        up, down = ({"w1": a["w1"].copy(), "w2": a["w2"].copy()} for _ in range(2))
        up[weight][place] += epsilon
        down[weight][place] -= epsilon
        slope = (loss(**up) - loss(**down)) / (2 * epsilon)
        assert a[gradient][place] == pytest.approx(slope, rel=1e-5, abs=1e-9)
    np.testing.assert_allclose(a["w1_new"], a["w1"] - 0.1 * a["dw1"], rtol=1e-12)
    np.testing.assert_allclose(a["w2_new"], a["w2"] - 0.1 * a["dw2"], rtol=1e-12)


def test_d4_activations_are_kept_for_the_backward_pass_and_freed_after_it() -> None:
    """Most is needed for the gradient of hidden: hidden itself, dact and dhidden, beside dw2 and the loss.

    Training that kept everything would need all of its tensors; the forward pass alone keeps no hidden values.
    """
    sizes = {"n": 64, "d": 64, "h": 128, "out": 32}
    training = hwsim.run("course_cpu", "mlp_train_step", **sizes)
    n, d, h, out = sizes.values()
    given = n * d + d * h + h * out + n * out
    assert training.peak_memory_bytes == 4 * (given + 3 * n * h + h * out + 1)
    forward = _train_step().original.steps[:3]
    workload = load_workload("mlp_train_step").spec.model_copy(update={"operations": forward})
    tensors = {name: shape for name, shape in workload.tensors.items() if name != "target"}
    inference = build_kernel(workload.model_copy(update={"tensors": tensors}))
    assert inference.space.peak_bytes == 4 * (given - n * out + 2 * n * h)
