"""Which loops are products of matrices: any sum of products over two operands, a convolution among them.

The indices of such a loop fall into four groups. In both inputs and not in the output: k. In the output and the first
input: m. In the output and the second: n. In all three: batch (heads, groups, the channels of a depthwise convolution).
In the first input alone, where finished sums are put together afterwards, as in a window that is pooled: also m.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from hwsim.hardware.systolic import GemmShape
from hwsim.kernels.loop.loops import Operand
from hwsim.kernels.loop.program import Loop, Ranges
from hwsim.trace.nest import Size
from hwsim.trace.work import Instructions

ONE_FMA = Instructions(fma=1)


@dataclass(frozen=True)
class GemmView:
    """A loop as `batch` products C[m, n] += A[m, k] B[k, n]; each group lists its indices from the outermost."""

    loop: Loop
    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]

    @property
    def input(self) -> Operand:
        return self.loop.operation.inputs[0]

    @property
    def weight(self) -> Operand:
        return self.loop.operation.inputs[1]

    @property
    def output(self) -> Operand:
        assert self.loop.operation.output is not None
        return self.loop.operation.output

    def shape(self, ranges: Ranges) -> tuple[int, GemmShape]:
        """How many products a range of the loop is, and of what shape."""
        m, n, k, batch = (prod(ranges[i][1] for i in group) for group in (self.m, self.n, self.k, self.batch))
        return batch, GemmShape(m, n, k)


def gemm_view(loop: Loop) -> GemmView | None:
    """The loop as products of matrices, or None: then it is work for the vector unit."""
    operation = loop.operation
    if loop.body != ONE_FMA or len(operation.inputs) != 2 or operation.output is None or not operation.accumulates:
        return None
    if operation.stores:
        return None
    first, second, output = (set(each.strides) for each in (*operation.inputs, operation.output))
    groups: dict[str, list[str]] = {"batch": [], "m": [], "n": [], "k": []}
    for index in loop.extents:
        kind = {
            (True, True, True): "batch",
            (True, False, True): "m",
            (False, True, True): "n",
            (True, True, False): "k",
            (True, False, False): "m" if loop.late_body.total else None,
        }.get((index in first, index in second, index in output))
        if kind is None:
            return None
        groups[kind].append(index)
    ordered = {
        kind: tuple(sorted(found, key=_reach(operation.inputs[1] if kind == "k" else operation.output)))
        for kind, found in groups.items()
    }
    return GemmView(loop, ordered["batch"], ordered["m"], ordered["n"], ordered["k"])


def _reach(operand: Operand) -> Callable[[str], Size]:
    """Sorts indices by how far a step of them moves an operand, the farthest first."""
    return lambda index: -abs(Fraction(operand.strides.get(index, 0)))
