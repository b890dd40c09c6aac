"""The notebooks of docs run from top to bottom, and what they show is what is kept in them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.blocks import ROOT

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
