"""Epilogue of a convolution: operations on single elements of its outputs, as a workload names them or as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hwsim.errors import InputError
from hwsim.ops.pointwise import POINTWISE
from hwsim.spec.fields import did_you_mean

EpilogueName = Literal[
    "bias", "batch_norm", "scale_shift", "add", "sub", "mul", "relu", "square", "exp", "sigmoid", "tanh", "gelu", "silu"
]
EPSILON = 1e-5
"""Added to a variance before its root is taken: the default of PyTorch's BatchNorm2d."""
CHANNEL_PORTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "bias": ("add", ("b",)),
    "scale_shift": ("scale_shift", ("scale", "shift")),
    "batch_norm": ("scale_shift", ("norm_scale", "norm_shift")),
}
"""Names with a value for each channel: the operation, and the ports of its operands."""
RESIDUALS = ("residual", "residual_more")
"""Ports of all others, of the output's shape."""
NORM_PORTS = ("gamma", "beta", "mean", "var")


@dataclass(frozen=True)
class After:
    """One operation of an epilogue on the value so far: `operands` are its ports, each with the axes of the output in
    memory that it has (None: all). Of a batch norm, `norm` are the ports from which scale and shift are made."""

    name: str
    op: str
    operands: tuple[tuple[str, tuple[int, ...] | None], ...] = ()
    value: float | None = None
    norm: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.op not in POINTWISE:
            near = did_you_mean(self.op, POINTWISE)
            raise InputError(f"'{self.op}' is no pointwise operation{near}; there are {', '.join(POINTWISE)}")
        rule = POINTWISE[self.op]
        if len(self.operands) != rule.operands:
            raise InputError(f"{self.op} takes {rule.operands} operands beside the value, found {len(self.operands)}")
        if (self.value is not None) != rule.takes_number:
            raise InputError(
                f"{self.op} needs a number: give value" if rule.takes_number else f"{self.op} takes no value"
            )

    @property
    def given(self) -> tuple[str, ...]:
        return self.norm or self.ports

    @property
    def ports(self) -> tuple[str, ...]:
        return tuple(port for port, _ in self.operands)

    @property
    def places(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Each operand with its axes."""
        return ((port, tuple(range(4)) if axes is None else axes) for port, axes in self.operands)

    def expression(self, value: str, operands: Sequence[str]) -> str:
        rule = POINTWISE[self.op]
        return rule.written(x=value, value=repr(self.value), **dict(zip("yz", operands, strict=False)))


def make_epilogue(asked: Sequence[str | After], channel_axis: int) -> tuple[After, ...]:
    """Names as a workload has them, or operations; a port that occurs again has the number of its operation behind
    it."""
    found: list[After] = []
    taken: set[str] = set()

    def free(ports: Sequence[str], number: int) -> tuple[str, ...]:
        return tuple(f"{port}_{number}" if port in taken else port for port in ports)

    for number, each in enumerate(asked, 1):
        if isinstance(each, After):
            found.append(each)
            continue
        if each not in CHANNEL_PORTS and each not in POINTWISE:
            known = tuple(dict.fromkeys((*CHANNEL_PORTS, *POINTWISE)))
            raise InputError(f"epilogue: '{each}' is not one of {', '.join(known)}{did_you_mean(each, known)}")
        whole = (each, RESIDUALS[: POINTWISE[each].operands]) if each in POINTWISE else ("", ())
        op, roles = CHANNEL_PORTS.get(each, whole)
        ports = free(roles, number)
        axes = (channel_axis,) if each in CHANNEL_PORTS else None
        norm = free(NORM_PORTS, number) if each == "batch_norm" else ()
        found.append(After(each, op, tuple((port, axes) for port in ports), norm=norm))
        taken.update((*ports, *norm))
    return tuple(found)
