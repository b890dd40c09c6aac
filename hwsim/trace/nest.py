"""Nest: a loop nest and the memory accesses in it, in strides format; and the Work that a step does besides.

A Nest is a few dozen integers that stand for millions of accesses. Its loops run from the outermost to the innermost;
an access at depth d lies inside the first d loops, before or after the loops that are deeper. For a matrix product

    for i < 2: for j < 3: { for k < 4: { load A[i,k]; load B[k,j] }; store C[i,j] }

    Nest(trips=(2, 3, 4), accesses=(
        Access(base=A, strides=(lda, 0, 1) * 8),            # depth 3: inside all three loops
        Access(base=B, strides=(0, 1, ldb) * 8),
        Access(base=C, strides=(ldc, 1) * 8, write=True, after=True)))      # depth 2: after the k loop

A zero stride is a broadcast, swapped strides are a transpose, a shifted base is a slice. A gather looks its byte offset
up in a table. Edge tiles are further Nests with smaller trip counts.

Elements narrower than a byte lie packed. Their accesses count in parts of a byte, `per_byte` to one: two for 4 bits,
four for 6. All accesses of a nest count in the same parts.

Events: what flows from the walk of a nest into the first memory level, and from each level into the next.

One event is one 64-bit number:

    | line: 44 bits | access: 6 bits | bytes - 1: 12 bits | kind: 2 bits |

`line` is the address divided by the grain of the stream (the line size of the first level, or its sector
size), `access` the number of the access in its nest, so that misses can be told apart by what caused them.

Accesses that are given one by one become events here, too; those that cross a line are split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import lcm, prod
from operator import add
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hwsim.errors import TraceError
from hwsim.jit import compiled

LOAD, STORE, WRITEBACK, UPDATE = range(4)
"""A load; a store of part of a line; a whole line (or sector) coming down; a load whose place is then stored to."""

U0, U1, U2, U3 = (np.uint64(number) for number in range(4))
KIND = np.uint64(3)
BYTES_SHIFT, BYTES_MASK = np.uint64(2), np.uint64(0xFFF)
ACCESS_SHIFT, ACCESS_MASK = np.uint64(14), np.uint64(0x3F)
LINE_SHIFT = np.uint64(20)
LINE_BITS = 44


def event_template(kind: int, nbytes: int, access: int) -> int:
    """An event without its line."""
    return kind | (nbytes - 1) << 2 | access << 14


def address_limit(grain: int) -> int:
    """Addresses from here on do not fit an event."""
    return grain << LINE_BITS


def split_accesses(
    addresses: NDArray[np.uint64], writes: NDArray[np.bool_], sizes: NDArray[np.uint16], grain: int
) -> NDArray[np.uint64]:
    """Events of `grain` bytes."""
    if len(addresses) == 0:
        return np.zeros(0, np.uint64)
    limit = address_limit(grain)
    if int(addresses.max()) >= limit - int(sizes.max()):
        raise TraceError(
            f"address {int(addresses.max()):#x} is too large: with {grain}-byte lines the limit is {limit:#x}"
        )
    most = int(sizes.max()) // grain + 2
    events = np.empty(len(addresses) * most if int(sizes.max()) > 1 else len(addresses), np.uint64)
    return events[: _split(addresses, writes, sizes, np.uint64(grain.bit_length() - 1), events)]


@compiled
def _split(
    addresses: NDArray[np.uint64],
    writes: NDArray[np.bool_],
    sizes: NDArray[np.uint16],
    shift: np.uint64,
    events: NDArray[np.uint64],
) -> int:
    position = 0
    for number in range(len(addresses)):
        address = addresses[number]
        end = address + np.uint64(sizes[number])
        kind = U1 if writes[number] else U0
        while address < end:
            line = address >> shift
            stop = min(end, (line + U1) << shift)
            events[position] = (line << LINE_SHIFT) | ((stop - address - U1) << BYTES_SHIFT) | kind
            position += 1
            address = stop
    return position


MAX_ACCESSES = 64
"""An event of the walk carries the number of its access in six bits."""

MAX_ACCESS_BYTES = 4096

Size = int | Fraction
"""Bytes; a fraction where elements are packed."""


@dataclass(frozen=True, eq=False)
class OffsetTable:
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
    table: OffsetTable | None = None
    slot: int | None = None
    """The number under which its misses are counted: its place in the nest if not given."""
    per_byte: int = 1
    """Units in a byte, a power of two: `base`, `strides` and `nbytes` count them."""

    @property
    def depth(self) -> int:
        return len(self.strides)

    @property
    def size(self) -> Size:
        """Bytes that it moves."""
        return self.nbytes if self.per_byte == 1 else Fraction(self.nbytes, self.per_byte)

    def moved(self, shift: Size) -> Access:
        """The same so many bytes further on."""
        if not shift:
            return self
        if isinstance(shift, Fraction) or self.per_byte > 1:
            finer = self.counted_in(lcm(self.per_byte, shift.denominator))
            return replace(finer, base=finer.base + int(shift * finer.per_byte))
        return Access(
            self.base + shift, self.strides, self.nbytes, self.write, self.after, self.tensor, self.table, self.slot
        )

    def counted_in(self, per_byte: int) -> Access:
        """The same in finer parts of a byte."""
        factor = per_byte // self.per_byte
        if factor == 1:
            return self
        table = self.table and OffsetTable(self.table.offsets * factor, self.table.strides)
        strides = tuple(stride * factor for stride in self.strides)
        return replace(
            self, base=self.base * factor, strides=strides, nbytes=self.nbytes * factor, table=table, per_byte=per_byte
        )


def make_access(
    base: Size,
    strides: Sequence[Size],
    nbytes: Size,
    write: bool = False,
    after: bool = False,
    tensor: str = "",
    table: OffsetTable | None = None,
    table_per_byte: int = 1,
) -> Access:
    """An access given in bytes, which may be fractions; it counts in the largest unit that has them all.

    The offsets of a table count `table_per_byte` to a byte.
    """
    per_byte = lcm(table_per_byte, *(number.denominator for number in (base, *strides, nbytes)))
    finer = per_byte // table_per_byte
    units = table if table is None or finer == 1 else OffsetTable(table.offsets * finer, table.strides)
    steps = tuple(int(stride * per_byte) for stride in strides)
    return Access(int(base * per_byte), steps, int(nbytes * per_byte), write, after, tensor, units, None, per_byte)


@dataclass(frozen=True)
class Nest:
    """Trip counts, outer to inner, and the accesses in program order."""

    trips: tuple[int, ...]
    accesses: tuple[Access, ...] = field(repr=False)
    repeats: int = field(default=1, repr=False)
    """In a sketch: how many nests this one stands for, which differ from it only in where they begin."""

    def __post_init__(self) -> None:
        if any(trip < 1 for trip in self.trips):
            raise ValueError(f"every trip count must be at least 1: {self.trips}")
        if len(self.accesses) > MAX_ACCESSES:
            raise ValueError(f"a nest holds at most {MAX_ACCESSES} accesses, found {len(self.accesses)}")
        for access in self.accesses:
            if access.depth > len(self.trips):
                raise ValueError(f"an access has {access.depth} strides in a nest of {len(self.trips)} loops")
            if not 1 <= access.nbytes <= MAX_ACCESS_BYTES * access.per_byte:
                raise ValueError(f"an access moves 1 to {MAX_ACCESS_BYTES} bytes, found {access.size}")
        if len({access.per_byte for access in self.accesses}) > 1:
            finest = lcm(*(access.per_byte for access in self.accesses))
            object.__setattr__(self, "accesses", tuple(access.counted_in(finest) for access in self.accesses))

    @property
    def depth(self) -> int:
        return len(self.trips)

    @property
    def per_byte(self) -> int:
        """Units in a byte that all accesses count in."""
        return self.accesses[0].per_byte if self.accesses else 1

    def bytes_moved(self, *, write: bool) -> int:
        """Bytes that all loads (or all stores) move together, packed elements by their bits; rounded up."""
        units = sum(self.count(access) * access.nbytes for access in self.accesses if access.write == write)
        return -(-units // self.per_byte)

    def count(self, access: Access) -> int:
        """How often an access is executed."""
        return prod(self.trips[: access.depth])

    def moved(self, shifts: Sequence[Size]) -> Nest:
        """The same with each access so many bytes further on."""
        accesses = tuple(access.moved(shift) for access, shift in zip(self.accesses, shifts, strict=True))
        if any(access.per_byte != self.per_byte for access in accesses):
            return Nest(self.trips, accesses, self.repeats)
        made = object.__new__(Nest)  # what was checked here holds there, and what was counted is the same
        made.__dict__.update(self.__dict__, packed=self.packed, accesses=accesses)
        return made

    @cached_property
    def packed(self) -> dict[tuple[int, ...], Any]:
        """What walks have made of it, by where in their lines its accesses begin; shared with what is moved."""
        return {}

    @cached_property
    def loads(self) -> int:
        return sum(self.count(access) for access in self.accesses if not access.write)

    @cached_property
    def stores(self) -> int:
        return sum(self.count(access) for access in self.accesses if access.write)

    @cached_property
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
        return low // access.per_byte, -(-(high + access.nbytes) // access.per_byte)

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
            table = OffsetTable(table.offsets[start * table.strides[0] :], table.strides)
        moved.append(replace(access, base=access.base + start * access.strides[0], table=table))
    return Nest((count, *nest.trips[1:]), tuple(moved))


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
        table = OffsetTable(table.offsets, table.strides[1:])
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
    first, end = address // access.per_byte, -(-(address + access.nbytes) // access.per_byte)
    return first, end - first, access.write


ChainOp = Literal["fma", "add", "mul", "load"]


@dataclass(frozen=True)
class Instructions:
    """Issued instructions by class; a vector instruction counts once.

    `fma` is a multiply and an add on the same sum: a machine without fused multiply-add issues two
    instructions. `other` is address arithmetic, loop control and the shuffling of vectors.
    """

    fma: int = 0
    add: int = 0
    mul: int = 0
    special: int = 0
    load: int = 0
    store: int = 0
    other: int = 0
    convert: int = 0
    """From one number format to another."""

    def __add__(self, more: Instructions) -> Instructions:
        return Instructions(*map(add, vars(self).values(), vars(more).values()))

    def scaled(self, times: int) -> Instructions:
        return Instructions(*(count * times for count in vars(self).values()))

    @property
    def total(self) -> int:
        return sum(vars(self).values())


@dataclass(frozen=True)
class Chain:
    """Operations of which each waits for the one before: in the innermost loop, and in those around it that go on with
    the same sum in its register.

    `parallel` such chains run side by side in the loop body (a vector of partial sums is one chain). A sum that goes
    through memory waits for the store as well as for the addition: it counts two operations for each element.
    """

    op: ChainOp
    length: int
    parallel: int = 1
    runs: int | None = None
    """How often such a chain begins; with each innermost loop if not given."""

    def scaled(self, times: int) -> Chain:
        return self if self.runs is None else replace(self, runs=self.runs * times)


@dataclass(frozen=True)
class Work:
    """What a Step computes, and the instructions that a load/store machine needs for it."""

    flops: int
    macs: int
    instructions: Instructions
    lanes: int = 1
    fmt: str = "fp32"
    chain: Chain | None = None
    loop_starts: int = 0
    """How often an innermost loop begins: each costs a few cycles on a real core."""

    def scaled(self, times: int) -> Work:
        """The same work so many times over."""
        if times == 1:
            return self
        return replace(
            self,
            flops=self.flops * times,
            macs=self.macs * times,
            instructions=self.instructions.scaled(times),
            loop_starts=self.loop_starts * times,
            chain=self.chain.scaled(times) if self.chain is not None else None,
        )

    @property
    def sums(self) -> int:
        """How often its chain begins."""
        runs = self.chain.runs if self.chain is not None else None
        return max(1, self.loop_starts if runs is None else runs)
