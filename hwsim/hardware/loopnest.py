"""How often each memory of an accelerator is read and written, from a loop nest that is cut over its levels.

A convolution (or a matrix product, which is one with a 1x1 kernel) has seven loops. Each level of memory runs some of
them one after the other, and some are spread over the instances of the level inside. From that alone follows what
every level delivers and receives: a tile moves in when a loop around it that it depends on advances, stays when the
loops just around it do not concern it, is sent once to all instances that need the same, and sums of spread
reductions are added on their way out. No clock, no data: counts only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from hwsim.errors import InputError

Role = Literal["input", "weight", "output"]
ROLES: tuple[Role, ...] = ("input", "weight", "output")
INDICES = ("g", "n", "m", "c", "p", "q", "r", "s")
"""Groups, images, output channels, input channels (both of one group), output rows and columns, kernel rows and
columns."""

Loops = tuple[tuple[str, int], ...]
"""Index and trip count, from the outside in."""


@dataclass(frozen=True)
class Convolution:
    """The sizes of the loops. Indices that are not named have one iteration."""

    sizes: Mapping[str, int]
    stride: int = 1

    @property
    def macs(self) -> int:
        return prod(self.sizes.values())

    def depends(self, role: Role, index: str) -> bool:
        return index in {"input": "gncpqrs", "weight": "gmcrs", "output": "gnmpq"}[role]

    def values(self, role: Role, extent: Mapping[str, int]) -> int:
        """Distinct values of an operand that a piece of the loops touches; windows that overlap count once."""

        def size(index: str) -> int:
            return extent.get(index, 1)

        if role == "weight":
            return size("g") * size("m") * size("c") * size("r") * size("s")
        if role == "output":
            return size("g") * size("n") * size("m") * size("p") * size("q")
        rows = _window(size("p"), size("r"), self.stride)
        columns = _window(size("q"), size("s"), self.stride)
        return size("g") * size("n") * size("c") * rows * columns


@dataclass(frozen=True)
class Store:
    """A level of memory: what it keeps, the loops that it runs, and those spread over the instances inside it."""

    name: str
    holds: frozenset[Role]
    loops: Loops = ()
    spread: Loops = ()
    slides: bool = False
    """Whether a window that moves on fetches only what is new to it."""
    multicast: bool = True
    """Whether one read serves all instances inside that need the same value."""


@dataclass(frozen=True)
class Convention:
    """Where programs that count differ."""

    first_reads: bool = False
    """Whether adding the first product to a sum reads a zero from memory."""
    drains: bool = True
    """Whether a sum that leaves for the next level is read."""


@dataclass(frozen=True)
class Accesses:
    """Values that one operand moves at one level, all instances together."""

    reads: int = 0
    writes: int = 0


@dataclass(frozen=True)
class Flow:
    """The counts of a whole nest."""

    macs: int
    steps: int
    """Iterations of the loops that are not spread: cycles, if each instance multiplies once in a cycle."""
    units: int
    """Multipliers that are used."""
    accesses: Mapping[tuple[str, Role], Accesses]
    reduced: int
    """Sums that one instance hands to another, where a reduction is spread."""

    def total(self, store: str) -> Accesses:
        """All operands of one level."""
        own = [count for (name, _), count in self.accesses.items() if name == store]
        return Accesses(sum(count.reads for count in own), sum(count.writes for count in own))


def count_accesses(work: Convolution, stores: Sequence[Store], convention: Convention | None = None) -> Flow:
    """Count a nest given from main memory inwards. Raises InputError where the loops do not make up the work."""
    _check(work, stores)
    rules = convention or Convention()
    nest = _Nest(work, stores)
    accesses: dict[tuple[str, Role], Accesses] = {}
    for role in ("input", "weight"):
        accesses |= _operand(nest, role)
    outputs, reduced = _sums(nest, rules)
    return Flow(
        macs=work.macs,
        steps=prod(count for store in stores for _, count in store.loops),
        units=prod(count for store in stores for _, count in store.spread),
        accesses=accesses | outputs,
        reduced=reduced,
    )


def _operand(nest: _Nest, role: Role) -> dict[tuple[str, Role], Accesses]:
    """Inputs and weights come from outside and are only read."""
    holders = nest.holders(role)
    found: dict[tuple[str, Role], Accesses] = {}
    for position, holder in enumerate(holders):
        filled = 0 if position == 0 else nest.filled(holder, role)
        last = position == len(holders) - 1
        needed = nest.work.macs if last else nest.filled(holders[position + 1], role)
        inside = len(nest.stores) if last else holders[position + 1]
        found[nest.stores[holder].name, role] = Accesses(reads=nest.sent(needed, holder, inside, role), writes=filled)
    return found


def _sums(nest: _Nest, rules: Convention) -> tuple[dict[tuple[str, Role], Accesses], int]:
    """Outputs go outwards. A sum that comes back is read outside once, and written inside."""
    holders = nest.holders("output")
    found: dict[tuple[str, Role], Accesses] = {}
    reduced = 0
    for position in reversed(range(len(holders))):
        holder = holders[position]
        last = position == len(holders) - 1
        inside = len(nest.stores) if last else holders[position + 1]
        arriving = nest.work.macs if last else nest.drained(inside)
        merged = nest.shared(holder, inside, "output")
        updates = arriving // merged
        reduced += arriving - updates
        refilled = 0 if position == 0 else nest.refilled(holder)
        if last:
            reads = updates if rules.first_reads else updates - nest.fresh(holder)
        else:
            reads = nest.refilled(inside) // merged
        if position > 0 and rules.drains:
            reads += nest.drained(holder)
        found[nest.stores[holder].name, "output"] = Accesses(reads=reads, writes=updates + refilled)
    return found, reduced


class _Nest:
    """The loops around and inside each store."""

    def __init__(self, work: Convolution, stores: Sequence[Store]) -> None:
        self.work = work
        self.stores = stores

    def holders(self, role: Role) -> list[int]:
        found = [number for number, store in enumerate(self.stores) if role in store.holds]
        if not found or found[0] != 0:
            raise InputError(f"{self.stores[0].name} does not hold the {role}: everything starts in main memory")
        return found

    def filled(self, number: int, role: Role) -> int:
        """Values written into a store from outside, all its instances together."""
        around, tile = self._around(number, role), self._tile(number)
        if self.stores[number].slides and around and role == "input" and around[-1][0] in "pq":
            index, count = around.pop()
            tile[index] = tile.get(index, 1) * count
        changes = prod(count for _, count in around)
        return self.work.values(role, tile) * changes * self.instances(number)

    def drained(self, number: int) -> int:
        """Sums that leave a store outwards, all its instances together."""
        changes = prod(count for _, count in self._around(number, "output"))
        return self.work.values("output", self._tile(number)) * changes * self.instances(number)

    def fresh(self, number: int) -> int:
        """Sums that begin in a store."""
        visits = prod(count for index, count in self._loops(number) if self.work.depends("output", index))
        return self.work.values("output", self._tile(number)) * visits * self.instances(number)

    def refilled(self, number: int) -> int:
        """Sums that come back into a store because they left it unfinished."""
        return self.drained(number) - self.fresh(number)

    def instances(self, number: int) -> int:
        return prod(count for store in self.stores[:number] for _, count in store.spread)

    def shared(self, outside: int, inside: int, role: Role) -> int:
        """Instances between two levels for which one value of an operand is the same."""
        spread = [loop for store in self.stores[outside:inside] for loop in store.spread]
        return prod(count for index, count in spread if not self.work.depends(role, index))

    def sent(self, needed: int, outside: int, inside: int, role: Role) -> int:
        """Reads that serve so many values inside. Windows side by side need some of the same rows or columns."""
        stores = [store for store in self.stores[outside:inside] if store.multicast]
        spread = _extents(loop for store in stores for loop in store.spread)
        sent = needed // prod(count for index, count in spread.items() if not self.work.depends(role, index))
        for output, kernel in (("p", "r"), ("q", "s")) if role == "input" else ():
            both = spread.get(output, 1), spread.get(kernel, 1)
            if min(both) > 1:
                distinct = self.work.values(role, {output: both[0], kernel: both[1]})
                sent = sent * distinct // prod(both)
        return sent

    def _tile(self, number: int) -> dict[str, int]:
        inner = [loop for store in self.stores[number:] for loop in (*store.loops, *store.spread)]
        return _extents(inner)

    def _loops(self, number: int) -> list[tuple[str, int]]:
        return [loop for store in self.stores[:number] for loop in store.loops]

    def _around(self, number: int, role: Role) -> list[tuple[str, int]]:
        """The loops around a store, without the innermost ones through which its tile stays."""
        around = self._loops(number)
        while around and not self.work.depends(role, around[-1][0]):
            around.pop()
        return around


def _window(outputs: int, kernel: int, stride: int) -> int:
    """Positions under a kernel that is applied so many times."""
    return min(stride * (outputs - 1) + kernel, outputs * kernel)


def _extents(loops: Iterable[tuple[str, int]]) -> dict[str, int]:
    extents: dict[str, int] = {}
    for index, count in loops:
        extents[index] = extents.get(index, 1) * count
    return extents


def _check(work: Convolution, stores: Sequence[Store]) -> None:
    made = _extents(loop for store in stores for loop in (*store.loops, *store.spread))
    for index in sorted({*made, *work.sizes}):
        if index not in INDICES:
            raise InputError(f"'{index}' is no loop of a convolution; those are {', '.join(INDICES)}")
        if made.get(index, 1) != work.sizes.get(index, 1):
            raise InputError(
                f"the loops over {index} make {made.get(index, 1)} iterations together; "
                f"the work has {work.sizes.get(index, 1)}"
            )
