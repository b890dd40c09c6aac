"""What a step of a model costs on a machine: the interface that screens, sweeps, serving and systems build on.

    prices = StepPrice(load_machine("h100").spec, Graph.of(model), Numbers.of(model))
    prices.prefill(tokens=1024, batch=8).seconds
    prices.decode(batch=8, context=1280).joules
    prices.decode(batch=8, context=1280).operations        # by block and operation

Each distinct kernel (operation, sizes, format) is simulated once, on the way that `hwsim run` goes and without math,
and kept: eighty layers cost as much to simulate as one. `Graph.of(model, tp=4)` prices one of four devices; what they
have to exchange is in `graph.exchanges`, and is not part of the price. Threads may share a StepPrice.

A step of training has a backward pass and an update of weights. Every product has two in its backward pass: one for the
gradient of what came in, one for that of the weights. A pass over elements has as many as it had operands, a softmax
and a norm one and a half. Under `recompute` the forward pass of a block that repeats runs once more.

One kernel of a model on one machine, simulated once and kept: whole, or a slice of it that stands for the whole.

Where a machine's run replays every access, a kernel of a model is too large. A slice has the same inner sizes as far as
they matter (rows of a tile, a stretch of the sum) and fewer of what repeats: rows, columns, heads. It starts with cold
caches, as the whole does, so that weights come from memory once. Its time and energy are scaled by the multiply-adds,
or the elements, of the whole. Schedules are what a good library does on cores: vectors, a register tile, packed cache
tiles, all cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from pydantic import ValidationError

from hwsim.api import run_all
from hwsim.energy import static_watts
from hwsim.errors import CapacityError, HwsimError, InputError, ShapeError
from hwsim.models.count import Formats, Pass, decode, forward, parameters, parameters_of, prefill, train
from hwsim.models.graph import GraphBlock, ModelGraph, ModelNode
from hwsim.models.kernels import EAGER, SERVING, KernelCall, KernelLowering, touch
from hwsim.models.memory import KeptTensors, Segments, weight_bytes
from hwsim.ops import model as ops
from hwsim.result import RunResult
from hwsim.spec.machine import CacheSpec, MachineSpec, RegistersSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import Starts, Target, find_target

FEW_ROWS = 8
"""Products with fewer rows read weights once: they are shared out by columns."""
MOST = {"n": 256, "k": 512}
MOST_TILE, LEAST_TILE = 64, 8
"""Rows of a tile: as many as there are for each core, within reason."""
MOST_FEW = {"m": FEW_ROWS, "n": 2048, "k": 1024}
MOST_ELEMENTS = 1 << 18
MANY_ROWS = {"order": "ijk", "vector": True, "packed": True, "parallel": "rows"}
FEW = {"order": "jik", "vector": True, "v1": 4, "v2": 8, "parallel": "rows", "b_layout": "jk"}


@dataclass(frozen=True)
class Slice:
    """What is simulated, as a workload file would say it, and how often it fits into the whole."""

    data: dict[str, Any]
    scale: float = 1.0


def cut(target: Target, call: KernelCall) -> Slice:
    """The whole kernel where a run lays out tiles, a slice of it where a run walks through accesses."""
    data = call.data()
    if _needs_scale(call):
        data["scale"] = "tensor"
    if not walks(target):
        return Slice(data)
    data["convert"] = True  # a core without the format converts on the way to registers, and that is counted
    sizes, cores = data["sizes"], sum(unit.count for unit in target.machine.compute)
    match call.op:
        case "matmul" | "matmul_batched":
            return _product(data, sizes, cores, _tile_rows(target))
        case "attention":
            return _attention(data, sizes)
        case "conv2d":
            return _convolution(data, sizes, cores, _tile_rows(target))
    return _rows(data, sizes)


def _needs_scale(call: KernelCall) -> bool:
    """Whole numbers stand for fractions wherever there is more to do than to multiply and add."""
    plain = call.op in ("matmul", "matmul_batched", "conv2d")
    return call.precision in ("int8", "int16") and not plain


def walks(target: Target) -> bool:
    """Whether a run on this machine goes through the accesses of a kernel one by one."""
    found: bool | None = target.__dict__.get("_walks")
    if found is None:
        about = {"format": 1, "name": "small", "description": "", "op": "copy", "sizes": {"n": 16}}
        work = WorkloadSpec.model_validate(about)
        try:
            found = target.estimate(target.prepare(work, math=False), work) is not None
        except HwsimError:  # a machine that cannot even copy walks through nothing
            found = False
        target.__dict__["_walks"] = found
    return found


def _tile_rows(target: Target) -> int:
    """Rows of a register tile of two vectors a row: their sums, one row of B and a number of A fit the registers."""
    counts = [level.count for level in target.machine.memory if isinstance(level, RegistersSpec)]
    return 8 if counts and counts[0] >= 2 * 8 + 2 + 1 else 4


def _product(data: dict[str, Any], sizes: dict[str, int], cores: int, rows: int) -> Slice:
    few = sizes["m"] <= FEW_ROWS
    tile = min(MOST_TILE, max(LEAST_TILE, sizes["m"] // cores // LEAST_TILE * LEAST_TILE))
    # Every core has a tile of rows; the more of them there are, the fewer columns stand for all.
    many = {"m": tile * cores, "n": max(MOST_TILE, MOST["n"] * MOST_TILE // (tile * cores)), "k": MOST["k"]}
    most = MOST_FEW if few else many
    cut_sizes = {name: min(size, most.get(name, 1)) for name, size in sizes.items()}
    schedule: dict[str, Any] = FEW if few else {**MANY_ROWS, "v1": rows, "tile": tile}
    if data["op"] != "matmul":
        schedule = {name: value for name, value in schedule.items() if few or name != "packed"}
    scale = prod(sizes.values()) / prod(cut_sizes.values())
    return Slice({**data, "sizes": cut_sizes, "schedule": schedule}, scale)


def _attention(data: dict[str, Any], sizes: dict[str, int]) -> Slice:
    groups = sizes["heads"] // sizes["kv_heads"]
    kept = min(sizes["kv_heads"], 8)
    queries, keys = min(sizes["queries"], 64), min(sizes["n"], 1024)
    cut_sizes = {**sizes, "batch": 1, "heads": kept * groups, "kv_heads": kept, "queries": queries, "n": keys}
    cut_sizes["causal"] = False
    pairs = sizes["queries"] * sizes["n"]
    if sizes.get("causal"):
        pairs -= sizes["queries"] * (sizes["queries"] - 1) // 2
    scale = sizes["batch"] * sizes["heads"] * pairs / (kept * groups * queries * keys)
    schedule = {"variant": "fused", "br": min(queries, 16), "bc": min(keys, 64), "parallel": "rows"}
    return Slice({**data, "sizes": cut_sizes, "schedule": schedule}, scale)


def _convolution(data: dict[str, Any], sizes: dict[str, int], cores: int, places: int) -> Slice:
    """Channels last: a vector of filters, for so many neighbouring places at a time."""
    groups = sizes.get("groups", 1)
    co = sizes["co"] if groups > 1 else min(sizes["co"], 64)
    height = min(sizes["height"], max(16, cores) * sizes["stride"] + sizes["kernel"])
    cut_sizes = {**sizes, "batch": 1, "co": co, "height": height}
    rows = (sizes["height"] + 2 * sizes["padding"] - sizes["kernel"]) // sizes["stride"] + 1
    own = (height + 2 * sizes["padding"] - sizes["kernel"]) // sizes["stride"] + 1
    scale = sizes["batch"] * sizes["co"] / co * rows / own
    schedule = {"layout": "nhwc", "w_layout": "hwio", "unroll": {"w": places}, "vector": True, "parallel": "rows"}
    return Slice({**data, "sizes": cut_sizes, "schedule": schedule}, scale)


def _rows(data: dict[str, Any], sizes: dict[str, int]) -> Slice:
    if "m" not in sizes:
        length = min(sizes["n"], MOST_ELEMENTS)
        cut_data = {**data, "sizes": {"n": length}, "schedule": {"vector": True, "parallel": "rows"}}
        return Slice(cut_data, sizes["n"] / length)
    m, n = sizes["m"], sizes["n"]
    rows = max(1, min(m, MOST_ELEMENTS // n))
    return Slice({**data, "sizes": {"m": rows, "n": n}, "schedule": {"vector": True, "parallel": "rows"}}, m / rows)


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


class RefusedError(Exception):
    """The machine does not compute a kernel."""


def starts_of(target: Target, result: RunResult) -> Starts:
    """What starting took in a run. Cores that share a kernel are started once for all of it, not for each slice."""
    found, spawned = target.starts(result), result.bounds.parts.get(SPAWN, 0.0)
    return found if found.kernels or not spawned else Starts(1, spawned, spawned, 0.0, SPAWN)


SPAWN = "spawn"
"""The part of a run on several cores that starts them."""


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
            raise RefusedError(str(error).split("\n")[0]) from error
        starts = starts_of(self.target, result)
        seconds = max(0.0, result.time_s - starts.seconds)
        joules = result.energy_j
        if joules is not None and self.machine.energy is not None:
            watts = static_watts(self.machine.energy)  # of a slice that stands for more, the start counts once
            started = starts.kernels * starts.each_s * watts
            joules = max(0.0, joules - starts.seconds * watts) * part.scale + started
        return KernelPrice(
            seconds * part.scale, joules, starts.kernels, starts.each_s, starts.host_s, result, part.scale
        )


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
        caches = [level.size for level in self.machine.memory if isinstance(level, CacheSpec)]
        low = KernelLowering(self.numbers, self.kernels, phase, self.dropout, caches[-1] if caches else 0)
        notes: dict[str, None] = {}
        operations: list[OperationCost] = []
        for block, node, calls in low.calls(self.graph):
            priced = self._calls(calls, node.word, notes)
            if priced:
                operations.append(self._operation(block.name, node.name, node.word, block.repeat, priced))
        if phase.name == "train":
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


BACK_OF_ATTENTION = 2.5
"""A fused backward pass over a fused forward one: five products against two, scores made again."""
BACK_OF_NORM = 1.5
"""Reads what came in and its gradient, writes a gradient; sums for the weights come on top."""


def backward_calls(
    low: KernelLowering, graph: ModelGraph, recompute: bool
) -> Iterator[tuple[GraphBlock, ModelNode, list[KernelCall]]]:
    """Kernels of the backward pass, from the last operation to the first."""
    for block, node, calls in reversed(list(low.calls(graph))):
        found = _backward(low, node, calls)
        if recompute and block.repeat > 1:
            found = [*calls, *found]
        if found:
            yield block, node, found


def _backward(low: KernelLowering, node: ModelNode, calls: list[KernelCall]) -> list[KernelCall]:
    match node.op:
        case ops.Linear(bias=bias):
            rows, n, k = low.phase.rows(node.out), node.size("out"), node.flow.width
            found = [*low.matmul(rows, k, n, weights=False), *low.matmul(k, n, rows, weights=False)]
            if bias:  # its gradient is a sum over rows
                found.append(low.touch(low.phase.elements(node.out) / 2))
            return [*found, *_gathered(low, node)]
        case ops.Embedding() | ops.Positions():
            return [low.touch(low.phase.elements(node.out) * 1.5), *_gathered(low, node)]
        case ops.Norm():
            return [call.times(BACK_OF_NORM) for call in calls] + _gathered(low, node)
        case ops.Attention() | ops.LatentAttention():
            return [_back_of_attention(call) for call in reversed(calls)]
        case ops.ConvLayer() | ops.ProductLayer() | ops.Experts():
            products = [call.times(2) if call.product else call.times(1.5) for call in calls]
            return [*products, *_gathered(low, node)]
    if node.word in BACKWARD_STEPS and not low.fused:
        return [low.touch(low.phase.elements(node.out), stage) for stage in BACKWARD_STEPS[node.word]]
    return [call.times(1.5 if _binary(call) else 1.0) for call in calls]


BACKWARD_STEPS = {
    "gelu_new": ("mul", "mul", "copy", "mul", "copy", "copy", "copy", "copy", "mul", "add", "add"),
}
"""0.5 x (1 + tanh(c (x + 0.044715 x³))) backwards, step by step: two factors, tanh, a cube in three steps, and the
gradients of three uses of x added up."""


def _binary(call: KernelCall) -> bool:
    return any(isinstance(stage, dict) for stage in dict(call.more).get("stages", ()))


def _back_of_attention(call: KernelCall) -> KernelCall:
    if call.op == "attention":
        return call.times(BACK_OF_ATTENTION)
    if call.product:
        return call.times(2)
    return call.times(BACK_OF_NORM) if call.op == "softmax" else call


def _gathered(low: KernelLowering, node: ModelNode) -> list[KernelCall]:
    """The new gradient of the weights added to what is there: two read, one written."""
    count = parameters_of(node)
    return [touch(count, low.numbers.activations, "add")] if count and not low.fused else []


def update_calls(low: KernelLowering, graph: ModelGraph, optimizer: str) -> list[KernelCall]:
    """New weights from gradients: Adam reads four tensors and writes three, plain descent reads two and writes one."""
    count = parameters(graph)
    if optimizer == "none" or not count:
        return []
    pieces = max(1, -(-count // MOST_AT_ONCE))
    each = -(-count // pieces)
    if optimizer == "adam":
        return [KernelCall("adam", "fp32", (("n", each),), count=pieces)]
    return [touch(each, low.numbers.activations, "add").times(pieces)]


MOST_AT_ONCE = 1 << 28
"""Weights that one kernel of an optimizer updates."""
