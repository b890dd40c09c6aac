"""One vocabulary for schedules: which tile lives in which level, and in what order tiles are visited.

tile.LEVEL.AXIS     tile.shared.m, tile.unified_buffer.n, tile.l1.k: the level by the name that the machine gives it
order, split_k, stages, buffers, dataflow, keep

What an operation's own schedule has (`tile=32`, `v1=4`, `br`) stays there. A target says which of all these it reads.

How a workload is laid out on an array with scratchpads, and how a matrix product is written for a GPU thread by thread,
stand here as well: each class of machines reads its own.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer

from hwsim.spec.base import Spec
from hwsim.spec.limits import LARGEST_SIZE, KernelTile, Tile

NUMBERS = ("split_k", "stages", "buffers")
"""Choices that are a whole number, beside tiles."""
WORDS = ("order", "dataflow", "keep")
"""Choices that are one of some words."""
NAMES = (*WORDS, *NUMBERS)
AUTO = "auto"
"""The value of a choice that is left to the machine."""
PATTERN = rf"^(tile\.[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*|{'|'.join(NAMES)})$"

ChoiceName = Annotated[str, StringConstraints(pattern=PATTERN)]
ChoiceValue = int | str

LAYOUT = frozenset(
    [
        "layout",
        "w_layout",
        "a_layout",
        "b_layout",
        "ld",
        "packed",
        "view",
        "offset",
        "step",
        "contiguous",
        "reuses",
        "result",
    ]
)
"""Fields of schedules that say how data lies in memory or what is asked for: part of the problem on every machine."""

ALGORITHM = frozenset(
    ["variant", "algorithm", "fused", "fuse", "rewrite", "fold", "probabilities", "cutoff", "levels", "softmax"]
)
"""Fields of schedules that change the operations themselves, and so mean something wherever operations are computed."""


def is_choice(name: str) -> bool:
    """Whether a name is one of this vocabulary, whatever a machine makes of it."""
    return re.match(PATTERN, name) is not None


def is_tile(name: str) -> bool:
    """``tile.shared.m``: with a level and an axis."""
    return name.startswith("tile.") and is_choice(name)


def tile_parts(name: str) -> tuple[str, str]:
    """The level and the axis of a tile's name."""
    _, level, axis = name.split(".")
    return level, axis


def choice_problem(name: str, value: object) -> str:
    """What is wrong with a value, before a machine is known; nothing if it fits."""
    number = isinstance(value, int) and not isinstance(value, bool)
    if name in WORDS:
        return "" if isinstance(value, str) else "must be a word"
    if not number or int(str(value)) < 1:
        return "must be a whole number of at least 1"
    return "" if int(str(value)) <= LARGEST_SIZE else f"must be at most {LARGEST_SIZE:,}"


TileExtent = Tile
TileOrder = Literal["auto", "mnk", "mkn", "nmk", "nkm", "kmn", "knm"]


class MappingSpec(Spec):
    """Tiles of a product C[m, n] += A[m, k] B[k, n], and what stays on the chip."""

    order: TileOrder = Field(
        "auto",
        description="Loops over tiles from the outermost to the innermost; auto takes the order, and the tiles, that "
        "take the least time.",
    )
    tile_m: TileExtent | None = Field(None, description="Rows of A and C in a tile; chosen if not given.")
    tile_n: TileExtent | None = Field(None, description="Columns of B and C in a tile; chosen if not given.")
    tile_k: TileExtent | None = Field(None, description="Columns of A and rows of B in a tile; chosen if not given.")
    box: dict[str, TileExtent] = Field(
        {},
        description="Iterations of single loops in a tile, such as {h: 4, w: 14} of a convolution; other loops of the "
        "same group are whole. Instead of tile_m, tile_n or tile_k.",
    )
    reuse: Literal["auto", "none"] = Field(
        "auto",
        description="What tiles of one loop share. auto: comes once where there is room; none: each tile loads all its "
        "inputs and weights anew, as a library does that calls one tile after the other.",
    )
    keep: Literal["auto", "none"] = Field(
        "auto",
        description="What one loop leaves for the next. auto: stays in a scratchpad where it fits; none: goes through "
        "main memory.",
    )
    buffers: Literal[1, 2] | None = Field(
        None,
        description="1: a tile is fetched when the one before is done with; 2: while that is worked on, in half the "
        "room. The faster one if not given.",
    )
    dataflow: Literal["ws", "os", "is"] | None = Field(
        None,
        description="Which operand stays in the cells, of those that the machine's array can be set to; its own if "
        "not given.",
    )

    @model_serializer(mode="wrap")
    def _without_open_choices(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        unsaid: dict[str, object] = {"box": {}, "reuse": "auto", "buffers": None, "dataflow": None}
        return {name: value for name, value in data.items() if name not in unsaid or value != unsaid[name]}


Extent = KernelTile
Rung = Literal[
    "library", "naive", "coalesced", "shared", "register_1d", "register_2d", "vectorised", "warp_tiled", "tensor"
]


class ThreadSchedule(Spec):
    """A hand-written kernel; what is not given is what the rung is known for."""

    kernel: Rung = Field(
        "library",
        description="library: what the vendor's library would choose. naive: a thread for each result, neighbours down "
        "a column. coalesced: neighbours along a row. shared: square tiles in shared memory. register_1d, register_2d: "
        "a column, or a square, of results for each thread. vectorised: loads of four words, one tile transposed. "
        "warp_tiled: tiles for blocks, warps and threads. tensor: the same on tensor cores, with copies under way.",
    )
    bm: Extent | None = Field(None, description="Rows of the tile of a block.")
    bn: Extent | None = Field(None, description="Columns of the tile of a block.")
    bk: Extent | None = Field(None, description="Depth of one step.")
    tm: Extent | None = Field(None, description="Rows of the results of a thread.")
    tn: Extent | None = Field(None, description="Columns of the results of a thread.")
    wm: Extent | None = Field(None, description="Rows of the tile of a warp.")
    wn: Extent | None = Field(None, description="Columns of the tile of a warp.")
