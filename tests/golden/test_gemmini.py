"""gemmini16 against clocked RTL (ucb-bar/dosa, firesim_test_dataset.csv)."""

from __future__ import annotations

import pytest

from hwsim.api import run_all
from hwsim.validation.gemmini import nest_choices, validate
from hwsim.validation.report import Report
from hwsim.validation.table import read_table, shipped


def test_a_nest_is_read_level_by_level() -> None:
    path = shipped("gemmini.csv")
    record = {**read_table(path, ())[0], "mapping": "L3[WIO] K8 P2 - L2[WI] N1 K16X - L1[O] C4 P8 C16X - L0[W] P16"}
    assert nest_choices(path, record) == {
        "mapping.tile_m": 8 * 16, "mapping.tile_n": 16, "mapping.tile_k": 4 * 16, "mapping.order": "nmk",
    }  # fmt: skip


def test_the_mapper_is_no_slower_than_the_tiling_of_the_library() -> None:
    *_, report = validate(count=1)
    assert isinstance(report, Report)
    assert report.bars[0].met
    assert report.total.mape < 0.5


def test_a_run_of_few_bytes_takes_a_whole_request_and_its_share_of_a_page() -> None:
    """Tiles of 16 columns of a matrix of 1024: each row is a request of 64 B, and four rows share a page of 4 KiB."""
    sizes = {"m": 16, "n": 1024, "k": 1024, "precision": "int8", "packed": False}
    cut = {"mapping.tile_n": 16, "mapping.order": "nkm"}
    narrow = run_all("gemmini16", "matmul", math=False, parameters={**sizes, **cut}).result
    rows, bytes_per_cycle, page_cycles = 1024 * 64, 9, 20
    loads = rows * (64 / bytes_per_cycle + page_cycles / 4)
    assert narrow.cycles == pytest.approx(loads, rel=0.1)
