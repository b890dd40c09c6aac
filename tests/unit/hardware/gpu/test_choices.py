"""Choices of a schedule as kernels of the library."""

from __future__ import annotations

import pytest

from hwsim.catalog import load_workload
from hwsim.errors import CapacityError, InputError
from hwsim.program.loop_kernel import build_kernel
from hwsim.spec.variant import with_parameters
from hwsim.targets.gpu.attention import find_kernel
from hwsim.targets.gpu.device import KernelCost
from hwsim.targets.gpu.gemm import GemmBytes
from hwsim.targets.gpu.knobs import choose_attention, choose_split, choose_tiles
from hwsim.targets.gpu.lower import map_launches
from tests.unit.hardware.gpu.made import device, model

HALF = GemmBytes(2, 2, 2)


def cost(workload: str, choices: dict[str, int], **parameters: object) -> KernelCost:
    work = with_parameters(load_workload(workload).spec, {"precision": "fp16", **parameters})
    (launch,) = map_launches(model("a100_40"), build_kernel(work, math=False), choices=choices)
    return launch.cost


def test_what_is_not_chosen_stays_with_the_library() -> None:
    assert choose_tiles(device("a100_40"), "fp16", "tensor", HALF, {}) is None
    tiles = choose_tiles(device("a100_40"), "fp16", "tensor", HALF, {"tile.shared.m": 64})
    assert tiles is not None and {tile.m for tile in tiles} == {64} and len({tile.n for tile in tiles}) > 3


def test_every_choice_changes_the_kernel() -> None:
    asked = {"tile.shared.m": 64, "tile.shared.n": 128, "tile.shared.k": 64, "stages": 2, "split_k": 2}
    found = cost("matmul", asked, n=2048)
    assert found.tile == (64, 128, 64) and found.split_k == 2
    assert found.seconds != cost("matmul", {}, n=2048).seconds
    fewer, more = (cost("matmul", {"tile.shared.m": 128, "tile.shared.n": 128, "stages": n}, n=2048) for n in (2, 4))
    assert fewer.block is not None and more.block is not None
    assert 2 * fewer.block.flight_bytes == more.block.flight_bytes


@pytest.mark.parametrize("choices", [{"tile.shared.m": 128}, {"stages": 3}, {"split_k": 1}])
def test_the_librarys_own_choice_is_never_slower_than_any_other(choices: dict[str, int]) -> None:
    best, chosen = cost("matmul", {}, n=1024), cost("matmul", choices, n=1024)
    follow = 2.4e-6
    assert best.seconds + best.launches * follow <= 1.04 * (chosen.seconds + chosen.launches * follow)


def test_the_largest_tile_that_fits_is_named_and_fits() -> None:
    """Sums of 256 x 256 fill all registers of an SM: nothing is left for operands."""
    asked = {"tile.shared.m": 256, "tile.shared.n": 256}
    with pytest.raises(CapacityError, match=r"registers.*tile\.shared\.m=128 tile\.shared\.n=256 would fit") as error:
        choose_tiles(device("a100_40"), "fp16", "tensor", HALF, asked)
    assert "a100_40" in str(error.value)
    assert choose_tiles(device("a100_40"), "fp16", "tensor", HALF, {**asked, "tile.shared.m": 128}) is not None


def test_stages_that_do_not_fit_shared_memory_are_refused() -> None:
    asked = {"tile.shared.m": 256, "tile.shared.n": 128, "stages": 8}
    with pytest.raises(CapacityError, match="stages"):
        choose_tiles(device("a100_40"), "fp16", "tensor", HALF, asked)


@pytest.mark.parametrize(("name", "value"), [("tile.shared.m", 100), ("tile.shared.n", 12), ("tile.shared.k", 24)])
def test_tensor_cores_take_whole_instructions(name: str, value: int) -> None:
    with pytest.raises(InputError, match=rf"{name}={value} is no multiple"):
        choose_tiles(device("a100_40"), "fp16", "tensor", HALF, {name: value})


def test_a_sum_is_not_split_into_more_parts_than_it_has_steps() -> None:
    tiles = choose_tiles(device("a100_40"), "fp16", "tensor", HALF, {"tile.shared.k": 32})
    assert choose_split({"split_k": 4}, 128, tiles) == 4
    with pytest.raises(InputError, match="split_k=5: a sum of 128 products in steps of 32 has 4 parts at most"):
        choose_split({"split_k": 5}, 128, tiles)


@pytest.mark.parametrize(("name", "head_dim"), [("flash2", 64), ("flash2", 128), ("flash2", 256), ("flash_decode", 64)])
def test_the_tiles_that_the_library_has_fit_as_often_as_its_file_says(name: str, head_dim: int) -> None:
    """The check of registers and shared memory agrees with kernels that exist."""
    gpu = device("a100_40")
    base = find_kernel(gpu, name, head_dim)
    other = base.model_copy(update={"keys": base.keys // 2})
    asked = {"tile.shared.queries": base.queries, "tile.shared.keys": base.keys}
    assert choose_attention(gpu, base, head_dim, "fp16", asked) is base
    assert choose_attention(gpu, other, head_dim, "fp16", asked).resident >= base.resident


def test_tiles_of_attention_change_its_time_and_are_checked() -> None:
    sizes = {"n": 2048, "d": 64, "heads": 8}
    assert (
        cost("attention_fused", {"tile.shared.keys": 32}, **sizes).seconds
        > cost("attention_fused", {}, **sizes).seconds
    )
    with pytest.raises(CapacityError, match=r"tile\.shared\.queries=\d+ tile\.shared\.keys=\d+ would fit"):
        cost("attention_fused", {"tile.shared.queries": 512, "tile.shared.keys": 512}, **sizes)


def test_a_convolution_takes_tiles_as_well() -> None:
    found = cost("conv2d", {"tile.shared.m": 64, "tile.shared.n": 64}, ci=64, co=128, height=56)
    assert found.tile[:2] == (64, 64)
