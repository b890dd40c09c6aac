"""`hwsim check` names problems and numbers without a source, and its exit code tells which it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import hwsim

VARIANT = """\
format: 1
name: mine
extends: course_cpu
memory:
  - name: l1
    size: 64 KiB
"""


@pytest.fixture
def variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.yaml"
    file.write_text(VARIANT)
    return file


def test_everything_shipped_is_right() -> None:
    outcome = hwsim("check")
    assert outcome.code == 0, outcome.err
    assert "course_cpu.yaml: ok, a machine" in outcome.out


def test_a_changed_number_needs_a_source_of_its_own(variant: Path) -> None:
    outcome = hwsim("check", "mine.yaml")
    assert outcome.code == 0
    assert outcome.out.splitlines()[0] == "mine.yaml: ok, a machine"
    assert outcome.err == "mine.yaml: 1 number has no source:\n  l1.size\n"


def test_strict_turns_missing_sources_into_a_failed_check(variant: Path) -> None:
    assert hwsim("check", "--strict", "mine.yaml").code == 1
    variant.write_text(VARIANT + "    source: a guess\n")
    assert hwsim("check", "--strict", "mine.yaml").code == 0


def test_all_files_are_checked_although_the_first_is_wrong(variant: Path) -> None:
    Path("bad.yaml").write_text(VARIANT.replace("64 KiB", "64 KB"))
    outcome = hwsim("check", "bad.yaml", "mine.yaml", "course_cpu")
    assert outcome.code == 2
    assert "bad.yaml:6: l1.size" in outcome.err
    assert "mine.yaml: ok" in outcome.out
    assert "course_cpu.yaml: ok" in outcome.out


def test_json_has_problems_and_missing_sources(variant: Path) -> None:
    Path("bad.yaml").write_text(VARIANT.replace("64 KiB", "64 KB"))
    outcome = hwsim("check", "--json", "bad.yaml", "mine.yaml")
    bad, mine = json.loads(outcome.out)
    assert outcome.code == 2
    assert (bad["problems"][0]["line"], bad["problems"][0]["field"]) == (6, "l1.size")
    assert mine.pop("defaults")["core.overlap"][0] == "full"
    assert mine == {"name": "mine.yaml", "kind": "machine", "problems": [], "unsourced": ["l1.size"]}


def test_a_workload_is_recognised_by_its_content(variant: Path) -> None:
    Path("w.yaml").write_text("format: 1\nname: w\ndescription: d\nop: matmul\nsizes: {n: 4}\n")
    assert hwsim("check", "w.yaml").out == "w.yaml: ok, a workload\n"


def test_of_a_machine_alone_it_says_what_is_taken_where_the_file_is_silent(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "format: 1\nname: mine\ndescription: Mine.\nclocks: [{name: core, frequency: 2 GHz, source: x}]\n"
        "compute: [{name: core, kind: cpu, issue_width: 4, source: x}]\nmemory:\n"
        "  - {name: l1, kind: cache, size: 32 KiB, ways: 8, latency: 4 cycles, source: x}\n"
        "  - {name: dram, kind: dram, latency: 80 ns, bandwidth: 20 GB/s, source: x}\n"
    )
    said = " ".join(hwsim("check", str(file)).out.split())
    assert "core.window 1 Instructions in flight at once (reorder buffer); 1 is an in-order core" in said
    assert "none: core.load_queue, core.waiting_loads, core.tlb, core.simd" in said and "issue_width" not in said
    file.write_text(file.read_text().replace("issue_width: 4", "issue_width: 4, window: 64, simd: {bits: 128}"))
    said = " ".join(hwsim("check", str(file)).out.split())
    assert "core.window" not in said and "core.simd" not in said
    assert "core.window" not in hwsim("check", str(file), "course_cpu").out, "many files: problems alone"


FORMULA = """\
format: 1
name: mine
description: A softmax with a slip.
op: formula
formula: |
  m[i] max= X[i,j]
  Y[i,j] = exp(X[i,j] - m[i]) / total
sizes: {i: 8, j: 8}
"""
CHAIN = """\
format: 1
name: mine
description: A group with a slip.
op: chain
sizes: {n: 8}
tensors: {x: [n, n], w: [n, n]}
operations:
  - {name: h, op: matmul, inputs: [x, w]}
schedule:
  fuse: [[h, z]]
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FORMULA, "mine.yaml:5: formula: line 2, column 31: what is total?"),
        (CHAIN.replace("w: [n, n]", "w: [n, m]"), "mine.yaml:6: tensors.w: no size m"),
        (CHAIN, "mine.yaml:10: schedule.fuse: there is no operation z"),
    ],
)
def test_what_is_wrong_with_a_file_as_a_whole_has_the_line_of_its_field(variant: Path, text: str, message: str) -> None:
    variant.write_text(text)
    outcome = hwsim("check", "mine.yaml")
    assert outcome.code == 2
    assert message in outcome.err


def test_a_file_of_one_unknown_field_hears_of_the_field_and_of_a_file_to_begin_with(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("format: 1\nopp: matmul\nfoo: 3\n")
    done = hwsim("check", str(tmp_path / "mine.yaml"))
    assert done.code == 2
    assert "mine.yaml:2: opp: a field of neither; did you mean 'op'?" in done.err
    assert "mine.yaml:3: foo: a field of neither" in done.err
    assert "hwsim show course_cpu --resolved" in done.err


@pytest.mark.parametrize("word", ["base", "like", "parent"])
def test_a_file_that_names_its_parent_otherwise_is_told_of_extends(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = f"format: 1\nname: mine\n{word}: zen4\n"
    Path("mine.yaml").write_text(wrong)
    done = hwsim("check", "mine.yaml")
    assert done.code == 2
    lines = [line.removeprefix("error: ").strip() for line in done.err.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith(f"mine.yaml:3: {word}: "))
    assert lines[start + 3] == "extends: zen4"
    Path("mine.yaml").write_text("\n".join(lines[start + 1 : start + 5]) + "\n")
    assert hwsim("check", "mine.yaml").code == 0, "what it says is a variant"
    for command in ("check", "show"):
        assert "extends: " in hwsim(command, "--help").out
