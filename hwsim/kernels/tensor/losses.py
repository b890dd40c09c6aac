"""Losses with their gradients: softmax with cross-entropy, and the mean of squared differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop.loops import gather
from hwsim.kernels.loop.program import Loop
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at, part
from hwsim.kernels.operator import Names, Operator, Port, need_floats
from hwsim.kernels.rounding import Rounding
from hwsim.kernels.step import Instructions
from hwsim.kernels.tensor.element import Element, Extra
from hwsim.kernels.tensor.pointwise_operator import PointwiseOperator
from hwsim.kernels.tensor.rows import Rows
from hwsim.numerics.format import Array, Format


class CrossEntropyOperator(Operator):
    """For each row of X and its label: loss = -log softmax(X)[label], and its gradient dX = softmax(X) - onehot(label).

    Loops over a row: its maximum, its exponentials (kept in dX), their sum, and the gradient y - t. The loss takes the
    row's element at the label, wherever that is.
    """

    name = "cross_entropy"

    def __init__(
        self,
        examples: int,
        classes: int,
        *,
        vector: bool = True,
        rows: int = 1,
        ports: tuple[str, str, str, str] = ("labels", "X", "loss", "dX"),
    ) -> None:
        self.rows = Rows((examples, classes), rows)
        self.vector = vector
        self.ports = ports
        labels, logits, loss, gradient = ports
        self.inputs = (Port(labels, (examples,), below=classes), Port(logits, self.rows.shape))
        self.outputs = (Port(loss, (examples,)), Port(gradient, self.rows.shape))
        self.registers_needed = 5

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        need_floats(self.name, kernel.fmt)
        labels, x, _, dx = (names[port] for port in self.ports)
        top, scale = self.scratch("max", names), self.scratch("scale", names)
        for statistic in (top, scale):
            kernel.add_scratch(statistic, *self.rows.row_shape)
        columns = np.arange(self.rows.columns)

        def largest(x: Array) -> Array:
            return np.asarray(x.max(axis=-1, keepdims=True))

        def exponentials(x: Array, top: Array) -> Array:
            return np.asarray(np.exp(x - top))

        def share(powers: Array) -> Array:
            return np.asarray(1 / powers.sum(axis=-1, keepdims=True))

        def gradient(powers: Array, scale: Array, label: Array) -> Array:
            return np.asarray(powers * scale - (label == columns).astype(powers.dtype))

        loops = [
            self.rows.loop(
                kernel, "maximum", [("whole", x)], ("row", top), Instructions(add=1), largest, vector=self.vector
            ),
            self.rows.loop(
                kernel, "exponentials", [("whole", x), ("row", top)], ("whole", dx),
                Instructions(add=1, special=1), exponentials, vector=self.vector,
            ),
            self.rows.loop(
                kernel, "sum", [("whole", dx)], ("row", scale), Instructions(add=1), share,
                late_body=Instructions(special=1), vector=self.vector,
            ),
            self._loss(kernel, names, top, scale),
            self.rows.loop(
                kernel, "gradient", [("whole", dx), ("row", scale), ("row", labels)], ("whole", dx),
                Instructions(add=1, mul=1), gradient, vector=self.vector,
            ),
        ]  # fmt: skip
        self.rows.add(kernel, loops)

    def _loss(self, kernel: LoopKernel, names: Names, top: str, scale: str) -> Loop:
        """max - x[label] - log(1 / sum), with x[label] looked up."""
        labels, x, loss, _ = (names[port] for port in self.ports)
        (row,) = self.rows.indices
        view = kernel.tensor(x)
        positions = kernel.arrays[labels]
        places = gather(row, (positions, view.byte_stride(1)), (np.arange(len(positions)), view.byte_stride(0)))
        chosen = replace(at(view, None, None), strides={row: 0}, gather=places)
        formats, arrays = kernel.formats, kernel.arrays

        def compute(ranges: Ranges) -> None:
            (here,) = part(ranges, row)
            picked = arrays[x][here][np.arange(ranges[row][1]), arrays[labels][here]]
            highest, inverse = (formats[name].load(arrays[name][here]) for name in (top, scale))
            arrays[loss][here] = formats[loss].store(highest - formats[x].load(picked) - np.log(inverse))

        reads = [*(self.rows.operand(kernel, ("row", name)) for name in (top, scale, labels)), chosen]
        write = self.rows.operand(kernel, ("row", loss))
        extents = {row: self.rows.shape[0]}
        return kernel.make_loop("loss", extents, reads, write, Instructions(add=2, special=1), compute)

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """By the logarithm of the sum of exponentials, folded element by element: large logits do no harm."""
        labels, x = (tensors[port.name] for port in self.inputs)
        log_sum = np.logaddexp.reduce(x, axis=1)
        t = np.eye(self.rows.columns)[labels.astype(np.int64)]
        return {self.ports[2]: log_sum - (x * t).sum(axis=1), self.ports[3]: np.exp(x - log_sum[:, None]) - t}

    def tolerance(self, rounding: Rounding) -> float:
        """Maximum, exponentials, scale and results are stored."""
        return 4 * rounding.stored + rounding.sum(self.rows.columns) + rounding.operations(4)

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        """6 operations for each element, and 4 for each row."""
        examples, classes = self.rows.shape
        return (Formula("operations", "m(6n + 4)", examples * (6 * classes + 4), "operations", "flops"),)


class MseOperator(Operator):
    """The mean of (Y - T)² over all elements, and its gradient dY = 2 (Y - T) / n."""

    name = "mse"

    def __init__(
        self,
        shape: Sequence[int],
        *,
        vector: bool = True,
        ports: tuple[str, str, str, str] = ("Y", "T", "loss", "dY"),
    ) -> None:
        self.shape = tuple(shape)
        self.vector = vector
        y, t, self.loss, self.gradient = ports
        self.inputs = (Port(y, self.shape), Port(t, self.shape))
        self.outputs = (Port(self.loss, (1,)), Port(self.gradient, self.shape))
        self.registers_needed = 3
        count = prod(self.shape)
        elements = (Element("sub", (Extra(t),)), Element("scale", value=2 / count))
        self._gradient = PointwiseOperator(self.shape, elements, vector=vector, ports=(y, self.gradient))

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        need_floats(self.name, kernel.fmt)
        y, t = (names[port.name] for port in self.inputs)
        loss = names[self.loss]
        indices = [f"x{axis}" for axis in range(len(self.shape))]
        share = 1 / prod(self.shape)
        kernel.begin_phase(self.scratch("loss", names))

        def compute(ranges: Ranges) -> None:
            here = part(ranges, *indices)
            formats, arrays = kernel.formats, kernel.arrays
            difference = formats[y].load(arrays[y][here]) - formats[t].load(arrays[t][here])
            total = np.square(difference).sum(keepdims=True).reshape(1)
            arrays[loss][...] = formats[loss].store(total * total.dtype.type(share))

        loop = kernel.make_loop(
            "loss",
            dict(zip(indices, self.shape, strict=True)),
            [at(kernel.tensor(name), *indices) for name in (y, t)],
            at(kernel.tensor(loss), None),
            Instructions(add=1, fma=1),
            compute,
            vector=self.vector,
            accumulates=True,
            late_body=Instructions(mul=1),
        )
        kernel.add(loop)
        kernel.shared_index = ""
        kernel.begin_phase(self.scratch("gradient", names))
        self._gradient.emit(kernel, names)

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        y, t = (tensors[port.name] for port in self.inputs)
        count = prod(self.shape)
        difference = (y - t).reshape(-1)
        return {
            self.loss: np.array([difference @ difference / count]),
            self.gradient: (difference * 2 / count).reshape(self.shape),
        }

    def tolerance(self, rounding: Rounding) -> float:
        return rounding.stored + rounding.sum(prod(self.shape)) + rounding.operations(4)

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        """3 operations for each element of the loss, 2 for each of the gradient, and one division."""
        return (Formula("operations", "5n + 1", 5 * prod(self.shape) + 1, "operations", "flops"),)
