"""Plots are written in each format, byte for byte the same each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwsim.errors import InputError
from hwsim.results.plot.compare import plot_ladder
from hwsim.results.plot.run import plot_split
from hwsim.results.plot.style import LOOKS, look_of
from tests.unit.results.made import small


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_ladder_is_drawn(tmp_path: Path, suffix: str, begins: bytes) -> None:
    rungs = {"naive": small("matmul_naive"), "tiled": small()}
    files = [tmp_path / f"{number}{suffix}" for number in range(2)]
    for file in files:
        plot_ladder(rungs, file, "title")
    assert files[0].read_bytes().startswith(begins)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_ladder_names_rungs_times_and_speed_ups(tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot_ladder({"naive": small("matmul_naive"), "tiled": small()}, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    for word in ("naive", "tiled", "1×", "dram", "static"):
        assert f">{word}" in text or word in text


def test_one_run_is_drawn(tmp_path: Path) -> None:
    plot_split(small(), tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 5000


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.pdf, \.png, \.svg"):
        plot_split(small(), tmp_path / "run.bmp")


def test_a_level_looks_the_same_everywhere_and_unknown_names_do_too() -> None:
    assert look_of("l1") is LOOKS["l1"]
    assert look_of("l7") == look_of("l7")
    together = [LOOKS[name] for name in ("arithmetic", "operand supply", "control", "l1", "l2", "l3", "dram")]
    assert len({look.colour for look in together}) == len(together)
