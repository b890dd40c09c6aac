"""Lines and points that are told apart by colour, by marker and by dash: on paper in grey as well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hwsim.results.plot.style import LOOKS

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933", "#882255")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "h")
_DASHES = ("-", "--", "-.", ":", (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (1, 1)))


@dataclass(frozen=True)
class Series:
    """How one line is drawn."""

    colour: str
    marker: str
    dash: Any


def series_looks(names: Iterable[object]) -> dict[str, Series]:
    """A look for each name; number formats and levels keep the colour that they have everywhere."""
    wanted = [str(name) for name in names]
    taken = {LOOKS[name].colour for name in wanted if name in LOOKS}
    free = [colour for colour in _COLOURS if colour not in taken] or list(_COLOURS)
    looks: dict[str, Series] = {}
    others = 0
    for number, name in enumerate(wanted):
        if name in LOOKS:
            colour = LOOKS[name].colour
        else:
            colour = free[others % len(free)]
            others += 1
        looks[name] = Series(colour, _MARKERS[number % len(_MARKERS)], _DASHES[number % len(_DASHES)])
    return looks


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Positions moved apart until neighbours have `gap` between them, as little as that takes: for labels of lines."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    placed = [positions[i] for i in order]
    for _ in range(200):
        moved = False
        for i in range(len(placed) - 1):
            short = gap - (placed[i + 1] - placed[i])
            if short > 1e-9:
                placed[i] -= short / 2
                placed[i + 1] += short / 2
                moved = True
        if not moved:
            break
    result = [0.0] * len(positions)
    for place, i in zip(placed, order, strict=True):
        result[i] = place
    return result
