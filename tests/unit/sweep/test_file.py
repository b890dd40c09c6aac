"""Sweeps in files say the same as on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwsim.errors import SpecError
from hwsim.sweep.grid import is_sweep_file, load_sweep, make_request

GOOD = """\
format: 1
name: tiles
machines: [course_cpu, zen3]
workloads: [matmul_tiled]
parameters: {n: 64, tile: 8..32:x2, precision: [fp32, int8]}
set:
  l2.size: [256 KiB, 1 MiB]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "tiles.yaml"
    path.write_text(text)
    return path


def test_a_file_makes_the_same_request_as_words(tmp_path: Path) -> None:
    parameters = {"n": 64, "tile": "8..32:x2", "precision": "fp32,int8"}
    wanted = make_request("course_cpu,zen3", "matmul_tiled", parameters, {"l2.size": "256 KiB,1 MiB"})
    assert load_sweep(written(tmp_path, GOOD)) == wanted


def test_a_sweep_file_is_told_from_a_machine(tmp_path: Path) -> None:
    assert is_sweep_file(written(tmp_path, GOOD))
    assert not is_sweep_file(Path("machines/course_cpu.yaml"))
    assert not is_sweep_file(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("8..32:x2", "32..8:x2"), 5, "an empty range"),
        (("machines: [course_cpu, zen3]", "machines: []"), 3, "at least 1"),
        (("name: tiles", "nmae: tiles"), 2, "did you mean 'name'"),
        (("[256 KiB, 1 MiB]", "[]"), 7, "no values"),
        (("parameters: {n: 64", "parameters: {n: {a: 1}"), 5, "must be"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, change: tuple[str, str], line: int, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_sweep(written(tmp_path, GOOD.replace(*change)))
    assert any(problem.line == line and words in str(problem) for problem in caught.value.problems), caught.value
