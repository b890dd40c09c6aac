"""The whole run, and what it leaves behind. A crew does its work on a floor; what happened there is the outcome.

Time is an integer: femtoseconds between clock domains, cycles inside one. The time of each agent is attributed without
remainder, and turned into whole cycles with nothing lost in rounding.

The power limit: a run that would draw more has the clocks of its compute units lowered until it does not, and their
voltage with them, so that an action costs less. Memory with a clock of its own keeps its pace and its voltage: a run
that waits for DRAM loses little.

This is the home of SimPy. Agents are generators: they yield what they wait for. A target writes them with what a floor
offers (the clock, links, DMA engines, a timeline), and never imports SimPy itself.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Protocol, TypeAlias

import simpy
from simpy.core import EmptySchedule

from hwsim.energy import Ledger, dynamic_joules, static_watts
from hwsim.memory.counters import CacheCounters, DramCounters, ScratchpadCounters
from hwsim.record import Record
from hwsim.spec.machine import DramSpec, MachineSpec, PriceSpec
from hwsim.trace.nest import Instructions

FEMTOSECONDS = 10**15


@dataclass(frozen=True)
class AgentTime:
    """How one core spent its time, in femtoseconds: busy by unit, waiting by resource, together `elapsed_fs`."""

    name: str
    elapsed_fs: int
    busy: dict[str, int]
    waiting: dict[str, int]


@dataclass(frozen=True)
class Held:
    """How much of a lane of many equal units was held: blocks of a launch on the SMs of a GPU."""

    task: str
    blocks: int
    slots: int
    of_slots: int
    units: int
    """Units that all slots together are on."""


@dataclass(frozen=True)
class Span:
    """Something that held a resource: one event of the timeline."""

    lane: str
    name: str
    start_fs: int
    end_fs: int
    held: Held | None = None


@dataclass(frozen=True)
class Pulse:
    """What happened between two moments, for power over time."""

    start_fs: int
    end_fs: int
    ledger: Ledger


@dataclass(frozen=True)
class TensorTraffic(Record):
    """Elements of one tensor that were loaded and stored, and its misses in each level."""

    loads: int = 0
    stores: int = 0
    misses: dict[str, int] = field(default_factory=dict)

    def __sub__(self, earlier: TensorTraffic) -> TensorTraffic:
        """What was moved since."""
        misses = {level: count - earlier.misses.get(level, 0) for level, count in self.misses.items()}
        return TensorTraffic(self.loads - earlier.loads, self.stores - earlier.stores, misses)

    def __add__(self, more: TensorTraffic) -> TensorTraffic:
        levels = self.misses.keys() | more.misses.keys()
        misses = {level: self.misses.get(level, 0) + more.misses.get(level, 0) for level in sorted(levels)}
        return TensorTraffic(self.loads + more.loads, self.stores + more.stores, misses)

    @property
    def moved(self) -> bool:
        return bool(self.loads or self.stores)


@dataclass(frozen=True)
class StageOutcome:
    """What one stage of a kernel took and moved; the next one began when it was done."""

    name: str
    elapsed_fs: int
    flops: int
    tensors: dict[str, TensorTraffic]

    def __add__(self, more: StageOutcome) -> StageOutcome:
        """Both, one after the other, under the name of the first."""
        names = [*self.tensors, *(name for name in more.tensors if name not in self.tensors)]
        nothing = TensorTraffic()
        tensors = {name: self.tensors.get(name, nothing) + more.tensors.get(name, nothing) for name in names}
        return StageOutcome(self.name, self.elapsed_fs + more.elapsed_fs, self.flops + more.flops, tensors)


FIRST_BYTES = "first bytes"
"""The part of a run that its transfers wait for, all of their waits one after the other."""


@dataclass(frozen=True)
class Outcome:
    """Everything that was counted and timed."""

    elapsed_fs: int
    clock_hz: int
    agents: tuple[AgentTime, ...]
    parts: dict[str, int]
    """Femtoseconds that each part of the work would take alone, the busiest agent's: units, ports, chain, each link."""
    levels: Mapping[str, CacheCounters | ScratchpadCounters]
    dram: DramCounters
    tensors: dict[str, TensorTraffic]
    stages: tuple[StageOutcome, ...]
    flops: int
    macs: int
    loads: int
    stores: int
    """Elements that went from memory to registers, or to the chip, and back."""
    ledger: Ledger
    peak_flops_per_s: float
    """What the units at work could have done."""
    model: str
    """Which model replayed the accesses: `stream` or `coupled` for caches, or the class of an accelerator."""
    reached: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """For each level, how much of each tensor got there: its energy is shared out in this proportion."""
    instructions: Instructions = field(default_factory=Instructions)
    warnings: tuple[str, ...] = ()
    """What the machine made of the schedule and a user should know."""
    core_energy: float = 1.0
    """What actions outside main memory cost at the voltage of the run, as a share of the machine's prices."""
    workspace_bytes: int = 0
    """Memory that this machine needs beside the tensors of the program."""
    use: Mapping[str, Any] = field(default_factory=dict)
    """What only this class of machines has to tell: launches of a GPU, passes of an array."""
    accesses: int = 0
    skipped: int = 0
    """Accesses replayed, and how many of them warping did not have to walk."""
    walk_seconds: float = 0.0
    math_seconds: float = 0.0
    """Wall time of the replay or the mapping, and of the real math; for benchmarks, never part of a result."""
    events: int = 0
    """Events that the run took; filled in by the engine, as are those below."""
    spans: tuple[Span, ...] = ()
    pulses: tuple[Pulse, ...] = ()
    """What each step did, in order of time; like `spans` only where a timeline was asked for."""

    @property
    def cycles(self) -> int:
        return -(-self.elapsed_fs * self.clock_hz // FEMTOSECONDS)

    @property
    def lower_fs(self) -> int:
        """No run can be shorter: its longest part. Waits for first bytes can all hide behind each other."""
        return max((fs for name, fs in self.parts.items() if name != FIRST_BYTES), default=0)

    @property
    def upper_fs(self) -> int:
        """Nothing overlaps: the sum of all parts."""
        return sum(self.parts.values())


def cycles_to_fs(cycles: Fraction | int, clock_hz: int) -> int:
    """Femtoseconds that so many cycles take; a part of a femtosecond counts as a whole one."""
    return -(-cycles.numerator * FEMTOSECONDS // (cycles.denominator * clock_hz))


def seconds_to_fs(seconds: Fraction) -> int:
    exact = seconds * FEMTOSECONDS
    return -(-exact.numerator // exact.denominator)


Attribution = dict[str, dict[str, dict[str, int]]]
"""``{"core[0]": {"busy": {"fma": 1200}, "waiting": {"chain": 3600}}}``, in cycles."""

BUSY, WAITING = "busy", "waiting"


def in_cycles(agents: Sequence[AgentTime], clock_hz: int) -> Attribution:
    """Femtoseconds as cycles. The parts of an agent add up to its own cycles, rounded up once."""
    return {agent.name: _agent(agent, clock_hz) for agent in agents}


def total(parts: Mapping[str, Mapping[str, int]]) -> int:
    """The cycles of one agent."""
    return sum(sum(group.values()) for group in parts.values())


def summed(attribution: Attribution) -> dict[tuple[str, str], int]:
    """All agents together: cycles by (busy or waiting, name), the largest first."""
    together: dict[tuple[str, str], int] = {}
    for parts in attribution.values():
        for kind, group in parts.items():
            for name, cycles in group.items():
                together[kind, name] = together.get((kind, name), 0) + cycles
    return dict(sorted(together.items(), key=lambda item: (-item[1], item[0])))


def _agent(agent: AgentTime, clock_hz: int) -> dict[str, dict[str, int]]:
    """Cut its time at the running sums, and count the cycles between two cuts; the last cut is rounded up."""
    parts = [(BUSY, name, fs) for name, fs in sorted(agent.busy.items())]
    parts += [(WAITING, name, fs) for name, fs in sorted(agent.waiting.items())]
    whole = sum(fs for _, _, fs in parts)
    assert whole == agent.elapsed_fs, f"{agent.name}: {whole} fs attributed of {agent.elapsed_fs}"
    found: dict[str, dict[str, int]] = {BUSY: {}, WAITING: {}}
    end_fs = start_cycle = 0
    for number, (kind, name, fs) in enumerate(parts):
        end_fs += fs
        last = number == len(parts) - 1
        end_cycle = -(-end_fs * clock_hz // FEMTOSECONDS) if last else end_fs * clock_hz // FEMTOSECONDS
        if end_cycle > start_cycle:
            found[kind][name] = end_cycle - start_cycle
        start_cycle = end_cycle
    return found


class Watch:
    """Femtoseconds of an agent in the order of time: at work with a unit, or waiting for something with a name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()

    @property
    def elapsed_fs(self) -> int:
        return self.busy.total() + self.waiting.total()

    def work(self, unit: str, duration_fs: int) -> None:
        if duration_fs:
            self.busy[unit] += duration_fs

    def wait(self, cause: str, duration_fs: int) -> None:
        if duration_fs:
            self.waiting[cause] += duration_fs

    def result(self) -> AgentTime:
        return AgentTime(self.name, self.elapsed_fs, dict(self.busy), dict(self.waiting))


_TRIES = 16
_CLOSE = 0.99
"""Power that is this near the limit is near enough."""
_SLOWEST = Fraction(1, 20)
_FINEST = Fraction(1, 1000)
"""Shares of the clock that are no further apart than this are as good as one."""


@dataclass(frozen=True)
class Throttle(Record):
    """What the power limit did to a run."""

    limit_w: float
    wanted_w: float
    """Average power at the full clock."""
    share: float
    """Of the full clock."""
    clock_hz: int
    full_clock_hz: int
    voltage: float = 1.0
    """Of the voltage at the full clock."""


_LOWEST_VOLTAGE = Fraction(7, 10)


def voltage(share: Fraction) -> Fraction:
    """The share of the voltage that a share of the clock needs.

    By the alpha-power law (Sakurai and Newton, IEEE JSSC 25(2), 1990) a gate's speed is (V - Vt)^a / V. With a = 1.3
    and Vt = 0.3 of the full voltage that is V itself within one percent between 0.7 and 1. Assumption: below 0.7
    memories on the chip would forget, and only the clock falls.
    """
    return max(_LOWEST_VOLTAGE, share)


def average_watts(machine: MachineSpec, outcome: Outcome) -> float:
    """Energy over time; 0 for a machine without prices."""
    if machine.energy is None or not outcome.elapsed_fs:
        return 0.0
    seconds = Fraction(outcome.elapsed_fs, FEMTOSECONDS)
    prices = at_voltage_of(machine, outcome).energy
    assert prices is not None
    entries = outcome.ledger.priced(prices, seconds, machine.name)
    return dynamic_joules(entries) / float(seconds) + static_watts(machine.energy)


def lower_clocks(machine: MachineSpec, share: Fraction) -> MachineSpec:
    """The machine with the clocks of its compute units at a share of theirs, and at the voltage that these need: what
    happens at these clocks, and the clock trees, take energy in proportion to its square."""
    default = machine.clocks[0].name
    slowed = {unit.clock or default for unit in machine.compute}
    clocks = tuple(
        clock.model_copy(update={"frequency": max(1, int(clock.frequency * share))}) if clock.name in slowed else clock
        for clock in machine.clocks
    )
    changes: dict[str, object] = {"clocks": clocks}
    if machine.energy is not None:
        lower = voltage(share) ** 2
        static = {
            name: each.model_copy(update={"clock": None if each.clock is None else each.clock * share * lower})
            for name, each in machine.energy.static.items()
        }
        changes["energy"] = machine.energy.model_copy(update={"static": static})
        keep = {
            level.name
            for level in machine.memory
            if isinstance(level, DramSpec) or (level.clock or default) not in slowed
        }
        return at_energy(machine.model_copy(update=changes), lower, keep)
    return machine.model_copy(update=changes)


def at_voltage_of(machine: MachineSpec, outcome: Outcome) -> MachineSpec:
    """The machine with the prices of the voltage that a run itself chose, within the power limit of its units."""
    if machine.energy is None or outcome.core_energy == 1:
        return machine
    far = [level.name for level in machine.memory if isinstance(level, DramSpec)]
    return at_energy(machine, Fraction(outcome.core_energy), far)


def at_energy(machine: MachineSpec, share: Fraction, keep: Collection[str]) -> MachineSpec:
    """The machine with actions at a share of their energy, but for those of some levels, whose voltage stays."""
    assert machine.energy is not None
    lower = {
        name: price if name.partition(".")[0] in keep else _scaled(price, share)
        for name, price in machine.energy.actions.items()
    }
    return machine.model_copy(update={"energy": machine.energy.model_copy(update={"actions": lower})})


def _scaled(price: PriceSpec, share: Fraction) -> PriceSpec:
    parts = {name: getattr(price, name) for name in ("energy", "controller", "control")}
    lower = {
        name: replace(part, picojoules=part.picojoules * share) for name, part in parts.items() if part is not None
    }
    return price.model_copy(update=lower)


def keep_within_limit(
    machine: MachineSpec, outcome: Outcome, again: Callable[[MachineSpec], Outcome]
) -> tuple[MachineSpec, Outcome, Throttle | None]:
    """The run itself if it draws no more than the limit, or one at the highest clock found that does not."""
    limit = machine.energy.tdp if machine.energy is not None else None
    wanted = average_watts(machine, outcome) if limit is not None else 0.0
    if limit is None or wanted <= float(limit.power):
        return machine, outcome, None
    power = float(limit.power)
    share, slowed, result = find_share(machine, power, wanted, again)
    full = machine.clock_hz(machine.compute[0].clock)
    clock = slowed.clock_hz(machine.compute[0].clock)
    return slowed, result, Throttle(power, wanted, float(share), clock, full, float(voltage(share)))


def find_share(
    machine: MachineSpec, limit_w: float, wanted_w: float, again: Callable[[MachineSpec], Outcome]
) -> tuple[Fraction, MachineSpec, Outcome]:
    """The highest share of the clock, up to a percent of power or a thousandth of the clock, that keeps to a limit.

    A run that waits for memory draws no less at a slightly lower clock, so power may stay where it is for a while and
    then fall steeply. The search goes down in steps that double, then closes in from both sides.
    """
    idle = static_watts(machine.energy) if machine.energy is not None else 0.0
    dynamic = wanted_w - idle
    guess = (limit_w - idle) / dynamic if dynamic > 0 else 1.0
    high, above_w, step = Fraction(1), wanted_w, max(_FINEST, 1 - _thousandths(max(0.0, guess) ** (1 / 3)))
    share = max(_SLOWEST, high - step)
    found: tuple[Fraction, MachineSpec, Outcome] | None = None
    for _ in range(_TRIES):
        slowed = lower_clocks(machine, share)
        outcome = again(slowed)
        watts = average_watts(slowed, outcome)
        if watts <= limit_w or share == _SLOWEST:
            found, below_w = (share, slowed, outcome), watts
            if watts >= _CLOSE * limit_w or (share == _SLOWEST and watts > limit_w):
                break
        else:
            high, above_w = share, watts
        if found is None:
            step *= 2
            share = max(_SLOWEST, high - step)
        elif high - found[0] <= _FINEST:
            break
        else:
            share = _between(found[0], below_w, high, above_w, limit_w)
    if found is None:
        slowed = lower_clocks(machine, _SLOWEST)
        found = _SLOWEST, slowed, again(slowed)
    return found


def _between(low: Fraction, low_w: float, high: Fraction, high_w: float, limit_w: float) -> Fraction:
    """Where a straight line between two shares meets the limit, at least a quarter of the way from either."""
    place = (limit_w - low_w) / (high_w - low_w)
    inside = min(0.75, max(0.25, place))
    return max(low + _FINEST, min(high - _FINEST, _thousandths(float(low) + inside * float(high - low))))


def _thousandths(share: float) -> Fraction:
    return Fraction(int(1000 * share), 1000)


# Time passes ----------------------------------------------------------------------------------------------------------


class Link:
    """A connection whose bandwidth is shared fairly by the transfers that are on it.

    n transfers in flight each get 1/n of the bandwidth; when one starts or ends, the others go on at their new share. A
    transfer of weight w stands for w equal ones, and gets the share of w. This is kept as one number, the service that
    a transfer of weight 1 has received since the link was made: one that starts at service s is done at s + bytes / w.
    Service is an exact fraction; a completion is rounded up to a whole femtosecond once. There is one event pending at
    a time, the next completion.
    """

    def __init__(self, env: simpy.Environment, name: str, bytes_per_second: Fraction | None) -> None:
        self.env = env
        self.name = name
        self.moved_bytes: Fraction | int = 0
        self._rate = None if bytes_per_second is None else bytes_per_second / FEMTOSECONDS
        self._service = Fraction(0)
        self._since = 0
        self._waiting: list[tuple[Fraction, int, int, simpy.Event]] = []
        self._weight = 0
        self._arrivals = 0
        self._version = 0

    def transfer(self, nbytes: Fraction | int, weight: int = 1) -> simpy.Event:
        """An event that happens when the bytes (or what takes the link as long) have moved, for so many at once."""
        done = self.env.event()
        self.moved_bytes += nbytes
        if self._rate is None or nbytes == 0:
            return done.succeed()
        self._advance()
        self._arrivals += 1
        end = Fraction(nbytes, weight)
        if self._service:
            end += self._service
        heapq.heappush(self._waiting, (end, self._arrivals, weight, done))
        self._weight += weight
        self._schedule()
        return done

    def alone_fs(self, nbytes: Fraction | int) -> int:
        """How long a transfer takes while nobody else is on the link."""
        if self._rate is None:
            return 0
        return -(-nbytes.numerator * self._rate.denominator // (nbytes.denominator * self._rate.numerator))

    def _advance(self) -> None:
        """Bring the service up to now."""
        if self._waiting and self._rate is not None:
            self._service += (self.env.now - self._since) * self._rate / self._weight
        self._since = self.env.now

    def _schedule(self) -> None:
        """Wait for the next completion; an earlier appointment is void."""
        self._version += 1
        if not self._waiting or self._rate is None:
            return
        exact = self._waiting[0][0]
        if self._service:
            exact -= self._service
        if self._weight != 1:
            exact *= self._weight
        rate = self._rate
        delay = max(0, -(-exact.numerator * rate.denominator // (exact.denominator * rate.numerator)))
        version = self._version
        self.env.timeout(delay).callbacks.append(lambda _: self._complete(version))

    def _complete(self, version: int) -> None:
        if version != self._version:
            return
        if len(self._waiting) == 1:  # nobody else: what was waited for is its end
            *_, done = self._waiting.pop()
            self._weight, self._service, self._since = 0, Fraction(0), self.env.now
            done.succeed()
            self._version += 1
            return
        self._advance()
        while self._waiting and self._waiting[0][0] <= self._service:
            _, _, weight, done = heapq.heappop(self._waiting)
            self._weight -= weight
            done.succeed()
        if not self._waiting:
            self._service = Fraction(0)  # nobody is left to compare with: short fractions again
        self._schedule()


class DmaEngines:
    """So many engines, each with one transfer at a time: of those that wait, the one for the earliest tile first.

    Requests of one moment are looked at together, so that none gets in by asking first.
    """

    def __init__(self, env: simpy.Environment, engines: int) -> None:
        self._env = env
        self._idle = engines
        self._waiting: list[tuple[int, int, simpy.Event]] = []
        self._asked = 0
        self._called = False

    def request(self, tile: int) -> simpy.Event:
        """An event that happens when an engine is there for a transfer of this tile."""
        granted = self._env.event()
        self._asked += 1
        heapq.heappush(self._waiting, (tile, self._asked, granted))
        self._call()
        return granted

    def release(self) -> None:
        """The engine is free again."""
        self._idle += 1
        self._call()

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._env.timeout(0).callbacks.append(self._serve)

    def _serve(self, _: simpy.Event) -> None:
        self._called = False
        while self._idle and self._waiting:
            self._idle -= 1
            heapq.heappop(self._waiting)[2].succeed()


Event: TypeAlias = simpy.Event
Wait = Generator[Event, Any, None]
"""An agent, or a part of one: it yields what it waits for."""


WATCHERS: list[Callable[[float], None]] = []
"""Told how much of a run is done, where its agents know: a share from 0 to 1."""


class Floor:
    """One run: time starts at 0 and passes in femtoseconds."""

    def __init__(self, *, timeline: bool = False) -> None:
        self._env = simpy.Environment()
        self.timeline = timeline
        self.spans: list[Span] = []
        self.pulses: list[Pulse] = []
        self.events = 0

    @property
    def now(self) -> int:
        return int(self._env.now)

    # What agents wait for ---------------------------------------------------------------------------------------------

    def delay(self, duration_fs: int) -> Event:
        return self._env.timeout(duration_fs)

    def event(self) -> Event:
        """Something that happens when somebody calls its `succeed`."""
        return self._env.event()

    def every(self, events: Sequence[Event]) -> Event:
        """Happens when all of them have."""
        return simpy.AllOf(self._env, events)

    def start(self, agent: Wait) -> Event:
        """Let an agent work beside the others; happens when it is done."""
        return self._env.process(agent)

    def tell(self, share: float) -> None:
        """How much of the run is done."""
        for watcher in WATCHERS:
            watcher(share)

    # What they share --------------------------------------------------------------------------------------------------

    def link(self, name: str, bytes_per_second: Fraction | None) -> Link:
        """A connection whose bandwidth is shared by all transfers on it; without a bandwidth it takes no time."""
        return Link(self._env, name, bytes_per_second)

    def engines(self, count: int) -> DmaEngines:
        return DmaEngines(self._env, count)

    # What is written down ---------------------------------------------------------------------------------------------

    def record(self, lane: str, name: str, begin_fs: int, end_fs: int, held: Held | None = None) -> None:
        """A bar of the timeline, where one was asked for."""
        if self.timeline:
            self.spans.append(Span(lane, name, begin_fs, end_fs, held))

    def pulse(self, begin_fs: int, end_fs: int, ledger: Ledger) -> None:
        """What was spent between two moments: power over time."""
        if self.timeline:
            self.pulses.append(Pulse(begin_fs, end_fs, ledger))

    def run(self, until_fs: int | None = None) -> None:
        """Let time pass until nothing is left to happen, or up to a moment."""
        if until_fs is not None:
            self._env.run(until=until_fs)
            return
        step = self._env.step
        with suppress(EmptySchedule):
            while True:
                step()
                self.events += 1


class Crew(Protocol):
    """A kernel laid out for a machine: agents with their steps. Each class of machines has its own."""

    def work(self, floor: Floor) -> None:
        """Do all the work: real math, replays, time. Returns when nothing is left to do."""

    def outcome(self) -> Outcome:
        """What was counted, once the work is done."""


def play(crew: Crew, *, timeline: bool = False) -> Outcome:
    """Let a crew work; `timeline` writes down who was busy when, and what was spent meanwhile."""
    floor = Floor(timeline=timeline)
    crew.work(floor)
    pulses = tuple(sorted(floor.pulses, key=lambda pulse: (pulse.start_fs, pulse.end_fs)))
    return replace(crew.outcome(), events=floor.events, spans=tuple(floor.spans), pulses=pulses)
