"""A workload file: an operation, its sizes, the schedule by which it is computed, and its precision.

Each operation is a class of its own, found by ``op``; `hwsim.spec.operation` lists them.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from hwsim.spec.base import Name, Spec
from hwsim.spec.fields import did_you_mean
from hwsim.spec.mapping import MappingSpec

Precision = Literal["fp64", "fp32", "fp16", "bf16", "int32", "int8"]


class WorkloadSpec(Spec):
    """What is computed, how large it is, in which order, and in which precision."""

    format: Literal[1] = Field(description="Version of this file format.")
    name: Name = Field(description="What the workload is called; the file has the same name.")
    description: str = Field(description="One or two sentences for people.")
    shows: tuple[str, ...] = Field((), description="What a reader can learn from running it.")
    op: str = Field(description="The operation.", examples=["matmul"])
    precision: Precision = Field("fp32", description="Number format of the tensors.")
    seed: int = Field(0, ge=0, description="Seed of the random inputs.")
    mapping: MappingSpec = Field(MappingSpec(), description="Tiles on a machine with arrays; others do not read it.")

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
