"""Reuse distance: how many other lines are touched between two uses of a line.

A fully associative LRU cache of n lines hits exactly those uses whose distance is less than n (Mattson, Gecsei, Slutz
and Traiger, IBM Systems Journal, 1970), so that one histogram tells the hit rate of every size of cache at once.
Distance zero is spatial locality: the neighbour on the same line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hwsim.jit import compiled
from hwsim.trace.nest import Nest

MOST_ACCESSES = 400_000
"""A longer run is looked at as far as this."""


@dataclass(frozen=True)
class ReuseHistogram:
    """Uses of lines by distance: `counts[0]` at distance 0, `counts[k]` at 2^(k-1) up to 2^k - 1."""

    counts: tuple[int, ...]
    first_uses: int
    complete: bool
    """Whether all accesses were looked at."""

    @property
    def accesses(self) -> int:
        return sum(self.counts) + self.first_uses

    def hits(self, lines: int) -> int:
        """Uses that a fully associative LRU cache of `lines` lines, a power of two, finds."""
        return sum(self.counts[: lines.bit_length()])


def measure_reuse(nests: Iterable[Nest], line_bytes: int, most: int = MOST_ACCESSES) -> ReuseHistogram:
    """The histogram of the first accesses of some nests."""
    addresses = (address // line_bytes for nest in nests for address, _, _ in nest.addresses())
    lines = np.fromiter(islice(addresses, most + 1), np.int64)
    complete = len(lines) <= most
    _, numbers = np.unique(lines[:most], return_inverse=True)
    counts = np.zeros(64, np.int64)
    tree = np.zeros(len(numbers) + 1, np.int64)
    last = np.full(int(numbers.max(initial=-1)) + 1, -1, np.int64)
    first_uses = int(_distances(numbers.astype(np.int64), tree, last, counts))
    used = int(np.flatnonzero(counts).max(initial=-1)) + 1
    return ReuseHistogram(tuple(int(count) for count in counts[:used]), first_uses, complete)


@compiled
def _distances(
    lines: NDArray[np.int64], tree: NDArray[np.int64], last: NDArray[np.int64], counts: NDArray[np.int64]
) -> int:
    """Count into `counts`; a tree over time tells how many lines were last used after a given moment."""
    size = len(lines)
    first_uses = 0
    for now in range(size):
        before = last[lines[now]]
        if before < 0:
            first_uses += 1
        else:
            distance = 0
            i = now
            while i > 0:
                distance += tree[i]
                i -= i & -i
            i = before + 1
            while i > 0:
                distance -= tree[i]
                i -= i & -i
            bucket = 0
            while distance > 0:
                bucket += 1
                distance >>= 1
            counts[bucket] += 1
            i = before + 1
            while i <= size:
                tree[i] -= 1
                i += i & -i
        i = now + 1
        while i <= size:
            tree[i] += 1
            i += i & -i
        last[lines[now]] = now
    return first_uses
