"""Error bars of serving: from rows of the machine, or of others; what was never compared says so."""

from __future__ import annotations

from math import exp

import pytest

from hwsim.record import ErrorBar
from hwsim.results.bar_table import LEVELS, TIME, BarGroup, BarTable, decade_of
from hwsim.systems.bars import FIRST_TOKEN, OUTPUT_TOKEN, served_bars
from hwsim.systems.scheduler import Stream, closed_loop, open_loop
from hwsim.systems.serve_model import make_service
from tests.cli.command_line import hwsim

WIDE = 0.2
USERS = closed_loop(2, 64, 4, 4)


def bars(system: str, stream: Stream = USERS, **words: str) -> dict[str, ErrorBar]:
    """Of a table in which 200 rows of each of two machines lie evenly up to 20 % above and below, in logarithms."""
    service = make_service("llama3_8b", system, words)
    result = service.run(stream)
    assert result.tpot is not None
    points = tuple(WIDE * (2 * level - 1) for level in LEVELS)
    seconds = {FIRST_TOKEN: result.ttft.mean, OUTPUT_TOKEN: result.tpot.mean}
    table = BarTable(
        BarGroup(TIME, family, machine, decade_of(value), 200, points)
        for family, value in seconds.items()
        for machine in ("h100", "h200")
    )
    found = served_bars(service, result, table)
    assert set(found) == {"ttft", "tpot"}
    return found


def test_80_of_100_rows_lie_within_the_bar() -> None:
    """Evenly between -0.2 and 0.2, the middle 80 % end at 0.16; some rows are drawn to those of the other machine."""
    for bar in bars("h100").values():
        assert bar.ends is not None
        assert bar.ends[1] / bar.value == pytest.approx(exp(0.8 * WIDE), rel=0.01)
        assert bar.ends[0] / bar.value == pytest.approx(exp(-0.8 * WIDE), rel=0.01)
        assert (bar.basis, bar.rows) == ("machine", 200)


def test_a_machine_that_was_not_measured_has_the_wider_bar_of_others() -> None:
    for bar in bars("a100_80").values():
        assert (bar.basis, bar.rows) == ("class", 400)
        assert bar.ends is not None
        assert bar.ends[1] / bar.value > exp(0.81 * WIDE)


@pytest.mark.parametrize(
    ("stream", "words"), [(open_loop(5, 64, 4, 4), {}), (USERS, {"tp": "1", "pp": "2"})], ids=["rate", "pp"]
)
def test_what_was_never_measured_has_none(stream: Stream, words: dict[str, str]) -> None:
    assert all(not bar.is_known for bar in bars("2xh100", stream, **words).values())


def test_a_collective_between_nodes_or_that_nobody_measured_was_never_compared() -> None:
    for system, operation in (
        ("dgx_h100", "broadcast"),
        ("two_nodes_h100", "all_reduce"),
        ("four_phones", "all_reduce"),
    ):
        assert "never compared" in hwsim("collective", system, operation, "bytes=1MB").out, (system, operation)
    assert "never compared" not in hwsim("collective", "dgx_h100", "all_reduce", "bytes=1MB").out
