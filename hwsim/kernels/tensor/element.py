"""Element: one element-wise operation, applied to a value in a register: in a loop of its own or in an epilogue.

    [Element("add", (Extra("bias", (1,)),)), Element("gelu"), Element("scale", value=0.5)]

adds a vector along the last axis of a matrix, takes the GELU, and halves it. An extra has some of the axes of the
value, in order, and is repeated along the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hwsim.errors import InputError
from hwsim.kernels.loop.loops import Operand
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at, part
from hwsim.kernels.operator import Names, Port, need_floats
from hwsim.kernels.step import Instructions
from hwsim.kernels.tensor.pointwise import POINTWISE, Pointwise
from hwsim.numerics.format import Array, Format
from hwsim.spec.fields import did_you_mean


@dataclass(frozen=True)
class Extra:
    """A further operand: its port, and the axes of the value that it has; all of them if not said."""

    port: str
    axes: tuple[int, ...] | None = None

    def axes_of(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank)) if self.axes is None else self.axes


@dataclass(frozen=True)
class Element:
    """One pointwise operation, with its operands beside the value, and its number if it takes one."""

    op: str
    extras: tuple[Extra, ...] = ()
    value: float | None = None

    @property
    def rule(self) -> Pointwise:
        return POINTWISE[self.op]

    def __post_init__(self) -> None:
        if self.op not in POINTWISE:
            near = did_you_mean(self.op, POINTWISE)
            raise InputError(f"'{self.op}' is no pointwise operation{near}; there are {', '.join(POINTWISE)}")
        if len(self.extras) != self.rule.extras:
            raise InputError(f"{self.op} takes {self.rule.extras} operands beside the value, found {len(self.extras)}")
        if (self.value is not None) != self.rule.constant:
            raise InputError(
                f"{self.op} needs a number: give value" if self.rule.constant else f"{self.op} takes no value"
            )

    def apply(self, values: Array, extras: Sequence[Array], exact: bool = False) -> Array:
        """The values after this operation; `exact` takes the formula of the reference."""
        function = self.rule.check if exact and self.rule.check is not None else self.rule.function
        constants = () if self.value is None else (values.dtype.type(self.value),)
        return np.asarray(function(values, *extras, *constants))


def element_extras(elements: Sequence[Element]) -> tuple[Extra, ...]:
    """Every extra once, in order."""
    return tuple(dict.fromkeys(extra for element in elements for extra in element.extras))


def element_ports(
    elements: Sequence[Element], shape: Sequence[int], known: Sequence[str] = (), *, wide: bool = False
) -> tuple[Port, ...]:
    """The ports of all extras, but for those that are already known; each has the extents of its axes."""
    found: dict[str, Port] = {}
    for extra in element_extras(elements):
        axes = extra.axes_of(len(shape))
        if list(axes) != sorted(set(axes)) or not all(0 <= axis < len(shape) for axis in axes) or not axes:
            raise InputError(f"{extra.port}: {axes} are not axes of {tuple(shape)} in ascending order")
        port = Port(extra.port, tuple(shape[axis] for axis in axes), wide=wide)
        if found.setdefault(extra.port, port).shape != port.shape:
            raise InputError(
                f"{extra.port} has shape {found[extra.port].shape} in one stage and {port.shape} in another"
            )
    return tuple(port for name, port in found.items() if name not in known)


def element_body(elements: Sequence[Element]) -> Instructions:
    """The arithmetic of one element through all elements."""
    return sum((element.rule.body for element in elements), Instructions())


def check_formats(elements: Sequence[Element], fmt: Format) -> None:
    """Operations with exponentials, roots, divisions or broken numbers have no meaning in whole numbers."""
    for element in elements:
        if element.rule.needs_floats:
            need_floats(element.op, fmt)


def element_operands(
    kernel: LoopKernel,
    names: Names,
    elements: Sequence[Element],
    indices: Sequence[str],
    *,
    known: Sequence[str] = (),
    flat: bool = False,
) -> list[Operand]:
    """The extras as a loop over the axes of the value sees them, but for those that it reads anyway.

    `flat` is one index over all elements of tensors that lie in one piece.
    """
    operands = []
    for extra in element_extras(elements):
        if extra.port not in known:
            view = kernel.tensor(names[extra.port])
            axes = extra.axes_of(len(indices))
            operands.append(at(view.reshape(-1) if flat else view, *(indices[axis] for axis in axes)))
    return operands


def run_elements(
    kernel: LoopKernel,
    names: Names,
    elements: Sequence[Element],
    indices: Sequence[str],
    values: Array,
    ranges: Ranges,
    *,
    flat: bool = False,
) -> Array:
    """The values of a range after all elements, with the extras of that range from memory."""

    def fetch(extra: Extra) -> Array:
        name = names[extra.port]
        axes = extra.axes_of(len(indices))
        array = kernel.arrays[name].reshape(-1) if flat else kernel.arrays[name]
        stored = array[part(ranges, *(indices[axis] for axis in axes))]
        return spread(kernel.formats[name].load(stored), axes, len(indices))

    return apply_elements(elements, values, fetch)


def reference_elements(elements: Sequence[Element], values: Array, tensors: Mapping[str, Array]) -> Array:
    """The same in float64, from whole tensors by port."""

    def fetch(extra: Extra) -> Array:
        return spread(tensors[extra.port], extra.axes_of(values.ndim), values.ndim)

    return apply_elements(elements, values, fetch, exact=True)


def apply_elements(
    elements: Sequence[Element], values: Array, fetch: Callable[[Extra], Array], exact: bool = False
) -> Array:
    """The values after all elements; `fetch` gives the extras in a shape that fits them."""
    for element in elements:
        values = element.apply(values, [fetch(extra) for extra in element.extras], exact)
    return values


def spread(array: Array, axes: Sequence[int], rank: int) -> Array:
    """An axis of length one for each axis that an extra does not have."""
    return array[tuple(slice(None) if axis in axes else None for axis in range(rank))]
