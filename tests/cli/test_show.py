"""`hwsim show` prints what will be simulated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from command_line import hwsim

from hwsim.catalog import load_machine, machine_names


def test_a_machine_at_a_glance_names_every_level_and_its_latency() -> None:
    outcome = hwsim("show", "course_cpu")
    assert outcome.code == 0
    for text in ("regs", "l1", "32 KiB", "0.5 ns", "l2", "256 KiB", "7 ns", "dram", "200 ns", "2 GHz"):
        assert text in outcome.out


@pytest.mark.parametrize("name", machine_names())
def test_resolved_yaml_loads_again_to_the_same_machine(tmp_path: Path, name: str) -> None:
    first = hwsim("show", name, "--resolved")
    assert first.code == 0
    file = tmp_path / "again.yaml"
    file.write_text(first.out)
    assert load_machine(file).spec == load_machine(name).spec
    assert hwsim("show", str(file), "--resolved").out == first.out


def test_resolved_yaml_fills_in_defaults() -> None:
    resolved = yaml.safe_load(hwsim("show", "course_cpu", "--resolved").out)
    l1 = next(level for level in resolved["memory"] if level["name"] == "l1")
    assert l1["write"] == "back"
    assert l1["prefetch"] == {"kind": "none", "degree": 1, "streams": 16}


def test_a_setting_changes_the_field_and_nothing_else() -> None:
    before = json.loads(hwsim("show", "course_cpu", "--json").out)
    after = json.loads(hwsim("show", "course_cpu", "--json", "--set", "core.l1.size=64 KiB").out)
    level = next(level for level in after["memory"] if level["name"] == "l1")
    assert level.pop("size") == "64 KiB"
    assert level["source"].pop("size") == "set on the command line"
    original = next(level for level in before["memory"] if level["name"] == "l1")
    original.pop("size")
    original["source"].pop("size")
    for data in (before, after):  # the price of an access follows the size
        del data["energy"]["actions"]["l1.read"], data["energy"]["actions"]["l1.write"]
    assert after == before


def test_a_perfect_cache_is_a_legal_setting() -> None:
    for word in ("inf", ".inf"):
        after = json.loads(hwsim("show", "course_cpu", "--json", "--set", f"l2.size={word}").out)
        assert next(level for level in after["memory"] if level["name"] == "l2")["size"] == "inf"


def test_a_workload_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text("format: 1\nname: small\ndescription: Small.\nop: matmul\nsizes: {m: 4, n: 8, k: 2}\n")
    outcome = hwsim("show", str(file), "--set", "sizes.n=16")
    assert outcome.code == 0
    assert "matmul" in outcome.out
    assert "n 16" in outcome.out
