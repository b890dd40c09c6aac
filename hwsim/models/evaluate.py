"""The real math of a model in NumPy: every operation, on weights and activations as their formats store them.

`Rounding` says what storing does to weights, to activations and to kept keys and values; without one, everything is
float64, which is the reference. Products are summed wide, as accumulators do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hwsim.errors import InputError
from hwsim.models.count import WEIGHT_ONLY, Formats, is_narrowed, weights_of
from hwsim.models.graph import ModelGraph, ModelNode
from hwsim.numerics.format import Array, find_format
from hwsim.numerics.quantize import quantize
from hwsim.ops import model as ops
from hwsim.ops.conv_operator import convolved
from hwsim.ops.pointwise import POINTWISE
from hwsim.program.contraction import ConvShape

EPSILON = 1e-5
GROUP = 128
"""Weights of four or eight bits that share a scale, along the sum."""


class Weights(Protocol):
    """Where weights come from."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> Array:
        """The tensor of a name such as ``layer.0.qkv.weight``."""


@dataclass(frozen=True)
class RandomWeights:
    """Normal numbers over the root of the length of the sum; scales of norms near one. Equal seeds, equal weights."""

    seed: int = 0

    def tensor(self, name: str, shape: tuple[int, ...]) -> Array:
        generator = np.random.default_rng([self.seed, *name.encode()])
        last = name.rpartition(".")[2]
        if last.startswith("gamma"):
            return 1 + 0.1 * generator.standard_normal(shape)
        if last in ("beta", "bias"):
            return 0.1 * generator.standard_normal(shape)
        length = shape[-2] if len(shape) == 3 else int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        scale = 1.0 if last in ("table", "token") else 1 / np.sqrt(length)
        return np.asarray(scale * generator.standard_normal(shape))


@dataclass(frozen=True)
class GivenWeights:
    """Tensors by name, from a file; a missing one or one of another shape is refused."""

    tensors: Mapping[str, Array]
    file: str

    def tensor(self, name: str, shape: tuple[int, ...]) -> Array:
        if name not in self.tensors:
            raise InputError(f"{self.file}: there is no tensor {name!r}, which has to be {_shape(shape)}")
        found = np.asarray(self.tensors[name], dtype=np.float64)
        if found.shape != shape:
            raise InputError(f"{self.file}: {name}: its shape is {_shape(found.shape)}, and has to be {_shape(shape)}")
        return found


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)


@dataclass(frozen=True)
class ModelRounding:
    """What the formats of a model do to its numbers."""

    numbers: Formats

    def weight(self, values: Array, narrow: bool) -> Array:
        name = self.numbers.weights if narrow else self.numbers.activations
        if name in WEIGHT_ONLY:
            axis = -2 if values.ndim > 1 else -1
            block = min(GROUP, values.shape[axis])
            return _scaled(values, "int4" if name == "w4a16" else "int8", "block", axis, block)
        return _stored(values, name, -2 if values.ndim > 1 else -1)

    def factor(self, values: Array, narrow: bool) -> Array:
        """The left side of a product with weights: rounded to their format where that is a narrow one."""
        if narrow and self.numbers.rounds:
            return _stored(values, self.numbers.weights, -1)
        return values

    def activation(self, values: Array) -> Array:
        return _stored(values, self.numbers.activations, -1)

    def kept(self, values: Array) -> Array:
        return _stored(values, self.numbers.kv, -1)


EXACT = ModelRounding(Formats("", "", ""))
"""Nothing is rounded."""


def _stored(values: Array, name: str, axis: int) -> Array:
    """Rounded to a format, if one is named; short ranges have a scale for each row along the sum."""
    if not name:
        return values
    fmt = find_format(name)
    if fmt.is_integer or name.startswith("fp8"):
        return _scaled(values, name, "row", axis, 1)
    return np.asarray(fmt.load(fmt.store(values, saturate=True)), dtype=np.float64)


def _scaled(values: Array, name: str, per: Any, axis: int, block: int) -> Array:
    held = quantize(np.asarray(values), find_format(name), per, axis=axis, block=max(2, block))
    return np.asarray(held.dequantize(), dtype=np.float64).reshape(values.shape)


def evaluate(
    graph: ModelGraph, weights: Weights, given: Array, rounding: ModelRounding, source: Array | None = None
) -> Array:
    """What the model answers: `given` are token numbers [batch, tokens] or images [batch, channels, height, width].

    A model that reads a source is given that too. Every repetition of a block has weights of its own.
    """
    return _Run(graph, weights, rounding).whole(given, source)


class _Run:
    """One pass through a graph."""

    def __init__(self, graph: ModelGraph, weights: Weights, rounding: ModelRounding) -> None:
        self.graph, self.weights, self.rounding = graph, weights, rounding
        self.source: Array | None = None
        self.table: Array | None = None

    def whole(self, given: Array, source: Array | None) -> Array:
        made: dict[str, Array] = {}
        flow = given if source is None else source
        for number, block in enumerate(self.graph.blocks):
            came = flow
            for repetition in range(block.repeat):
                came = self._block(block.name, repetition, block.nodes, came, made)
            flow = made[block.name] = came
            later = self.graph.blocks[number + 1 : number + 2]
            if block.stream == "source" and later and later[0].stream != "source":
                self.source, flow = flow, given
        return flow

    def _block(
        self, name: str, repetition: int, nodes: tuple[ModelNode, ...], came: Array, made: dict[str, Array]
    ) -> Array:
        known: dict[str, Array] = {"input": came}
        if self.source is not None:
            known["source"] = self.source
        value = came
        for node in nodes:
            inputs = [known[each] for each in node.makers]
            if len(node.inputs) > len(inputs):  # a block that several others come into
                inputs = [made[each] for each in self.graph.block_inputs[name]]
            self.prefix = f"{name}.{repetition}.{node.name}"
            value = known[node.name] = self.rounding.activation(RULES[type(node.op)](self, node, inputs))
        return value

    def weight(self, node: ModelNode, name: str) -> Array:
        shape = weights_of(node)[name]
        found = self.weights.tensor(f"{self.prefix}.{name}", shape)
        if isinstance(node.op, ops.ConvLayer):  # the sum runs over all but the first axis
            flat = self.rounding.weight(found.reshape(shape[0], -1).T, True)
            return flat.T.reshape(shape)
        return self.rounding.weight(found, is_narrowed(node) and len(shape) > 1 and name != "router")


def _linear(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    assert isinstance(node.op, ops.Linear)
    if node.op.tied:
        assert run.table is not None
        weight = run.table.T
    else:
        weight = run.weight(node, "weight")
    found = run.rounding.factor(inputs[0], is_narrowed(node)) @ weight
    return found + run.weight(node, "bias") if node.op.bias else found


def _embedding(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    run.table = run.weight(node, "table")
    return np.asarray(run.table[inputs[0].astype(np.int64) % node.size("rows")])


def _positions(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    table = run.weight(node, "table")
    rows = np.arange(inputs[0].shape[1]) % len(table)
    return np.asarray(inputs[0] + table[rows])


def _norm(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    assert isinstance(node.op, ops.Norm)
    x, gamma = inputs[0], run.weight(node, "gamma")
    beta = run.weight(node, "beta") if "beta" in weights_of(node) else np.zeros(1)
    if node.op.op == "rmsnorm":
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * gamma)
    if x.ndim == 4:  # over each channel, as batch norm with known statistics does: scale and shift
        shape = (1, -1, 1, 1)
        if node.op.op == "batch_norm":
            return np.asarray(x * gamma.reshape(shape) + beta.reshape(shape))
        mean, variance = x.mean((1, 2, 3), keepdims=True), x.var((1, 2, 3), keepdims=True)
        return np.asarray((x - mean) / np.sqrt(variance + EPSILON) * gamma.reshape(shape) + beta.reshape(shape))
    mean = x.mean(-1, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + EPSILON) * gamma + beta)


def _head_norm(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    """The first heads are queries: as many as there are more of than keys."""
    x, z = inputs[0].copy(), node.sizes
    part = z["heads"] * z["head_dim"]
    heads = x[..., :part].reshape(*x.shape[:-1], z["heads"], z["head_dim"])
    scaled = heads / np.sqrt((heads * heads).mean(-1, keepdims=True) + EPSILON)
    x[..., :part] = (scaled * run.weight(node, "gamma_q")).reshape(*x.shape[:-1], part)
    return np.asarray(x)


def _rope(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    x, z = inputs[0].copy(), node.sizes
    width = x.shape[-1]
    heads = z["heads"]
    each = z["head_dim"] if heads * z["head_dim"] <= width else width // heads
    turned = each // 2 * 2
    part = x[..., : heads * each].reshape(*x.shape[:-1], heads, each)
    angles = np.arange(x.shape[1])[:, None] / 10000 ** (np.arange(turned // 2) * 2 / turned)
    even, odd = part[..., 0:turned:2].copy(), part[..., 1:turned:2].copy()
    cosine, sine = np.cos(angles)[None, :, None], np.sin(angles)[None, :, None]
    part[..., 0:turned:2], part[..., 1:turned:2] = even * cosine - odd * sine, even * sine + odd * cosine
    x[..., : heads * each] = part.reshape(*x.shape[:-1], heads * each)
    return np.asarray(x)


def _attention(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    assert isinstance(node.op, ops.Attention)
    z = node.sizes
    heads, kv, dim, out = z["heads"], z["kv_heads"], z["head_dim"], z.get("value_dim", z["head_dim"])
    if len(inputs) == 3:
        q, k, v = inputs
    elif len(inputs) == 2:
        q, (k, v) = inputs[0], np.split(inputs[1], [kv * dim], axis=-1)
    else:
        q, k, v = np.split(inputs[0], [heads * dim, (heads + kv) * dim], axis=-1)
    q = q.reshape(*q.shape[:2], heads, dim).transpose(0, 2, 1, 3)
    k = run.rounding.kept(k.reshape(*k.shape[:2], kv, dim)).transpose(0, 2, 1, 3)
    v = run.rounding.kept(v.reshape(*v.shape[:2], kv, out)).transpose(0, 2, 1, 3)
    causal = node.op.causal and not node.op.cross
    return _mixed(q, k, v, causal, z.get("window"))


def _mixed(q: Array, k: Array, v: Array, causal: bool, window: int | None = None) -> Array:
    """softmax(q kᵀ / √d) v by heads; heads of keys are shared evenly."""
    shared = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    if causal:
        rows, columns = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
        seen = columns <= rows + k.shape[2] - q.shape[2]
        if window is not None:
            seen &= columns > rows + k.shape[2] - q.shape[2] - window
        scores = np.where(seen, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    found = powers / powers.sum(-1, keepdims=True) @ v
    return np.asarray(found.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1))


def _latent(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    z = node.sizes
    heads, dim, rope, out = z["heads"], z["head_dim"], z["rope_dim"], z["value_dim"]
    q, latent, turned = inputs[0], run.rounding.kept(inputs[1]), run.rounding.kept(inputs[2])
    made = latent @ run.weight(node, "up")
    made = made.reshape(*made.shape[:2], heads, dim + out)
    common = np.broadcast_to(turned[:, :, None], (*turned.shape[:2], heads, rope))
    k = np.concatenate([made[..., :dim], common], axis=-1).transpose(0, 2, 1, 3)
    v = made[..., dim:].transpose(0, 2, 1, 3)
    q = q.reshape(*q.shape[:2], heads, dim + rope).transpose(0, 2, 1, 3)
    return _mixed(q, k, v, True)


def _experts(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    assert isinstance(node.op, ops.Experts)
    x, z = inputs[0].reshape(-1, inputs[0].shape[-1]), node.sizes
    logits = x @ run.weight(node, "router")
    best = np.argsort(-logits, axis=-1, kind="stable")[:, : z["top_k"]]
    gates = np.exp(np.take_along_axis(logits, best, -1) - logits.max(-1, keepdims=True))
    gates /= gates.sum(-1, keepdims=True)
    up, down = run.weight(node, "expert_up"), run.weight(node, "expert_down")
    found = np.zeros_like(x)
    for expert in range(z["experts"]):
        rows, slots = np.nonzero(best == expert)
        if len(rows):
            inside = _activated(run.rounding.factor(x[rows], True) @ up[expert], node.op.gated)
            found[rows] += gates[rows, slots][:, None] * (run.rounding.factor(inside, True) @ down[expert])
    if z.get("shared"):
        inside = _activated(x @ run.weight(node, "shared_up")[0], node.op.gated)
        found += inside @ run.weight(node, "shared_down")[0]
    return found.reshape(inputs[0].shape)


def _activated(x: Array, gated: bool) -> Array:
    return POINTWISE["swiglu"].check(*np.split(x, 2, axis=-1)) if gated else np.maximum(x, 0)


def _gelu(x: Array) -> Array:
    return np.asarray(x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2)


ELEMENTS: Mapping[str, Callable[[Array], Array]] = {
    **{name: POINTWISE[name].check for name in ("relu", "silu", "tanh", "sigmoid")},
    "gelu": _gelu, "gelu_new": _gelu, "swish": POINTWISE["silu"].check,
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)), "relu6": lambda x: np.clip(x, 0, 6),
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6, "scale": lambda x: x / 2,
}  # fmt: skip
"""What stands for an activation of a model file; `scale` is by any number."""


def _pointwise(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    x, word = inputs[0], node.word
    if word == "add":
        return sum(inputs[1:], x)
    if word == "mul":
        return np.asarray(np.prod(np.stack(np.broadcast_arrays(*inputs)), axis=0))
    if word in ("swiglu", "geglu"):
        first, second = np.split(x, 2, axis=-1) if len(inputs) == 1 else inputs
        return np.asarray(ELEMENTS["silu" if word == "swiglu" else "gelu"](first) * second)
    if word == "softmax":
        powers = np.exp(x - x.max(-1, keepdims=True))
        return np.asarray(powers / powers.sum(-1, keepdims=True))
    return np.asarray(ELEMENTS[word](x))


def _conv(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    assert isinstance(node.op, ops.ConvLayer) and node.flow.image is not None
    x, z, weight = run.rounding.factor(inputs[0], True), node.sizes, run.weight(node, "weight")
    if node.op.transposed:
        found = _grown(x, weight, z, node)
    else:
        kernel, stride, padding = (node.sides(name) for name in ("kernel", "stride", "padding"))
        moves = len(x), stride, padding, (1, 1), z["groups"]
        found = convolved(x, weight, ConvShape(x.shape[1], len(weight), node.flow.image, kernel, *moves))
    return found + run.weight(node, "bias").reshape(1, -1, 1, 1) if node.op.bias else found


def _grown(x: Array, weight: Array, z: Mapping[str, int], node: ModelNode) -> Array:
    """A transposed convolution: every place of the image adds a window."""
    assert node.out.image is not None
    (s, t), (p, q), (r, c) = node.sides("stride"), node.sides("padding"), node.sides("kernel")
    height, width = node.out.image
    out = np.zeros((x.shape[0], z["channels"], height + 2 * p, width + 2 * q))
    each = np.einsum("bchw,ocij->bohwij", x, weight)
    for i in range(x.shape[2]):
        for j in range(x.shape[3]):
            out[:, :, i * s : i * s + r, j * t : j * t + c] += each[:, :, i, j]
    return out[:, :, p : p + height, q : q + width]


def _pool(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    largest = node.word == "maxpool"
    (p, q), (s, t) = node.sides("padding"), node.sides("stride")
    x = np.pad(inputs[0], ((0, 0), (0, 0), (p, p), (q, q)), constant_values=-np.inf if largest else 0.0)
    windows = sliding_window_view(x, node.sides("kernel"), axis=(2, 3))[:, :, ::s, ::t]
    return np.asarray(windows.max((-1, -2)) if largest else windows.mean((-1, -2)))


def _reshape(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    x = inputs[0]
    match node.word:
        case "global_avgpool":
            return np.asarray(x.mean((2, 3)))[:, None]
        case "flatten":
            return x.reshape(x.shape[0], 1, -1)
        case "to_tokens":
            return np.asarray(x.reshape(*x.shape[:2], -1).transpose(0, 2, 1))
        case "mean_tokens":
            return np.asarray(x.mean(1, keepdims=True))
        case "first_token":
            return x[:, :1]
        case "class_token":
            token = np.broadcast_to(run.weight(node, "token"), (x.shape[0], 1, x.shape[2]))
            return np.concatenate([token, x], axis=1)
        case "transpose":
            return np.asarray(x.transpose(0, 2, 1))
        case "concat":
            return np.concatenate(inputs, axis=1 if x.ndim == 4 else -1)
        case "upsample":
            return np.asarray(x.repeat(2, axis=2).repeat(2, axis=3))
    return x


def _view(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    assert isinstance(node.op, ops.ViewLayer)
    x, makes = inputs[0], node.op.makes
    shape = makes if len(makes) == 3 else makes if len(makes) == 2 else (1, *makes)
    if x[0].size != int(np.prod(shape)):
        raise InputError(f"{node.name}: numbers from elsewhere cannot be computed with")
    return x.reshape(x.shape[0], *shape)


def _product(run: _Run, node: ModelNode, inputs: list[Array]) -> Array:
    assert isinstance(node.op, ops.ProductLayer)
    if not node.op.weights:
        raise InputError(f"{node.name}: a product of two computed tensors has no math here")
    x = inputs[0].reshape(inputs[0].shape[0], node.size("batch"), node.size("m"), node.size("k"))
    found = x @ run.weight(node, "weight")
    return found.reshape(x.shape[0], -1, node.size("n"))


RULES: Mapping[type[Any], Callable[[_Run, ModelNode, list[Array]], Array]] = {
    ops.Linear: _linear, ops.Embedding: _embedding, ops.Positions: _positions, ops.Norm: _norm,
    ops.HeadNorm: _head_norm, ops.Rope: _rope, ops.Attention: _attention, ops.LatentAttention: _latent,
    ops.Experts: _experts, ops.PointwiseLayer: _pointwise, ops.ConvLayer: _conv, ops.Pool: _pool,
    ops.Reshape: _reshape, ops.ViewLayer: _view, ops.ProductLayer: _product,
}  # fmt: skip


def has_math(node: ModelNode) -> bool:
    """Whether what an operation computes is known; numbers from elsewhere and products of them are not."""
    if isinstance(node.op, ops.ViewLayer):
        rows = node.flow.rows if isinstance(node.flow.rows, int) else 0
        return rows * node.flow.per_row == prod(node.op.makes)
    return type(node.op) in RULES and (not isinstance(node.op, ops.ProductLayer) or node.op.weights)


def tensor_names(graph: ModelGraph) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor of weights, as a file of weights has to name it: ``layer.0.qkv.weight``."""
    for block in graph.blocks:
        for repetition in range(block.repeat):
            for node in block.nodes:
                for name, shape in weights_of(node).items():
                    yield f"{block.name}.{repetition}.{node.name}.{name}", shape
