"""Operators made of matrix products: matrix times vector, low rank, the backward pass, and queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Literal

import numpy as np

from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop.loops import LoopPlan
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at, part
from hwsim.kernels.matmul.operator import MULTIPLY_ADD, MatmulOperator
from hwsim.kernels.operator import Names, Operator, Port
from hwsim.kernels.rounding import Rounding, sum_pieces
from hwsim.kernels.sequence import SequenceOperator
from hwsim.numerics.dot import accumulate
from hwsim.numerics.format import Array, Format, find_format
from hwsim.spec.ops.matmul import ProductSchedule


class MatvecOperator(Operator):
    """y[i] = Σ A[i,k] x[k]: each element of A is used once, so that memory decides.

    `order` ik finishes one sum after the other (v1 at a time with a register tile); ki adds column after column of A.
    """

    reads = frozenset({"accumulate", "chunk"})

    name = "matvec"

    def __init__(
        self,
        m: int,
        k: int,
        *,
        order: Literal["ik", "ki"] = "ik",
        v1: int = 1,
        vector: bool = True,
        a_transposed: bool = False,
        ports: tuple[str, str, str] = ("A", "x", "y"),
    ) -> None:
        self.extents = {"i": m, "k": k}
        self.order = order
        self.v1 = min(v1, m)
        self.vector = vector
        self.a_transposed = a_transposed
        self.a_indices = "ki" if a_transposed else "ik"
        self.a, self.x, self.y = ports
        self.inputs = (Port(self.a, tuple(self.extents[index] for index in self.a_indices)), Port(self.x, (k,)))
        self.outputs = (Port(self.y, (m,), wide=True),)
        self.registers_needed = 2 * self.v1 + 1

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        a, x, y = names[self.a], names[self.x], names[self.y]
        lanes = kernel.setting.lanes if self.vector else 1
        unroll = {"i": self.v1} if self.v1 > 1 else {}
        plan = LoopPlan(tuple(self.order), unroll=unroll, vector=self.order[-1] if lanes > 1 else None, lanes=lanes)

        def compute(ranges: Ranges) -> None:
            matrix = kernel.arrays[a][part(ranges, *self.a_indices)]
            matrix = matrix.T if self.a_transposed else matrix
            product = kernel.dot(matrix, kernel.arrays[x][part(ranges, "k")])
            accumulate(kernel.arrays[y][part(ranges, "i")], product, kernel.formats[y])

        extents = {index: self.extents[index] for index in self.order}
        reads = [at(kernel.tensor(a), *self.a_indices), at(kernel.tensor(x), "k")]
        write = at(kernel.tensor(y), "i")
        kernel.add_loop(self.name, extents, reads, write, MULTIPLY_ADD, compute, plan=plan, accumulates=True)
        kernel.shared_index = "i"

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        return {self.y: np.einsum(f"{self.a_indices},k->i", tensors[self.a], tensors[self.x])}

    def tolerance(self, rounding: Rounding) -> float:
        pieces = sum_pieces(LoopPlan(tuple(self.order)), self.extents, "k")
        return rounding.sum(self.extents["k"]) + rounding.kept_sum(pieces)

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        """Two operations for each element of A: about half an operation per byte in fp32, whatever the size."""
        m, k = self.extents["i"], self.extents["k"]
        moved = (m * k + k) * fmt.element_bytes + m * find_format(fmt.sum_name).element_bytes
        return (
            Formula("multiply-adds", "m·k", m * k, "operations", "macs"),
            Formula(
                "operations per byte, each element moved once",
                "2mk/(mk + m + k)/bytes",
                float(2 * m * k / moved),
                "flop/B",
                "intensity.byte",
            ),
        )


class LowRankOperator(SequenceOperator):
    """C = (A U) V, where W = U V has rank r: r(m k + m n) multiply-adds instead of m k n."""

    def __init__(self, m: int, n: int, k: int, rank: int, *, schedule: ProductSchedule | None = None) -> None:
        self.sizes = (m, n, k, rank)
        first = MatmulOperator(m, rank, k, schedule=schedule, ports=("A", "U", "AU"), name="A U")
        second = MatmulOperator(m, n, rank, schedule=schedule, ports=("AU", "V", "C"), name="(A U) V")
        super().__init__("matmul_lowrank", [_own(first), _own(second)], ["C"])

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """The other way around: A times the product of U and V."""
        return {"C": tensors["A"] @ (tensors["U"] @ tensors["V"])}

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        m, n, k, rank = self.sizes
        return (Formula("multiply-adds", "m·r·(k + n)", m * rank * (k + n), "operations", "macs"),)


class MatmulBackwardOperator(SequenceOperator):
    """The gradients of C = A B from that of C: dA = dC Bᵀ and dB = Aᵀ dC, twice the work of the product itself."""

    def __init__(self, m: int, n: int, k: int, *, schedule: ProductSchedule | None = None) -> None:
        self.sizes = (m, n, k)
        for_a = MatmulOperator(
            m, k, n, schedule=schedule, b_transposed=True, ports=("dC", "B", "dA"), name="dA = dC Bᵀ"
        )
        for_b = MatmulOperator(
            k, n, m, schedule=schedule, a_transposed=True, ports=("A", "dC", "dB"), name="dB = Aᵀ dC"
        )
        super().__init__("matmul_backward", [_own(for_a), _own(for_b)], ["dA", "dB"])

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        return (Formula("multiply-adds", "2·m·n·k", 2 * prod(self.sizes), "operations", "macs"),)


class QkvMergedOperator(MatmulOperator):
    """Queries, keys and values in one product: QKV[3d, n] = W[3d, d] H[d, n]; H is read once."""

    def __init__(self, d: int, n: int, *, schedule: ProductSchedule | None = None) -> None:
        super().__init__(3 * d, n, d, schedule=schedule, ports=("W", "H", "QKV"), name="qkv_merged")

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        d, n = self.extents["k"], self.extents["j"]
        return (_compulsory("3d² + 4dn", 3 * d * d + d * n, d, n, fmt),)


class QkvSeparateOperator(SequenceOperator):
    """Queries, keys and values in three products with W[d, d] each; H[d, n] is read three times."""

    def __init__(self, d: int, n: int, *, schedule: ProductSchedule | None = None) -> None:
        self.d, self.n = d, n
        products = [
            MatmulOperator(d, n, d, schedule=schedule, ports=(f"W{name.lower()}", "H", name), name=name)
            for name in "QKV"
        ]
        super().__init__("qkv_separate", [_own(product) for product in products], ["Q", "K", "V"])

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        d, n = self.d, self.n
        return (_compulsory("3(d² + 2dn)", 3 * (d * d + d * n), d, n, fmt),)


def _own(product: MatmulOperator) -> tuple[Operator, Names]:
    """A product whose tensors are called as its ports are."""
    return product, {port.name: port.name for port in (*product.inputs, *product.outputs)}


def _compulsory(expression: str, read: int, d: int, n: int, fmt: Format) -> Formula:
    """Operations per byte where each product moves each element once, and 3dn results are written."""
    written = 3 * d * n
    moved = read * fmt.element_bytes + written * find_format(fmt.sum_name).element_bytes
    return Formula(
        f"operations per byte, {read + written:,} elements moved",
        f"6d²n/({expression})/bytes",
        float(6 * d * d * n / moved),
        "flop/B",
        "intensity.byte",
    )
