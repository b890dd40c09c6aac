"""Kernels that go over rows: what they read, and what their exponentials take."""

from __future__ import annotations

import pytest

from hwsim.targets.gpu.model import replay_rows
from tests.unit.hardware.gpu.made import device, model

SLOW = 0.25
"""Exponentials of an SM in a cycle, so few that nothing else counts."""


@pytest.mark.parametrize(("rows", "columns"), [(4096, 512), (2048, 1024), (1024, 8192), (512, 40000)])
def test_a_softmax_takes_one_exponential_of_each_number(rows: int, columns: int) -> None:
    """Short rows in the registers of a warp, long ones in a block that reads them three times."""
    name = "a100_40"
    slow = model(name, f"sm.special={SLOW}").softmax(rows, columns, "fp16")
    least = rows * columns / SLOW / 108 / device(name).clock_hz
    assert least < slow.seconds < 1.35 * least
    assert slow.activity.special == rows * columns
    assert model(name).softmax(rows, columns, "fp16").seconds < slow.seconds / 4


def test_norms_and_rounding_take_no_exponential() -> None:
    for gpu in (model("a100_40"), model("a100_40", f"sm.special={SLOW}")):
        costs = (gpu.layernorm(64, 512, "fp16"), gpu.rmsnorm(64, 512, "fp16"), gpu.quantize(64, 512, "fp16", "int8"))
        assert [each.activity.special for each in costs] == [0, 0, 0]
        plain = model("a100_40")
        assert costs[0].seconds == plain.layernorm(64, 512, "fp16").seconds


def test_rows_that_are_found_again_are_read_once_however_often_they_are_gone_over() -> None:
    """100 bytes a row, 3 rows at a time: what one, two or three passes fetch by how much of it is kept."""
    rows, size, out, together = 10, 100.0, 60.0, 3
    once = rows * size
    for passes in (1, 2, 3, 4):
        assert replay_rows(rows, size, out, passes, together, 3 * (size + out)).total == once
        assert replay_rows(rows, size, out, passes, together, 0.0).total == passes * once
        assert replay_rows(rows, size, out, passes, rows, rows * (size + out)).turns == (once,)
    # Rows fit, and not the results beside them: only the last pass misses, by as much as they are too much.
    for passes in (2, 3, 4):
        assert replay_rows(3, size, out, passes, 3, 3 * size).total == 2 * 3 * size
        assert replay_rows(3, size, out, passes, 3, 3 * size + 90).total == 3 * size * 1.5
        assert replay_rows(3, size, 0.0, passes, 3, 3 * size).total == 3 * size
        assert replay_rows(3, size, 0.0, passes, 3, 3 * size - 1).total == passes * 3 * size
    assert replay_rows(10, size, out, 2, 4, 0.0).turns == (800.0, 800.0, 400.0), "4, 4 and 2 rows"
