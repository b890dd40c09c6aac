"""Record: data that a result is made of, read by attribute, and by name as its JSON is."""

from __future__ import annotations

import collections.abc
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from math import isfinite
from typing import Any, Self, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Record(Mapping[str, Any]):
    """A dataclass that also reads as the JSON it becomes: ``work.flops`` and ``work["flops"]`` are the same."""

    def __iter__(self) -> Iterator[str]:
        """The names in JSON."""
        return (each.name for each in fields(self))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Any:
        if name not in list(self):
            raise KeyError(name)
        return getattr(self, name)

    def __or__(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """With further entries, as of two dictionaries."""
        return {**self, **more}

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in the order of the fields."""
        return {name: plain(self[name]) for name in self}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The same from plain data; classes with records inside make those first."""
        return cls(**{each.name: data[each.name] for each in fields(cls)})


def plain(value: Any) -> Any:
    """What JSON has instead of records, mappings and tuples: dictionaries and lists."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value


class Signed(float):
    """A number that may be negative, where JSON is checked."""


def mismatch(declared: Any, value: Any, path: str) -> str:
    """What about JSON data is not as a type declares it, with its place; nothing where all is.

    Numbers are finite and not negative: counts, times, energies and shares are all that results are made of.
    """
    origin, inner = get_origin(declared), get_args(declared)
    if origin in (Union, types.UnionType):
        found = [mismatch(choice, value, path) for choice in inner]
        return "" if "" in found else min(found, key=len)
    if declared is None or declared is type(None):
        return "" if value is None else f"{path}: must be null, found {_cut(value)}"
    if declared is Any:
        return _unfit(value, path)
    if isinstance(declared, type) and is_dataclass(declared):
        return _mismatch_in_record(declared, value, path)
    if origin in (dict, collections.abc.Mapping):
        if not isinstance(value, dict):
            return f"{path}: must be an object, found {_cut(value)}"
        return _first(mismatch(inner[1], each, f"{path}.{name}") for name, each in value.items())
    if origin is tuple:
        if not isinstance(value, list):
            return f"{path}: must be a list, found {_cut(value)}"
        return _first(mismatch(inner[0], each, f"{path}[{number}]") for number, each in enumerate(value))
    if declared is Signed:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
        return "" if fits else f"{path}: must be a finite number, found {_cut(value)}"
    if declared in (int, float):
        allowed = int if declared is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, allowed):
            return f"{path}: must be {'a whole number' if declared is int else 'a number'}, found {_cut(value)}"
        return _unfit(value, path)
    if not isinstance(value, declared):
        return f"{path}: must be {_NAMES.get(declared, declared.__name__)}, found {_cut(value)}"
    return ""


_NAMES = {str: "text", bool: "true or false"}
_LARGEST = 1e30


def _mismatch_in_record(declared: type, value: Any, path: str) -> str:
    if not isinstance(value, dict):
        return f"{path}: must be an object, found {_cut(value)}"
    declared_fields, open_ended = _declared_fields(declared)
    for name, kind in declared_fields.items():
        if name not in value:
            return f"{path}.{name}: missing"
        if wrong := mismatch(kind, value[name], f"{path}.{name}"):
            return wrong
    strange = [name for name in value if name not in declared_fields]
    if strange and not open_ended:
        return f"{path}.{strange[0]}: no result has this field"
    return _first(_unfit(value[name], f"{path}.{name}") for name in strange)


@lru_cache(maxsize=64)
def _declared_fields(declared: Any) -> tuple[dict[str, Any], bool]:
    """The fields of a record with their types; and whether it may have more, as one class of machines has to tell."""
    hints = get_type_hints(declared)
    found = {each.name: hints[each.name] for each in fields(declared)}
    return found, found.pop("use", None) is not None


def _unfit(value: Any, path: str) -> str:
    """A number that is none, at any depth."""
    if isinstance(value, dict):
        return _first(_unfit(each, f"{path}.{name}") for name, each in value.items())
    if isinstance(value, list):
        return _first(_unfit(each, f"{path}[{number}]") for number, each in enumerate(value))
    asked = path.startswith("resolved.")  # what a user wrote may be negative: an axis, a factor
    if isinstance(value, int | float) and not (-_LARGEST if asked else 0) <= value <= _LARGEST:
        return f"{path}: must be a finite number of at least 0, found {_cut(value)}"
    return ""


def _first(found: Iterator[str]) -> str:
    return next((text for text in found if text), "")


def _cut(value: Any) -> str:
    text = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def finite(value: Any) -> Any:
    """The same data with null for what is no number: JSON has no infinity, and an error may be one."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value
