"""Files are parsed and checked once for each text: the same text gives the same spec, another text another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwsim.catalog import load_machine, load_workload

VARIANT = """format: 1
name: mine
extends: course_cpu
description: a variant
memory:
  - name: l1
    ways: {ways}
"""


def test_the_same_text_is_the_same_spec() -> None:
    assert load_machine("course_cpu").spec is load_machine("course_cpu").spec
    assert load_machine("course_cpu", ["l1.ways=4"]).spec.caches[0].way_count == 4
    assert load_machine("course_cpu").spec.caches[0].way_count == 8
    assert load_workload("matmul_tiled").spec is load_workload("matmul_tiled").spec


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    for ways in (2, 4, 2):
        file.write_text(VARIANT.format(ways=ways))
        assert load_machine(file).spec.caches[0].way_count == ways


def test_prices_follow_the_table_that_is_found_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of the user's own, in the folder of the present, comes before the shipped one of the same name."""
    shipped = load_machine("course_cpu").spec
    assert shipped.energy is not None
    name = shipped.energy.table
    source = Path(__file__).resolve().parents[3] / "machines" / "energy" / f"{name}.yaml"
    folder = tmp_path / "machines" / "energy"
    folder.mkdir(parents=True)
    text = source.read_text()
    (folder / source.name).write_text(text.replace("description:", "description: mine,", 1))
    before = load_machine("course_cpu").spec
    monkeypatch.chdir(tmp_path)
    assert load_machine("course_cpu").spec is not before
