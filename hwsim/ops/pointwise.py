"""Operations on single elements: alone, in chains of any length, and behind a product or a convolution.

Each is one expression of the value `x`, further operands `y` and `z`, and a number `value`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hwsim.errors import InputError
from hwsim.numerics.format import Array, Format
from hwsim.program.kernel import Formula, Setting
from hwsim.program.operation import Operation, Operator, OwnOperation, Parameter, operation
from hwsim.program.tiling import flops_of
from hwsim.spec.base import Extent, Name, ParallelSchedule, Spec
from hwsim.spec.fields import did_you_mean
from hwsim.spec.workload import WorkloadSpec

_GELU = float(np.sqrt(2 / np.pi))
_CUBIC = 0.044715
"""Of the approximation by tanh: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016."""


_TANH = f"tanh(y * ({_GELU} + {_GELU * _CUBIC} * y * y))"


@dataclass(frozen=True)
class Pointwise:
    """An expression, and the same in NumPy by another formula where there is one: the reference."""

    expression: str
    check: Callable[..., Array]
    positive: bool = False
    """Whether the value must not be negative."""

    @property
    def operands(self) -> int:
        """Operands beside the value."""
        return sum(name in self._names for name in "yz")

    @property
    def takes_number(self) -> bool:
        return "value" in self._names

    @property
    def _names(self) -> set[str]:
        return set(re.findall(r"[a-z]+", self.expression))

    def written(self, **operands: str) -> str:
        """The expression with other texts for x, y, z and value."""
        return re.sub(r"\b(x|y|z|value)\b", lambda found: operands[found[0]], self.expression)


def _sigmoid(x: Array) -> Array:
    return np.asarray((1 + np.tanh(x / 2)) / 2)


def _gelu_slope(x: Array) -> Array:
    t = np.tanh(_GELU * (x + _CUBIC * x**3))
    return np.asarray((1 + t) / 2 + x * (1 - t * t) * _GELU * (1 + 3 * _CUBIC * x * x) / 2)


POINTWISE: Mapping[str, Pointwise] = {
    "copy": Pointwise("x", lambda x: x),
    "add": Pointwise("x + y", np.add),
    "sub": Pointwise("x - y", np.subtract),
    "mul": Pointwise("x * y", np.multiply),
    "div": Pointwise("x / y", np.divide),
    "neg": Pointwise("-x", np.negative),
    "relu": Pointwise("max(x, 0)", lambda x: (x + np.abs(x)) / 2),
    "square": Pointwise("x ** 2", np.square),
    "scale": Pointwise("x * value", lambda x, value: x * value),
    "shift": Pointwise("x + value", lambda x, value: x + value),
    "exp": Pointwise("exp(x)", np.exp),
    "log": Pointwise("log(x)", np.log, positive=True),
    "sqrt": Pointwise("sqrt(x)", np.sqrt, positive=True),
    "reciprocal": Pointwise("reciprocal(x)", np.reciprocal),
    "sin": Pointwise("sin(x)", np.sin),
    "cos": Pointwise("cos(x)", np.cos),
    "sigmoid": Pointwise("1 / (1 + exp(-x))", _sigmoid),
    "tanh": Pointwise("tanh(x)", lambda x: 2 * _sigmoid(2 * x) - 1),
    "gelu": Pointwise(
        f"0.5 * x * (1 + tanh(x * ({_GELU} + {_GELU * _CUBIC} * x * x)))",
        lambda x: x / (1 + np.exp(-2 * _GELU * (x + _CUBIC * x**3))),
    ),
    "silu": Pointwise("x / (1 + exp(-x))", lambda x: x * _sigmoid(x)),
    "swiglu": Pointwise("x / (1 + exp(-x)) * y", lambda x, y: x * _sigmoid(x) * y),
    "scale_shift": Pointwise("x * y + z", lambda x, y, z: x * y + z),
    "scale_add": Pointwise("value * x + y", lambda x, y, value: value * x + y),
    "add_scaled": Pointwise("x + value * y", lambda x, y, value: x + value * y),
    "relu_backward": Pointwise("x * (y > 0)", lambda x, y: np.where(y > 0, x, 0)),
    "gelu_backward": Pointwise(
        f"0.5 * x * (1 + {_TANH} + y * (1 - {_TANH} ** 2) * ({_GELU} + {3 * _GELU * _CUBIC} * y * y))",
        lambda x, y: x * _gelu_slope(y),
    ),
    "silu_backward": Pointwise(
        "x / (1 + exp(-y)) * (1 + y * (1 - 1 / (1 + exp(-y))))",
        lambda x, y: x * _sigmoid(y) * (1 + y * (1 - _sigmoid(y))),
    ),
}
"""By name. `hwsim run MACHINE` takes each as ``op``, a chain as a step, a product or a convolution as what follows
it."""


class VectorSizes(Spec):
    """Vectors of equal length."""

    n: Extent = Field(65536, description="Elements of each vector.")


class VectorSchedule(ParallelSchedule):
    """A single loop."""

    vector: bool = Field(False, description="Use the machine's vector unit.")


class FusedSchedule(VectorSchedule):
    """One loop, or one for each operation."""

    fused: bool = Field(True, description="One pass; otherwise three passes, with two vectors between them.")


def moved(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    """Operations per element moved to or from memory, and per byte."""
    loads = sum(len(group.reads) for group in operator.groups)
    stores = len(operator.groups)
    work = sum(flops_of(group.body_cost) for group in operator.groups)
    element = Fraction(work, loads + stores)
    byte = element / fmt.element_bytes
    found = [
        Formula("operations per element moved", str(element), float(element), "flop", "intensity.element"),
        Formula("arithmetic intensity", str(byte), float(byte), "flop/B", "intensity.byte"),
    ]
    if setting.lanes == 1 or not getattr(operator.schedule, "vector", True):
        size = prod(operator.outputs[-1].shape)
        found.append(Formula("loads", f"{loads}n", loads * size, "elements", "loads"))
        found.append(Formula("stores", f"{stores}n", stores * size, "elements", "stores"))
    return tuple(found)


def _declare(name: str, rule: Pointwise) -> None:
    """``C = expression(A, B, D)`` over vectors of any shape."""
    inputs = ("A", "B", "D")[: 1 + rule.operands]
    texts = {letter: f"{tensor}[...]" for letter, tensor in zip("xyz", ("A", "B", "D"), strict=True)}
    number = {"value": Parameter(1.0, "The number that goes with it.")} if rule.takes_number else {}

    def reference(value: float | None = None, **tensors: Array) -> Array:
        constants = () if value is None else (value,)
        return rule.check(*(tensors[tensor] for tensor in inputs), *constants)

    reference.__name__, reference.__doc__ = (
        name,
        f"{rule.written(x='A', y='B', z='D', value='value')}, element by element.",
    )
    operation(
        f"{' '.join(f'{tensor}[n]' for tensor in inputs)} -> C[n]",
        f"{name}: C[...] = {rule.written(**texts, value='value')}",
        sizes=VectorSizes,
        schedule=VectorSchedule,
        formulas=moved,
        positive=frozenset("A" if rule.positive else ()),
        **number,
    )(reference)


for _name, _rule in POINTWISE.items():
    _declare(_name, _rule)


@operation(
    "B[n] C[n] -> A[n]",
    "triad: A[...] = B[...] + C[...] * 3",
    sizes=VectorSizes,
    schedule=VectorSchedule,
    formulas=moved,
)
def triad(B: Array, C: Array) -> Array:
    """A = B + 3 C over vectors: the triad of the STREAM benchmark."""
    return np.asarray(B + C + C + C)


FUSED = "fused: E[...] = D[...] + (A[...] + B[...]) * C[...]"
UNFUSED = """
    add: tmp1[...] = A[...] + B[...]
    mul: tmp2[...] = tmp1[...] * C[...]
    add: E[...] = D[...] + tmp2[...]
"""


@operation(
    "A[n] B[n] C[n] D[n] -> E[n]",
    lambda shapes, parameters, schedule: FUSED if schedule.fused else UNFUSED,
    sizes=VectorSizes,
    schedule=FusedSchedule,
    before_results=("tmp1", "tmp2"),
    formulas=moved,
)
def fused_add_mul(A: Array, B: Array, C: Array, D: Array) -> Array:
    """E = D + (A + B) * C over vectors, in one pass or in three."""
    return np.asarray(D + A * C + B * C)


class MatrixSizes(Spec):
    """A row-major matrix."""

    m: Extent = Field(256, description="Rows.")
    n: Extent = Field(1024, description="Columns.")


class StageSpec(Spec):
    """One operation on the value so far; a bare name stands for an operation that needs nothing else."""

    op: str = Field(description=f"What is done with the value: {', '.join(POINTWISE)}.")
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
    def _operands_fit(self) -> Self:
        rule = POINTWISE.get(self.op)
        if rule is None:
            near = did_you_mean(self.op, POINTWISE)
            raise ValueError(f"'{self.op}' is no pointwise operation{near}; there are {', '.join(POINTWISE)}")
        if self.along != "all" and not set(self.inputs) - {"X"}:
            raise ValueError(
                f"along={self.along} is about further tensors, of which {self.op} has none here; leave along out"
            )
        if len(self.inputs) != rule.operands:
            raise ValueError(f"{self.op} takes {rule.operands} operands beside the value, found {len(self.inputs)}")
        if (self.value is not None) != rule.takes_number:
            raise ValueError(
                f"{self.op} needs a number: give value" if rule.takes_number else f"{self.op} takes no value"
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


class Stages(OwnOperation):
    """The operation of a workload with stages: one statement for each."""

    def of(self, workload: PointwiseWorkload) -> Operator:
        axes = {"all": ("m", "n"), "rows": ("m",), "columns": ("n",)}
        inputs: dict[str, tuple[str, ...]] = {"X": ("m", "n")}
        for stage in workload.stages:
            for name in stage.inputs:
                if name != "X" and inputs.setdefault(name, axes[stage.along]) != axes[stage.along]:
                    raise InputError(
                        f"{name} runs along {inputs[name]} in one stage and {axes[stage.along]} in another"
                    )
        made = Operation(
            "+".join(stage.op for stage in workload.stages),
            self._text(workload, inputs),
            inputs,
            {"Y": ("m", "n")},
            lambda **tensors: self._reference(workload, inputs, tensors),
            schedule=PointwiseSchedule,
            over={"Y": "X"} if workload.in_place else {},
            positive=frozenset("X" if any(POINTWISE[stage.op].positive for stage in workload.stages) else ()),
            formulas=_stage_counts,
        )
        return Operator(made, made.shapes(workload.sizes), {}, workload.schedule)

    def _text(self, workload: PointwiseWorkload, inputs: Mapping[str, tuple[str, ...]]) -> str:
        """Stages in registers, or each in a loop of its own with a tensor in memory behind it."""
        lines, value, fused = [], "X[i,j]", workload.schedule.fused
        letters = {"m": "i", "n": "j"}
        for number, stage in enumerate(workload.stages, start=1):
            last = number == len(workload.stages)
            target = "Y[i,j]" if last else f"value{number}" if fused else f"pass{number}[i,j]"
            places = [f"{name}[{','.join(letters[axis] for axis in inputs[name])}]" for name in stage.inputs]
            operands = dict(zip("yz", places, strict=False))
            text = POINTWISE[stage.op].written(x=f"({value})", value=repr(stage.value), **operands)
            label = stage.op if not fused else "+".join(each.op for each in workload.stages) if number == 1 else ""
            lines.append(f"{label}: {target} = {text}" if label else f"{target} = {text}")
            value = target
        return "\n".join(lines)

    def _reference(
        self, workload: PointwiseWorkload, inputs: Mapping[str, tuple[str, ...]], tensors: Mapping[str, Array]
    ) -> Array:
        value = tensors["X"]
        for stage in workload.stages:
            extras = [tensors[name][:, None] if inputs[name] == ("m",) else tensors[name] for name in stage.inputs]
            value = POINTWISE[stage.op].check(value, *extras, *([stage.value] if stage.value is not None else []))
        return value


def _stage_counts(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    """Elements moved: all operands once and the result once or, with a pass for each stage, again and again."""
    size = prod(operator.outputs[-1].shape)
    if any(port.shape != operator.outputs[-1].shape for port in operator.inputs):
        return ()
    loads, stores = sum(len(group.reads) for group in operator.groups), len(operator.groups)
    work = sum(flops_of(group.body_cost) for group in operator.groups)
    return (
        Formula("loads", f"{loads}n", loads * size, "elements", "loads"),
        Formula("stores", f"{stores}n", stores * size, "elements", "stores"),
        Formula("operations", f"{work}n", work * size, "operations", "flops"),
    )


PointwiseWorkload.operation = Stages()
