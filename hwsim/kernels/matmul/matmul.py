"""The product of two matrices, C = A B, in any loop order, with tiles for registers and caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from hwsim.errors import ShapeError
from hwsim.kernels.data import check_shape, make_input, random_values
from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop.loops import Operand
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, part
from hwsim.kernels.matmul.formula import matmul_formulas
from hwsim.kernels.matmul.plan import count_matmul_registers, cut_sums, make_matmul_plan
from hwsim.kernels.rounding import MOST, make_rounding, storing_error, sum_pieces
from hwsim.kernels.step import Instructions
from hwsim.numerics.datapath import Operand as Factor
from hwsim.numerics.datapath import find_datapath
from hwsim.numerics.format import Array, Format
from hwsim.numerics.quantize import QuantizedArray
from hwsim.spec.ops.matmul import MatmulWorkload


class Matmul(LoopKernel):
    """C[i,j] += A[i,k] * B[k,j] for i < m, j < n, k < k."""

    reads = frozenset({"accumulate", "chunk"})
    keeps_scales = True

    def __init__(self, workload: MatmulWorkload, setting: Setting, given: Mapping[str, Array] | None = None) -> None:
        numbers = setting.numbers
        self.datapath = find_datapath(
            workload.precision,
            accumulate=numbers.accumulate,
            chunk=numbers.chunk,
            scale=numbers.scale,
            block=numbers.scale_block if numbers.scale == "block" else None,
            stored=True,
        )
        super().__init__(workload.name, self.datapath.a, setting, workload.schedule, given)
        self.workload = workload
        self.schedule = workload.schedule
        self.extents = {"i": workload.m, "j": workload.sizes.n, "k": workload.k}
        self.sum_fmt = self.datapath.result
        self.quantized: dict[str, QuantizedArray] = {}
        """Inputs with their scales, where they have any; `arrays` has what they stand for."""
        transposed = self.schedule.b_layout == "jk"
        self.plan = make_matmul_plan(self.schedule, self.extents, setting.lanes, b_transposed=transposed)
        self.registers_needed = count_matmul_registers(self.plan)
        a, b, c = self._place("A", "ik"), self._place("B", self.schedule.b_layout), self._place("C", "ij")
        body = Instructions(fma=1)
        order = {index: self.extents[index] for index in self.plan.order}
        self.add_loop("matmul", order, [a, b], c, body, self._compute, plan=self.plan, accumulates=True)
        self.shared_index = "i"
        if setting.math:
            self._make_arrays(given or {})

    @property
    def tolerance(self) -> float:
        """The sum, which is kept at each tile of k; weights that are turned into another format are rounded by that."""
        path = self.datapath
        computed = path.result if path.scaled else path.a  # integers are brought to their size as real numbers
        rounding = make_rounding(computed, path.accumulator if path.chunk else path.result, path.chunk)
        kept = rounding.kept_sum(sum_pieces(self.plan, self.extents, "k"))
        turned = storing_error(path.a) if path.converts else 0.0
        return min(MOST, rounding.sum(self.extents["k"]) + kept + turned)

    @property
    def input_names(self) -> Sequence[str]:
        return ("A", "B")

    def input_format(self, name: str) -> Format:
        return self._stored(name)[0]

    def stored_input(self, name: str) -> Array | QuantizedArray:
        return self.quantized.get(name, self.arrays[name])

    @property
    def output_format(self) -> Format:
        return self.sum_fmt

    def formulas(self) -> tuple[Formula, ...]:
        sizes = {name: view.element_bytes for name, view in self.tensors.items()}
        return matmul_formulas(self.workload, self.plan, self.setting, sizes)

    def _compute(self, ranges: Ranges) -> None:
        """The real product over a range, added up along k in the schedule's tiles."""
        rows, columns = part(ranges, "i", "j")
        for cut in cut_sums(self.plan, ranges):
            (inner,) = part(cut, "k")
            a, b = self._factor("A", rows, inner), self._factor("B", inner, columns)
            self.datapath.accumulate(self.arrays["C"][rows, columns], a, b)

    def _factor(self, name: str, rows: slice, columns: slice) -> Factor:
        if name in self.quantized:
            return self.quantized[name].part(rows, columns)
        return self.arrays[name][rows, columns]

    def _output(self) -> Array:
        return self.arrays["C"]

    def _reference(self) -> Array:
        return np.asarray(self.arrays["A"].astype(np.float64) @ self.arrays["B"].astype(np.float64))

    def _place(self, name: str, indices: str) -> Operand:
        """A matrix in memory: row after row or, if packed, block after block."""
        fmt, bits = self._stored(name)
        if not self.schedule.packed:
            view = self.space.allocate(name, [self.extents[i] for i in indices], fmt, self.schedule.ld, bits=bits)
            strides = {index: view.byte_stride(axis) for axis, index in enumerate(indices)}
            self.tensors[name] = view
            return Operand(name, view.base, view.element_bytes, strides)
        blocks = [self._packed_block(index) for index in indices]
        counts = [-(-self.extents[index] // block) for index, block in zip(indices, blocks, strict=True)]
        view = self.space.allocate(name, [*counts, *blocks], fmt, bits=bits)
        strides = {index: view.byte_stride(axis + 2) for axis, index in enumerate(indices)}
        far = {index: (blocks[axis], view.byte_stride(axis)) for axis, index in enumerate(indices)}
        self.tensors[name] = view
        return Operand(name, view.base, view.element_bytes, strides, far)

    def _stored(self, name: str) -> tuple[Format, Fraction]:
        """Format of a matrix, and the bits that an element takes with its share of a block's scale."""
        if name == "C":
            return self.sum_fmt, self.sum_fmt.stored_bits
        fmt = self.datapath.a if name == "A" else self.datapath.b
        return fmt, self.datapath.stored_bits_a if name == "A" else self.datapath.stored_bits_b

    def _packed_block(self, index: str) -> int:
        """Extent of a block that is stored in one piece: the cache tile or, without one, the register
        tile."""
        if self.schedule.tiled:
            return self.plan.tile.get(index, self.extents[index])
        return self.plan.step(index)

    def _make_arrays(self, given: Mapping[str, Array]) -> None:
        if "A" in given and "B" in given:
            check_product(np.shape(given["A"]), np.shape(given["B"]))
        for number, (name, indices) in enumerate({"A": "ik", "B": "kj"}.items()):
            shape = [self.extents[index] for index in indices]
            self._make_factor(name, number, shape, given.get(name))
        self.arrays["C"] = np.zeros((self.extents["i"], self.extents["j"]), self.sum_fmt.held)

    def _make_factor(self, name: str, number: int, shape: Sequence[int], given: Array | None) -> None:
        """An input as it is stored: in its format or, with scales, quantised from real numbers."""
        left, seed, kind = name == "A", self.setting.seed, self.setting.numbers.distribution
        if (self.datapath.scale_a if left else self.datapath.scale_b) == "none":
            fmt, axis = (self.datapath.a, -1) if left else (self.datapath.b, -2)
            self.arrays[name] = make_input(seed, number, name, shape, fmt, given, distribution=kind, axis=axis)
            return
        exact = random_values(seed, number, shape, distribution=kind)
        values = exact if given is None else check_shape(name, given, shape)
        quantized = self.datapath.quantize_a(values) if left else self.datapath.quantize_b(values)
        self.quantized[name], self.arrays[name] = quantized, quantized.dequantize()


def check_product(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    """Two matrices can be multiplied if the first has as many columns as the second has rows."""
    if len(a_shape) != 2 or len(b_shape) != 2 or a_shape[1] != b_shape[0]:
        raise ShapeError(
            f"A of shape {a_shape} cannot be multiplied by B of shape {b_shape}: "
            "the columns of A must be as many as the rows of B"
        )
