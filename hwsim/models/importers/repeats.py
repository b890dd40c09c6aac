"""A long list of operations as blocks: layers that follow each other and are alike become one block that repeats.

A program may be cut where one tensor alone goes on. Operations between two cuts belong to the numbered module that the
file names for them (layers.3 of layers.3.attn.out), and those of one module are a block. Neighbours that say the same
but for their number are one block, as often as there are such.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hwsim.models.importers.layers import Data

_NUMBERED = re.compile(r"^(?:[^.]*\.)*?(?:[^.]*_)?\d+(?=\.|$)")
"""The path of a module up to the first part that is a number, or ends in one: encoder.layers.layer_0."""


def find_blocks(operations: Sequence[Data], labels: Mapping[str, str], forms: Mapping[str, Any]) -> list[Data]:
    """Blocks of a model file. Labels are module paths by operation, and forms the shapes that operations make."""
    found: list[Data] = []
    came, names = "input", _Names()
    repeats = False
    for module, own in _modules(operations, labels):
        inner, made = _renamed(own, labels, module, came), forms[own[-1]["name"]]
        if repeats and found[-1]["operations"] == inner:
            found[-1]["repeat"] = found[-1].get("repeat", 1) + 1
        else:  # what it makes has to fit into its next repetition
            repeats = forms.get(came) == made
            found.append({"name": names.unused(plain_name(module) or _first(own, labels)), "operations": inner})
        came = own[-1]["name"]
    return found


def plain_name(path: str) -> str:
    """A path as a name of a model file: letters, digits and underscores, at most sixty."""
    text = re.sub(r"[^a-z0-9]+", "_", path.lower()).strip("_")[-60:].strip("_")
    return text if text[:1].isalpha() else ""


class _Names:
    """Names that were not used before."""

    def __init__(self) -> None:
        self.used: set[str] = {"input", "source"}

    def unused(self, begin: str) -> str:
        name, number = begin, 1
        while name in self.used:
            number += 1
            name = f"{begin}_{number}"
        self.used.add(name)
        return name


def _segments(operations: Sequence[Data]) -> Iterator[list[Data]]:
    """Pieces between which one tensor alone goes on: that of the operation before."""
    read_last = {name: number for number, each in enumerate(operations) for name in each["inputs"]}
    piece: list[Data] = []
    until = read_last.get("input", 0)
    for number, operation in enumerate(operations):
        if piece and until < number:
            yield piece
            piece = []
        if number:  # what the operation before the last one made has to be read before a cut
            until = max(until, read_last.get(operations[number - 1]["name"], 0))
        piece.append(operation)
    if piece:
        yield piece


def _modules(operations: Sequence[Data], labels: Mapping[str, str]) -> Iterator[tuple[str, list[Data]]]:
    """Pieces of one numbered module together."""
    current, own = "", list[Data]()
    for piece in _segments(operations):
        module = next((found[0] for each in piece if (found := _NUMBERED.match(labels.get(each["name"], "")))), "")
        if own and module != current:
            yield current, own
            own = []
        current = module
        own += piece
    if own:
        yield current, own


def _renamed(own: Sequence[Data], labels: Mapping[str, str], module: str, came: str) -> list[Data]:
    """Operations under names inside their module."""
    names, called = _Names(), {came: "input"}
    found = []
    for each in own:
        path = labels.get(each["name"], "")
        inside = path[len(module) :] if module and path.startswith(module) else path
        begin = plain_name(inside)
        called[each["name"]] = names.unused(f"{begin}_{each['op']}" if begin else each["op"])
        inputs = tuple(called[name] for name in each["inputs"])
        found.append({**each, "name": called[each["name"]], "inputs": inputs})
    return found


def _first(own: Sequence[Data], labels: Mapping[str, str]) -> str:
    """A block outside of numbered modules: after the first module in it."""
    path = next((labels[each["name"]] for each in own if labels.get(each["name"])), "")
    return plain_name(path.partition(".")[0]) or "graph"
