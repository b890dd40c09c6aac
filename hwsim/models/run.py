"""A run of a whole model: its phases priced, and their sum as a result like that of any other run.

`hwsim run`, `compare`, `sweep`, `report`, `explain` and `hwsim model` all come here: a model is a workload whose result
is the sum of the results of its kernels, each as often as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from math import prod

from hwsim.energy import static_watts
from hwsim.engine.outcome import FEMTOSECONDS, Span
from hwsim.errors import InputError
from hwsim.models.accuracy import measure_accuracy
from hwsim.models.evaluate import GivenWeights
from hwsim.models.graph import ModelGraph
from hwsim.models.kernels import COMPILED, EAGER, SERVING
from hwsim.models.memory import MemoryFit, MemoryUse, find_fit, memory_use
from hwsim.models.phase import FORMATS, Formats, Pass, decode, forward, prefill, train
from hwsim.models.price import OperationCost, PassCost, StepPrice
from hwsim.models.simulate import simulated_on
from hwsim.models.total import total_result
from hwsim.models.why import explain as explain_model
from hwsim.ops.model import ModelWorkload
from hwsim.result import RunResult
from hwsim.results.plot.timeline import PowerBin
from hwsim.spec.machine import MachineSpec
from hwsim.target import Why

MOST_SAMPLES = 3
"""Lengths at which a step of a long answer is priced; between them its time is close to a parabola."""


@dataclass(frozen=True)
class PhaseRun:
    """A step, and how often it runs."""

    step: PassCost
    times: float


@dataclass(frozen=True)
class ModelRun:
    """A model on a machine: its phases, its memory."""

    model: ModelWorkload
    machine: MachineSpec
    graph: ModelGraph
    numbers: Formats
    kernels: str
    phases: tuple[PhaseRun, ...]
    memory: MemoryUse
    fit: MemoryFit
    swapped: str = ""
    """What was taken in place of a format that the machine does not have."""

    @property
    def seconds(self) -> float:
        return sum(each.times * each.step.seconds for each in self.phases)

    def phase(self, name: str) -> tuple[PhaseRun, ...]:
        return tuple(each for each in self.phases if each.step.phase.name == name)


def run(
    machine: MachineSpec,
    model: ModelWorkload,
    told: Callable[[str], None] | None = None,
    *,
    math: bool = True,
    given: GivenWeights | None = None,
) -> RunResult:
    """The result of a model as that of a run; see hwsim.api.run_all, which comes here for models.

    ``math``: compute the model, or a slice of it, in its formats and in float64; ``given`` are weights of your own.
    """
    return summed(run_phases(machine, model, told), math=math, given=given)


def summed(found: ModelRun, *, math: bool = True, given: GivenWeights | None = None) -> RunResult:
    """All phases as one result."""
    accuracy = measure_accuracy(found.model, found.numbers, given, found.model.seed) if math else None
    return total_result(found, accuracy)


def explain(result: RunResult) -> Why:
    """What decided the time of a model's run."""
    return explain_model(result)


def run_phases(machine: MachineSpec, model: ModelWorkload, told: Callable[[str], None] | None = None) -> ModelRun:
    """Price every phase that is asked for."""
    divided = model.parallel.given()
    if prod(divided.get(axis, 1) for axis in ("tp", "pp", "dp", "ep")) > 1:
        said = ", ".join(f"{name}: {value}" for name, value in divided.items())
        raise InputError(
            f"{model.name} is divided over several devices (parallel: {{{said}}}), and {machine.name} is one; name a "
            f"system, as in: hwsim model {model.name} 8x{machine.name}"
        )
    graph, use = ModelGraph.of(model), model.use
    numbers, swapped = computed_numbers(machine, Formats.of(model))
    wanted = list(phases_of(model, graph))
    kernels = choose_kernels(model, graph, wanted[0][0])
    prices = StepPrice(machine, graph, numbers, kernels, use.recompute, use.optimizer, use.dropout,
                       use.allocator, told)  # fmt: skip
    steps = tuple(PhaseRun(prices.step(phase), times) for phase, times in wanted)

    def needs(batch: int, context: int, weights: str | None) -> MemoryUse:
        own = numbers if weights is None else Formats(FORMATS.get(weights, weights), numbers.activations, numbers.kv)
        fullest = wanted[0][0]
        length = max(1, context - made) if fullest.name == "prefill" else context
        phase = Pass(fullest.name, batch, length if fullest.tokens > 1 else 1, 0, fullest.source)
        return memory_use(graph, own, phase, kernels, context=context, recompute=use.recompute,
                          optimizer=use.optimizer, dropout=use.dropout)  # fmt: skip

    made = use.generate if use.phase == "all" else 0
    context = use.prompt + made
    memory = needs(use.batch, context, None)
    return ModelRun(model, machine, graph, numbers, kernels, steps, memory,
                    find_fit(machine, needs, use.batch, context, narrower(machine)), swapped)  # fmt: skip


def narrower(machine: MachineSpec) -> list[str]:
    """Formats of weights that the machine has, from wide to narrow."""
    kernels = simulated_on(machine)
    return [name for name in ("fp8", "w8a16", "w4a16") if kernels.multiplies(FORMATS.get(name, name))]


HALVES = {"fp16": "bf16", "bf16": "fp16"}
"""Formats of 16 bits, one of which nearly every machine has."""


def computed_numbers(machine: MachineSpec, numbers: Formats) -> tuple[Formats, str]:
    """The other format of 16 bits where the machine has only that one, with a word about it."""
    kernels = simulated_on(machine)
    wrong = {each for each in (numbers.weights, numbers.activations, numbers.kv) if each in HALVES}
    wrong = {each for each in wrong if not kernels.multiplies(each) and kernels.multiplies(HALVES[each])}
    if not wrong:
        return numbers, ""
    swap = {each: HALVES[each] for each in wrong}
    found = Formats(*(swap.get(each, each) for each in (numbers.weights, numbers.activations, numbers.kv)))
    one = next(iter(wrong))
    return found, f"{machine.name} does not compute in {one}: {HALVES[one]}, which is as wide, is taken"


def choose_kernels(model: ModelWorkload, graph: ModelGraph, phase: Pass) -> str:
    """serving where text is generated, compiled for what reads or sees, eager for training, where nobody chose."""
    if model.use.kernels != "auto":
        return model.use.kernels
    if phase.name == "train":
        return COMPILED if model.precision != "fp32" else EAGER
    return SERVING if graph.is_generative else COMPILED


def phases_of(model: ModelWorkload, graph: ModelGraph) -> Iterator[tuple[Pass, float]]:
    """The phases that are asked for, each with how often it runs."""
    use = model.use
    source = (use.source or use.prompt) if graph.sourced else 0
    match use.phase:
        case "train":
            yield train(use.batch, use.prompt, source), 1
        case "forward":
            yield forward(use.batch, use.prompt, source), 1
        case "decode":
            if not graph.is_generative:
                raise InputError(f"phase=decode: {model.name} generates nothing; phase=forward is one pass")
            yield decode(use.batch, use.prompt, source), 1
        case _:
            if not graph.is_generative:
                yield forward(use.batch, use.prompt, source), 1
                return
            yield prefill(use.batch, use.prompt, 0, source), 1
            if use.phase == "all":
                for context, times in decode_lengths(use.prompt, use.generate):
                    yield decode(use.batch, context, source), times


def decode_lengths(prompt: int, generate: int) -> list[tuple[int, float]]:
    """Lengths of text at which a step is priced, with how many steps each stands for: Simpson's rule over them all.

    The prompt itself gives the first token; each further one is a step.
    """
    steps = generate - 1
    if steps < MOST_SAMPLES:
        return [(prompt + number + 1, 1.0) for number in range(max(0, steps))]
    first, last = prompt + 1, prompt + steps
    middle = (first + last) // 2
    return [(first, steps / 6), (middle, 4 * steps / 6), (last, steps / 6)]


PHASE, LAYER, OPERATION, KERNEL = "1 phase", "2 layer", "3 operation", "4 kernel"
"""Lanes, from top to bottom."""


@dataclass
class ModelTimeline:
    """Spans and power of all steps."""

    spans: list[Span] = field(default_factory=list)
    power: list[PowerBin] = field(default_factory=list)
    """Empty where the machine has no prices."""
    operations: list[Span] = field(default_factory=list)
    """A lane for each operation, for a plot; spans are called as their phase."""


def model_timeline(found: ModelRun) -> ModelTimeline:
    """Who was at work when; power is that of each kernel, and between kernels that of a machine that waits."""
    made = ModelTimeline()
    energy = found.machine.energy
    idle_w = static_watts(energy) if energy is not None else None
    now_s = 0.0
    for each in found.phases:
        _LaneWriter(made, each.step, idle_w).write(now_s, _phase_words(each.step, each.times))
        now_s += each.step.seconds
    return made


def _phase_words(step: PassCost, times: float) -> str:
    phase = step.phase
    if phase.name == "decode":
        at = f"decode at {phase.context:,} tokens"
        return at if times == 1 else f"{at} (stands for {times:g} steps)"
    return phase.name


class _LaneWriter:
    """One step."""

    def __init__(self, made: ModelTimeline, step: PassCost, idle_w: float | None) -> None:
        self.made, self.step, self.idle_w, self.words = made, step, idle_w, ""
        busy = sum(each.seconds for each in step.operations)
        self.stretch = step.seconds / busy if busy else 1.0
        """Longer than one where the host takes longer to start kernels than they take."""

    def write(self, start_s: float, words: str) -> None:
        self.words, now = words, start_s
        for (block, part), own in groupby(self.step.operations, key=lambda each: (each.block, each.part)):
            operations = list(own)
            repeat = operations[0].repeat
            for number in range(repeat):
                begun = now
                for operation in operations:
                    now = self._operation(operation, now)
                layer = repeat - number if part == "backward" else number + 1
                shown = f"{block} {layer}" if repeat > 1 else block
                self._span(LAYER, f"{shown}, backward" if part == "backward" else shown, begun, now)
        self._span(PHASE, words, start_s, now)

    def _operation(self, operation: OperationCost, start_s: float) -> float:
        now = start_s
        for name, taken_s, joules in _kernels(operation):
            self._span(KERNEL, name, now, now + taken_s)
            self._power(now, now + taken_s, None if joules is None else joules / taken_s if taken_s else 0.0)
            if self.stretch > 1:
                self._power(now + taken_s, now + taken_s * self.stretch, self.idle_w)
            now += taken_s * self.stretch
        self._span(OPERATION, operation.name, start_s, now)
        whole = self.made.spans[-1]
        lane = f"{operation.block}.{operation.name}"
        self.made.operations.append(Span(lane, self.words, whole.start_fs, whole.end_fs))
        return now

    def _span(self, lane: str, name: str, start_s: float, end_s: float) -> None:
        self.made.spans.append(Span(lane, name, _femtoseconds(start_s), _femtoseconds(end_s)))

    def _power(self, start_s: float, end_s: float, watts: float | None) -> None:
        if watts is not None and end_s > start_s:
            self.made.power.append(PowerBin(_femtoseconds(start_s), _femtoseconds(end_s), watts))


def _kernels(operation: OperationCost) -> Iterator[tuple[str, float, float | None]]:
    """Kernels of one repetition: what each is, how long it takes with its start, and what it spends."""
    for call, price, count in operation.kernels:
        times = count / operation.repeat
        sizes = " x ".join(str(size) for _, size in call.sizes if not isinstance(size, bool))
        name = f"{call.op} {sizes} {call.precision}" + (f", {times:.3g} times" if times > 1 else "")
        taken_s = times * (price.seconds + price.starts * price.each_s)
        yield name, taken_s, None if price.joules is None else times * price.joules


def _femtoseconds(seconds: float) -> int:
    return round(seconds * FEMTOSECONDS)
