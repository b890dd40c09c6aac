"""The grid of a sweep: axes with their values, the request that they make, and the same as a YAML file.

tile=8,16,32            a list
tile=8..256:x2          8, 16, 32, … 256: each twice the one before
n=100..500:100          100, 200, … 500: each 100 more; without a step, 1 more
l2.size=256KiB..4MiB:x2 numbers may have units
order=[i,j,k],[k,i,j]   a value that is itself a list

As a file, to keep beside the results:

format: 1
name: tiles
machines: [course_cpu]
workloads: [matmul_tiled]
parameters: {n: 256, tile: 8..256:x2, precision: [fp32, bf16, int8]}
set: {l2.size: [256 KiB, 1 MiB]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import log, log1p, prod
from pathlib import Path
from typing import Literal

from pydantic import Field

from hwsim.catalog import shown
from hwsim.errors import InputError, Problem, SpecError
from hwsim.spec.base import Name, Seed, Spec
from hwsim.spec.document import Place, YamlNode, parse_value, read_document, scalar
from hwsim.spec.load import validate
from hwsim.units import format_bytes, parse_bytes, plain

Value = str | int | float | bool
Where = Literal["workload", "machine"]

MOST_VALUES = 1_000_000
"""An axis longer than this is a slip of the hand."""

MOST_GROWN = 1000
"""Values of a range that grows by a factor; each is exact, and has more digits than the one before."""

_RANGE = re.compile(r"(?P<first>[^:]+?)\.\.(?P<last>[^:]+?)(?::(?P<step>.*))?")
_NUMBER = re.compile(r"\s*(?P<number>[-+]?\d[\d_]*(?:\.\d+)?)\s*(?P<unit>[A-Za-zµ/]*)\s*")


@dataclass(frozen=True)
class Axis:
    """A field and its values, each once, in the order given."""

    name: str
    values: tuple[Value, ...]
    where: Where = "workload"

    @property
    def swept(self) -> bool:
        """Whether there is more than one value."""
        return len(self.values) > 1


def make_axis(name: str, given: object, where: Where = "workload") -> Axis:
    """An axis from what a user gives: a text as on the command line, a list of values, or one value."""
    texts: Iterable[object]
    if isinstance(given, str):
        texts = _split(given)
    elif isinstance(given, Iterable) and not isinstance(given, dict):
        texts = given
    else:
        texts = (given,)
    values: list[Value] = []
    for item in texts:
        values += _values(name, item)
        if len(values) > MOST_VALUES:
            raise InputError(f"{name}: more than {MOST_VALUES:,} values; choose a larger step, or x2 to double")
    if not values:
        raise InputError(f"{name}: no values; give a list (8,16,32) or a range (8..256:x2)")
    return Axis(name, tuple(dict.fromkeys(values)), where)


def typed(value: object) -> str:
    """A value as one would type it: `true`, not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_number(value: object) -> float | None:
    """Where a value lies on a numeric axis: sizes in bytes; None for words."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        return None
    try:
        return float(parse_bytes(value))
    except ValueError:
        match = _NUMBER.fullmatch(value)
        return float(match["number"].replace("_", "")) if match else None


def _split(text: str) -> list[str]:
    """At commas, but not inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _values(name: str, item: object) -> list[Value]:
    if isinstance(item, bool | int | float):
        return [item]
    if isinstance(item, list | tuple):
        return ["[" + ", ".join(str(word) for word in item) + "]"]
    if not isinstance(item, str):
        raise InputError(f"{name}: {item!r} is not a value; give numbers, words, or a range such as '8..256:x2'")
    text = item.strip()
    if not text:
        raise InputError(f"{name}: a value is missing between commas; write {name}=8,16,32")
    match = _RANGE.fullmatch(text)
    return [_scalar(name, text)] if match is None else _expand(name, text, match)


def _scalar(name: str, text: str) -> Value:
    if text.startswith("["):
        return text
    try:
        parse_value(text, Place("", 0))
    except ValueError as error:
        raise InputError(f"{name}={text}: {error}") from error
    value = scalar(text)
    if isinstance(value, float) and value.is_integer() and "e" in text.lower():
        return int(value)  # 1e3 is the same point as 1000
    return text if value is None else value


def _expand(name: str, text: str, match: re.Match[str]) -> list[Value]:
    """The numbers of a range, exactly: no rounding adds or loses its last value."""
    first, last, unit = _ends(name, text, match["first"], match["last"])
    if first > last:
        raise InputError(f"{name}={text}: an empty range: {match['first']} is more than {match['last']}")
    step = (match["step"] or "1").strip() if match["step"] is not None else "1"
    grows = step[:1] in ("x", "*", "×")
    found = _NUMBER.fullmatch(step[1:] if grows else step)
    if found is None or (found["unit"] and (grows or unit != "B")) or (unit == "B" and not grows and not found["unit"]):
        raise InputError(f"{name}={text}: '{step}' is no step; write :x2 to double, or :{_example(unit)} to add")
    by = Fraction(parse_bytes(step)) if found["unit"] else Fraction(found["number"].replace("_", ""))
    if by <= (1 if grows else 0) or (grows and first <= 0):
        need = "start above 0 and grow by more than 1" if grows else "be more than 0"
        raise InputError(f"{name}={text}: the step would never reach the end; it must {need}")
    if not grows and (last - first) / by >= MOST_VALUES:
        raise InputError(f"{name}={text}: more than {MOST_VALUES:,} values; choose a larger step, or x2 to double")
    if grows and (count := _grown(first, last, by)) > MOST_GROWN:
        raise InputError(
            f"{name}={text}: about {count:,} values, and a range that grows has at most {MOST_GROWN:,}; "
            "choose a larger factor, or x2 to double"
        )
    numbers = [first]
    while (following := numbers[-1] * by if grows else numbers[-1] + by) <= last:
        numbers.append(following)
        if len(numbers) > MOST_VALUES:
            raise InputError(f"{name}={text}: more than {MOST_VALUES:,} values; choose a larger step")
    return [_shown(number, unit) for number in numbers]


def _grown(first: Fraction, last: Fraction, by: Fraction) -> int:
    """How many values a growing range has, without making them."""
    return 1 + int((_log(last) - _log(first)) / _log(by))


def _log(number: Fraction) -> float:
    """Also of what is nearly 1, or too large for a float."""
    if abs(number - 1) < Fraction(1, 1000):
        return log1p(float(number - 1))
    return log(number.numerator) - log(number.denominator)


def _ends(name: str, text: str, first: str, last: str) -> tuple[Fraction, Fraction, str]:
    """Both ends and their unit; sizes may differ in unit and are then counted in bytes."""
    ends = [_NUMBER.fullmatch(end) for end in (first, last)]
    if ends[0] is None or ends[1] is None:
        raise InputError(f"{name}={text}: a range goes from number to number, such as 8..256:x2")
    units = {end["unit"] for end in ends if end is not None}
    if len(units) == 1 and not _is_size(next(iter(units))):
        numbers = [Fraction(end["number"].replace("_", "")) for end in ends if end is not None]
        return numbers[0], numbers[1], next(iter(units))
    try:
        return Fraction(parse_bytes(first)), Fraction(parse_bytes(last)), "B"
    except ValueError as error:
        raise InputError(f"{name}={text}: {error}; give both ends of a range the same unit") from error


def _is_size(unit: str) -> bool:
    return unit.endswith("B") and "/" not in unit


def _example(unit: str) -> str:
    return "64KiB" if unit == "B" else "8"


def _shown(number: Fraction, unit: str) -> Value:
    if unit == "B" and number.denominator == 1:
        return format_bytes(number.numerator)
    if unit:
        return f"{plain(number)} {unit}"
    return number.numerator if number.denominator == 1 else float(number)


MACHINE, WORKLOAD = "machine", "workload"

Coordinates = dict[str, Value]
"""Where a point lies: its machine, its workload, and the value on every axis."""

CONFIRM_FROM = 100_000
"""A grid of so many points is run only when the user says so."""


@dataclass(frozen=True)
class SweepRequest:
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
    def from_json(cls, text: str) -> SweepRequest:
        """Raises InputError where the text is not what `to_json` gives."""
        try:
            data = json.loads(text)
            axes = tuple(Axis(axis["name"], tuple(axis["values"]), axis["where"]) for axis in data["axes"])
            found = cls(tuple(data["machines"]), tuple(data["workloads"]), axes, data["seed"], data["math"])
            whole = found.to_json() == json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(f"what a sweep was asked for is damaged: {error}") from error
        names = [*found.machines, *found.workloads, *(axis.name for axis in axes)]
        if not whole or not all(isinstance(name, str) for name in names):
            raise InputError("what a sweep was asked for is damaged: its names are no text")
        return found


def make_request(
    machines: object,
    workloads: object,
    parameters: Mapping[str, object],
    settings: Mapping[str, object],
    seed: int | None = None,
    math: bool = True,
) -> SweepRequest:
    """From names and values as users give them: one, a list, or a text with commas and ranges."""
    axes = [make_axis(name, given) for name, given in parameters.items()]
    axes += [make_axis(name, given, "machine") for name, given in settings.items()]
    return SweepRequest(_names("machine", machines), _names("workload", workloads), tuple(axes), seed, math)


def _names(kind: str, given: object) -> tuple[str, ...]:
    words = given if isinstance(given, list | tuple) else [given]
    names = [name.strip() for word in words for name in str(word).split(",")]
    if not all(names):
        raise InputError(f"a {kind} is missing between commas")
    return tuple(names)


Values = int | float | bool | str | tuple[int | float | bool | str, ...]


class SweepSpec(Spec):
    """Every machine with every workload with every combination of values."""

    format: Literal[1] = Field(description="Version of this file format.")
    name: Name = Field(description="What the sweep is called.")
    description: str = Field("", description="One or two sentences for people.")
    machines: tuple[str, ...] = Field(
        min_length=1, description="Machines, by name or path.", examples=[["course_cpu", "zen3"]]
    )
    workloads: tuple[str, ...] = Field(
        min_length=1, description="Workloads, by name or path.", examples=[["matmul_tiled"]]
    )
    parameters: dict[str, Values] = Field(
        {},
        description="Sizes, schedule and precision of the workloads: one value, a list, or a range as text.",
        examples=[{"n": 256, "tile": "8..256:x2", "precision": ["fp32", "int8"]}],
    )
    set: dict[str, Values] = Field(
        {}, description="The same for fields of the machines.", examples=[{"l2.size": ["256 KiB", "1 MiB"]}]
    )
    seed: Seed | None = Field(None, description="Seed of the random inputs; the workload's own if not given.")
    math: bool = Field(True, description="Whether the answers are computed and checked.")


def load_sweep(path: Path) -> SweepRequest:
    """The request that a sweep file makes. Raises SpecError with everything that is wrong in it."""
    node, problems = read_document(path, shown(path))
    spec, findings = validate(SweepSpec, node)
    found = [*problems, *(finding.problem(node) for finding in findings)]
    if spec is not None:
        found += _axis_problems(node, "parameters", spec.parameters) + _axis_problems(node, "set", spec.set)
    if spec is None or found:
        raise SpecError(tuple(found))
    return make_request(spec.machines, spec.workloads, spec.parameters, spec.set, spec.seed, spec.math)


def is_sweep_file(path: Path) -> bool:
    """Whether a YAML file asks for a sweep, rather than describing a machine or a workload."""
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return False
    node, _ = read_document(path, shown(path))
    return "machines" in node.fields or "workloads" in node.fields


def _axis_problems(node: YamlNode, group: str, values: dict[str, Values]) -> list[Problem]:
    found = []
    for name, given in values.items():
        try:
            make_axis(name, given)
        except InputError as error:
            place = node.nearest((group, name)).place
            found.append(place.problem(f"{group}.{name}", str(error).partition(": ")[2] or str(error)))
    return found
