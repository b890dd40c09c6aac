"""The sum of a two-dimensional, row-major array: along its rows, or against them along its columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hwsim.kernels.kernel import Formula, Setting
from hwsim.kernels.loop_kernel import LoopKernel, Ranges, at, part
from hwsim.kernels.rounding import MOST
from hwsim.kernels.step import Instructions
from hwsim.numerics.format import Array, find_format
from hwsim.spec.ops.layout import SumWorkload


class Sum2d(LoopKernel):
    """``total`` keeps one sum in a register; ``each`` stores one for each row (or column)."""

    reads = frozenset({"accumulate"})

    def __init__(self, workload: SumWorkload, setting: Setting, given: Mapping[str, Array] | None = None) -> None:
        super().__init__(workload.name, find_format(workload.precision), setting, workload.schedule, given)
        self.columns = workload.sizes.n
        self.rows = workload.sizes.m or self.columns
        self.schedule = workload.schedule
        self.sum_fmt = self.find_sum_format()
        a = self.add_input("A", self.rows, self.columns, ld=self.schedule.ld, positive=True)
        self.by_rows = self.schedule.order == "rows"
        outer, inner = ("i", "j") if self.by_rows else ("j", "i")
        extents = {"i": self.rows, "j": self.columns}
        self._sums = np.zeros(extents[outer], self.sum_fmt.computed)
        write = None
        if self.schedule.result == "each":
            write = at(self.add_result("S", extents[outer], fmt=self.sum_fmt), outer)
        self.add_loop(
            f"sum by {self.schedule.order}",
            {outer: extents[outer], inner: extents[inner]},
            [at(a, "i", "j")],
            write,
            Instructions(add=1),
            self._compute,
            vector=self.schedule.vector,
            accumulates=True,
        )
        self.registers_needed = 2

    @property
    def tolerance(self) -> float:
        """NumPy adds in pairs: the error grows with the logarithm of the number of elements."""
        depth = 2 + (self.rows * self.columns).bit_length()
        return min(MOST, self.rounding.kept + self.rounding.operations(depth))

    def formulas(self) -> tuple[Formula, ...]:
        elements = self.rows * self.columns
        per_line = self.setting.line_bytes // self.fmt.element_bytes
        if self.by_rows:
            return (Formula("lines read, row by row", "m·n/L", elements / per_line, "lines", "l1.fills"),)
        return (Formula("lines read, column by column, m lines do not fit", "m·n", elements, "lines", "l1.fills"),)

    def _compute(self, ranges: Ranges) -> None:
        here = self.arrays["A"][part(ranges, "i", "j")]
        (outer,) = part(ranges, "i" if self.by_rows else "j")
        wide = np.int64 if self.fmt.is_integer else self.fmt.computed
        self._sums[outer] += here.sum(axis=1 if self.by_rows else 0, dtype=wide).astype(self._sums.dtype)
        if self.schedule.result == "each":
            self.arrays["S"][outer] = self.sum_fmt.store(self._sums[outer])

    def _output(self) -> Array:
        if self.schedule.result == "each":
            return self.arrays["S"]
        return self.sum_fmt.store(self._sums.sum(keepdims=True, dtype=self._sums.dtype))

    def _reference(self) -> Array:
        wide = self.arrays["A"].astype(np.float64)
        if self.schedule.result == "each":
            return np.asarray(wide.sum(axis=1 if self.by_rows else 0))
        return np.asarray(wide.sum(keepdims=True).reshape(1))
