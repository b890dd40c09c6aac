"""The notebooks of docs run from top to bottom, and what they show is what is kept in them."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
from itertools import zip_longest
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.blocks import ROOT, same_line

pytest.importorskip("nbclient", reason="the extra dev has nbclient")
pytest.importorskip("ipykernel", reason="the extra dev has ipykernel")


def _maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_notebooks", ROOT / "docs" / "notebooks" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = _maker()
KINDS = {
    "first_steps": {"text/html", "image/png"},
    "tiles": {"text/html", "image/png"},
    "lessons": {"text/html", "image/png"},
    "models": {"text/html", "image/png"},
}
"""What each shows: tables and figures that display themselves."""


def sources(cells: list[dict[str, object]]) -> list[str]:
    return ["".join(cell["source"]) for cell in cells]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MAKER.NOTEBOOKS)
def test_the_kept_notebook_is_the_one_that_is_written(name: str) -> None:
    kept = json.loads((ROOT / "docs" / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert sources(kept["cells"]) == sources(MAKER.make_notebook(MAKER.NOTEBOOKS[name]).cells)
    shown = {kind for cell in kept["cells"] for out in cell.get("outputs", ()) for kind in out["data"]}
    assert shown >= KINDS[name]
    assert all(cell["outputs"] for cell in kept["cells"] if cell["cell_type"] == "code")


@pytest.mark.parametrize("name", MAKER.NOTEBOOKS)
def test_a_notebook_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    done = MAKER.execute(MAKER.make_notebook(MAKER.NOTEBOOKS[name]))
    outputs = [out for cell in done.cells for out in cell.get("outputs", ())]
    assert {out["output_type"] for out in outputs} == {"execute_result"}
    kept = json.loads((ROOT / "docs" / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    before = [out for cell in kept["cells"] for out in cell.get("outputs", ())]
    again = "make them again: python docs/notebooks/make.py"
    for old, new in zip(before, outputs, strict=True):
        assert old["data"].keys() == new["data"].keys(), again
        for kind in {"text/plain", "text/html"} & old["data"].keys():
            assert unlike(lines(old["data"][kind]), lines(new["data"][kind])) is None, again
        for kind in {"image/png"} & old["data"].keys():
            assert ends_of(old["data"][kind]) == ends_of(new["data"][kind]), again


def lines(text: str | list[str]) -> list[str]:
    """An output as lines, and rows of a table as lines of their own."""
    whole = text if isinstance(text, str) else "".join(text)
    return TABLE.sub("\n", whole).splitlines()


TABLE = re.compile(r"</?t[rd][^>]*>")


def unlike(before: list[str], after: list[str]) -> tuple[str, str] | None:
    """The first line that says something else than the kept one, but for rounding and times of the search itself."""
    for old, new in zip_longest(before, after, fillvalue=""):
        if not same_line(WALL.sub("in #", old), WALL.sub("in #", new)):
            return old, new
    return None


WALL = re.compile(r"\bin [0-9.]+ (?:m|µ)?s\b")


def ends_of(png: str) -> tuple[int, int]:
    """Width and height of a picture in base64; its points depend on fonts."""
    head = base64.b64decode("".join(png))[16:24]
    return int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")


def test_a_kept_number_that_is_stale_is_found() -> None:
    table = "<table><tr><td>time</td><td>5.8 µs</td><td>1.1e-07</td></tr></table>"
    assert unlike(lines(table), lines(table.replace("1.1e-07", "1.2e-07"))) is None
    assert unlike(lines(table), lines(table.replace("5.8", "5.9"))) == ("5.8 µs", "5.9 µs")
    assert unlike(["a"], ["a", "b"]) == ("", "b")
