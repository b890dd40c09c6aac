"""How many different bytes a piece of a tensor has: a window that slides over an image touches most pixels again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, prod

import numpy as np

from hwsim.kernels.loop.loops import Operand
from hwsim.trace.nest import Size

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
    if operand.far:  # stored block by block: each index has an axis of its own
        return prod(extent for _, extent in steps)
    return prod(_count(cluster) for cluster in _clusters(steps))


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
