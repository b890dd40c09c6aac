"""What a model needs of a machine's memory, whether that fits, and what would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from hwsim.models.count import is_narrowed, kept, weights_of
from hwsim.models.graph import GraphBlock, ModelGraph, ModelNode
from hwsim.models.kernels import EAGER, SERVING
from hwsim.models.numbers import Formats, stored_bits
from hwsim.models.phase import Pass
from hwsim.ops.model import Attention
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import DramSpec

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
    optimizer: str = "none",
) -> MemoryUse:  # fmt: skip
    """The fullest moment of a phase; `context` is the length that sequences grow to."""
    weights = weight_bytes(graph, numbers)
    if phase.name == "train":
        return _training(graph, numbers, phase, weights, kernels, recompute, optimizer)
    cached = round(numbers.kv_bytes(phase.batch * kept(graph, context, phase.source))) if graph.is_generative else 0
    if kernels == SERVING:
        phase = replace(phase, tokens=max(1, min(phase.tokens, CHUNK_TOKENS // phase.batch)))
    live = max(_live(block, node, phase) for block, node in graph.nodes() if phase.runs(block, node))
    scores = max((_scores(node, phase) for _, node in graph.nodes()), default=0) if kernels == EAGER else 0
    return MemoryUse(
        weights, cached, round(numbers.activation_bytes(live)), round(numbers.activation_bytes(2 * scores))
    )


def _training(
    graph: ModelGraph, numbers: Formats, phase: Pass, weights: int, kernels: str, recompute: bool, optimizer: str
) -> MemoryUse:
    count = weights * 8 / stored_bits(numbers.weights)
    narrow = stored_bits(numbers.weights) < MASTER_BITS
    states = {"adam": 2, "sgd": 0, "none": 0}[optimizer] + (1 if narrow and optimizer != "none" else 0)
    stored, largest = 0, 0
    for block in graph.blocks:
        own = sum(_stored(node, phase, kernels) // graph.keeps(block.name, node.name) for node in block.nodes)
        came = phase.elements(block.nodes[0].inputs[0]) // (graph.tp if graph.scattered else 1)
        stored += block.repeat * (came if recompute else own)
        largest = max(largest, own)
    kept_bytes = numbers.activation_bytes(stored + (largest if recompute else 0))
    return MemoryUse(weights, 0, round(kept_bytes), 0, weights, round(states * count * MASTER_BITS / 8))


def _stored(node: ModelNode, phase: Pass, kernels: str) -> int:
    """What the backward pass needs of an operation: its result, and the scores of attention where they are in
    memory."""
    scores = _scores(node, phase) * 2 if kernels == EAGER else 0
    return phase.elements(node.out) + scores


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
