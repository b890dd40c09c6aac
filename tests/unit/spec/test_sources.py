"""Which numbers need a source, and what a source covers."""

from __future__ import annotations

import pytest

from hwsim.spec.document import parse_document
from hwsim.spec.fields import sources

LEVEL = (
    "memory:\n  - {{name: l1, kind: cache, shared_by: 2, size: 32 KiB, ways: full, line: 64 B, "
    "prefetch: {{degree: 2}}{}}}\n"
)
ALL = {"l1.size", "l1.line", "l1.prefetch.degree"}


def without_source(text: str) -> set[str]:
    return {path for path, source in sources(parse_document(text, "f")[0]).items() if source is None}


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("", ALL),
        (", source: data sheet", set()),
        (", source: {size: data sheet}", ALL - {"l1.size"}),
        (", source: {prefetch: data sheet}", ALL - {"l1.prefetch.degree"}),
        (", source: {prefetch.degree: data sheet, line: table 3}", {"l1.size"}),
    ],
)
def test_a_source_covers_its_group_or_the_fields_it_names(source: str, missing: set[str]) -> None:
    assert without_source(LEVEL.format(source)) == missing


def test_words_structure_and_booleans_need_no_source() -> None:
    text = "memory:\n  - {name: l1, shared_by: 4, replacement: lru, write_allocate: true, clock: core}\n"
    assert without_source(text) == set()


def test_clocks_units_and_prices_are_looked_at_too() -> None:
    text = (
        "clocks: [{name: core, frequency: 2 GHz}]\n"
        "compute: [{name: core, count: 4, simd: {bits: 256}}]\n"
        "energy: {actions: {l1.read: {energy: 1 pJ}, l1.write: {energy: 1 pJ, source: a book}}}\n"
    )
    assert without_source(text) == {
        "clock.core.frequency",
        "core.count",
        "core.simd.bits",
        "energy.actions.l1.read.energy",
    }
