"""A spec as data, as YAML that loads again to the same spec, and as a JSON Schema for editors."""

from __future__ import annotations

import copy
import json
from typing import Any

import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from hwsim.spec.document import scalar
from hwsim.spec.fields import PART_LISTS

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
    return yaml.dump(as_data(spec), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


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
        style = None if isinstance(scalar(text), str) else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.quoted_where_needed)
