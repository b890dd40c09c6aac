"""Weights of 8 and 4 bits on a GPU: fewer bytes, instructions to unpack them, and energy for both."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import hwsim
from hwsim.errors import InputError
from hwsim.memory.counters import DramCounters
from hwsim.result import RunResult

FORMATS = ("fp16", "w8a16", "w4a16")


def run(precision: str, m: int, n: int = 4096, k: int = 4096, **more: Any) -> RunResult:
    return hwsim.run("a100_80", "matmul", math=False, m=m, n=n, k=k, precision=precision, **more)


def read(result: RunResult) -> int:
    counts = result.memory["dram"]
    assert isinstance(counts, DramCounters)
    return counts.bytes_read


def test_a_few_rows_take_as_much_less_time_and_energy_as_weights_have_fewer_bytes() -> None:
    results = [run(precision, 1) for precision in FORMATS]
    for wide, narrow in pairwise(results):
        assert read(narrow) == pytest.approx(read(wide) / 2, rel=0.08)  # scales of blocks come on top
        assert narrow.time_s < wide.time_s
        assert narrow.energy_j is not None and wide.energy_j is not None and narrow.energy_j < wide.energy_j


def test_many_rows_gain_little_and_pay_for_unpacking() -> None:
    """Measured on an A100-80 at 2048 x 10240 x 65536: 266 Tflop/s in w8a16, as in fp16."""
    plain, narrow = (run(precision, 2048, n=10240, k=65536) for precision in ("fp16", "w8a16"))
    for result in (plain, narrow):
        assert 2 * 2048 * 10240 * 65536 / result.time_s == pytest.approx(266e12, rel=0.1)
    assert plain.energy_by_cause is not None and narrow.energy_by_cause is not None
    assert "sm.fma.fp32" in narrow.energy_by_cause["arithmetic"]
    assert "sm.fma.fp32" not in plain.energy_by_cause["arithmetic"]


def test_a_hand_written_kernel_has_no_weights_of_another_format() -> None:
    with pytest.raises(InputError, match="weights of their own format need the library's kernel"):
        run("w8a16", 256, **{"threads.kernel": "warp_tiled"})
