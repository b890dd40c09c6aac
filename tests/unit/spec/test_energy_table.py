"""Energy tables: published numbers as published, what lies between them, and errors that name what is missing."""

from __future__ import annotations

from math import exp, log
from pathlib import Path

import pytest

import hwsim
from hwsim.catalog import energy_table_names, load_energy_table, load_machine
from hwsim.energy import resolve_table, sram_price
from hwsim.errors import CatalogError, InputError, SpecError

KIB = 1024


def table(name: str):  # type: ignore[no-untyped-def]
    return resolve_table(load_energy_table(name), load_energy_table)


@pytest.mark.parametrize(
    ("operation", "picojoules"),
    [  # Horowitz, ISSCC 2014
        ("add.int8", 0.03), ("add.int32", 0.1), ("add.fp16", 0.4), ("add.fp32", 0.9),
        ("mul.int8", 0.2), ("mul.int32", 3.1), ("mul.fp16", 1.1), ("mul.fp32", 3.7),
    ],
)  # fmt: skip
def test_45_nm_is_as_horowitz_printed_it(operation: str, picojoules: float) -> None:
    assert float(table("cmos_45nm").operations[operation].energy.picojoules) == picojoules


@pytest.mark.parametrize(
    ("operation", "picojoules"),  # Jouppi et al., ISCA 2021, table 2
    [("mul.int8", 0.07), ("add.int32", 0.03), ("mul.bf16", 0.21), ("add.fp32", 0.38), ("mul.fp32", 1.31)],
)
def test_7_nm_is_as_jouppi_printed_it(operation: str, picojoules: float) -> None:
    assert float(table("cmos_7nm").operations[operation].energy.picojoules) == picojoules


def test_between_two_nodes_prices_lie_on_a_straight_line_of_logarithms() -> None:
    share = log(45 / 16) / log(45 / 7)
    expected = exp((1 - share) * log(3.7) + share * log(1.31))
    price = table("cmos_16nm").operations["mul.fp32"]
    assert float(price.energy.picojoules) == pytest.approx(expected, rel=1e-3)
    assert "45 nm" in price.source
    assert "7 nm" in price.source
    assert price.source.startswith("assumption:")


def test_what_is_published_for_a_node_goes_before_what_lies_between() -> None:
    assert float(table("cmos_28nm").operations["add.int16"].energy.picojoules) == 0.032  # Dally, Hot Chips 2023


@pytest.mark.parametrize("kib", [8, 16, 32, 64, 128, 256, 512, 1024])
def test_sram_follows_the_law_of_the_three_published_sizes(kib: int) -> None:
    # 10 pJ x (KiB/8)^0.475 for 64 bits, which goes through the points within 4 %
    price = sram_price(table("cmos_45nm"), kib * KIB)
    assert price is not None
    assert 64 * float(price.read.picojoules) == pytest.approx(10 * (kib / 8) ** 0.475, rel=0.04)


def test_published_sizes_are_exact() -> None:
    prices = [sram_price(table("cmos_45nm"), kib * KIB) for kib in (8, 32, 1024)]
    assert [64 * float(price.read.picojoules) for price in prices if price] == [10, 20, 100]


def test_estimates_say_that_they_are() -> None:
    for name in ("cmos_45nm", "cmos_7nm"):
        for operation, price in table(name).operations.items():
            if any(word in operation for word in ("fp8_", "fp6_", "fp4_", "mxfp", "int4")):
                assert price.source.startswith("assumption: not published"), operation


def test_main_memory_has_its_device_and_controller_apart() -> None:
    kinds = table("dram").dram
    assert {"ddr3", "ddr4", "ddr5", "lpddr4", "lpddr5", "gddr6", "hbm2", "hbm2e", "hbm3"} <= set(kinds)
    measured = kinds["hbm2e"].device.picojoules + kinds["hbm2e"].controller.picojoules
    assert float(measured) == pytest.approx(13.11)  # Antepara et al., SC 2025, A100


def test_a_price_in_the_file_goes_before_the_table() -> None:
    spec = load_machine("course_cpu", ["energy.actions.core.mul.fp32.energy=5 pJ"]).spec
    assert spec.energy is not None
    assert float(spec.energy.actions["core.mul.fp32"].energy.picojoules) == 5
    assert spec.energy.actions["core.mul.fp32"].source == "set on the command line"
    assert "Horowitz" in spec.energy.actions["core.mul.fp16"].source


def test_prices_follow_the_size_of_a_cache() -> None:
    small, large = (load_machine("course_cpu", [f"l2.size={size} KiB"]).spec for size in (256, 1024))
    assert small.energy is not None
    assert large.energy is not None
    assert float(large.energy.actions["l2.read"].energy.picojoules) == 1.5625
    assert small.energy.actions["l2.read"].energy.picojoules < large.energy.actions["l2.read"].energy.picojoules


def test_the_controller_is_a_line_of_its_own() -> None:
    result = hwsim.run("course_cpu", "matmul", n=32, tile=16, set={"energy.dram": "hbm2"})
    assert result.energy_by_cause is not None
    lines = result.energy_by_cause["memory"]
    bits = lines["dram.read"]["count"]
    assert lines["dram.read.controller"]["count"] == bits
    assert lines["dram.read.controller"]["joules"] == pytest.approx(bits * 9.14e-12)


def test_a_node_that_is_not_the_tables_is_refused() -> None:
    with pytest.raises(InputError, match=r"is for 45 nm, and energy\.node is 7 nm; name a table of that node"):
        load_machine("course_cpu", ["energy.node=7 nm"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("energy.table=cmos_45", "there is no energy table 'cmos_45'; did you mean 'cmos_45nm'"),
        ("energy.instruction=inorder", "not in energy table cmos_45nm; it has in_order"),
        ("energy.dram=ddr9", "it has lpddr, lpddr4"),
    ],
)
def test_a_wrong_name_tells_the_right_ones(setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_machine("course_cpu", [setting])


def test_a_price_that_no_table_has_stops_the_run_and_is_named() -> None:
    settings = {"energy.table": "cmos_5nm", "energy.node": "5 nm", "energy.instruction": "null"}
    with pytest.raises(InputError, match=r"no energy price for core\.fma\.fp32.*add energy\.actions\.core\.fma\.fp32"):
        hwsim.run("course_cpu", "matmul", n=16, tile=16, set=settings)


def test_a_table_of_ones_own_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "machines" / "energy"
    folder.mkdir(parents=True)
    text = "format: 1\nname: mine\ndescription: Mine.\nnode: 45 nm\nbetween: [cmos_7nm, cmos_45nm]\n"
    (folder / "mine.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert "mine" in energy_table_names()
    with pytest.raises(InputError, match="its node must lie between"):
        load_machine("course_cpu", ["energy.table=mine"])
    (folder / "mine.yaml").write_text(text.replace("node: 45 nm", "nodes: 45 nm"), encoding="utf-8")
    with pytest.raises(SpecError, match=r"mine\.yaml:4: nodes: unknown field; did you mean 'node'"):
        load_energy_table("mine")
    with pytest.raises(CatalogError):
        load_energy_table("nothing")
