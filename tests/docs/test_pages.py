"""What the pages tell people to type works, in the order in which they tell it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hwsim.catalog import (
    ENERGY_TABLES,
    kind_of_file,
    load_energy_table_file,
    load_lesson_file,
    load_machine,
    load_workload,
)
from hwsim.cli.app import main
from hwsim.errors import SpecError
from hwsim.systems.spec import described_kind, load_described
from tests.docs.blocks import ROOT, Block, Command, blocks, commands, missing_line, page_name, pages, same_line

NOT_RUN = ("make", "git", "cd", "pip", "python3", "python", ".venv/bin/hwsim")
"""Commands that set up or leave the folder; what `make` is asked for is looked up in the Makefile."""
SHELL = re.compile(r"[|<>&;`$*]")


class Reader:
    """Someone who works through a page in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__page__"}
        programs = folder.with_name(f"{folder.name}-bin")
        programs.mkdir()
        program = programs / "hwsim"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hwsim "$@"\n', encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.environment = {
            **os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        }  # fmt: skip

    def follow(self, block: Block) -> None:
        if block.language == "console":
            self._type(block)
        elif block.language == "python" and block.mark.endswith(".py"):
            (self.folder / block.mark).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * block.line + block.text, block.page, "exec"), self.names)
        elif block.language in ("yaml", "din"):
            self._write(block)

    def _type(self, block: Block) -> None:
        found = commands(block)
        expected = re.fullmatch(r".*\bexit=(\d+)", block.mark)
        for number, command in enumerate(found, start=1):
            wanted = int(expected[1]) if expected and number == len(found) else 0
            code, output = self._run(command)
            assert code == wanted, f"{block.place}: {command.text} ended with {code}:\n{output}"
            if "shown" in block.mark.split():
                line = missing_line(output, command.shown)
                assert line is None, f"{block.place}: {command.text} does not print\n{line}\nbut\n{output}"

    def _run(self, command: Command) -> tuple[int, str]:
        program = command.text.split()[0]
        if program in NOT_RUN:
            return 0, ""
        if program == "hwsim" and not SHELL.search(command.text):
            output = io.StringIO()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                code = main(shlex.split(command.text)[1:])
            return code, output.getvalue()
        done = subprocess.run(
            ["sh", "-c", command.text],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout

    def _write(self, block: Block) -> None:
        named = block.mark not in ("", "planned", "refused")
        path = self.folder / (block.mark if named else f"block{block.line}.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        if block.language != "yaml" or not block.text.startswith("format: 1"):
            return
        if path.parent.name == ENERGY_TABLES:
            load_energy_table_file(path)
        elif path.parent.name == "lessons":
            load_lesson_file(path)
        elif (kind := described_kind(str(path))) is not None:
            load_described(kind, str(path))
        elif block.mark == "planned":
            assert refused_fields(path) == {"kind"}, block.place
        else:
            load_machine(path) if kind_of_file(path) == "machine" else load_workload(path)


def refused_fields(path: Path) -> set[str]:
    """The last words of the fields of a machine file that are wrong."""
    try:
        load_machine(path)
    except SpecError as error:
        return {problem.field.split(".")[-1] for problem in error.problems}
    return set()


@pytest.mark.parametrize("path", pages(), ids=page_name)
def test_a_reader_can_follow_the_page(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    monkeypatch.chdir(folder)
    reader = Reader(folder)
    for block in blocks(page_name(path), path.read_text(encoding="utf-8")):
        reader.follow(block)


@pytest.mark.parametrize("path", pages(), ids=page_name)
def test_make_targets_that_pages_name_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    asked = set(re.findall(r"(?:^\$ |^ {4}|`)make ([a-z]+)", text, re.MULTILINE))
    assert asked <= targets


def test_the_pages_hold_something_to_run() -> None:
    kinds = [block.language for path in pages() for block in blocks("", path.read_text(encoding="utf-8"))]
    assert min(kinds.count(kind) for kind in ("console", "python", "yaml")) >= 3


class TestTheReaderObjects:
    """A check that cannot fail checks nothing."""

    def follow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        folder = tmp_path / "reader"
        folder.mkdir()
        monkeypatch.chdir(folder)
        reader = Reader(folder)
        for block in blocks("page.md", text):
            reader.follow(block)

    @pytest.mark.parametrize(
        "text",
        [
            "```console\n$ hwsim nonsense\n```",
            "```console\n$ hwsim list | grep nonsense\n```",
            "```console\n$ nonsense\n```",
            "```console exit=2\n$ hwsim list\n```",
            "```console shown\n$ hwsim --version\nhwsim 99\n```",
        ],
    )
    def test_to_a_command_that_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        with pytest.raises(AssertionError, match=r"page\.md:1"):
            self.follow(tmp_path, monkeypatch, text)

    def test_to_python_that_raises(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ZeroDivisionError):
            self.follow(tmp_path, monkeypatch, "```python\n1 / 0\n```")

    @pytest.mark.parametrize("mark", ["", " machines/my.yaml"])
    def test_to_yaml_that_does_not_load(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
        with pytest.raises(SpecError):
            self.follow(tmp_path, monkeypatch, f"```yaml{mark}\nformat: 1\nname: my\nclocks: []\n```")

    def test_to_a_planned_machine_with_another_fault(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(AssertionError):
            self.follow(tmp_path, monkeypatch, "```yaml planned\nformat: 1\nname: my\nclocks: []\n```")

    def test_to_a_block_that_is_never_closed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ValueError, match="never closed"):
            self.follow(tmp_path, monkeypatch, "```console\n$ hwsim list\n")


def test_shown_lines_are_looked_for_in_order() -> None:
    assert missing_line("a  b\nc\nd\n", ("a b", "...", "d")) is None
    assert missing_line("a\nb\n", ("b", "a")) == "a"


def test_shown_errors_may_differ_by_what_the_order_of_sums_makes_and_no_more() -> None:
    shown = "verified: rms 1.3e-07 over 64 numbers"
    assert same_line(shown, "verified:  rms 1.7e-07 over 64 numbers")
    assert same_line(shown, "verified:  rms 1.0e-07 over 64 numbers")
    assert not same_line(shown, "verified: rms 1.8e-07 over 64 numbers")
    assert not same_line(shown, "verified: rms 9.0e-08 over 64 numbers")
    narrow = "verified: rms 2.9e-03 over 64 numbers"
    assert same_line(narrow, "verified: rms 3.0e-03 over 64 numbers")
    assert not same_line(narrow, "verified: rms 3.1e-03 over 64 numbers")
    assert not same_line(narrow, "verified: rms 2.9e-04 over 64 numbers")
    shown = "verified: rms 1.1e-07 over 64 numbers"
    assert not same_line(shown, "verified: rms 1.1e-07 over 65 numbers")
    assert not same_line(shown, "verified: rms 0 over 64 numbers")
