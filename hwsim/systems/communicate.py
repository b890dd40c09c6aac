"""One collective on a system: which kernel of which library, how long, by which formula, over which links.

The time comes out of a run: every rank is an agent that sends its messages of a round over the links of their paths
and waits for what it is sent. Beside it stands what a formula says. A library takes the kernel that is fastest for the
size.

Topology: which links lie between two devices of a system, and how fast each of them is.

A link is named and has one direction: `h100[0] out`, `h100[3] in`, `bus`, `uplink[1] out`. A message holds all links of
its path at once and is through when the slowest of them is, as cut-through routing has it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from hwsim.engine import FEMTOSECONDS, Event, Floor, Link, Span, Wait
from hwsim.errors import InputError
from hwsim.spec.fields import did_you_mean
from hwsim.systems.collective import SWITCH, Message, Schedule, build_schedule
from hwsim.systems.spec import KernelSpec, LinkSpec, SystemSpec, Timed, as_femtoseconds

Path = tuple[str, ...]


@dataclass(frozen=True)
class LinkTopology:
    """The devices that take part, by their numbers, and the links between them."""

    system: SystemSpec
    members: tuple[int, ...]

    @classmethod
    def of(cls, system: SystemSpec, members: Sequence[int] | None = None) -> LinkTopology:
        return cls(system, tuple(range(system.count)) if members is None else tuple(members))

    def node_of(self, device: int) -> int:
        return device // self.system.node_size

    @property
    def nodes(self) -> int:
        """Nodes that the members lie in."""
        return len({self.node_of(device) for device in self.members})

    def crosses(self, source: int, target: int) -> bool:
        """Whether a message leaves its node."""
        return self.node_of(source) != self.node_of(target)

    def path(self, source: int, target: int) -> Path:
        """The links that a message takes, in its direction."""
        if self.crosses(source, target):
            assert self.system.between is not None
            return self._way(self.system.between, source, target, "net ", 0, self.system.count)
        first = self.node_of(source) * self.system.node_size
        return self._way(self.system.inside, source, target, "", first, self.system.node_size)

    def _way(self, link: LinkSpec, source: int, target: int, prefix: str, first: int, count: int) -> Path:
        ends = (f"{prefix}{self._name(source)} out", f"{prefix}{self._name(target)} in")
        if link.topology == "bus":
            return (ends[0], f"{prefix}bus[{self.node_of(source)}]", ends[1])
        if link.topology == "tree":
            assert link.group is not None
            here, there = (source - first) // link.group, (target - first) // link.group
            up = (f"{prefix}uplink[{here}] out", f"{prefix}uplink[{there}] in") if here != there else ()
            return (ends[0], *up, ends[1])
        if link.topology == "ring":
            return self._around(source, target, prefix, first, count)
        return ends

    def _around(self, source: int, target: int, prefix: str, first: int, count: int) -> Path:
        """The shorter way round; to the right where both are equal."""
        right, left = (target - source) % count, (source - target) % count
        turn = 1 if right <= left else -1
        hops = [first + (source - first + turn * hop) % count for hop in range(min(right, left) + 1)]
        return tuple(f"{prefix}{self._name(a)}→{self._name(b)}" for a, b in pairwise(hops))

    def _name(self, device: int) -> str:
        return f"{self.system.machine}[{device}]"

    def rate(self, link: str) -> Fraction | None:
        """Bytes per second of a link; None without a limit."""
        spec = self.system.between if link.startswith("net ") else self.system.inside
        assert spec is not None
        word = link.removeprefix("net ")
        if word.startswith("uplink["):
            assert spec.uplink is not None
            return spec.uplink.amount
        return self._bus_rate if word.startswith("bus[") else spec.bandwidth.amount

    @cached_property
    def _bus_rate(self) -> Fraction | None:
        """What a bus gives to as many as take part in a node: that of the next larger number that is known."""
        taking_part = max(Counter(map(self.node_of, self.members)).values())
        known = sorted(self.system.inside.shared, key=lambda each: each.devices)
        return next((each for each in known if each.devices >= taking_part), known[-1]).bandwidth.amount

    def step_fs(self, source: int, target: int, inside_fs: int) -> int:
        """The time of a message beside its bytes."""
        if not self.crosses(source, target):
            return inside_fs
        assert self.system.between is not None
        return as_femtoseconds(self.system.between.step)


@dataclass(frozen=True)
class Communication(Timed):
    """What a collective took."""

    op: str
    nbytes: int
    ranks: int
    kernel: str
    algorithm: str
    elapsed_fs: int
    formula_fs: int
    """start + messages · step + bytes of the busiest link / bandwidth, round by round."""
    moved: dict[str, int]
    """Bytes of the data on each link."""
    spans: tuple[Span, ...] = ()

    @property
    def bus_bytes_per_s(self) -> float:
        """Bytes that an ideal algorithm has to move through each device, over the time: nccl-tests' busbw."""
        share = (self.ranks - 1) / self.ranks
        factor = {"all_reduce": 2 * share, "broadcast": 1.0, "send": 1.0}.get(self.op, share)
        return self.nbytes * factor / self.seconds if self.elapsed_fs else 0.0

    @property
    def bus_words(self) -> str:
        """What is counted there."""
        part = f"{self.ranks - 1}/{self.ranks}"
        words = {"all_reduce": f"2 · {part} of the bytes", "broadcast": "all bytes", "send": "all bytes"}
        return words.get(self.op, f"{part} of the bytes")


@dataclass(frozen=True)
class Plan:
    """A kernel with its messages on a topology."""

    kernel: KernelSpec
    schedule: Schedule
    topology: LinkTopology
    host_fs: int = 0
    """What the host takes to start it; the devices wait for that, or it for them."""

    def path(self, message: Message) -> Path:
        members = self.topology.members
        if SWITCH in (message.source, message.target):
            other = members[message.source if message.target == SWITCH else message.target]
            ends = self.topology.path(other, other)
            return ends[:1] if message.target == SWITCH else ends[-1:]
        return self.topology.path(members[message.source], members[message.target])

    def step_fs(self, message: Message) -> int:
        """The time of a message beside its bytes; what a switch sends comes by itself."""
        own = as_femtoseconds(self.kernel.step)
        if message.source == SWITCH:
            return 0
        if message.target == SWITCH:
            return own
        members = self.topology.members
        return self.topology.step_fs(members[message.source], members[message.target], own)

    def wire(self, link: str, nbytes: int) -> Fraction:
        """Bytes that take the link as long as these of the data do: protocols use a share of its bandwidth."""
        return Fraction(nbytes) if link.startswith("net ") else nbytes / _share(self.kernel)

    def formula_fs(self, nbytes: int) -> int:
        """Round by round: the most that anybody waits for its messages, and the busiest link."""
        sizes = self.schedule.sizes(nbytes)
        total = as_femtoseconds(self.kernel.start)
        for messages in self.schedule.rounds:
            issued: defaultdict[int, int] = defaultdict(int)
            carried: defaultdict[str, int] = defaultdict(int)
            for message in messages:
                issued[message.source] += self.step_fs(message)
                for link in self.path(message):
                    carried[link] += sum(sizes[message.first : message.last])
            longest = 0
            for link, amount in carried.items():
                rate = self.topology.rate(link)
                if rate is not None:
                    exact = self.wire(link, amount) * FEMTOSECONDS / rate
                    longest = max(longest, -(-exact.numerator // exact.denominator))
            total += max(issued.values(), default=0) + longest
        return max(total, self.host_fs)


def _share(kernel: KernelSpec) -> Fraction:
    return Fraction(str(kernel.share))


def candidates(topology: LinkTopology, op: str, library: str, form: str = "bf16") -> Iterator[Plan]:
    """The kernels of a library that can do a collective here."""
    ranks, nodes = len(topology.members), topology.nodes
    host_fs = as_femtoseconds(topology.system.libraries[library].host)
    for kernel in topology.system.kernels(library):
        if op not in kernel.ops or ranks < kernel.least_devices or form in kernel.refuses:
            continue
        if kernel.algorithm == "switch" and (topology.system.inside.topology != "switch" or nodes > 1):
            continue
        schedule = build_schedule(kernel.algorithm, op, ranks, nodes)
        if schedule is not None:
            yield Plan(kernel, schedule, topology, host_fs)


def choose(
    topology: LinkTopology, op: str, nbytes: int, library: str | None = None, form: str = "bf16", algorithm: str = ""
) -> Plan:
    """The kernel that takes the least time for this size by its formula; raises InputError where none can do it."""
    library = check_library(topology.system, library)
    found = list(candidates(topology, op, library, form))
    if algorithm:
        named = [plan for plan in found if algorithm in (plan.kernel.algorithm, plan.kernel.name)]
        if not named:
            known = sorted({plan.kernel.algorithm for plan in found})
            listed = ", ".join(known) or "none"
            raise InputError(
                f"algorithm={algorithm}: {library} on {topology.system.name} has for {op} of {form} on "
                f"{len(topology.members)} devices: {listed}{did_you_mean(algorithm, known)}"
            )
        found = named
    if not found:
        raise InputError(
            f"{library} of {topology.system.name} has no kernel for {op} on {len(topology.members)} devices"
        )
    return min(found, key=lambda plan: plan.formula_fs(nbytes))


def check_library(system: SystemSpec, library: str | None) -> str:
    """The library that is meant; the first of the file where nobody named one."""
    known = list(system.libraries)
    if library is None:
        return known[0]
    if library not in known:
        listed = ", ".join(known)
        raise InputError(f"library={library}: {system.name} has {listed}{did_you_mean(library, known)}")
    return library


class Cables:
    """The links of a system on a floor, made when they are first used; every collective on the floor shares them."""

    def __init__(self, floor: Floor, topology: LinkTopology) -> None:
        self.floor = floor
        self.moved: defaultdict[str, int] = defaultdict(int)
        self._topology = topology
        self._links: dict[str, Link] = {}

    def carry(self, plan: Plan, message: Message, nbytes: int) -> Event:
        """Happens when a message has passed all links of its path."""
        waits = []
        for name in plan.path(message):
            if name not in self._links:
                self._links[name] = self.floor.link(name, self._topology.rate(name))
            self.moved[name] += nbytes
            waits.append(self._links[name].transfer(plan.wire(name, nbytes)))
        return self.floor.every(waits)


def perform(floor: Floor, cables: Cables, plan: Plan, nbytes: int) -> list[Event]:
    """Let all ranks of a collective work; one event for each, which happens when it has all that it needs.

    A message is sent when its source and its target have both come to its round: nobody sends into a buffer that is
    still in use.
    """
    sizes = plan.schedule.sizes(nbytes)
    sent: defaultdict[tuple[int, int], list[tuple[Message, Event]]] = defaultdict(list)
    awaited: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    there: defaultdict[tuple[int, int], Event] = defaultdict(floor.event)
    for number, messages in enumerate(plan.schedule.rounds):
        for message in messages:
            landed = floor.event()
            sent[message.source, number].append((message, landed))
            awaited[message.target, number].append(landed)

    def carry(message: Message, landed: Event) -> Wait:
        begin = floor.now
        yield cables.carry(plan, message, sum(sizes[message.first : message.last]))
        for name in plan.path(message):
            floor.record(name, plan.kernel.name, begin, floor.now)
        landed.succeed()

    def rank(number: int) -> Wait:
        if number != SWITCH:
            yield floor.delay(as_femtoseconds(plan.kernel.start))
        for each in range(len(plan.schedule.rounds)):
            own = sent[number, each]
            there[number, each].succeed()
            if own:
                yield floor.every([there[message.target, each] for message, _ in own])
                yield floor.delay(sum(plan.step_fs(message) for message, _ in own))
            waits = [*(floor.start(carry(*one)) for one in own), *awaited[number, each]]
            if waits:
                yield floor.every(waits)

    def started(number: int) -> Wait:
        yield floor.every([floor.start(rank(number)), floor.delay(plan.host_fs)])

    ranks = list(range(plan.schedule.ranks))
    switched = any(number == SWITCH for number, _ in awaited)
    return [floor.start(started(number)) for number in ([*ranks, SWITCH] if switched else ranks)]


def communicate(
    system: SystemSpec,
    op: str,
    nbytes: int,
    *,
    devices: int | Sequence[int] | None = None,
    library: str | None = None,
    algorithm: str = "",
    form: str = "bf16",
    timeline: bool = False,
) -> Communication:
    """Play one collective of so many bytes on some devices of a system, all of them if not given."""
    topology = LinkTopology.of(system, _members(system, devices))
    if len(topology.members) < 2 or nbytes == 0:
        return Communication(op, nbytes, len(topology.members), "nothing to do", "", 0, 0, {})
    plan = choose(topology, op, nbytes, library, form, algorithm)
    floor = Floor(timeline=timeline)
    cables = Cables(floor, topology)
    perform(floor, cables, plan, nbytes)
    floor.run()
    return Communication(
        op, nbytes, len(topology.members), plan.kernel.name, plan.kernel.algorithm, floor.now,
        plan.formula_fs(nbytes), dict(sorted(cables.moved.items())), tuple(floor.spans),
    )  # fmt: skip


class Network:
    """A system whose collectives are asked for again and again: each is played once, and remembered."""

    def __init__(self, system: SystemSpec, library: str | None = None) -> None:
        self.system = system
        self.library = check_library(system, library)
        self._known: dict[tuple[object, ...], int] = {}

    def collective_fs(self, op: str, nbytes: int, members: Sequence[int], form: str = "bf16") -> int:
        """The time of a collective that has its links to itself."""
        key = (op, nbytes, tuple(members), form)
        if key not in self._known:
            found = communicate(self.system, op, nbytes, devices=members, library=self.library, form=form)
            self._known[key] = found.elapsed_fs
        return self._known[key]


def _members(system: SystemSpec, devices: int | Sequence[int] | None) -> tuple[int, ...]:
    if devices is None:
        return tuple(range(system.count))
    chosen = tuple(range(devices)) if isinstance(devices, int) else tuple(devices)
    if len(set(chosen)) != len(chosen) or not all(0 <= each < system.count for each in chosen):
        raise InputError(f"devices: {system.name} has {system.count}; each can take part once")
    return chosen
