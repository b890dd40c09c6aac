"""Variants: ``extends: NAME`` and ``--set path=value`` change fields of another file, with the same checks as a file.

Groups are merged field by field, and lists of named parts (clocks, compute, memory) by the names of the
parts: a part with a known name is changed, one with a new name is added (a level says ``after: NAME``), and
one with ``remove: true`` is dropped. A part whose ``kind`` differs replaces the old one. Any other list, and
any single value, is replaced. ``null`` takes a value away.

Paths are those that messages use: ``l1.size``, ``core.simd.bits``, ``dram.timing.cl``,
``clock.core.frequency``, ``energy.actions.l1.read.energy``. A level may be named with its unit before it:
``core.l1.size``.

``key=value`` on the command line: sizes, schedule and precision of a workload by their plain names.

n=256 tile=32 order=ikj precision=fp64
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from hwsim.errors import CatalogError, OverrideError, Problem
from hwsim.spec.document import NodePath, Place, YamlNode, parse_value, read_document
from hwsim.spec.fields import (
    PART_LISTS,
    choices,
    declared_at,
    did_you_mean,
    literals,
    merged_source,
    model_at,
    model_of,
    shown_path,
)
from hwsim.spec.workload import AUTO, NAMES, NUMBERS, WorkloadSpec, is_choice, is_tile

_LIST_OF_LEVELS = "memory"
MOST_ANCESTORS = 32


@dataclass(frozen=True)
class ResolvedDocument:
    """A file with everything that it extends merged in."""

    node: YamlNode
    files: tuple[Path, ...]
    problems: tuple[Problem, ...]
    roots: tuple[YamlNode, ...]
    """What each of the files holds by itself: the same objects as long as they hold the same text."""


@dataclass(frozen=True)
class Finder:
    """How files are found by the name after ``extends``, and what messages call them."""

    find: Callable[[str, Path], Path]
    show: Callable[[Path], str]


def resolve(path: Path, shown: str, finder: Finder, chain: tuple[Path, ...] = ()) -> ResolvedDocument:
    """Read a file and its ancestors. ``chain`` holds the files that led here."""
    node, problems = read_document(path, shown)
    extends = node.fields.get("extends")
    if extends is None:
        return ResolvedDocument(node, (path,), tuple(problems), (node,))
    child = node.without("extends")
    chain = (*chain, path)
    problems += _missing_in_variant(node)
    try:
        parent_path = _find_parent(extends, path, chain, finder)
    except CatalogError as error:
        problem = extends.place.problem("extends", str(error))
        return ResolvedDocument(child, chain, (*problems, problem), (node,))
    parent = resolve(parent_path, finder.show(parent_path), finder, chain)
    found = [*problems, *parent.problems]
    merged = merge(parent.node, child, found)
    return ResolvedDocument(
        YamlNode(merged.value, child.place), (path, *parent.files), tuple(found), (node, *parent.roots)
    )


def merge(parent: YamlNode, child: YamlNode, problems: list[Problem]) -> YamlNode:
    """The parent with the child's fields laid over it."""
    fields = dict(parent.fields)
    for key, new in child.fields.items():
        old = fields.get(key)
        if key in PART_LISTS and old is not None and isinstance(old.value, list) and isinstance(new.value, list):
            fields[key] = _merge_parts(key, old, new, problems)
        else:
            fields[key] = _merge_value(old, new)
    return YamlNode(fields, parent.place)


def _find_parent(extends: YamlNode, path: Path, chain: tuple[Path, ...], finder: Finder) -> Path:
    if not isinstance(extends.value, str):
        raise CatalogError("must be the name of a machine or workload, or the path of a file")
    names = [finder.show(file) for file in chain]
    try:
        parent = finder.find(extends.value, path.parent)
    except CatalogError as error:
        raise CatalogError(
            f"{error} (in {' → '.join([*names, extends.value])})" if len(names) > 1 else str(error)
        ) from error
    if len(chain) > MOST_ANCESTORS:
        raise CatalogError(f"{len(chain)} files extend each other; at most {MOST_ANCESTORS}, or nobody finds a number")
    if parent.resolve() in [file.resolve() for file in chain]:
        raise CatalogError(f"goes round in a circle: {' → '.join([*names, finder.show(parent)])}")
    return parent


def _missing_in_variant(node: YamlNode) -> list[Problem]:
    meaning = {"format": "the version of the file format: 1", "name": "what this variant is called"}
    return [
        node.place.problem(field, f"missing; it is {text}")
        for field, text in meaning.items()
        if field not in node.fields
    ]


def _merge_value(old: YamlNode | None, new: YamlNode) -> YamlNode:
    if old is None or not isinstance(old.value, dict) or not isinstance(new.value, dict):
        return new
    fields = dict(old.fields)
    for key, value in new.value.items():
        fields[key] = _merge_value(fields.get(key), value)
    if _is_price(old) and "source" not in new.fields and fields != old.fields:
        fields.pop("source", None)
        return YamlNode(fields, new.place)
    return YamlNode(fields, old.place)


def _is_price(group: YamlNode) -> bool:
    """Energy and power name their source in the same small group."""
    return "source" in group.fields and ("energy" in group.fields or "power" in group.fields)


def _merge_parts(key: str, old: YamlNode, new: YamlNode, problems: list[Problem]) -> YamlNode:
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
    return YamlNode(parts, old.place)


def _merge_part(old: YamlNode, new: YamlNode) -> YamlNode:
    if "kind" in new.fields and new.text("kind") != old.text("kind"):
        return new
    merged = _merge_value(old, new.without("name", "source"))
    source = merged_source(old, new, merged)
    return merged.without("source") if source is None else merged.with_fields({"source": source})


def _without_after(part: YamlNode, problems: list[Problem]) -> YamlNode:
    if "after" in part.fields:
        name = part.text("name")
        problems.append(
            part.fields["after"].place.problem(
                f"{name}.after", f"'{name}' has its place already; 'after' is for new parts"
            )
        )
    return part.without("after")


def _remove(parts: list[YamlNode], names: list[str | None], name: str, part: YamlNode, problems: list[Problem]) -> None:
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


def _position(key: str, names: list[str | None], name: str, part: YamlNode, problems: list[Problem]) -> int:
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


_FIXED = ("name", "kind", "source")
_PRICES = (("energy", "actions"), ("energy", "static"), ("energy", "tdp"))
_SOURCE = "set on the command line"


def apply_overrides(model: type[BaseModel], node: YamlNode, overrides: Sequence[str]) -> YamlNode:
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


def known_paths(model: type[BaseModel], node: YamlNode) -> Iterator[str]:
    """Every path that can be set in this file."""
    for key, prefix in PART_LISTS.items():
        parts = node.fields.get(key)
        for index, part in enumerate(parts.items if parts is not None and key in model.model_fields else ()):
            part_model = model_at(model, node, (key, index))
            if part_model is not None and part.text("name"):
                yield from _paths_in(part_model, part, f"{prefix}{part.text('name')}.", _FIXED)
    yield from _paths_in(model, node, "", (*PART_LISTS, "format"))


def _apply(model: type[BaseModel], node: YamlNode, override: str) -> YamlNode:
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


def _find_path(model: type[BaseModel], node: YamlNode, words: list[str]) -> NodePath | None:
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


def _start(model: type[BaseModel], node: YamlNode, words: list[str]) -> tuple[NodePath, list[str]]:
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


def _patch(node: YamlNode, path: NodePath, value: YamlNode) -> YamlNode:
    """A variant that holds nothing but the one value, and says where it comes from."""
    place = value.place
    source = YamlNode(_SOURCE, place)
    if path[0] in PART_LISTS:
        fields = path[2:]
        part = _nested(fields, value)
        name = YamlNode(node.nearest(path[:2]).text("name"), place)
        dotted = YamlNode({".".join(str(field) for field in fields): source}, place)
        named = part.with_fields({"name": name, "source": dotted} if _sourced(node, path) else {"name": name})
        return YamlNode({str(path[0]): YamlNode([named], place)}, place)
    if path[:2] in _PRICES and path[-1] in ("energy", "controller", "power", "clock"):
        return _nested(path[:-1], YamlNode({str(path[-1]): value, "source": source}, place))
    return _nested(path, value)


def _sourced(node: YamlNode, path: NodePath) -> bool:
    return node.nearest(path[:2]).fields.get("source") is not None


def _nested(path: NodePath, value: YamlNode) -> YamlNode:
    for part in reversed(path):
        value = YamlNode({str(part): value}, value.place)
    return value


def _paths_in(model: type[BaseModel], node: YamlNode, prefix: str, left_out: Sequence[str]) -> Iterator[str]:
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


TOP = ("precision", "accumulate", "chunk", "scale", "scale_block", "convert", "distribution", "seed")
"""Parameters that every workload has."""
_GROUPS = ("sizes", "schedule", "use")


@dataclass(frozen=True)
class Key:
    """What a key leads to, the type that belongs there, and how messages describe it."""

    path: tuple[str, ...]
    annotation: Any
    kind: str


def with_parameters(spec: WorkloadSpec, parameters: Mapping[str, object]) -> WorkloadSpec:
    """The workload with some of its numbers replaced; texts are read as a YAML file would read them.

    Raises OverrideError with everything that does not fit.
    """
    keys = parameter_keys(spec)
    data = spec.model_dump(exclude_unset=True)
    wrong: list[str] = []
    for name, value in parameters.items():
        key = locate(spec, name, value, keys)
        if key is None:
            wrong += unknown_parameter(spec, name, keys)
            continue
        keys[name] = key
        if key.path[0] == "choices" and value == AUTO:
            data.get("choices", {}).pop(name, None)
            continue
        try:
            _set(data, key.path, _read(value, key.annotation))
        except ValueError as error:
            wrong.append(f"{name}={value}: {error}")
    if wrong:
        raise OverrideError("\n".join(dict.fromkeys(wrong)))
    try:
        return type(spec).model_validate(data)
    except ValidationError as error:
        messages = [_message(details, keys) for details in error.errors(include_url=False)]
        raise OverrideError("\n".join(dict.fromkeys(messages))) from error


def locate(spec: WorkloadSpec, name: str, value: object, keys: Mapping[str, Key] | None = None) -> Key | None:
    """Where a parameter leads to: a field of the workload, or one of the choices that a machine may read.

    Where an operation has a field of the same name, as `order`, the value tells which one is meant.
    """
    keys = parameter_keys(spec) if keys is None else keys
    own = keys.get(name)
    if own is not None and own.path[0] != "choices" and (name not in NAMES or _is_own(spec, own, value)):
        return _key_for(spec, own, name, value)
    if not is_choice(name):
        return None
    number = is_tile(name) or name in NUMBERS
    return Key(("choices", name), int if number else str, "a whole number" if number else "a word")


def unknown_parameter(spec: WorkloadSpec, name: str, keys: Mapping[str, Key]) -> list[str]:
    """What to say of a name that leads nowhere."""
    near = did_you_mean(name, [*keys, *NAMES])
    group = next((group for group in _GROUPS if group != "schedule" and hasattr(spec, group)), "")
    sizes = ", ".join(each for each, key in keys.items() if key.path[0] == group)
    own = f"; its {'sizes are' if group == 'sizes' else 'parameters are'} {sizes}" if sizes and not near else ""
    return [f"{name}: {spec.name} has no such parameter{near}{own}; hwsim show {spec.name} lists all"]


def _is_own(spec: WorkloadSpec, key: Key, value: object) -> bool:
    """Whether a value is one of the operation's own field: listed there, or made of the names of its loops."""
    listed = literals(key.annotation)
    if listed:
        return value in listed or not is_word(value)
    return not is_word(value) or value in _indices(spec)


def is_word(value: object) -> bool:
    """``mnk``: an order of a machine's own loops over tiles, in one word of two letters at least."""
    return isinstance(value, str) and (value == "auto" or (value.isalpha() and set(value) <= set("bmnkp")))


def parameter_keys(spec: WorkloadSpec) -> dict[str, Key]:
    """Every key that can be set, without the groups around it; entries of free groups under their own names."""
    keys: dict[str, Key] = {}
    for group in _GROUPS:
        value = getattr(spec, group, None)
        if isinstance(value, BaseModel):
            keys |= _group_keys(value, group, spec)
        elif isinstance(value, dict):
            keys |= {n: Key((group, n), type(entry), _describe(type(entry))) for n, entry in value.items()}
    for group in ("mapping", "threads"):
        for name, field in type(getattr(spec, group)).model_fields.items():
            keys[f"{group}.{name}"] = Key((group, name), field.annotation, _describe(field.annotation))
    for name in TOP:
        if name not in keys:
            keys[name] = _top_key(spec, name)
    return keys


def _top_key(spec: WorkloadSpec, name: str) -> Key:
    annotation = type(spec).model_fields[name].annotation
    return Key((name,), annotation, _describe(annotation))


def _key_for(spec: WorkloadSpec, key: Key, name: str, value: object) -> Key:
    """Where two fields share a name, as `accumulate` does in a schedule and in a workload, the value decides."""
    if name not in TOP or len(key.path) == 1:
        return key
    own, outer = literals(key.annotation), _top_key(spec, name)
    if value not in own and (own or value in literals(outer.annotation)):
        return Key(outer.path, outer.annotation, f"{key.kind} | {outer.kind}")
    return key


def describe_keys(keys: Mapping[str, Key]) -> str:
    """``n (a whole number), order (ijk | ikj | …), tile.{i,j,k}``."""
    grouped: dict[str, list[str]] = {}
    for name in keys:
        group, _, field = name.rpartition(".")
        grouped.setdefault(group or name, []).append(field)
    texts = []
    for name, fields in grouped.items():
        texts.append(f"{name} ({keys[name].kind})" if name in keys else f"{name}.{{{','.join(fields)}}}")
    return ", ".join(texts)


def _group_keys(group: BaseModel, name: str, spec: WorkloadSpec) -> dict[str, Key]:
    keys: dict[str, Key] = {}
    for field_name, field in type(group).model_fields.items():
        annotation = field.annotation
        mapping = next((choice for choice in choices(annotation) if get_origin(choice) is dict), None)
        if mapping is None:
            example = field.examples[0] if field.examples else None
            is_quantity = annotation is int and isinstance(example, str)
            kind = f"a size such as {example}" if is_quantity else _describe(annotation)
            keys[field_name] = Key((name, field_name), annotation, kind)
            continue
        entry = get_args(mapping)[1]
        for index in _indices(spec):
            keys[f"{field_name}.{index}"] = Key((name, field_name, index), entry, _describe(entry))
    return keys


def _indices(spec: WorkloadSpec) -> list[str]:
    """The loops of a workload: its own names or, where its sizes are a free group, those of the sizes."""
    sizes = getattr(spec, "sizes", {})
    return list(sizes) if isinstance(sizes, dict) else list(spec.loops)


def _read(value: object, annotation: Any) -> object:
    if not isinstance(value, str):
        return tuple(value) if isinstance(value, list) else value
    if any(get_origin(choice) is tuple for choice in choices(annotation)) and not value.startswith("["):
        return tuple(word.strip() for word in value.split(","))
    read = parse_value(value.strip(), Place("", 0)).plain()
    kinds = list(choices(annotation))
    if isinstance(read, float) and int in kinds and float not in kinds and read.is_integer():
        return int(read)  # 1e3
    return read


def _set(data: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    for part in path[:-1]:
        data = data.setdefault(part, {})
    data[path[-1]] = value


_LISTED = re.compile(r",|\.\.")
"""What makes several values of one, in `hwsim sweep`."""


def _message(details: Mapping[str, Any], keys: Mapping[str, Key]) -> str:
    location = tuple(part for part in details["loc"] if isinstance(part, str))
    found = details["input"]
    for name, key in keys.items():
        if location[: len(key.path)] == key.path:
            if isinstance(found, str) and "commas" not in key.kind and _LISTED.search(found) is not None:
                return f"{name}={found}: one value is needed; hwsim sweep takes several"
            if details["type"] == "value_error":
                return f"{name}={found}: {details['ctx']['error']}"
            near = did_you_mean(str(found), [str(word) for word in literals(key.annotation)])
            limit = f" of at least {details['ctx']['ge']}" if details["type"] == "greater_than_equal" else ""
            return f"{name}={found}: must be {key.kind}{limit}{near}"
    if details["type"] == "value_error":
        return str(details["ctx"]["error"])
    return f"{'.'.join(location)}: {details['msg']}"


def _describe(annotation: Any) -> str:
    words = [str(word) for word in literals(annotation)]
    if words:
        return " | ".join(words)
    kinds = [_kind(choice) for choice in choices(annotation) if choice is not type(None)]
    return " or ".join(dict.fromkeys(kinds))


def _kind(choice: Any) -> str:
    if get_origin(choice) is tuple:
        return "names with commas between"
    return {bool: "true | false", int: "a whole number", str: "text"}.get(choice, "a value")
