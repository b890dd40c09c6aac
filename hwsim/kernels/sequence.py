"""Operators one after the other as one operator: what is between them lies in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop_kernel import LoopKernel
from hwsim.kernels.operator import Names, Operator, Port
from hwsim.kernels.rounding import Rounding, joined
from hwsim.numerics.format import Array, Format


class SequenceOperator(Operator):
    """Runs its parts in order; all cores finish one before the next begins.

    Each part comes with the tensor behind each of its ports. What is read before any part has written it is an input,
    what `results` names an output, and everything else scratch space.
    """

    reads = frozenset({"accumulate", "chunk"})

    def __init__(self, name: str, parts: Sequence[tuple[Operator, Names]], results: Sequence[str]) -> None:
        self.name = name
        self.parts = tuple(parts)
        inputs: dict[str, Port] = {}
        made: dict[str, Port] = {}
        for part, names in self.parts:
            for port in part.inputs:
                tensor = names[port.name]
                if tensor not in made:
                    inputs.setdefault(tensor, replace(port, name=tensor))
            for port in part.outputs:
                made[names[port.name]] = replace(port, name=names[port.name])
        self.inputs = tuple(inputs.values())
        self.outputs = tuple(made[result] for result in results)
        self.between = tuple(port for tensor, port in made.items() if tensor not in results)
        self.registers_needed = max(part.registers_needed for part, _ in self.parts)

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        tensors = dict(names)
        for port in self.between:
            tensors[port.name] = self.scratch(port.name, names)
            fmt = kernel.find_sum_format() if port.wide else kernel.fmt
            kernel.add_scratch(tensors[port.name], *port.shape, fmt=fmt, halo=port.halo)
        for part, own in self.parts:
            kernel.begin_phase(self.scratch(part.name, names))
            part.emit(kernel, {port: tensors[tensor] for port, tensor in own.items()})

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        known = dict(tensors)
        for part, own in self.parts:
            found = part.reference({port.name: known[own[port.name]] for port in part.inputs})
            known |= {own[port]: values for port, values in found.items()}
        return {port.name: known[port.name] for port in self.outputs}

    def tolerance(self, rounding: Rounding) -> float:
        """The errors of all parts together."""
        return joined(part.tolerance(rounding) for part, _ in self.parts)

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        return ()
