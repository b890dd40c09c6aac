"""The page itself: data, style and script in one file, and sections of plain HTML around them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from math import isfinite
from typing import Any

from hwsim.results.plot.style import LOOKS


@dataclass(frozen=True)
class Column:
    """One column of the table, which is also an axis of the chart."""

    name: str
    title: str
    unit: str = ""
    kind: str = "metric"
    """`axis` for what was chosen, `metric` for what came out."""
    varies: bool = True


@dataclass(frozen=True)
class Line:
    """One row: values by column; `at` has numbers for axes whose values are texts such as 64 KiB."""

    values: Mapping[str, Any]
    at: Mapping[str, float] = field(default_factory=dict)
    best: bool = False
    failed: str = ""


@dataclass(frozen=True)
class Page:
    """What a report says."""

    title: str
    subtitle: str
    words: Sequence[str]
    columns: Sequence[Column]
    lines: Sequence[Line]
    start: Mapping[str, str]
    """Which columns the chart starts with: x, y, and by for colours."""
    sections: Sequence[tuple[str, str]]
    """Title and HTML of what follows the table."""


def render_page(page: Page) -> str:
    """The whole file: no address in it is fetched."""
    here = files("hwsim.results.html")
    style = here.joinpath("report.css").read_text(encoding="utf-8")
    script = here.joinpath("report.js").read_text(encoding="utf-8")
    words = "".join(f"<p>{escape(text)}</p>" for text in page.words)
    sections = "".join(f"<section><h2>{escape(title)}</h2>{body}</section>" for title, body in page.sections)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(page.title)}</title><link rel="icon" href="data:,"><style>{style}</style></head><body>
<h1>{escape(page.title)}</h1><p class="faint">{escape(page.subtitle)}</p>
<section id="summary"><h2>In words</h2>{words}</section>
<section><h2>Chart</h2>{_CONTROLS}<div class="chart" id="chart"><div class="tip" id="tip"></div></div>
<div class="legend" id="legend"></div>
<p class="note">Point at a mark to read it; drag a box to look closer; double-click to see all.</p></section>
<section><h2>Table</h2><div class="controls"><input type="search" id="filter" aria-label="filter"
placeholder="filter, such as tile=32 fp32"><span class="note" id="shown"></span>
<span class="note">click a head to sort</span></div>
<div class="scroll"><table id="points"><thead></thead><tbody></tbody></table></div></section>
{sections}
<script type="application/json" id="data">{_data(page)}</script><script>{script}</script></body></html>
"""


_CONTROLS = """<div class="controls">
<label>across <select id="chart-x"></select></label><label>up <select id="chart-y"></select></label>
<label>colour by <select id="chart-by"></select></label>
<label><input type="checkbox" id="log-x" checked> logarithmic across</label>
<label><input type="checkbox" id="log-y" checked> logarithmic up</label>
<button id="whole">show all</button></div>"""


def _data(page: Page) -> str:
    """JSON that may stand inside a script element: no `</` in it."""
    told = [name for name in ("time_s", "energy_j") if any(column.name == name for column in page.columns)]
    data = {
        "columns": [
            {"name": c.name, "title": c.title, "unit": c.unit, "kind": c.kind, "varies": c.varies} for c in page.columns
        ],
        "rows": [
            {"values": dict(line.values)}
            | ({"at": dict(line.at)} if line.at else {})
            | ({"best": True} if line.best else {})
            | ({"failed": line.failed} if line.failed else {})
            for line in page.lines
        ],
        "start": dict(page.start),
        "told": told,
        "colours": {name: look.colour if look.colour != "#F0E442" else "#B8A800" for name, look in LOOKS.items()},
    }
    text = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("</", "<\\/")


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A small table as it is; the first `words` columns are text."""
    top = "".join(f'<th class="{"word" if i < words else ""}">{escape(head)}</th>' for i, head in enumerate(heads))
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{"word" if i < words else ""}">{escape(cell)}</td>' for i, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def html_bars(shares: Mapping[str, tuple[float, str, str]]) -> str:
    """Bars below each other: share of the whole, what is written beside, colour."""
    most = max((share for share, _, _ in shares.values()), default=1.0) or 1.0
    lines = "".join(
        f"<span>{escape(name)}</span><span>"
        f'<span class="bar" style="width:{62 * share / most:.1f}%;background:{colour}"></span>{escape(text)}</span>'
        for name, (share, text, colour) in shares.items()
    )
    return f'<div class="bars">{lines}</div>'


def html_details(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def _finite(data: Any) -> Any:
    """The same data with null for what is no number: JSON has no infinity, and an error may be one."""
    if isinstance(data, float):
        return data if isfinite(data) else None
    if isinstance(data, dict):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data
