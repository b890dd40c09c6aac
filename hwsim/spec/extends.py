"""Variants: ``extends: NAME`` takes another file and changes the fields that differ.

Groups are merged field by field, and lists of named parts (clocks, compute, memory) by the names of the
parts: a part with a known name is changed, one with a new name is added (a level says ``after: NAME``), and
one with ``remove: true`` is dropped. A part whose ``kind`` differs replaces the old one. Any other list, and
any single value, is replaced. ``null`` takes a value away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hwsim.errors import CatalogError, Problem
from hwsim.spec.document import Node, Place, read_document
from hwsim.spec.fields import PART_LISTS, did_you_mean
from hwsim.spec.sources import merged_source

_LIST_OF_LEVELS = "memory"


@dataclass(frozen=True)
class Resolved:
    """A file with everything that it extends merged in."""

    node: Node
    files: tuple[Path, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Finder:
    """How files are found by the name after ``extends``, and what messages call them."""

    find: Callable[[str, Path], Path]
    show: Callable[[Path], str]


def resolve(path: Path, shown: str, finder: Finder, chain: tuple[Path, ...] = ()) -> Resolved:
    """Read a file and its ancestors. ``chain`` holds the files that led here."""
    node, problems = read_document(path, shown)
    extends = node.fields.get("extends")
    if extends is None:
        return Resolved(node, (path,), tuple(problems))
    child = node.without("extends")
    chain = (*chain, path)
    problems += _missing_in_variant(node)
    try:
        parent_path = _find_parent(extends, path, chain, finder)
    except CatalogError as error:
        problem = extends.place.problem("extends", str(error))
        return Resolved(child, chain, (*problems, problem))
    parent = resolve(parent_path, finder.show(parent_path), finder, chain)
    found = [*problems, *parent.problems]
    merged = merge(parent.node, child, found)
    return Resolved(Node(merged.value, child.place), (path, *parent.files), tuple(found))


def merge(parent: Node, child: Node, problems: list[Problem]) -> Node:
    """The parent with the child's fields laid over it."""
    fields = dict(parent.fields)
    for key, new in child.fields.items():
        old = fields.get(key)
        if key in PART_LISTS and old is not None and isinstance(old.value, list) and isinstance(new.value, list):
            fields[key] = _merge_parts(key, old, new, problems)
        else:
            fields[key] = _merge_value(old, new)
    return Node(fields, parent.place)


def _find_parent(extends: Node, path: Path, chain: tuple[Path, ...], finder: Finder) -> Path:
    if not isinstance(extends.value, str):
        raise CatalogError("must be the name of a machine or workload, or the path of a file")
    names = [finder.show(file) for file in chain]
    try:
        parent = finder.find(extends.value, path.parent)
    except CatalogError as error:
        raise CatalogError(
            f"{error} (in {' → '.join([*names, extends.value])})" if len(names) > 1 else str(error)
        ) from error
    if parent.resolve() in [file.resolve() for file in chain]:
        raise CatalogError(f"goes round in a circle: {' → '.join([*names, finder.show(parent)])}")
    return parent


def _missing_in_variant(node: Node) -> list[Problem]:
    meaning = {"format": "the version of the file format: 1", "name": "what this variant is called"}
    return [
        node.place.problem(field, f"missing; it is {text}")
        for field, text in meaning.items()
        if field not in node.fields
    ]


def _merge_value(old: Node | None, new: Node) -> Node:
    if old is None or not isinstance(old.value, dict) or not isinstance(new.value, dict):
        return new
    fields = dict(old.fields)
    for key, value in new.value.items():
        fields[key] = _merge_value(fields.get(key), value)
    if _is_price(old) and "source" not in new.fields and fields != old.fields:
        fields.pop("source", None)
        return Node(fields, new.place)
    return Node(fields, old.place)


def _is_price(group: Node) -> bool:
    """Energy and power name their source in the same small group."""
    return "source" in group.fields and ("energy" in group.fields or "power" in group.fields)


def _merge_parts(key: str, old: Node, new: Node, problems: list[Problem]) -> Node:
    parts = list(old.items)
    for part in new.items:
        names = [known.text("name") for known in parts]
        name = part.text("name")
        if name is None:
            parts.append(part)  # validation reports the missing name
        elif "remove" in part.fields:
            _remove(parts, names, name, part, problems)
        elif name in names:
            position = names.index(name)
            parts[position] = _merge_part(parts[position], _without_after(part, problems))
        else:
            parts.insert(_position(key, names, name, part, problems), part.without("after"))
    return Node(parts, old.place)


def _merge_part(old: Node, new: Node) -> Node:
    if "kind" in new.fields and new.text("kind") != old.text("kind"):
        return new
    merged = _merge_value(old, new.without("name", "source"))
    source = merged_source(old, new, merged)
    return merged.without("source") if source is None else merged.with_fields({"source": source})


def _without_after(part: Node, problems: list[Problem]) -> Node:
    if "after" in part.fields:
        name = part.text("name")
        problems.append(
            part.fields["after"].place.problem(
                f"{name}.after", f"'{name}' has its place already; 'after' is for new parts"
            )
        )
    return part.without("after")


def _remove(parts: list[Node], names: list[str | None], name: str, part: Node, problems: list[Problem]) -> None:
    place = part.fields["remove"].place
    others = sorted(set(part.fields) - {"name", "remove"})
    if part.fields["remove"].value is not True:
        problems.append(place.problem(f"{name}.remove", "must be true; leave it out to keep the part"))
    elif others:
        problems.append(
            place.problem(f"{name}.remove", f"a part that is removed has no other fields, found {others[0]}")
        )
    elif name not in names:
        problems.append(_unknown_part(place, f"{name}.remove", name, names))
    else:
        del parts[names.index(name)]


def _position(key: str, names: list[str | None], name: str, part: Node, problems: list[Problem]) -> int:
    after = part.fields.get("after")
    if after is None:
        if key == _LIST_OF_LEVELS:
            known = [known for known in names if known]
            example = known[0] if known else "l1"
            message = f"'{name}' is a new level; say which level it follows, such as 'after: {example}'"
            message += did_you_mean(name, known)
            problems.append(part.place.problem(f"{name}.after", message))
        return len(names)
    if after.value not in names:
        problems.append(_unknown_part(after.place, f"{name}.after", str(after.value), names))
        return len(names)
    return names.index(str(after.value)) + 1


def _unknown_part(place: Place, field: str, name: str, names: list[str | None]) -> Problem:
    known = [known for known in names if known]
    return place.problem(field, f"there is no '{name}'; known: {', '.join(known)}{did_you_mean(name, known)}")
