"""The host and its links: copies to devices beside the work on what came before, and a model on both.

A device that is fed piece by piece takes the longer of copying and computing for each piece, not their sum, as soon as
it has room for two pieces: one is worked on while the next one comes.

Layers that the host has are of two sorts. Some it computes itself, and hands on what came out of them. Of others it
only keeps the weights, and copies them to the device in every step: into one of two rooms, while the device works on
the layer before. So a step takes the longer of copying and computing, not their sum, as far as memory allows two rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from hwsim.catalog import load_machine
from hwsim.energy import static_watts
from hwsim.engine import FEMTOSECONDS, Event, Floor, Link, Span, Wait
from hwsim.errors import CapacityError, InputError
from hwsim.models.count import Formats, Pass, stored_bits
from hwsim.models.graph import ModelGraph
from hwsim.models.kernels import SERVING
from hwsim.models.memory import MemoryUse, capacity, memory_use, weight_bytes
from hwsim.models.price import PassCost, StepPrice
from hwsim.models.run import choose_kernels, computed_numbers, phases_of
from hwsim.ops.model import ModelWorkload
from hwsim.spec.machine import MachineSpec
from hwsim.systems.collective import wire_fs
from hwsim.systems.shards import load_asked, whole_number
from hwsim.systems.spec import HostSpec, SystemSpec, Timed, as_femtoseconds, device_of, load_system
from hwsim.units import data

MOST_PIECES = 100_000


@dataclass(frozen=True)
class Feed(Timed):
    """What it took to feed devices from the host."""

    elapsed_fs: int
    formula_fs: int
    """start + copy + (n-1) · max(copy, compute) + compute with two buffers; n · (copy + compute) with one."""
    spans: tuple[Span, ...] = ()


def feed(
    system: SystemSpec, nbytes: int, *, pieces: int = 1, compute_fs: int = 0, buffers: int = 2,
    devices: int | None = None, timeline: bool = False,
) -> Feed:  # fmt: skip
    """Every device gets its own `nbytes` from the host in so many pieces, and works on each for so long.

    Devices behind one link share its bandwidth. With one buffer a piece is copied when the one before is done with.
    """
    host = host_of(system)
    count = system.count if devices is None else devices
    if not 1 <= count <= system.count:
        raise InputError(f"devices={count}: from 1 to {system.count}, which {system.name} has")
    if not 1 <= pieces <= min(MOST_PIECES, max(1, nbytes)):
        raise InputError(f"pieces={pieces}: from 1 to {min(MOST_PIECES, max(1, nbytes)):,}")
    if buffers < 1:
        raise InputError(f"buffers={buffers}: a device needs at least one to copy into")
    floor = Floor(timeline=timeline)
    links = [floor.link(f"host link[{n}]", host.bandwidth.amount) for n in range(-(-count // host.shared_by))]
    for device in range(count):
        link = links[device // host.shared_by]
        _start(floor, host, link, f"{system.machine}[{device}]", nbytes, pieces, compute_fs, buffers)
    floor.run()
    sharing = min(count, host.shared_by)
    return Feed(floor.now, formula_fs(host, nbytes, pieces, compute_fs, buffers, sharing), tuple(floor.spans))


def _start(
    floor: Floor, host: HostSpec, link: Link, name: str, nbytes: int, pieces: int, compute_fs: int, buffers: int
) -> None:
    """One device: somebody who copies, and somebody who works on what has come."""
    come: list[Event] = [floor.event() for _ in range(pieces)]
    done: list[Event] = [floor.event() for _ in range(pieces)]
    least, more = divmod(nbytes, pieces)

    def copies() -> Wait:
        for number in range(pieces):
            if number >= buffers:
                yield done[number - buffers]
            begin = floor.now
            yield floor.delay(as_femtoseconds(host.start))
            yield link.transfer(least + (number < more))
            floor.record(f"{link.name} to {name}", "copy", begin, floor.now)
            come[number].succeed()

    def works() -> Wait:
        for number in range(pieces):
            yield come[number]
            begin = floor.now
            yield floor.delay(compute_fs)
            floor.record(name, "compute", begin, floor.now)
            done[number].succeed()

    floor.start(copies())
    floor.start(works())


def formula_fs(host: HostSpec, nbytes: int, pieces: int, compute_fs: int, buffers: int, sharing: int = 1) -> int:
    """The textbook: a pipeline of two steps where there are two buffers, one after the other where there is one."""
    rate = host.bandwidth.amount
    wire = 0 if rate is None else wire_fs(-(-nbytes // pieces), rate / Fraction(sharing))
    copy = as_femtoseconds(host.start) + wire
    if buffers == 1:
        return pieces * (copy + compute_fs)
    return copy + (pieces - 1) * max(copy, compute_fs) + compute_fs


def host_of(system: SystemSpec) -> HostSpec:
    if system.host is None:
        raise InputError(f"{system.name} says nothing of its host; add `host` with bandwidth and start to its file")
    return system.host


ROOMS = 2
"""Layers that a device has room for beside those that stay: one is worked on, the next one comes."""
OWN = ("host_layers", "stream")


@dataclass(frozen=True)
class HostedStep(Timed):
    """One step of a model on a host and a device; times in femtoseconds."""

    phase: Pass
    elapsed_fs: int
    host_fs: int
    """The host computes."""
    device_fs: int
    """The device computes."""
    copied_fs: int
    """The host's link copies weights or hands on results."""
    joules: float | None
    spans: tuple[Span, ...] = field(default=(), repr=False)

    @property
    def waiting_fs(self) -> int:
        """The device waits for the host or its link."""
        return self.elapsed_fs - self.device_fs

    def to_dict(self) -> dict[str, Any]:
        return {
            "phase": asdict(self.phase), "seconds": self.seconds, "host_s": self.host_fs / FEMTOSECONDS,
            "device_s": self.device_fs / FEMTOSECONDS, "copied_s": self.copied_fs / FEMTOSECONDS,
            "device_waits_s": self.waiting_fs / FEMTOSECONDS, "joules": self.joules,
        }  # fmt: skip


@dataclass(frozen=True)
class HostedRun:
    """All phases, and where the layers are."""

    model: ModelWorkload
    system: SystemSpec
    host: str
    layers: int
    host_layers: int
    streamed: int
    memory: MemoryUse
    """Of the device."""
    host_bytes: int
    """Weights that the host keeps."""
    steps: tuple[tuple[HostedStep, float], ...]
    formats: str

    @property
    def seconds(self) -> float:
        return sum(step.seconds * times for step, times in self.steps)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.name, "system": self.system.name, "host": self.host, "layers": self.layers,
            "host_layers": self.host_layers, "streamed_layers": self.streamed, "memory": self.memory.to_dict(),
            "host_bytes": self.host_bytes, "formats": self.formats, "seconds": self.seconds,
            "steps": [{**step.to_dict(), "times": times} for step, times in self.steps],
        }  # fmt: skip


class Hosted:
    """A model whose first layers a host computes, and some of whose further layers it keeps for the device."""

    def __init__(
        self, system: SystemSpec, model: ModelWorkload, host_layers: int, stream: int | None,
        told: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        if system.count != 1:
            raise InputError(
                f"{system.name} has {system.count} devices: a host that computes or keeps layers feeds one, such as "
                f"1x{system.machine}"
            )
        self.system, self.model, self.link = system, model, host_of(system)
        self.device, self.machine = device_of(system), _host_machine(system, host_layers)
        whole = ModelGraph.of(model)
        self.layers = sum(block.repeat for block in whole.blocks if block.repeat > 1)
        if not 0 <= host_layers <= max(0, self.layers - 1):
            raise InputError(
                f"host_layers={host_layers}: {model.name} has {self.layers} layers; leave one to the device"
            )
        self.host_layers, rest = host_layers, self.layers - host_layers
        wanted = list(phases_of(model, whole))
        kernels, use = choose_kernels(model, whole, wanted[0][0]), model.use
        if wanted[0][0].name == "train":
            raise InputError("phase=train: a host that keeps layers is for inference; several devices divide training")
        self.phases = wanted
        self.numbers = computed_numbers(self.device, Formats.of(model))[0]
        self.graph = whole.layers(host_layers, rest) if host_layers else whole
        self.price = StepPrice(self.device, self.graph, self.numbers, kernels, told=told)
        self.host_price: StepPrice | None = None
        if self.machine is not None and host_layers:
            own = computed_numbers(self.machine, Formats.of(model))[0]
            kernels = SERVING if kernels == SERVING else use.kernels
            self.host_price = StepPrice(self.machine, whole.layers(0, host_layers), own, kernels, told=told)
        self.layer_bytes = round(weight_bytes(_layers_only(self.graph), self.numbers) / rest)
        self.memory, self.streamed = self._fit(rest, stream)

    def _fit(self, rest: int, stream: int | None) -> tuple[MemoryUse, int]:
        """How many layers are copied in for every step: as many as do not fit, if nobody says."""
        use, (phase, _) = self.model.use, self.phases[0]
        context = use.prompt + (use.generate if use.phase == "all" else 0)
        full = memory_use(self.graph, self.numbers, phase, self.price.kernels, context=context)
        has = capacity(self.device)

        def with_streamed(count: int) -> MemoryUse:
            saved = (count - min(count, ROOMS)) * self.layer_bytes
            return MemoryUse(full.weights - saved, full.kv_cache, full.activations, full.workspace)

        if stream is None:
            fitting = (n for n in range(rest + 1) if has is None or with_streamed(n).total <= has)
            stream = next(fitting, rest)
        if not 0 <= stream <= rest:
            raise InputError(f"stream={stream}: from 0 to the {rest} layers of the device")
        found = with_streamed(stream)
        if has is not None and found.total > has:
            raise CapacityError(
                f"{self.model.name} with {stream} layers copied in needs {data(found.total)} on {self.device.name}, "
                f"which has {data(has)}; copy more (stream=), compute more on the host (host_layers=), or take "
                "narrower weights"
            )
        return found, stream

    def run(self, *, timeline: bool = False) -> HostedRun:
        steps = tuple((self.step(phase, timeline=timeline), times) for phase, times in self.phases)
        own = 0 if self.host_price is None else weight_bytes(self.host_price.graph, self.host_price.numbers)
        host = self.machine.name if self.machine is not None else "host"
        return HostedRun(
            self.model, self.system, host, self.layers, self.host_layers, self.streamed, self.memory,
            own + self.streamed * self.layer_bytes, steps, self.numbers.words(),
        )  # fmt: skip

    def step(self, phase: Pass, *, timeline: bool = False) -> HostedStep:
        """Play one step: the host computes, its link copies, the device computes layer after layer."""
        cost = self.price.step(phase)
        host_cost = self.host_price.step(phase) if self.host_price is not None else None
        floor = Floor(timeline=timeline)
        play = _Play(self, floor, phase, cost, host_cost)
        play.start()
        floor.run()
        return HostedStep(
            phase, floor.now, play.host_fs, play.device_fs, play.copied_fs,
            self._joules(cost, host_cost, floor.now, play), tuple(floor.spans),
        )  # fmt: skip

    def _joules(self, cost: PassCost, host: PassCost | None, elapsed_fs: int, play: _Play) -> float | None:
        """Kernels as they are priced, and static power of each machine while it waits."""
        total = 0.0
        for machine, own, busy in ((self.device, cost, play.device_fs), (self.machine, host, play.host_fs)):
            if machine is None or own is None:
                continue
            if machine.energy is None or own.joules is None:
                return None
            total += own.joules + (elapsed_fs - busy) / FEMTOSECONDS * static_watts(machine.energy)
        return total


class _Play:
    """One step in time."""

    def __init__(self, owner: Hosted, floor: Floor, phase: Pass, cost: PassCost, host: PassCost | None) -> None:
        self.owner, self.floor = owner, floor
        self.host_fs = 0 if host is None else round(host.seconds * FEMTOSECONDS)
        repeated = {block.name for block in owner.graph.blocks if block.repeat > 1}
        inside = sum(each.seconds for each in cost.operations if each.block in repeated)
        rest = owner.layers - owner.host_layers
        self.layer_fs = round(inside / rest * FEMTOSECONDS)
        self.outside_fs = round((cost.seconds - inside) * FEMTOSECONDS)
        self.device_fs = rest * self.layer_fs + self.outside_fs
        self.copied_fs = 0
        width = next(b.nodes[0].flow.per_row for b in owner.graph.blocks if b.repeat > 1)
        self.handed = round(phase.batch * phase.tokens * width * stored_bits(owner.numbers.activations) / 8)
        self.link = floor.link("host link", owner.link.bandwidth.amount)
        self.come: list[Event] = [floor.event() for _ in range(owner.streamed)]
        self.done: list[Event] = [floor.event() for _ in range(owner.streamed)]
        self.ready = floor.event()

    def start(self) -> None:
        for agent in (self._host(), self._copies(), self._device()):
            self.floor.start(agent)

    def _host(self) -> Wait:
        """What the host computes, and hands on."""
        if self.host_fs:
            yield self.floor.delay(self.host_fs)
            self._lane(f"{self.owner.machine.name if self.owner.machine else 'host'}", "layers of the host", 0)
            yield from self._copy(self.handed, "activations")
        self.ready.succeed()

    def _copies(self) -> Wait:
        """Weights of the layers that the host keeps, into whichever room is free."""
        for number in range(self.owner.streamed):
            if number >= ROOMS:
                yield self.done[number - ROOMS]
            yield from self._copy(self.owner.layer_bytes, "weights of a layer")
            self.come[number].succeed()

    def _copy(self, nbytes: int, what: str) -> Wait:
        begin = self.floor.now
        yield self.floor.delay(as_femtoseconds(self.owner.link.start))
        yield self.link.transfer(nbytes)
        self.copied_fs += self.floor.now - begin
        self._lane(self.link.name, what, begin)

    def _device(self) -> Wait:
        """Layers that stay are spread between those that are copied in: their time hides copies."""
        yield self.ready
        rest, streamed = self.owner.layers - self.owner.host_layers, self.owner.streamed
        for layer in range(rest):
            number = layer * streamed // rest
            copied = (layer + 1) * streamed // rest > number
            if copied:
                yield self.come[number]
            begin = self.floor.now
            yield self.floor.delay(self.layer_fs)
            self._lane(self.owner.device.name, "a copied layer" if copied else "a layer", begin)
            if copied:
                self.done[number].succeed()
        begin = self.floor.now
        yield self.floor.delay(self.outside_fs)
        self._lane(self.owner.device.name, "before and after the layers", begin)

    def _lane(self, lane: str, name: str, begin: int) -> None:
        self.floor.record(lane, name, begin, self.floor.now)


def _layers_only(graph: ModelGraph) -> ModelGraph:
    return ModelGraph(graph.name, tuple(block for block in graph.blocks if block.repeat > 1))


def _host_machine(system: SystemSpec, host_layers: int) -> MachineSpec | None:
    name = host_of(system).machine
    if name is not None:
        return load_machine(name).spec
    if host_layers:
        raise InputError(
            f"host_layers={host_layers}: {system.name} does not say which machine its host is; add `machine: zen4` or "
            "the like to `host` in its file"
        )
    return None


def run_hosted(
    model: str, system: str, given: Mapping[str, str], *, timeline: bool = False,
    told: Callable[[str], None] | None = None,
) -> HostedRun:  # fmt: skip
    """`hwsim model MODEL SYSTEM host_layers=8 stream=4`, as a command line says it."""
    joined = load_system(system)
    loaded = load_asked(model, {name: value for name, value in given.items() if name not in OWN})
    host_layers = whole_number("host_layers", given.get("host_layers", "0"))
    stream = whole_number("stream", given["stream"]) if given.get("stream", "auto") != "auto" else None
    return Hosted(joined, loaded, host_layers, stream, told).run(timeline=timeline)
