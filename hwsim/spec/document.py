"""A YAML file as plain values that remember where they were written.

The YAML that hwsim reads is a strict subset of YAML 1.2: only ``true`` and ``false`` are booleans, dates are
text, equal keys in one mapping are an error, and so are anchors, aliases, tags and a second document.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from hwsim.errors import InputError, Problem, SpecError
from hwsim.files import note_input, read_file

Scalar = str | int | float | bool | None
NodePath = tuple[str | int, ...]

MAX_FILE_BYTES = 1_000_000
MAX_DEPTH = 40

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MOST_DIGITS = 18
"""Of a whole number; one that has more is left as text, which is no number anywhere."""
_INT = re.compile(rf"[-+]?0*[0-9]{{1,{MOST_DIGITS}}}")
_LONG_INT = re.compile(r"[-+]?[0-9]+")
_BASED_INT = re.compile(r"0(?:o[0-7]{1,19}|x[0-9a-fA-F]{1,14})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_MOST_FLOAT = 400
_INFINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Place:
    """Where a value was written: a file and a line, or a command-line option (line 0)."""

    file: str
    line: int

    def problem(self, field: str, message: str) -> Problem:
        return Problem(self.file, self.line, field, message)


@dataclass(frozen=True)
class YamlNode:
    """A scalar, a mapping or a list, and its place. Inside a mapping, the place is that of the key."""

    value: Scalar | dict[str, YamlNode] | list[YamlNode]
    place: Place

    @property
    def fields(self) -> dict[str, YamlNode]:
        """The entries of a mapping; nothing for anything else."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[YamlNode]:
        """The entries of a list; nothing for anything else."""
        return self.value if isinstance(self.value, list) else []

    def text(self, key: str) -> str | None:
        """The text under a key of a mapping, if there is one."""
        child = self.fields.get(key)
        return child.value if child is not None and isinstance(child.value, str) else None

    def child(self, part: str | int) -> YamlNode | None:
        if isinstance(self.value, dict) and isinstance(part, str):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int) and 0 <= part < len(self.value):
            return self.value[part]
        return None

    def nearest(self, path: Sequence[str | int]) -> YamlNode:
        """The node at a path or, where that was not written, the innermost group around it."""
        node = self
        for part in path:
            inner = node.child(part)
            if inner is None:
                break
            node = inner
        return node

    def plain(self) -> Any:
        """The bare data; lists become tuples, because specs are frozen."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return tuple(child.plain() for child in self.value)
        return self.value

    def with_fields(self, changes: Mapping[str, YamlNode]) -> YamlNode:
        return YamlNode(self.fields | dict(changes), self.place)

    def without(self, *keys: str) -> YamlNode:
        return YamlNode({key: child for key, child in self.fields.items() if key not in keys}, self.place)


def read_document(path: Path, shown: str | None = None) -> tuple[YamlNode, list[Problem]]:
    """The mapping that a file holds, and what is wrong with it that does not stop us from reading on.

    ``shown`` is what messages call the file. Raises SpecError where nothing can be read at all.
    """
    file = shown if shown is not None else str(path)
    return parse_document(_read_text(path, file), file)


def parse_document(text: str, file: str) -> tuple[YamlNode, list[Problem]]:
    """As read_document, for text that is already in memory."""
    root, problems = _parse(text, file)
    return root, list(problems)


@lru_cache(maxsize=256)
def _parse(text: str, file: str) -> tuple[YamlNode, tuple[Problem, ...]]:
    """The same text gives the same node: sweeps read the same few files thousands of times."""
    _refuse_control_characters(text, file)
    problems: list[Problem] = []
    try:
        roots = _Builder(file, problems).documents(text)
    except yaml.MarkedYAMLError as error:
        raise SpecError((_syntax_problem(error, text, file),)) from error
    if not roots or (len(roots) == 1 and roots[0].value is None):
        message = "the file is empty; a machine or workload starts with 'format: 1'"
        raise SpecError((Problem(file, 1, "", message),))
    root = roots[0]
    second = "a second document begins; one file describes one thing"
    problems += (extra.place.problem("", second) for extra in roots[1:])
    if not isinstance(root.value, dict):
        what = "a list" if isinstance(root.value, list) else f"only {root.value!r}"
        problems.append(root.place.problem("", f"found {what} where fields such as 'format: 1' are expected"))
        raise SpecError(tuple(problems))
    return root, tuple(problems)


def parse_value(text: str, place: Place) -> YamlNode:
    """A single value as it would be read after ``key:`` in a file; raises ValueError with a reason."""
    if "\n" in text or _CONTROL.search(text):
        raise ValueError("a value is one line of plain text")
    problems: list[Problem] = []
    try:
        roots = _Builder(place.file, problems).documents(text)
    except yaml.MarkedYAMLError as error:
        raise ValueError(f"{text!r} cannot be read: {error.problem}") from error
    if problems:
        raise ValueError(problems[0].message)
    if len(roots) != 1 or isinstance(roots[0].value, dict):
        raise ValueError(f"{text!r} is not a value")
    return _at(roots[0], place)


def scalar(text: str) -> Scalar:
    """What plain text means: YAML 1.2's core schema, in which ``no`` is a word and ``1e9`` a number."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text)
    if _BASED_INT.fullmatch(text):
        return int(text, 0)
    if _LONG_INT.fullmatch(text):
        return text
    if _FLOAT.fullmatch(text) and len(text) <= _MOST_FLOAT:
        value = float(text)
        return value if math.isfinite(value) else text
    if infinite := _INFINITE.fullmatch(text):
        return float(f"{infinite[1]}inf")
    return text


class _Builder:
    """Builds nodes from PyYAML's parser events, which still know about anchors, tags and equal keys."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.file = file
        self.problems = problems

    def documents(self, text: str) -> list[YamlNode]:
        events = iter(yaml.parse(text, Loader=_LOADER))
        return [self.node(next(events), events, 0) for event in events if isinstance(event, yaml.DocumentStartEvent)]

    def node(self, event: Any, events: Iterator[Any], depth: int) -> YamlNode:
        place = self.place(event)
        if depth > MAX_DEPTH:
            raise SpecError((place.problem("", f"nested more than {MAX_DEPTH} deep"),))
        self.refuse_references(event, place)
        if isinstance(event, yaml.MappingStartEvent):
            return YamlNode(self.mapping(events, depth), place)
        if isinstance(event, yaml.SequenceStartEvent):
            return YamlNode(self.sequence(events, depth), place)
        if isinstance(event, yaml.ScalarEvent):
            plain = event.style is None or event.style == ""
            return YamlNode(scalar(event.value) if plain else str(event.value), place)
        return YamlNode(None, place)

    def mapping(self, events: Iterator[Any], depth: int) -> dict[str, YamlNode]:
        fields: dict[str, YamlNode] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self.node(event, events, depth + 1)
            child = self.node(next(events), events, depth + 1)
            if not isinstance(key.value, str):
                found = "a group" if isinstance(key.value, dict | list) else repr(key.value)
                self.report(key.place, f"a field name is text, found {found}")
            elif key.value in fields:
                first = fields[key.value].place.line
                self.report(key.place, f"{key.value!r} is already given on line {first}; keep one of the two")
            else:
                fields[key.value] = YamlNode(child.value, key.place)
        return fields

    def sequence(self, events: Iterator[Any], depth: int) -> list[YamlNode]:
        items: list[YamlNode] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self.node(event, events, depth + 1))
        return items

    def refuse_references(self, event: Any, place: Place) -> None:
        if isinstance(event, yaml.AliasEvent):
            self.report(place, f"'*{event.anchor}' refers to another value; write the value itself")
        elif event.anchor is not None:
            self.report(place, f"'&{event.anchor}' is an anchor; files here are plain data, without them")
        elif event.tag is not None:
            self.report(place, f"{event.tag!r} is a tag; files here are plain data, without them")

    def place(self, event: Any) -> Place:
        return Place(self.file, event.start_mark.line + 1)

    def report(self, place: Place, message: str) -> None:
        self.problems.append(place.problem("", message))


def _read_text(path: Path, file: str) -> str:
    try:
        raw = read_file(path, MAX_FILE_BYTES)
        note_input(path)
    except FileNotFoundError as error:
        raise SpecError((Problem(file, 0, "", "no such file"),)) from error
    except InputError as error:
        message = f"{error}; a machine or workload is a YAML file of a few kilobytes"
        raise SpecError((Problem(file, 0, "", message),)) from error
    if b"\0" in raw:
        raise SpecError((Problem(file, 1, "", "a binary file; machines and workloads are YAML text"),))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8 text (byte 0x{raw[error.start]:02x}); save the file as UTF-8"
        raise SpecError((Problem(file, line, "", message),)) from error


def _refuse_control_characters(text: str, file: str) -> None:
    if found := _CONTROL.search(text):
        line = text.count("\n", 0, found.start()) + 1
        message = f"the control character U+{ord(found[0]):04X} does not belong in a text file"
        raise SpecError((Problem(file, line, "", message),))


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    number = mark.line if mark is not None else 0
    lines = text.splitlines() or [""]
    number = min(number, len(lines) - 1)
    indentation = re.match(r"\s*", lines[number])
    if indentation is not None and "\t" in indentation[0]:
        return Problem(file, number + 1, "", "a tab is used for indentation; YAML is indented with spaces")
    context = f", {error.context}" if error.context else ""
    return Problem(file, number + 1, "", f"not valid YAML: {error.problem}{context}")


def _at(node: YamlNode, place: Place) -> YamlNode:
    value = [_at(item, place) for item in node.value] if isinstance(node.value, list) else node.value
    return YamlNode(value, place)
