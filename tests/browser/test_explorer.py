"""The explorer in a real browser: it draws all charts, and each control changes what it shows.

Needs chromium, chromium-browser or google-chrome on the path; without one these tests are skipped.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.browser.test_report import BROWSER, ask

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium to test the explorer in one")


def _explorer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("explorer", ROOT / "docs" / "site" / "explorer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXPLORER = _explorer()
SMALL = {
    "machines": ("course_cpu", "zen3"),
    "tiles": (4, 16),
    "precisions": ("fp32", "bf16"),
    "caches": ("8 KiB", "32 KiB"),
}


@pytest.fixture(scope="module")
def page() -> str:
    return str(EXPLORER.page(EXPLORER.make_data(**SMALL, n=32)))


def test_controls_redraw_numbers_and_charts(page: str, tmp_path: Path) -> None:
    script = """const text = (id) => get(id).textContent;
    const slide = (id, value) => { get(id).value = value; get(id).dispatchEvent(new Event("input")); };
    answers.charts = all(".explorer-charts svg").map((e) => e.getAttribute("aria-label"));
    const first = text("x-time"); slide("x-tile", 0); answers.tile = text("x-tile-shown");
    answers.tileChanged = text("x-time") !== first;
    const before = text("x-error"); change("x-precision", "fp32"); answers.errorChanged = text("x-error") !== before;
    slide("x-cache", 0); answers.cache = text("x-cache-shown");
    const time = text("x-time"); change("x-machine", "zen3"); answers.machineChanged = text("x-time") !== time;
    answers.wide = document.documentElement.scrollWidth <= window.innerWidth;
    answers.marks = all("#x-chart-roof circle").length;"""
    found = ask(page, script, tmp_path)
    assert found == {
        "charts": ["time over tile", "energy over tile", "energy over error", "roofline"],
        "tile": "4 x 4", "tileChanged": True, "errorChanged": True, "cache": "8 KiB", "machineChanged": True,
        "wide": True, "marks": 3,
    }  # fmt: skip


def test_the_numbers_are_those_of_the_runs() -> None:
    """A point of the page is a run of hwsim: the order of the axes is the order of the points."""
    import hwsim

    data = EXPLORER.make_data(("course_cpu",), (4, 16), ("fp32",), ("8 KiB", "32 KiB"), n=32)
    chosen = {"n": 32, "tile": 4, "precision": "fp32", "vector": True, "v1": 4}
    made = hwsim.run("course_cpu", "matmul_tiled", set={"l1.size": "32 KiB"}, convert=True, **chosen)
    assert data["points"][1 * 1 * 2 * 2 + 1 * 2 + 0]["time"] == made.time_s
    assert data["roofs"]["course_cpu"]["bandwidth"] == 25.6e9
