"""What a model needs of a machine's memory, whether that fits, and what would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, prod
from typing import Any

from hwsim.models.count import Formats, Pass, is_narrowed, kept, stored_bits, weights_of
from hwsim.models.graph import GraphBlock, ModelGraph, ModelNode
from hwsim.models.kernels import EAGER, SERVING, dropped_after
from hwsim.ops.model import Attention, ViewLayer
from hwsim.spec.machine import DramSpec, MachineSpec

MASTER_BITS = 32
"""Optimizers keep means, and weights that are narrower, in fp32."""
CHUNK_TOKENS = 8192
"""Serving engines read prompts in pieces of so many tokens (vLLM's max_num_batched_tokens on large GPUs)."""
MOST_BATCH, MOST_CONTEXT = 1 << 20, 1 << 24


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of each part at the fullest moment."""

    weights: int
    kv_cache: int
    activations: int
    workspace: int
    """Scores of attention, where they go to memory."""
    gradients: int = 0
    optimizer: int = 0

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "total": self.total}


def capacity(machine: MachineSpec) -> int | None:
    """Bytes of main memory; None where the machine does not say."""
    sizes = [level.size for level in machine.memory if isinstance(level, DramSpec)]
    found = sizes[0] if sizes else None
    return None if found is None or found == float("inf") else int(found)


def weight_bytes(graph: ModelGraph, numbers: Formats) -> int:
    total = 0.0
    for block, node in graph.nodes():
        for name, shape in weights_of(node).items():
            narrow = is_narrowed(node) and len(shape) > 1 and name != "router"
            total += block.repeat * prod(shape) * stored_bits(numbers.weights if narrow else numbers.activations) / 8
    return round(total)


def memory_use(
    graph: ModelGraph, numbers: Formats, phase: Pass, kernels: str, *, context: int, recompute: bool = False,
    optimizer: str = "none", dropout: str = "none",
) -> MemoryUse:  # fmt: skip
    """The fullest moment of a phase; `context` is the length that sequences grow to."""
    weights = weight_bytes(graph, numbers)
    if phase.name == "train":
        kept_ones = KeptTensors(numbers, phase, kernels, dropout)
        return _training(graph, kept_ones, weights, recompute, optimizer)
    cached = round(numbers.kv_bytes(phase.batch * kept(graph, context, phase.source))) if graph.is_generative else 0
    phase = replace(phase, tokens=tokens_at_once(phase, kernels) // phase.batch)
    live = max(_live(block, node, phase) for block, node in graph.nodes() if phase.runs(block, node))
    scores = max((_scores(node, phase) for _, node in graph.nodes()), default=0) if kernels == EAGER else 0
    return MemoryUse(
        weights, cached, round(numbers.activation_bytes(live)), round(numbers.activation_bytes(2 * scores))
    )


def tokens_at_once(phase: Pass, kernels: str) -> int:
    """Tokens of all sequences whose activations lie in memory together: engines read long prompts in pieces."""
    most = max(1, CHUNK_TOKENS // phase.batch) if kernels == SERVING else phase.tokens
    return phase.batch * min(phase.tokens, most)


def _training(
    graph: ModelGraph, tensors: KeptTensors, weights: int, recompute: bool, optimizer: str
) -> MemoryUse:  # fmt: skip
    numbers, phase = tensors.numbers, tensors.phase
    count = weights * 8 / stored_bits(numbers.weights)
    narrow = stored_bits(numbers.weights) < MASTER_BITS
    states = {"adam": 2, "sgd": 0, "none": 0}[optimizer] + (1 if narrow and optimizer != "none" else 0)
    stored, largest = 0.0, 0.0
    for block in graph.blocks:
        own = sum(sum(tensors.of(block, node)) // graph.keeps(block.name, node.name) for node in block.nodes)
        came = phase.elements(block.nodes[0].inputs[0]) // (graph.tp if graph.scattered else 1)
        stored += block.repeat * (came if recompute else own)
        largest = max(largest, own)
    kept_bytes = round(numbers.activation_bytes(1) * (stored + (largest if recompute else 0)))
    return MemoryUse(weights, 0, kept_bytes, 0, weights, round(states * count * MASTER_BITS / 8))


@dataclass(frozen=True)
class KeptTensors:
    """What a forward pass leaves for the backward pass, as automatic differentiation keeps it.

    A result stays where an operation that reads it needs it again: products, norms and most activations do, sums and
    what can be told from its own result do not. With fp16, dropout and scores in memory a layer of a transformer keeps
    s b h (34 + 5 a s / h) bytes (Korthikanti and others, "Reducing Activation Recomputation in Large Transformer
    Models", 2022, equation 1).
    """

    numbers: Formats
    phase: Pass
    kernels: str
    dropout: str = "none"

    def of(self, block: GraphBlock, node: ModelNode) -> list[float]:
        """Sizes of the tensors that stay of one operation, in elements of the activations."""
        elements, eager = float(self.phase.elements(node.out)), self.kernels == EAGER
        readers = [each for each in block.nodes if node.name in each.makers]
        found: list[float] = []
        if node.word in OWN_RESULT or not readers or any(each.word not in NEED_NO_INPUT for each in readers):
            found = [elements] * (STEPS_KEPT.get(node.word, 1) if eager else 1)
        if isinstance(node.op, ViewLayer):
            found = []
        mask = 1 / self.numbers.activation_bytes(1)
        if eager and self.dropout != "none" and node.name in dropped_after(block):
            found.append(mask * elements)
        scores = _scores(node, self.phase) if eager else 0
        if scores:
            found += [scores, mask * scores, scores] if self.dropout == "all" else [scores]
        return found


NEED_NO_INPUT = frozenset({"add", "relu", "relu6", "tanh", "sigmoid", "softmax"})
"""Operations whose gradient does not need what came in: it is a sum, or is told by what came out."""
OWN_RESULT = NEED_NO_INPUT - {"add"}
STEPS_KEPT = {"gelu_new": 4, "quick_gelu": 2, "swiglu": 2, "geglu": 2, "rmsnorm": 2}
"""Tensors that stay where an operation is written in several steps: of 0.5 x (1 + tanh(c (x + 0.044715 x³))) the
half, the hyperbolic tangent, one plus that, and the product."""


@dataclass(frozen=True)
class Segments:
    """Memory that a framework asks the driver for, where it has given back what it had."""

    count: int
    size: int

    @classmethod
    def of(cls, graph: ModelGraph, tensors: KeptTensors) -> Segments:
        """What stays of a forward pass, as the allocator of PyTorch asks for it: large tensors one by one, smaller ones
        from segments that several share."""
        each = tensors.numbers.activation_bytes(1)
        sizes = [(block.repeat, each * size) for block, node in graph.nodes() for size in tensors.of(block, node)]
        large = [(times, -(-size // ROUNDED) * ROUNDED) for times, size in sizes if size >= LARGE]
        count, total = sum(times for times, _ in large), sum(times * size for times, size in large)
        for least, most, segment in ((SMALL, LARGE, 20 << 20), (0, SMALL, 2 << 20)):
            shared = ceil(sum(times * size for times, size in sizes if least <= size < most) / segment)
            count, total = count + shared, total + shared * segment
        return cls(count, round(total))

    def seconds(self, machine: MachineSpec, held: int) -> tuple[float, float]:
        """What the driver takes for all of them, and how long memory that it is still wiping is waited for.

        `held` bytes are in use, as many as these were given back, and only what is left is clean."""
        has, rate = capacity(machine), _wipe_rate(machine)
        waited = 0.0
        if has is not None and rate is not None:
            clean = max(0, has - held - self.size)
            waited = max(0, self.size - clean) / rate
        return self.count * SEGMENT_S, waited


SMALL, LARGE, ROUNDED = 1 << 20, 10 << 20, 2 << 20
"""PyTorch, c10/cuda/CUDACachingAllocator.cpp: requests up to 1 MiB share segments of 2 MiB, those up to 10 MiB segments
of 20 MiB, and larger ones are rounded up to 2 MiB."""
SEGMENT_S = 1e-4
"""Seconds of the driver for one segment; fitted: BERT large trained on H100, which waits for its host."""


def _wipe_rate(machine: MachineSpec) -> float | None:
    level = next((level for level in machine.memory if isinstance(level, DramSpec)), None)
    if level is None or level.wipe_bandwidth is None:
        return None
    clock_hz = machine.clock_hz(level.clock)
    rate = level.wipe_bandwidth.bytes_per_cycle(clock_hz)
    return None if rate is None else float(rate * clock_hz)


def _live(block: GraphBlock, node: ModelNode, phase: Pass) -> int:
    """What lies in memory while an operation runs: what it reads and makes, and what came into the block."""
    came = phase.elements(block.nodes[0].inputs[0])
    return came + sum(phase.elements(flow) for flow in node.inputs) + phase.elements(node.out)


def _scores(node: ModelNode, phase: Pass) -> int:
    if not isinstance(node.op, Attention):
        return 0
    keys = phase.keys(node, node.op.causal, node.sizes.get("window"))
    return phase.batch * node.size("heads") * phase.queries(node) * keys


@dataclass(frozen=True)
class MemoryFit:
    """Whether a model fits a machine, and what would."""

    needed: int
    has: int | None
    largest_batch: int | None
    longest_context: int | None
    narrower: str | None
    """A format of weights with which it would fit."""

    @property
    def fits(self) -> bool:
        return self.has is None or self.needed <= self.has

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "fits": self.fits}


def find_fit(
    machine: MachineSpec,
    use: Callable[[int, int, str | None], MemoryUse],
    batch: int,
    context: int,
    formats: Sequence[str] = (),
) -> MemoryFit:
    """`use(batch, context, weights)` says what is needed; `formats` of weights are tried in their order."""
    needed, has = use(batch, context, None).total, capacity(machine)
    if has is None:
        return MemoryFit(needed, None, None, None, None)

    def fits(b: int, c: int, weights: str | None = None) -> bool:
        return use(b, c, weights).total <= has

    narrower = None
    if needed > has:
        narrower = next((name for name in formats if fits(batch, context, name)), None)
    return MemoryFit(
        needed,
        has,
        _largest(lambda b: fits(b, context), MOST_BATCH),
        _largest(lambda c: fits(batch, c), MOST_CONTEXT),
        narrower,
    )


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number that fits, 0 if none does; what is smaller than one that fits, fits too."""
    low, high = 0, 1
    while high < most and fits(high):
        low, high = high, 2 * high
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
