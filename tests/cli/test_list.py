"""`hwsim list` finds what comes with hwsim, and what lies in the user's own folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import hwsim

VARIANT = "format: 1\nname: {name}\ndescription: {description}\nextends: course_cpu\n"
WORKLOAD = "format: 1\nname: small\ndescription: A small product.\nop: matmul\nsizes: {m: 4, n: 4, k: 4}\n"


def test_shipped_machines_are_listed_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = hwsim("list", "machines")
    assert outcome.code == 0
    assert "course_cpu" in outcome.out


def test_own_machines_and_workloads_are_listed_with_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "machines").mkdir()
    (tmp_path / "workloads").mkdir()
    (tmp_path / "machines" / "mine.yaml").write_text(VARIANT.format(name="mine", description="My machine."))
    (tmp_path / "workloads" / "small.yaml").write_text(WORKLOAD)
    data = json.loads(hwsim("list", "--json").out)
    mine = next(entry for entry in data["machines"] if entry["name"] == "mine")
    assert mine["description"] == "My machine."
    assert mine["from"] == "machines/mine.yaml"
    course = next(entry for entry in data["machines"] if entry["name"] == "course_cpu")
    assert course["from"] == "hwsim"
    assert "small" in [entry["name"] for entry in data["workloads"]]


def test_the_users_own_file_wins_over_a_shipped_one_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "machines").mkdir()
    shipped = hwsim("show", "course_cpu", "--resolved").out
    (tmp_path / "machines" / "course_cpu.yaml").write_text(shipped.replace("size: 32 KiB", "size: 16 KiB"))
    assert "size: 16 KiB" in hwsim("show", "course_cpu", "--resolved").out


def test_a_broken_file_is_listed_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "machines").mkdir()
    (tmp_path / "machines" / "broken.yaml").write_text("format: 3\n")
    outcome = hwsim("list", "machines")
    assert outcome.code == 0
    assert "hwsim check broken" in outcome.out


def test_only_what_is_asked_for_is_listed() -> None:
    assert list(json.loads(hwsim("list", "machines", "--json").out)) == ["machines"]
    assert list(json.loads(hwsim("list", "workloads", "--json").out)) == ["workloads"]
