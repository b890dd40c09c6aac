"""gemmini16 against clocked RTL (ucb-bar/dosa, firesim_test_dataset.csv)."""

from __future__ import annotations

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
