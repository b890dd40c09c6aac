"""YAML is read strictly: without the surprises of YAML 1.1, and with a line for every value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwsim.errors import SpecError
from hwsim.spec.document import MAX_DEPTH, parse_document, scalar
from hwsim.spec.fields import _Dumper, yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"), ("yes", "yes"), ("on", "on"), ("off", "off"), ("y", "y"),
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
        ("8", 8), ("-8", -8), ("010", 10), ("0x1F", 31), ("0o17", 15), ("1_000", "1_000"), ("12:30", "12:30"),
        ("1e9", 1e9), ("1.5", 1.5), (".5", 0.5), ("1e999", "1e999"), (".inf", float("inf")), ("inf", "inf"),
        ("2024-01-31", "2024-01-31"), ("32 KiB", "32 KiB"), ("=", "="), ("<<", "<<"),
    ],
)  # fmt: skip
def test_plain_text_means_what_yaml_1_2_says(text: str, value: object) -> None:
    found = scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_quoted_text_is_text() -> None:
    node, problems = parse_document("a: '8'\nb: \"true\"\n", "f")
    assert node.plain() == {"a": "8", "b": "true"}
    assert problems == []


def test_every_value_knows_its_line() -> None:
    node, _ = parse_document("a: 1\n\nb:\n  - c: 2\n  - d:\n      e: 3\n", "f")
    assert node.fields["a"].place.line == 1
    assert node.fields["b"].place.line == 3
    assert node.nearest(("b", 0, "c")).place.line == 4
    assert node.nearest(("b", 1, "d", "e")).place.line == 6
    assert node.nearest(("b", 1, "d", "missing")).place.line == 5


def test_all_equal_keys_are_reported_and_the_first_is_kept() -> None:
    node, problems = parse_document("a: 1\na: 2\nb: {c: 1, c: 2}\n", "f")
    assert node.plain() == {"a": 1, "b": {"c": 1}}
    assert [problem.line for problem in problems] == [2, 3]


@pytest.mark.parametrize("text", ["a: &x 1\nb: *x\n", "a: !!int 3\n", "a: !mine {b: 1}\n", "<<: &x {a: 1}\n"])
def test_references_and_tags_are_reported(text: str) -> None:
    _, problems = parse_document(text, "f")
    assert problems
    assert problems[0].line == 1


def test_a_second_document_is_reported_at_its_line() -> None:
    _, problems = parse_document("a: 1\n---\nb: 2\n", "f")
    assert [problem.line for problem in problems] == [3]


def test_the_depth_of_nesting_is_limited_exactly() -> None:
    def nested(depth: int) -> str:
        return "a: " + "[" * depth + "]" * depth

    parse_document(nested(MAX_DEPTH), "f")
    with pytest.raises(SpecError, match="nested more than"):
        parse_document(nested(MAX_DEPTH + 1), "f")


def test_a_byte_order_mark_is_no_content(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from hwsim.spec.document import read_document

    file = tmp_path / "bom.yaml"
    file.write_bytes(b"\xef\xbb\xbfformat: 1\n")
    assert read_document(file)[0].plain() == {"format": 1}


plain = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)


@given(
    st.dictionaries(plain, st.one_of(plain, st.integers(1 - 10**18, 10**18 - 1), st.booleans(), st.none()), min_size=1)
)
def test_what_we_write_we_read_back(data: dict[str, object]) -> None:
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    node, problems = parse_document(text, "f")
    assert problems == []
    assert node.plain() == data


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_but_never_crashes(text: str) -> None:
    try:
        node, _ = parse_document(text, "f")
    except SpecError as error:
        assert error.problems
    else:
        assert isinstance(node.value, dict)
