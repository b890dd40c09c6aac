"""Copies from the host beside computing: the longer of both, not their sum (mission row P8)."""

from __future__ import annotations

import pytest

from hwsim.errors import InputError
from hwsim.systems.host import feed
from hwsim.systems.spec import load_system


@pytest.mark.parametrize("compute_fs", [0, 10**9, 10**11, 10**12])
@pytest.mark.parametrize("buffers", [1, 2])
@pytest.mark.parametrize("pieces", [1, 2, 16])
def test_feeding_takes_what_the_pipeline_formula_says(compute_fs: int, buffers: int, pieces: int) -> None:
    found = feed(load_system("8xh100"), 1 << 28, pieces=pieces, compute_fs=compute_fs, buffers=buffers)
    assert found.elapsed_fs == found.formula_fs


def test_overlap_hides_the_shorter_of_the_two() -> None:
    system = load_system("1xh100")
    copy_s = (1 << 30) / 64e9
    one, two = (feed(system, 1 << 30, pieces=64, compute_fs=round(copy_s / 64 * 1e15), buffers=n) for n in (1, 2))
    assert one.seconds == pytest.approx(2 * copy_s, rel=0.05)
    assert two.seconds == pytest.approx(copy_s, rel=0.06)


def test_devices_behind_one_switch_share_it() -> None:
    one, two = (feed(load_system("8xa100_80"), 1 << 30, devices=n).seconds for n in (1, 2))
    assert two == pytest.approx(2 * one, rel=0.01)
    assert feed(load_system("8xa100_80"), 1 << 30, devices=8).seconds == two


def test_a_system_without_a_host_says_so() -> None:
    with pytest.raises(InputError, match="says nothing of its host"):
        feed(load_system("four_phones"), 1000)
