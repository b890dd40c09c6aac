"""From an operation of a model to the kernels that a framework starts for it, each a workload of hwsim.

Three ways to run a model, told apart by `kernels=`:

eager     every operation is a kernel of its own, as in PyTorch without compiling: scores of attention go to memory,
          are scaled, masked and normalised in passes of their own, and heads are copied into rows and back
compiled  passes over the same elements run together, with their norm or alone; attention is in one kernel where the
          machine's library has one for the format
serving   as compiled, with keys and values written to a cache, and all kernels of a step started as one graph
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hwsim.models.count import DECODE, TRAIN, Formats, Pass, expected_experts, is_narrowed
from hwsim.models.graph import GraphBlock, ModelGraph, ModelNode
from hwsim.ops import model as ops

EAGER, COMPILED, SERVING = "eager", "compiled", "serving"

Items = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class KernelCall:
    """One kernel, as a workload would say it, and how often it runs."""

    op: str
    precision: str
    sizes: Items
    more: Items = ()
    count: float = 1.0
    instead: tuple[KernelCall, ...] = field(default=(), compare=True)
    """What runs where the machine has no such kernel."""
    product: bool = False
    """Whether the model cannot do without it: what is no product may be left to a host."""

    @property
    def key(self) -> str:
        """Equal for equal kernels, however often they run."""
        return repr((self.op, self.precision, self.sizes, self.more))

    def data(self) -> dict[str, Any]:
        """As a workload file would give it."""
        about = {"format": 1, "name": self.op, "description": "A kernel of a model.", "op": self.op}
        return {**about, "precision": self.precision, "sizes": dict(self.sizes), **dict(self.more)}

    def times(self, count: float) -> KernelCall:
        return replace(self, count=self.count * count)


@dataclass(frozen=True)
class KernelLowering:
    """How operations become kernels: the formats, the framework, the phase."""

    numbers: Formats
    kernels: str
    phase: Pass
    dropout: str = "none"
    """none, layers or all: where numbers are dropped at random while a model is trained."""
    cache: int = 0
    """Bytes of the machine's last cache."""

    @property
    def fused(self) -> bool:
        return self.kernels != EAGER

    def calls(self, graph: ModelGraph) -> Iterator[tuple[GraphBlock, ModelNode, list[KernelCall]]]:
        """Every operation that runs in this phase, with its kernels, each for one repetition of its block."""
        for block in graph.blocks:
            joined = joined_adds(block)
            alike = merged_products(block) if self.kernels == SERVING else {}
            dropped = dropped_after(block) if self.drops else frozenset()
            for node in block.nodes:
                if self.phase.runs(block, node):
                    low = self.of_share(graph.divides(block.name, node.name))
                    calls = RULES[type(node.op)](low, widened(node, alike), joined) if alike.get(node.name, 1) else []
                    if node.name in dropped:
                        calls = [*calls, low.drop(low.phase.elements(node.out))]
                    yield block, node, calls

    def of_share(self, parts: int) -> KernelLowering:
        """The same for a share of the tokens, or of the sequences where each has one token."""
        if parts == 1:
            return self
        name = "tokens" if self.phase.tokens > 1 else "batch"
        return replace(self, phase=replace(self.phase, **{name: -(-getattr(self.phase, name) // parts)}))

    @property
    def drops(self) -> bool:
        return self.phase.name == TRAIN and self.dropout != "none" and not self.fused

    def drop(self, elements: int) -> KernelCall:
        """A pass that drops at random, and writes which ones in a byte each."""
        return self.touch(elements * (1 + 1 / (2 * self.numbers.activation_bytes(1))))

    # Building blocks --------------------------------------------------------------------------------------------------

    def matmul(self, m: int, n: int, k: int, batch: int = 1, *, weights: bool = True) -> list[KernelCall]:
        """A product with weights, or of two activations."""
        precision = self.numbers.product if weights else self._wide
        found = []
        if weights and self.numbers.rounds:
            found.append(self.rounding(batch * m * k))
        if batch == 1:
            found.append(_product("matmul", precision, m=m, n=n, k=k))
        else:
            plain = precision if precision not in ("w8a16", "w4a16") else self._wide
            found.append(_product("matmul_batched", plain, m=m, n=n, k=k, batch=batch))
        return found

    def rounding(self, elements: int) -> KernelCall:
        """Activations rounded to the format of the weights: read wide, written narrow."""
        return self.touch(0.75 * elements)

    def touch(self, elements: float, stage: str = "copy") -> KernelCall:
        """A pass that reads and writes so many elements; binary stages read two."""
        return touch(elements, self._wide, stage)

    @property
    def _wide(self) -> str:
        return self.numbers.activations


def touch(elements: float, precision: str, stage: str = "copy") -> KernelCall:
    m, n = _matrix(max(1, round(elements)))
    described: tuple[Any, ...] = (stage,)
    if stage in BINARY:
        described = ({"op": stage, "inputs": ("b",)},)
    return KernelCall("pointwise", precision, (("m", m), ("n", n)), (("stages", described),))


BINARY = ("add", "mul", "swiglu", "gelu_backward", "relu_backward", "silu_backward")


def _matrix(elements: int) -> tuple[int, int]:
    """A matrix of about so many elements, none of its sides too long."""
    n = 1
    while n < 4096 and elements % (2 * n) == 0:
        n *= 2
    if n < 64 and elements > 4096:
        n = 1024
    return max(1, -(-elements // n)), n


def _product(op: str, precision: str, **sizes: int) -> KernelCall:
    return KernelCall(op, precision, tuple(sizes.items()), product=True)


def rows_call(op: str, precision: str, rows: int, width: int) -> KernelCall:
    """A kernel over the rows of a matrix: norms and softmax."""
    return KernelCall(op, precision, (("m", rows), ("n", width)))


Joined = frozenset[str]
"""Names of additions that run with the norm after them, and of those norms."""


def dropped_after(block: GraphBlock) -> frozenset[str]:
    """What a layer adds to the stream, and the last operation of an embedding."""
    adds = {name for node in block.nodes if node.word == "add" and not node.flow.image for name in node.makers}
    made = {node.name for node in block.nodes if isinstance(node.op, ops.Linear | ops.Experts)}
    first = {block.nodes[-1].name} if any(isinstance(node.op, ops.Embedding) for node in block.nodes) else set()
    return frozenset(adds & made) | frozenset(first)


def merged_products(block: GraphBlock) -> dict[str, int]:
    """Widths of products of one and the same input: an engine keeps their weights side by side, and the first of them
    is a product for all; the others have nothing left to do."""
    found: dict[str, int] = {}
    first: dict[tuple[object, ...], str] = {}
    for node in block.nodes:
        if isinstance(node.op, ops.Linear) and node.op.split != "in":
            op = node.op
            name = first.setdefault((node.makers[:1], op.split, op.rows_of, op.bias, is_narrowed(node)), node.name)
            found[node.name] = 0
            found[name] += node.size("out")
    return found


def widened(node: ModelNode, widths: Mapping[str, int]) -> ModelNode:
    """A product with the width that it has together with those that it is merged with."""
    return replace(node, sizes={**node.sizes, "out": widths[node.name]}) if node.name in widths else node


def joined_adds(block: GraphBlock) -> Joined:
    """Sums of a residual stream go into the kernel of the norm that reads them; also into that of the next block."""
    found: set[str] = set()
    adds = {node.name for node in block.nodes if node.word == "add" and not node.flow.image}
    last = block.nodes[-1].name
    for node in block.nodes:
        if isinstance(node.op, ops.Norm) and node.op.op in ("rmsnorm", "layernorm"):
            maker = last if node.makers[0] == "input" and block.repeat > 1 else node.makers[0]
            if maker in adds:
                found |= {node.name, maker}
    return frozenset(found)


def _linear(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    assert isinstance(node.op, ops.Linear)
    m, n, k = low.phase.rows(node.out), node.size("out"), node.flow.width
    if not is_narrowed(node):
        return [_product("matmul", low.numbers.activations, m=m, n=n, k=k)]
    found = low.matmul(m, n, k)
    separate = low.numbers.rounds and node.op.bias
    return [*found, low.touch(low.phase.elements(node.out))] if separate else found


def _embedding(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    return [low.touch(low.phase.elements(node.out))]


def _positions(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    elements = low.phase.elements(node.out)
    if low.fused:
        return []
    each = low.phase.elements(node.out) // max(1, low.phase.batch)
    return [low.touch(each), low.touch(elements, "add")]


def _norm(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    assert isinstance(node.op, ops.Norm)
    rows, width = low.phase.rows(node.out), node.out.width
    precision = low.numbers.activations
    if node.op.op == "batch_norm":
        return [] if low.fused else [low.touch(low.phase.elements(node.out))]
    if node.op.op == "group_norm":
        elements = low.phase.elements(node.out)
        return [low.touch(elements)] if low.fused else [low.touch(elements / 2), low.touch(elements)]
    if node.op.op == "rmsnorm" and not low.fused:
        each = low.phase.elements(node.out)
        return [low.touch(each), low.touch(each / 2), low.touch(each), low.touch(each)]
    doubled = 2 if low.fused and node.name in joined else 1  # with the sum it reads two tensors and writes two
    return [rows_call(node.op.op, precision, doubled * rows, width)]


def _head_norm(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    z = node.sizes
    elements = low.phase.rows(node.out) * z["heads"] * z["head_dim"]
    return [low.touch(elements)] if low.fused else [low.touch(elements)] * 4


def _rope(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    z = node.sizes
    elements = low.phase.rows(node.out) * z["heads"] * z["head_dim"]
    return [low.touch(elements)] if low.fused else [low.touch(elements, "mul")] * 2 + [low.touch(elements)] * 2


def _pointwise(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    elements, name = low.phase.elements(node.out), node.word
    if name == "softmax":
        width = node.out.image[1] if node.out.image else node.out.width
        return [rows_call("softmax", low.numbers.activations, elements // width, width)]
    if low.fused and node.name in joined:
        return []
    if low.fused and node.flow.image and node.makers and node.makers[0] not in ("input", "source"):
        return [low.touch(elements / 2)] if len(node.inputs) > 1 else []
    if name in ("swiglu", "geglu"):
        one = [low.touch(elements, "swiglu")]
        return one if low.fused else [low.touch(elements, "silu"), low.touch(elements, "mul")]
    if not low.fused and name in STEPS:
        return [low.touch(elements, stage) for stage in STEPS[name]]
    return [low.touch(elements, STAGES.get(name, name))]


STAGES = {"gelu_new": "gelu", "quick_gelu": "silu", "swish": "silu", "hard_swish": "relu", "relu6": "relu",
          "scale": "copy", "geglu": "swiglu"}  # fmt: skip
"""The element-wise operation of hwsim that costs what this one does."""
STEPS = {
    "gelu_new": ("copy", "copy", "copy", "add", "copy", "tanh", "copy", "mul"),
    "quick_gelu": ("copy", "sigmoid", "mul"),
    "hard_swish": ("copy", "relu", "mul"),
}
"""Activations that are written in several operations: 0.5 x (1 + tanh(c (x + 0.044715 x³))) is eight of them."""


def _conv(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    assert isinstance(node.op, ops.ConvLayer)
    z, flow = node.sizes, node.flow
    assert flow.image is not None and node.out.image is not None
    kernel, stride = node.sides("kernel"), node.sides("stride")
    batch, groups = low.phase.rows(node.out), z["groups"]
    if node.op.transposed:  # each place of the image gives a window: a product, and its sums put in place
        m, n = batch * flow.image[0] * flow.image[1], z["channels"] * kernel[0] * kernel[1]
        found = low.matmul(m, n, flow.width)
        return found if stride == kernel else [*found, low.touch(low.phase.elements(node.out), "add")]
    if kernel == (1, 1) and stride == (1, 1) and groups == 1:
        found = low.matmul(batch * flow.image[0] * flow.image[1], z["channels"], flow.width)
        return [*found[:-1], replace(found[-1], instead=(_window(low, node, kernel, stride),))]
    if stride[0] != stride[1] or flow.image[1] == 1:  # over a line: windows as a product
        places = node.out.image[0] * node.out.image[1]
        return low.matmul(batch * places, z["channels"] // groups, flow.width // groups * kernel[0] * kernel[1], groups)
    return [_window(low, node, kernel, stride)]


def _window(low: KernelLowering, node: ModelNode, kernel: tuple[int, int], stride: tuple[int, int]) -> KernelCall:
    z, flow = node.sizes, node.flow
    assert flow.image is not None
    sizes: dict[str, int] = {
        "batch": low.phase.rows(node.out), "ci": flow.width, "height": flow.image[0], "width": flow.image[1],
        "co": z["channels"], "kernel": kernel[0], "kernel_w": kernel[1], "stride": stride[0], "padding": z["padding"],
        "groups": z["groups"],
    }  # fmt: skip
    precision = low.numbers.product if low.numbers.product not in ("w8a16", "w4a16") else low.numbers.activations
    return KernelCall("conv2d", precision, tuple(sizes.items()), product=True)


def _pool(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    read, written = low.phase.elements(node.flow), low.phase.elements(node.out)
    return [low.touch((read + written) / 2)]


def _reshape(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    read = sum(low.phase.elements(flow) for flow in node.inputs)
    written = low.phase.elements(node.out)
    match node.word:
        case "flatten" | "to_tokens":
            return [low.touch(read)] if node.flow.image and not low.fused else []
        case "first_token":
            return []
        case "global_avgpool" | "mean_tokens" | "upsample":
            return [low.touch((read + written) / 2)]
    return [low.touch(written)]


def _move(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    z = node.sizes
    return [low.touch(low.phase.batch * (z["read"] + z["write"]) / 2)]


def _product_of(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    assert isinstance(node.op, ops.ProductLayer)
    z, batch = node.sizes, low.phase.batch
    if node.op.weights:
        return low.matmul(batch * z["m"], z["n"], z["k"], z["batch"])
    return low.matmul(z["m"], z["n"], z["k"], batch * z["batch"], weights=False)


def _experts(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    assert isinstance(node.op, ops.Experts)
    z, width, rows = node.sizes, node.flow.width, low.phase.rows(node.out)
    up = z["inner"] * (2 if node.op.gated else 1)
    activate = "swiglu" if node.op.gated else "relu"
    if low.kernels == SERVING and not z.get("capacity"):
        return _served_experts(low, node, up, activate)
    found = low.matmul(rows, z["experts"], width)
    found.append(low.touch(rows * z["experts"] * (1 if low.fused else 6)))
    if z.get("capacity"):
        each = low.phase.batch * z["capacity"]
        one = [
            *low.matmul(each, up, width),
            low.touch(each * z["inner"], activate),
            *low.matmul(each, width, z["inner"]),
        ]
        moves = [low.touch(each * width)] * 3
        return [*found, *(call.times(z["experts"]) for call in (*one, *moves)), low.touch(rows * width, "mul")]
    chosen = expected_experts(rows, z["experts"], z["top_k"])
    sent = rows * min(z["top_k"], z["experts"])
    found.append(low.touch(sent * width))
    found += low.matmul(chosen.tokens, up, width, chosen.busy)
    found.append(low.touch(sent * z["inner"], activate))
    found += low.matmul(chosen.tokens, width, z["inner"], chosen.busy)
    found.append(low.touch((sent * width + rows * width) / 2))
    if z.get("shared"):
        wide = z["shared"] * (2 if node.op.gated else 1)
        found += low.matmul(rows, wide, width)
        found.append(low.touch(rows * z["shared"], activate))
        found += low.matmul(rows, width, z["shared"])
        found.append(low.touch(rows * width, "add"))
    return found


TILE_ROWS = 64
"""Rows of the smallest tile of a tensor core's product: an expert with fewer tokens takes as long."""


def _served_experts(low: KernelLowering, node: ModelNode, up: int, activate: str) -> list[KernelCall]:
    """As engines do it: the router in the wide format, tokens rounded once and read where they lie, all experts in one
    product, and what all tokens go through beside it, as further experts with as many tiles as its rows take."""
    z, width, rows = node.sizes, node.flow.width, low.phase.rows(node.out)
    chosen = expected_experts(rows, z["experts"], z["top_k"])
    sent = rows * min(z["top_k"], z["experts"])
    wide = z["shared"] / z["inner"] if z.get("shared") else 0
    busy = chosen.busy + round(wide * -(-rows // max(chosen.tokens, TILE_ROWS)))
    through = round(sent + wide * rows)
    found = [
        _product("matmul", low.numbers.activations, m=rows, n=z["experts"], k=width),
        low.touch(rows * z["experts"]),
    ]
    if low.numbers.rounds:
        found.append(low.rounding(rows * width))
    found.append(low.matmul(chosen.tokens, up, width, busy)[-1])
    found.append(low.touch(through * z["inner"], activate))
    if low.numbers.rounds:
        found.append(low.rounding(through * z["inner"]))
    found.append(low.matmul(chosen.tokens, width, z["inner"], busy)[-1])
    found.append(low.touch((through * width + rows * width) / 2))
    return found


# Attention ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heads:
    """The shape of attention for one kernel."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    causal: bool

    @property
    def scores(self) -> int:
        return self.batch * self.heads * self.queries * self.keys


def _attention(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    assert isinstance(node.op, ops.Attention)
    z, phase = node.sizes, low.phase
    causal = node.op.causal and not node.op.cross
    keys = phase.keys(node, causal, z.get("window"))
    shape = Heads(phase.batch, z["heads"], z["kv_heads"], phase.queries(node), keys, z["head_dim"],
                  z.get("value_dim", z["head_dim"]), causal)  # fmt: skip
    window = z.get("window")
    found = []
    if low.kernels == SERVING and causal:
        found.append(_keep(low, phase.rows(node.out) * z["kv_heads"] * (z["head_dim"] + shape.value_dim)))
    if not low.fused:
        return found + _unfused(low, shape, _passes(low, node, shape))
    if window is not None and shape.queries > window:  # each stretch of queries looks at its window and itself
        parts = shape.queries // window
        cut = replace(shape, batch=shape.batch * parts, queries=window, keys=2 * window)
        return [*found, _one_kernel(low, cut)]
    return [*found, _one_kernel(low, shape)]


def _keep(low: KernelLowering, elements: int) -> KernelCall:
    """New keys and values are written to the cache."""
    return low.touch(elements)


def _one_kernel(low: KernelLowering, z: Heads) -> KernelCall:
    """Attention whose scores never leave the chip; three kernels where the machine has none for the format."""
    dim = max(z.dim, z.value_dim)
    sizes = {"batch": z.batch, "heads": z.heads, "kv_heads": z.kv_heads, "queries": z.queries, "n": z.keys, "d": dim,
             "causal": z.causal and z.queries > 1}  # fmt: skip
    schedule = {"variant": "fused", "br": min(z.queries, 128), "bc": min(z.keys, 128)}
    made = KernelCall("attention", low.numbers.activations, tuple(sizes.items()), (("schedule", schedule),))
    instead = tuple(_unfused(low, z))
    found = replace(made, instead=instead, product=True)
    if low.numbers.kv == low.numbers.activations or low.phase.name != DECODE:
        return found
    return replace(found, precision=low.numbers.kv, instead=(found,))


SECTOR_BYTES = 32
"""What memory gives at least where neighbours of a row are not neighbours in memory (NVIDIA, CUDA C++ Best Practices
Guide: 32-byte transactions)."""


def _passes(low: KernelLowering, node: ModelNode, z: Heads) -> list[KernelCall]:
    """Over the scores, one by one: scaled and masked, or a bias added that is as large as the scores of a sequence.

    A mask that is added is as large as the scores of a head, and each head reads it: from the cache if it stays there
    while the scores of a head are read and written.

    A bias by distance is looked up for pairs of tokens, and lies with its heads side by side: where scores are read in
    their order, each of its numbers takes a sector of memory for itself. Across to a source it is zero, and in order.
    """
    assert isinstance(node.op, ops.Attention)
    if not node.op.bias:
        again = 3 * low.numbers.activation_bytes(z.queries * z.keys)
        masked = z.causal and not node.op.mask_bits and again >= low.cache
        return [low.touch(z.scores), low.touch(z.scores, "add" if masked else "copy")]
    if node.op.cross:
        return [low.touch(z.scores, "add")]
    apart = min(z.heads, SECTOR_BYTES / low.numbers.activation_bytes(1))
    return [low.touch(z.scores * (2 + apart) / 2)]


def _unfused(low: KernelLowering, z: Heads, passes: Sequence[KernelCall] | None = None) -> list[KernelCall]:
    """Scores in memory: a product, passes over them, a softmax, a product; heads copied where sequences share rows.
    Without `passes` they are part of the kernels around them, and heads are read where they lie."""
    found: list[KernelCall] = []
    eager = passes is not None
    own, kept = z.batch * z.queries * z.heads, z.batch * z.keys * z.kv_heads
    several = eager and z.batch > 1
    if several:
        found += [low.touch(own * z.dim), low.touch(kept * z.dim)]
    shared = z.heads // z.kv_heads if z.heads % z.kv_heads == 0 else 1
    batch, rows = z.batch * z.heads // shared, z.queries * shared
    found += low.matmul(rows, z.keys, z.dim, batch, weights=False)
    found += passes or ()
    found.append(rows_call("softmax", low.numbers.activations, z.batch * z.heads * z.queries, z.keys))
    if low.drops and low.dropout == "all":
        found.append(low.drop(z.scores))
    if several:
        found.append(low.touch(kept * z.value_dim))
    found += low.matmul(rows, z.value_dim, z.keys, batch, weights=False)
    if eager:
        found.append(low.touch(own * z.value_dim))
    return found


MOST_LATENT_HEADS = 64
"""Up to so many heads latent attention is bound by what it reads, and it reads each latent vector once, as key and as
value: two multiply-adds of a head for each of its 576 numbers stay below what a GPU computes in the time of two bytes.
Beyond, products decide."""


def _latent(low: KernelLowering, node: ModelNode, joined: Joined) -> list[KernelCall]:
    """Keys and values made from the latent vectors of a prompt; while text is generated, queries brought to them."""
    z, phase = node.sizes, low.phase
    heads, rank, rope = z["heads"], z["rank"], z["rope_dim"]
    rows, found = phase.rows(node.out), [_keep(low, phase.rows(node.out) * (rank + rope))]
    if phase.name == DECODE:
        found += low.matmul(rows, rank, z["head_dim"], heads)
        shape = Heads(phase.batch, heads, 1, 1, phase.context, rank, rank, False)
        latent = (rank + rope) / (2 * rank) if heads <= MOST_LATENT_HEADS else 1 + rope / (2 * rank)
        return [
            *found,
            _one_kernel(low, shape).times(latent),
            *low.matmul(rows, z["value_dim"], rank, heads),
        ]
    all_rows = phase.batch * phase.context
    found += low.matmul(all_rows, heads * (z["head_dim"] + z["value_dim"]), rank)
    shape = Heads(phase.batch, heads, heads, phase.tokens, phase.context, z["head_dim"] + rope, z["value_dim"], True)
    return (
        [*found, _one_kernel(low, shape)]
        if low.fused
        else [*found, *_unfused(low, shape, [low.touch(shape.scores)] * 2)]
    )


RULES: Mapping[type[ops.ModelOperation], Callable[[KernelLowering, ModelNode, Joined], list[KernelCall]]] = {
    ops.Linear: _linear,
    ops.Embedding: _embedding,
    ops.Positions: _positions,
    ops.Norm: _norm,
    ops.HeadNorm: _head_norm,
    ops.Rope: _rope,
    ops.Attention: _attention,
    ops.LatentAttention: _latent,
    ops.Experts: _experts,
    ops.PointwiseLayer: _pointwise,
    ops.ConvLayer: _conv,
    ops.Pool: _pool,
    ops.Reshape: _reshape,
    ops.MoveLayer: _move,
    ops.ViewLayer: lambda low, node, joined: [],
    ops.ProductLayer: _product_of,
}
