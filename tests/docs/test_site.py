"""The site of the documentation: what it makes of pages that GitHub shows as they are, and colours that can be read."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT

SITE = ROOT / "docs" / "site"


def test_a_link_to_a_notebook_leads_to_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sphinx offers the file for download instead."""
    pytest.importorskip("sphinx", reason="the extra site has Sphinx")
    monkeypatch.syspath_prepend(str(SITE))
    import conf  # type: ignore[import-not-found,unused-ignore]

    text = ["[one](notebooks/tiles.ipynb), [other](../notebooks/models.ipynb)"]
    conf.fill_in(None, "tutorial/page", text)
    assert text == ["[one](notebooks/tiles.md), [other](../notebooks/models.md)"]


def light(colour: str) -> float:
    """Relative luminance as WCAG 2.1 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_names_of_lines_in_the_explorer_can_be_read_on_white() -> None:
    """4.5 to 1 is what WCAG asks for small text; the names are the colours of their lines, mixed with the ink."""
    style = (SITE / "static" / "explorer.css").read_text(encoding="utf-8")
    script = (SITE / "static" / "explorer.js").read_text(encoding="utf-8")
    share = re.search(r"fill:color-mix\(in srgb, \$\{colours\[number\]\} (\d+)%, var\(--ink\)\)", script)
    assert share is not None
    ink = 0x22
    for name in ("blue", "orange", "green", "rose"):
        found = re.search(rf"--{name}: (#[0-9a-f]{{6}})", style)
        assert found is not None
        colour = found[1]
        mixed = [
            round(int(colour[i : i + 2], 16) * int(share[1]) / 100 + ink * (1 - int(share[1]) / 100)) for i in (1, 3, 5)
        ]
        assert 1.05 / (light("#" + "".join(f"{part:02x}" for part in mixed)) + 0.05) >= 4.5


def test_the_last_column_of_a_table_has_room_for_words_on_a_phone() -> None:
    """Codes before it do not break, and left it some 40 pixels: one word on a line, and endless pages."""
    style = (SITE / "static" / "site.css").read_text(encoding="utf-8")
    assert "td:last-child:not(:first-child) { min-width: 13rem; }" in style.partition("@media (max-width: 600px)")[2]
