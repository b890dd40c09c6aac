"""Operations on each element of a tensor, several in one pass."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from hwsim.spec.base import Name, Spec
from hwsim.spec.ops.common import Extent, ParallelSchedule
from hwsim.spec.workload import WorkloadSpec

PointwiseName = Literal[
    "copy", "add", "sub", "mul", "div", "neg", "relu", "square", "scale", "shift", "exp", "log", "sqrt", "reciprocal",
    "sin", "cos", "sigmoid", "tanh", "gelu", "silu", "scale_shift", "scale_add", "add_scaled", "relu_backward",
    "gelu_backward", "silu_backward",
]  # fmt: skip


class MatrixSizes(Spec):
    """A row-major matrix."""

    m: Extent = Field(256, description="Rows.")
    n: Extent = Field(1024, description="Columns.")


class StageSpec(Spec):
    """One operation on the value so far; a bare name stands for an operation that needs nothing else."""

    op: PointwiseName = Field(description="What is done with the value.")
    inputs: tuple[Name | Literal["X"], ...] = Field(
        (), description="Tensors that it takes beside the value, by names of your choice; X is the input itself."
    )
    along: Literal["all", "rows", "columns"] = Field(
        "all", description="all: they are as large as X; rows: one element for each row; columns: one for each column."
    )
    value: float | None = Field(None, description="The number that scale, shift, scale_add and add_scaled take.")

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, data: Any) -> Any:
        return {"op": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _along_something(self) -> Self:
        if self.along != "all" and not set(self.inputs) - {"X"}:
            raise ValueError(
                f"along={self.along} is about further tensors, of which {self.op} has none here; leave along out"
            )
        return self


class PointwiseSchedule(ParallelSchedule):
    """One loop, or one for each operation."""

    vector: bool = Field(True, description="Use the machine's vector unit.")
    fused: bool = Field(
        True, description="One pass; otherwise one for each stage, with tensors in memory between them."
    )


class PointwiseWorkload(WorkloadSpec):
    """Y = stages(X), element by element."""

    op: Literal["pointwise"] = Field(description="A chain of operations on each element.")
    stages: tuple[StageSpec, ...] = Field(
        min_length=1,
        description="The operations, in order.",
        examples=[[{"op": "add", "inputs": ["bias"], "along": "columns"}, {"op": "gelu"}]],
    )
    in_place: bool = Field(False, description="Whether Y takes the memory of X.")
    sizes: MatrixSizes = Field(MatrixSizes(), description="Extents of X.")
    schedule: PointwiseSchedule = Field(PointwiseSchedule(), description="How the loop runs.")
