"""What a model holds and computes: weights, multiply-adds, keys and values that are kept. Exact, without a machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hwsim.models.graph import TOKENS, ModelGraph, ModelNode
from hwsim.models.phase import Pass
from hwsim.ops.model import (
    Attention,
    ConvLayer,
    Embedding,
    Experts,
    HeadNorm,
    LatentAttention,
    Linear,
    Norm,
    Positions,
    ProductLayer,
    Reshape,
)

Shapes = dict[str, tuple[int, ...]]
"""Tensors of weights by name."""


def weights_of(node: ModelNode) -> Shapes:
    """The tensors of weights of an operation, with their shapes."""
    z, width = node.sizes, node.flow.width
    match node.op:
        case Linear(tied=tied, bias=bias):
            made: Shapes = {} if tied else {"weight": (width, z["out"])}
            return made | ({"bias": (z["out"],)} if bias else {})
        case Embedding():
            return {"table": (z["rows"], z["width"])}
        case Positions():
            return {"table": (z["rows"], width)}
        case Norm(op="rmsnorm"):
            return {"gamma": (width,)}
        case Norm(offset=offset):
            scales: Shapes = {"gamma": (width,)}
            return scales | ({"beta": (width,)} if offset else {})
        case HeadNorm():
            return {"gamma_q": (z["head_dim"],), "gamma_k": (z["head_dim"],)}
        case LatentAttention():
            return {"up": (z["rank"], z["heads"] * (z["head_dim"] + z["value_dim"]))}
        case Experts(gated=gated):
            return {"router": (width, z["experts"])} | _expert_weights(z, width, gated)
        case ConvLayer(bias=bias):
            kernel = z.get("kernel.0", z["kernel"]), z.get("kernel.1", z["kernel"])
            found: Shapes = {"weight": (z["channels"], width // z["groups"], *kernel)}
            return found | ({"bias": (z["channels"],)} if bias else {})
        case Reshape(op="class_token"):
            return {"token": (width,)}
        case ProductLayer(weights=True):
            return {"weight": (z["batch"], z["k"], z["n"])}
    return {}


def _expert_weights(z: dict[str, int], width: int, gated: bool) -> Shapes:
    found: Shapes = {}
    for name, inner, count in (("expert", z["inner"], z["experts"]), ("shared", z.get("shared", 0), 1)):
        if inner:
            found[f"{name}_up"] = (count, width, inner * (2 if gated else 1))
            found[f"{name}_down"] = (count, inner, width)
    return found


def is_narrowed(node: ModelNode) -> bool:
    """Whether an operation's weights are in the format of weights: the head and tables stay as wide as activations."""
    if isinstance(node.op, Linear):
        return node.op.rows_of != "last"
    return isinstance(node.op, ConvLayer | Experts | LatentAttention | ProductLayer)


def parameters_of(node: ModelNode) -> int:
    total = 0
    for shape in weights_of(node).values():
        size = 1
        for extent in shape:
            size *= extent
        total += size
    return total


def active_parameters_of(node: ModelNode) -> int:
    """Those that one token meets: of the experts, the chosen ones."""
    if not isinstance(node.op, Experts):
        return 0 if isinstance(node.op, Embedding | Positions) else parameters_of(node)
    z, whole = node.sizes, parameters_of(node)
    each = z["inner"] * node.flow.width * (3 if node.op.gated else 2)
    return whole - (z["experts"] - min(z["top_k"], z["experts"])) * each


@dataclass(frozen=True)
class Expected:
    """How tokens meet experts, where each token chooses any of them alike."""

    busy: int
    """Experts that at least one token chose."""
    tokens: int
    """Tokens of each of those, rounded up."""


def expected_experts(tokens: int, experts: int, top_k: int) -> Expected:
    """The mean number of experts that are chosen at all is E (1 - (1 - k/E)^tokens)."""
    chosen = min(top_k, experts)
    missed = (1 - chosen / experts) ** tokens if chosen < experts else 0.0
    busy = max(1, min(experts, round(experts * (1 - missed))))
    return Expected(busy, ceil(tokens * chosen / busy))


def macs_of(node: ModelNode, phase: Pass) -> int:
    """Multiply-adds of one repetition."""
    z, rows, width = node.sizes, phase.rows(node.out), node.flow.width
    match node.op:
        case Linear():
            return rows * node.flow.width * z["out"]
        case Attention(causal=causal):
            queries = phase.queries(node)
            keys = phase.keys(node, causal, z.get("window"))
            pairs = _pairs(queries, keys, causal and not node.op.cross, z.get("window"), phase.cached)
            return phase.batch * z["heads"] * pairs * (z["head_dim"] + z.get("value_dim", z["head_dim"]))
        case LatentAttention():
            queries, keys = phase.queries(node), phase.context
            pairs = _pairs(queries, keys, True, None, phase.cached)
            up = z["rank"] * z["heads"] * (z["head_dim"] + z["value_dim"])
            if phase.cached and phase.tokens == 1:  # queries are brought to the latent vectors
                return phase.batch * (up + z["heads"] * pairs * (2 * z["rank"] + z["rope_dim"]))
            return phase.batch * (keys * up + z["heads"] * pairs * (z["head_dim"] + z["rope_dim"] + z["value_dim"]))
        case Experts(capacity=None):
            return rows * active_parameters_of(node)
        case Experts(gated=gated):
            computed = phase.batch * z["capacity"] * z["experts"]
            return width * (rows * z["experts"] + computed * z["inner"] * (3 if gated else 2))
        case ConvLayer():
            window = z.get("kernel.0", z["kernel"]) * z.get("kernel.1", z["kernel"])
            image = (node.flow if node.op.transposed else node.out).image
            assert image is not None
            return rows * image[0] * image[1] * z["channels"] * (node.flow.width // z["groups"]) * window
        case ProductLayer():
            return phase.batch * z["batch"] * z["m"] * z["n"] * z["k"]
    return 0


def _pairs(queries: int, keys: int, causal: bool, window: int | None, cached: int) -> int:
    """Pairs of a query and a key that it sees."""
    if not causal:
        return queries * keys
    seen = queries * cached + queries * (queries + 1) // 2
    if window is None:
        return seen
    short = min(queries, max(0, window - cached))
    return short * cached + short * (short + 1) // 2 + (queries - short) * window


def kept_of(node: ModelNode) -> int:
    """Numbers that are kept for each token: keys and values, or the latent vector."""
    z = node.sizes
    match node.op:
        case Attention(causal=True, cross=False) if node.out.rows == TOKENS:
            return z["kv_heads"] * (z["head_dim"] + z.get("value_dim", z["head_dim"]))
        case LatentAttention():
            return z["rank"] + z["rope_dim"]
    return 0


def window_of(node: ModelNode) -> int | None:
    return node.sizes.get("window") if isinstance(node.op, Attention) else None


def parameters(graph: ModelGraph) -> int:
    """All weights of the graph."""
    return sum(block.repeat * parameters_of(node) for block, node in graph.nodes())


def active_parameters(graph: ModelGraph) -> int:
    """Weights that one token meets, tables of embeddings left out."""
    tied = sum(
        block.repeat * node.flow.width * node.size("out")
        for block, node in graph.nodes()
        if isinstance(node.op, Linear) and node.op.tied
    )
    return tied + sum(block.repeat * active_parameters_of(node) for block, node in graph.nodes())


def macs(graph: ModelGraph, phase: Pass) -> int:
    """Multiply-adds of one pass."""
    return sum(block.repeat * macs_of(node, phase) for block, node in graph.nodes() if phase.runs(block, node))


def kept_per_token(graph: ModelGraph) -> int:
    """Numbers in the key/value cache for each token of a long text."""
    return sum(block.repeat * kept_of(node) for block, node in graph.nodes())


def kept(graph: ModelGraph, context: int, source: int = 0) -> int:
    """Numbers in the cache of one sequence of this length; windows are kept no longer than they are, and keys and
    values of a source as long as it is."""
    total = 0
    for block, node in graph.nodes():
        window = window_of(node)
        total += block.repeat * kept_of(node) * (context if window is None else min(context, window))
        if isinstance(node.op, Attention) and node.op.cross:
            z = node.sizes
            total += block.repeat * source * z["kv_heads"] * (z["head_dim"] + z.get("value_dim", z["head_dim"]))
    return total
