"""What the specs declare: which model stands behind a field, what its fields are called, what they mean.

Messages, ``--set`` paths and the check of sources all need to look a field up by its path; they do it here.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from hwsim.errors import Problem
from hwsim.spec.document import Node, NodePath

PART_LISTS: Mapping[str, str] = {"clocks": "clock.", "compute": "", "memory": ""}
"""Lists of named parts, and what a path puts before the name: `l1.size`, but `clock.core.frequency`."""


@dataclass(frozen=True)
class Finding:
    """Something wrong with the field at a path into a file's data."""

    path: NodePath
    message: str

    def problem(self, node: Node) -> Problem:
        """With the place at which the field, or the group that lacks it, was written."""
        return node.nearest(self.path).place.problem(shown_path(node, self.path), self.message)


@dataclass(frozen=True)
class Declared:
    """A field as its spec declares it."""

    annotation: Any
    description: str


def declared_at(model: type[BaseModel], node: Node, path: NodePath) -> Declared | None:
    """The declaration behind a path into a file's data; the data tells which variant of a part it is."""
    found: Declared | None = Declared(model, "")
    here: Node | None = node
    for part in path:
        found = _inside(found.annotation, here, part) if found is not None else None
        here = here.child(part) if here is not None else None
    return found


def model_at(model: type[BaseModel], node: Node, path: NodePath) -> type[BaseModel] | None:
    """The model of the group at a path, if a group is what belongs there."""
    declared = declared_at(model, node, path)
    return model_of(declared.annotation, node.nearest(path)) if declared is not None else None


def model_of(annotation: Any, node: Node | None) -> type[BaseModel] | None:
    """The model that an annotation leads to; among variants, the one that the data's ``kind`` (or ``op``) names."""
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
    if get_origin(annotation) is Annotated:
        yield from choices(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from choices(member)
    else:
        yield annotation


def literals(annotation: Any) -> list[Any]:
    """The values that a field lists, if it does."""
    return [value for choice in choices(annotation) if get_origin(choice) is Literal for value in get_args(choice)]


def shown_path(node: Node, path: NodePath) -> str:
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
    """A suggestion to put behind a message, or nothing."""
    names = list(known)
    by_folded = {name.casefold(): name for name in names}
    if word.casefold() in by_folded:
        return f"; did you mean '{by_folded[word.casefold()]}'?"
    near = difflib.get_close_matches(word, names, n=1, cutoff=cutoff)
    return f"; did you mean '{near[0]}'?" if near else ""


def _inside(annotation: Any, node: Node | None, part: str | int) -> Declared | None:
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
