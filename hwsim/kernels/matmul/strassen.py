"""Strassen's product: seven products of halves instead of eight, at the price of additions and of memory for them.

V. Strassen, Gaussian elimination is not optimal, Numerische Mathematik 13, 1969.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at, part
from hwsim.kernels.matmul.operator import MULTIPLY_ADD
from hwsim.kernels.matmul.plan import count_matmul_registers, cut_sums, make_matmul_plan
from hwsim.kernels.operator import Names, Operator, Port
from hwsim.kernels.rounding import Rounding, sum_pieces
from hwsim.kernels.step import Instructions
from hwsim.numerics.dot import accumulate
from hwsim.numerics.format import Array, Format
from hwsim.spec.ops.matmul import ProductSchedule
from hwsim.trace.view import TensorView

Terms = tuple[tuple[int, int], ...]
"""Quarters of a matrix (0 to 3, row by row) with their signs."""

PRODUCTS: tuple[tuple[Terms, Terms, Terms], ...] = (
    (((0, 1), (3, 1)), ((0, 1), (3, 1)), ((0, 1), (3, 1))),
    (((2, 1), (3, 1)), ((0, 1),), ((2, 1), (3, -1))),
    (((0, 1),), ((1, 1), (3, -1)), ((1, 1), (3, 1))),
    (((3, 1),), ((2, 1), (0, -1)), ((0, 1), (2, 1))),
    (((0, 1), (1, 1)), ((3, 1),), ((0, -1), (1, 1))),
    (((2, 1), (0, -1)), ((0, 1), (1, 1)), ((3, 1),)),
    (((1, 1), (3, -1)), ((2, 1), (3, 1)), ((0, 1),)),
)
"""Of each product: the sum of quarters of A, that of B, and where in C it is added."""


@dataclass(frozen=True)
class Matrix:
    """A piece of a matrix in memory, with its values."""

    view: TensorView
    array: Array | None
    fmt: Format

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.view.shape
        return rows, columns

    def piece(self, rows: slice, columns: slice) -> Matrix:
        array = None if self.array is None else self.array[rows, columns]
        return Matrix(self.view.slice(rows, columns), array, self.fmt)

    def quarter(self, number: int) -> Matrix:
        rows, columns = (extent // 2 for extent in self.shape)
        down, right = divmod(number, 2)
        return self.piece(slice(down * rows, (down + 1) * rows), slice(right * columns, (right + 1) * columns))

    def load(self, here: tuple[slice, ...]) -> Array:
        assert self.array is not None, "values are there when math is on"
        return self.fmt.load(self.array[here])

    def store(self, here: tuple[slice, ...], values: Array) -> None:
        assert self.array is not None, "values are there when math is on"
        self.array[here] = self.fmt.store(values)


class StrassenOperator(Operator):
    """C = A B with so many levels of Strassen's recursion, and products by the schedule at the bottom.

    On each level there is scratch space for one sum of quarters of A, one of B, and one product. Extents that cannot be
    halved often enough are padded with zeros: A and B are copied first, and C is copied back.
    """

    reads = frozenset({"accumulate", "chunk"})

    name = "matmul_strassen"

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        *,
        levels: int = 1,
        schedule: ProductSchedule | None = None,
        ports: tuple[str, str, str] = ("A", "B", "C"),
    ) -> None:
        self.sizes = (m, n, k)
        self.levels = levels
        self.padded = tuple(-(-extent // 2**levels) * 2**levels for extent in self.sizes)
        self.schedule = schedule or ProductSchedule()
        self.a, self.b, self.c = ports
        self.inputs = (Port(self.a, (m, k)), Port(self.b, (k, n)))
        self.outputs = (Port(self.c, (m, n), wide=True),)

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        a, b, c = (self._matrix(kernel, names[port]) for port in (self.a, self.b, self.c))
        m, n, k = self.padded
        if self.padded == self.sizes:
            self._multiply(kernel, names, a, b, c, 0)
            return
        wide_a, wide_b, wide_c = (
            self._scratch(kernel, names, name, shape, matrix.fmt)
            for name, shape, matrix in (("A padded", (m, k), a), ("B padded", (k, n), b), ("C padded", (m, n), c))
        )
        for small, large in ((a, wide_a), (b, wide_b)):
            self._combine(kernel, "pad", _corner(large, small), [(small, 1)])
        self._multiply(kernel, names, wide_a, wide_b, wide_c, 0)
        self._combine(kernel, "crop", c, [(_corner(wide_c, c), 1)])

    def _multiply(self, kernel: LoopKernel, names: Names, a: Matrix, b: Matrix, c: Matrix, level: int) -> None:
        if level == self.levels:
            self._add_product(kernel, a, b, c)
            return
        (m, k), n = a.quarter(0).shape, b.quarter(0).shape[1]
        wide = kernel.find_sum_format()
        s, t, product = (
            self._scratch(kernel, names, f"{name}{level + 1}", shape, wide)
            for name, shape in (("S", (m, k)), ("T", (k, n)), ("M", (m, n)))
        )
        begun: set[int] = set()
        for left, right, targets in PRODUCTS:
            first = self._operand(kernel, s, a, left)
            second = self._operand(kernel, t, b, right)
            self._multiply(kernel, names, first, second, product, level + 1)
            for number, sign in targets:
                quarter = c.quarter(number)
                terms = [(quarter, 1)] if number in begun else []
                begun.add(number)
                self._combine(kernel, "add product", quarter, [*terms, (product, sign)])

    def _operand(self, kernel: LoopKernel, scratch: Matrix, whole: Matrix, terms: Terms) -> Matrix:
        """A quarter as it is or, of several, their sum in scratch space."""
        quarters = [(whole.quarter(number), sign) for number, sign in terms]
        if len(quarters) == 1:
            return quarters[0][0]
        self._combine(kernel, "add quarters", scratch, quarters)
        return scratch

    def _combine(self, kernel: LoopKernel, name: str, target: Matrix, terms: Sequence[tuple[Matrix, int]]) -> None:
        """One loop: a sum or difference, element by element; the first term is added."""
        assert terms[0][1] > 0, "no first term is subtracted"

        def compute(ranges: Ranges) -> None:
            here = part(ranges, "i", "j")
            total = terms[0][0].load(here)
            for matrix, sign in terms[1:]:
                total = total + matrix.load(here) if sign > 0 else total - matrix.load(here)
            target.store(here, total)

        rows, columns = target.shape
        reads = [at(matrix.view, "i", "j") for matrix, _ in terms]
        body = Instructions(add=len(terms) - 1)
        self._wait(kernel)
        extents = {"i": rows, "j": columns}
        vector = self.schedule.vector
        kernel.add_loop(name, extents, reads, at(target.view, "i", "j"), body, compute, vector=vector)

    def _add_product(self, kernel: LoopKernel, a: Matrix, b: Matrix, c: Matrix) -> None:
        (m, k), n = a.shape, b.shape[1]
        extents = {"i": m, "j": n, "k": k}
        plan = make_matmul_plan(self.schedule, extents, kernel.setting.lanes)
        kernel.registers_needed = max(kernel.registers_needed, count_matmul_registers(plan))

        def compute(ranges: Ranges) -> None:
            assert a.array is not None and b.array is not None and c.array is not None
            here = part(ranges, "i", "j")
            for cut in cut_sums(plan, ranges):
                product = kernel.dot(a.array[part(cut, "i", "k")], b.array[part(cut, "k", "j")])
                if cut["k"][0] == 0:
                    c.store(here, product)
                else:
                    accumulate(c.array[here], product, c.fmt)

        self._wait(kernel)
        order = {index: extents[index] for index in plan.order}
        reads = [at(a.view, "i", "k"), at(b.view, "k", "j")]
        write = at(c.view, "i", "j")
        kernel.add_loop("product", order, reads, write, MULTIPLY_ADD, compute, plan=plan, accumulates=True)
        kernel.shared_index = "i"

    def _wait(self, kernel: LoopKernel) -> None:
        """All cores have done what comes before; to whoever reads the result it is still the same operation."""
        kernel.begin_phase(kernel.program[-1].name)

    def _matrix(self, kernel: LoopKernel, name: str) -> Matrix:
        array = kernel.arrays[name] if kernel.setting.math else None
        return Matrix(kernel.tensor(name), array, kernel.formats[name])

    def _scratch(self, kernel: LoopKernel, names: Names, name: str, shape: tuple[int, int], fmt: Format) -> Matrix:
        """Scratch space by name; a level uses its own again and again."""
        name = self.scratch(name, names)
        if name not in kernel.tensors:
            kernel.add_scratch(name, *shape, fmt=fmt)
        return self._matrix(kernel, name)

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        return {self.c: tensors[self.a] @ tensors[self.b]}

    def tolerance(self, rounding: Rounding) -> float:
        """Sums of quarters, products and their sums are stored, and larger than the result: twice on each level."""
        m, n, k = (extent >> self.levels for extent in self.padded)
        extents = {"i": m, "j": n, "k": k}
        pieces = sum_pieces(make_matmul_plan(self.schedule, extents, 1), extents, "k")
        return 2 * float(2**self.levels) * (rounding.sum(self.sizes[2]) + rounding.kept_sum(pieces))

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        m, n, k = self.padded
        products = strassen_products(m, n, k, self.levels)
        found = [Formula("multiply-adds", "(7/8)^levels · mnk", products, "operations", "macs")]
        if self.padded == self.sizes:
            operations = 2 * products + strassen_additions(m, n, k, self.levels)
            found.append(Formula("operations", "2(7/8)^levels · mnk + additions", operations, "operations", "flops"))
        return tuple(found)


def strassen_levels(m: int, n: int, k: int, cutoff: int, most: int | None = None) -> int:
    """How often all extents can be halved before one of them is no larger than the cut-off."""
    levels = 0
    while min(m, n, k) > cutoff * 2**levels and (most is None or levels < most):
        levels += 1
    return levels


def strassen_products(m: int, n: int, k: int, levels: int) -> int:
    """Multiply-adds at the bottom: 7 of the 8 products of halves, on each level."""
    return int(7**levels) * (m >> levels) * (n >> levels) * (k >> levels)


def strassen_additions(m: int, n: int, k: int, levels: int) -> int:
    """On each level, 5 sums of quarters of A, 5 of B, and 8 additions to quarters of C that hold something."""
    total = 0
    for level in range(1, levels + 1):
        rows, columns, inner = m >> level, n >> level, k >> level
        total += 7 ** (level - 1) * (5 * rows * inner + 5 * inner * columns + 8 * rows * columns)
    return total


def _corner(large: Matrix, small: Matrix) -> Matrix:
    rows, columns = small.shape
    return large.piece(slice(0, rows), slice(0, columns))
