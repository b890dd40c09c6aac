"""Request: what a sweep is asked to run, before anything is looked up: names, axes, and how many points that makes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from hwsim.errors import InputError
from hwsim.sweep.axis import Axis, Value, make_axis

MACHINE, WORKLOAD = "machine", "workload"

Coordinates = dict[str, Value]
"""Where a point lies: its machine, its workload, and the value on every axis."""

CONFIRM_FROM = 100_000
"""A grid of so many points is run only when the user says so."""


@dataclass(frozen=True)
class Request:
    """A grid: every machine with every workload with every combination of values."""

    machines: tuple[str, ...]
    workloads: tuple[str, ...]
    axes: tuple[Axis, ...] = ()
    seed: int | None = None
    math: bool = True

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"{name} is given twice; write its values with commas between")
        for kind, given in ((MACHINE, self.machines), (WORKLOAD, self.workloads)):
            if not given:
                raise InputError(f"a sweep needs a {kind}")
            for name in given:
                if given.count(name) > 1:
                    raise InputError(f"{kind} {name} is given twice")

    @property
    def count(self) -> int:
        """How many points; nothing is made to count them."""
        return len(self.machines) * len(self.workloads) * prod(len(axis.values) for axis in self.axes)

    @property
    def all_axes(self) -> tuple[Axis, ...]:
        """Machines and workloads are axes, too: the outermost ones."""
        return (Axis(MACHINE, self.machines, "machine"), Axis(WORKLOAD, self.workloads), *self.axes)

    @property
    def swept(self) -> tuple[Axis, ...]:
        """The axes along which something changes."""
        return tuple(axis for axis in self.all_axes if axis.swept)

    def coordinates(self) -> Iterator[Coordinates]:
        """Every point of the grid, one after the other; the last axis changes fastest."""
        names = [axis.name for axis in self.all_axes]
        for values in product(*(axis.values for axis in self.all_axes)):
            yield dict(zip(names, values, strict=True))

    def check_size(self, yes: bool) -> None:
        """Raises InputError for a grid that nobody means to run."""
        if self.count >= CONFIRM_FROM and not yes:
            raise InputError(
                f"{self.count:,} points are a lot ({self.size_words()}); "
                "say --yes (yes=True in Python) to run them all, or choose fewer values"
            )

    def size_words(self) -> str:
        """``7 tile × 3 precision``."""
        return " × ".join(f"{len(axis.values):,} {axis.name}" for axis in self.swept) or "1 point"

    def to_json(self) -> str:
        """Equal requests give equal text; the store knows a sweep by it."""
        data = {
            "machines": self.machines,
            "workloads": self.workloads,
            "axes": [{"name": axis.name, "where": axis.where, "values": axis.values} for axis in self.axes],
            "seed": self.seed,
            "math": self.math,
        }
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Request:
        data: dict[str, Any] = json.loads(text)
        axes = tuple(Axis(axis["name"], tuple(axis["values"]), axis["where"]) for axis in data["axes"])
        return cls(tuple(data["machines"]), tuple(data["workloads"]), axes, data["seed"], data["math"])


def make_request(
    machines: object,
    workloads: object,
    parameters: Mapping[str, object],
    settings: Mapping[str, object],
    seed: int | None = None,
    math: bool = True,
) -> Request:
    """From names and values as users give them: one, a list, or a text with commas and ranges."""
    axes = [make_axis(name, given) for name, given in parameters.items()]
    axes += [make_axis(name, given, "machine") for name, given in settings.items()]
    return Request(_names("machine", machines), _names("workload", workloads), tuple(axes), seed, math)


def _names(kind: str, given: object) -> tuple[str, ...]:
    words = given if isinstance(given, list | tuple) else [given]
    names = [name.strip() for word in words for name in str(word).split(",")]
    if not all(names):
        raise InputError(f"a {kind} is missing between commas")
    return tuple(names)
