"""``key=value`` on the command line: sizes, schedule and precision of a workload by their plain names.

n=256 tile=32 order=ikj precision=fp64
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from hwsim.errors import OverrideError
from hwsim.spec.choices import AUTO, NAMES, NUMBERS, is_choice, is_tile
from hwsim.spec.document import Place, parse_value
from hwsim.spec.fields import choices, did_you_mean, literals
from hwsim.spec.workload import WorkloadSpec

_TOP = ("precision", "accumulate", "chunk", "scale", "scale_block", "convert", "distribution", "seed")
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
    return [
        f"{name}: {spec.name} has no such parameter{near}",
        f"parameters of {spec.op}: {describe_keys(keys)}",
        f"and what its machine reads of tile.LEVEL.AXIS, {', '.join(NAMES)}: hwsim show {spec.name} --on MACHINE",
    ]


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
    for name in _TOP:
        if name not in keys:
            keys[name] = _top_key(spec, name)
    return keys


def _top_key(spec: WorkloadSpec, name: str) -> Key:
    annotation = type(spec).model_fields[name].annotation
    return Key((name,), annotation, _describe(annotation))


def _key_for(spec: WorkloadSpec, key: Key, name: str, value: object) -> Key:
    """Where two fields share a name, as `accumulate` does in a schedule and in a workload, the value decides."""
    if name not in _TOP or len(key.path) == 1:
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
    return parse_value(value.strip(), Place("", 0)).plain()


def _set(data: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    for part in path[:-1]:
        data = data.setdefault(part, {})
    data[path[-1]] = value


def _message(details: Mapping[str, Any], keys: Mapping[str, Key]) -> str:
    location = tuple(part for part in details["loc"] if isinstance(part, str))
    found = details["input"]
    for name, key in keys.items():
        if location[: len(key.path)] == key.path:
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
