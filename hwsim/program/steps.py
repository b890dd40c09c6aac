"""Blocks and Steps: what a kernel does in sequence, with its work and accesses, lowered once for each shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hwsim.program.loops import Loop, Operand, Piece, Ranges, is_resumed
from hwsim.program.lower import lower
from hwsim.trace.nest import Chain, Instructions, Nest, Size, Work


@dataclass(frozen=True)
class Step:
    """A piece of a Block."""

    name: str
    work: Work
    nests: tuple[Nest, ...]


@dataclass
class OutputBlock:
    """An independent piece of the output. `steps()` does the real math as it yields."""

    index: int
    steps: Callable[[], Iterator[Step]]


@dataclass(frozen=True)
class Stage:
    """Blocks that may run at the same time, in any order; the next stage begins when all of them are done."""

    name: str
    blocks: tuple[OutputBlock, ...]


LOOP_OVERHEAD = 2
"""Instructions for one iteration of a loop: advance the counter, compare and branch."""


def count_work(
    pieces: Sequence[Piece],
    body: Instructions,
    *,
    flops: int,
    macs: int = 0,
    late: Instructions | None = None,
    lanes: int = 1,
    fmt: str = "fp32",
    sums_lanes: bool = False,
) -> Work:
    """What the Nests compute. `body` is the arithmetic of one point of the loops, `late` that of one stored value.

    `sums_lanes` says that the lanes of a vector hold partial sums, to be added up after the loop.
    """
    runs = sum(piece.body_runs for piece in pieces)
    starts = sum(piece.starts for piece in pieces)
    moved = Instructions(
        load=sum(piece.loads for piece in pieces),
        store=sum(piece.stores for piece in pieces),
        other=sum(LOOP_OVERHEAD * piece.iterations + piece.gathered for piece in pieces),
    )
    if sums_lanes and lanes > 1:
        folds = sum(piece.starts * piece.parallel for piece in pieces) * (lanes.bit_length() - 1)
        moved += Instructions(add=folds, other=folds)
    if late is not None:
        moved += late.scaled(sum(piece.results for piece in pieces))
    return Work(
        flops=flops,
        macs=macs,
        instructions=body.scaled(runs) + moved,
        lanes=lanes,
        fmt=fmt,
        chain=_chain(pieces, body),
        loop_starts=starts,
    )


def _chain(pieces: Sequence[Piece], body: Instructions) -> Chain | None:
    """The chain of an average sum."""
    carrying = [piece for piece in pieces if piece.chain]
    if not carrying:
        return None
    sums = sum(piece.sums for piece in carrying)
    length = -(-sum(piece.sums * piece.chain for piece in carrying) // sums)
    widest = max(carrying, key=lambda piece: piece.sums * piece.chain * piece.parallel)
    return Chain("fma" if body.fma else "add", length, widest.parallel, sums)


NOWHERE: Mapping[str, Size] = {}


@dataclass(frozen=True)
class Template:
    """What a loop does over ranges of a certain shape, at the place where it was lowered."""

    loop: Loop
    starts: Mapping[str, int]
    nests: tuple[Nest, ...]
    operands: tuple[tuple[Operand, ...], ...]
    """The operand behind each access of each nest."""
    work: Work

    def at(self, ranges: Ranges, private: Mapping[str, Size] = NOWHERE) -> Step:
        """The same at another place; `private` tensors lie so many bytes further on."""
        if not private and all(ranges[index][0] == start for index, start in self.starts.items()):
            return Step(self.loop.name, self.work, self.nests)
        shifts: dict[int, Size] = {}
        for operand in (each for operands in self.operands for each in operands):
            if id(operand) not in shifts:
                shifts[id(operand)] = self._shift(operand, ranges) + private.get(operand.tensor, 0)
        nests = (
            nest.moved([shifts[id(operand)] for operand in operands])
            for nest, operands in zip(self.nests, self.operands, strict=True)
        )
        return Step(self.loop.name, self.work, tuple(nests))

    def _shift(self, operand: Operand, ranges: Ranges) -> Size:
        return sum(
            operand.distance(index, ranges[index][0]) - operand.distance(index, start)
            for index, start in self.starts.items()
        )


def make_template(loop: Loop, ranges: Ranges, fmt: str, *, sketch: bool = False) -> Template:
    """Lower a loop over ranges."""
    pieces = list(lower(loop.operation, loop.plan, ranges, sketch=sketch))
    work = count_work(
        pieces,
        loop.body,
        flops=loop.flops(ranges),
        macs=loop.macs(ranges),
        late=loop.late_body,
        lanes=loop.plan.lanes,
        fmt=fmt,
        sums_lanes=loop.sums_lanes,
    )
    return Template(
        loop,
        {index: start for index, (start, _) in ranges.items()},
        tuple(piece.nest for piece in pieces),
        tuple(piece.operands for piece in pieces),
        work,
    )


def template_key(loop: Loop, ranges: Ranges) -> tuple[object, ...]:
    """Ranges with the same key are shifted copies of each other: equal extents, places within blocks and in tables,
    and sums that all begin or all go on."""
    operands = loop.operation.operands
    places = (ranges[index][0] % block for operand in operands for index, (block, _) in operand.far.items())
    looked_up = (ranges[operand.gather.index][0] for operand in operands if operand.gather is not None)
    resumed = is_resumed(loop.operation, ranges)
    return (id(loop), resumed, *(extent for _, extent in ranges.values()), *places, *looked_up)
