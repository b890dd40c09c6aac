"""Systolic arrays against SCALE-Sim 3.0.0 and against what Google published about its TPUs.

`hwsim/validation/data/README.md` says where the rows of `systolic.csv` and `tpu.csv` come from.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from hwsim.api import simulate
from hwsim.catalog import load_machine
from hwsim.targets.systolic.model import build_chip
from hwsim.validation.report import Report, start
from hwsim.validation.table import read_table, shipped
from hwsim.validation.tpu import convolution, speed, stack


@cache
def report(name: str) -> Report:
    *_, last = start(name, None, None, 0)
    assert isinstance(last, Report)
    return last


def test_every_row_of_scalesim_is_matched_exactly() -> None:
    found = report("systolic")
    assert found.passed
    assert found.total.rows == found.total.matched == 113
    assert {name: group.rows for name, group in found.groups.items()} == {"ws": 39, "os": 39, "is": 35}
    notes = "\n".join(found.notes)  # DRAM and stalls stand beside
    for words in ("DRAM ifmap reads", "DRAM filter reads", "DRAM ofmap writes", "no stall", "with one, stalls are"):
        assert words in notes


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("total_cycles", 1),
        ("sram_ifmap_reads", -1),
        ("sram_filter_reads", 1),
        ("sram_ofmap_writes", 1),
        ("mapping_eff_pct", 0.5),
    ],
)
def test_a_row_that_is_off_by_one_is_found(column: str, change: float, tmp_path: Path) -> None:
    lines = shipped("systolic.csv").read_text(encoding="utf-8").splitlines()
    place = lines[0].split(",").index(column)
    cells = lines[1].split(",")
    cells[place] = str(float(cells[place]) + change) if column.endswith("pct") else str(int(cells[place]) + int(change))
    table = tmp_path / "table.csv"
    table.write_text("\n".join([lines[0], ",".join(cells), lines[2]]) + "\n", encoding="utf-8")
    *_, last = start("systolic", table, None, 0)
    assert isinstance(last, Report)
    assert not last.passed
    assert (last.total.rows, last.total.matched) == (2, 1)


def test_the_first_tpu_does_what_was_published() -> None:
    found = report("tpu")
    assert found.passed, [bar for bar in found.bars if not bar.met]
    apps = ("MLP0", "MLP1", "LSTM0", "LSTM1")
    assert {bar.name for bar in found.bars} >= {f"{app}{what}" for app in apps for what in (" TOPS", ": weight stalls")}
    assert [row.id for row in found.results if row.group == "claimed"] == ["MLP0", "MLP1", "LSTM0"]


def test_layers_of_the_first_tpu_wait_as_long_as_its_counters_say() -> None:
    """Read-after-write stalls of table 3 over the layers of table 1: the same for applications of 4 to 58 layers.

    Each tile of 256 x 256 weights is active for a batch of cycles, twice that in the LSTMs, whose inputs have 16 bits.
    """
    machine = load_machine("tpu_v1").spec
    chip = build_chip(machine, "int8")
    assert chip.unit.handover is not None
    expected = float(chip.unit.handover.cycles(chip.clock_hz)) + chip.array.drain_cycles
    for row in read_table(shipped("tpu.csv"), ("app", "raw_pct")):
        tiles = float(row["weights_m"]) * 1e6 / 256**2 * float(row["active_pct"]) / float(row["useful_pct"])
        active = tiles * int(row["batch"]) * (2 if row["app"].startswith("LSTM") else 1)
        stalls = active * float(row["raw_pct"]) / float(row["active_pct"])
        layers = int(row["layers"]) + int(row["vector_layers"])
        assert stalls / layers == pytest.approx(expected, rel=0.08), row["app"]


def test_a_smaller_memory_bandwidth_misses_the_bars() -> None:
    """The check can fail: half the bandwidth gives half the speed of MLP0."""
    slow = load_machine("tpu_v1", ["dram.bandwidth=17 GB/s"]).spec
    assert speed(simulate(slow, stack([2000] * 6, 200))) / 1e12 < 0.8 * 12.3


def test_a_go_board_keeps_the_array_busy() -> None:
    outcome = simulate(load_machine("tpu_v1").spec, convolution(8, 19, 256))
    assert outcome.macs == 8 * 19 * 19 * 256 * 9 * 256
    assert speed(outcome) >= 0.75 * 92e12


@pytest.mark.parametrize(
    ("machine", "fmt", "published"),
    [
        ("tpu_v1", "int8", 92),
        ("tpu_v3", "bf16", 123),
        ("tpu_v4", "bf16", 275),
        ("edge_npu", "int8", 2.048),
        ("gemmini16", "int8", 0.512),
    ],
)
def test_peak_rates_are_the_published_ones(machine: str, fmt: str, published: float) -> None:
    """TPU v1: ISCA 2017; v3, v4: Google Cloud; Ethos-N57: WikiChip; Gemmini: 256 cells at 1 GHz."""
    chip = build_chip(load_machine(machine).spec, fmt)
    assert float(2 * chip.peak_macs_per_cycle * chip.clock_hz) / 1e12 == pytest.approx(published, rel=0.005)
