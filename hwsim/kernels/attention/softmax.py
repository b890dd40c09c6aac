"""Softmax along the last axis of a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hwsim.kernels.attention.softmax_loops import (
    DIVIDE,
    EXP_SUM,
    MAXIMUM,
    NORMALISE,
    ONLINE,
    Operands,
    SoftmaxLoops,
    Values,
    in_blocks,
    wide_format,
)
from hwsim.kernels.kernel import Formula, Kernel, Setting
from hwsim.kernels.loop.program import flops_of
from hwsim.kernels.loop_kernel import LoopKernel
from hwsim.kernels.operator import Names, Operator, OperatorKernel, Port, need_floats, run_of
from hwsim.kernels.rounding import Rounding
from hwsim.numerics.format import Array, Format
from hwsim.spec.ops.softmax import SoftmaxWorkload


class Softmax(Operator):
    """Y = softmax(X) along the last axis: in three passes, or in two (online), `block` rows at a time."""

    name = "softmax"

    def __init__(
        self, shape: Sequence[int], *, online: bool = False, block: int | None = None, vector: bool = True
    ) -> None:
        self.shape = tuple(shape)
        self.vector = vector
        *outer, last = self.shape[:-1] or (1,)
        self.rows = {**{f"i{axis}": extent for axis, extent in enumerate(outer)}, "i": last}
        self.online = online
        self.block = block
        self.inputs = (Port("X", self.shape),)
        self.outputs = (Port("Y", self.shape),)
        self.registers_needed = 8 if online else 4

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        need_floats(self.name, kernel.fmt)
        wide = wide_format(kernel.fmt)
        rows = tuple(self.rows.values())
        maximum, total = self.scratch("max", names), self.scratch("sum", names)
        kernel.add_scratch(maximum, *rows, fmt=wide)
        kernel.add_scratch(total, *rows, fmt=wide)
        passes = self._loops(kernel, names["X"], names["Y"], maximum, total).passes(online=self.online)
        for item in in_blocks(self.rows, self.block, passes) if self.block else passes:
            kernel.add(item)
        kernel.shared_index = max(self.rows, key=lambda index: self.rows[index])

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        return {"Y": softmax(tensors["X"])}

    def tolerance(self, rounding: Rounding) -> float:
        """Exponentials and results are stored; the exponential of a number is off by as much as the number itself."""
        return 2 * rounding.stored + rounding.sum(self.shape[-1]) + rounding.operations(2)

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        reads, writes = (2, 1) if self.online else (3, 2)
        work = sum(flops_of(body) for body in ((ONLINE, NORMALISE) if self.online else (MAXIMUM, EXP_SUM, DIVIDE)))
        name = f"operations per element moved, {reads} reads and {writes} writes of each"
        moved = reads + writes
        return (Formula(name, f"{work}/{moved}", work / moved, "flop", "intensity.element"),)

    def _loops(self, kernel: LoopKernel, x: str, y: str, maximum: str, total: str) -> SoftmaxLoops:
        rows, columns = tuple(self.rows.values()), self.shape[-1]
        views = (kernel.tensor(x).reshape(*rows, columns), kernel.tensor(y).reshape(*rows, columns))
        statistics = (kernel.tensor(maximum).reshape(*rows), kernel.tensor(total).reshape(*rows))
        values = None
        if kernel.setting.math:
            arrays = (kernel.arrays[x].reshape(*rows, columns), kernel.arrays[y].reshape(*rows, columns))
            values = Values(*arrays, kernel.arrays[maximum].reshape(rows), kernel.arrays[total].reshape(rows))
        return SoftmaxLoops(kernel, self.rows, columns, Operands(*views, *statistics), values, self.vector)


def softmax(x: Array) -> Array:
    """By definition, in the precision of `x`, each row less its maximum."""
    grown = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(grown / grown.sum(axis=-1, keepdims=True))


def make_softmax(workload: SoftmaxWorkload, setting: Setting, given: Mapping[str, Array] | None) -> Kernel:
    schedule, sizes = workload.schedule, workload.sizes
    operator = Softmax(
        (sizes.m or sizes.n, sizes.n),
        online=schedule.variant == "online",
        block=schedule.block,
        vector=schedule.vector,
    )
    return OperatorKernel(operator, run_of(workload, schedule, given), setting)
