"""What a step of a model costs on a machine: the interface that screens, sweeps, serving and systems build on.

    prices = StepPrice(load_machine("h100").spec, Graph.of(model), Numbers.of(model))
    prices.prefill(tokens=1024, batch=8).seconds
    prices.decode(batch=8, context=1280).joules
    prices.decode(batch=8, context=1280).operations        # by block and operation

Each distinct kernel (operation, sizes, format) is simulated once, on the way that `hwsim run` goes and without math,
and kept: eighty layers cost as much to simulate as one. `Graph.of(model, tp=4)` prices one of four devices; what they
have to exchange is in `graph.exchanges`, and is not part of the price. Threads may share a StepPrice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from hwsim.api import run_all
from hwsim.energy import static_watts
from hwsim.errors import CapacityError, HwsimError, InputError, ShapeError
from hwsim.models.graph import ModelGraph
from hwsim.models.kernels import EAGER, SERVING, KernelCall, KernelLowering
from hwsim.models.phase import Formats, Pass, decode, forward, prefill, train
from hwsim.models.slices import Slice, cut
from hwsim.result import RunResult
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import find_target


@dataclass(frozen=True)
class KernelPrice:
    """One kernel on one machine."""

    seconds: float
    """At work, without being started."""
    joules: float | None
    starts: int
    """Kernels that it takes; none where work needs no start."""
    each_s: float
    host_s: float
    """What one start takes inside a graph, and from the host."""
    result: RunResult
    scale: float
    """Of the simulated slice to the whole; 1 where all of it was simulated."""


@dataclass(frozen=True)
class OperationCost:
    """One operation of a model in one phase, all repetitions of its block together."""

    block: str
    name: str
    word: str
    repeat: int
    seconds: float
    joules: float | None
    starts: float
    kernels: tuple[tuple[KernelCall, KernelPrice, float], ...]
    """What it is made of, each with how often it runs in all."""
    part: str = "forward"
    """forward, backward or update."""


@dataclass(frozen=True)
class PassCost:
    """One pass through a model."""

    phase: Pass
    operations: tuple[OperationCost, ...]
    seconds: float
    joules: float | None
    starts: int
    host_seconds: float
    """What the host takes to start all kernels one by one; where that is longer than the kernels, it is the time."""
    parts: dict[str, float]
    """Seconds of the forward pass, of the backward pass, of the update."""
    notes: tuple[str, ...] = ()
    """What was not simulated, and what ran instead of what was asked for."""


HOST = "the host"
"""What bounds a step whose kernels wait to be started, or for memory."""
PYTHON_S = 24e-6
"""Seconds of the host for a kernel that Python starts: BERT base takes 6 ms for 8 sequences of 8 tokens as of 32, and
starts about 250 kernels (Hugging Face Transformers, docs/benchmarks, PyTorch 1.4 on TITAN RTX)."""


class RefusedError(Exception):
    """The machine does not compute a kernel."""


@dataclass
class StepPrice:
    """Prices of a model, or of one device's share of it, on a machine; kernels are simulated once and kept."""

    machine: MachineSpec
    graph: ModelGraph
    numbers: Formats
    kernels: str = SERVING
    recompute: bool = False
    optimizer: str = "adam"
    dropout: str = "none"
    allocator: str = "cached"
    told: Callable[[str], None] | None = None
    """Is told the name of each kernel that is simulated, before it is."""
    _steps: dict[Pass, PassCost] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._kernels = simulated_on(self.machine)

    def prefill(self, tokens: int, batch: int = 1, cached: int = 0, source: int = 0) -> PassCost:
        """A prompt of `tokens` new tokens for each of `batch` sequences, after `cached` that were read before."""
        return self.step(prefill(batch, tokens, cached, source))

    def decode(self, batch: int, context: int, source: int = 0) -> PassCost:
        """One new token for each of `batch` sequences, each with `context` tokens before it."""
        return self.step(decode(batch, context, source))

    def forward(self, tokens: int, batch: int = 1, source: int = 0) -> PassCost:
        """One pass, with results for all tokens."""
        return self.step(forward(batch, tokens, source))

    def train(self, tokens: int, batch: int = 1, source: int = 0) -> PassCost:
        """Forward, backward, optimizer."""
        return self.step(train(batch, tokens, source))

    def step(self, phase: Pass) -> PassCost:
        """Any phase; a model with a source that nobody gave the length of reads as much of it as of tokens."""
        if self.graph.sourced and not phase.source:
            phase = replace(phase, source=max(phase.tokens, phase.cached))
        if phase not in self._steps:
            self._steps[phase] = self._price(phase)
        return self._steps[phase]

    def _price(self, phase: Pass) -> PassCost:
        low = KernelLowering(self.numbers, self.kernels, phase, self.dropout)
        notes: dict[str, None] = {}
        operations: list[OperationCost] = []
        for block, node, calls in low.calls(self.graph):
            priced = self._calls(calls, node.word, notes)
            if priced:
                operations.append(self._operation(block.name, node.name, node.word, block.repeat, priced))
        if phase.name == "train":
            from hwsim.models.train import backward_calls, update_calls

            for block, node, calls in backward_calls(low, self.graph, self.recompute):
                priced = self._calls(calls, node.word, notes)
                if priced:
                    operations.append(
                        self._operation(block.name, node.name, node.word, block.repeat, priced, "backward")
                    )
            priced = self._calls(update_calls(low, self.graph, self.optimizer), self.optimizer, notes)
            if priced:
                operations.append(self._operation("update", self.optimizer, self.optimizer, 1, priced, "update"))
        if not operations:
            raise InputError(f"{self.graph.name} has nothing to do in this phase: {phase.name}")
        parts, host = self._parts(phase, operations, notes)
        seconds = sum(parts.values())
        kernels_s = sum(each.seconds for each in operations)
        joules = [each.joules for each in operations]
        known = None if None in joules else sum(each or 0.0 for each in joules)
        if known is not None and self.machine.energy is not None:
            known += (seconds - kernels_s) * static_watts(self.machine.energy)
        starts = round(sum(each.starts for each in operations))
        return PassCost(phase, tuple(operations), seconds, known, starts, host, parts, tuple(notes))

    def _parts(
        self, phase: Pass, operations: list[OperationCost], notes: dict[str, None]
    ) -> tuple[dict[str, float], float]:
        """Seconds of the kernels of each part, or of the host where it starts them one by one and takes longer; and
        seconds of the host alone.

        A forward pass is started from Python, a backward pass and an update by the framework's own code.
        """
        found: dict[str, float] = {}
        host_total = 0.0
        for part in dict.fromkeys(each.part for each in operations):
            own = [each for each in operations if each.part == part]
            busy, starts = sum(each.seconds for each in own), sum(each.starts for each in own)
            each_s = max((price.host_s for each in own for _, price, _ in each.kernels), default=0.0)
            host = 0.0
            if self.kernels == EAGER and each_s:
                host = starts * (max(each_s, PYTHON_S) if part == "forward" else each_s)
                if part == "forward" and phase.name == "train" and self.allocator == "emptied":
                    host += self._asked(phase, notes)
            if host > busy:
                words = f"the host starts {round(starts):,} kernels one by one and takes longer than they do"
                notes[words if part == "forward" else f"{part}: {words}"] = None
            found[part], host_total = max(busy, host), host_total + host
        return found, host_total

    def _asked(self, phase: Pass, notes: dict[str, None]) -> float:
        """Seconds that the driver takes to give out the memory that a forward pass keeps."""
        from hwsim.models.memory import KeptTensors, Segments, weight_bytes

        found = Segments.of(self.graph, KeptTensors(self.numbers, phase, self.kernels, self.dropout))
        given_s, wiped_s = found.seconds(self.machine, 2 * weight_bytes(self.graph, self.numbers))
        if wiped_s:
            notes[f"memory that was given back is wiped before it is given out again: {wiped_s:.2g} s"] = None
        return given_s + wiped_s

    def _operation(
        self,
        block: str,
        name: str,
        kind: str,
        repeat: int,
        priced: list[tuple[KernelCall, KernelPrice, float]],
        part: str = "forward",
    ) -> OperationCost:
        all_of = [(call, price, count * repeat) for call, price, count in priced]
        seconds = sum(count * (price.seconds + price.starts * price.each_s) for _, price, count in all_of)
        joules = [None if price.joules is None else count * price.joules for _, price, count in all_of]
        known = None if None in joules else sum(each or 0.0 for each in joules)
        starts = sum(count * price.starts for _, price, count in all_of)
        return OperationCost(block, name, kind, repeat, seconds, known, starts, tuple(all_of), part)

    def _calls(
        self, calls: Iterable[KernelCall], kind: str, notes: dict[str, None]
    ) -> list[tuple[KernelCall, KernelPrice, float]]:
        """Each kernel, or what runs in its place; what the machine leaves to a host is said and not counted."""
        found: list[tuple[KernelCall, KernelPrice, float]] = []
        for call in calls:
            if self.told is not None:
                self.told(f"{kind}: {call.op}")
            try:
                found.append((call, self._kernels.price(call), call.count))
            except RefusedError as refusal:
                if call.instead:
                    notes[f"{call.op} in {call.precision} runs as {_listed(call.instead)}: {refusal}"] = None
                    found += self._calls([each.times(call.count) for each in call.instead], kind, notes)
                elif call.product:
                    raise InputError(f"{self.machine.name} does not run {self.graph.name}: {kind}: {refusal}") from None
                else:
                    name = self.machine.name
                    notes[f"{kind} is left to a host and not counted: {name} does not compute it ({refusal})"] = None
        return found


def _listed(calls: Iterable[KernelCall]) -> str:
    return ", ".join(dict.fromkeys(call.op if call.op != "pointwise" else "passes" for call in calls))


class Simulated:
    """Kernels that were simulated on one machine in this process."""

    def __init__(self, machine: MachineSpec) -> None:
        self.machine = machine
        self.target = find_target(machine)
        self.prices: dict[object, KernelPrice | RefusedError] = {}

    def price(self, call: KernelCall) -> KernelPrice:
        key = call.key
        if key not in self.prices:
            try:
                self.prices[key] = self._simulate(call)
            except RefusedError as refusal:
                self.prices[key] = refusal
        found = self.prices[key]
        if isinstance(found, RefusedError):
            raise found
        return found

    def multiplies(self, precision: str) -> bool:
        """Whether the machine has products of a format."""
        try:
            self.price(KernelCall("matmul", precision, (("m", 64), ("n", 64), ("k", 64)), product=True))
        except RefusedError:
            return False
        return True

    def _simulate(self, call: KernelCall) -> KernelPrice:
        part: Slice = cut(self.target, call)
        try:
            work = WorkloadSpec.model_validate(part.data)
            result = run_all(self.machine, work, math=False).result
        except ValidationError as error:
            raise RefusedError(str(error.errors(include_url=False)[0]["msg"])) from error
        except (InputError, CapacityError, ShapeError) as error:
            raise RefusedError(_short(error)) from error
        starts = self.target.starts(result)
        seconds = max(0.0, result.time_s - starts.seconds)
        joules = result.energy_j
        if joules is not None and self.machine.energy is not None:
            saved = starts.seconds - starts.kernels * starts.each_s
            joules = max(0.0, joules - saved * static_watts(self.machine.energy)) * part.scale
        return KernelPrice(
            seconds * part.scale, joules, starts.kernels, starts.each_s, starts.host_s, result, part.scale
        )


def _short(error: HwsimError) -> str:
    return str(error).split("\n")[0]


def simulated_on(machine: MachineSpec) -> Simulated:
    """What was simulated on a machine that is described by the same text."""
    text = machine.model_dump_json()
    if text not in _SIMULATED:
        while len(_SIMULATED) >= MOST_MACHINES:
            _SIMULATED.pop(next(iter(_SIMULATED)))
        _SIMULATED[text] = Simulated(machine)
    return _SIMULATED[text]


MOST_MACHINES = 32
_SIMULATED: dict[str, Simulated] = {}
