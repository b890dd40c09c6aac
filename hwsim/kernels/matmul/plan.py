"""The loops of a matrix product C[i,j] += A[i,k] * B[k,j], from its schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hwsim.kernels.loop.loops import LoopPlan
from hwsim.kernels.loop.program import Ranges
from hwsim.spec.ops.matmul import ProductSchedule


def make_matmul_plan(
    schedule: ProductSchedule, extents: Mapping[str, int], lanes: int, *, b_transposed: bool = False
) -> LoopPlan:
    """The loops; a tile that is larger than its extent is cut down to it.

    Indices other than i, j and k are those of a batch: their loops run outside, one product after the other.
    """
    s = schedule
    batch = tuple(index for index in extents if index not in ("i", "j", "k"))
    asked = {"i": s.tile or s.b1, "j": s.tile or s.b2, "k": s.tile_k or s.tile}
    tile = {index: min(size, extents[index]) for index, size in asked.items() if size}
    if tile:
        tile = dict.fromkeys(batch, 1) | tile
    lanes = lanes if s.vector else 1
    columns = s.v2 or (1 if s.v1 == 1 or not s.vector else 2 if b_transposed else 2 * lanes)
    unroll = {"i": s.v1, "j": columns, "k": s.v3}
    vector = "j" if columns > 1 and not b_transposed else s.order[-1]
    return LoopPlan(
        order=(*batch, *s.order),
        tile=tile,
        unroll={index: min(size, extents[index]) for index, size in unroll.items() if size > 1},
        vector=vector if lanes > 1 else None,
        lanes=lanes,
        accumulate=s.accumulate,
    )


def count_matmul_registers(plan: LoopPlan) -> int:
    """v1*v3 values of A, v2*v3 of B and v1*v2 of C; a vector of them takes one register."""
    lanes = {index: plan.lanes if index == plan.vector else 1 for index in "ijk"}
    v1, v2, v3 = (-(-plan.unroll.get(index, 1) // lanes[index]) for index in "ijk")
    return v1 * v3 + v2 * v3 + v1 * v2


def cut_sums(plan: LoopPlan, ranges: Ranges) -> Iterator[Ranges]:
    """A range, cut along k at the tiles of the schedule: sums are rounded there, in that order."""
    first, extent = ranges["k"]
    tile = min(plan.tile.get("k", extent), extent)
    for start in range(first, first + extent, tile):
        yield {**ranges, "k": (start, min(tile, first + extent - start))}
