"""The documentation as a site that needs no network: `make site`."""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import explorer
from hwsim import __version__
from hwsim.catalog import lesson_names
from hwsim.lessons import lesson

project, author, release = "hwsim", "the hwsim authors", __version__
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["site", "notebooks/*.py"]
html_theme = "furo"
html_title = f"hwsim {__version__}"
html_static_path = ["static/site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_last_updated_fmt = None
myst_heading_anchors = 4
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure", "toc.not_included"]

PARTS = {
    "Learn": ("tutorial/first-[rs]*", "tutorial/*", "reference/lessons", "notebooks/*", "explorer"),
    "Get one job done": ("how-to/*",),
    "Look it up": ("reference/[!l]*",),
    "Understand it": ("explanation/*",),
}
EXPLORER, DATA = "explorer", "explorer.json"
SHOWN = "**What the runs show**"
"""The words on the page of lessons before which the picture of a lesson goes."""


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", make_pages)
    app.connect("source-read", fill_in)
    app.connect("build-finished", lambda app, error: clean(app))


def make_pages(app: Sphinx) -> None:
    """What is not written by hand: pictures of lessons, notebooks as pages, the page of the explorer."""
    source = Path(app.srcdir)
    pictures = source / "images" / "lessons"
    pictures.mkdir(parents=True, exist_ok=True)
    for name in lesson_names():
        if not (pictures / f"{name}.png").is_file():
            lesson(name).plot(pictures / f"{name}.png")
    for file in sorted((source / "notebooks").glob("*.ipynb")):
        file.with_suffix(".md").write_text(notebook_page(file, source / "images" / "notebooks"), encoding="utf-8")
    (source / f"{EXPLORER}.md").write_text("# Explorer\n", encoding="utf-8")


def made(source: Path) -> list[Path]:
    """Files that `make_pages` leaves among the sources."""
    pages = [file.with_suffix(".md") for file in (source / "notebooks").glob("*.ipynb")]
    pictures = [*(source / "images" / "lessons").glob("*.png"), *(source / "images" / "notebooks").glob("*.png")]
    return [source / f"{EXPLORER}.md", *pages, *pictures]


def clean(app: Sphinx) -> None:
    source = Path(app.srcdir)
    for file in made(source):
        file.unlink(missing_ok=True)
    for folder in ("lessons", "notebooks"):
        if (source / "images" / folder).is_dir():
            (source / "images" / folder).rmdir()


def fill_in(app: Sphinx, name: str, text: list[str]) -> None:
    """The list of pages behind the first one, and the explorer. A notebook is a page here, not a file to download."""
    text[0] = re.sub(r"\(([./]*notebooks/\w+)\.ipynb\)", r"(\1.md)", text[0])
    if name == "index":
        text[0] += "".join(_toctree(title, entries) for title, entries in PARTS.items())
    elif name == "reference/lessons":
        for each in lesson_names():
            before, typed, after = text[0].partition(f"    hwsim lesson {each}\n")
            after = after.replace(SHOWN, f"![What its runs cost](../images/lessons/{each}.png)\n\n{SHOWN}", 1)
            text[0] = before + typed + after
    elif name == EXPLORER:
        text[0] = f"# Explorer\n\n```{{raw}} html\n{explorer.fragment(_data(Path(app.outdir)))}\n```\n"


def notebook_page(file: Path, pictures: Path) -> str:
    """A notebook as Markdown: words, code, and what came out."""
    pictures.mkdir(parents=True, exist_ok=True)
    parts = []
    for number, cell in enumerate(json.loads(file.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        picture = pictures / f"{file.stem}{number}.png"
        parts += [_output(output.get("data", {}), picture) for output in cell["outputs"]]
    return "\n\n".join(parts) + f"\n\nThis page is `docs/notebooks/{file.name}`.\n"


def _output(data: dict[str, Any], picture: Path) -> str:
    if "image/png" in data:
        picture.write_bytes(base64.b64decode("".join(data["image/png"])))
        return f"![output](../images/notebooks/{picture.name})"
    if "text/html" in data:
        return f"```{{raw}} html\n<div class='output' style='overflow-x:auto'>{''.join(data['text/html'])}</div>\n```"
    return f"```text\n{''.join(data.get('text/plain', ''))}\n```"


def _toctree(title: str, entries: tuple[str, ...]) -> str:
    lines = "\n".join(entries)
    return f"\n\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {title}\n\n{lines}\n```\n"


def _data(out: Path) -> dict[str, Any]:
    """The sweep of the explorer; made once, and kept beside the site."""
    file = out.parent / DATA
    if not file.is_file():
        file.write_text(json.dumps(explorer.make_data()), encoding="utf-8")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found
