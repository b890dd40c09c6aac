"""Error bars: how far off a time, an energy or a power is likely to be, from measurements that nothing was fitted to.

`hwsim/validation/data/error_bars.csv` holds how measured numbers lie around simulated ones, by quantity, family of
kernels, machine, decade of the simulated time and half of the shapes: quantiles of log(measured / simulated). `hwsim
validate --write` makes it. A bar is the interval in which a stated share of unseen measurements lies:

- on a measured machine: its own rows of the family and decade, drawn towards its other decades and towards other
  machines, so that three rows alone decide nothing;
- on any other machine: all machines of the family with one vote each, widened until it would have held as often as it
  says for each of them, left out in turn;
- of a run with several parts: errors of one family go together and are added up; those of different families are
  independent, and add up as squares.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.resources import files
from math import exp, floor, hypot, log10, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwsim.catalog import load_machine, shipped_folder
from hwsim.errors import HwsimError
from hwsim.record import CLASS, MACHINE, NEVER, NEVER_COMPARED, Bars, ErrorBar
from hwsim.spec.machine import MachineSpec
from hwsim.target import ComparedPart
from hwsim.units import counted

COVERAGE = 0.8
"""The share of unseen measurements that lies within a bar."""
LEVELS = tuple((2 * number + 1) / 50 for number in range(25))
"""The quantiles that a group is kept by: 2 %, 6 %, … 98 %; each stands for an equal share of its rows."""
PRIOR_ROWS = 10
"""A group is drawn towards its wider group as by so many rows of that: the variance within a decade over that between
the decades of a machine, of the share of rows beyond either end of all (73 families on machines, 8 % between)."""
VOTE_ROWS = 40
"""Among machines, one with so many rows has half a vote: how rows spread is known the better the more there are."""
FEW_ROWS = {2: 6.7, 3: 2.6, 4: 1.8, 5: 1.45, 6: 1.3, 7: 1.15, 8: 1.06}
"""How much further a new row may lie than the outermost of so few: for 80 % of a normal sample, Student's t over half
the expected range."""
PRIOR_MACHINES = 3
"""How much wider bars for other machines have to be is drawn towards the usual widening as by so many machines."""
TWO_MACHINES = 2.4
"""How much further apart machines may lie than two do: Student's t over the normal quantile, for 80 % of them."""
MOST_UNKNOWN = 0.05
"""A run of which more than this share of the time was never compared has no bar."""

TIME, ENERGY, POWER = "time", "energy", "power"
POWER_WORDS = "power of kernels"
UNITS = {TIME: "s", ENERGY: "J", POWER: "W"}


@dataclass(frozen=True)
class BarGroup:
    """How measurements of one family on one machine lie around what was simulated, in one decade of time."""

    quantity: str
    family: str
    machine: str
    decade: int
    """10^decade seconds and up to ten times that, as simulated."""
    rows: int
    points: tuple[float, ...]
    """Quantiles of log(measured / simulated), at LEVELS."""
    half: str = ""
    """Which half of the shapes its rows have: validation judges the rows of each by the other."""

    @cached_property
    def weighted(self) -> NDArray[np.float64]:
        """Its quantiles, each with its share of the rows."""
        return np.array([(value, self.rows / len(self.points)) for value in self.points])


def decade_of(seconds: float) -> int:
    """The size class of a kernel: the power of ten of its simulated seconds."""
    return floor(log10(seconds)) if seconds > 0 else -15


@dataclass(frozen=True)
class Interval:
    """Where log(measured / simulated) of an unseen row lies, and what that was made from."""

    low: float
    middle: float
    high: float
    rows: int
    machines: int = 1
    beside: int = 0
    """Other machines that the rows of one are drawn towards."""

    def widened(self, factor: float) -> Interval:
        """Both ends further from the middle."""
        low, high = (self.middle + factor * (end - self.middle) for end in (self.low, self.high))
        return replace(self, low=low, high=high)

    def distance(self, value: float) -> float:
        """How far from the middle a value lies, in parts of the way to the end on its side."""
        way = self.high - self.middle if value > self.middle else self.middle - self.low
        return abs(value - self.middle) / way if way else 1.0

    def shrunk(self, wider: Interval) -> Interval:
        """Drawn towards the interval of a wider group, by as much as a few rows of that would."""
        own = self.rows / (self.rows + PRIOR_ROWS)
        low, middle, high = (
            own * mine + (1 - own) * theirs
            for mine, theirs in ((self.low, wider.low), (self.middle, wider.middle), (self.high, wider.high))
        )
        return replace(self, low=low, middle=middle, high=high)


Points = Sequence[tuple[float, float]] | NDArray[np.float64]
"""Values of log(measured / simulated), each with its weight."""


def quantiles(points: Points, *levels: float) -> list[float]:
    """The values below which shares of the weight lie; between two points on a line, beyond the last the last."""
    values, weights = np.asarray(points).T
    order = np.lexsort((weights, values))
    values, weights = values[order], weights[order]
    ends = weights.cumsum()
    return [float(each) for each in np.interp(levels, (ends - weights / 2) / ends[-1], values)]


def interval_of(points: Points, rows: int, coverage: float, machines: int = 1) -> Interval:
    """As split conformal prediction has it: of n rows and a new one each may be the outermost, so the ends lie a little
    further out than those of the n."""
    tail = max(0.0, 1 - (1 + coverage) / 2 * (rows + 1) / rows)
    low, middle, high = quantiles(points, tail, 0.5, 1 - tail)
    return Interval(low, middle, high, rows, machines)


class BarTable:
    """The groups of the shipped table, or of one that is about to be."""

    def __init__(self, groups: Iterable[BarGroup]) -> None:
        self.groups = tuple(groups)
        self._grouped: defaultdict[tuple[str, str], list[BarGroup]] = defaultdict(list)
        self._families: dict[tuple[str, str], dict[str, dict[int, BarGroup]]] = {}
        self._found: dict[tuple[str, str, str | None, int, float, str], Interval | None] = {}
        self._spreads: dict[tuple[str, str, frozenset[str]], float] = {}
        for group in self.groups:
            self._grouped[group.quantity, group.family].append(group)

    def _family(self, quantity: str, family: str) -> dict[str, dict[int, BarGroup]]:
        """The decades of each machine that a family was measured on: a run asks for one family or two of them all."""
        if (quantity, family) not in self._families:
            alike: defaultdict[tuple[str, int], list[BarGroup]] = defaultdict(list)
            for group in self._grouped.get((quantity, family), ()):
                alike[group.machine, group.decade].append(group)
            found: dict[str, dict[int, BarGroup]] = {}
            for (machine, decade), halves in alike.items():
                found.setdefault(machine, {})[decade] = _joined(halves)
            self._families[quantity, family] = found
        return self._families[quantity, family]

    def of_half(self, half: str) -> BarTable:
        """What rows of one half of the shapes say alone."""
        return BarTable(group for group in self.groups if group.half == half)

    def machines(self, quantity: str, family: str) -> tuple[str, ...]:
        """Those on which a family was measured."""
        return tuple(self._family(quantity, family))

    def interval(
        self,
        quantity: str,
        family: str,
        machine: str | None,
        seconds: float,
        coverage: float = COVERAGE,
        *,
        without: str = "",
    ) -> Interval | None:
        """Of a machine that was measured, or of one that was not (`machine` is None); `without` leaves one out.

        None where the family was never measured, or on a single other machine alone: then nobody knows how much
        machines differ.
        """
        asked = quantity, family, machine, decade_of(seconds), coverage, without
        if asked not in self._found:
            self._found[asked] = self._interval(*asked)
        return self._found[asked]

    def _interval(
        self, quantity: str, family: str, machine: str | None, decade: int, coverage: float, without: str
    ) -> Interval | None:
        known = {name: each for name, each in self._family(quantity, family).items() if name != without}
        others = [groups for name, groups in known.items() if name != machine]
        strange = _unseen(others, decade, coverage)
        if strange is not None:
            strange = strange.widened(self._spread(quantity, family, others))
        return strange if machine not in known else _own(known[machine], decade, coverage, strange)

    def _spread(self, quantity: str, family: str, machines: Sequence[Mapping[int, BarGroup]]) -> float:
        """How much wider than the spread of its rows the bar of a family has to be for a machine that is not among
        them: so that it holds as often as it says for each of them, left out in turn, and for one more."""
        key = quantity, family, frozenset(next(iter(each.values())).machine for each in machines)
        if key not in self._spreads:
            count = len(machines)
            usual = own = sqrt(1 + 1 / _machines_worth([_vote(groups) for groups in machines]))
            distances: list[tuple[float, float]] = []
            for number, groups in enumerate(machines):
                others = [*machines[:number], *machines[number + 1 :]]
                vote = _vote(groups) / sum(each.rows for each in groups.values())
                for decade, group in groups.items():
                    if (found := _unseen(others, decade, COVERAGE)) is not None:
                        distances += [(found.distance(value), vote * group.rows) for value in group.points]
            if distances:
                (own,) = quantiles(distances, COVERAGE + (1 - COVERAGE) / (count + 1))
            self._spreads[key] = (count * own + PRIOR_MACHINES * usual) / (count + PRIOR_MACHINES)
        return self._spreads[key]


def _own(groups: Mapping[int, BarGroup], decade: int, coverage: float, others: Interval | None) -> Interval | None:
    """A machine's own rows: of the decade, drawn towards all its decades, these towards other machines."""
    rows = sum(each.rows for each in groups.values())
    whole = interval_of(_points(groups.values()), rows, coverage)
    if others is not None:
        whole = whole.shrunk(others)
    elif rows == 1:
        return None
    elif rows in FEW_ROWS:
        return whole.widened(FEW_ROWS[rows])
    if decade in groups:
        # how far out the ends lie follows from all rows: a decade of few is drawn towards them anyway
        own = interval_of(_points([groups[decade]]), groups[decade].rows + PRIOR_ROWS, coverage)
        whole = replace(own, rows=groups[decade].rows).shrunk(whole)
    return replace(whole, rows=rows, beside=0 if others is None else others.machines)


def _unseen(machines: Sequence[Mapping[int, BarGroup]], decade: int, coverage: float) -> Interval | None:
    """Machines with about one vote each; wider by what a further draw from so few varies more than they do."""
    if len(machines) < 2:
        return None
    parts: list[NDArray[np.float64]] = []
    for groups in machines:
        rows, vote = groups[decade].rows if decade in groups else 0, _vote(groups)
        if rows:
            parts.append(_weighing(groups[decade].weighted, vote * rows / (rows + PRIOR_ROWS)))
        parts.append(_weighing(_points(groups.values()), vote * PRIOR_ROWS / (rows + PRIOR_ROWS)))
    rows = sum(each.rows for groups in machines for each in groups.values())
    found = interval_of(np.concatenate(parts), rows, coverage, len(machines))
    if len(machines) > 2:
        return found
    (one,), (other,) = (quantiles(_points(groups.values()), 0.5) for groups in machines)
    further = (TWO_MACHINES - 1) * abs(one - other) / 2
    return replace(found, low=found.low - further, high=found.high + further)


def _vote(groups: Mapping[int, BarGroup]) -> float:
    whole = sum(each.rows for each in groups.values())
    return whole / (whole + VOTE_ROWS)


def _machines_worth(votes: Sequence[float]) -> float:
    """As how many machines with a whole vote they tell about one more (Kish's effective size of a weighted sample): the
    variance of their mean is that of a machine over so many. One of four rows beside one of a hundred counts little."""
    return sum(votes) ** 2 / sum(each**2 for each in votes)


def _joined(halves: Sequence[BarGroup]) -> BarGroup:
    """Rows of both halves as one group, whose points are those of the two: the one with more rows has more of them."""
    first, *more = halves
    if not more:
        return first
    rows = sum(each.rows for each in halves)
    points: list[float] = []
    for each in halves:
        count = max(1, round(len(LEVELS) * each.rows / rows))
        places = [(2 * number + 1) / (2 * count) * len(LEVELS) - 0.5 for number in range(count)]
        points += [_between(each.points, place) for place in places]
    return replace(first, rows=rows, points=tuple(sorted(points)), half="")


def _between(points: Sequence[float], place: float) -> float:
    """A point that may lie between two."""
    low = min(len(points) - 1, floor(place))
    high = min(len(points) - 1, low + 1)
    return points[low] + (points[high] - points[low]) * (place - low)


def _points(groups: Iterable[BarGroup]) -> NDArray[np.float64]:
    """The quantiles of groups, each group with the weight of its rows."""
    return np.concatenate([each.weighted for each in groups])


def _weighing(points: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    """The same points with another weight in all."""
    return points * (1, weight / points[:, 1].sum())


# The file -------------------------------------------------------------------------------------------------------------

COLUMNS = (
    "quantity",
    "family",
    "machine",
    "decade",
    "half",
    "rows",
    *(f"q{round(100 * level):02d}" for level in LEVELS),
)


def table_file() -> Path:
    """The table that comes with hwsim."""
    return Path(str(files("hwsim"))) / "validation" / "data" / "error_bars.csv"


@lru_cache(maxsize=1)
def shipped_table() -> BarTable:
    return read_bars(table_file())


def read_bars(path: Path) -> BarTable:
    with path.open(encoding="utf-8", newline="") as file:
        return BarTable(
            BarGroup(
                row["quantity"], row["family"], row["machine"], int(row["decade"]), int(row["rows"]),
                tuple(float(row[name]) for name in COLUMNS[6:]), row["half"],
            )
            for row in csv.DictReader(file)
        )  # fmt: skip


# Bars of a run --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """Measured over simulated: where its middle is expected, and how far both ends are from there."""

    middle: float
    down: float
    up: float
    rows: int
    basis: str
    source: str

    @property
    def ends(self) -> tuple[float, float]:
        return self.middle - self.down, self.middle + self.up


def is_shipped(machine: MachineSpec) -> bool:
    """Whether a machine is one that comes with hwsim, as it comes: what was changed was not measured."""
    return machine == _as_shipped(machine.name)


@lru_cache(maxsize=64)
def _as_shipped(name: str) -> MachineSpec | None:
    file = shipped_folder("machine") / f"{name}.yaml"
    try:
        return load_machine(file).spec if file.is_file() else None
    except HwsimError:
        return None


def find_bars(
    machine: MachineSpec,
    parts: Sequence[ComparedPart],
    time_s: float,
    energy_j: float | None,
    static_j: float,
    exact: str,
    *,
    as_shipped: bool,
) -> Bars:
    """The bars of a run from the families that its parts belong to; `static_j` is the energy that grows with time."""

    def estimated(quantity: str, named: Sequence[ComparedPart]) -> Estimate | str:
        return estimate(shipped_table(), quantity, named, machine.name, measured=as_shipped)

    time = estimated(TIME, parts)
    if energy_j is None or not time_s:
        return Bars(_bar(TIME, time_s, time), None, None, exact)
    energy, power = estimated(ENERGY, parts), estimated(POWER, parts)
    if all(part.power for part in parts) and not isinstance(time, str):
        drawn = estimated(POWER, [replace(part, family=part.power, words=POWER_WORDS) for part in parts])
        if isinstance(drawn, str):
            energy = power = drawn
        else:
            share = static_j / energy_j if energy_j else 0.0
            energy, power = _with_time(drawn, time, share), _with_time(drawn, time, share - 1)
    return Bars(
        _bar(TIME, time_s, time),
        _bar(ENERGY, energy_j, energy),
        _bar(POWER, energy_j / time_s, power),
        exact,
    )


def estimate(
    table: BarTable,
    quantity: str,
    parts: Sequence[ComparedPart],
    machine: str,
    *,
    measured: bool = True,
) -> Estimate | str:
    """Errors of one family are added up, those of different ones as squares; or, in words, why there is no bar."""
    whole = sum(part.seconds for part in parts)
    found: dict[str, list[tuple[float, tuple[float, float, float]]]] = defaultdict(list)
    intervals: dict[str, Interval] = {}
    unknown: dict[str, float] = defaultdict(float)
    for part in parts:
        known = table.interval(quantity, part.family, machine if measured else None, part.seconds)
        if known is None:
            unknown[part.words] += part.seconds
            continue
        found[part.family].append((part.seconds, (exp(known.low), exp(known.middle), exp(known.high))))
        intervals[part.family] = known
    missing = sum(unknown.values())
    if not found or missing > MOST_UNKNOWN * whole:
        return _unknown_words(unknown, missing / whole if whole else 1.0)
    scale = 1 / (whole - missing)
    middle = down = up = 0.0
    for each in found.values():
        middle += scale * sum(weight * at for weight, (_, at, _) in each)
        down = hypot(down, scale * sum(weight * (at - low) for weight, (low, at, _) in each))
        up = hypot(up, scale * sum(weight * (high - at) for weight, (_, at, high) in each))
    rows = sum(each.rows for each in intervals.values())
    words = {part.family: part.words for part in sorted(parts, key=lambda part: -part.seconds) if part.family in found}
    own = {family for family in found if measured and machine in table.machines(quantity, family)}
    source = _source(words, own, intervals, machine, changed=not measured)
    if quantity != TIME and (outside := {part.unmeasured for part in parts if part.unmeasured}):
        source += f"; measured without {_listed(sorted(outside))}, which is taken to be off by as much"
    return Estimate(middle, down, up, rows, MACHINE if len(own) == len(found) else CLASS, source)


SO_FEW = 10
"""A bar from fewer measurements says so: its ends may be luck."""


def _source(
    words: Mapping[str, str], own: set[str], intervals: Mapping[str, Interval], machine: str, *, changed: bool
) -> str:
    """What was measured on the machine itself, and what on others."""
    said = []
    if own:
        rows = sum(intervals[family].rows for family in own)
        listed = _listed([name for family, name in words.items() if family in own])
        few = [family for family in own if intervals[family].rows < PRIOR_ROWS and intervals[family].beside]
        beside = max((intervals[family].beside for family in few), default=0)
        drawn = f", so few that those of {beside} other machines count more" if few else ""
        only = "only " if rows < SO_FEW else ""
        said.append(
            f"{machine}, {listed}: {only}{counted(rows, 'measured row')} that {'was' if rows == 1 else 'were'} not "
            f"fitted{drawn}"
        )
    if strange := {family: intervals[family] for family in words if family not in own}:
        rows, count = sum(each.rows for each in strange.values()), max(each.machines for each in strange.values())
        why = f"{machine} with these changes was not measured" if changed else f"{machine} was not measured"
        only = "only " if rows < SO_FEW else ""
        said.append(
            f"{_listed([words[family] for family in strange])}: {only}{rows:,} rows of {count} other machines; {why}"
        )
    return "; ".join(said)


def _with_time(drawn: Estimate, time: Estimate, share: float) -> Estimate:
    """Power at given rates, and what an error of the time adds: as much as the share of the energy that grows with it;
    to the power, as little as the rest is divided by it."""
    down, up = (time.down, time.up) if share >= 0 else (time.up, time.down)
    basis = MACHINE if drawn.basis == time.basis == MACHINE else CLASS
    return Estimate(
        drawn.middle + share * (time.middle - 1),
        hypot(drawn.down, share * down),
        hypot(drawn.up, share * up),
        drawn.rows,
        basis,
        f"{drawn.source}, and the bar of the time",
    )


def _bar(quantity: str, value: float, found: Estimate | str) -> ErrorBar:
    if isinstance(found, str):
        return ErrorBar(value, UNITS[quantity], None, None, COVERAGE, 0, NEVER, found)
    low, high = (value * max(0.0, end) for end in found.ends)
    return ErrorBar(value, UNITS[quantity], low, high, COVERAGE, found.rows, found.basis, found.source)


def _unknown_words(unknown: Mapping[str, float], share: float) -> str:
    named = [words for words in sorted(unknown, key=lambda words: -unknown[words]) if words]
    if not named:
        return NEVER_COMPARED
    whole = "" if share > 0.995 else f", {100 * share:.0f} % of the time"
    return f"{NEVER_COMPARED} ({_listed(named)}{whole})"


def _listed(names: Sequence[str]) -> str:
    if len(names) <= 2:
        return " and ".join(names)
    return (
        f"{names[0]}, {names[1]} and {len(names) - 2} more"
        if len(names) > 3
        else f"{names[0]}, {names[1]} and {names[2]}"
    )
