"""A model file as a graph: every operation with its numbers, what flows into it, and what it makes.

What flows is either tokens (rows of a width) or an image (channels by height by width). How many rows there are is
known only when a phase says how many tokens are read: until then rows are `tokens`, `source`, `last`, or a number.

Several devices may share a model: `Graph.of(model, tp=4)` is what one of four devices computes when heads, inner
widths, experts and the vocabulary are divided among them, with the exchanges that this makes necessary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Final, Literal

from hwsim.errors import InputError, ShapeError
from hwsim.ops import model as ops

TOKENS: Final = "tokens"
SOURCE: Final = "source"
LAST: Final = "last"
Rows = Literal["tokens", "source", "last"] | int
"""How many rows a sequence has: its new tokens, those of its source, its last one where only that matters, a number."""


@dataclass(frozen=True)
class Flow:
    """What passes between two operations, for one sequence or one image."""

    rows: Rows
    width: int
    image: tuple[int, int] | None = None
    """Height and width, where `width` are channels and there are no rows."""

    @property
    def per_row(self) -> int:
        """Numbers in a row; of an image, in all of it."""
        return self.width * (self.image[0] * self.image[1] if self.image else 1)


@dataclass(frozen=True)
class ModelNode:
    """An operation of the graph."""

    block: str
    op: ops.ModelOperation
    sizes: dict[str, int]
    """Its extents as numbers, those of one device."""
    inputs: tuple[Flow, ...]
    out: Flow
    makers: tuple[str, ...]
    """Names of the operations that made its inputs; `input` for what came into the block."""

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def word(self) -> str:
        """The word that the file has for it."""
        return str(self.op.op)  # type: ignore[attr-defined]

    @property
    def flow(self) -> Flow:
        """The first input."""
        return self.inputs[0]

    def size(self, name: str) -> int:
        return self.sizes[name]

    def sides(self, name: str) -> tuple[int, int]:
        """An extent along both directions of an image."""
        return self.sizes.get(f"{name}.0", self.sizes[name]), self.sizes.get(f"{name}.1", self.sizes[name])


@dataclass(frozen=True)
class GraphBlock:
    """Operations one after the other, and how often they stand in the model."""

    name: str
    repeat: int
    stream: str
    nodes: tuple[ModelNode, ...]


@dataclass(frozen=True)
class Exchange:
    """What devices that share a model have to tell each other after an operation, for each repetition of its block."""

    block: str
    after: str
    collective: Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all"]
    flow: Flow
    """Whole result that all devices have afterwards; of all_to_all, what a device sends."""


@dataclass(frozen=True)
class ModelGraph:
    """A model, or one device's share of it."""

    name: str
    blocks: tuple[GraphBlock, ...]
    tp: int = 1
    ep: int = 1
    exchanges: tuple[Exchange, ...] = ()
    sourced: bool = False
    """Whether it reads a source before any token is made."""
    block_inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Blocks that come into a block, where a file names them."""
    scattered: frozenset[tuple[str, str]] = frozenset()
    """Operations (block, name) whose tokens the devices of a tensor group divide: sequence parallelism."""

    @classmethod
    def of(cls, model: ops.ModelWorkload, tp: int = 1, ep: int = 1, sp: int = 0) -> ModelGraph:
        """The graph of a file; with `tp` and `ep`, what one of so many devices computes.

        tp divides heads, inner widths and the vocabulary, ep divides experts. With `sp` norms and sums between them are
        divided by tokens: a sum of partial results is then scattered, and gathered where a product needs all of it.
        Raises ShapeError where operations do not fit each other.
        """
        return _GraphBuilder(model, tp, ep, bool(sp) and tp > 1).build()

    def divides(self, block: str, name: str) -> int:
        """Devices that divide the tokens of an operation."""
        return self.tp if (block, name) in self.scattered else 1

    def keeps(self, block: str, name: str) -> int:
        """Devices that divide the result of an operation among them, be it made of shares or scattered."""
        sums = any((e.block, e.after, e.collective) == (block, name, "reduce_scatter") for e in self.exchanges)
        return self.tp if sums else self.divides(block, name)

    def nodes(self) -> Iterator[tuple[GraphBlock, ModelNode]]:
        for block in self.blocks:
            for node in block.nodes:
                yield block, node

    def layers(self, first: int, count: int) -> ModelGraph:
        """A share of the layers, for devices that stand in line: blocks that repeat are cut, of the others the first
        device has those before and the last device those after them."""
        kept: list[GraphBlock] = []
        total = sum(block.repeat for block in self.blocks if block.repeat > 1)
        position = 0
        for block in self.blocks:
            if block.repeat == 1:
                inside = first == 0 if position == 0 else first + count >= total
                if (position in (0, total)) and inside:
                    kept.append(block)
                continue
            own = max(0, min(position + block.repeat, first + count) - max(position, first))
            if own:
                kept.append(GraphBlock(block.name, own, block.stream, block.nodes))
            position += block.repeat
        return ModelGraph(
            self.name, tuple(kept), self.tp, self.ep, self.exchanges, self.sourced, self.block_inputs, self.scattered
        )

    @property
    def is_generative(self) -> bool:
        """Whether tokens can be made one by one: something in it is causal, and takes any number of them."""
        grown = [node.op for _, node in self.nodes() if not isinstance(node.out.rows, int)]
        return any(isinstance(op, ops.LatentAttention) for op in grown) or any(
            isinstance(op, ops.Attention) and op.causal and not op.cross for op in grown
        )

    @property
    def takes_tokens(self) -> bool:
        return any(node.out.rows == TOKENS for _, node in self.nodes())


class _GraphBuilder:
    """Goes through the blocks in order, and finds what flows."""

    def __init__(self, model: ops.ModelWorkload, tp: int, ep: int, sp: bool = False) -> None:
        if tp < 1 or ep < 1:
            raise InputError(f"tp={tp} ep={ep}: each is a number of devices, at least 1")
        self.model, self.tp, self.ep, self.sp = model, tp, ep, sp
        self.exchanges: list[Exchange] = []
        self.scattered: set[tuple[str, str]] = set()
        self._divided = False
        """Whether what comes into a block is divided by tokens."""
        self._parts: set[str] = set()
        """Names of a block whose tokens are divided, and not yet gathered."""
        self.source: Flow | None = None

    def build(self) -> ModelGraph:
        made: dict[str, Flow] = {}
        blocks = []
        flow = self._first()
        for block in self.model.blocks:
            if block.stream == "source" and self.source is None and flow.rows == TOKENS and not flow.image:
                flow = Flow(SOURCE, flow.width)
            came = [made[name] for name in block.inputs] or [flow]
            nodes, flow = self._block(block, came)
            repeat = self.model.extent(block.repeat)
            if repeat > 1 and (flow.width, flow.image) != (came[0].width, came[0].image):
                raise ShapeError(
                    f"block {block.name} is repeated, but makes {_words(flow)} of {_words(came[0])}: what it makes has "
                    "to fit into its next repetition"
                )
            made[block.name] = flow
            blocks.append(GraphBlock(block.name, repeat, block.stream, nodes))
            if block.stream == "source":
                self.source = flow
                following = self._after(block)
                if following:
                    flow = self._first()
        named = {block.name: block.inputs for block in self.model.blocks if block.inputs}
        exchanges = tuple(self.exchanges) if max(self.tp, self.ep) > 1 else ()
        return ModelGraph(
            self.model.name, tuple(blocks), self.tp, self.ep, exchanges, self.source is not None, named,
            frozenset(self.scattered),
        )  # fmt: skip

    def _after(self, block: ops.ModelBlock) -> bool:
        """Whether the block is the last of the source."""
        later = self.model.blocks[self.model.blocks.index(block) + 1 :]
        return bool(later) and later[0].stream == "tokens"

    def _first(self) -> Flow:
        given = self.model.input
        if isinstance(given, tuple) and self.source is None:
            return Flow(1, given[0], (given[1], given[2]))
        if given == "features" and self.source is None:
            if self.model.width is None:
                raise ShapeError("input: features need a width")
            return Flow(TOKENS, self.model.extent(self.model.width))
        return Flow(TOKENS, 1)

    def _block(self, block: ops.ModelBlock, came: list[Flow]) -> tuple[tuple[ModelNode, ...], Flow]:
        known: dict[str, Flow] = {"input": came[0]}
        if self.source is not None:
            known["source"] = self.source
        before, nodes = "input", []
        self._parts = {"input"} if self._divided and not came[0].image and came[0].rows == TOKENS else set()
        for op in block.operations:
            names = op.inputs or (before,)
            flows = [known[name] for name in names]
            if before == "input" and not op.inputs and len(came) > 1:
                flows = list(came)
            sizes = self._sizes(op)
            try:
                out = self._out(op, sizes, flows)
            except ShapeError as error:
                raise ShapeError(f"block {block.name}, operation {op.name}: {error}") from None
            nodes.append(ModelNode(block.name, op, sizes, tuple(flows), out, tuple(names)))
            if self.sp:
                self._scatter(block, op, tuple(names), flows)
            self._exchange(block, op, sizes, out)
            known[op.name] = out
            before = op.name
        return tuple(nodes), known[before]

    def _sizes(self, op: ops.ModelOperation) -> dict[str, int]:
        """All extents of an operation as numbers, those that devices divide divided."""
        found: dict[str, int] = {}
        for name in type(op).model_fields:
            value = getattr(op, name)
            if name in ops.WORDS or name == "makes" or isinstance(value, bool) or value is None:
                continue
            if isinstance(value, tuple):
                found |= {f"{name}.{n}": self.model.extent(each) for n, each in enumerate(value)}
                found[name] = sum(self.model.extent(each) for each in value) if name == "out" else found[f"{name}.0"]
            else:
                found[name] = self.model.extent(value)
        return self._share(op, found)

    def _share(self, op: ops.ModelOperation, sizes: dict[str, int]) -> dict[str, int]:
        tp, ep = self.tp, self.ep
        if tp == ep == 1:
            return sizes

        def divide(name: str, by: int) -> None:
            if name in sizes:
                sizes[name] = ceil(sizes[name] / by)

        match op:
            case ops.Linear(split="out"):
                for name in [each for each in sizes if each.startswith("out.")] or ["out"]:
                    divide(name, tp)
                parts = [size for name, size in sizes.items() if name.startswith("out.")]
                sizes["out"] = sum(parts) if parts else sizes["out"]
            case ops.Embedding():
                divide("rows", tp)
            case ops.HeadNorm() | ops.Rope():
                divide("heads", tp)
            case ops.Attention():
                divide("heads", tp)
                divide("kv_heads", tp)
            case ops.LatentAttention():
                divide("heads", tp)
            case ops.Experts():
                divide("experts", ep)
                divide("inner", tp)
                divide("shared", tp)
        return sizes

    def _scatter(
        self, block: ops.ModelBlock, op: ops.ModelOperation, names: tuple[str, ...], flows: list[Flow]
    ) -> None:
        """Norms and sums of tokens that are divided stay divided; whatever else reads them needs all, once."""
        parts = [name for name in names if name in self._parts]
        if isinstance(op, ops.Norm | ops.Positions) or (isinstance(op, ops.PointwiseLayer) and op.op == "add"):
            if parts:
                self.scattered.add((block.name, op.name))
                self._parts.add(op.name)
            return
        for name, flow in zip(names, flows, strict=False):
            if name in parts:
                after = op.name if name == "input" else name
                self.exchanges.append(Exchange(block.name, after, "all_gather", flow))
                self._parts.discard(name)

    def _summed(self, block: ops.ModelBlock, op: ops.ModelOperation, out: Flow) -> None:
        """Partial results: the sum goes to all devices, or to each its tokens."""
        if self.sp and out.rows == TOKENS and not out.image:
            self.exchanges.append(Exchange(block.name, op.name, "reduce_scatter", out))
            self._divided = True
            self._parts.add(op.name)
        else:
            self.exchanges.append(Exchange(block.name, op.name, "all_reduce", out))

    def _exchange(self, block: ops.ModelBlock, op: ops.ModelOperation, sizes: dict[str, int], out: Flow) -> None:
        match op:
            case ops.Linear(split="in") | ops.Embedding():
                self._summed(block, op, out)
            case ops.Experts():
                if self.ep > 1:
                    sent = Flow(out.rows, out.width * sizes["top_k"])
                    self.exchanges.append(Exchange(block.name, op.name, "all_to_all", sent))
                if self.tp > 1:
                    self._summed(block, op, out)
            case ops.Linear(split="out", rows_of="last"):
                whole = Flow(out.rows, out.width * self.tp)
                self.exchanges.append(Exchange(block.name, op.name, "all_gather", whole))

    def _out(self, op: ops.ModelOperation, z: dict[str, int], flows: list[Flow]) -> Flow:
        flow = flows[0]
        match op:
            case ops.Linear():
                rows: Rows = LAST if op.rows_of == "last" and flow.rows == TOKENS else flow.rows
                return Flow(rows, z["out"])
            case ops.Embedding():
                return Flow(TOKENS if flow.image or flow.rows == LAST else flow.rows, z["width"])
            case ops.Attention():
                dim = z.get("value_dim", z["head_dim"])
                self._check_heads(z, flows, dim)
                return Flow(flow.rows, z["heads"] * dim)
            case ops.LatentAttention():
                return Flow(flow.rows, z["heads"] * z["value_dim"])
            case ops.PointwiseLayer():
                if op.op in ("swiglu", "geglu") and len(flows) == 1:
                    if flow.width % 2:
                        raise ShapeError(f"{op.op} takes two halves, and {flow.width} has none")
                    return Flow(flow.rows, flow.width // 2)
                return _joined(flows)
            case ops.ConvLayer():
                return Flow(1, z["channels"], _windows(flow, z, op))
            case ops.Pool():
                return Flow(1, flow.width, _windows(flow, z, op))
            case ops.Reshape():
                return _reshaped(op, flows)
            case ops.ProductLayer():
                return Flow(z["batch"] * z["m"], z["n"])
            case ops.ViewLayer(makes=tuple(makes)) | ops.MoveLayer(makes=tuple(makes)):
                return _made(makes)
        assert isinstance(op, ops.Positions | ops.Norm | ops.HeadNorm | ops.Rope | ops.Experts | ops.MoveLayer)
        return flow

    def _check_heads(self, z: dict[str, int], flows: list[Flow], dim: int) -> None:
        if z["heads"] % z["kv_heads"] and self.tp == 1:
            raise ShapeError(f"{z['heads']} heads cannot share {z['kv_heads']} heads of keys and values evenly")
        whole = z["heads"] * z["head_dim"] + z["kv_heads"] * (z["head_dim"] + dim)
        if self.tp == 1 and len(flows) == 1 and flows[0].width != whole:
            raise ShapeError(
                f"its input is {flows[0].width:,} wide, and q, k and v of {z['heads']} and {z['kv_heads']} heads are "
                f"{whole:,}"
            )


def _made(shape: tuple[int, ...]) -> Flow:
    if len(shape) == 3:
        return Flow(1, shape[0], (shape[1], shape[2]))
    return Flow(shape[0], shape[1]) if len(shape) == 2 else Flow(1, shape[0])


def _joined(flows: list[Flow]) -> Flow:
    """Operands of an element-wise operation: all alike, or one number for each channel."""
    whole = max(flows, key=lambda flow: flow.per_row)
    for flow in flows:
        if flow.width != whole.width:
            raise ShapeError(f"{_words(flow)} does not fit {_words(whole)}")
    return whole


def _windows(flow: Flow, z: dict[str, int], op: ops.ConvLayer | ops.Pool) -> tuple[int, int]:
    if flow.image is None:
        raise ShapeError("it needs an image, and tokens come in")
    if isinstance(op, ops.ConvLayer):
        groups = z["groups"]
        if flow.width % groups or z["channels"] % groups:
            raise ShapeError(f"{flow.width} and {z['channels']} channels cannot be divided into {groups} groups")
    found = []
    for axis, extent in enumerate(flow.image):
        kernel, stride, padding = (z.get(f"{name}.{axis}", z.get(name, 0)) for name in ("kernel", "stride", "padding"))
        if isinstance(op, ops.ConvLayer) and op.transposed:
            found.append((extent - 1) * stride + kernel - 2 * padding)
            continue
        if kernel > extent + 2 * padding:
            raise ShapeError(f"a window of {kernel} does not fit an image of {extent} with {padding} zeros around it")
        found.append((extent + 2 * padding - kernel) // stride + 1)
    return found[0], found[1]


def _reshaped(op: ops.Reshape, flows: list[Flow]) -> Flow:
    flow = flows[0]
    match op.op:
        case "global_avgpool":
            return Flow(1, flow.width)
        case "flatten":
            if flow.image is None and not isinstance(flow.rows, int):
                raise ShapeError("a text of any length cannot be flattened")
            return Flow(1, flow.per_row * (1 if flow.image else int(flow.rows)))
        case "to_tokens":
            if flow.image is None:
                raise ShapeError("it needs an image, and tokens come in")
            return Flow(flow.image[0] * flow.image[1], flow.width)
        case "mean_tokens" | "first_token":
            return Flow(1, flow.width)
        case "class_token":
            if not isinstance(flow.rows, int):
                raise ShapeError("it adds a token to a known number of them")
            return Flow(flow.rows + 1, flow.width)
        case "transpose":
            if not isinstance(flow.rows, int) or flow.image:
                raise ShapeError("only a known number of tokens can change places with their width")
            return Flow(flow.width, flow.rows)
        case "concat":
            if len({(each.rows, each.image) for each in flows}) > 1:
                raise ShapeError(f"{' and '.join(_words(each) for each in flows)} cannot stand side by side")
            return Flow(flow.rows, sum(each.width for each in flows), flow.image)
        case "upsample":
            if flow.image is None:
                raise ShapeError("it needs an image, and tokens come in")
            return Flow(1, flow.width, (2 * flow.image[0], 2 * flow.image[1]))
    return flow


def _words(flow: Flow) -> str:
    if flow.image:
        return f"an image of {flow.width} x {flow.image[0]} x {flow.image[1]}"
    return f"rows of {flow.width:,}"
