"""Bytes of a GPU run: conserved from level to level, and shared out among tensors without remainder."""

from __future__ import annotations

from typing import Any

import pytest

import hwsim
from hwsim.catalog import load_machine
from hwsim.memory.counters import DramCounters
from hwsim.targets.gpu.device import Device
from hwsim.targets.gpu.run import apportion

RUNS = [
    ("matmul", {"n": 512}), ("matmul_batched", {"n": 64}), ("conv2d", {}), ("conv2d_im2col", {}),
    ("conv2d_depthwise", {}), ("softmax", {}), ("layernorm", {}), ("gelu", {}), ("reduce_sum", {}),
    ("attention_fused", {"n": 256}), ("attention_naive", {"n": 256}), ("attention_decode", {}), ("mlp", {}),
    ("transformer_block", {}), ("resnet_block", {}),
]  # fmt: skip


@pytest.mark.parametrize("machine", ["a100_40", "h100", "mali_g78"])
@pytest.mark.parametrize(("workload", "sizes"), RUNS, ids=[name for name, _ in RUNS])
def test_no_more_reaches_dram_than_passes_the_l2(machine: str, workload: str, sizes: dict[str, Any]) -> None:
    result = hwsim.run(machine, workload, math=False, **sizes)
    l2, dram = result.caches["l2"], result.memory["dram"]
    assert isinstance(dram, DramCounters)
    assert dram.bytes_read == l2.bytes_fetched <= l2.bytes_read
    assert dram.bytes_written == l2.bytes_evicted <= l2.bytes_written
    assert sum(facts["misses"]["l2"] for facts in result.tensors.values()) == l2.read_misses
    burst = Device.of(load_machine(machine).spec).dram.burst
    assert dram.reads == -(-dram.bytes_read // burst)


def test_energy_of_dram_is_given_to_tensors_without_remainder() -> None:
    result = hwsim.run("a100_40", "matmul", math=False, n=1024, precision="fp16")
    assert result.energy_by_tensor is not None and result.energy_by_cause is not None
    given = sum(levels["dram"] for levels in result.energy_by_tensor.values())
    assert set(result.energy_by_tensor) == {"A", "B", "C"}
    assert given == pytest.approx(sum(line["joules"] for line in result.energy_by_cause["memory"].values()))


def test_a_tensor_that_is_twice_as_large_gets_twice_the_energy() -> None:
    result = hwsim.run("a100_40", "matmul", math=False, m=1024, k=1024, n=512, precision="fp16")
    assert result.energy_by_tensor is not None
    assert result.energy_by_tensor["A"]["dram"] == pytest.approx(2 * result.energy_by_tensor["B"]["dram"], rel=1e-3)


def test_shares_add_up() -> None:
    assert apportion(10, {"a": 1, "b": 1, "c": 1}) == {"a": 4, "b": 3, "c": 3}
    assert apportion(0, {"a": 1}) == {}
