"""Files of whole models: blocks of operations, each block as often as it is repeated.

    blocks:
      - name: layer
        repeat: 32
        operations:
          - {name: norm, op: rmsnorm}
          - {name: qkv, op: linear, out: [4096, 1024, 1024], split: out}
          - {name: mixed, op: attention, heads: 32, kv_heads: 8, head_dim: 128}
          - {name: out, op: linear, out: 4096, split: in}
          - {name: residual, op: add, inputs: [out, input]}

An operation reads what the one before it made, or what `inputs` names; `input` is what came into the block. Widths of
inputs follow from what made them: a file says each number once.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hwsim.spec.base import Dimension, Extent, Name, Spec
from hwsim.spec.fields import check_read, check_sizes
from hwsim.spec.workload import WorkloadSpec

Side = Annotated[int, Field(ge=1, le=65_536)]
Sides = Side | tuple[Side, Side]
"""Of a window: one number for both directions, or height and width."""

Made = Annotated[tuple[Extent, ...], Field(min_length=1, max_length=3)]
"""A shape that is said: a width, tokens and their width, or channels, height and width of an image."""

Split = Literal["out", "in", "none"]
Numbers = Literal[
    "fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "fp8", "int8", "int16", "w8a16", "w4a16", "int4", "mxfp8", "mxfp4",
]  # fmt: skip
"""Formats of a part of a model."""
Kernels = Literal["auto", "eager", "compiled", "serving"]
PhaseName = Literal["all", "prefill", "decode", "forward", "train"]


class ModelOperation(Spec):
    """One operation of a block; its name is that of what it makes."""

    name: Name = Field(description="What the operation is called, and what it makes.")
    inputs: tuple[Name, ...] = Field(
        (),
        max_length=16,
        description="What it reads: names of operations before it in the block, or `input`; the one before it if not "
        "given.",
    )


class Linear(ModelOperation):
    """A product with a matrix of weights."""

    op: Literal["linear"] = Field(description="y = x W + b.")
    out: Dimension | tuple[Dimension, ...] = Field(
        description="Columns of W; several that are computed at once (q, k, v) as a list."
    )
    bias: bool = Field(False, description="Whether b is added.")
    split: Split = Field(
        "none", description="What several devices divide: `out` columns, `in` rows (then sums are exchanged), nothing."
    )
    rows_of: Literal["all", "last"] = Field("all", description="last: where text is generated, only the last token.")
    tied: bool = Field(False, description="W is the table of the embedding: its numbers are stored once.")


class Embedding(ModelOperation):
    """Rows of a table, one for each token."""

    op: Literal["embedding"] = Field(description="Rows of a table by the numbers of tokens.")
    rows: Dimension = Field(description="Rows of the table: the vocabulary.")
    width: Dimension = Field(description="Numbers in a row.")


class Positions(ModelOperation):
    """Rows of a learned table added to what comes in: positions, or kinds of tokens."""

    op: Literal["positions"] = Field(description="x + rows of a table.")
    rows: Dimension = Field(description="Rows of the table.")


class Norm(ModelOperation):
    """A normalisation over the width of a token, or over the channels of an image."""

    op: Literal["rmsnorm", "layernorm", "batch_norm", "group_norm"] = Field(description="Which one.")
    offset: bool = Field(True, description="layernorm: whether a learned offset is added.")


class HeadNorm(ModelOperation):
    """Queries and keys normalised head by head, before they are turned by their positions."""

    op: Literal["head_norm"] = Field(description="An rmsnorm over each head of queries and keys.")
    heads: Dimension = Field(description="Heads of queries and keys together.")
    head_dim: Dimension = Field(description="Width of a head.")


class Rope(ModelOperation):
    """Rotary positions: the first heads of what comes in are turned by an angle that grows with the position."""

    op: Literal["rope"] = Field(description="Rotary positions.")
    heads: Dimension = Field(description="Heads that are turned: those of queries and keys.")
    head_dim: Dimension = Field(description="Channels of a head that are turned.")


class Attention(ModelOperation):
    """Attention over heads; keys and values are kept for later tokens where it is causal."""

    op: Literal["attention"] = Field(description="softmax(q kᵀ) v, over heads.")
    heads: Dimension = Field(description="Heads of queries.")
    kv_heads: Dimension = Field(description="Heads of keys and values.")
    head_dim: Dimension = Field(description="Width of a head of queries and keys.")
    value_dim: Dimension | None = Field(None, description="Width of a head of values; head_dim if not given.")
    causal: bool = Field(True, description="A token sees no later one.")
    window: Dimension | None = Field(None, description="A token sees only so many before it.")
    cross: bool = Field(False, description="Keys and values are those of the source, made once for all tokens.")
    bias: bool = Field(False, description="A learned bias by distance is added to the scores.")
    mask_bits: bool = Field(
        False,
        description="kernels=eager: later tokens are hidden by a table of bits, as in GPT-2; if not, by a mask as "
        "large as the scores of a head, which is added to those of every head.",
    )


class LatentAttention(ModelOperation):
    """Attention whose keys and values are kept as one short vector for each token (DeepSeek-V2, section 2.1).

    Reads queries, and the latent vector with the key that is turned by its position. While a prompt is read, keys and
    values of all heads are made from it; while text is generated, queries are brought to its width instead.
    """

    op: Literal["latent_attention"] = Field(description="Attention over a compressed cache.")
    heads: Dimension = Field(description="Heads.")
    rank: Dimension = Field(description="Width of the latent vector.")
    head_dim: Dimension = Field(description="Width of the part of a head that is not turned.")
    rope_dim: Dimension = Field(description="Width of the part that is turned, common to all heads.")
    value_dim: Dimension = Field(description="Width of a head of values.")


class Experts(ModelOperation):
    """A mixture of experts: every token goes to the best few of many small networks."""

    op: Literal["experts"] = Field(description="A mixture of experts.")
    experts: Dimension = Field(description="Experts.")
    top_k: Dimension = Field(description="Experts for each token.")
    inner: Dimension = Field(description="Width inside an expert.")
    gated: bool = Field(True, description="silu(x W1) (x W3) W2 instead of relu(x W1) W2.")
    shared: Dimension | None = Field(None, description="Width inside the expert that every token goes to, if any.")
    capacity: Dimension | None = Field(
        None, description="Tokens of a sequence that each expert computes, whether they are sent to it or not."
    )


class PointwiseLayer(ModelOperation):
    """An operation on single elements."""

    op: Literal[
        "gelu", "gelu_new", "quick_gelu", "relu", "relu6", "silu", "tanh", "sigmoid", "swish", "hard_swish", "scale",
        "add", "mul", "swiglu", "geglu", "softmax",
    ] = Field(description="swiglu and geglu: of the two halves of what comes in.")  # fmt: skip


class ConvLayer(ModelOperation):
    """A convolution over an image."""

    op: Literal["conv"] = Field(description="A convolution.")
    channels: Dimension = Field(description="Channels that it makes.")
    kernel: Sides = Field(description="Side of the window.")
    stride: Sides = Field(1, description="Steps of the window.")
    padding: Annotated[int, Field(ge=0, le=4096)] | tuple[int, int] = Field(0, description="Zeros around the image.")
    groups: Dimension = Field(1, description="Groups of channels that do not see each other.")
    bias: bool = Field(False, description="Whether a number is added to each channel.")
    transposed: bool = Field(False, description="The image grows by the stride instead of shrinking.")


class Pool(ModelOperation):
    """The largest or the mean of a window."""

    op: Literal["maxpool", "avgpool"] = Field(description="The largest, or the mean, of each window.")
    kernel: Sides = Field(description="Side of the window.")
    stride: Sides = Field(1, description="Steps of the window.")
    padding: Annotated[int, Field(ge=0, le=4096)] | tuple[int, int] = Field(0, description="Zeros around the image.")


class Reshape(ModelOperation):
    """Another view of the same numbers, or a part of them."""

    op: Literal[
        "global_avgpool", "flatten", "to_tokens", "mean_tokens", "first_token", "class_token", "transpose",
        "concat", "upsample", "copy",
    ] = Field(
        description="global_avgpool: an image to one row. flatten: an image or tokens to one row. to_tokens: each "
        "place of an image a token. mean_tokens, first_token: one row for all. class_token: one learned token more. "
        "transpose: tokens and their width change places. concat: channels of several images. upsample: twice as "
        "large."
    )  # fmt: skip


class MoveLayer(ModelOperation):
    """Bytes that are moved by an operation of which nothing else is known."""

    op: Literal["move"] = Field(description="Numbers that are read and written, for each sequence or image.")
    read: Extent = Field(description="Numbers read.")
    write: Extent = Field(description="Numbers written.")
    makes: Made | None = Field(None, description="Shape of what it makes; that of what comes in if not given.")
    what: str = Field("", max_length=200, description="What the file called it.")


class ViewLayer(ModelOperation):
    """The same numbers in another shape, or numbers from elsewhere; nothing is moved."""

    op: Literal["view"] = Field(description="Another shape.")
    makes: Made = Field(description="Its shape: [width], [tokens, width], or [channels, height, width] of an image.")


class ProductLayer(ModelOperation):
    """A matrix product of two tensors that are both computed, or of sizes that a table gives."""

    op: Literal["product"] = Field(description="C[m, n] = A[m, k] B[k, n], for each sequence or image.")
    m: Dimension = Field(description="Rows of A.")
    n: Dimension = Field(description="Columns of B.")
    k: Dimension = Field(description="Columns of A.")
    batch: Dimension = Field(1, description="Products of this size.")
    weights: bool = Field(False, description="B holds weights: it is stored once, and shared by a batch.")


Operation = Annotated[
    Linear | Embedding | Positions | Norm | HeadNorm | Rope | Attention | LatentAttention | Experts | PointwiseLayer
    | ConvLayer | Pool | Reshape | MoveLayer | ViewLayer | ProductLayer,
    Field(discriminator="op"),
]  # fmt: skip


class ModelBlock(Spec):
    """Operations one after the other, and how often."""

    name: Name = Field(description="What the block is called.")
    repeat: Dimension = Field(1, description="How often it stands in the model, each time with weights of its own.")
    stream: Literal["tokens", "source"] = Field(
        "tokens", description="source: it works on the text or sound that is read once, before any token is made."
    )
    inputs: tuple[Name, ...] = Field(
        (), max_length=16, description="Blocks whose results come in; the one before it if not given."
    )
    operations: tuple[Operation, ...] = Field(min_length=1, max_length=4096, description="What is done, in this order.")


class ModelUse(Spec):
    """How a model is used: how much text or how many images, in which formats, by which kernels."""

    prompt: Extent = Field(1024, description="Tokens of each sequence that are read at once.")
    generate: Annotated[int, Field(ge=0, le=10**7)] = Field(
        0, description="Tokens that are then generated one by one; none for models that generate nothing."
    )
    batch: Extent = Field(1, description="Sequences or images at a time.")
    source: Extent | None = Field(None, description="Tokens of the source, where a model has one; `prompt` if not.")
    phase: PhaseName = Field(
        "all",
        description="all: the prompt, then what is generated. prefill: the prompt alone. decode: one step, after a "
        "prompt of this length. forward: one pass with results for all tokens. train: forward, backward, optimizer.",
    )
    weights: Numbers | None = Field(None, description="Format of the weights; that of the model if not given.")
    activations: Numbers | None = Field(None, description="Format of everything between; the model's if not given.")
    kv: Numbers | None = Field(None, description="Format of kept keys and values; that of activations if not given.")
    kernels: Kernels = Field(
        "auto",
        description="Which kernels a framework starts. eager: one for each operation. compiled: element-wise ones run "
        "with what is around them. serving: as compiled, attention in one kernel, started as one graph.",
    )
    recompute: bool = Field(False, description="train: keep only the inputs of blocks, and compute the rest twice.")
    dropout: Literal["none", "layers", "all"] = Field(
        "none",
        description="train: what is dropped at random. layers: of what each layer adds, and of the embedding. all: of "
        "the scores of attention, too.",
    )
    optimizer: Literal["adam", "sgd", "none"] = Field("adam", description="train: what happens to the weights.")
    allocator: Literal["cached", "emptied"] = Field(
        "cached",
        description="train, eager: cached: a step uses the memory that the step before it left. emptied: the framework "
        "gave it back, and asks the driver for each tensor that stays, as in a first step.",
    )


class Division(Spec):
    """How devices divide a model among themselves; what is not said is as on a command line."""

    tp: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="Devices that divide heads and widths.")
    pp: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="Devices that divide layers, in line.")
    dp: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="Copies that divide sequences.")
    ep: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="Devices that divide experts.")
    sp: Literal[0, 1] | None = Field(
        None, description="1: what every device of a tp group would do alike (norms, sums) is divided by tokens."
    )
    micro: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="Parts of a batch in a pipeline.")

    def given(self) -> dict[str, int]:
        """What the file says."""
        return {name: int(value) for name, value in self.model_dump().items() if value is not None}


class ModelWorkload(WorkloadSpec):
    """A whole model: blocks of operations."""

    op: Literal["model"] = Field(description="A whole model.")
    source: str = Field("", description="Where its numbers come from.")
    input: Literal["tokens", "features"] | tuple[Extent, Extent, Extent] = Field(
        "tokens",
        description="tokens: numbers of words. features: vectors. Or the channels, height and width of images.",
    )
    width: Dimension | None = Field(None, description="features: their width.")
    sizes: dict[Name, Extent] = Field({}, description="Named extents.", examples=[{"layers": 32}])
    use: ModelUse = Field(ModelUse(), description="How it is used where nothing else is asked for.")
    parallel: Division = Field(
        Division(), description="How several devices divide it; a command line may say otherwise.",
        examples=[{"tp": 4, "pp": 2}],
    )  # fmt: skip
    context: Extent | None = Field(None, description="The longest text that it was made for.")
    blocks: tuple[ModelBlock, ...] = Field(min_length=1, max_length=1024, description="What is done, in this order.")

    runner: ClassVar[str | None] = "hwsim.models.run"

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        made: list[str] = []
        sourced = False
        for block in self.blocks:
            check_read(f"block {block.name}", block.inputs, made)
            if block.name in made:
                raise ValueError(f"there are two blocks {block.name}: every block needs a name of its own")
            made.append(block.name)
            sourced = sourced or block.stream == "source"
            known = ["input", *(["source"] if sourced else [])]
            for operation in block.operations:
                check_read(f"operation {operation.name} of block {block.name}", operation.inputs, known)
                if operation.name in known:
                    raise ValueError(f"block {block.name} has two operations {operation.name}: each needs its own name")
                known.append(operation.name)
            check_sizes(f"block {block.name}, repeat", (block.repeat,), self.sizes)
            for operation in block.operations:
                for field in (name for name in type(operation).model_fields if name not in WORDS):
                    value = getattr(operation, field)
                    extents = value if isinstance(value, tuple) else (value,)
                    check_sizes(f"operation {operation.name}, {field}", extents, self.sizes)
        return self

    def extent(self, dimension: int | str) -> int:
        return dimension if isinstance(dimension, int) else self.sizes[dimension]


WORDS = frozenset({"name", "op", "inputs", "split", "rows_of", "what"})
"""Fields of an operation that are no extents."""
