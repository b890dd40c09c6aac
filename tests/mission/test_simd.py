"""Section 5 of the mission: vectors, rows V1 and V2."""

from __future__ import annotations

import pytest

import hwsim


@pytest.mark.parametrize(("width", "issued"), [(1, 1024), (4, 256)])
def test_v1_adding_four_at_a_time_takes_a_quarter_of_the_instructions(width: int, issued: int) -> None:
    """V1: 256 elements; two loads, an addition and a store for each, or for each four."""
    result = hwsim.run("course_cpu", "add", n=256, set={"core.simd.bits": 32 * width})
    instructions = result.work["instructions"]
    assert instructions["load"] + instructions["add"] + instructions["store"] == issued
    assert result.work["flops"] == 256
    assert result.verified


@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize(
    ("precision", "element"), [("fp64", 64), ("fp32", 32), ("fp16", 16), ("bf16", 16), ("int8", 8)]
)
def test_v2_lanes_follow_from_width_and_precision(bits: int, precision: str, element: int) -> None:
    """V2: lanes are bits over element bits: fp32 has 4, 8 and 16, fp16 8, 16 and 32."""
    result = hwsim.run("course_cpu", "add", n=256, precision=precision, set={"core.simd.bits": bits})
    assert result.work["instructions"]["add"] == 256 // (bits // element)
    assert result.verified


def test_v2_a_loop_that_does_not_fill_its_vectors_finishes_one_by_one() -> None:
    result = hwsim.run("course_cpu", "add", n=21)
    assert result.work["instructions"]["add"] == 2 + 5
    assert result.verified
