"""Names and texts from others: shown as they are on the terminal, harmless in pages, tables, plots and file names."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
import yaml
from command_line import hwsim

from hwsim.cli.console import print_error
from hwsim.units import csv_cell, visible

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = {
    "markup": "[red]x[/red] [/] [bold",
    "script": "<script>alert(1)</script> <!--<script>",
    "quotes": "' \" `` $(x) ${HOME}",
    "formula": "=cmd|'/C calc'!A0",
    "mathematics": "$\\frac{$ a_b^c",
    "unicode": "é𝔘 " * 60,
}
ESCAPES = "\x1b[31mred \x1b]0;title\x07 \x9b1m \u202egnp"
"""What would colour the screen, name the window and turn the text round."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def machine(description: str, name: str = "mine") -> str:
    """A machine whose every text is the given one."""
    tree = yaml.safe_load((ROOT / "machines" / "course_cpu.yaml").read_text())
    tree |= {"name": name, "description": description}
    for part in (*tree["clocks"], *tree["compute"], *tree["memory"], *tree["energy"].get("actions", {}).values()):
        part["source"] = description
    return yaml.dump(tree, allow_unicode=True, sort_keys=False)


def workload(description: str) -> str:
    return f"format: 1\nname: work\ndescription: {description}\nop: matmul\nsizes: {{n: 16}}\nshows: [{description}]\n"


COMMANDS = (
    ("list",),
    ("show", "mine"),
    ("show", "mine", "--resolved"),
    ("show", "mine", "--diagram"),
    ("show", "mine", "--json"),
    ("show", "work"),
    ("show", "work", "--on", "mine"),
    ("check", "machines/mine.yaml", "workloads/work.yaml"),
    ("run", "mine", "work"),
    ("explain",),
    ("compare", "mine,course_cpu", "work"),
    ("roofline", "mine", "work"),
    ("sweep", "mine", "work", "n=8,16", "--out", "s.db"),
    ("export", "s.db"),
    ("tune", "mine", "work", "tile=4,8"),
    ("report", "s.db"),
    ("ladder", "mine"),
    ("list", "machines", "--json"),
)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_command_breaks_over_a_description(folder: Path, name: str) -> None:
    """A description with '[/]' ended 13 of 39 commands in a traceback."""
    said = HOSTILE[name]
    (folder / "machines").mkdir()
    (folder / "workloads").mkdir()
    (folder / "machines" / "mine.yaml").write_text(machine(said))
    (folder / "workloads" / "work.yaml").write_text(workload(json.dumps(said)))
    for command in COMMANDS:
        outcome = hwsim(*command)
        assert outcome.code in (0, 2), (command, outcome)
        assert "mistake in hwsim" not in outcome.err, (command, outcome.err)
    assert hwsim("show", "mine").code == 0
    assert HOSTILE[name].split()[0] in hwsim("show", "mine").out


def test_control_characters_of_files_are_written_out_on_the_terminal(folder: Path) -> None:
    (folder / "machines").mkdir()
    (folder / "machines" / "mine.yaml").write_text(machine(ESCAPES))
    for command in (("list",), ("show", "mine"), ("show", "mine", "--json"), ("run", "mine", "matmul_tiled", "n=16")):
        outcome = hwsim(*command)
        assert outcome.code == 0, outcome.err
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", outcome.out + outcome.err), command
    assert "\\x1b[31mred" in hwsim("show", "mine").out


def test_control_characters_of_the_command_line_are_refused_and_written_out(folder: Path) -> None:
    outcome = hwsim("show", "a\x1b[31m.yaml")
    assert outcome.code == 2
    assert "'a\\x1b[31m.yaml'" in outcome.err and "U+001B" in outcome.err
    assert "\x1b" not in outcome.err


def test_an_error_shows_what_it_quotes_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("[red]x[/] \x1b[2J \u202e")
    assert capsys.readouterr().err == "error: [red]x[/] \\x1b[2J \\u202e\n"


def test_show_prints_a_formula_with_its_indices() -> None:
    """Markup ate `[i,j]`: it printed `C += A * B`."""
    assert "C[i,j] += A[i,k] * B[k,j]" in hwsim("show", "formula_matmul").out


def test_text_that_a_spreadsheet_would_compute_is_text_in_csv(folder: Path) -> None:
    (folder / "machines").mkdir()
    (folder / "machines" / "mine.yaml").write_text(machine(HOSTILE["formula"]))
    assert hwsim("run", "mine", "matmul_tiled", "n=16", "--energy-csv", "e.csv").code == 0
    rows = list(csv.reader(io.StringIO((folder / "e.csv").read_text())))
    assert not [cell for row in rows for cell in row if cell.startswith("=")]
    assert csv_cell("=1+1") == "'=1+1" and csv_cell(-1.5) == -1.5 and csv_cell("zen3") == "zen3"


def test_a_page_holds_no_element_that_a_name_opened(folder: Path) -> None:
    """`<!--<script>` in the path of a machine emptied the page."""
    place = folder / "<!--<script>"
    place.mkdir()
    (place / "m.yaml").write_text(machine("harmless", "m"))
    path = "./<!--<script>/m.yaml"
    assert hwsim("sweep", path, "matmul_tiled", "n=16", "tile=4,8", "--out", "s.db").code == 0
    assert hwsim("report", "s.db", "-o", "r.html", "--title", "<script>alert(1)</script>").code == 0
    page = (folder / "r.html").read_text()
    (data,) = re.findall(r'<script[^>]*id="data"[^>]*>(.*?)</script>', page, flags=re.S)
    assert "<" not in data
    assert path in json.dumps(json.loads(data))
    assert "<script>alert" not in page and "<!--<script>" not in page


def test_a_plot_takes_no_name_for_mathematics(folder: Path) -> None:
    place = folder / "$\\frac{$"
    place.mkdir()
    (place / "m.yaml").write_text(machine("harmless", "m"))
    path = "./$\\frac{$/m.yaml"
    outcome = hwsim("sweep", path, "matmul_tiled", "n=16", "tile=4,8", "--out", "s.db", "--plot", "p.svg")
    assert outcome.code == 0, outcome.err
    assert (folder / "p.svg").read_text().startswith("<?xml")


def test_a_timeline_is_json_whatever_the_names(folder: Path) -> None:
    (folder / "w.yaml").write_text(workload(json.dumps('"quotes" \\ and\nlines')))
    assert hwsim("run", "course_cpu", "./w.yaml", "--timeline", "t.json").code == 0
    assert json.loads((folder / "t.json").read_text())["traceEvents"]


def test_what_cannot_be_seen_is_written_out() -> None:
    assert visible("a\x1b\x9b\u202e\ud800b\n\tc") == "a\\x1b\\x9b\\u202e\\ud800b\n\tc"
    assert visible("é µ × 𝔘 日本") == "é µ × 𝔘 日本"
