"""The product of two matrices, C = A B, in any loop order, with tiles for registers and caches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hwsim.errors import ShapeError
from hwsim.kernels.data import make_input
from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, part
from hwsim.kernels.loops import Operand
from hwsim.kernels.matmul_formula import matmul_formulas
from hwsim.kernels.matmul_plan import count_matmul_registers, cut_sums, make_matmul_plan
from hwsim.kernels.step import Instructions
from hwsim.numerics.dot import accumulate, dot
from hwsim.numerics.format import Array, find_format
from hwsim.spec.ops.matmul import MatmulWorkload


class Matmul(LoopKernel):
    """C[i,j] += A[i,k] * B[k,j] for i < m, j < n, k < k."""

    def __init__(self, workload: MatmulWorkload, setting: Setting, given: Mapping[str, Array] | None = None) -> None:
        super().__init__(workload.name, find_format(workload.precision), setting, workload.schedule, given)
        self.workload = workload
        self.schedule = workload.schedule
        self.extents = {"i": workload.m, "j": workload.sizes.n, "k": workload.k}
        self.sum_fmt = find_format(self.fmt.sum_name)
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
        """Errors of a sum of k products grow about as the square root of k for such inputs."""
        return 8 * self.sum_fmt.roundoff * float((1 + self.extents["k"]) ** 0.5)

    def formulas(self) -> tuple[Formula, ...]:
        return matmul_formulas(self.workload, self.plan, self.setting, self.fmt)

    def _compute(self, ranges: Ranges) -> None:
        """The real product over a range, added up along k in the schedule's tiles."""
        rows, columns = part(ranges, "i", "j")
        for cut in cut_sums(self.plan, ranges):
            (inner,) = part(cut, "k")
            product = dot(self.arrays["A"][rows, inner], self.arrays["B"][inner, columns], self.fmt)
            accumulate(self.arrays["C"][rows, columns], product, self.sum_fmt)

    def _output(self) -> Array:
        return self.arrays["C"]

    def _reference(self) -> Array:
        return np.asarray(self.arrays["A"].astype(np.float64) @ self.arrays["B"].astype(np.float64))

    def _place(self, name: str, indices: str) -> Operand:
        """A matrix in memory: row after row or, if packed, block after block."""
        fmt = self.sum_fmt if name == "C" else self.fmt
        if not self.schedule.packed:
            view = self.space.allocate(name, [self.extents[i] for i in indices], fmt, self.schedule.ld)
            strides = {index: view.byte_stride(axis) for axis, index in enumerate(indices)}
            self.tensors[name] = view
            return Operand(name, view.base, fmt.element_bytes, strides)
        blocks = [self._packed_block(index) for index in indices]
        counts = [-(-self.extents[index] // block) for index, block in zip(indices, blocks, strict=True)]
        view = self.space.allocate(name, [*counts, *blocks], fmt)
        strides = {index: view.byte_stride(axis + 2) for axis, index in enumerate(indices)}
        far = {index: (blocks[axis], view.byte_stride(axis)) for axis, index in enumerate(indices)}
        self.tensors[name] = view
        return Operand(name, view.base, fmt.element_bytes, strides, far)

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
            self.arrays[name] = make_input(self.setting.seed, number, name, shape, self.fmt, given.get(name))
        self.arrays["C"] = np.zeros((self.extents["i"], self.extents["j"]), self.sum_fmt.held)


def check_product(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    """Two matrices can be multiplied if the first has as many columns as the second has rows."""
    if len(a_shape) != 2 or len(b_shape) != 2 or a_shape[1] != b_shape[0]:
        raise ShapeError(
            f"A of shape {a_shape} cannot be multiplied by B of shape {b_shape}: "
            "the columns of A must be as many as the rows of B"
        )
