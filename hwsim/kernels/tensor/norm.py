"""Layer normalisation and RMS normalisation of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop_kernel import LoopKernel
from hwsim.kernels.operator import Names, Operator, Port, need_floats
from hwsim.kernels.rounding import Rounding
from hwsim.kernels.step import Instructions
from hwsim.kernels.tensor.rows import Rows
from hwsim.numerics.format import Array, Format

ROOT = Instructions(fma=1, special=2)
"""1 / sqrt(sum / n + epsilon): one multiply-add, a root and a division."""


class LayerNormOperator(Operator):
    """Y = (X - mean) / sqrt(variance + epsilon) * gamma + beta, over the last axis.

    Three loops over a row: its mean, its variance, and the result; `rows` of them go through all three together.
    """

    name = "layernorm"

    def __init__(
        self,
        shape: Sequence[int],
        *,
        epsilon: float = 1e-5,
        vector: bool = True,
        rows: int = 1,
        ports: tuple[str, str, str, str] = ("X", "gamma", "beta", "Y"),
    ) -> None:
        self.rows = Rows(tuple(shape), rows)
        self.epsilon = epsilon
        self.vector = vector
        self.ports = ports
        source, gamma, beta, target = ports
        columns = (self.rows.columns,)
        self.inputs = (Port(source, self.rows.shape), Port(gamma, columns), Port(beta, columns))
        self.outputs = (Port(target, self.rows.shape),)
        self.registers_needed = 6

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        need_floats(self.name, kernel.fmt)
        x, gamma, beta, y = (names[port] for port in self.ports)
        mean, scale = self.scratch("mean", names), self.scratch("scale", names)
        for statistic in (mean, scale):
            kernel.add_scratch(statistic, *self.rows.row_shape)
        n = kernel.fmt.computed.type(self.rows.columns)
        epsilon = kernel.fmt.computed.type(self.epsilon)

        def average(x: Array) -> Array:
            return np.asarray(x.sum(axis=-1, keepdims=True) / n)

        def spread(x: Array, mean: Array) -> Array:
            return np.asarray(1 / np.sqrt(np.square(x - mean).sum(axis=-1, keepdims=True) / n + epsilon))

        def normalise(x: Array, mean: Array, scale: Array, gamma: Array, beta: Array) -> Array:
            return (x - mean) * scale * gamma + beta

        loops = [
            self.rows.loop(
                kernel, "mean", [("whole", x)], ("row", mean), Instructions(add=1), average,
                late_body=Instructions(mul=1), vector=self.vector,
            ),
            self.rows.loop(
                kernel, "variance", [("whole", x), ("row", mean)], ("row", scale), Instructions(add=1, fma=1), spread,
                late_body=ROOT, vector=self.vector,
            ),
            self.rows.loop(
                kernel, "normalise",
                [("whole", x), ("row", mean), ("row", scale), ("column", gamma), ("column", beta)],
                ("whole", y), Instructions(add=1, mul=1, fma=1), normalise, vector=self.vector,
            ),
        ]  # fmt: skip
        self.rows.add(kernel, loops)

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Variance as the mean of squares less the square of the mean."""
        x, gamma, beta = (tensors[port.name] for port in self.inputs)
        mean = x.mean(axis=-1, keepdims=True)
        variance = (x * x).mean(axis=-1, keepdims=True) - mean * mean
        return {self.ports[-1]: (x - mean) / np.sqrt(variance + self.epsilon) * gamma + beta}

    def tolerance(self, rounding: Rounding) -> float:
        return _tolerance(self.rows, rounding)

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        """8 operations for each element, and 5 for each row."""
        return _formulas(self.rows, "8n + 5", 8, 5)


class RMSNormOperator(Operator):
    """Y = X / sqrt(mean of X² + epsilon) * gamma, over the last axis: two loops over a row."""

    name = "rmsnorm"

    def __init__(
        self,
        shape: Sequence[int],
        *,
        epsilon: float = 1e-5,
        vector: bool = True,
        rows: int = 1,
        ports: tuple[str, str, str] = ("X", "gamma", "Y"),
    ) -> None:
        self.rows = Rows(tuple(shape), rows)
        self.epsilon = epsilon
        self.vector = vector
        self.ports = ports
        source, gamma, target = ports
        self.inputs = (Port(source, self.rows.shape), Port(gamma, (self.rows.columns,)))
        self.outputs = (Port(target, self.rows.shape),)
        self.registers_needed = 4

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        need_floats(self.name, kernel.fmt)
        x, gamma, y = (names[port] for port in self.ports)
        scale = self.scratch("scale", names)
        kernel.add_scratch(scale, *self.rows.row_shape)
        n = kernel.fmt.computed.type(self.rows.columns)
        epsilon = kernel.fmt.computed.type(self.epsilon)

        def root(x: Array) -> Array:
            return np.asarray(1 / np.sqrt(np.square(x).sum(axis=-1, keepdims=True) / n + epsilon))

        def normalise(x: Array, scale: Array, gamma: Array) -> Array:
            return x * scale * gamma

        loops = [
            self.rows.loop(
                kernel, "mean square", [("whole", x)], ("row", scale), Instructions(fma=1), root,
                late_body=ROOT, vector=self.vector,
            ),
            self.rows.loop(
                kernel, "normalise", [("whole", x), ("row", scale), ("column", gamma)], ("whole", y),
                Instructions(mul=2), normalise, vector=self.vector,
            ),
        ]  # fmt: skip
        self.rows.add(kernel, loops)

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """The length of a row, as a norm."""
        x, gamma = (tensors[port.name] for port in self.inputs)
        length = np.linalg.norm(x, axis=-1, keepdims=True)
        return {self.ports[-1]: x * gamma / np.sqrt(length**2 / self.rows.columns + self.epsilon)}

    def tolerance(self, rounding: Rounding) -> float:
        return _tolerance(self.rows, rounding)

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        """4 operations for each element, and 4 for each row."""
        return _formulas(self.rows, "4n + 4", 4, 4)


def _tolerance(rows: Rows, rounding: Rounding) -> float:
    """Mean and scale of a row are stored, and so is the result; a sum over the row makes each of the two."""
    return 3 * rounding.stored + 2 * rounding.sum(rows.columns) + rounding.operations(4)


def _formulas(rows: Rows, expression: str, per_element: int, per_row: int) -> tuple[Formula, ...]:
    count = prod(rows.row_shape)
    operations = count * (per_element * rows.columns + per_row)
    return (Formula("operations", f"m({expression})", operations, "operations", "flops"),)
