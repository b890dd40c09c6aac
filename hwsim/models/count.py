"""What a model holds and computes: weights, multiply-adds, keys and values that are kept. Exact, without a machine.

How a model is run: number formats by part, and phases.

Weights, activations and kept keys and values have formats of their own. Phases are reading a prompt, making one token
after it, one pass over all, a step of training.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Final, Literal

from hwsim.models.graph import LAST, SOURCE, TOKENS, Flow, GraphBlock, ModelGraph, ModelNode
from hwsim.numerics.datapath import find_datapath
from hwsim.ops import model as ops

FORMATS = {"fp8": "fp8_e4m3", "int4": "w4a16"}
"""Short names: int4 stands for weights of four bits, which are multiplied in 16."""
WEIGHT_ONLY = ("w8a16", "w4a16")
WIDE = ("fp32", "tf32", "bf16", "fp16")
"""Formats in which everything but products is computed."""


@dataclass(frozen=True)
class Formats:
    """Formats of the parts of a model."""

    weights: str
    activations: str
    kv: str

    @classmethod
    def of(cls, model: ops.ModelWorkload) -> Formats:
        """As the file and the command line say; what is not said follows from the precision of the model."""
        use, base = model.use, FORMATS.get(str(model.precision), str(model.precision))
        weights = FORMATS.get(use.weights or "", use.weights) or base
        given = FORMATS.get(use.activations or "", use.activations)
        activations = given or (base if base not in WEIGHT_ONLY else "fp16")
        if given is None and activations.startswith(("fp8", "mx")):
            activations = "bf16"
        kv = FORMATS.get(use.kv or "", use.kv) or activations
        return cls(weights, activations, "fp16" if kv in WEIGHT_ONLY else kv)

    @property
    def product(self) -> str:
        """The precision of a product of activations with weights, as a workload says it."""
        return self.weights

    @property
    def rounds(self) -> bool:
        """Whether activations are rounded to the narrower format of the weights before they are multiplied."""
        return self.weights != self.activations and self.weights not in (*WEIGHT_ONLY, *WIDE)

    def activation_bytes(self, count: int) -> float:
        return count * stored_bits(self.activations) / 8

    def kv_bytes(self, count: int) -> float:
        return count * stored_bits(self.kv) / 8

    def words(self) -> str:
        """`bf16`, or the parts where they differ."""
        if self.weights == self.activations == self.kv:
            return self.weights
        return f"weights {self.weights}, activations {self.activations}, kv {self.kv}"


def stored_bits(precision: str) -> float:
    """Bits of a stored weight, activation or key in memory, without scales."""
    return float(find_datapath(precision).stored_bits_b)


PREFILL: Final = "prefill"
DECODE: Final = "decode"
FORWARD: Final = "forward"
TRAIN: Final = "train"


@dataclass(frozen=True)
class Pass:
    """One pass through the graph: how many sequences, how many new tokens of each, and how many before them."""

    name: Literal["prefill", "decode", "forward", "train"]
    batch: int
    tokens: int
    """New tokens of each sequence."""
    cached: int = 0
    """Tokens before them, whose keys and values are kept."""
    source: int = 0
    """Tokens of the source, where the model reads one."""

    @property
    def context(self) -> int:
        """Tokens that a new one may look at."""
        return self.cached + self.tokens

    def rows(self, flow: Flow) -> int:
        """Rows of all sequences together; of images, the images."""
        if isinstance(flow.rows, int):
            return self.batch * flow.rows
        if flow.rows == LAST:
            return self.batch * (1 if self.name in (PREFILL, DECODE) else self.tokens)
        return self.batch * (self.source if flow.rows == SOURCE else self.tokens)

    def elements(self, flow: Flow) -> int:
        return self.rows(flow) * flow.per_row

    def runs(self, block: GraphBlock, node: ModelNode) -> bool:
        """What was made of the source stays; it is not made again for every token."""
        if self.name != DECODE:
            return True
        return SOURCE not in (block.stream, node.out.rows) and set(node.makers) != {SOURCE}

    def keys(self, node: ModelNode, causal: bool, window: int | None) -> int:
        """Keys that the tokens of a sequence look at."""
        if node.op.cross:  # type: ignore[attr-defined]
            return self.source
        if isinstance(node.out.rows, int):
            return node.out.rows
        if node.out.rows == SOURCE:
            return self.source
        if not causal:
            return self.tokens
        return self.context if window is None else min(self.context, window + self.tokens - 1)

    def queries(self, node: ModelNode) -> int:
        """Rows of one sequence that look."""
        return self.rows(node.out) // self.batch


def prefill(batch: int, tokens: int, cached: int = 0, source: int = 0) -> Pass:
    """A prompt is read at once, and the next token found."""
    return Pass(PREFILL, batch, tokens, cached, source)


def decode(batch: int, context: int, source: int = 0) -> Pass:
    """One token for each sequence, after `context` others."""
    return Pass(DECODE, batch, 1, context, source)


def forward(batch: int, tokens: int, source: int = 0) -> Pass:
    """One pass, with results for all tokens."""
    return Pass(FORWARD, batch, tokens, 0, source)


def train(batch: int, tokens: int, source: int = 0) -> Pass:
    """Forward, backward, and new weights."""
    return Pass(TRAIN, batch, tokens, 0, source)


Shapes = dict[str, tuple[int, ...]]
"""Tensors of weights by name."""


def weights_of(node: ModelNode) -> Shapes:
    """The tensors of weights of an operation, with their shapes."""
    z, width = node.sizes, node.flow.width
    match node.op:
        case ops.Linear(tied=tied, bias=bias):
            made: Shapes = {} if tied else {"weight": (width, z["out"])}
            return made | ({"bias": (z["out"],)} if bias else {})
        case ops.Embedding():
            return {"table": (z["rows"], z["width"])}
        case ops.Positions():
            return {"table": (z["rows"], width)}
        case ops.Norm(op="rmsnorm"):
            return {"gamma": (width,)}
        case ops.Norm(offset=offset):
            scales: Shapes = {"gamma": (width,)}
            return scales | ({"beta": (width,)} if offset else {})
        case ops.HeadNorm():
            return {"gamma_q": (z["head_dim"],), "gamma_k": (z["head_dim"],)}
        case ops.LatentAttention():
            return {"up": (z["rank"], z["heads"] * (z["head_dim"] + z["value_dim"]))}
        case ops.Experts(gated=gated):
            return {"router": (width, z["experts"])} | _expert_weights(z, width, gated)
        case ops.ConvLayer(bias=bias):
            found: Shapes = {"weight": (z["channels"], width // z["groups"], *node.sides("kernel"))}
            return found | ({"bias": (z["channels"],)} if bias else {})
        case ops.Reshape(op="class_token"):
            return {"token": (width,)}
        case ops.ProductLayer(weights=True):
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
    if isinstance(node.op, ops.Linear):
        return node.op.rows_of != "last"
    return isinstance(node.op, ops.ConvLayer | ops.Experts | ops.LatentAttention | ops.ProductLayer)


def parameters_of(node: ModelNode) -> int:
    return sum(prod(shape) for shape in weights_of(node).values())


def active_parameters_of(node: ModelNode) -> int:
    """Those that one token meets: of the experts, the chosen ones."""
    if not isinstance(node.op, ops.Experts):
        return 0 if isinstance(node.op, ops.Embedding | ops.Positions) else parameters_of(node)
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
        case ops.Linear():
            return rows * node.flow.width * z["out"]
        case ops.Attention(causal=causal):
            queries = phase.queries(node)
            keys = phase.keys(node, causal, z.get("window"))
            pairs = _pairs(queries, keys, causal and not node.op.cross, z.get("window"), phase.cached)
            return phase.batch * z["heads"] * pairs * (z["head_dim"] + z.get("value_dim", z["head_dim"]))
        case ops.LatentAttention():
            queries, keys = phase.queries(node), phase.context
            pairs = _pairs(queries, keys, True, None, phase.cached)
            up = z["rank"] * z["heads"] * (z["head_dim"] + z["value_dim"])
            if phase.cached and phase.tokens == 1:  # queries are brought to the latent vectors
                return phase.batch * (up + z["heads"] * pairs * (2 * z["rank"] + z["rope_dim"]))
            return phase.batch * (keys * up + z["heads"] * pairs * (z["head_dim"] + z["rope_dim"] + z["value_dim"]))
        case ops.Experts(capacity=None):
            return rows * active_parameters_of(node)
        case ops.Experts(gated=gated):
            computed = phase.batch * z["capacity"] * z["experts"]
            return width * (rows * z["experts"] + computed * z["inner"] * (3 if gated else 2))
        case ops.ConvLayer():
            image = (node.flow if node.op.transposed else node.out).image
            assert image is not None
            return rows * prod(image) * z["channels"] * (node.flow.width // z["groups"]) * prod(node.sides("kernel"))
        case ops.ProductLayer():
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
        case ops.Attention(causal=True, cross=False) if node.out.rows == TOKENS:
            return z["kv_heads"] * (z["head_dim"] + z.get("value_dim", z["head_dim"]))
        case ops.LatentAttention():
            return z["rank"] + z["rope_dim"]
    return 0


def window_of(node: ModelNode) -> int | None:
    return node.sizes.get("window") if isinstance(node.op, ops.Attention) else None


def parameters(graph: ModelGraph) -> int:
    """All weights of the graph."""
    return sum(block.repeat * parameters_of(node) for block, node in graph.nodes())


def active_parameters(graph: ModelGraph) -> int:
    """Weights that one token meets, tables of embeddings left out."""
    tied = sum(
        block.repeat * node.flow.width * node.size("out")
        for block, node in graph.nodes()
        if isinstance(node.op, ops.Linear) and node.op.tied
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
        if isinstance(node.op, ops.Attention) and node.op.cross:
            z = node.sizes
            total += block.repeat * source * z["kv_heads"] * (z["head_dim"] + z.get("value_dim", z["head_dim"]))
    return total
