"""Variants: what a file changes, what it keeps, and which source each number ends up with."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwsim.catalog import load_machine
from hwsim.spec.load import LoadedMachine


@pytest.fixture
def variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)

    def load(text: str, extends: str = "course_cpu", name: str = "variant") -> LoadedMachine:
        file = tmp_path / f"{name}.yaml"
        file.write_text(f"format: 1\nname: {name}\nextends: {extends}\n{text}")
        return load_machine(file)

    return load


def test_only_the_named_fields_change(variant) -> None:  # type: ignore[no-untyped-def]
    base = load_machine("course_cpu").spec
    spec = variant("memory:\n  - name: l1\n    ways: 4\n").spec
    assert spec.name == "variant"
    assert spec.level("l1").ways == 4
    assert spec.level("l1").size == base.level("l1").size
    assert spec.memory[2:] == base.memory[2:]
    assert spec.clocks == base.clocks


def test_groups_inside_a_part_are_merged(variant) -> None:  # type: ignore[no-untyped-def]
    unit = variant("compute:\n  - name: core\n    ports: {fma: 2}\n").spec.compute[0]
    assert (unit.ports.fma, unit.ports.load) == (2, 2)


def test_a_new_level_goes_where_it_says(variant) -> None:  # type: ignore[no-untyped-def]
    spec = variant("memory:\n  - {name: l3, after: l2, kind: cache, size: 8 MiB, ways: 16, latency: 20 ns}\n").spec
    assert [level.name for level in spec.memory] == ["regs", "l1", "l2", "l3", "dram"]


def test_a_part_can_be_removed(variant) -> None:  # type: ignore[no-untyped-def]
    spec = variant("memory:\n  - {name: l2, remove: true}\nenergy: null\n").spec
    assert [level.name for level in spec.memory] == ["regs", "l1", "dram"]
    assert spec.energy is None


def test_another_kind_replaces_the_part(variant) -> None:  # type: ignore[no-untyped-def]
    spec = variant("memory:\n  - {name: l1, kind: scratchpad, size: 64 KiB}\n").spec
    assert spec.level("l1").kind == "scratchpad"


def test_null_takes_a_value_away(variant) -> None:  # type: ignore[no-untyped-def]
    assert variant("memory:\n  - {name: l1, bandwidth: null}\n").spec.level("l1").bandwidth is None


def test_variants_of_variants_and_paths_relative_to_the_file(variant, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    variant("memory:\n  - {name: l1, ways: 4}\n", name="first")
    loaded = variant("memory:\n  - {name: l2, ways: 4}\n", extends="first.yaml", name="second")
    assert (loaded.spec.level("l1").ways, loaded.spec.level("l2").ways) == (4, 4)
    assert [file.stem for file in loaded.files] == ["second", "first", "course_cpu"]
    assert loaded.places["l1.ways"].file == "first.yaml"
    assert loaded.places["l2.ways"].file == "second.yaml"
    assert loaded.places["l2.size"].file.endswith("course_cpu.yaml")


def test_a_changed_number_loses_the_source_of_the_old_one(variant) -> None:  # type: ignore[no-untyped-def]
    loaded = variant("memory:\n  - {name: l1, ways: 4, replacement: fifo}\n")
    assert loaded.unsourced == ("l1.ways",)
    assert loaded.sources["l1.size"] == load_machine("course_cpu").sources["l1.size"]


def test_the_source_of_a_variant_covers_what_the_variant_wrote(variant) -> None:  # type: ignore[no-untyped-def]
    loaded = variant("memory:\n  - {name: l1, ways: 4, source: a hunch}\n")
    assert loaded.unsourced == ()
    assert loaded.sources["l1.ways"] == "a hunch"
    assert loaded.sources["l1.size"] != "a hunch"


def test_a_part_that_changes_no_number_keeps_its_source(variant) -> None:  # type: ignore[no-untyped-def]
    loaded = variant("memory:\n  - {name: l1, replacement: fifo}\n")
    assert loaded.spec.level("l1").source == load_machine("course_cpu").spec.level("l1").source
