"""Strassen's product: seven products of halves instead of eight, at the price of additions and of memory for them.

V. Strassen, Gaussian elimination is not optimal, Numerische Mathematik 13, 1969.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import Field

from hwsim.numerics.format import Array, Format
from hwsim.ops.matmul import MatmulSizes, ProductSchedule, product_layout
from hwsim.program.kernel import Formula, Setting
from hwsim.program.operation import Measured, StatementOperator, operation
from hwsim.program.rounding import Rounding, sum_pieces
from hwsim.program.tiling import LoopCuts
from hwsim.spec.schedule import Extent

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


class StrassenSchedule(ProductSchedule):
    """How deep the recursion goes, and how the products at its bottom are computed."""

    cutoff: Extent = Field(128, description="Matrices with a side no larger than this are multiplied as usual.")
    levels: int | None = Field(None, ge=0, description="At most so many levels of recursion.")


def strassen_levels(m: int, n: int, k: int, cutoff: int, most: int | None = None) -> int:
    """How often all extents can be halved before one of them is no larger than the cut-off."""
    levels = 0
    while min(m, n, k) > cutoff * 2**levels and (most is None or levels < most):
        levels += 1
    return levels


@dataclass(frozen=True)
class _Matrix:
    """A piece of a matrix: where it begins, and its extents."""

    name: str
    rows: int
    columns: int
    row: int = 0
    column: int = 0

    def quarter(self, number: int) -> _Matrix:
        down, right = divmod(number, 2)
        rows, columns = self.rows // 2, self.columns // 2
        return _Matrix(self.name, rows, columns, self.row + down * rows, self.column + right * columns)

    def at(self, row: str, column: str) -> str:
        return f"{self.name}[{row}+{self.row},{column}+{self.column}]"


class _Writer:
    """Writes the statements: on each level, memory for one sum of quarters of A, one of B, and one product."""

    def __init__(self, m: int, n: int, k: int, levels: int) -> None:
        self.levels = levels
        self.lines: list[str] = []
        extents = {"i": m, "j": n, "k": k}
        self.sizes = {f"{i}{level}": extents[i] >> level for level in range(1, levels + 1) for i in "ijk"}
        self.over: dict[str, str] = {}

    def scratch(self, name: str, rows: int, columns: int) -> _Matrix:
        own = f"{name}_{len(self.over)}"
        self.over[own] = name
        return _Matrix(own, rows, columns)

    def multiply(self, a: _Matrix, b: _Matrix, c: _Matrix, level: int = 0) -> None:
        i, j, k = (f"{index}{level}" for index in "ijk")
        if level == self.levels:
            self.lines.append(f"product: {c.at(i, j)} += {a.at(i, k)} * {b.at(k, j)}")
            return
        i, j, k = (f"{index}{level + 1}" for index in "ijk")
        begun: set[int] = set()
        for left, right, targets in PRODUCTS:
            first = self.operand("S", a, left, i, k, level + 1)
            second = self.operand("T", b, right, k, j, level + 1)
            product = self.scratch(f"M{level + 1}", c.rows // 2, c.columns // 2)
            self.multiply(first, second, product, level + 1)
            for number, sign in targets:
                quarter = c.quarter(number)
                terms = [(quarter, 1)] if number in begun else []
                begun.add(number)
                self.combine("add product", quarter, [*terms, (product, sign)], i, j)

    def operand(self, name: str, whole: _Matrix, terms: Terms, row: str, column: str, level: int) -> _Matrix:
        """A quarter as it is or, of several, their sum in scratch space."""
        quarters = [(whole.quarter(number), sign) for number, sign in terms]
        if len(quarters) == 1:
            return quarters[0][0]
        target = self.scratch(f"{name}{level}", whole.rows // 2, whole.columns // 2)
        self.combine("add quarters", target, quarters, row, column)
        return target

    def combine(self, label: str, target: _Matrix, terms: Sequence[tuple[_Matrix, int]], row: str, column: str) -> None:
        """A sum or difference, element by element; the first term is added."""
        assert terms[0][1] > 0, "no first term is subtracted"
        total = "".join(f" {'+' if sign > 0 else '-'} {matrix.at(row, column)}" for matrix, sign in terms)
        self.lines.append(f"{label}: {target.at(row, column)} = {total[3:]}")


def strassen_sizes(shapes: Mapping[str, Sequence[int]], schedule: StrassenSchedule) -> tuple[int, int, int, int]:
    """m, n and k, padded so that they can be halved as often as there are levels; and the levels."""
    (m, k), n = shapes["A"], shapes["B"][1]
    levels = strassen_levels(m, n, k, schedule.cutoff, schedule.levels)
    m, n, k = (-(-extent // 2**levels) * 2**levels for extent in (m, n, k))
    return m, n, k, levels


def _statements(shapes: Mapping[str, Sequence[int]], parameters: Any, schedule: StrassenSchedule) -> Measured:
    """Extents that cannot be halved often enough are padded with zeros: A and B are copied first, and C is copied
    back."""
    (own_m, own_k), own_n = shapes["A"], shapes["B"][1]
    m, n, k, levels = strassen_sizes(shapes, schedule)
    writer = _Writer(m, n, k, levels)
    padded = (m, n, k) != (own_m, own_n, own_k)
    names = [f"{name}_padded" if padded else name for name in "ABC"]
    a, b, c = (_Matrix(name, *shape) for name, shape in zip(names, ((m, k), (k, n), (m, n)), strict=True))
    formats = {}
    if padded:
        writer.sizes |= {"i": own_m, "j": own_n, "k": own_k}
        writer.lines += ["pad: A_padded[i,k] = A[i,k]", "pad: B_padded[k,j] = B[k,j]"]
        writer.over = {f"{name}_padded": f"{name} padded" for name in "ABC"}
        formats = {"A_padded": "stored", "B_padded": "stored"}
    writer.multiply(a, b, c)
    if padded:
        writer.lines.append("crop: C[i,j] = C_padded[i,j]")
    return Measured(
        "\n".join(writer.lines),
        sizes=writer.sizes,
        shapes={each.name: (each.rows, each.columns) for each in (a, b, c)} if padded else {},
        over=writer.over,
        formats=dict.fromkeys(writer.over, "sums") | formats,
    )


def _layout(operator: StatementOperator, schedule: StrassenSchedule, lanes: int) -> LoopCuts:
    """All cores finish one loop before the next begins; to whoever reads the result it is still the same operation."""
    return replace(product_layout(operator, schedule, lanes), together={}, phases=True, titles=False)


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


def _formulas(operator: StatementOperator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    shapes = {port.name: port.shape for port in operator.inputs}
    m, n, k, levels = strassen_sizes(shapes, operator.schedule)  # type: ignore[arg-type]
    products = strassen_products(m, n, k, levels)
    found = [Formula("multiply-adds", "(7/8)^levels · mnk", products, "operations", "macs")]
    if "A_padded" not in operator.text.over:
        operations = 2 * products + strassen_additions(m, n, k, levels)
        found.append(Formula("operations", "2(7/8)^levels · mnk + additions", operations, "operations", "flops"))
    return found


def _tolerance(operator: StatementOperator, rounding: Rounding) -> float:
    """Sums of quarters, products and their sums are stored, and larger than the result: twice on each level."""
    shapes = {port.name: port.shape for port in operator.inputs}
    *_, levels = strassen_sizes(shapes, operator.schedule)  # type: ignore[arg-type]
    group = next(group for group in operator.groups if group.accumulates)
    extents = operator.program.extents
    plan = operator.layout(1).plan(group, extents, ())
    assert plan is not None
    pieces = sum_pieces(plan, extents, group.reduced)
    return 2 * float(2**levels) * (rounding.sum(shapes["A"][1]) + rounding.kept_sum(pieces))


@operation(
    "A[m|n,k|n] B[k|n,n] -> C[m|n,n]",
    _statements,
    sizes=MatmulSizes,
    schedule=StrassenSchedule,
    layout=_layout,
    formats={"C": "sums"},
    formulas=_formulas,
    tolerance=_tolerance,
)
def matmul_strassen(A: Array, B: Array) -> Array:
    """A matrix product by Strassen's recursion: seven products of halves instead of eight, and 18 additions."""
    return np.asarray(A @ B)
