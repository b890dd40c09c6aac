"""ErrorBar: a time, an energy or a power with the interval in which real hardware is likely to lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot, log
from typing import Any

from hwsim.record import Record
from hwsim.text import joules, seconds, watts

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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Bars:
        bars = {name: data[name] and ErrorBar.from_dict(data[name]) for name in ("time", "energy", "power")}
        return cls(**bars, exact=data["exact"])
