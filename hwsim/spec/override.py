"""``--set path=value``: a variant made on the command line, with the same checks as a file.

Paths are those that messages use: ``l1.size``, ``core.simd.bits``, ``dram.timing.cl``,
``clock.core.frequency``, ``energy.actions.l1.read.energy``. A level may be named with its unit before it:
``core.l1.size``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args, get_origin

from pydantic import BaseModel

from hwsim.errors import OverrideError, Problem
from hwsim.spec.document import Node, NodePath, Place, parse_value
from hwsim.spec.extends import merge
from hwsim.spec.fields import PART_LISTS, choices, declared_at, did_you_mean, model_at, model_of, shown_path

_FIXED = ("name", "kind", "source")
_PRICES = (("energy", "actions"), ("energy", "static"), ("energy", "tdp"))
_SOURCE = "set on the command line"


def apply_overrides(model: type[BaseModel], node: Node, overrides: Sequence[str]) -> Node:
    """The data with each ``path=value`` laid over it. Raises OverrideError with all that do not fit."""
    wrong: list[str] = []
    for override in overrides:
        try:
            node = _apply(model, node, override)
        except ValueError as error:
            wrong.append(f"--set {override}: {error}")
    if wrong:
        raise OverrideError("\n".join(wrong))
    return node


def known_paths(model: type[BaseModel], node: Node) -> Iterator[str]:
    """Every path that can be set in this file."""
    for key, prefix in PART_LISTS.items():
        parts = node.fields.get(key)
        for index, part in enumerate(parts.items if parts is not None and key in model.model_fields else ()):
            part_model = model_at(model, node, (key, index))
            if part_model is not None and part.text("name"):
                yield from _paths_in(part_model, part, f"{prefix}{part.text('name')}.", _FIXED)
    yield from _paths_in(model, node, "", (*PART_LISTS, "format"))


def _apply(model: type[BaseModel], node: Node, override: str) -> Node:
    path_text, equals, value_text = override.partition("=")
    if not equals:
        raise ValueError("write it as path=value, such as l1.size=64 KiB")
    path_text = path_text.strip()
    path = _find_path(model, node, path_text.split("."))
    if path is None:
        near = did_you_mean(path_text, known_paths(model, node), cutoff=0.5)
        raise ValueError(f"there is no '{path_text}' to set{near}")
    if not value_text.strip():
        raise ValueError(f"no value for {path_text}; write null to take a value away")
    place = Place(f"--set {override}", 0)
    value = parse_value(value_text.strip(), place)
    if node.nearest(path).plain() == value.plain() and shown_path(node, path) in known_paths(model, node):
        return node
    problems: list[Problem] = []
    merged = merge(node, _patch(node, path, value), problems)
    assert not problems, "a patch names only parts that exist"
    return merged


def _find_path(model: type[BaseModel], node: Node, words: list[str]) -> NodePath | None:
    start, rest = _start(model, node, words)
    path = start
    while rest:
        declared = declared_at(model, node, path) if path else None
        group = model_at(model, node, path)
        if group is not None:
            fixed = _FIXED if path and path[0] in PART_LISTS and len(path) == 2 else ()
            if rest[0] not in group.model_fields or rest[0] in fixed or (not path and rest[0] in PART_LISTS):
                return None
            path, rest = (*path, rest[0]), rest[1:]
        elif declared is not None and any(get_origin(choice) is dict for choice in choices(declared.annotation)):
            mapping = next(choice for choice in choices(declared.annotation) if get_origin(choice) is dict)
            key_words = len(rest) - 1 if model_of(get_args(mapping)[1], None) is not None else len(rest)
            if key_words == 0:
                return None
            path, rest = (*path, ".".join(rest[:key_words])), rest[key_words:]
        else:
            return None
    return path if len(path) > len(start) else None


def _start(model: type[BaseModel], node: Node, words: list[str]) -> tuple[NodePath, list[str]]:
    """The part that the first words name, and the words after it."""
    for key, prefix in PART_LISTS.items():
        if key not in model.model_fields:
            continue
        parts = node.fields.get(key)
        names = [part.text("name") for part in parts.items] if parts is not None else []
        own = words[1:] if prefix and words[0] == prefix.removesuffix(".") else words if not prefix else []
        if not own or own[0] not in names:
            continue
        inner = _start(model, node, own[1:]) if key == "compute" and len(own) > 1 else ((), [])
        if inner[0] and inner[0][0] == "memory":
            return inner
        return (key, names.index(own[0])), own[1:]
    return (), words


def _patch(node: Node, path: NodePath, value: Node) -> Node:
    """A variant that holds nothing but the one value, and says where it comes from."""
    place = value.place
    source = Node(_SOURCE, place)
    if path[0] in PART_LISTS:
        fields = path[2:]
        part = _nested(fields, value)
        name = Node(node.nearest(path[:2]).text("name"), place)
        dotted = Node({".".join(str(field) for field in fields): source}, place)
        named = part.with_fields({"name": name, "source": dotted} if _sourced(node, path) else {"name": name})
        return Node({str(path[0]): Node([named], place)}, place)
    if path[:2] in _PRICES and path[-1] in ("energy", "controller", "power", "clock"):
        return _nested(path[:-1], Node({str(path[-1]): value, "source": source}, place))
    return _nested(path, value)


def _sourced(node: Node, path: NodePath) -> bool:
    return node.nearest(path[:2]).fields.get("source") is not None


def _nested(path: NodePath, value: Node) -> Node:
    for part in reversed(path):
        value = Node({str(part): value}, value.place)
    return value


def _paths_in(model: type[BaseModel], node: Node, prefix: str, left_out: Sequence[str]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if name in left_out:
            continue
        inner = model_of(field.annotation, None)
        here = node.fields.get(name)
        if inner is not None:
            yield from _paths_in(
                inner, here if here is not None else node.without(*node.fields), f"{prefix}{name}.", ()
            )
            continue
        mapping = next((choice for choice in choices(field.annotation) if get_origin(choice) is dict), None)
        if mapping is None:
            yield prefix + name
        for key, child in here.fields.items() if mapping is not None and here is not None else ():
            price = model_of(get_args(mapping)[1], None)
            if price is None:
                yield f"{prefix}{name}.{key}"
            else:
                yield from _paths_in(price, child, f"{prefix}{name}.{key}.", ())
