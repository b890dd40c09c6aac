"""A chain: operations on named tensors, one after the other; what one leaves for the next lies in memory.

sizes: {n: 64, d: 128}
tensors: {x: [n, d], w: [d, d], b: [d]}
operations:
  - {name: h, op: matmul, inputs: [x, w]}
  - {name: z, op: add, inputs: [h, b]}
  - {name: y, op: relu, inputs: [z]}
schedule: {fuse: [[h, z, y]]}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hwsim.spec.base import Name, Spec
from hwsim.spec.fields import did_you_mean
from hwsim.spec.ops.common import Extent, ParallelSchedule
from hwsim.spec.workload import WorkloadSpec

Dimension = Extent | Name
"""An extent: a number, or the name of one of the chain's sizes."""

Rewrite = Literal["fold_batch_norm", "merge_matmuls", "fuse_pointwise"]


class ChainStep(Spec):
    """One operation; its name is that of the tensor which it makes."""

    name: Name = Field(description="What the operation is called, and the tensor that it makes.")
    inputs: tuple[Name, ...] = Field(min_length=1, description="The tensors that it reads, in its own order.")


class MatmulStep(ChainStep):
    """Inputs: a [m, k], b [k, n]; both may have the same axes in front."""

    op: Literal["matmul"] = Field(description="Matrix product.")
    transpose_a: bool = Field(False, description="Whether a is stored as [k, m].")
    transpose_b: bool = Field(False, description="Whether b is stored as [n, k].")


class PointwiseStep(ChainStep):
    """Inputs: x and, where the operation has two operands, y: of the same shape, or of the last axes of x."""

    op: Literal[
        "add", "sub", "mul", "relu", "gelu", "silu", "sigmoid", "tanh", "exp", "square", "copy", "relu_backward"
    ] = Field(description="What is done with each element; relu_backward is x where y > 0.")


class ScaleStep(ChainStep):
    """Inputs: x and, if given, y: factor * x + y; with `over`, factor / (product of these extents) * x + y."""

    op: Literal["scale"] = Field(description="Multiply by a number, and add a tensor if there is one.")
    factor: float = Field(description="What x is multiplied by.")
    over: tuple[Dimension, ...] = Field(
        (),
        description="Extents that the factor is divided by, so that it follows the sizes: the gradient of a mean over "
        "n x d values has factor 2 over [n, d].",
        examples=[["n", "d"]],
    )


class ConvStep(ChainStep):
    """Inputs: x [n, c, h, w], w [co, c / groups, kh, kw] and, if given, bias [co]."""

    op: Literal["conv2d"] = Field(description="Convolution.")
    stride: Extent = Field(1, description="Pixels from one window to the next.")
    padding: int = Field(0, ge=0, description="Zeros around the image.")
    dilation: Extent = Field(1, description="Pixels from one element of the window to the next.")
    groups: Dimension = Field(1, description="Groups of channels that do not see each other.")


class BatchNormStep(ChainStep):
    """Inputs: x [n, c, …], gamma [c], beta [c], mean [c], variance [c]."""

    op: Literal["batch_norm"] = Field(description="Normalisation by known mean and variance of each channel.")


class PoolStep(ChainStep):
    """Input: x [n, c, h, w]."""

    op: Literal["maxpool", "avgpool"] = Field(description="Largest value, or mean, of each window.")
    window: Extent = Field(2, description="Side of a window; windows lie side by side.")


class NormStep(ChainStep):
    """Inputs: x and, along its last axis, gamma and (layernorm only) beta."""

    op: Literal["layernorm", "rmsnorm"] = Field(description="Normalisation of each row.")
    epsilon: float = Field(1e-5, gt=0, description="Added to the mean square.")


class SoftmaxStep(ChainStep):
    """Input: x; along its last axis."""

    op: Literal["softmax"] = Field(description="Exponentials that add up to one in each row.")


class ReduceStep(ChainStep):
    """Input: x."""

    op: Literal["sum", "mean", "max"] = Field(description="How the elements along an axis become one.")
    axis: int = Field(-1, description="Which axis goes away; counted from the end if negative.")


class AttentionStep(ChainStep):
    """Inputs: q [n, heads * d], k and v [m, kv_heads * d]; an axis in front is a batch."""

    op: Literal["attention"] = Field(description="softmax(q kᵀ / √d) v, head by head.")
    heads: Dimension = Field(1, description="Heads that the columns of q are divided into.")
    kv_heads: Dimension | None = Field(None, description="Heads of k and v; as many as of q if not given.")
    causal: bool = Field(False, description="Whether a row sees only the rows up to itself.")
    variant: Literal["naive", "fused"] = Field("fused", description="With all scores in memory, or tile by tile.")
    br: Extent = Field(32, description="Rows of q in a tile of the fused variant.")
    bc: Extent = Field(32, description="Rows of k and v in a tile of the fused variant.")


AnyStep = Annotated[
    MatmulStep
    | PointwiseStep
    | ScaleStep
    | ConvStep
    | BatchNormStep
    | PoolStep
    | NormStep
    | SoftmaxStep
    | ReduceStep
    | AttentionStep,
    Field(discriminator="op"),
]


class ChainSchedule(ParallelSchedule):
    """How the operations run, and which of them run together."""

    vector: bool = Field(True, description="Use the machine's vector unit.")
    v1: Extent = Field(4, description="Rows of the register tile of matrix products.")
    tile: Extent | None = Field(None, description="Side of a cache tile of matrix products.")
    fuse: tuple[tuple[Name, ...], ...] = Field(
        (),
        description="Groups of operations that run as one: the tensors between them are never stored. A matrix "
        "product or convolution with element-wise operations after it, element-wise operations, or a convolution that "
        "ends in a max-pool.",
        examples=[[["conv1", "relu1"]]],
    )
    fused: bool = Field(True, description="false: nothing is fused, whatever `fuse` says.")
    rewrite: tuple[Rewrite, ...] = Field(
        (),
        description="Rules that change the chain and not its result. fold_batch_norm: into the weights of the "
        "convolution before it. merge_matmuls: products of one tensor with several matrices become one (q, k, v). "
        "fuse_pointwise: element-wise operations run with what makes their input.",
    )


class ChainWorkload(WorkloadSpec):
    """Operations on named tensors."""

    op: Literal["chain"] = Field(description="Several operations, one after the other.")
    sizes: dict[Name, Extent] = Field(description="Named extents.", examples=[{"n": 64, "d": 128}])
    tensors: dict[Name, tuple[Dimension, ...]] = Field(
        description="Shape of every tensor that the chain is given.", examples=[{"x": ["n", "d"]}]
    )
    operations: tuple[AnyStep, ...] = Field(min_length=1, description="What is done, in this order.")
    schedule: ChainSchedule = Field(ChainSchedule(), description="How it is done.")

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        known = set(self.tensors)
        for step in self.operations:
            for name in step.inputs:
                if name not in known:
                    hint = did_you_mean(name, sorted(known))
                    raise ValueError(f"operation {step.name} reads {name}, which nothing before it makes{hint}")
            if step.name in known:
                raise ValueError(f"there are two tensors {step.name}: every operation needs a name of its own")
            known.add(step.name)
        for where, dimension in self._dimensions():
            if isinstance(dimension, str) and dimension not in self.sizes:
                raise ValueError(f"{where}: no size {dimension}{did_you_mean(dimension, sorted(self.sizes))}")
        return self

    @model_validator(mode="after")
    def _groups_are_runs(self) -> Self:
        made = [step.name for step in self.operations]
        grouped: set[str] = set()
        for group in self.schedule.fuse:
            for name in group:
                if name not in made:
                    raise ValueError(f"schedule.fuse: there is no operation {name}{did_you_mean(name, made)}")
                if name in grouped:
                    raise ValueError(f"schedule.fuse: {name} is in two groups")
                grouped.add(name)
        return self

    def extent(self, dimension: int | str) -> int:
        return dimension if isinstance(dimension, int) else self.sizes[dimension]

    def _dimensions(self) -> Iterator[tuple[str, int | str]]:
        for name, shape in self.tensors.items():
            for dimension in shape:
                yield f"tensors.{name}", dimension
        for step in self.operations:
            for field in ("groups", "heads", "kv_heads"):
                value = getattr(step, field, None)
                if value is not None:
                    yield f"operation {step.name}, {field}", value
            for dimension in step.over if isinstance(step, ScaleStep) else ():
                yield f"operation {step.name}, over", dimension
