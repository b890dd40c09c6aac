"""Loop nests cut over memories: how often each memory is read and written, and the row-stationary nests of a grid.

A convolution (or a matrix product, which is one with a 1x1 kernel) has seven loops. Each level of memory runs some of
them one after the other, and some are spread over the instances of the level inside. From that alone follows what
every level delivers and receives: a tile moves in when a loop around it that it depends on advances, stays when the
loops just around it do not concern it, is sent once to all instances that need the same, and sums of spread
reductions are added on their way out. No clock, no data: counts only.

In a row-stationary mapping a set of R x e elements computes e rows of the output: each element keeps one row of a
kernel, input rows run along the diagonals of the set, and sums up its columns. Names as in Chen et al., JSSC 2017: `n`
images and `m` output channels whose sums stay in the buffer, `p` output and `q` input channels that an element
interleaves, `t` output and `r` input channels (of those) in sets of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from hwsim.errors import InputError
from hwsim.program.convolution import ConvShape

Role = Literal["input", "weight", "output"]
INDICES = ("g", "n", "m", "c", "p", "q", "r", "s")
"""Groups, images, output channels, input channels (both of one group), output rows and columns, kernel rows and
columns."""

DEPENDS: Mapping[Role, str] = {"input": "gncpqrs", "weight": "gmcrs", "output": "gnmpq"}
"""The loops that an operand depends on."""
Loops = tuple[tuple[str, int], ...]
"""Index and trip count, from the outside in."""
_NEARLY_FULL = 2
"""How many of the largest numbers of interleaved channels are looked at."""
LETTERS = ("n", "m", "e", "p", "q", "r", "t")
ORDERS = ("mnp", "npm", "nmp", "pnm", "mpn", "pmn")
"""Loops around the sums that stay in the buffer, from the outside in: output channels, images, rows."""


@dataclass(frozen=True)
class Convolution:
    """The sizes of the loops. Indices that are not named have one iteration."""

    sizes: Mapping[str, int]
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)

    @property
    def macs(self) -> int:
        return prod(self.sizes.values())

    def depends(self, role: Role, index: str) -> bool:
        return index in DEPENDS[role]

    def values(self, role: Role, extent: Mapping[str, int]) -> int:
        """Distinct values of an operand that a piece of the loops touches; windows that overlap count once."""

        def size(index: str) -> int:
            return extent.get(index, 1)

        if role != "input":
            return prod(size(index) for index in DEPENDS[role])
        rows = _window(size("p"), size("r"), self.strides[0], self.dilations[0])
        columns = _window(size("q"), size("s"), self.strides[1], self.dilations[1])
        return size("g") * size("n") * size("c") * rows * columns


@dataclass(frozen=True)
class NestLevel:
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
class LevelAccesses:
    """Values that one operand moves at one level, all instances together."""

    reads: int = 0
    writes: int = 0


@dataclass(frozen=True)
class NestCounts:
    """The counts of a whole nest."""

    macs: int
    steps: int
    """Iterations of the loops that are not spread: cycles, if each instance multiplies once in a cycle."""
    accesses: Mapping[tuple[str, Role], LevelAccesses]
    reduced: int
    """Sums that one instance hands to another, where a reduction is spread."""

    def total(self, store: str) -> LevelAccesses:
        """All operands of one level."""
        own = [count for (name, _), count in self.accesses.items() if name == store]
        return LevelAccesses(sum(count.reads for count in own), sum(count.writes for count in own))


def count_accesses(work: Convolution, stores: Sequence[NestLevel], convention: Convention | None = None) -> NestCounts:
    """Count a nest given from main memory inwards. Raises InputError where the loops do not make up the work."""
    _check(work, stores)
    rules = convention or Convention()
    nest = _Nest(work, stores)
    accesses: dict[tuple[str, Role], LevelAccesses] = {}
    for role in ("input", "weight"):
        accesses |= _operand(nest, role)
    outputs, reduced = _sums(nest, rules)
    return NestCounts(
        macs=work.macs,
        steps=prod(count for store in stores for _, count in store.loops),
        accesses=accesses | outputs,
        reduced=reduced,
    )


def _operand(nest: _Nest, role: Role) -> dict[tuple[str, Role], LevelAccesses]:
    """Inputs and weights come from outside and are only read."""
    holders = nest.holders(role)
    found: dict[tuple[str, Role], LevelAccesses] = {}
    for position, holder in enumerate(holders):
        filled = 0 if position == 0 else nest.filled(holder, role)
        last = position == len(holders) - 1
        needed = nest.work.macs if last else nest.filled(holders[position + 1], role)
        inside = len(nest.stores) if last else holders[position + 1]
        found[nest.stores[holder].name, role] = LevelAccesses(
            reads=nest.sent(needed, holder, inside, role), writes=filled
        )
    return found


def _sums(nest: _Nest, rules: Convention) -> tuple[dict[tuple[str, Role], LevelAccesses], int]:
    """Outputs go outwards. A sum that comes back is read outside once, and written inside."""
    holders = nest.holders("output")
    found: dict[tuple[str, Role], LevelAccesses] = {}
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
        found[nest.stores[holder].name, "output"] = LevelAccesses(reads=reads, writes=updates + refilled)
    return found, reduced


class _Nest:
    """The loops around and inside each store."""

    def __init__(self, work: Convolution, stores: Sequence[NestLevel]) -> None:
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


def _window(outputs: int, kernel: int, stride: int, dilation: int = 1) -> int:
    """Positions under a kernel that is applied so many times."""
    return min(stride * (outputs - 1) + dilation * (kernel - 1) + 1, outputs * kernel)


def _extents(loops: Iterable[tuple[str, int]]) -> dict[str, int]:
    extents: dict[str, int] = {}
    for index, count in loops:
        extents[index] = extents.get(index, 1) * count
    return extents


def _check(work: Convolution, stores: Sequence[NestLevel]) -> None:
    made = _extents(loop for store in stores for loop in (*store.loops, *store.spread))
    for index in sorted({*made, *work.sizes}):
        if index not in INDICES:
            raise InputError(f"'{index}' is no loop of a convolution; those are {', '.join(INDICES)}")
        if made.get(index, 1) != work.sizes.get(index, 1):
            raise InputError(
                f"the loops over {index} make {made.get(index, 1)} iterations together; "
                f"the work has {work.sizes.get(index, 1)}"
            )


def rows_under(shape: ConvShape, outputs: int) -> int:
    """Input rows, with padding, under so many output rows."""
    rows = min((outputs - 1) * shape.stride[0] + shape.reach[0], outputs * shape.window[0])
    return min(rows, shape.padded[0])


@dataclass(frozen=True)
class GridSizes:
    """What a mapping has to fit into; memories in values."""

    rows: int
    columns: int
    inputs: int
    weights: int
    sums: int
    buffer: int
    """Values of inputs and sums together."""


@dataclass(frozen=True)
class RowStationary:
    """One choice, with the loops that it makes. Sizes that it does not divide leave a smaller last piece."""

    shape: ConvShape
    n: int
    m: int
    e: int
    p: int
    q: int
    r: int
    t: int
    order: str = "mnp"

    @classmethod
    def of(cls, shape: ConvShape, letters: dict[str, int], order: str = "mnp") -> RowStationary:
        """Letters that are not given are 1, and m as large as a pass needs it."""
        n, m, e, p, q, r, t = (letters.get(letter, 1) for letter in LETTERS)
        return cls(shape, n, max(m, min(shape.co // shape.groups, p * t)), e, p, q, r, t, order)

    @property
    def active(self) -> int:
        """Processing elements at work."""
        return self.shape.window[0] * self.e * self.r * self.t

    @property
    def pass_weights(self) -> int:
        """Weights of one pass, each sent once."""
        return self.p * self.t * self.q * self.r * self.shape.window[0] * self.shape.window[1]

    @property
    def input_tile(self) -> int:
        """Values of the inputs that lie in the buffer for some passes."""
        return self.n * self.q * self.r * rows_under(self.shape, self.e) * self.shape.padded[1]

    @property
    def sum_tile(self) -> int:
        """Sums that stay in the buffer until they are finished."""
        return self.n * self.m * self.e * self.shape.out[1]

    @property
    def sizes(self) -> dict[str, int]:
        return _loop_sizes(self.shape)

    def letters(self) -> dict[str, int]:
        return {letter: getattr(self, letter) for letter in LETTERS}

    def nest(self) -> tuple[Convolution, tuple[NestLevel, ...]]:
        """The loops, level by level, every piece whole; the buffer's two parts are two levels of one name."""
        size, shape = self.sizes, self.shape
        around = {"n": _up(size["n"], self.n), "m": _up(size["m"], self.m), "p": _up(size["p"], self.e)}
        depth = _up(size["c"], self.q * self.r)
        again = _up(self.m, self.p * self.t)
        stores = (
            NestLevel(
                "dram", frozenset(("input", "weight", "output")),
                (("g", size["g"]), *((index, around[index]) for index in self.order)),
            ),
            NestLevel("buffer", frozenset(("output",)), (("c", depth),)),
            NestLevel(
                "buffer", frozenset(("input",)), (("m", again),),
                (("c", self.r), ("m", self.t), ("r", shape.window[0]), ("p", self.e)),
            ),
            NestLevel("weights", frozenset(("weight",)), (("n", self.n), ("q", size["q"]))),
            NestLevel("inputs", frozenset(("input",)), slides=True),
            NestLevel("sums", frozenset(("output",)), (("c", self.q), ("s", shape.window[1]), ("m", self.p))),
        )  # fmt: skip
        whole = {
            "g": size["g"], "n": around["n"] * self.n, "m": around["m"] * again * self.p * self.t,
            "c": depth * self.q * self.r, "p": around["p"] * self.e, "q": size["q"],
            "r": shape.window[0], "s": shape.window[1],
        }  # fmt: skip
        return Convolution(whole, shape.stride, shape.dilation), stores


def most_of(shape: ConvShape) -> dict[str, int]:
    """No letter means anything beyond the layer."""
    size = _loop_sizes(shape)
    names = {"n": "n", "m": "m", "e": "p", "p": "m", "q": "c", "r": "c", "t": "m"}
    return {letter: size[names[letter]] for letter in LETTERS}


def limits(shape: ConvShape, sizes: GridSizes, given: dict[str, int] | None = None) -> dict[str, int]:
    """The largest value of each letter, the others as given or 1; 0 where not even 1 fits."""

    def fits(letter: str, value: int) -> bool:
        return not problems(RowStationary.of(shape, {**(given or {}), letter: value}), sizes)

    return {
        letter: next((value for value in range(most, 0, -1) if fits(letter, value)), 0)
        for letter, most in most_of(shape).items()
    }


def problems(mapping: RowStationary, sizes: GridSizes) -> list[str]:
    """What a mapping does not fit into, each in a sentence with what would fit."""
    shape, found = mapping.shape, []

    def need(what: str, needed: int, room: int, where: str) -> None:
        if needed > room:
            found.append(f"{what} needs {needed} {where}, which has {room}")

    need(f"a kernel of {shape.window[0]} rows", shape.window[0], sizes.rows, "rows of the grid")
    need(f"q={mapping.q}", mapping.q * shape.reach[1], sizes.inputs, "inputs in an element")
    need(
        f"p={mapping.p} with q={mapping.q}",
        mapping.p * mapping.q * shape.window[1],
        sizes.weights,
        "weights in an element",
    )
    need(f"p={mapping.p}", mapping.p, sizes.sums, "sums in an element")
    if shape.window[0] <= sizes.rows:
        sets = _sets(shape.window[0], mapping.e, sizes)
        where = f"sets of {shape.window[0]} x {mapping.e} elements in the grid"
        need(f"r={mapping.r} with t={mapping.t}", mapping.r * mapping.t, sets, where)
    need(
        f"n={mapping.n} with m={mapping.m}, e={mapping.e}, q={mapping.q}, r={mapping.r}",
        mapping.input_tile + mapping.sum_tile, sizes.buffer, "values in the buffer",
    )  # fmt: skip
    return found


def mappings(shape: ConvShape, sizes: GridSizes) -> Iterator[RowStationary]:
    """The mappings worth a look: elements as full as they can be or nearly, and as many sets as the grid holds."""
    size = _loop_sizes(shape)
    if shape.window[0] > sizes.rows:
        return
    widths = _useful(size["p"], sizes.columns * (sizes.rows // shape.window[0]))
    for e in [width for width in widths if 2 * width >= min(size["p"], sizes.columns)]:
        sets = _sets(shape.window[0], e, sizes)
        for q in _useful(size["c"], sizes.inputs // shape.reach[1])[-_NEARLY_FULL:]:
            for r in _useful(_up(size["c"], q), sets):
                room = (sizes.buffer - q * r * rows_under(shape, e) * shape.padded[1]) // (e * size["q"])
                for t in _useful(size["m"], sets // r)[-_NEARLY_FULL:]:
                    most = min(sizes.sums, sizes.weights // (q * shape.window[1]), room // t)
                    for p in _useful(_up(size["m"], t), most)[-_NEARLY_FULL:]:
                        yield from _in_buffer(RowStationary(shape, 1, min(size["m"], p * t), e, p, q, r, t), sizes)


def _in_buffer(one: RowStationary, sizes: GridSizes) -> Iterator[RowStationary]:
    """Images and output channels whose sums stay in the buffer: as many as fit, a half of that, a quarter, and so on.

    Fewer leave room for inputs and sums that are on their way.
    """
    shape, size = one.shape, one.sizes
    chunks = _up(size["m"], one.p * one.t)
    for n in _halves(size["n"]):
        left = sizes.buffer - n * one.input_tile
        most = min(chunks, left // (n * one.e * size["q"] * one.p * one.t)) if left > 0 else 0
        for again in sorted({_up(chunks, _up(chunks, each)) for each in (most, *_halves(chunks)) if 0 < each <= most}):
            yield RowStationary(shape, n, min(size["m"], again * one.p * one.t), one.e, one.p, one.q, one.r, one.t)


def _halves(whole: int) -> list[int]:
    """A whole number, its half, its quarter, …, 1; rounded up."""
    found = [whole]
    while found[-1] > 1:
        found.append(_up(found[-1], 2))
    return found


def _loop_sizes(shape: ConvShape) -> dict[str, int]:
    return {
        "g": shape.groups, "n": shape.batch, "m": shape.co // shape.groups, "c": shape.ci // shape.groups,
        "p": shape.out[0], "q": shape.out[1], "r": shape.window[0], "s": shape.window[1],
    }  # fmt: skip


def _sets(kernel_rows: int, e: int, sizes: GridSizes) -> int:
    """Sets of R x e elements that the grid holds; a set wider than the grid is folded."""
    bands = sizes.rows // kernel_rows
    if e > sizes.columns:
        return bands // _up(e, sizes.columns)
    return bands * (sizes.columns // e)


def _useful(whole: int, most: int) -> list[int]:
    """Of all pieces that cut a whole into equally many, the smallest."""
    return sorted({_up(whole, _up(whole, piece)) for piece in range(1, min(whole, most) + 1)})


def _up(whole: int, piece: int) -> int:
    return -(-whole // piece)
