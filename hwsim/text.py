"""Numbers as people read them: three or four digits and a unit."""

from __future__ import annotations

import re

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
