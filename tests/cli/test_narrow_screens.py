"""Screens of 60 to 120 columns: every level keeps its name, and every number its unit."""

from __future__ import annotations

import re

import pytest
from command_line import hwsim

from hwsim.cli import console
from hwsim.cli.console import make_table, out

WIDTHS = (60, 80, 100, 120)
RUNS = {
    ("tpu_v1", "resnet_block"): ("accumulators", "weight_fifo", "unified_buffer", "dram", "norm1+relu1", "norm2+sum+y"),
    ("course_cpu", "matmul_tiled", "n=32", "tile=8"): ("l1", "l2", "dram"),
    ("a100_40", "matmul", "n=256"): ("l2", "dram"),
}


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(console, "_WIDTH_IN_PIPES", request.param)
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_no_name_and_no_unit_is_lost(words: tuple[str, ...], width: int) -> None:
    """`run tpu_v1 resnet_block` lost the names of its levels at every width."""
    outcome = hwsim("run", *words, "--no-math")
    assert outcome.code == 0, outcome.err
    assert "…" not in outcome.out, [line for line in outcome.out.splitlines() if "…" in line]
    for name in RUNS[words]:
        assert re.search(rf"(^|level |operation ){re.escape(name)}\b", outcome.out, flags=re.M), name
    tables = [line for line in outcome.out.splitlines() if not line.startswith(("next ", "hwsim"))]
    assert max(map(len, tables)) <= width


@pytest.mark.parametrize(
    "words", [("course_cpu", "matmul_naive", "softmax"), ("h100", "matmul"), ("eyeriss", "matmul")]
)
def test_a_roofline_fits_its_terminal(words: tuple[str, ...], width: int) -> None:
    """It was 120 columns wide on each: a narrower terminal broke its rows anywhere."""
    outcome = hwsim("roofline", *words, "n=16")
    assert outcome.code == 0, outcome.err
    assert "…" not in outcome.out
    tables = [line.rstrip() for line in outcome.out.splitlines() if not re.match(r"\w+: ", line)]
    assert max(map(len, tables)) <= width


def test_columns_decide_the_width_of_a_screen_that_is_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (60, 80, 95):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert out().width == columns
    for nothing in ("", "0", "wide"):
        monkeypatch.setenv("COLUMNS", nothing)
        assert out().width == 110


def test_a_roofline_fits_eighty_columns_and_keeps_its_bars_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    screen = hwsim("roofline", "h100", "matmul", "softmax", "n=1024", "precision=bf16")
    assert screen.code == 0, screen.err
    tables = screen.out.rpartition("matmul: ")[0].splitlines()
    assert max(map(len, tables)) <= 80
    assert len(re.findall(r"[−+]?\d+ to [−+]\d+ %|± \d+ %", screen.out)) >= 2


def test_a_table_wraps_heads_first_then_becomes_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(columns: int) -> str:
        table = make_table("level", "bytes to and from", "holds", left=(0, 2))
        table.add_row("unified_buffer", "50.2 kB", "a long list of the names of tensors")
        screen = out()
        screen.width = columns
        with screen.capture() as captured:
            screen.print(table)
        return captured.get()

    assert "unified_buffer" in drawn(100).splitlines()[2]
    assert "50.2 kB" in drawn(44) and "unified_buffer" in drawn(44) and "bytes to" in drawn(44)
    assert [line.rstrip() for line in drawn(24).splitlines()[:2]] == ["level unified_buffer", "  bytes to and from:"]


def test_a_hundred_columns_are_as_before() -> None:
    table = make_table("level", "bytes")
    table.add_row("l1", "50.2 kB")
    screen = out()
    with screen.capture() as captured:
        screen.print(table)
    assert captured.get().splitlines()[2].rstrip() == "l1      50.2 kB"
