"""Where the numbers of a file come from.

A physical number is any number that was written into a part (a clock, a unit, a level) or an energy price:
sizes, times, rates, ways, ports, widths, counts. How many units share a level is structure, not measurement,
and needs no source. ``source: text`` covers every number of its part, also in groups inside it such as
``ports`` or ``timing``; ``source: {size: text, timing.cl: text}`` covers the fields or groups that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import get_origin

from pydantic import BaseModel

from hwsim.spec.document import Node, NodePath
from hwsim.spec.fields import PART_LISTS, Finding, choices, did_you_mean, model_at, model_of, shown_path

_STRUCTURE = frozenset(("name", "kind", "clock", "shared_by", "source", "after", "remove"))
_NUMBER = re.compile(r"\s*[-+]?[.]?\d|\s*[.]?inf\b")


def sources(node: Node) -> dict[str, str | None]:
    """For each physical number of a file, by its path: its source, or None."""
    found: dict[str, str | None] = {}
    for path, part in _parts(node):
        for number, source in part_sources(part).items():
            text = source.value if source is not None and isinstance(source.value, str) else None
            found[f"{shown_path(node, path)}.{number}"] = text
    energy = node.fields.get("energy")
    for group, field in (("actions", "energy"), ("static", "power")):
        prices = energy.fields.get(group) if energy is not None else None
        for key, price in prices.fields.items() if prices is not None else ():
            found[f"energy.{group}.{key}.{field}"] = price.text("source")
    limit = energy.fields.get("tdp") if energy is not None else None
    if limit is not None:
        found["energy.tdp.power"] = limit.text("source")
    return found


def part_sources(part: Node) -> dict[str, Node | None]:
    """For each number of a part, by its path within the part: the source that covers it, or None."""
    source = part.fields.get("source")
    return {number: _covering(source, number) for number in _numbers(part, "")}


def merged_source(old: Node, new: Node, merged: Node) -> Node | None:
    """The ``source`` of a part that a variant changes: a changed number loses its old source."""
    written = part_sources(new)
    if not written and "source" not in new.fields:
        return old.fields.get("source")
    inherited = part_sources(old)
    covered = {
        number: written[number] if number in written else inherited.get(number) for number in _numbers(merged, "")
    }
    texts = {number: text for number, text in covered.items() if text is not None}
    strays = _strays(old, inherited) | _strays(new, written)
    if not texts and not strays:
        return None
    first = next(iter(texts.values()), None)
    if first is not None and not strays and all(text == first for text in covered.values()):
        return first
    return Node(texts | strays, new.fields.get("source", new).place)


def check_sources(model: type[BaseModel], node: Node) -> Iterator[Finding]:
    """A source for a field that does not exist."""
    for path, part in _parts(node):
        source = part.fields.get("source")
        group = model_at(model, node, path)
        if source is None or group is None:
            continue
        known = set(_declared(group))
        free = tuple(f"{name}." for name, field in group.model_fields.items() if _is_free(field.annotation))
        for key in source.fields:
            if key not in known and not key.startswith(free):
                yield Finding((*path, "source", key), f"no such field to give a source for{did_you_mean(key, known)}")


def _parts(node: Node) -> Iterator[tuple[NodePath, Node]]:
    for key in PART_LISTS:
        parts = node.fields.get(key)
        for index, part in enumerate(parts.items if parts is not None else ()):
            yield (key, index), part


def _numbers(group: Node, prefix: str) -> Iterator[str]:
    for key, child in group.fields.items():
        if not prefix and key in _STRUCTURE:
            continue
        if isinstance(child.value, dict):
            yield from _numbers(child, f"{prefix}{key}.")
        elif _is_number(child.value):
            yield prefix + key


def _is_number(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.match(value) is not None)


def _covering(source: Node | None, number: str) -> Node | None:
    if source is None or isinstance(source.value, str):
        return source
    names = number.split(".")
    prefixes = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((source.fields[prefix] for prefix in prefixes if prefix in source.fields), None)


def _strays(part: Node, covered: Mapping[str, Node | None]) -> dict[str, Node]:
    """Entries of a ``source`` that cover no written number; kept, so that misspelt ones are reported."""
    source = part.fields.get("source")
    return {
        key: text
        for key, text in (source.fields.items() if source is not None else ())
        if not any(number == key or number.startswith(f"{key}.") for number in covered)
    }


def _is_free(annotation: object) -> bool:
    """Whether a field is a group with names of the user's own, such as number formats."""
    return any(get_origin(choice) is dict for choice in choices(annotation))


def _declared(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if name == "source":
            continue
        yield prefix + name
        inner = model_of(field.annotation, None)
        if inner is not None:
            yield from _declared(inner, f"{prefix}{name}.")
