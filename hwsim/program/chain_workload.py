"""Files of chains: operations on named tensors, one after the other; what one leaves for the next lies in memory.

sizes: {n: 64, d: 128}
tensors: {x: [n, d], w: [d, d], b: [d]}
operations:
  - {name: h, op: matmul, inputs: [x, w]}
  - {name: z, op: add, inputs: [h, b]}
  - {name: y, op: relu, inputs: [z]}
schedule: {fuse: [[h, z, y]]}
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, SerializeAsAny, ValidationInfo, create_model, model_validator

from hwsim.errors import InputError
from hwsim.program.expression import Apply, Expr, Number, Symbol
from hwsim.program.operation import Operation, find_operation
from hwsim.program.statement import parse_expression
from hwsim.spec.base import Dimension, Extent, Name, ParallelSchedule, Spec
from hwsim.spec.fields import check_read, check_sizes, did_you_mean
from hwsim.spec.workload import WorkloadSpec

Rewrite = Literal["fold_batch_norm", "merge_matmuls", "fuse_pointwise"]


class ChainStep(Spec):
    """One operation; its name is that of the tensor which it makes. Any operation will do, with its own parameters.

    A number may be given as a formula of the sizes: ``value: 2 / (n * d)``.
    """

    name: Name = Field(description="What the operation is called, and the tensor that it makes.")
    op: str = Field(description="The operation: any that a workload file may ask for.", examples=["matmul"])
    inputs: tuple[Name, ...] = Field(min_length=1, description="The tensors that it reads, in its own order.")

    @model_validator(mode="wrap")
    @classmethod
    def _choose_variant(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """The class of the operation that ``op`` names."""
        if cls is not ChainStep or not isinstance(data, dict) or not isinstance(data.get("op"), str):
            return handler(data)
        try:
            operation = find_operation(data["op"])
        except InputError as error:
            raise ValueError(str(error)) from None
        context = info.context or {}
        made = step_model(operation).model_validate(data, strict=context.get("strict"), context=info.context)
        assert isinstance(made, cls)
        return made

    @property
    def operation(self) -> Operation:
        return find_operation(self.op)


@cache
def step_model(operation: Operation) -> type[ChainStep]:
    """What a step of a chain may say of an operation: its parameters, and how it is scheduled."""
    fields: dict[str, Any] = {"op": (Literal[operation.name], Field(description=operation.summary))}
    for name, each in operation.parameters.items():
        kind = each.type or type(each.default)
        fields[name] = (kind | str if is_number(kind) else kind, Field(each.default, description=each.description))
    for name in operation.scheduled:
        fields[name] = (operation.schedule.model_fields[name].annotation, operation.schedule.model_fields[name])
    return create_model(f"{operation.name.title().replace('_', '')}Step", __base__=ChainStep, **fields)


def is_number(kind: Any) -> bool:
    """Whether a parameter is a number, which may be given as a formula."""
    return kind in (int, float, int | None)


class ChainSchedule(ParallelSchedule):
    """How the operations run, and which of them run together."""

    vector: bool = Field(True, description="Use the machine's vector unit.")
    v1: Extent = Field(4, description="Rows of the register tile of matrix products.")
    tile: Extent | None = Field(None, description="Side of a cache tile of matrix products.")
    fuse: tuple[tuple[Name, ...], ...] = Field(
        (),
        description="Groups of operations that run as one: the tensors between them are never stored. Any operation "
        "with element-wise ones after it, or a convolution that ends in a max-pool.",
        examples=[[["conv1", "relu1"]]],
    )
    fused: bool = Field(True, description="false: nothing is fused, whatever `fuse` says.")
    epilogues: Extent | None = Field(
        None,
        description="Most operations that run behind a product or a convolution in one kernel; what follows them is a "
        "kernel of its own. As many as are fused if not given; a GPU's library may have a limit (`library.epilogues`).",
    )
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
    operations: tuple[SerializeAsAny[ChainStep], ...] = Field(min_length=1, description="What is done, in this order.")
    schedule: ChainSchedule = Field(ChainSchedule(), description="How it is done.")

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        known = list(self.tensors)
        for step in self.operations:
            check_read(f"operation {step.name}", step.inputs, known)
            if step.name in known:
                raise ValueError(f"there are two tensors {step.name}: every operation needs a name of its own")
            known.append(step.name)
        for name, shape in self.tensors.items():
            check_sizes(f"tensors.{name}", shape, self.sizes)
        for step in self.operations:
            try:
                self.parameters(step)
            except InputError as error:
                raise ValueError(str(error)) from None
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

    def parameters(self, step: ChainStep) -> dict[str, Any]:
        """The parameters of a step, with what is given as a formula of the sizes as a number."""
        found: dict[str, Any] = {}
        for name, each in step.operation.parameters.items():
            value = getattr(step, name)
            kind = each.type or type(each.default)
            if isinstance(value, str) and is_number(kind):
                value = (float if kind is float else int)(
                    _number(parse_expression(value), self.sizes, f"operation {step.name}, {name}")
                )
            found[name] = value
        return found


def _number(expr: Expr, sizes: Mapping[str, int], where: str) -> float:
    """The value of a formula of the sizes."""
    match expr:
        case Number(value):
            return value
        case Symbol(name):
            if name not in sizes:
                raise InputError(f"{where}: no size {name}{did_you_mean(name, sorted(sizes))}")
            return sizes[name]
        case Apply("neg", (a,)):
            return -_number(a, sizes, where)
        case Apply("+" | "-" | "*" | "/" as sign, (a, b)):
            left, right = _number(a, sizes, where), _number(b, sizes, where)
            return {"+": left + right, "-": left - right, "*": left * right, "/": left / right if right else 0}[sign]
    raise InputError(f"{where}: only sizes, numbers and + - * / make a number")
