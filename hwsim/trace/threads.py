"""ThreadProgram: what the threads of a GPU kernel do, warp by warp, without a machine.

A kernel is a grid of equal blocks. A block runs a main loop of equal steps; in a step every warp makes the same
accesses, each of its 32 lanes to an address of its own. Where block, step and repetition shift an access by a fixed
distance, one pattern of lanes and a few strides describe all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Space = Literal["global", "shared"]


@dataclass(frozen=True, eq=False)
class WarpAccess:
    """One load or store instruction of every warp of a block."""

    tensor: str
    space: Space
    lanes: NDArray[np.int64]
    """Byte offset of each lane (column) of each warp (row), in the first block and step."""
    nbytes: int
    """Bytes of one lane."""
    write: bool = False
    times: int = 1
    """How often it runs in a step."""
    stride: int = 0
    """Bytes from one time to the next."""
    step: int = 0
    """Bytes from one step of the main loop to the next."""
    block: tuple[int, int] = (0, 0)
    """Bytes from one block to the next along the grid's first and second axis."""

    @property
    def requests(self) -> int:
        """Instructions of one warp in a step."""
        return self.times

    def offsets(self, block: tuple[int, int], step: int, time: int) -> NDArray[np.int64]:
        """Where every lane goes at one time of one step of one block."""
        shift = self.block[0] * block[0] + self.block[1] * block[1] + self.step * step + self.stride * time
        return self.lanes + shift


@dataclass(frozen=True)
class ThreadProgram:
    """A grid of blocks, and what one block does in each step of its main loop."""

    name: str
    grid: tuple[int, int]
    """Blocks along the first axis, which is handed out first, and along the second."""
    threads: int
    registers: int
    """Of one thread."""
    shared_bytes: int
    steps: int
    loop: tuple[WarpAccess, ...]
    """Accesses of one step, in program order."""
    last: tuple[WarpAccess, ...]
    """Accesses after the main loop: the results."""
    fma: int
    """Multiply-add instructions of one warp in a step; on tensor cores those of its lanes put together."""
    other: int
    """Instructions of one warp in a step that neither multiply nor move data: addresses, loop control."""
    barriers: int = 0
    """How often the warps of a block wait for each other in a step."""
    unit: Literal["lanes", "tensor"] = "lanes"
    overlapped: bool = False
    """Whether the operands of the next step are fetched while this one is computed (asynchronous copies)."""
    unrolled: int = 1
    """Times of an access whose results a warp waits for together."""
    fmt: str = "fp32"

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def warps(self) -> int:
        return -(-self.threads // 32)

    @property
    def fma_total(self) -> int:
        """Multiply-adds of all threads."""
        return self.blocks * self.steps * self.warps * self.fma * 32

    def block_at(self, number: int) -> tuple[int, int]:
        """The place in the grid of the block that is handed out as the given one."""
        return number % self.grid[0], number // self.grid[0]

    def accesses(self, space: Space) -> Iterator[WarpAccess]:
        """Accesses of the main loop to a memory space."""
        return (access for access in self.loop if access.space == space)
