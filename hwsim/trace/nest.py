"""Nest: a loop nest and the memory accesses in it, in strides format.

A Nest is a few dozen integers that stand for millions of accesses. Its loops run from the outermost to the
innermost; an access at depth d lies inside the first d loops, before or after the loops that are deeper. For
a matrix product

    for i < 2: for j < 3: { for k < 4: { load A[i,k]; load B[k,j] }; store C[i,j] }

    Nest(trips=(2, 3, 4), accesses=(
        Access(base=A, strides=(lda, 0, 1) * 8),            # depth 3: inside all three loops
        Access(base=B, strides=(0, 1, ldb) * 8),
        Access(base=C, strides=(ldc, 1) * 8, write=True, after=True)))      # depth 2: after the k loop

A zero stride is a broadcast, swapped strides are a transpose, a shifted base is a slice. A gather looks its
byte offset up in a table. Edge tiles are further Nests with smaller trip counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

MAX_ACCESSES = 64
"""An event of the walk carries the number of its access in six bits."""

MAX_ACCESS_BYTES = 4096


@dataclass(frozen=True, eq=False)
class Table:
    """Byte offsets that a gather looks up: entry ``sum(counter * stride)`` over the loops around it."""

    offsets: NDArray[np.int64]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Access:
    """One load or store in the body of a loop nest; as many strides as there are loops around it."""

    base: int
    strides: tuple[int, ...]
    nbytes: int = 8
    write: bool = False
    after: bool = False
    tensor: str = ""
    table: Table | None = None
    slot: int | None = None
    """The number under which its misses are counted: its place in the nest if not given."""

    @property
    def depth(self) -> int:
        return len(self.strides)


@dataclass(frozen=True)
class Nest:
    """Trip counts, outer to inner, and the accesses in program order."""

    trips: tuple[int, ...]
    accesses: tuple[Access, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if any(trip < 1 for trip in self.trips):
            raise ValueError(f"every trip count must be at least 1: {self.trips}")
        if len(self.accesses) > MAX_ACCESSES:
            raise ValueError(f"a nest holds at most {MAX_ACCESSES} accesses, found {len(self.accesses)}")
        for access in self.accesses:
            if access.depth > len(self.trips):
                raise ValueError(f"an access has {access.depth} strides in a nest of {len(self.trips)} loops")
            if not 1 <= access.nbytes <= MAX_ACCESS_BYTES:
                raise ValueError(f"an access moves 1 to {MAX_ACCESS_BYTES} bytes, found {access.nbytes}")

    @property
    def depth(self) -> int:
        return len(self.trips)

    def count(self, access: Access) -> int:
        """How often an access is executed."""
        return prod(self.trips[: access.depth])

    @cached_property
    def loads(self) -> int:
        return sum(self.count(access) for access in self.accesses if not access.write)

    @cached_property
    def stores(self) -> int:
        return sum(self.count(access) for access in self.accesses if access.write)

    @property
    def length(self) -> int:
        """Number of accesses executed."""
        return self.loads + self.stores

    def span(self, access: Access) -> tuple[int, int]:
        """First byte touched by an access, and one past the last."""
        low = high = access.base
        for trip, stride in zip(self.trips, access.strides, strict=False):
            low += min(0, (trip - 1) * stride)
            high += max(0, (trip - 1) * stride)
        if access.table is not None:
            low += int(access.table.offsets.min())
            high += int(access.table.offsets.max())
        return low, high + access.nbytes

    def addresses(self) -> Iterator[tuple[int, int, bool]]:
        """Every access as (address, bytes, write), one by one, in order: for looking at small nests."""
        yield from _addresses(self, ())


def numbered(nest: Nest) -> Nest:
    """The same nest, its accesses bound to their numbers: pieces of it count misses as the whole does."""
    slots = (number if access.slot is None else access.slot for number, access in enumerate(nest.accesses))
    return Nest(
        nest.trips, tuple(replace(access, slot=slot) for access, slot in zip(nest.accesses, slots, strict=True))
    )


def slice_outer(nest: Nest, start: int, count: int) -> Nest:
    """Iterations ``start … start + count`` of the outermost loop, without the accesses outside that loop."""
    moved = []
    for access in nest.accesses:
        if access.depth == 0:
            continue
        table = access.table
        if table is not None and table.strides[0] and start:
            table = Table(table.offsets[start * table.strides[0] :], table.strides)
        moved.append(replace(access, base=access.base + start * access.strides[0], table=table))
    return Nest((count, *nest.trips[1:]), tuple(moved))


def pieces(nest: Nest, most: int) -> Iterator[Nest]:
    """The same accesses in the same order, as nests of about `most` accesses each, as far as its loops allow."""
    if nest.length <= most or nest.depth == 0 or any(access.depth == 0 for access in nest.accesses):
        yield nest
    elif nest.trips[0] > 1:
        step = max(1, most * nest.trips[0] // nest.length)
        for start in range(0, nest.trips[0], step):
            part = slice_outer(nest, start, min(step, nest.trips[0] - start))
            yield from pieces(part, most) if step == 1 else (part,)
    else:
        for part in peel_outer(nest):
            yield from pieces(part, most)


def peel_outer(nest: Nest) -> tuple[Nest, ...]:
    """A nest whose outermost loop runs once, as nests without that loop: before, inside, and after it."""
    if nest.trips[0] != 1:
        raise ValueError(f"only a loop that runs once can be peeled, not {nest.trips[0]} times")
    shallow = [access for access in nest.accesses if access.depth == 1]
    inner = [_drop_loop(access) for access in nest.accesses if access.depth > 1]
    if nest.depth == 1 or not inner:
        return (Nest((), tuple(_drop_loop(a) for a in _in_order(shallow))),)
    parts = (
        Nest((), tuple(_drop_loop(a) for a in shallow if not a.after)),
        Nest(nest.trips[1:], tuple(inner)),
        Nest((), tuple(replace(_drop_loop(a), after=False) for a in shallow if a.after)),
    )
    return tuple(part for part in parts if part.accesses)


def _drop_loop(access: Access) -> Access:
    table = access.table
    if table is not None:
        table = Table(table.offsets, table.strides[1:])
    return replace(access, strides=access.strides[1:], table=table)


def _in_order(accesses: Sequence[Access]) -> list[Access]:
    return [a for a in accesses if not a.after] + [a for a in accesses if a.after]


def _addresses(nest: Nest, counters: tuple[int, ...]) -> Iterator[tuple[int, int, bool]]:
    here = [access for access in nest.accesses if access.depth == len(counters)]
    deeper = len(counters) < nest.depth
    for access in here:
        if not access.after:
            yield _one(access, counters)
    if deeper:
        for counter in range(nest.trips[len(counters)]):
            yield from _addresses(nest, (*counters, counter))
    for access in here:
        if access.after:
            yield _one(access, counters)


def _one(access: Access, counters: tuple[int, ...]) -> tuple[int, int, bool]:
    address = access.base + sum(c * s for c, s in zip(counters, access.strides, strict=True))
    if access.table is not None:
        entry = sum(c * s for c, s in zip(counters, access.table.strides, strict=True))
        address += int(access.table.offsets[entry])
    return address, access.nbytes, access.write
