"""Numbers with units: how YAML values such as ``32 KiB``, ``1.41 GHz`` or ``4 pJ/bit`` are read and printed.

Decimal prefixes are powers of 1000 (``kB``), binary ones powers of 1024 (``KiB``); ``KB`` could mean either
and is refused. Everything is exact: amounts are integers or fractions, never rounded floats.

Numbers as people read them: three or four digits and a unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from typing import Literal

INFINITE_BYTES = 1 << 62
"""Stands for ``inf`` where a capacity is an integer number of bytes: larger than any address."""

_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d{1,2})?)\s*(\S.*?)?\s*$")

_MOST_DIGITS, _MOST_SHOWN = 40, 50
_NO_LATENCY = "nothing in a machine takes less or more"
_NO_BANDWIDTH = "no memory is slower or faster; inf is without limit"
_NO_ENERGY = "less is lost in the noise of a warm chip, and more would melt it"

_BYTE_UNITS = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_BYTES_IN = {
    10: {unit: _BYTE_UNITS[unit] for unit in ("TB", "GB", "MB", "kB", "B")},
    2: {unit: _BYTE_UNITS[unit] for unit in ("TiB", "GiB", "MiB", "KiB")},
}
"""Units of ten and of two, the largest first."""
_AMBIGUOUS = {
    "KB": ("KiB", "kB"),
    "K": ("KiB", "kB"),
    "M": ("MiB", "MB"),
    "G": ("GiB", "GB"),
    "kb": ("KiB", "kB"),
}
_FREQUENCY_UNITS = {"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9}
_TIME_UNITS = {
    "fs": Fraction(1, 10**15), "ps": Fraction(1, 10**12), "ns": Fraction(1, 10**9), "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6), "ms": Fraction(1, 10**3), "s": Fraction(1),
}  # fmt: skip
_ENERGY_UNITS = {
    "fJ": Fraction(1, 1000), "pJ": Fraction(1), "nJ": Fraction(1000), "uJ": Fraction(10**6),
    "µJ": Fraction(10**6), "mJ": Fraction(10**9), "J": Fraction(10**12),
}  # fmt: skip
_POWER_UNITS = {
    "uW": Fraction(1, 10**6), "µW": Fraction(1, 10**6), "mW": Fraction(1, 1000),
    "W": Fraction(1), "kW": Fraction(1000),
}  # fmt: skip
_CYCLE_UNITS = {"cycle", "cycles"}


@dataclass(frozen=True)
class Latency:
    """A length of time, in seconds or in cycles of the clock of whatever it belongs to."""

    amount: Fraction
    unit: Literal["cycles", "seconds"]

    def cycles(self, clock_hz: int) -> Fraction:
        return self.amount if self.unit == "cycles" else self.amount * clock_hz

    def seconds(self, clock_hz: int) -> Fraction:
        return self.amount / clock_hz if self.unit == "cycles" else self.amount

    def __str__(self) -> str:
        if self.unit == "cycles":
            return f"{plain(self.amount)} {'cycle' if self.amount == 1 else 'cycles'}"
        if self.amount == 0 or Fraction(1, 10) <= self.amount / _TIME_UNITS["ns"] < 1000:
            return f"{plain(self.amount / _TIME_UNITS['ns'])} ns"  # 0.5 ns, as data sheets say, not 500 ps
        return _scaled(self.amount, {name: _TIME_UNITS[name] for name in ("s", "ms", "us", "ns", "ps", "fs")})


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per second or per cycle; ``None`` bytes means without limit."""

    amount: Fraction | None
    unit: Literal["cycle", "second"]

    def bytes_per_cycle(self, clock_hz: int) -> Fraction | None:
        """``None`` where there is no limit."""
        if self.amount is None or self.unit == "cycle":
            return self.amount
        return self.amount / clock_hz

    def __str__(self) -> str:
        if self.amount is None:
            return "inf"
        if self.unit == "cycle":
            return f"{plain(self.amount)} B/cycle"
        return min((_scaled(self.amount, _BYTES_IN[base]) for base in (10, 2)), key=len) + "/s"


@dataclass(frozen=True)
class EnergyPrice:
    """What one action costs: a fixed amount, or an amount for each bit that it moves."""

    picojoules: Fraction
    per: Literal["action", "bit"]

    def __str__(self) -> str:
        return f"{plain(self.picojoules)} pJ" + ("/bit" if self.per == "bit" else "")


@lru_cache(maxsize=4096)
def plain(amount: Fraction) -> str:
    """The shortest exact decimal where there is one; otherwise twelve digits."""
    if amount.denominator == 1:
        return str(amount.numerator)
    try:
        decimal = Decimal(amount.numerator) / Decimal(amount.denominator)
    except InvalidOperation:  # pragma: no cover - cannot happen for finite fractions
        return str(float(amount))
    text = format(decimal.normalize(), "f")
    return text if Fraction(text) == amount else f"{float(amount):.12g}"


def format_bytes(amount: int) -> str:
    """``32768`` as ``32 KiB``: the largest binary unit that divides it, or the decimal one where that is shorter."""
    if amount >= INFINITE_BYTES:
        return "inf"
    exact = _divided(amount, 2)
    return min((exact, _divided(amount, 10)), key=len) if len(exact) > _LONG else exact


_LONG = len("1024 GiB")
"""A size with more letters than this is hard to read."""


def _divided(amount: int, base: int) -> str:
    """In the largest unit of a base that divides it."""
    found = (f"{amount // size} {unit}" for unit, size in _BYTES_IN[base].items() if amount and amount % size == 0)
    return next(found, f"{amount} B")


def format_frequency(hertz: int) -> str:
    """``1410000000`` as ``1.41 GHz``."""
    return _scaled(Fraction(hertz), {name: _FREQUENCY_UNITS[name] for name in ("GHz", "MHz", "kHz", "Hz")})


def parse_bytes(value: object) -> int:
    if _is_infinite(value):
        return INFINITE_BYTES
    amount = _parse(value, _as_fractions(_BYTE_UNITS), "a size", "32 KiB")
    if amount.denominator != 1:
        raise ValueError(f"{_cut(value)} is not a whole number of bytes")
    if amount <= 0:
        raise ValueError(f"{_cut(value)} must be more than 0")
    if amount >= INFINITE_BYTES:
        raise ValueError(f"{_cut(value)} is more than can be addressed; write inf for no limit")
    return amount.numerator


def parse_frequency(value: object) -> int:
    amount = _parse(value, _as_fractions(_FREQUENCY_UNITS), "a frequency", "1.41 GHz")
    if amount.denominator != 1 or amount <= 0:
        raise ValueError(f"{_cut(value)} must be a whole, positive number of Hz")
    _check_range(value, amount, 1000, 10**12, "1 kHz", "1 THz", "no clock of a machine is slower or faster")
    return amount.numerator


def parse_latency(value: object) -> Latency:
    if isinstance(value, Latency):
        return value
    units = dict(_TIME_UNITS) | dict.fromkeys(_CYCLE_UNITS, Fraction(1))
    number, unit = _split(value, units, "a latency", "4 cycles' or '0.5 ns")
    if number < 0:
        raise ValueError(f"{_cut(value)} must not be negative")
    if unit in _CYCLE_UNITS:
        _check_range(value, number, Fraction(1, 10**6), 10**9, "0.000001 cycles", "1000000000 cycles", _NO_LATENCY)
        return Latency(number, "cycles")
    seconds = number * _TIME_UNITS[unit]
    _check_range(value, seconds, Fraction(1, 10**15), 1, "1 fs", "1 s", _NO_LATENCY)
    return Latency(seconds, "seconds")


def parse_bandwidth(value: object) -> Bandwidth:
    if isinstance(value, Bandwidth):
        return value
    if _is_infinite(value):
        return Bandwidth(None, "second")
    units = {f"{name}/s": Fraction(size) for name, size in _BYTE_UNITS.items()} | {"B/cycle": Fraction(1)}
    number, unit = _split(value, units, "a bandwidth", "64 B/cycle' or '25.6 GB/s")
    if number <= 0:
        raise ValueError(f"{_cut(value)} must be more than 0")
    if unit == "B/cycle":
        _check_range(value, number, Fraction(1, 10**6), 10**9, "0.000001 B/cycle", "1000000000 B/cycle", _NO_BANDWIDTH)
        return Bandwidth(number, "cycle")
    rate = number * units[unit]
    _check_range(value, rate, 1000, 10**18, "1 kB/s", "1000000 TB/s", _NO_BANDWIDTH)
    return Bandwidth(rate, "second")


def parse_energy(value: object) -> EnergyPrice:
    if isinstance(value, EnergyPrice):
        return value
    units = dict(_ENERGY_UNITS)
    units |= {f"{name}/bit": factor for name, factor in _ENERGY_UNITS.items()}
    units |= {f"{name}/B": factor / 8 for name, factor in _ENERGY_UNITS.items()}
    number, unit = _split(value, units, "an energy", "10 pJ' or '4 pJ/bit")
    if number < 0:
        raise ValueError(f"{_cut(value)} must not be negative")
    picojoules = number * units[unit]
    _check_range(value, picojoules, Fraction(1, 10**9), 10**12, "1e-9 pJ", "1 J", _NO_ENERGY)
    return EnergyPrice(picojoules, "bit" if "/" in unit else "action")


def parse_power(value: object) -> Fraction:
    amount = _parse(value, _POWER_UNITS, "a power", "75 W")
    if amount < 0:
        raise ValueError(f"{_cut(value)} must not be negative")
    _check_range(value, amount, Fraction(1, 10**12), 10**6, "1e-6 uW", "1000 kW", "no chip draws less or more")
    return amount


def parse_length(value: object) -> Fraction:
    """A technology node, in nanometres."""
    amount = _parse(value, {"nm": Fraction(1)}, "a technology node", "45 nm")
    if amount <= 0:
        raise ValueError(f"{_cut(value)} must be more than 0")
    _check_range(value, amount, Fraction(1, 10), 10**5, "0.1 nm", "100000 nm", "atoms are as small, wires as large")
    return amount


def _check_range(
    value: object, amount: Fraction, least: Fraction | int, most: int, low: str, high: str, why: str
) -> None:
    """Zero is a matter of its own: whoever may have it has asked before."""
    if amount and not least <= amount <= most:
        raise ValueError(f"{_cut(value)} is not from {low} to {high}: {why}")


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…'"


def _parse(value: object, units: Mapping[str, Fraction], what: str, example: str) -> Fraction:
    number, unit = _split(value, units, what, example)
    return number * units[unit]


def _split(value: object, units: Mapping[str, Fraction], what: str, example: str) -> tuple[Fraction, str]:
    """The number and the unit of a text such as ``1.5 GB/s``; each way to get it wrong has its sentence."""
    match = _NUMBER.match(value) if isinstance(value, str) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f"{_cut(value)} has no unit; write {what} such as '{example}'")
    if match is None:
        raise ValueError(f"{_cut(value)} is not {what}; write it as '{example}'")
    if len(match[1]) > _MOST_DIGITS:
        raise ValueError(f"{_cut(value)} has {len(match[1])} digits; {_MOST_DIGITS} are more than anything is known to")
    number, unit = Fraction(match[1].replace("_", "")), match[2]
    if unit is None:
        raise ValueError(f"{_cut(value)} has no unit; write {what} such as '{example}'")
    if unit in units:
        return number, unit
    stem, slash, per = unit.partition("/")
    for binary, decimal in [_AMBIGUOUS[stem]] if stem in _AMBIGUOUS else []:
        if binary + slash + per in units:
            readings = " or ".join(
                f"'{match[1]} {name}{slash}{per}' ({plain(number * _BYTE_UNITS[name])} B)" for name in (binary, decimal)
            )
            raise ValueError(f"{_cut(value)} is ambiguous; write {readings}")
    raise ValueError(f"{_cut(value)} has the unknown unit {unit!r}; known: {', '.join(units)}{_nearest(unit, units)}")


def _nearest(unit: str, units: Mapping[str, Fraction]) -> str:
    same = [name for name in units if name.lower() == unit.lower()]
    return f"; did you mean {same[0]!r}?" if same else ""


def _scaled(amount: Fraction, units: Mapping[str, Fraction | int]) -> str:
    """In the largest of the units (given largest first) that gives at least one."""
    name = next((name for name, factor in units.items() if amount >= factor), list(units)[-1])
    return f"{plain(amount / units[name])} {name}"


def _as_fractions(units: Mapping[str, int]) -> dict[str, Fraction]:
    return {name: Fraction(factor) for name, factor in units.items()}


def _is_infinite(value: object) -> bool:
    return value == float("inf") or (isinstance(value, str) and value.strip() in ("inf", ".inf"))


HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""What a terminal obeys rather than shows: control characters, marks that turn the direction of writing, half pairs."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"), (1e-15, "f"))
_LARGE = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def seconds(amount: float) -> str:
    """``0.00123`` as ``1.23 ms``."""
    return _small(amount, "s")


def joules(amount: float) -> str:
    return _small(amount, "J")


def joule_seconds(amount: float) -> str:
    return _small(amount, "J·s")


def watts(amount: float) -> str:
    return _small(amount, "W")


def rate(per_second: float, unit: str) -> str:
    """``2.1e9`` as ``2.1 GFLOP/s``."""
    return _large(per_second, unit + "/s")


def data(amount: float) -> str:
    """Bytes with decimal prefixes, as bandwidths have them: ``4.46 MB``."""
    return _large(amount, "B")


def short(count: float) -> str:
    """A count: whole up to six digits, ``33.6 M`` beyond."""
    if abs(count) < 1e6:
        return f"{count:,.0f}"
    return _large(count, "")


def percent(part: float, whole: float) -> str:
    """A share that never rounds to 100 % or to 0 % what is neither."""
    if not whole:
        return "–"
    share = 100 * part / whole
    if 0 < share < 0.05:
        return "< 0.1 %"
    if 99.95 <= share < 100:
        return "> 99.9 %"
    return f"{share:.1f} %" if share < 99.95 else f"{share:.0f} %"


def ratio(value: float) -> str:
    """``0.83×``, ``14×``, ``72.4×``."""
    if value >= 1000:
        return f"{value:,.0f}×"
    return f"{float(f'{value:.3g}'):g}×"


def digits(value: float) -> str:
    """A plain number in three digits."""
    return f"{float(f'{value:.3g}'):g}" if abs(value) < 1e6 else f"{value:.3g}"


def bar(share: float, width: int) -> str:
    """A horizontal bar of full and half blocks."""
    halves = round(2 * width * min(max(share, 0.0), 1.0))
    return "█" * (halves // 2) + "▌" * (halves % 2)


def format_title(precision: object) -> str:
    """A number format as a workload names it: its name, or that of a format of your own."""
    if not isinstance(precision, dict):
        return str(precision)
    return str(precision.get("name") or f"e{precision['exponent']}m{precision['mantissa']}")


def listed(words: Iterable[str], last: str = "and") -> str:
    """``i, j and k``."""
    *others, final = [*words] or [""]
    return f"{', '.join(others)} {last} {final}" if others else final


def counted(number: int, singular: str, plural: str = "") -> str:
    """``1 core``, ``4 cores``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def _small(amount: float, unit: str) -> str:
    if amount == 0:
        return f"0 {unit}"
    for factor, prefix in _SMALL:
        if abs(amount) >= factor * 0.9995:
            return f"{_three(amount / factor)} {prefix}{unit}"
    return f"{amount:.3g} {unit}"


def _large(amount: float, unit: str) -> str:
    for factor, prefix in _LARGE:
        if abs(amount) >= factor * 0.9995:
            return f"{_three(amount / factor)} {prefix}{unit}".rstrip()
    return f"{_three(amount)} {unit}".rstrip()


def _three(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{float(f'{value:.3g}'):g}"


def visible(text: str) -> str:
    """Text from a file, a name or an error, with what cannot be seen written out: `\\x1b`, `\\u202e`."""
    return HIDDEN.sub(_written_out, text)


def csv_cell(value: object) -> object:
    """A cell of a table for spreadsheets: text that one would take for a formula gets an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
