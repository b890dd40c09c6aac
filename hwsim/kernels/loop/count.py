"""From lowered loops to Work: instructions, chains, and what a scratchpad would move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from hwsim.kernels.loop.loops import LoopOperation, LoopPlan, Operand, Piece, Range, is_resumed
from hwsim.kernels.step import Chain, Instructions, Tile, Work
from hwsim.trace.nest import Size

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


def count_tiles(
    operation: LoopOperation, plan: LoopPlan, ranges: Mapping[str, Range], bits: Mapping[str, Size]
) -> tuple[Tile, ...]:
    """The pieces that the tile loops move: a piece is fetched again when a loop around its own loops
    advances."""
    loops = [index for index in plan.order if index in plan.tile]
    cuts = {index: _cuts(ranges[index][1], plan.tile.get(index)) for index in plan.order}
    tiles: list[Tile] = []
    for operand in (*operation.inputs, *operation.late):
        tiles += _tiles_of(operand, loops, plan.order, cuts, bits)
    for operand in operation.stores:
        tiles += [replace(tile, write=True) for tile in _tiles_of(operand, loops, plan.order, cuts, bits)]
    output = operation.output
    if output is not None:
        written = [replace(tile, write=True) for tile in _tiles_of(output, loops, plan.order, cuts, bits)]
        around = any(index not in output.strides for index in _around(output, loops))
        if operation.accumulates and (around or is_resumed(operation, ranges)):
            tiles += [replace(tile, write=False) for tile in written]
        tiles += written
    return tuple(tiles)


def _around(operand: Operand, loops: Sequence[str]) -> Sequence[str]:
    """The tile loops up to the innermost one that moves an operand."""
    own = [position for position, index in enumerate(loops) if index in operand.strides]
    return loops[: max(own) + 1] if own else ()


def _tiles_of(
    operand: Operand,
    loops: Sequence[str],
    order: Sequence[str],
    cuts: Mapping[str, Sequence[tuple[int, int]]],
    bits: Mapping[str, Size],
) -> list[Tile]:
    again = prod(
        sum(count for count, _ in cuts[index]) for index in _around(operand, loops) if index not in operand.strides
    )
    own = [cuts[index] for index in operand.strides if index in order]
    return [
        Tile(
            operand.tensor,
            tuple(size for _, size in shape),
            bits[operand.tensor],
            count=again * prod(count for count, _ in shape),
        )
        for shape in product(*own)
    ]


def _cuts(extent: int, tile: int | None) -> list[tuple[int, int]]:
    size = min(tile or extent, extent)
    whole, rest = divmod(extent, size)
    return [(whole, size)] + ([(1, rest)] if rest else [])
