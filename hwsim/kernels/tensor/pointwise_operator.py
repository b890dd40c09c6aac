"""Pointwise operators: a chain of any length over a tensor, in one loop or in one loop for each operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt

from hwsim.errors import InputError
from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop.grain import first_shared
from hwsim.kernels.loop.loops import Operand
from hwsim.kernels.loop.program import flops_of
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at, part
from hwsim.kernels.operator import Names, Operator, Port
from hwsim.kernels.rounding import Rounding
from hwsim.kernels.tensor.element import (
    Element,
    check_formats,
    element_body,
    element_extras,
    element_operands,
    element_ports,
    reference_elements,
    run_elements,
)
from hwsim.numerics.format import Array, Format


class PointwiseOperator(Operator):
    """Y = elements(X), element by element. An extra may be X itself.

    `fused` runs all elements on a value while it is in a register; otherwise each is a pass of its own, with tensors in
    memory between them. `in_place` puts Y where X was.
    """

    def __init__(
        self,
        shape: Sequence[int],
        elements: Sequence[Element],
        *,
        vector: bool = True,
        fused: bool = True,
        wide: bool = False,
        in_place: bool = False,
        ports: tuple[str, str] = ("X", "Y"),
        name: str = "",
    ) -> None:
        if not elements:
            raise InputError("a pointwise operation needs at least one stage; copy is one that does nothing")
        self.shape = tuple(shape)
        self.elements = tuple(elements)
        self.name = name or "+".join(element.op for element in elements)
        self.vector = vector
        self.fused = fused
        self.source, self.target = ports
        extras = element_ports(self.elements, self.shape, known=(self.source,))
        positive = any(element.op in ("log", "sqrt") for element in self.elements)
        self.inputs = (Port(self.source, self.shape, wide=wide, positive=positive), *extras)
        self.outputs = (Port(self.target, self.shape, wide=wide, over=self.source if in_place else ""),)
        self.registers_needed = 2 + len(extras)

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        check_formats(self.elements, kernel.fmt)
        passes = [self.elements] if self.fused else [(element,) for element in self.elements]
        source = names[self.source]
        flat = self._is_flat(kernel, names)
        for number, elements in enumerate(passes):
            last = number == len(passes) - 1
            target = names[self.target] if last else self.scratch(f"pass{number + 1}", names)
            if not last:
                kernel.add_scratch(target, *self.shape, fmt=kernel.formats[names[self.target]])
            self._add_pass(kernel, names, elements, source, target, flat)
            source = target

    def _is_flat(self, kernel: LoopKernel, names: Names) -> bool:
        """Whether all tensors lie in one piece and have one shape: then one loop runs over all elements."""
        views = [kernel.tensor(names[port.name]) for port in (*self.inputs, *self.outputs)]
        return all(view.is_contiguous() and view.shape == self.shape for view in views)

    def _add_pass(
        self, kernel: LoopKernel, names: Names, elements: Sequence[Element], source: str, target: str, flat: bool
    ) -> None:
        indices = ("e",) if flat else tuple(f"e{axis}" for axis in range(len(self.shape)))
        extents = {"e": prod(self.shape)} if flat else dict(zip(indices, self.shape, strict=True))

        def seen(name: str) -> Operand:
            view = kernel.tensor(name)
            return at(view.reshape(-1) if flat else view, *indices)

        def values_of(name: str) -> Array:
            return kernel.arrays[name].reshape(-1) if flat else kernel.arrays[name]

        def compute(ranges: Ranges) -> None:
            here = part(ranges, *indices)
            values = kernel.formats[source].load(values_of(source)[here])
            values = run_elements(kernel, names, elements, indices, values, ranges, flat=flat)
            values_of(target)[here] = kernel.formats[target].store(values)

        known = (self.source,) if names[self.source] == source else ()
        reads = [seen(source), *element_operands(kernel, names, elements, indices, known=known, flat=flat)]
        name = "+".join(element.op for element in elements)
        kernel.add_loop(name, extents, reads, seen(target), element_body(elements), compute, vector=self.vector)
        kernel.shared_index = first_shared(extents, indices)

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        return {self.target: reference_elements(self.elements, tensors[self.source], tensors)}

    def tolerance(self, rounding: Rounding) -> float:
        """Each element rounds; what a pass leaves to the next is rounded too, and may be larger than the result."""
        stored = rounding.kept if self.outputs[0].wide else rounding.stored
        between = 0 if self.fused else len(self.elements) - 1
        return stored * (1 + 2 * sqrt(between)) + rounding.operations(len(self.elements))

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        """Elements moved: all operands once and the result once or, with a pass for each element, again and again."""
        size = prod(self.shape)
        if any(port.shape != self.shape for port in self.inputs):
            return ()
        passes = [self.elements] if self.fused else [(element,) for element in self.elements]
        loads = 0
        for number, elements in enumerate(passes):
            extras = {extra.port for extra in element_extras(elements)}
            loads += 1 + len(extras - {self.source} if number == 0 else extras)
        stores = len(passes)
        operations = flops_of(element_body(self.elements))
        return (
            Formula("loads", f"{loads}n", loads * size, "elements", "loads"),
            Formula("stores", f"{stores}n", stores * size, "elements", "stores"),
            Formula("operations", f"{operations}n", operations * size, "operations", "flops"),
        )
