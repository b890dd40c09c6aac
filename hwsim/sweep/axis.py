"""Axis: one field of a machine or a workload, and the values that it takes in a sweep.

tile=8,16,32            a list
tile=8..256:x2          8, 16, 32, … 256: each twice the one before
n=100..500:100          100, 200, … 500: each 100 more; without a step, 1 more
l2.size=256KiB..4MiB:x2 numbers may have units
order=[i,j,k],[k,i,j]   a value that is itself a list
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from hwsim.errors import InputError
from hwsim.spec.document import Place, parse_value, scalar
from hwsim.units import format_bytes, parse_bytes, plain

Value = str | int | float | bool
Where = Literal["workload", "machine"]

MOST_VALUES = 1_000_000
"""An axis longer than this is a slip of the hand."""

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


def parse_axis(text: str, where: Where = "workload") -> Axis:
    """``tile=8..64:x2`` as an axis. Raises InputError with what is wrong."""
    name, equals, values = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise InputError(f"'{text}': write an axis as name=values, such as tile=8..256:x2 or precision=fp32,int8")
    return make_axis(name, values, where)


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
    numbers = [first]
    while (following := numbers[-1] * by if grows else numbers[-1] + by) <= last:
        numbers.append(following)
        if len(numbers) > MOST_VALUES:
            raise InputError(f"{name}={text}: more than {MOST_VALUES:,} values; choose a larger step")
    return [_shown(number, unit) for number in numbers]


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
