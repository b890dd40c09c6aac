"""Epilogue of a convolution: what a workload names, as Elements with axes of the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hwsim.errors import InputError
from hwsim.kernels.conv.batch_norm import EPSILON, NORM_PORTS
from hwsim.kernels.conv.shape import ConvShape
from hwsim.kernels.operator import Port, need_floats
from hwsim.kernels.step import Instructions
from hwsim.kernels.tensor.element import (
    Element,
    Extra,
    check_formats,
    element_body,
    element_ports,
    reference_elements,
    spread,
)
from hwsim.kernels.tensor.pointwise import POINTWISE
from hwsim.numerics.format import Array, Format
from hwsim.spec.fields import did_you_mean

CHANNEL_PORTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "bias": ("add", ("b",)),
    "scale_shift": ("scale_shift", ("scale", "shift")),
    "batch_norm": ("scale_shift", ("norm_scale", "norm_shift")),
}
"""Names with a value for each channel: the operation, and the ports of its operands."""

RESIDUALS = ("residual", "residual_more")
"""Ports of all others, of the output's shape."""


@dataclass(frozen=True)
class Norm:
    """A batch norm: the ports that it has (gamma, beta, mean, variance), and the scale and shift made of them."""

    ports: tuple[str, ...]
    made: tuple[str, ...]


@dataclass(frozen=True)
class Epilogue:
    """Elements, one after the other, each with the name that its pass has in a report."""

    shape: ConvShape
    elements: tuple[Element, ...] = ()
    names: tuple[str, ...] = ()
    norms: Mapping[int, Norm] = field(default_factory=dict)
    """Batch norms, by the number of their element."""

    def __bool__(self) -> bool:
        return bool(self.elements)

    def norm(self, number: int) -> Norm | None:
        return self.norms.get(number)

    def given(self, number: int) -> tuple[str, ...]:
        """The ports that belong to an element."""
        norm = self.norm(number)
        return norm.ports if norm is not None else tuple(extra.port for extra in self.elements[number].extras)

    @property
    def ports(self) -> tuple[Port, ...]:
        found: list[Port] = []
        for number, element in enumerate(self.elements):
            norm = self.norm(number)
            if norm is not None:
                channels = (self.shape.co,)
                pairs = zip(norm.ports, NORM_PORTS, strict=True)
                found += [Port(port, channels, wide=True, positive=role == "var") for port, role in pairs]
            else:
                found += element_ports((element,), self.shape.output_shape, [port.name for port in found], wide=True)
        return tuple(found)

    @property
    def body(self) -> Instructions:
        return element_body(self.elements)

    def check(self, fmt: Format) -> None:
        """Whole numbers stay whole."""
        if self.norms:
            need_floats("batch norm", fmt)
        check_formats(self.elements, fmt)

    def reference(self, y: Array, tensors: Mapping[str, Array]) -> Array:
        """In float64 on whole tensors as they lie in memory, batch norm by its definition."""
        for number, element in enumerate(self.elements):
            norm = self.norm(number)
            if norm is None:
                y = reference_elements((element,), y, tensors)
                continue
            axes = (self.shape.channel_axis,)
            gamma, beta, mean, var = (spread(tensors[port], axes, 4) for port in norm.ports)
            y = gamma * (y - mean) / np.sqrt(var + EPSILON) + beta
        return y


def make_epilogue(shape: ConvShape, asked: Sequence[str | Element]) -> Epilogue:
    """Names as a workload has them, or Elements; a port that occurs again has the number of its operation behind it."""
    elements: list[Element] = []
    norms: dict[int, Norm] = {}
    taken: set[str] = set()

    def free(ports: Sequence[str], number: int) -> tuple[str, ...]:
        return tuple(f"{port}_{number}" if port in taken else port for port in ports)

    for number, each in enumerate(asked, 1):
        if isinstance(each, Element):
            elements.append(each)
            continue
        op, roles = _operation(each)
        ports = free(roles, number)
        axes = (shape.channel_axis,) if each in CHANNEL_PORTS else None
        elements.append(Element(op, tuple(Extra(port, axes) for port in ports)))
        if each == "batch_norm":
            norms[number - 1] = Norm(free(NORM_PORTS, number), ports)
            taken.update(norms[number - 1].ports)
        taken.update(ports)
    names = tuple(each.op if isinstance(each, Element) else each for each in asked)
    return Epilogue(shape, tuple(elements), names, norms)


def _operation(name: str) -> tuple[str, tuple[str, ...]]:
    """The operation behind a name, and the ports of its operands."""
    if name in CHANNEL_PORTS:
        return CHANNEL_PORTS[name]
    if name not in POINTWISE:
        known = tuple(dict.fromkeys((*CHANNEL_PORTS, *POINTWISE)))
        raise InputError(f"epilogue: '{name}' is not one of {', '.join(known)}{did_you_mean(name, known)}")
    return name, RESIDUALS[: POINTWISE[name].extras]
