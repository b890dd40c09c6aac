"""Fields of specs by their paths: what is declared, where a number comes from, a spec as data, YAML or JSON Schema.

Messages and ``--set`` paths look a field up here.

A physical number is any number that was written into a part (a clock, a unit, a level) or an energy price:
sizes, times, rates, ways, ports, widths, counts. How many units share a level is structure, not measurement,
and needs no source. ``source: text`` covers every number of its part, also in groups inside it such as
``ports`` or ``timing``; ``source: {size: text, timing.cl: text}`` covers the fields or groups that it names.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from hwsim.errors import Problem
from hwsim.spec.base import KNOWN_FORMATS
from hwsim.spec.document import NodePath, YamlNode, scalar
from hwsim.spec.machine import KINDS, ComputeSpec, unit_spec
from hwsim.units import HIDDEN, listed

PART_LISTS: Mapping[str, str] = {"clocks": "clock.", "compute": "", "memory": ""}
"""Lists of named parts, and what a path puts before the name: `l1.size`, but `clock.core.frequency`."""


@dataclass(frozen=True)
class Finding:
    """Something wrong with the field at a path into a file's data."""

    path: NodePath
    message: str

    def problem(self, node: YamlNode) -> Problem:
        """With the place at which the field, or the group that lacks it, was written."""
        return node.nearest(self.path).place.problem(shown_path(node, self.path), self.message)


@dataclass(frozen=True)
class Declared:
    """A field as its spec declares it."""

    annotation: Any
    description: str


def declared_at(model: type[BaseModel], node: YamlNode, path: NodePath) -> Declared | None:
    """The declaration behind a path into a file's data; the data tells which variant of a part it is."""
    found: Declared | None = Declared(model, "")
    here: YamlNode | None = node
    for part in path:
        found = _inside(found.annotation, here, part) if found is not None else None
        here = here.child(part) if here is not None else None
    return found


def model_at(model: type[BaseModel], node: YamlNode, path: NodePath) -> type[BaseModel] | None:
    """The model of the group at a path, if a group is what belongs there."""
    declared = declared_at(model, node, path)
    return model_of(declared.annotation, node.nearest(path)) if declared is not None else None


def model_of(annotation: Any, node: YamlNode | None) -> type[BaseModel] | None:
    """The model that an annotation leads to; among variants, the one that the data's ``kind`` (or ``op``) names."""
    if annotation is ComputeSpec:
        unit = node.text("kind") if node is not None else None
        return unit_spec(unit) if unit in KINDS else None
    models = [choice for choice in choices(annotation) if isinstance(choice, type) and issubclass(choice, BaseModel)]
    if len(models) < 2:
        return models[0] if models else None
    field = variant_field(annotation)
    kind = node.text(field) if node is not None else None
    return next((model for model in models if kind in get_args(model.model_fields[field].annotation)), None)


def variant_field(annotation: Any) -> str:
    """The field that tells the variants of a part apart: ``kind`` in machines, ``op`` in chains."""
    models = [choice for choice in choices(annotation) if isinstance(choice, type) and issubclass(choice, BaseModel)]
    return "kind" if all("kind" in model.model_fields for model in models) else "op"


def choices(annotation: Any) -> Iterator[Any]:
    """The members of a union (one, if it is none), without ``Annotated`` around them."""
    if annotation is ComputeSpec:
        yield from map(unit_spec, KINDS)
    elif get_origin(annotation) is Annotated:
        yield from choices(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from choices(member)
    else:
        yield annotation


def literals(annotation: Any) -> list[Any]:
    """The values that a field lists, if it does."""
    return [value for choice in choices(annotation) if get_origin(choice) is Literal for value in get_args(choice)]


def shown_path(node: YamlNode, path: NodePath) -> str:
    """How messages write a path: parts by their names, ``l1.size`` rather than ``memory.1.size``."""
    parts = list(path)
    start = ""
    if len(parts) >= 2 and parts[0] in PART_LISTS and isinstance(parts[1], int):
        name = node.nearest(parts[:2]).text("name")
        start = f"{PART_LISTS[str(parts[0])]}{name}" if name else f"{parts[0]}[{parts[1]}]"
        parts = parts[2:]
    for part in parts:
        start += f"[{part}]" if isinstance(part, int) else f".{part}" if start else part
    return start


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A suggestion to put behind a message, or nothing. All names that begin with the word, where these are few."""
    names = list(dict.fromkeys(known))
    near = near_names(word, names, cutoff)
    words = listed((f"'{name}'" for name in near), "or")
    return f"; did you mean {words}?" if near else ""


_FEWEST_LETTERS = 2
_MOST_BEGUN = 6


def near_names(word: str, names: Sequence[str], cutoff: float = 0.6) -> list[str]:
    """The names that one may have meant by a word, however it is written: large letters, `-` and `.` count as `_`."""
    plain = _plainly(word)
    by_plain = {_plainly(name): name for name in names}
    if plain in by_plain:
        return [by_plain[plain]]
    same = [name for name in names if plain in OTHER_NAMES.get(name, ())]
    begun = [name for each, name in by_plain.items() if each.startswith(f"{plain}_")]  # fp8 is fp8_e4m3, not mxfp8
    if len(plain) >= _FEWEST_LETTERS:
        begun = begun or [name for each, name in by_plain.items() if each.startswith(plain)]
    close = difflib.get_close_matches(plain, by_plain, n=1, cutoff=cutoff)
    near = same[:1] or (begun if len(begun) <= _MOST_BEGUN else []) or [by_plain[each] for each in close]
    return near or [by_plain[part] for part in plain.split("_") if part in by_plain][:1]  # vector_add is add


def _plainly(word: str) -> str:
    return re.sub(r"[-. ]", "_", word.casefold())


def check_read(reader: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raises ValueError where a name is read that nothing before makes."""
    for name in names:
        if name not in known:
            raise ValueError(f"{reader} reads {name}, which nothing before it makes{did_you_mean(name, sorted(known))}")


def check_sizes(where: str, extents: Iterable[object], sizes: Mapping[str, int]) -> None:
    """Raises ValueError where an extent is the name of a size that is not there."""
    for extent in extents:
        if isinstance(extent, str) and extent not in sizes:
            raise ValueError(f"{where}: no size {extent}{did_you_mean(extent, sorted(sizes))}")


OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "fp64": ("float64", "double"),
    "fp32": ("float32", "float"),
    "fp16": ("float16", "half"),
    "bf16": ("bfloat16",),
    "matmul": ("gemm", "sgemm", "dgemm", "hgemm", "linear", "mm"),
    "matmul_batched": ("bmm",),
    "matvec": ("gemv", "sgemv", "dgemv", "mv"),
    "triad": ("axpy", "saxpy", "daxpy"),
    "conv2d": ("conv",),
    "attention_fused": ("flash_attention", "flashattention", "sdpa"),
}
"""What NumPy, PyTorch and libraries call the same."""


def _inside(annotation: Any, node: YamlNode | None, part: str | int) -> Declared | None:
    model = model_of(annotation, node)
    if model is not None:
        field = model.model_fields.get(str(part))
        return Declared(field.annotation, field.description or "") if field is not None else None
    for choice in choices(annotation):
        if get_origin(choice) is tuple and isinstance(part, int):
            return Declared(get_args(choice)[0], "")
        if get_origin(choice) is dict and isinstance(part, str):
            return Declared(get_args(choice)[1], "")
    return None


_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_VARIANT = "Variant"
_EXTENDS = {
    "type": "string",
    "description": "The machine or workload that this file changes: a name, or a path from this file.",
}
_AFTER = {"type": "string", "description": "The part that this new part follows."}
_REMOVE = {"const": True, "description": "Leave this part out of the variant."}


def as_data(spec: BaseModel) -> dict[str, Any]:
    """Every field with its value, defaults included; quantities as text with their unit."""
    data = spec.model_dump(mode="json")
    _drop_empty_sources(data)
    return data


def as_yaml(spec: BaseModel) -> str:
    text = yaml.dump(as_data(spec), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # they stand between double quotes


def json_schema(title: str, declared: Any) -> dict[str, Any]:
    """What an editor needs to complete and check a file: a whole file, or a variant with ``extends``.

    ``declared`` is a model, or a union of models that a field tells apart.
    """
    whole = TypeAdapter(declared).json_schema(schema_generator=_Schema)
    definitions = whole.pop("$defs", {})
    if "properties" in whole:
        definitions[whole["title"]] = whole
        whole = {"$ref": f"#/$defs/{whole['title']}"}
    partial = {f"{name}{_VARIANT}": _as_variant(definition) for name, definition in definitions.items()}
    files = _references(whole)
    for name in files:
        _allow(partial[f"{name}{_VARIANT}"], ["format", "name", "extends"], extends=_EXTENDS)
    for name in _references([definitions[file]["properties"].get(key) for file in files for key in PART_LISTS]):
        _allow(partial[f"{name}{_VARIANT}"], ["name"], after=_AFTER, remove=_REMOVE)
    variant = copy.deepcopy(whole)
    _retarget(variant)
    return {
        "$schema": _SCHEMA_DIALECT,
        "title": title,
        "if": {"required": ["extends"]},
        "then": variant,
        "else": whole,
        "$defs": definitions | partial,
    }


def _allow(definition: dict[str, Any], required: list[str], **fields: dict[str, Any]) -> None:
    definition["required"] = required
    definition["properties"] |= fields


def _as_variant(definition: dict[str, Any]) -> dict[str, Any]:
    """Nothing is required, because the rest comes from the file that is extended."""
    variant = copy.deepcopy(definition)
    _retarget(variant)
    variant.pop("required", None)
    if "title" in variant:
        variant["title"] += _VARIANT
    return variant


def _retarget(data: Any) -> None:
    """Point references at the variants' definitions, and no longer insist on a `kind`."""
    if isinstance(data, dict):
        data.pop("discriminator", None)
        data.pop("minItems", None)
        if "oneOf" in data:
            data["anyOf"] = data.pop("oneOf")
        if isinstance(data.get("$ref"), str):
            data["$ref"] += _VARIANT
        for child in data.values():
            _retarget(child)
    elif isinstance(data, list):
        for child in data:
            _retarget(child)


def _references(schema: Any) -> set[str]:
    """The names of the definitions that a piece of schema refers to."""
    return {piece.split('"')[0] for piece in json.dumps(schema).split('"#/$defs/')[1:]}


def _drop_empty_sources(data: Any) -> None:
    if isinstance(data, dict):
        if "source" in data and data["source"] is None:
            del data["source"]
        for child in data.values():
            _drop_empty_sources(child)
    elif isinstance(data, list):
        for child in data:
            _drop_empty_sources(child)


class _Schema(GenerateJsonSchema):
    """Writes defaults as a file would, `64 B` rather than 64."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> dict[str, Any]:
        described = super().default_schema(schema)
        serialization: Any = schema["schema"].get("serialization", {})
        if "default" in described and serialization.get("type") == "function-plain":
            described["default"] = serialization["function"](schema["default"])
        return described


class _Dumper(yaml.SafeDumper):
    """Indents lists under their key, and quotes text that hwsim's own reader would take for a number."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)

    def quoted_where_needed(self, text: str) -> yaml.ScalarNode:
        style = '"' if HIDDEN.search(text) else None if isinstance(scalar(text), str) else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.quoted_where_needed)


_STRUCTURE = frozenset(("name", "kind", "clock", "shared_by", "source", "after", "remove"))
_NUMBER = re.compile(r"\s*[-+]?[.]?\d|\s*[.]?inf\b")


def sources(node: YamlNode) -> dict[str, str | None]:
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


def part_sources(part: YamlNode) -> dict[str, YamlNode | None]:
    """For each number of a part, by its path within the part: the source that covers it, or None."""
    source = part.fields.get("source")
    return {number: _covering(source, number) for number in _numbers(part, "")}


def merged_source(old: YamlNode, new: YamlNode, merged: YamlNode) -> YamlNode | None:
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
    return YamlNode(texts | strays, new.fields.get("source", new).place)


def check_sources(model: type[BaseModel], node: YamlNode) -> Iterator[Finding]:
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


def _parts(node: YamlNode) -> Iterator[tuple[NodePath, YamlNode]]:
    for key in PART_LISTS:
        parts = node.fields.get(key)
        for index, part in enumerate(parts.items if parts is not None else ()):
            yield (key, index), part


def _numbers(group: YamlNode, prefix: str) -> Iterator[str]:
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


def _covering(source: YamlNode | None, number: str) -> YamlNode | None:
    if source is None or isinstance(source.value, str):
        return source
    names = number.split(".")
    prefixes = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((source.fields[prefix] for prefix in prefixes if prefix in source.fields), None)


def _strays(part: YamlNode, covered: Mapping[str, YamlNode | None]) -> dict[str, YamlNode]:
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


def unknown_formats(path: NodePath, name: str, accumulate: str) -> Iterator[Finding]:
    """What is wrong with a format that a unit computes in, found at a path, and with the one that it sums in."""
    yield from unknown_format(path, name)
    yield from unknown_format((*path, "accumulate"), accumulate)


def unknown_format(path: NodePath, name: str) -> Iterator[Finding]:
    """What is wrong with the name of a number format."""
    if name not in KNOWN_FORMATS:
        message = f"'{name}' is not one of the number formats {', '.join(KNOWN_FORMATS)}"
        yield Finding(path, message + did_you_mean(name, KNOWN_FORMATS))
