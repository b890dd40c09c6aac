"""How a workload is laid out on an array with scratchpads; a load/store machine does not read it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hwsim.spec.base import Spec

TileExtent = Annotated[int, Field(ge=1)]
TileOrder = Literal["auto", "mnk", "mkn", "nmk", "nkm", "kmn", "knm"]


class MappingSpec(Spec):
    """Tiles of a product C[m, n] += A[m, k] B[k, n], and what stays on the chip."""

    order: TileOrder = Field(
        "auto",
        description="Loops over tiles from the outermost to the innermost; auto takes the order, and the tiles, that "
        "move the fewest bytes to and from main memory.",
    )
    tile_m: TileExtent | None = Field(None, description="Rows of A and C in a tile; chosen if not given.")
    tile_n: TileExtent | None = Field(None, description="Columns of B and C in a tile; chosen if not given.")
    tile_k: TileExtent | None = Field(None, description="Columns of A and rows of B in a tile; chosen if not given.")
    keep: Literal["auto", "none"] = Field(
        "auto",
        description="What one loop leaves for the next. auto: stays in a scratchpad where it fits; none: goes through "
        "main memory.",
    )
