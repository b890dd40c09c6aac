"""How a matrix product is written for a GPU, thread by thread: the rungs of the ladder from naive to tensor cores."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hwsim.spec.base import Spec

Extent = Annotated[int, Field(ge=1)]
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
