"""A model on several devices: every stage is an agent that computes and talks, microbatch after microbatch.

What a stage computes is priced by the model (`StepPrice` of one device's share); what devices have to tell each other
is played on their links. Inside a layer nothing can hide a sum of partial results: devices wait. Between stages
activations travel while the next microbatch is computed, and gradients of layers that are done are added up while
earlier layers are still on their way back: only what is left at the end is exposed.

Layout: how the devices of a system divide a model among themselves, and which of them belong together.

Devices that divide a layer (tp) are neighbours, because they talk most; then those that divide experts (ep), then
stages of a pipeline (pp), then whole copies (dp).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from math import ceil
from typing import Any, Literal

from hwsim.energy import static_watts
from hwsim.engine import FEMTOSECONDS, Event, Floor, Span, Wait
from hwsim.errors import InputError
from hwsim.models.count import Formats, Pass, parameters_of, stored_bits
from hwsim.models.graph import LAST, ModelGraph
from hwsim.models.kernels import SERVING
from hwsim.models.memory import MemoryUse, capacity, memory_use
from hwsim.models.price import PassCost, StepPrice
from hwsim.models.total import operation_bound
from hwsim.ops.model import Attention, Experts, LatentAttention, ModelWorkload
from hwsim.spec.machine import MachineSpec
from hwsim.systems.communicate import Network
from hwsim.systems.spec import SystemSpec, Timed

AXES = ("tp", "pp", "dp", "ep")
NUMBERS = (*AXES, "sp", "micro")
"""What a command line or a model file may say of a layout."""


@dataclass(frozen=True)
class ParallelLayout:
    """How many devices divide heads and widths (tp), layers (pp), sequences (dp) and experts (ep)."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    micro: int = 1
    """Parts into which the batch of a copy is cut, so that stages of a pipeline work at the same time."""
    sp: int = 0
    """1 where devices of a tensor group divide by tokens what each of them would do alike."""

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp * self.ep

    @property
    def words(self) -> str:
        """As a command line says it; with stages, microbatches are said even where they are one: unsaid, they are as
        many as stages."""
        named = [f"{axis}={getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1] or ["tp=1"]
        named += ["sp=1"] if self.sp else []
        return " ".join(named + ([f"micro={self.micro}"] if self.micro > 1 or self.pp > 1 else []))

    def device(self, t: int = 0, e: int = 0, p: int = 0, d: int = 0) -> int:
        """The number of a device, by its places."""
        return ((d * self.pp + p) * self.ep + e) * self.tp + t

    def tensor_group(self, p: int = 0) -> tuple[int, ...]:
        """Devices of the first copy that divide the layers of a stage."""
        return tuple(self.device(t=t, p=p) for t in range(self.tp))

    def expert_group(self, p: int = 0) -> tuple[int, ...]:
        return tuple(self.device(e=e, p=p) for e in range(self.ep))

    def gradient_group(self, p: int = 0) -> tuple[int, ...]:
        """Devices that hold the same weights: their gradients are added up."""
        return tuple(self.device(p=p, d=d, e=e) for d in range(self.dp) for e in range(self.ep))


def make_layout(system: SystemSpec, numbers: Mapping[str, int]) -> ParallelLayout:
    """What a command line says; tp fills the system where it is not said. Raises InputError where it does not fit."""
    for name in (*AXES, "micro"):
        if numbers.get(name, 1) < 1:
            raise InputError(f"{name}={numbers[name]}: at least 1")
    if numbers.get("sp", 0) not in (0, 1):
        raise InputError(f"sp={numbers['sp']}: 1 divides norms and sums of a tensor group by tokens, 0 does not")
    others = numbers.get("pp", 1) * numbers.get("dp", 1) * numbers.get("ep", 1)
    tp = numbers.get("tp", max(1, system.count // others))
    pp = numbers.get("pp", 1)
    sp = numbers.get("sp", 0) if tp > 1 else 0
    layout = ParallelLayout(tp, pp, numbers.get("dp", 1), numbers.get("ep", 1), numbers.get("micro", pp), sp)
    if layout.devices > system.count:
        raise InputError(f"{layout.words}: {layout.devices} devices, and {system.name} has {system.count}")
    return layout


def check_heads(model: ModelWorkload, tp: int) -> None:
    """Raises InputError where tp does not divide the heads of a model: a device would get a part of one."""
    for _, node in ModelGraph.of(model).nodes():
        if not isinstance(node.op, Attention | LatentAttention):
            continue
        heads, shared = node.size("heads"), node.sizes.get("kv_heads", tp)
        if heads % tp or (shared % tp and tp % shared):
            fit = [each for each in _divisors(heads) if not (shared % each and each % shared)]
            raise InputError(
                f"tp={tp}: {model.name} has {heads} heads ({shared} of keys and values), which so many devices cannot "
                f"divide evenly; tp can be {', '.join(map(str, fit))}"
            )


def has_experts(model: ModelWorkload) -> bool:
    return any(isinstance(node.op, Experts) for _, node in ModelGraph.of(model).nodes())


def layouts(count: int, *, experts: bool = False) -> Iterator[ParallelLayout]:
    """All ways to use so many devices by powers of two, and what else divides their number."""
    for tp in _divisors(count):
        for pp in _divisors(count // tp):
            for ep in _divisors(count // tp // pp) if experts else (1,):
                dp = count // tp // pp // ep
                for micro in sorted({1, pp, 4 * pp}) if pp > 1 else (1,):
                    yield ParallelLayout(tp, pp, dp, ep, micro)


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(each for each in range(1, number + 1) if number % each == 0)


def stages_of(model: ModelWorkload, graph: ModelGraph, pp: int) -> Iterator[ModelGraph]:
    """What each stage of a pipeline has of a graph; raises InputError where there are more stages than layers."""
    layers = sum(block.repeat for block in graph.blocks if block.repeat > 1)
    if pp > max(1, layers):
        raise InputError(f"pp={pp}: {model.name} has {layers} layers that can be divided")
    if pp == 1:
        yield graph
        return
    edges = [round(layers * stage / pp) for stage in range(pp + 1)]
    yield from (graph.layers(first, last - first) for first, last in pairwise(edges))


BUCKET_BYTES = 25 << 20
"""Gradients are added up in pieces of at least so many bytes, as PyTorch's data parallelism does."""

Part = Literal["forward", "backward"]


@dataclass(frozen=True)
class StageWork:
    """Some work of a stage, and what has to be exchanged after it."""

    name: str
    compute_fs: int
    talk_fs: int
    talk: str = ""
    first: bool = False
    """Of its layer: on the way back the layer is done with it."""


@dataclass
class StageTime:
    """Where the time of a stage went, in femtoseconds."""

    compute_fs: int = 0
    exposed_fs: int = 0
    """Talking that nothing hides."""
    waiting_fs: int = 0
    """For other stages: the bubble of a pipeline."""
    gradients_fs: int = 0
    """Adding up gradients, hidden or not."""


@dataclass(frozen=True)
class ParallelStep(Timed):
    """One step of a model on several devices."""

    phase: Pass
    layout: ParallelLayout
    elapsed_fs: int
    stages: tuple[StageTime, ...]
    memory: MemoryUse
    """Of the device that needs most."""
    has_bytes: int | None
    joules: float | None
    events: int
    notes: tuple[str, ...]
    spans: tuple[Span, ...] = field(default=(), repr=False)
    costs: tuple[PassCost, ...] = field(default=(), repr=False)
    """What each stage computes in one microbatch."""

    @property
    def bounds(self) -> dict[str, float]:
        """Seconds of computing by what bounds them, longest first."""
        found: defaultdict[str, float] = defaultdict(float)
        for cost in self.costs:
            for operation in cost.operations:
                operation_bound(operation, found, 1.0)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def fits(self) -> bool:
        return self.has_bytes is None or self.memory.total <= self.has_bytes

    def share(self, name: str) -> float:
        """Of the time of all stages: compute, exposed, waiting."""
        total = self.elapsed_fs * len(self.stages)
        return sum(getattr(stage, f"{name}_fs") for stage in self.stages) / total if total else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "phase": asdict(self.phase), "layout": asdict(self.layout), "seconds": self.seconds, "joules": self.joules,
            "compute": self.share("compute"), "exposed_communication": self.share("exposed"),
            "bubble": self.share("waiting"), "memory": self.memory.to_dict(), "memory_of_device": self.has_bytes,
            "fits": self.fits, "stages": [asdict(stage) for stage in self.stages], "notes": list(self.notes),
        }  # fmt: skip


class Parallel:
    """A model divided over the devices of a system by a layout."""

    def __init__(
        self, machine: MachineSpec, model: ModelWorkload, network: Network, layout: ParallelLayout, *,
        kernels: str = SERVING, told: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.machine, self.model, self.network, self.layout = machine, model, network, layout
        self.numbers = Formats.of(model)
        check_heads(model, layout.tp)
        whole = ModelGraph.of(model, layout.tp, layout.ep, layout.sp)
        use = model.use
        self.recompute, self.optimizer = use.recompute, use.optimizer
        self.graphs = list(stages_of(model, whole, layout.pp))
        self.prices = [
            StepPrice(
                machine, graph, self.numbers, kernels, use.recompute, use.optimizer, use.dropout, use.allocator, told
            )
            for graph in self.graphs
        ]

    # A step -----------------------------------------------------------------------------------------------------------

    def step(self, phase: Pass, *, timeline: bool = False, grown: int = 0) -> ParallelStep:
        """Play one step; `phase.batch` is that of all copies together, `grown` the length that sequences grow to."""
        shares = self.layout.dp * self.layout.ep
        batch = ceil(phase.batch / shares)
        micro = min(self.layout.micro, batch)
        one = Pass(phase.name, ceil(batch / micro), phase.tokens, phase.cached, phase.source)
        costs = [price.step(one) for price in self.prices]
        floor = Floor(timeline=timeline)
        line = _Line(self, floor, one, micro, costs)
        line.play()
        notes = tuple(dict.fromkeys(note for cost in costs for note in cost.notes))
        if phase.batch % shares:
            notes += (f"a batch of {phase.batch} is not divided evenly by {shares} copies: the largest share counts",)
        return ParallelStep(
            phase, self.layout, floor.now, tuple(line.times), self._memory(one, micro, grown), capacity(self.machine),
            self._joules(costs, micro, floor.now, line.times), floor.events, notes, tuple(floor.spans), tuple(costs),
        )  # fmt: skip

    def _memory(self, one: Pass, micro: int, grown: int) -> MemoryUse:
        """Of the fullest device: keys and values of all microbatches, activations of one; training keeps those of as
        many as are under way."""
        found = []
        for place, price in enumerate(self.prices):
            use = memory_use(
                price.graph, self.numbers, one, price.kernels, context=max(one.context, grown),
                recompute=self.recompute, optimizer=self.optimizer if one.name == "train" else "none",
            )  # fmt: skip
            held = min(micro, self.layout.pp - place) if one.name == "train" else 1
            found.append(
                MemoryUse(use.weights, use.kv_cache * micro, use.activations * held, use.workspace, use.gradients,
                          use.optimizer)
            )  # fmt: skip
        return max(found, key=lambda use: use.total)

    def _joules(self, costs: list[PassCost], micro: int, elapsed_fs: int, times: list[StageTime]) -> float | None:
        """Kernels as they are priced, and static power while a device waits."""
        joules = [cost.joules for cost in costs]
        if self.machine.energy is None or None in joules:
            return None
        each = self.layout.tp * self.layout.dp * self.layout.ep
        idle = sum(elapsed_fs - time.compute_fs for time in times) / FEMTOSECONDS * static_watts(self.machine.energy)
        return each * (micro * sum(one or 0.0 for one in joules) + idle)

    # What a stage does ------------------------------------------------------------------------------------------------

    def pieces(self, stage: int, cost: PassCost, part: Part, phase: Pass) -> list[StageWork]:
        """The work of a stage for one microbatch, layer by layer; on the way back from the last to the first."""
        graph = self.graphs[stage]
        slower = cost.seconds / sum(each.seconds for each in cost.operations)  # where the host's starts take longer
        seconds = {(each.block, each.name): slower * each.seconds for each in cost.operations if each.part == part}
        after: dict[tuple[str, str], list[tuple[str, int]]] = {}
        for each in graph.exchanges:
            rows = phase.rows(each.flow)
            nbytes = round(rows * each.flow.per_row * stored_bits(self.numbers.activations) / 8)
            group = (
                self.layout.expert_group(stage) if each.collective == "all_to_all" else self.layout.tensor_group(stage)
            )
            if len(group) == 1 or (part == "backward" and each.flow.rows == LAST):
                continue
            fs = self.network.collective_fs(each.collective, nbytes, group, self.numbers.activations)
            twice = 2 if each.collective == "all_to_all" else 1  # there, and back again
            after.setdefault((each.block, each.after), []).append((each.collective, twice * fs))
        found: list[StageWork] = []
        for block in graph.blocks:
            layer = list(_layer(block.name, [node.name for node in block.nodes], seconds, after, block.repeat))
            if layer:
                found += [replace(layer[0], first=True), *layer[1:]] * block.repeat
        return found if part == "forward" else found[::-1]

    def layer_gradients(self, stage: int) -> list[tuple[str, int]]:
        """Bytes of the gradients of each layer of a stage, in the order in which they are done."""
        bits = stored_bits(self.numbers.weights if self.numbers.weights not in ("w4a16", "w8a16") else "fp16")
        found = []
        for block in self.graphs[stage].blocks:
            count = sum(parameters_of(node) for node in block.nodes)
            found += [(block.name, round(count * bits / 8))] * block.repeat
        return found[::-1]


def _layer(
    block: str, names: list[str], seconds: dict[tuple[str, str], float],
    after: dict[tuple[str, str], list[tuple[str, int]]], repeat: int,
) -> Iterator[StageWork]:  # fmt: skip
    """One repetition of a block, cut where devices have to talk."""
    gathered = 0.0
    for name in names:
        gathered += seconds.get((block, name), 0.0) / repeat
        for collective, fs in after.get((block, name), ()):
            yield StageWork(block, round(gathered * FEMTOSECONDS), fs, collective)
            gathered = 0.0
    if gathered:
        yield StageWork(block, round(gathered * FEMTOSECONDS), 0)


class _Line:
    """The stages of one copy in time. Copies do the same at the same time; they meet where gradients are added up."""

    def __init__(self, owner: Parallel, floor: Floor, phase: Pass, micro: int, costs: list[PassCost]) -> None:
        self.owner, self.floor, self.phase, self.micro, self.costs = owner, floor, phase, micro, costs
        stages = owner.layout.pp
        self.times = [StageTime() for _ in range(stages)]
        self._ahead = [[floor.event() for _ in range(micro)] for _ in range(stages)]
        self._back = [[floor.event() for _ in range(micro)] for _ in range(stages)]
        for event in (*self._ahead[0], *self._back[-1]):
            event.succeed()
        self._forward = [owner.pieces(s, costs[s], "forward", phase) for s in range(stages)]
        trains = phase.name == "train"
        self._backward = [owner.pieces(s, costs[s], "backward", phase) if trains else [] for s in range(stages)]

    def play(self) -> None:
        for stage in range(self.owner.layout.pp):
            self.floor.start(self._work(stage))
        self.floor.run()
        for times in self.times:
            times.waiting_fs = self.floor.now - times.compute_fs - times.exposed_fs

    def _work(self, stage: int) -> Wait:
        """One stage: forward and backward of all microbatches, as few under way as possible; then the update."""
        ends: list[Event] = []
        for part, number in self._order(stage):
            yield (self._ahead if part == "forward" else self._back)[stage][number]
            last = part == "backward" and number == self.micro - 1
            yield from self._run(stage, part, ends if last else None)
            self._hand_on(stage, part, number)
        yield from self._update(stage, ends)

    def _order(self, stage: int) -> Iterator[tuple[Part, int]]:
        """One forward, one backward (1F1B): first as many forward as there are stages behind, then in turns."""
        if self.phase.name != "train":
            yield from (("forward", number) for number in range(self.micro))
            return
        ahead = min(self.micro, self.owner.layout.pp - stage)
        yield from (("forward", number) for number in range(ahead))
        for number in range(self.micro):
            yield "backward", number
            if ahead + number < self.micro:
                yield "forward", ahead + number

    def _run(self, stage: int, part: Part, ends: list[Event] | None) -> Wait:
        times, layout = self.times[stage], self.owner.layout
        gradients = iter(self.owner.layer_gradients(stage)) if ends is not None and layout.dp * layout.ep > 1 else None
        bucket = 0
        for piece in self._forward[stage] if part == "forward" else self._backward[stage]:
            begin = self.floor.now
            if piece.compute_fs:
                yield self.floor.delay(piece.compute_fs)
                times.compute_fs += piece.compute_fs
                self._lanes(stage, part, begin)
            if piece.talk_fs:
                begin = self.floor.now
                yield self.floor.delay(piece.talk_fs)
                times.exposed_fs += piece.talk_fs
                self._lanes(stage, piece.talk, begin)
                self.floor.record(f"links of stage {stage}", piece.talk, begin, self.floor.now)
            if gradients is not None and piece.first:
                bucket += next(gradients, ("", 0))[1]
                if bucket >= BUCKET_BYTES:
                    self._reduce(stage, bucket, ends)
                    bucket = 0
        if gradients is not None:
            self._reduce(stage, bucket + sum(nbytes for _, nbytes in gradients), ends)

    def _reduce(self, stage: int, nbytes: int, ends: list[Event] | None) -> None:
        """Add up gradients of all copies, one bucket after the other, while the stage goes on."""
        assert ends is not None
        if not nbytes:
            return
        members = self.owner.layout.gradient_group(stage)
        fs = self.owner.network.collective_fs("all_reduce", nbytes, members, self.owner.numbers.activations)
        before = ends[-1] if ends else None

        def work() -> Wait:
            if before is not None:
                yield before
            begin = self.floor.now
            yield self.floor.delay(fs)
            self.times[stage].gradients_fs += fs
            self.floor.record(f"links of stage {stage}", "gradients", begin, self.floor.now)

        ends.append(self.floor.start(work()))

    def _hand_on(self, stage: int, part: Part, number: int) -> None:
        """Activations go to the next stage, gradients to the one before; the stage itself goes on."""
        layout = self.owner.layout
        other = stage + 1 if part == "forward" else stage - 1
        if not 0 <= other < layout.pp:
            return
        graph = self.owner.graphs[max(stage, other)]
        width = graph.blocks[0].nodes[0].flow.per_row
        rows = self.phase.batch * self.phase.tokens
        nbytes = ceil(rows * width * stored_bits(self.owner.numbers.activations) / 8 / layout.tp)
        pair = (layout.device(p=stage), layout.device(p=other))
        fs = self.owner.network.collective_fs("send", nbytes, pair, self.owner.numbers.activations)
        there = (self._ahead if part == "forward" else self._back)[other][number]

        def travel() -> Wait:
            begin = self.floor.now
            yield self.floor.delay(fs)
            self.floor.record(f"link {stage} to {other}", part, begin, self.floor.now)
            there.succeed()

        self.floor.start(travel())

    def _update(self, stage: int, ends: list[Event]) -> Wait:
        if ends:
            began = self.floor.now
            yield self.floor.every(ends)
            self.times[stage].exposed_fs += self.floor.now - began
        update = sum(each.seconds for each in self.costs[stage].operations if each.part == "update")
        if update:
            begin = self.floor.now
            yield self.floor.delay(round(update * FEMTOSECONDS))
            self.times[stage].compute_fs += self.floor.now - begin
            self._lanes(stage, "update", begin)

    def _lanes(self, stage: int, name: str, begin: int) -> None:
        """A bar for each device of the stage, of the first copy."""
        if self.floor.timeline:
            for device in self.owner.layout.tensor_group(stage):
                self.floor.record(f"{self.owner.machine.name}[{device}]", name, begin, self.floor.now)
