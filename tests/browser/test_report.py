"""The HTML report in a real browser: no errors, the axis chooser and the filter work.

Needs chromium, chromium-browser or google-chrome on the path; without one these tests are skipped.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import hwsim
from hwsim.api import run_all
from hwsim.results.html import render_page, run_page
from hwsim.sweep.result_set import sweep_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium to test the report in one")

_ASK = """
<pre id="answers"></pre><script>
const errors = []; window.addEventListener("error", (event) => errors.push(event.message));
const answers = {}; const rows = () => document.querySelectorAll("#points tbody tr").length;
const title = () => document.querySelector("#chart svg").getAttribute("aria-label");
const get = (id) => document.getElementById(id), all = (what) => [...document.querySelectorAll(what)];
const change = (id, value) => { get(id).value = value; get(id).dispatchEvent(new Event("change")); };
%s
answers.errors = errors; document.getElementById("answers").textContent = JSON.stringify(answers);
</script></body></html>"""


def ask(page: str, script: str, folder: Path) -> dict[str, Any]:
    """What a browser answers when a script plays the user on a page; fails on anything in its console."""
    file = folder / "page.html"
    file.write_text(page.replace("</body></html>", _ASK % script), encoding="utf-8")
    done = subprocess.run(
        [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
         f"--user-data-dir={folder / 'profile'}", file.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    found = re.search(r'<pre id="answers">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None
    answers: dict[str, Any] = json.loads(unescape(found[1]))
    assert answers.pop("errors") == []
    return answers


@pytest.fixture(scope="module")
def sweep() -> str:
    results = hwsim.sweep(
        "course_cpu",
        "matmul_tiled",
        n=16,
        tile=[4, 8, 16],
        precision=["fp32", "int8"],
        set={"l1.size": "16KiB..32KiB:x2"},
    )
    spans = run_all("course_cpu", "matmul_tiled", timeline=True, parameters={"n": 16, "tile": 4}).outcome.spans
    return render_page(sweep_page(results, spans))


def test_a_sweep_opens_with_its_chart_and_table(sweep: str, tmp_path: Path) -> None:
    script = 'answers.rows = rows(); answers.title = title(); answers.marks = all("#chart path").length;'
    found = ask(sweep, script, tmp_path)
    assert found == {"rows": 12, "title": "time over tile", "marks": 12}


def test_the_axis_chooser_draws_another_chart(sweep: str, tmp_path: Path) -> None:
    script = """change("chart-x", "l1.size"); change("chart-y", "energy_j"); answers.title = title();
    answers.ticks = all("#chart text").map((e) => e.textContent).filter((t) => t.includes("KiB"));
    change("chart-by", ""); answers.legend = get("legend").children.length;"""
    found = ask(sweep, script, tmp_path)
    assert found["title"] == "energy over l1.size"
    assert found["ticks"] == ["16 KiB", "32 KiB"]
    assert found["legend"] == 0


def test_the_filter_and_the_heads_work(sweep: str, tmp_path: Path) -> None:
    script = """const box = get("filter"); box.value = "precision=int8 tile=8";
    box.dispatchEvent(new Event("input")); answers.rows = rows(); answers.shown = get("shown").textContent;
    box.value = ""; box.dispatchEvent(new Event("input"));
    const head = all("#points th").find((e) => e.title === "time_s"); head.click(); head.click();
    const place = all("#points th").findIndex((e) => e.title === "tile");
    answers.first = all("#points tbody tr")[0].cells[place].textContent; answers.dir = head.dataset.dir;"""
    found = ask(sweep, script, tmp_path)
    assert found["rows"] == 2
    assert found["shown"] == "2 of 12 rows"
    assert found["dir"] == "-1"
    slowest = max(hwsim.sweep("course_cpu", "matmul_tiled", n=16, tile=[4, 8, 16]), key=lambda row: row["time"])
    assert found["first"] == str(slowest["tile"])


def test_a_box_zooms_and_a_mark_tells_what_it_is(sweep: str, tmp_path: Path) -> None:
    script = """const mark = all("#chart g path")[0];
    mark.dispatchEvent(new MouseEvent("mouseenter", {clientX: 300, clientY: 300}));
    answers.tip = get("tip").textContent;
    const ticks = () => all("#chart text").map((e) => e.textContent).join("|"); const before = ticks();
    const svg = all("#chart svg")[0], at = svg.getBoundingClientRect();
    const point = (x, y) => ({clientX: at.left + x * at.width, clientY: at.top + y * at.height});
    const mouse = (kind, x, y) => svg.dispatchEvent(new MouseEvent(kind, point(x, y)));
    mouse("mousedown", 0.3, 0.2); mouse("mousemove", 0.5, 0.5); mouse("mouseup", 0.6, 0.6);
    answers.zoomed = ticks() !== before; get("whole").click(); answers.back = ticks() === before;"""
    found = ask(sweep, script, tmp_path)
    assert "time: " in found["tip"] and "tile: " in found["tip"]
    assert found["zoomed"] is True
    assert found["back"] is True


def test_a_single_run_opens_as_well(tmp_path: Path) -> None:
    run = run_all("course_cpu", "matmul_parallel", timeline=True, parameters={"n": 32})
    page = render_page(run_page(run.result, run.outcome.spans))
    script = """answers.rows = rows(); answers.boxes = all("svg.diagram rect").length;
    answers.spans = all("svg.timeline rect").length; answers.yaml = all("details pre").length;"""
    found = ask(page, script, tmp_path)
    assert found["rows"] == 3
    assert found["boxes"] >= 4
    assert found["spans"] >= 3
    assert found["yaml"] == 2


HOSTILE = ("<!--<script>", "<script>window.struck = 1</script>", "x\"'><img src=x onerror='window.struck = 1'>")


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_runs_or_empties_the_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`<!--<script>` in the path of a machine left an empty page."""
    monkeypatch.chdir(tmp_path)
    machine = tmp_path / name.replace("/", "_") / "m.yaml"
    machine.parent.mkdir(parents=True)
    machine.write_text("format: 1\nname: m\nextends: course_cpu\ndescription: " + json.dumps(name) + "\n")
    results = hwsim.sweep(str(machine), "matmul_tiled", n=16, tile=[4, 8])
    page = render_page(sweep_page(results, (), name))
    found = ask(page, "answers.rows = rows(); answers.struck = window.struck || 0;", tmp_path)
    assert found == {"rows": 2, "struck": 0}
