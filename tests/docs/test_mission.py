"""Every row of the mission has a place that shows it, each command is run, and its output has what it has to show."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from hwsim.catalog import find_lesson, lesson_names, load_lesson_file
from hwsim.cli.app import COMMANDS, main
from tests.docs.blocks import ROOT

COUNTS = {"M": 9, "A": 18, "T": 23, "S": 14, "V": 6, "P": 9, "C": 8, "N": 8, "L": 7, "E": 16, "H": 5, "D": 6, "X": 7}
"""Rows of each part of the notes; 136 in all."""


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_learning", ROOT / "docs" / "generate_learning.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()
ROWS = {row: entry for rows in GENERATOR.mission_rows().values() for row, entry in rows.items()}
TYPED = {row: entry for row, entry in ROWS.items() if entry[1].lstrip("! ").startswith("hwsim ")}
GROUPS = sorted({"".join(c for c in row if c.isalpha()) for row in TYPED})


@pytest.fixture(autouse=True)
def _own_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwsim.cli.run.last_run_files", lambda: [tmp_path / "last-run.json"])


@cache
def output_of(commands: str) -> tuple[int, str]:
    """The exit code and all that the last of some commands prints, blanks counted as one; each is run once."""
    code, text = 0, ""
    for command in commands.split(" && "):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(shlex.split(command)[1:])
        text = " ".join(out.getvalue().split())
    return code, text


def test_all_136_rows_are_there() -> None:
    assert set(ROWS) == {f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)}


@pytest.mark.parametrize("group", GROUPS)
def test_commands_show_their_rows(group: str) -> None:
    for row, (_, place, *wanted) in TYPED.items():
        if row.rstrip("0123456789") != group:
            continue
        code, text = output_of(place.removeprefix("! "))
        assert code == (2 if place.startswith("! ") else 0), f"{row}: {place}: {text[:300]}"
        for fragment in wanted:
            assert str(fragment) in text, f"{row}: {place} does not print {fragment}"


def test_every_command_exists() -> None:
    assert {entry[1].removeprefix("! ").split()[1] for entry in TYPED.values()} <= set(COMMANDS)


def test_lessons_name_the_rows_that_they_show() -> None:
    named = {name: set(load_lesson_file(find_lesson(name)).rows) for name in lesson_names()}
    for row, (_, place, *_) in ROWS.items():
        if place.startswith("lesson "):
            assert row in named[place.removeprefix("lesson ")], row
    assert set().union(*named.values()) <= set(ROWS)


def test_pages_and_examples_exist() -> None:
    for row, (_, place, *_) in ROWS.items():
        if place.startswith(("docs/", "examples/")):
            assert (ROOT / place).is_file(), row


def test_numpy_beside_the_simulation_prints_both() -> None:
    """V5: measured time is printed beside simulated time, and said to be measured."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "numpy_beside.py", "32"],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT), "PATH": ""}, timeout=60,
    )  # fmt: skip
    assert "NumPy" in done.stdout
    assert "naive" in done.stdout


@pytest.mark.parametrize("name", GENERATOR.PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    committed = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert committed == GENERATOR.PAGES[name](), f"docs/{name} is old; run: make docs"
