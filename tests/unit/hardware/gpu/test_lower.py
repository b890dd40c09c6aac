"""From loops to launches: what a product of windows reads, and what runs behind a kernel that takes nothing in."""

from __future__ import annotations

from typing import Any

import pytest

import hwsim
from hwsim.spec.workload import WorkloadSpec
from tests.unit.kernels.chains import chain, step

LINE = 64
N, D = 1024, 256


def formula(text: str, precision: str = "fp32", **sizes: int) -> WorkloadSpec:
    data = {"format": 1, "name": "made", "description": "", "op": "formula", "formula": text, "sizes": sizes}
    return WorkloadSpec.model_validate(data | {"precision": precision})


def read_bytes(text: str, precision: str = "fp32", **sizes: int) -> int:
    return hwsim.run("a100_40", formula(text, precision, **sizes), math=False).memory["dram"].bytes_read


@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("bf16", 2)])
def test_windows_that_overlap_are_read_once(precision: str, size: int) -> None:
    """Neighbouring windows share all but one element; as a matrix they would be as many times as much."""
    count, filters = 1 << 16, 32
    for window in (2, 3, 64):
        found = read_bytes("Y[i,o] += X[i+u] * W[u,o]", precision, i=count, u=window, o=filters)
        stored = (count + window - 1 + window * filters) * size
        assert stored <= found <= stored + 2 * LINE
    apart = read_bytes("Y[i,o] += X[i,u] * W[u,o]", precision, i=count // window, u=window, o=filters)
    assert apart == (count + window * filters) * size


def test_a_batch_of_products_reads_each_of_its_matrices_once() -> None:
    """Small enough for the L2; a matrix that the whole batch shares is there once, one of each product as often."""
    batch, m, n, k = 8, 64, 32, 128
    own = read_bytes("C[b,i,j] += A[b,i,k] * B[b,k,j]", b=batch, i=m, j=n, k=k)
    assert own == 4 * batch * (m * k + k * n)


def launches(tail: list[dict[str, Any]], tensors: dict[str, list[Any]], fused: bool) -> tuple[Any, list[Any]]:
    """Attention of 4 heads, and element-wise operations behind it."""
    work = [step("a", "attention", "q", "k", "v", heads=4), *tail]
    given = {name: ["n", "d"] for name in "qkv"} | tensors
    how = {"rewrite": ("fuse_pointwise",)} if fused else {}
    sizes = {"n": N, "d": D}
    result = hwsim.run("a100_40", chain(work, given, precision="bf16", sizes=sizes, schedule=how), math=False)
    return result, result.work.use["gpu"]["launches"]


TAILS: dict[str, tuple[list[dict[str, Any]], dict[str, list[Any]], int]] = {
    # what follows, what it is given, and the tensors of n x d that it reads
    "relu": ([step("y", "relu", "a")], {}, 1),
    "add+relu": ([step("s", "add", "a", "r"), step("y", "relu", "s")], {"r": ["n", "d"]}, 2),
    "add+mul+sub": (
        [step("s", "add", "a", "r"), step("t", "mul", "s", "f"), step("y", "sub", "t", "g")],
        {"r": ["n", "d"], "f": ["n", "d"], "g": ["n", "d"]},
        4,
    ),
    "add+square": ([step("s", "add", "a", "bias"), step("y", "square", "s")], {"bias": ["d"]}, 1),
}


@pytest.mark.parametrize("name", TAILS)
def test_what_follows_attention_in_a_group_is_one_kernel_of_its_own(name: str) -> None:
    """It reads what attention wrote and what it is given, writes its result, and does as much as one by one."""
    tail, tensors, reads = TAILS[name]
    one_by_one, apart = launches(tail, tensors, fused=False)
    together, (attention, behind) = launches(tail, tensors, fused=True)
    assert len(apart) == 1 + len(tail)
    assert (attention["seconds"], attention["dram_bytes"]) == (apart[0]["seconds"], apart[0]["dram_bytes"])
    assert (behind["name"], behind["family"]) == (f"{name} bf16", "memory_bound")
    assert behind["dram_bytes"] == (reads + 1) * N * D * 2
    assert together.work.flops == one_by_one.work.flops
    assert together.work.macs == one_by_one.work.macs
    if len(tail) > 1:
        assert behind["seconds"] < sum(each["seconds"] for each in apart[1:])
        longest = max(each["seconds"] for each in apart[1:])
        assert behind["seconds"] >= 0.99 * longest  # a bias of one row is next to nothing
    tensors_seen = together.tensors
    for tensor in tensors:
        assert tensors_seen[tensor].loads > 0
