"""Which loops are products of matrices, and how many different bytes a piece of an operand has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod

import numpy as np

from hwsim.program.loops import Gather, Loop, Operand, Ranges
from hwsim.trace.nest import Instructions, Size

ONE_FMA = Instructions(fma=1)


@dataclass(frozen=True)
class GemmShape:
    """C[m, n] += A[m, k] B[k, n], `batch` times."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def macs(self) -> int:
        return self.batch * self.m * self.n * self.k


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


Box = Mapping[str, int]
"""How many iterations of each index a tile covers."""

_POINTS = 1 << 20
"""Addresses that are listed at most; a larger cluster of overlapping indices counts from its first to its last."""


def footprint(operand: Operand, box: Box, bits: Size) -> int:
    """Distinct bytes of an operand over a box of indices."""
    return ceil(distinct(operand, box) * Fraction(bits) / 8)


def distinct(operand: Operand, box: Box) -> int:
    """Distinct elements of an operand over a box of indices."""
    parts = operand.element_bytes.denominator  # packed elements are moved by parts of a byte
    steps = [(abs(int(stride * parts)), box.get(index, 1)) for index, stride in operand.strides.items() if stride]
    rows = _looked_up(operand.gather, box) if operand.gather is not None else 1
    if operand.far:  # stored block by block: each index has an axis of its own
        return rows * prod(extent for _, extent in steps)
    return rows * prod(_count(cluster) for cluster in _clusters(steps))


def neighbours(operand: Operand, box: Box) -> tuple[int, int]:
    """Bytes along the innermost axis of a box of indices, side by side, and bytes from there to the next such run."""
    steps = []
    for index, stride in operand.strides.items():
        block, _ = operand.far.get(index, (0, 0))
        extent = box.get(index, 1)
        steps.append((abs(int(stride)), min(extent, block) if block else extent))
    element = ceil(operand.element_bytes)
    inner = [step for step in steps if step[0] == element]
    run = element * max((extent for _, extent in inner), default=1)
    return run, min((stride for stride, extent in steps if stride > element and extent > 1), default=run)


def _looked_up(places: Gather, box: Box) -> int:
    """Rows that a box of indices looks up: each once, and no more than the whole table names."""
    return min(box.get(places.index, 1), np.unique(places.offsets).size)


def slides(operand: Operand, box: Box) -> bool:
    """Whether some elements are met again over a box: two indices move along one axis."""
    return distinct(operand, box) < prod(box.get(index, 1) for index, stride in operand.strides.items() if stride)


def _clusters(steps: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Indices (stride, extent) in groups whose addresses mix: a step of the next group is longer than all of one."""
    clusters: list[list[tuple[int, int]]] = []
    reach = -1
    for stride, extent in sorted(step for step in steps if step[1] > 1):
        if stride <= reach:
            clusters[-1].append((stride, extent))
        else:
            clusters.append([(stride, extent)])
            reach = 0
        reach += stride * (extent - 1)
    return clusters


def _count(cluster: Sequence[tuple[int, int]]) -> int:
    if len(cluster) == 1:
        return cluster[0][1]
    unit = int(np.gcd.reduce([stride for stride, _ in cluster]))
    reached = np.zeros(1, np.int64)
    for stride, extent in cluster:
        if reached.size * extent > _POINTS:
            return sum(stride // unit * (extent - 1) for stride, extent in cluster) + 1
        reached = np.unique(np.add.outer(reached, np.arange(extent) * (stride // unit)))
    return int(reached.size)
