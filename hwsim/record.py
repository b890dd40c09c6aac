"""Record: data that a result is made of, read by attribute, and by name as its JSON is.

ErrorBar: a time, an energy or a power with the interval in which real hardware is likely to lie.
"""

from __future__ import annotations

import collections.abc
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from math import hypot, isfinite, log
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from hwsim.units import joules, seconds, watts


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
        """The same from plain data, with the records inside it."""
        declared, open_ended = _declared_fields(cls)
        found = {name: typed(kind, data[name]) for name, kind in declared.items()}
        if open_ended:
            found["use"] = {name: value for name, value in data.items() if name not in declared}
        return cls(**found)


def plain(value: Any) -> Any:
    """What JSON has instead of records, mappings and tuples: dictionaries and lists."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value


def typed(declared: Any, value: Any) -> Any:
    """Plain data as a type declares it: records and tuples instead of dictionaries and lists."""
    if isinstance(declared, type):
        return declared.from_dict(value) if issubclass(declared, Record) else value
    origin, inner = get_origin(declared), get_args(declared)
    if origin in (Union, types.UnionType) and value is not None:
        return typed(inner[0], value)
    if origin in (dict, collections.abc.Mapping):
        return {name: typed(inner[1], each) for name, each in value.items()}
    return tuple(typed(inner[0], each) for each in value) if origin is tuple else value


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


Ends = tuple[float, float]

MACHINE, CLASS, NEVER = "machine", "class", "never"
"""What an error bar rests on: the machine's own measurements, those of other machines of its class, or none."""


@dataclass(frozen=True)
class ErrorBar(Record):
    """A number with the interval in which real hardware is likely to lie; without ends where nobody ever compared."""

    value: float
    unit: str
    low: float | None
    high: float | None
    coverage: float
    """The share of unseen measurements that lies between the ends."""
    rows: int
    """Measurements that the interval was made from; no constant was fitted to them."""
    basis: str
    """`machine`: measured on it; `class`: on others of its class; `never`: not compared with hardware."""
    source: str
    """The same in words."""

    @property
    def is_known(self) -> bool:
        return self.low is not None and self.high is not None

    @property
    def ends(self) -> Ends | None:
        """Both ends, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def words(self) -> str:
        """``± 9 %``, ``-5 % +12 %``, or that it was never compared."""
        return NEVER_COMPARED if self.ends is None or not self.value else interval_words(self.value, self.ends)

    def __str__(self) -> str:
        write = {"s": seconds, "J": joules, "W": watts}[self.unit]
        return f"{write(self.value)} {self.words}" + (f" ({self.source})" if self.is_known else "")

    def __float__(self) -> float:
        return self.value


NEVER_COMPARED = "never compared with hardware"
NEVER_MARK = "?"
"""Marks a number in a table that was never compared."""
NEVER_WORDS = f"{NEVER_MARK} {NEVER_COMPARED}"
_ALIKE = 0.2
"""Ends whose distances differ by less than this share are written as one."""


def interval_words(value: float, ends: Ends) -> str:
    """An interval relative to its number, in percent: one number where both ends are about as far."""
    down, up = (100 * (end / value - 1) for end in ends)
    far = max(up, -down)
    if down < 0 < up and abs(up + down) <= max(1.0, _ALIKE * far):
        return f"± {far:.2g} %" if far < 1 else f"± {far:.0f} %"
    return f"{_signed(down)} to {_signed(up)} %"


def _signed(percent: float) -> str:
    return f"{percent:+.0f}".replace("-", "−") if round(percent) else "0"


def within_bars(first: Ends | None, second: Ends | None) -> bool | None:
    """Whether measurements could well be equal, or the other way round; None where one was never compared.

    The errors of the two are taken as independent: log(second / first) lies, with the coverage of the bars, within the
    root of the sum of their squares around the difference of their middles.
    """
    if first is None or second is None or min(*first, *second) <= 0:
        return None
    (a, b), (c, d) = (log(first[0]), log(first[1])), (log(second[0]), log(second[1]))
    return abs((c + d) / 2 - (a + b) / 2) <= hypot((b - a) / 2, (d - c) / 2)


ALIKE = "≈"
"""Marks a number that cannot be told from another by what is known of their errors."""
ALIKE_WORDS = f"{ALIKE} within the error bars: measurements could well come out equal, or the other way round"


@dataclass(frozen=True)
class Bars(Record):
    """How far off the costs of a run are likely to be, and which of its numbers are exact."""

    time: ErrorBar
    energy: ErrorBar | None
    power: ErrorBar | None
    """None where the machine has no energy prices."""
    exact: str
    """What is counted and not modelled."""
