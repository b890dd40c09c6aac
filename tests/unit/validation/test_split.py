"""Rows to fit on and rows to report on: two halves that never share a shape."""

from __future__ import annotations

from hwsim.validation.residual import is_held_out


def test_a_shape_is_always_in_the_same_half() -> None:
    # sha256("gemm|64|64|64") begins with 0x51 and sha256("gemm|64|64|67") with 0x12 (coreutils' sha256sum)
    assert is_held_out("gemm", 64, 64, 64)
    assert not is_held_out("gemm", 64, 64, 67)


def test_the_halves_are_of_about_the_same_size() -> None:
    held = sum(is_held_out("gemm", m, 256, 512) for m in range(2000))
    assert 900 < held < 1100
