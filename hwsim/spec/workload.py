"""A workload file: an operation, its sizes, the schedule by which it is computed, and its precision.

Each operation is a class of its own, found by ``op``; `hwsim.spec.operation` lists them.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from hwsim.spec.base import Name, Spec
from hwsim.spec.fields import did_you_mean
from hwsim.spec.mapping import MappingSpec
from hwsim.spec.number import Precision, SumFormat
from hwsim.spec.threads import ThreadSchedule

Distribution = Literal["uniform", "normal", "activations", "relu"]


class WorkloadSpec(Spec):
    """What is computed, how large it is, in which order, and in which precision."""

    format: Literal[1] = Field(description="Version of this file format.")
    name: Name = Field(description="What the workload is called; the file has the same name.")
    description: str = Field(description="One or two sentences for people.")
    shows: tuple[str, ...] = Field((), description="What a reader can learn from running it.")
    op: str = Field(description="The operation.", examples=["matmul"])
    precision: Precision = Field(
        "fp32",
        description="Number format of the tensors: one of these names, `e5m3` and the like, or a group that describes "
        "a format of your own. w8a16 and w4a16: fp16, with the weights of a product in int8 or int4.",
    )
    accumulate: SumFormat | None = Field(
        None, description="Number format of sums of products; if not given, one that suits the precision."
    )
    chunk: int | None = Field(
        None, ge=1, description="Products that are summed before the sum is rounded to its format; all if not given."
    )
    scale: Literal["none", "tensor", "row", "block", "auto"] = Field(
        "none",
        description="Numbers are stored over a scale, which brings the largest to the end of the range: one scale "
        "for a tensor, for each row of the left and column of the right matrix, or for each block of those. auto: one "
        "for a tensor where the format has a short range and the operation can have scales.",
    )
    scale_block: int = Field(32, ge=2, description="Numbers in a block with a common scale; a power of two.")
    convert: bool = Field(
        False,
        description="On a machine that does not compute in the precision: convert to a format that it has, and count "
        "the instructions for that.",
    )
    distribution: Distribution = Field(
        "uniform",
        description="Random inputs. uniform: in [-1, 1). normal: mean 0, deviation 1. activations: normal, with a few "
        "channels (positions along the last axis) 32 times larger. relu: normal, negative ones set to 0.",
    )
    inputs: dict[str, str] = Field(
        {}, description="Inputs of your own: `.npy` files by the names of the tensors.", examples=[{"A": "a.npy"}]
    )
    seed: int = Field(0, ge=0, description="Seed of the random inputs.")
    mapping: MappingSpec = Field(MappingSpec(), description="Tiles on a machine with arrays; others do not read it.")
    threads: ThreadSchedule = Field(
        ThreadSchedule(), description="How a matrix product is written for a GPU; others do not read it."
    )

    loops: ClassVar[tuple[str, ...]] = ()
    """Loops that a schedule may cut, where their names are not those of the sizes."""

    variants: ClassVar[dict[str, type[WorkloadSpec]]] = {}
    """The class of each operation, by the names that its ``op`` may have."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """A subclass registers itself under the names that its ``op`` lists."""
        super().__pydantic_init_subclass__(**kwargs)
        for name in getattr(cls.model_fields["op"].annotation, "__args__", ()):
            WorkloadSpec.variants[name] = cls

    @model_validator(mode="after")
    def _block_is_a_power_of_two(self) -> Self:
        if self.scale_block & (self.scale_block - 1):
            raise ValueError(f"scale_block: {self.scale_block} is not a power of two")
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _choose_variant(cls, data: Any, handler: ModelWrapValidatorHandler[WorkloadSpec]) -> WorkloadSpec:
        """``WorkloadSpec.model_validate`` gives the class that ``op`` names."""
        if cls is not WorkloadSpec or not isinstance(data, dict):
            return handler(data)
        op = data.get("op")
        if not isinstance(op, str):
            return handler(data)
        model = workload_model(op)
        if model is WorkloadSpec:
            known = sorted(WorkloadSpec.variants)
            raise ValueError(f"op: '{op}' is not one of {', '.join(known)}{did_you_mean(op, known)}")
        return model.model_validate(data)


def workload_model(op: str | None) -> type[WorkloadSpec]:
    """The class behind an ``op``; the common one if there is none of that name."""
    import hwsim.spec.operation  # noqa: F401  (its classes register themselves)

    return WorkloadSpec.variants.get(op or "", WorkloadSpec)
