"""Links between pages lead somewhere, and every page can be reached from the first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, page_name, pages

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def links(path: Path) -> list[Path]:
    """The files that a page links to; fenced blocks, and addresses of other sites, are left out."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = [target.split("#")[0] for target in _LINK.findall(text) if "://" not in target]
    return [(path.parent / target).resolve() for target in targets if target]


@pytest.mark.parametrize("path", pages(), ids=page_name)
def test_links_lead_somewhere(path: Path) -> None:
    assert [str(target) for target in links(path) if not target.exists()] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page.suffix == ".md" and page not in reached and page.exists():
            reached.add(page)
            waiting += links(page)
    assert [page_name(page) for page in pages() if page not in reached] == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[x](nowhere.md), [y](https://example.org), `[z]` (n)\n", encoding="utf-8")
    assert links(page) == [tmp_path / "nowhere.md"]


@pytest.mark.parametrize("path", pages(), ids=page_name)
def test_no_row_of_a_table_stands_alone_and_no_cell_is_an_empty_piece_of_code(path: Path) -> None:
    """A row after an empty line belongs to no table, and is shown as it was typed."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    blocks = [block.strip().splitlines() for block in re.split(r"\n\s*\n", text)]
    tables = [block for block in blocks if block and block[0].startswith("|")]
    assert [table[0] for table in tables if len(table) < 2 or not set(table[1]) <= set("|-: ")] == []
    assert "| `` |" not in text
