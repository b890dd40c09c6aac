"""Sums are kept as the machine keeps them: neither its own tiles nor those of a CPU's cache change the answer."""

from __future__ import annotations

import pytest

import hwsim
from hwsim.catalog import load_machine
from hwsim.errors import OverrideError
from hwsim.numerics.datapath import SumRule, sums_in
from hwsim.targets.gpu.device import Device


def error(machine: str, workload: str, **more: object) -> float:
    result = hwsim.run(machine, workload, **more)
    assert result.verified and result.numeric is not None
    return result.numeric.max_rel


@pytest.mark.parametrize(
    ("machine", "tile"), [("a100_40", "tile.shared.k"), ("h100", "tile.shared.k"), ("tpu_v3", "tile.vmem.k")]
)
def test_the_error_does_not_follow_the_tile_along_k(machine: str, tile: str) -> None:
    errors = {error(machine, "matmul_tiled", n=128, precision="bf16", **{tile: depth}) for depth in (16, 32, 64)}
    assert len(errors) == 1


@pytest.mark.parametrize("machine", ["a100_40", "h100", "tpu_v3"])
def test_tiles_for_the_caches_of_a_core_are_refused_or_left_alone(machine: str) -> None:
    with pytest.raises(OverrideError, match=f"tile means nothing on {machine}"):
        hwsim.run(machine, "matmul_tiled", n=128, precision="bf16", tile=4)
    workloads = ("matmul", "matmul_naive", "matmul_tiled", "matmul_blocked")  # on a core they differ in tiles and order
    assert len({error(machine, workload, n=128, precision="bf16") for workload in workloads}) == 1


def test_on_a_core_it_does_follow_the_tile() -> None:
    """The check can object: a core that sums in bf16 in memory rounds at each tile."""
    small, large = (
        error("zen3", "matmul_tiled", n=128, precision="bf16", tile=tile, convert=True) for tile in (4, 128)
    )
    assert small > 2 * large


@pytest.mark.parametrize(
    ("workload", "sizes", "tile"),
    [
        ("conv2d_direct", {"ci": 32, "height": 8}, "tile.shared.k"),
        ("attention_fused", {"n": 128, "d": 16}, "tile.shared.keys"),
        ("matmul_batched", {"n": 64, "batch": 2}, "tile.shared.k"),
        ("matmul_strassen", {"n": 64}, "tile.shared.k"),
    ],
)
def test_other_products_keep_their_sums_too(workload: str, sizes: dict[str, int], tile: str) -> None:
    small, large = (error("a100_40", workload, precision="bf16", **sizes, **{tile: side}) for side in (16, 64))
    assert small == pytest.approx(large, rel=1e-3)


def test_the_accumulator_of_the_machine_file_is_read() -> None:
    """A sum in fp16 is rounded at each instruction, one in fp32 once."""
    wide = error("a100_40", "matmul", n=256, precision="fp16")
    results = hwsim.run("a100_40", "matmul", n=256, precision="fp16", set={"sm.accumulate.fp16": "fp16"})
    assert results.numeric is not None
    assert results.verified and results.numeric.max_rel > 2 * wide


def test_an_accumulator_as_wide_as_arithmetic_rounds_once() -> None:
    device = Device.of(load_machine("a100_40").spec)
    assert device.sums("bf16") == SumRule(at_tiles=False)
    assert device.sums("fp32") == SumRule(at_tiles=False)
    assert sums_in("fp16", "fp16", 16) == SumRule("fp16", 16, at_tiles=False)
    assert sums_in("int8", "int32", 32) == SumRule(at_tiles=False)
