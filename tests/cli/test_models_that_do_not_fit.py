"""A model that needs more memory than its machine has is marked wherever it is shown, and is never the best."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hwsim
from hwsim.errors import InputError
from hwsim.results.plot.sweep import UNFIT_WORDS
from tests.cli.command_line import hwsim as command

SMALL = ("--set", "dram.size=1 GB", "--no-math")
WORDS = ("a100_40", "gpt2", "prompt=512", "phase=decode")


def printed(*words: str) -> str:
    done = command(*words)
    assert done.code == 0, done.err
    return done.out


def best_rows(text: str) -> list[str]:
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("best "))
    return lines[start + 2 : next(n for n, line in enumerate(lines) if "points:" in line)]


def test_a_sweep_marks_what_does_not_fit_and_looks_for_the_best_among_the_rest(tmp_path: Path) -> None:
    store = ("--out", str(tmp_path / "points.db"), "--executor", "inprocess")
    text = printed("sweep", *WORDS, "batch=1,8,64", *SMALL, *store, "--plot", str(tmp_path / "points.svg"))
    (large,) = [line for line in text.splitlines() if line.startswith("64 ")]
    assert "✕" in large
    assert "✕ 1 of 3 points does not fit the machine's memory, of which up to 1" in text
    rows = best_rows(text)
    assert rows
    assert not any("batch=64" in row for row in rows)
    assert any(row.startswith("tokens per second") and "batch=8" in row for row in rows)
    assert UNFIT_WORDS in (tmp_path / "points.svg").read_text()
    shares = {each["batch"]: each["memory_share"] for each in json.loads(printed(
        "sweep", *WORDS, "batch=1,8,64", *SMALL, *store, "--json", "-"
    ))}  # fmt: skip
    assert shares[8] < 1 < shares[64]


def test_a_comparison_marks_what_does_not_fit_and_says_by_how_much() -> None:
    text = printed("compare", *WORDS, "batch=8,64", *SMALL)
    (note,) = [line for line in text.splitlines() if "does not fit" in line]
    assert "batch=64" in note or "64" in note
    assert "%" in note
    assert any(line.startswith("64 ") and "✕" in line for line in text.splitlines())
    assert not any(line.startswith("8 ") and "✕" in line for line in text.splitlines())


def test_where_nothing_fits_there_is_no_best() -> None:
    found = hwsim.sweep(
        "a100_40", "gpt2", prompt=512, phase="decode", batch=[64, 96], math=False, set={"dram.size": "1 GB"}
    )
    assert [row.fits for row in found] == [False, False]
    assert not len(found.pareto())
    with pytest.raises(InputError, match="fits its machine's memory"):
        found.best("time")
    assert "ResultSet: 2 points" in repr(found)
