"""How many blocks an SM holds. Expected values by hand from the CUDA C++ Programming Guide's limits."""

from __future__ import annotations

import pytest

from hwsim.errors import CapacityError
from hwsim.program.contraction import GemmShape
from hwsim.targets.gpu.device import Footprint, check_block, occupancy
from hwsim.targets.gpu.spec import TileSpec
from tests.unit.hardware.gpu.made import device, model

KIB = 1024


@pytest.mark.parametrize(
    ("machine", "threads", "registers", "shared_kib", "blocks", "limit"),
    [
        ("a100_40", 256, 32, 0, 8, "warps"),  # 64 warps / 8
        ("a100_40", 256, 64, 0, 4, "registers"),  # 65536 / (64 x 256)
        ("a100_40", 256, 33, 0, 6, "registers"),  # 33 x 32 = 1056 registers of a warp become 1280: 65536 / 10240
        ("a100_40", 32, 16, 0, 32, "blocks"),
        ("a100_40", 128, 32, 48, 3, "shared memory"),  # 164 / (48 + 1 reserved)
        ("v100", 128, 32, 48, 2, "shared memory"),  # 96 / 48, nothing reserved
        ("a6000", 256, 32, 0, 6, "warps"),  # 48 warps / 8
        ("t4", 1024, 32, 0, 1, "warps"),  # 32 warps / 32
    ],
)
def test_the_scarcest_resource_decides(
    machine: str, threads: int, registers: int, shared_kib: int, blocks: int, limit: str
) -> None:
    found = occupancy(device(machine), Footprint(threads, registers, shared_kib * KIB))
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.warps == blocks * threads // 32


@pytest.mark.parametrize(
    ("fits", "fails", "by_how_much"),
    [
        (Footprint(1024, 32, 0), Footprint(1056, 32, 0), "32 more than the 1024"),
        (Footprint(128, 255, 0), Footprint(128, 256, 0), "1 more than the 255"),
        (Footprint(1024, 64, 0), Footprint(1024, 65, 0), "8192 more than the 65536"),
        (Footprint(128, 32, 163 * KIB), Footprint(128, 32, 163 * KIB + 1), "1 B more than its 164 KiB"),
    ],
)
def test_each_limit_is_tight_and_says_by_how_much_it_is_exceeded(
    fits: Footprint, fails: Footprint, by_how_much: str
) -> None:
    gpu = device("a100_40")
    assert occupancy(gpu, fits).blocks >= 1
    with pytest.raises(CapacityError, match=by_how_much):
        check_block(gpu, fails, "a block")


def test_a_tile_that_is_too_large_names_one_that_fits() -> None:
    with pytest.raises(CapacityError, match=r"tile 512x512x64 needs .* would fit") as caught:
        model("a100_40").gemm(
            GemmShape(512, 512, 512), "fp32", tile=TileSpec(m=512, n=512, k=64, stages=4, threads=512)
        )
    m, n, k = (int(size) for size in str(caught.value).rsplit("tile ", 1)[1].split(" ")[0].split("x"))
    smaller = TileSpec(m=m, n=n, k=k, stages=4, threads=512)
    assert model("a100_40").gemm(GemmShape(512, 512, 512), "fp32", tile=smaller).seconds > 0


def test_each_library_tile_fits_the_machine_that_lists_it() -> None:
    for name in ("v100", "a100_40", "h100", "a6000", "t4", "mali_g78"):
        gpu = model(name)
        for precision in {**gpu.device.sm.tensor, **gpu.device.sm.lanes}:
            if gpu.device.sm.library.lane_tiles and precision != "int32":
                assert gpu.gemm(GemmShape(777, 555, 333), precision).seconds > 0


def test_the_l1_of_an_sm_is_the_cache_in_front_of_its_l2() -> None:
    """A100: 64 B per cycle to each SM, NVIDIA Ampere white paper; the L2 behind it is another cache."""
    a100 = device("a100_40")
    assert (a100.l1.name, a100.l2.name) == ("l1", "l2")
    assert a100.l1_rate == a100._rate(a100.machine.level("l1"))  # type: ignore[arg-type]
