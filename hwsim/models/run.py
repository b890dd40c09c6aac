"""A run of a whole model: its phases priced, and their sum as a result like that of any other run.

`hwsim run`, `compare`, `sweep`, `report`, `explain` and `hwsim model` all come here: a model is a workload whose result
is the sum of the results of its kernels, each as often as it runs.

What decided the time of a model's run, from its result alone: bounds by phase, operations, memory, what to try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import prod
from typing import Any

from hwsim.energy import static_watts
from hwsim.engine import FEMTOSECONDS, Span
from hwsim.errors import InputError
from hwsim.memory.counters import CacheCounters
from hwsim.models.accuracy import measure_accuracy
from hwsim.models.count import FORMATS, Formats, Pass, decode, forward, prefill, train
from hwsim.models.evaluate import GivenWeights
from hwsim.models.graph import ModelGraph
from hwsim.models.kernels import COMPILED, EAGER, SERVING
from hwsim.models.memory import MemoryFit, MemoryUse, find_fit, memory_use
from hwsim.models.price import HOST, OperationCost, PassCost, StepPrice, simulated_on
from hwsim.models.total import total_result
from hwsim.ops.model import ModelWorkload
from hwsim.result import RunResult, bytes_moved, machine_of
from hwsim.results.plot.timeline import PowerBin
from hwsim.spec.machine import MachineSpec
from hwsim.target import MACHINES, Advice, Bound, Details, Line, Section, Table, Why
from hwsim.units import data, digits, joules, percent, seconds

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
        for name, taken_s, energy_j in _kernels(operation):
            self._span(KERNEL, name, now, now + taken_s)
            self._power(now, now + taken_s, None if energy_j is None else energy_j / taken_s if taken_s else 0.0)
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


MODEL = "model"
MOST_ROWS = 14
BANDWIDTH = "bandwidth of "


def explain(result: RunResult) -> Why:
    """The explanation of a model, as screens and pages draw it."""
    about = result.work.use[MODEL]
    machine = machine_of(result)
    units = f"{machine.compute[0].count} {machine.compute[0].name}"
    bound = find_bound(result)
    lower, upper = seconds(result.bounds.lower_s), seconds(result.bounds.upper_s)
    return Why(
        used=f"{units}, {about['kernels']} kernels",
        whole="all kernels",
        peak=units,
        units=sum(each.count for each in machine.compute),
        bound=bound,
        bounds=f"{lower} if all parts of each kernel overlapped, {upper} if none did",
        advice=advise(result, bound),
        parts=about["parts"],
        levels=level_table(result),
        body=(operation_table(result),),
        look=partial(look, result),
        schedule={},
    )


def look(result: RunResult) -> Details:
    about = result.work.use[MODEL]
    sections = [Section("Memory", (memory_table(result),))]
    for phase in about["phases"]:
        title = f"{phase['name']}, by operation"
        sections.append(Section(title, (phase_table(phase), Line(bound_words(phase), "strong"))))
    if about["notes"]:
        sections.append(Section("What was not simulated as asked", tuple(Line(note) for note in about["notes"])))
    return Details(tuple(sections))


def find_bound(result: RunResult) -> Bound:
    """What most of the time of all phases is bound by."""
    about = result.work.use[MODEL]
    sums: dict[str, float] = {}
    for phase in about["phases"]:
        for name, amount in phase["bounds"].items():
            sums[name] = sums.get(name, 0.0) + amount
    part, amount = max(sums.items(), key=lambda item: item[1])
    whole = sum(sums.values())
    share = amount / whole if whole else 0.0
    words = "; ".join(bound_words(phase) for phase in about["phases"])
    if part.startswith(BANDWIDTH):
        return Bound(part.removeprefix(BANDWIDTH), "bandwidth", share, words)
    return Bound(part, "compute" if part == "arithmetic" else part, share, words)


def bound_words(phase: dict[str, Any]) -> str:
    """``decode: 82 % of the time is bound by bandwidth of hbm``."""
    whole = sum(phase["bounds"].values())
    parts = [f"{percent(amount, whole)} {name}" for name, amount in list(phase["bounds"].items())[:2]]
    return f"{phase['name']} is bound by {', '.join(parts)}"


def advise(result: RunResult, bound: Bound) -> Advice:
    """One change that the bound suggests."""
    about = result.work.use[MODEL]
    names = [phase["name"] for phase in about["phases"]]
    if not about["fit"]["fits"]:
        if about["fit"]["narrower"]:
            return Advice((("weights", about["fit"]["narrower"]),), (), "narrower weights would fit")
        if about["fit"]["largest_batch"]:
            return Advice((("batch", str(about["fit"]["largest_batch"])),), (), "the largest batch that fits")
        devices = 1 << (about["fit"]["needed"] // about["fit"]["has"]).bit_length()
        return Advice(((MACHINES, str(devices)),), (), f"the weights take {devices} such devices, joined in a system")
    if "decode" in names and bound.kind == "bandwidth":
        if about["weights"] in ("bf16", "fp16", "fp32"):
            return Advice((("weights", "w4a16"),), (), "a step reads all weights once: narrower ones are read sooner")
        return Advice((("batch", str(4 * about["batch"])),), (), "more sequences share each weight that is read")
    if bound.kind == HOST and about["allocator"] == "emptied":
        return Advice((("allocator", "cached"),), (), "memory of the step before is used again")
    if bound.kind == HOST:
        return Advice((("kernels", "compiled"),), (), "fewer kernels, which the host starts together")
    if bound.kind in ("starting kernels", "overhead inside kernels"):
        return Advice((("batch", str(4 * about["batch"])),), (), "more work for each kernel that is started")
    if bound.kind == "compute" and about["weights"] == "fp32":
        return Advice((("precision", "bf16"),), (), "the same on faster units")
    return Advice((("batch", str(2 * about["batch"])),), (), "whether a larger batch uses the machine better")


def level_table(result: RunResult) -> Table:
    rows = []
    for name, counts in result.memory.items():
        moved = bytes_moved(counts)
        hits = percent(counts.hits, counts.accesses) if isinstance(counts, CacheCounters) and counts.accesses else ""
        rows.append((name, data(moved), hits, digits(result.work.flops / moved) if moved else "–"))
    return Table(("level", "bytes to and from", "found there", "op per byte"), tuple(rows))


def operation_table(result: RunResult) -> Table:
    """The longest operations of all phases."""
    about = result.work.use[MODEL]
    rows = [
        (row["part"] if phase["name"] == "train" else phase["name"], row)
        for phase in about["phases"]
        for row in phase["operations"]
    ]
    rows.sort(key=lambda item: -item[1]["seconds"])
    shown = [
        (name, f"{row['block']}.{row['name']}", row["op"], f"{row['repeat']}", seconds(row["seconds"]),
         percent(row["seconds"], result.time_s), row["bound"])
        for name, row in rows[:MOST_ROWS]
    ]  # fmt: skip
    rest = rows[MOST_ROWS:]
    if rest:
        amount = sum(row["seconds"] for _, row in rest)
        shown.append(("", f"{len(rest)} more", "", "", seconds(amount), percent(amount, result.time_s), ""))
    return Table(("phase", "operation", "op", "layers", "time in all", "share", "bound by"), tuple(shown), (0, 1, 2, 6))


def phase_table(phase: dict[str, Any]) -> Table:
    rows = [
        (f"{row['block']}.{row['name']}", row["op"], row["part"], f"{row['repeat']}", seconds(row["seconds"]),
         percent(row["seconds"], phase["seconds"]), joules(row["joules"]), row["bound"])
        for row in sorted(phase["operations"], key=lambda row: -row["seconds"])
    ]  # fmt: skip
    columns = ("operation", "op", "part", "layers", "time in all", "share", "energy", "bound by")
    return Table(columns, tuple(rows), (0, 1, 2, 7))


def memory_table(result: RunResult) -> Table:
    about = result.work.use[MODEL]
    total = about["memory"]["total"]
    rows = [
        (name.replace("_", " "), data(size), percent(size, total))
        for name, size in about["memory"].items()
        if size or name == "total"
    ]
    return Table(("part", "bytes", "share"), tuple(rows))
