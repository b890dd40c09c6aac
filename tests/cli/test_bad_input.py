"""Bad inputs, one row each: exit code 2, the right file and line, a helpful message, never a traceback."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import Outcome, hwsim, hwsim_process

GOOD = """\
format: 1
name: tiny
description: A small machine that is right.
clocks:
  - name: core
    frequency: 2 GHz
compute:
  - name: core
    kind: cpu
    count: 4
    issue_width: 2
memory:
  - name: l1
    kind: cache
    size: 32 KiB
    ways: 8
    line: 64 B
    replacement: lru
  - name: l2
    kind: cache
    size: 256 KiB
    ways: 8
  - name: dram
    kind: dram
    shared_by: all
    latency: 100 ns
energy:
  node: 45 nm
  actions:
    l1.read: {energy: 10 pJ, source: a book}
"""


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


@dataclass(frozen=True)
class Bad:
    """A change to the good file, and what must be said about it, at the line of the changed text."""

    old: str
    new: str
    says: str
    at: str = ""
    """A text on the line that must be named, where that is not the new text's first line."""


EDITS = {
    "misspelt value": Bad(
        "replacement: lru",
        "replacement: lruu",
        "l1.replacement: 'lruu' is not one of fifo, lru, plru, random, srrip; did you mean 'lru'?",
    ),
    "misspelt field": Bad(
        "replacement: lru", "replacment: lru", "l1.replacment: unknown field; did you mean 'replacement'?"
    ),
    "unknown field at the top": Bad("energy:\n", "enrgy: 3\nenergy:\n", "enrgy: unknown field; did you mean 'energy'?"),
    "misspelt extends": Bad(
        "energy:\n", "extend: course_cpu\nenergy:\n", "extend: unknown field; did you mean 'extends'?"
    ),
    "unknown kind of level": Bad(
        "    kind: dram",
        "    kind: dramm",
        "dram.kind: 'dramm' is not one of cache, dram, registers, scratchpad, storage; did you mean 'dram'?",
    ),
    "missing kind": Bad("    kind: dram\n", "", "dram.kind: missing", "- name: dram"),
    "KB is ambiguous": Bad(
        "size: 32 KiB", "size: 32 KB", "'32 KB' is ambiguous; write '32 KiB' (32768 B) or '32 kB' (32000 B)"
    ),
    "no unit": Bad("size: 32 KiB", "size: 32768", "l1.size: 32768 has no unit; write a size such as '32 KiB'"),
    "no unit, with exponent": Bad(
        "frequency: 2 GHz",
        "frequency: 2e9",
        "clock.core.frequency: 2000000000.0 has no unit; write a frequency",
    ),
    "wrong unit": Bad("latency: 100 ns", "latency: 100 KiB", "dram.latency: '100 KiB' has the unknown unit 'KiB'"),
    "unit in the wrong case": Bad("frequency: 2 GHz", "frequency: 2 ghz", "did you mean 'GHz'?"),
    "negative size": Bad("size: 32 KiB", "size: -32 KiB", "l1.size: '-32 KiB' must be more than 0"),
    "zero size": Bad("size: 256 KiB", "size: 0 B", "l2.size: '0 B' must be more than 0"),
    "half a byte": Bad("line: 64 B", "line: 0.5 B", "l1.line: '0.5 B' is not a whole number of bytes"),
    "size beyond all addresses": Bad(
        "size: 256 KiB", "size: 1e40 B", "l2.size: '1e40 B' is more than can be addressed; write inf"
    ),
    "line of 48 bytes": Bad("line: 64 B", "line: 48 B", "l1.line: 48 B is not a power of two from 4 B to 4 KiB"),
    "no ways": Bad("ways: 8\n    line", "ways: 0\n    line", "l1.ways: must be at least 1 or 'full', found 0"),
    "ways that do not divide": Bad(
        "ways: 8\n    line",
        "ways: 7\n    line",
        "l1.size: 32 KiB does not divide into whole sets of 7 ways x 64 B; the nearest is 32704 B or 33152 B",
        "size: 32 KiB",
    ),
    "ways as a word": Bad(
        "ways: 8\n    line",
        "ways: ful\n    line",
        "l1.ways: must be a whole number or 'full', found 'ful'; did you mean 'full'?",
    ),
    "plru with 12 ways": Bad(
        "size: 256 KiB\n    ways: 8",
        "size: 384 KiB\n    replacement: plru\n    ways: 12",
        "l2.ways: plru needs 1, 2, 4, 8, 16, 32 or 64 ways, found 12",
        "ways: 12",
    ),
    "outer cache smaller": Bad("size: 256 KiB", "size: 16 KiB", "l2.size: 16 KiB is smaller than l1.size (32 KiB)"),
    "outer line smaller": Bad(
        "size: 256 KiB", "line: 32 B\n    size: 256 KiB", "l2.line: 32 B is smaller than l1.line (64 B)"
    ),
    "exclusive, written through": Bad(
        "size: 256 KiB",
        "inclusion: exclusive\n    write: through\n    size: 256 KiB",
        "l2.write: an exclusive cache must write back",
        "write: through",
    ),
    "no main memory": Bad(
        "  - name: dram\n    kind: dram\n    shared_by: all\n    latency: 100 ns\n",
        "",
        "memory: has no level of kind dram",
        "memory:",
    ),
    "a level behind main memory": Bad(
        "energy:\n",
        "  - {name: l3, kind: cache, size: 1 MiB, ways: 8, shared_by: all}\nenergy:\n",
        "l3.kind: only storage can lie behind 'dram'",
    ),
    "two parts of one name": Bad(
        "name: l2",
        "name: l1",
        "l1.name: 'l1' is already the name of a part in memory",
        "- name: l1\n    kind: cache\n    size: 256",
    ),
    "name with a capital": Bad(
        "name: l2",
        "name: L2",
        "'L2' is not a name: lower-case letters, digits and '_', starting with a letter; did you mean 'l2'?",
    ),
    "unknown clock": Bad(
        "shared_by: all",
        "clock: cor\n    shared_by: all",
        "dram.clock: there is no clock 'cor'; this machine has core; did you mean 'core'?",
    ),
    "shared by more than there are": Bad(
        "shared_by: all", "shared_by: 8", "dram.shared_by: 8 is more than the machine's 4 compute units"
    ),
    "shared by a part of the cores": Bad(
        "shared_by: all",
        "shared_by: 3",
        "dram.shared_by: 3 does not divide the machine's 4 compute units evenly",
    ),
    "mapping without bank": Bad(
        "shared_by: all",
        "mapping: row:rank:column:channel\n    shared_by: all",
        "dram.mapping: 'row:rank:column:channel' lacks bank",
    ),
    "latency that shrinks outwards": Bad(
        "replacement: lru",
        "latency: 101 ns",
        "dram.latency: 100 ns is shorter than l1.latency (101 ns)",
        "latency: 100 ns",
    ),
    "price of an unknown part": Bad(
        "l1.read:", "l11.read:", "energy.actions.l11.read: 'l11' is no level or unit of this machine"
    ),
    "source for an unknown field": Bad(
        "replacement: lru",
        "source: {sise: a book}",
        "l1.source.sise: no such field to give a source for; did you mean 'size'?",
    ),
    "missing required field": Bad(
        "    issue_width: 2\n",
        "",
        "core.issue_width: missing; it is: Instructions that can start in one cycle.",
        "- name: core\n    kind",
    ),
    "empty value": Bad("issue_width: 2", "issue_width:", "core.issue_width: is empty; it must be a whole number"),
    "number as a float": Bad(
        "count: 4",
        "count: 4.0",
        "core.count: must be a whole number without point or exponent (4), found 4.0",
    ),
    "yes is not a boolean": Bad(
        "replacement: lru", "write_allocate: yes", "l1.write_allocate: must be true or false, found 'yes'"
    ),
    "list where fields belong": Bad(
        "  node: 45 nm\n  actions:\n    l1.read: {energy: 10 pJ, source: a book}\n",
        "  - 45 nm\n",
        "energy: must be a group of fields, found a list",
        "energy:",
    ),
    "fields where a list belongs": Bad(
        "  - name: core\n    frequency: 2 GHz\n",
        "  core: 2 GHz\n",
        "clocks: must be a list, found a group of fields",
        "clocks:",
    ),
    "wrong format": Bad("format: 1", "format: 2", "format: 2 is not 1"),
    "equal keys": Bad(
        "replacement: lru", "ways: 4", "'ways' is already given on line 16; keep one of the two", "ways: 4"
    ),
    "key that is a number": Bad("replacement: lru", "8: ways", "a field name is text, found 8"),
    "anchor": Bad("size: 32 KiB", "size: &big 32 KiB", "'&big' is an anchor"),
    "tag": Bad("size: 32 KiB", "size: !!str 32 KiB", "is a tag"),
    "tab indentation": Bad("    replacement: lru", "\treplacement: lru", "a tab is used for indentation"),
    "unbalanced bracket": Bad(
        "{energy: 10 pJ, source: a book}", "{energy: 10 pJ, source: a book", "not valid YAML", "l1.read"
    ),
    "second document": Bad("energy:\n", "---\nenergy:\n", "a second document begins", "energy:"),
    "control character": Bad("A small", "A \x07small", "control character U+0007"),
    "after without extends": Bad(
        "replacement: lru",
        "after: l2",
        "l1.after: 'after' is only for the parts of a file that has 'extends'",
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_refused(outcome: Outcome, *parts: str) -> None:
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err + outcome.out
    for part in parts:
        assert part in outcome.err, outcome.err


def test_the_file_that_the_table_changes_is_right(folder: Path) -> None:
    (folder / "tiny.yaml").write_text(GOOD)
    assert hwsim("check", "tiny.yaml").code == 0


@pytest.mark.parametrize("name", EDITS)
def test_one_wrong_thing_is_reported_with_its_line(folder: Path, name: str) -> None:
    bad = EDITS[name]
    assert GOOD.count(bad.old) == 1
    text = GOOD.replace(bad.old, bad.new)
    (folder / "tiny.yaml").write_text(text)
    line = line_of(text, bad.at or bad.new.lstrip("\n"))
    outcome = hwsim("check", "tiny.yaml")
    assert_refused(outcome, f"tiny.yaml:{line}: ", bad.says)
    assert outcome.err.count("error:") == 1, outcome.err


def test_all_problems_of_a_file_come_at_once_in_line_order(folder: Path) -> None:
    text = GOOD.replace("count: 4", "count: 0").replace("lru", "lruu").replace("size: 256 KiB", "size: 256100 B")
    (folder / "tiny.yaml").write_text(text)
    outcome = hwsim("check", "tiny.yaml")
    places = [line.split(": ")[1] for line in outcome.err.splitlines()]
    wanted = [line_of(text, part) for part in ("count: 0", "replacement: lruu", "size: 256100 B")]
    assert places == [f"tiny.yaml:{line}" for line in wanted]


WHOLE_FILES = {
    "empty": (b"", "bad.yaml:1: the file is empty"),
    "only a comment": (b"# nothing here\n", "bad.yaml:1: the file is empty"),
    "binary": (b"\x7fELF\x00\x01\x02", "bad.yaml:1: a binary file"),
    "not UTF-8": (b"format: 1\nname: caf\xe9\n", "bad.yaml:2: not UTF-8 text (byte 0xe9)"),
    "a list": (b"- format: 1\n", "bad.yaml:1: found a list"),
    "a word": (b"machine\n", "bad.yaml:1: found only 'machine'"),
    "neither machine nor workload": (b"format: 1\nname: x\n", "bad.yaml:1: neither a machine"),
    "nested too deeply": (b"[" * 60 + b"]" * 60, "bad.yaml:1: nested more than"),
    "workload with an unknown precision": (
        b"format: 1\nname: w\ndescription: d\nop: matmul\nsizes: {n: 4}\nprecision: fp23\n",
        "bad.yaml:6: precision: 'fp23' is not one of",
    ),
    "workload with an unknown operation": (
        b"format: 1\nname: w\ndescription: d\nop: matmull\n",
        "bad.yaml:4: op: 'matmull' is not one of",
    ),
    "workload with a size of zero": (
        b"format: 1\nname: w\ndescription: d\nop: matmul\nsizes:\n  n: 0\n",
        "bad.yaml:6: sizes.n: must be at least 1, found 0",
    ),
}


@pytest.mark.parametrize("name", WHOLE_FILES)
def test_a_file_that_is_something_else_is_refused(folder: Path, name: str) -> None:
    content, says = WHOLE_FILES[name]
    (folder / "bad.yaml").write_bytes(content)
    assert_refused(hwsim("check", "bad.yaml"), says)


def test_a_file_of_100_megabytes_is_refused_without_being_read(folder: Path) -> None:
    with (folder / "big.yaml").open("wb") as stream:
        stream.truncate(100_000_000)
    assert_refused(hwsim("check", "big.yaml"), "big.yaml: larger than 1 MB")


def test_missing_files_folders_and_names_are_refused(folder: Path) -> None:
    (folder / "sub").mkdir()
    assert_refused(hwsim("check", "nowhere.yaml"), "nowhere.yaml: no such file")
    assert_refused(hwsim("check", "./sub"), "sub: this is a folder")
    assert_refused(
        hwsim("show", "course_cpi"),
        "there is no machine or workload 'course_cpi'",
        "did you mean 'course_cpu'?",
    )
    assert_refused(hwsim("check", "course_cpi"), "did you mean 'course_cpu'?")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_an_unreadable_file_is_refused(folder: Path) -> None:
    (folder / "secret.yaml").write_text(GOOD)
    (folder / "secret.yaml").chmod(0)
    assert_refused(hwsim("check", "secret.yaml"), "secret.yaml: cannot be read: Permission denied")


VARIANTS = {
    "cycle": (
        {"a": "extends: b.yaml", "b": "extends: a.yaml"},
        "b.yaml:3: extends: goes round in a circle: a.yaml → b.yaml → a.yaml",
    ),
    "itself": ({"a": "extends: ./a.yaml"}, "a.yaml:3: extends: goes round in a circle: a.yaml → a.yaml"),
    "unknown name": ({"a": "extends: course_cpi"}, "a.yaml:3: extends: there is no machine 'course_cpi'"),
    "missing file": ({"a": "extends: gone.yaml"}, "a.yaml:3: extends: there is no file 'gone.yaml'"),
    "unknown grandparent": ({"a": "extends: b.yaml", "b": "extends: ghost"}, "(in a.yaml → b.yaml → ghost)"),
    "not a name": ({"a": "extends: [course_cpu]"}, "a.yaml:3: extends: must be the name of a machine"),
    "new level without a place": (
        {"a": "extends: course_cpu\nmemory:\n  - {name: l3, kind: cache, size: 8 MiB, ways: 16}"},
        "a.yaml:5: l3.after: 'l3' is a new level; say which level it follows",
    ),
    "place after nothing": (
        {"a": "extends: course_cpu\nmemory:\n  - {name: l3, kind: cache, size: 8 MiB, ways: 16, after: l4}"},
        "a.yaml:5: l3.after: there is no 'l4'; known: regs, l1, l2, dram",
    ),
    "removing what is not there": (
        {"a": "extends: course_cpu\nmemory:\n  - {name: l3, remove: true}"},
        "a.yaml:5: l3.remove: there is no 'l3'",
    ),
    "bad value in the variant": (
        {"a": "extends: course_cpu\nmemory:\n  - name: l2\n    size: 16 KiB"},
        "a.yaml:6: l2.size: 16 KiB is smaller than l1.size (32 KiB)",
    ),
    "price without its new source": (
        {"a": "extends: course_cpu\nenergy:\n  actions:\n    l1.read: {energy: 1 pJ}"},
        "a.yaml:6: energy.actions.l1.read.source: missing",
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_that_does_not_fit_is_refused(folder: Path, name: str) -> None:
    files, says = VARIANTS[name]
    for stem, text in files.items():
        (folder / f"{stem}.yaml").write_text(f"format: 1\nname: {stem}\n{text}\n")
    assert_refused(hwsim("check", "a.yaml"), says)


def test_a_problem_in_the_extended_file_is_reported_there(folder: Path) -> None:
    (folder / "base.yaml").write_text(GOOD.replace("replacement: lru", "replacement: lruu"))
    (folder / "a.yaml").write_text("format: 1\nname: a\nextends: base.yaml\n")
    assert_refused(hwsim("check", "a.yaml"), "base.yaml:18: l1.replacement")


def test_a_variant_has_a_format_and_a_name_of_its_own(folder: Path) -> None:
    (folder / "a.yaml").write_text("extends: course_cpu\n")
    assert_refused(hwsim("check", "a.yaml"), "a.yaml:1: format: missing", "a.yaml:1: name: missing")


SETTINGS = {
    "l1.sise=64 KiB": "--set l1.sise=64 KiB: there is no 'l1.sise' to set; did you mean 'l1.size'?",
    "l9.size=64 KiB": "there is no 'l9.size' to set; did you mean",
    "memory=3": "there is no 'memory' to set",
    "l1=3": "there is no 'l1' to set",
    "l1.name=l0": "there is no 'l1.name' to set",
    "l1.size": "write it as path=value",
    "l1.size=": "no value for l1.size",
    "=3": "there is no '' to set",
    "l1.size=64 KB": "--set l1.size=64 KB: l1.size: '64 KB' is ambiguous",
    "l1.size={a: 3}": "'{a: 3}' is not a value",
    "l1.size=[": "'[' cannot be read",
    "l1.replacement=lruu": "--set l1.replacement=lruu: l1.replacement: 'lruu' is not one of",
    "l2.size=4 KiB": "--set l2.size=4 KiB: l2.size: 4 KiB is smaller than l1.size (32 KiB)",
    "l1.ways=-1": "l1.ways: must be at least 1 or 'full', found -1",
    "core.l1.line=48 B": "l1.line: 48 B is not a power of two",
    "clock.core.frequency=2": "clock.core.frequency: 2 has no unit",
    "format=2": "format: 2 is not 1",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_does_not_fit_is_refused(setting: str) -> None:
    assert_refused(hwsim("show", "course_cpu", "--set", setting), SETTINGS[setting])


def test_wrong_use_of_the_command_line_is_refused() -> None:
    assert_refused(hwsim("shwo"), "shwo")
    assert_refused(hwsim("show"), "hwsim list")
    assert_refused(hwsim("list", "planets"), "planets")
    assert_refused(hwsim("check", "--nonsense"), "--nonsense")


@pytest.mark.parametrize("words", [["check", "bad.yaml"], ["show", "bad.yaml"]])
def test_a_real_process_behaves_the_same(folder: Path, words: list[str]) -> None:
    (folder / "bad.yaml").write_text(GOOD.replace("lru", "lruu"))
    done = hwsim_process(*words)
    assert_refused(Outcome(done.returncode, done.stdout, done.stderr), "bad.yaml:18: l1.replacement")
    assert done.stdout == ""
