"""The backward pass and the update of weights, kernel by kernel.

Every product has two in its backward pass: one for the gradient of what came in, one for that of the weights. A pass
over elements has as many as it had operands, a softmax and a norm one and a half. Under `recompute` the forward pass of
a block that repeats runs once more.
"""

from __future__ import annotations

from collections.abc import Iterator

from hwsim.models.count import parameters, parameters_of
from hwsim.models.graph import GraphBlock, ModelGraph, ModelNode
from hwsim.models.kernels import KernelCall, KernelLowering, touch
from hwsim.ops.model import (
    Attention,
    ConvLayer,
    Embedding,
    Experts,
    LatentAttention,
    Linear,
    Norm,
    Positions,
    ProductLayer,
)

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
        case Linear(bias=bias):
            rows, n, k = low.phase.rows(node.out), node.size("out"), node.flow.width
            found = [*low.matmul(rows, k, n, weights=False), *low.matmul(k, n, rows, weights=False)]
            if bias:  # its gradient is a sum over rows
                found.append(low.touch(low.phase.elements(node.out) / 2))
            return [*found, *_gathered(low, node)]
        case Embedding() | Positions():
            return [low.touch(low.phase.elements(node.out) * 1.5), *_gathered(low, node)]
        case Norm():
            return [call.times(BACK_OF_NORM) for call in calls] + _gathered(low, node)
        case Attention() | LatentAttention():
            return [_back_of_attention(call) for call in reversed(calls)]
        case ConvLayer() | ProductLayer() | Experts():
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
    pieces = max(1, -(-count // MOST_ELEMENTS))
    each = -(-count // pieces)
    if optimizer == "adam":
        return [KernelCall("adam", "fp32", (("n", each),), count=pieces)]
    return [touch(each, low.numbers.activations, "add").times(pieces)]


MOST_ELEMENTS = 1 << 28
"""Weights that one kernel of an optimizer updates."""
