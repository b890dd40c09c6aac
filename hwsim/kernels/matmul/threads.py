"""The ladder of matrix products on a GPU: what every thread loads, multiplies and stores, rung by rung.

The rungs are those of S. Boehm, "How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance" (2022). Matrices are
row-major. Of the compiler two things are assumed: neighbouring words that a thread needs in the same iteration are
loaded together, up to four; and so are those of four iterations of an unrolled loop, where a thread has registers left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwsim.errors import InputError
from hwsim.spec.threads import ThreadSchedule
from hwsim.trace.threads import Space, ThreadProgram, WarpAccess

WARP = 32
WORD = 4
WIDEST = 4
"""Words of the widest load of a thread."""
BASE_REGISTERS = 32
"""Registers of a thread beside its results and operands: addresses, counters."""
SPARE_RESULTS = 8
"""A thread with at most so many results has registers to load four iterations ahead."""
UNROLL = 4
"""Iterations of a loop of unknown length that a compiler unrolls."""


@dataclass(frozen=True)
class Problem:
    """C[m, n] = A[m, k] B[k, n] in a number format."""

    m: int
    n: int
    k: int
    fmt: str = "fp32"
    bits: int = 32

    @property
    def element_bytes(self) -> int:
        return self.bits // 8


@dataclass(frozen=True)
class Tiles:
    """Tile sizes with every default filled in."""

    bm: int
    bn: int
    bk: int
    tm: int = 1
    tn: int = 1
    wm: int = 0
    wn: int = 0

    @property
    def threads(self) -> int:
        if self.wm:
            return self.bm * self.bn // (self.wm * self.wn) * WARP
        return self.bm * self.bn // (self.tm * self.tn)


DEFAULTS: Mapping[str, Tiles] = {
    "naive": Tiles(32, 32, 8),
    "coalesced": Tiles(32, 32, 8),
    "shared": Tiles(32, 32, 32),
    "register_1d": Tiles(64, 64, 8, tm=8),
    "register_2d": Tiles(128, 128, 8, tm=8, tn=8),
    "vectorised": Tiles(128, 128, 8, tm=8, tn=8),
    "warp_tiled": Tiles(128, 128, 16, tm=8, tn=4, wm=64, wn=64),
    "tensor": Tiles(128, 128, 32, tm=16, tn=8, wm=64, wn=64),
}


def make_program(problem: Problem, schedule: ThreadSchedule) -> ThreadProgram:
    """What the threads do; raises where tiles do not divide each other."""
    needed = (8, 16) if schedule.kernel == "tensor" else (32,)
    if problem.bits not in needed:
        widths = " or ".join(map(str, needed))
        raise InputError(f"threads.kernel={schedule.kernel} is written for {widths} bits, found {problem.fmt}")
    tiles = find_tiles(schedule)
    _check(tiles, schedule.kernel)
    return _MAKERS[schedule.kernel](problem, tiles)


def find_tiles(schedule: ThreadSchedule) -> Tiles:
    """The tiles of a schedule, with what the rung is known for where it says nothing."""
    default = DEFAULTS[schedule.kernel]
    asked = {name: getattr(schedule, name) for name in ("bm", "bn", "bk", "tm", "tn", "wm", "wn")}
    return Tiles(**{name: value if value is not None else getattr(default, name) for name, value in asked.items()})


def _check(tiles: Tiles, kernel: str) -> None:
    pairs = [("bm", "tm"), ("bn", "tn")]
    pairs += [("bm", "wm"), ("bn", "wn"), ("wm", "tm"), ("wn", "tn")] if tiles.wm else []
    for outer, inner in pairs:
        if getattr(tiles, outer) % getattr(tiles, inner):
            raise InputError(
                f"{kernel}: {inner}={getattr(tiles, inner)} does not divide {outer}={getattr(tiles, outer)}"
            )
    if tiles.threads % WARP:
        raise InputError(f"{kernel}: {tiles.threads} threads are no whole number of warps of {WARP}")


def _threads(count: int) -> NDArray[np.int64]:
    """Thread numbers, one row for each warp."""
    return np.arange(count, dtype=np.int64).reshape(-1, WARP)


def _grid(problem: Problem, tiles: Tiles, rows_first: bool) -> tuple[int, int]:
    down, across = -(-problem.m // tiles.bm), -(-problem.n // tiles.bn)
    return (down, across) if rows_first else (across, down)


def _plain(problem: Problem, tiles: Tiles, coalesced: bool) -> ThreadProgram:
    """One thread for each result, straight from global memory; a step is as many k as bk."""
    tid = _threads(tiles.threads)
    row, column = (tid // tiles.bn, tid % tiles.bn) if coalesced else (tid % tiles.bm, tid // tiles.bm)
    a_row, b_row = problem.k * WORD, problem.n * WORD
    loop = (
        WarpAccess(
            "A", "global", row * a_row, WORD, times=tiles.bk, stride=WORD, step=tiles.bk * WORD,
            block=(tiles.bm * a_row, 0),
        ),
        WarpAccess(
            "B", "global", column * WORD, WORD, times=tiles.bk, stride=b_row, step=tiles.bk * b_row,
            block=(0, tiles.bn * WORD),
        ),
    )  # fmt: skip
    store = WarpAccess("C", "global", row * b_row + column * WORD, WORD, write=True)
    return ThreadProgram(
        "coalesced" if coalesced else "naive",
        _grid(problem, tiles, rows_first=True),
        tiles.threads,
        BASE_REGISTERS,
        0,
        -(-problem.k // tiles.bk),
        loop,
        (store,),
        fma=tiles.bk,
        other=2 * tiles.bk,
        unrolled=UNROLL,
    )


def _shared_tiles(problem: Problem, tiles: Tiles) -> ThreadProgram:
    """Square tiles in shared memory, one result for each thread."""
    tid = _threads(tiles.threads)
    row, column = tid // tiles.bn, tid % tiles.bn
    loop = (
        *_load_tiles(problem, tiles, rows_first=True),
        _read("As", row * tiles.bk * WORD, WIDEST, tiles.bk // WIDEST, WIDEST * WORD),
        _read("Bs", column * WORD, 1, tiles.bk, tiles.bn * WORD),
    )
    return _tiled("shared", problem, tiles, loop, row * problem.n * WORD + column * WORD, rows_first=True)


def _register_1d(problem: Problem, tiles: Tiles) -> ThreadProgram:
    """A column of tm results for each thread."""
    tid = _threads(tiles.threads)
    row, column = tid // tiles.bn, tid % tiles.bn
    ahead = WIDEST if tiles.tm * tiles.tn <= SPARE_RESULTS and tiles.bk % WIDEST == 0 else 1
    loop = (
        *_load_tiles(problem, tiles),
        _read("As", row * tiles.tm * tiles.bk * WORD, ahead, tiles.tm * tiles.bk // ahead, tiles.bk * WORD),
        _read("Bs", column * WORD, 1, tiles.bk, tiles.bn * WORD),
    )
    return _tiled("register_1d", problem, tiles, loop, row * tiles.tm * problem.n * WORD + column * WORD)


def _register_2d(problem: Problem, tiles: Tiles) -> ThreadProgram:
    """A square of results for each thread; A lies row by row, so that its words are loaded one by one."""
    tid = _threads(tiles.threads)
    across = tiles.bn // tiles.tn
    row, column = tid // across, tid % across
    words = _words(tiles.tn)
    loop = (
        *_load_tiles(problem, tiles),
        _read("As", row * tiles.tm * tiles.bk * WORD, 1, tiles.tm * tiles.bk, tiles.bk * WORD),
        _read("Bs", column * tiles.tn * WORD, words, tiles.tn // words * tiles.bk, words * WORD),
    )
    return _tiled("register_2d", problem, tiles, loop, (row * tiles.tm * problem.n + column * tiles.tn) * WORD)


def _vectorised(problem: Problem, tiles: Tiles) -> ThreadProgram:
    """As register_2d, with loads of four words and A transposed on its way into shared memory."""
    tid = _threads(tiles.threads)
    across = tiles.bn // tiles.tn
    row, column = tid // across, tid % across
    tall, wide = _words(tiles.tm), _words(tiles.tn)
    loop = (
        *_load_tiles(problem, tiles, vectorised=True),
        _read("As", row * tiles.tm * WORD, tall, tiles.tm // tall * tiles.bk, tall * WORD),
        _read("Bs", column * tiles.tn * WORD, wide, tiles.tn // wide * tiles.bk, wide * WORD),
    )
    store = (row * tiles.tm * problem.n + column * tiles.tn) * WORD
    return _tiled("vectorised", problem, tiles, loop, store, words=wide)


def _warp_tiled(problem: Problem, tiles: Tiles) -> ThreadProgram:
    """Each warp has a tile of its own; its lanes take tm x tn results of one strip after the other."""
    warps_across = tiles.bn // tiles.wn
    warp, lane = np.divmod(_threads(tiles.threads), WARP)
    results = tiles.wm * tiles.wn // WARP
    strips = max(1, results // (tiles.tm * tiles.tn))
    strip = tiles.wn // strips if tiles.wn // strips >= tiles.tn else tiles.tn
    lanes_across = strip // tiles.tn
    row = warp // warps_across * tiles.wm + lane // lanes_across * tiles.tm
    column = warp % warps_across * tiles.wn + lane % lanes_across * tiles.tn
    tall, wide = _words(tiles.tm), _words(tiles.tn)
    down = max(1, results // (tiles.tm * tiles.tn * strips))
    loop = (
        *_load_tiles(problem, tiles, vectorised=True),
        _read("As", row * WORD, tall, down * tiles.tm // tall * tiles.bk, tall * WORD),
        _read("Bs", column * WORD, wide, strips * tiles.tn // wide * tiles.bk, strip * WORD),
    )
    store = (row * problem.n + column) * WORD
    return _tiled("warp_tiled", problem, tiles, loop, store, words=wide, results=results)


def _tensor(problem: Problem, tiles: Tiles) -> ThreadProgram:
    """Warp tiles on tensor cores; operands are copied into shared memory asynchronously, two steps ahead."""
    size = problem.element_bytes
    warp, lane = np.divmod(_threads(tiles.threads), WARP)
    across = tiles.bn // tiles.wn
    piece = 16
    pad = piece
    a_row, b_row = tiles.bk * size + pad, tiles.bn * size + pad
    rows = lane % 16
    a = (warp // across * tiles.wm + rows) * a_row + lane // 16 * piece
    b = rows * b_row + warp % across * tiles.wn * size + lane // 16 * piece
    deep = max(1, tiles.bk // 16)
    loop = (
        *_copy_tiles(problem, tiles, size),
        WarpAccess("As", "shared", a, piece, times=tiles.wm // 16 * deep),
        WarpAccess("Bs", "shared", b, piece, times=tiles.wn // 16 * deep),
    )
    tid = _threads(tiles.threads)
    store = WarpAccess(
        "C", "global", tid * piece, piece, write=True, times=tiles.bm * tiles.bn * size // piece // tiles.threads
    )
    results = tiles.wm * tiles.wn // WARP
    return ThreadProgram(
        "tensor", _grid(problem, tiles, rows_first=False), tiles.threads, results + 2 * BASE_REGISTERS,
        2 * (tiles.bm * a_row + tiles.bk * b_row), -(-problem.k // tiles.bk), loop, (store,),
        fma=tiles.wm * tiles.wn * tiles.bk // WARP, other=tiles.wm // 16 * (tiles.wn // 8) * deep + 16, barriers=1,
        unit="tensor", overlapped=True, fmt=problem.fmt,
    )  # fmt: skip


def _tiled(
    name: str,
    problem: Problem,
    tiles: Tiles,
    loop: tuple[WarpAccess, ...],
    store: NDArray[np.int64],
    *,
    words: int = 1,
    results: int = 0,
    rows_first: bool = False,
) -> ThreadProgram:
    """A program with both tiles in shared memory and two barriers in each step."""
    results = results or tiles.tm * tiles.tn
    written = WarpAccess("C", "global", store, words * WORD, write=True, times=results // words)
    copies = sum(access.times for access in loop if access.space == "global")
    return ThreadProgram(
        name,
        _grid(problem, tiles, rows_first),
        tiles.threads,
        results + 2 * (tiles.tm + tiles.tn) + BASE_REGISTERS,
        (tiles.bm + tiles.bn) * tiles.bk * WORD,
        -(-problem.k // tiles.bk),
        loop,
        (written,),
        fma=results * tiles.bk,
        other=2 * copies + 8,
        barriers=2,
    )


def _load_tiles(
    problem: Problem, tiles: Tiles, vectorised: bool = False, rows_first: bool = False
) -> tuple[WarpAccess, ...]:
    """Both tiles from global into shared memory, each thread some words; vectorised, A is transposed on the way."""
    tid = _threads(tiles.threads)
    words = WIDEST if vectorised else 1
    a_row, b_row = problem.k * WORD, problem.n * WORD
    a_y, a_x = np.divmod(tid * words, tiles.bk)
    b_y, b_x = np.divmod(tid * words, tiles.bn)
    a_times = max(1, tiles.bm * tiles.bk // (tiles.threads * words))
    b_times = max(1, tiles.bk * tiles.bn // (tiles.threads * words))
    a_down, b_down = tiles.bm // a_times, tiles.bk // b_times
    a_block, b_block = tiles.bm * a_row, tiles.bn * WORD
    a_shared = (a_x * tiles.bm + a_y) * WORD if vectorised else tid * WORD
    return (
        WarpAccess(
            "A", "global", a_y * a_row + a_x * WORD, words * WORD, times=a_times, stride=a_down * a_row,
            step=tiles.bk * WORD, block=(a_block, 0) if rows_first else (0, a_block),
        ),
        WarpAccess(
            "B", "global", b_y * b_row + b_x * WORD, words * WORD, times=b_times, stride=b_down * b_row,
            step=tiles.bk * b_row, block=(0, b_block) if rows_first else (b_block, 0),
        ),
        WarpAccess("As", "shared", a_shared, WORD, write=True, times=a_times * words),
        WarpAccess("Bs", "shared", tid * words * WORD, words * WORD, write=True, times=b_times),
    )  # fmt: skip


def _copy_tiles(problem: Problem, tiles: Tiles, size: int) -> tuple[WarpAccess, ...]:
    """Both tiles by asynchronous copies of 16 bytes, which pass no register."""
    tid = _threads(tiles.threads)
    piece = 16
    each = piece // size
    found = []
    for tensor, rows, columns, pitch, step, block in (
        ("A", tiles.bm, tiles.bk, problem.k * size, tiles.bk * size, (0, tiles.bm * problem.k * size)),
        ("B", tiles.bk, tiles.bn, problem.n * size, tiles.bk * problem.n * size, (tiles.bn * size, 0)),
    ):
        y, x = np.divmod(tid * each, columns)
        times = max(1, rows * columns * size // (piece * tiles.threads))
        lanes = y * pitch + x * size
        found.append(
            WarpAccess(
                tensor, "global", lanes, piece, times=times, stride=rows // times * pitch, step=step, block=block
            )
        )
    return tuple(found)


def _read(tensor: str, lanes: NDArray[np.int64], words: int, times: int, stride: int) -> WarpAccess:
    """A load from shared memory."""
    space: Space = "shared"
    return WarpAccess(tensor, space, lanes, words * WORD, times=times, stride=stride)


def _words(count: int) -> int:
    """The widest load that divides a run of words."""
    return next(words for words in (4, 2, 1) if count % words == 0)


_MAKERS: dict[str, Callable[[Problem, Tiles], ThreadProgram]] = {
    "naive": lambda problem, tiles: _plain(problem, tiles, coalesced=False),
    "coalesced": lambda problem, tiles: _plain(problem, tiles, coalesced=True),
    "shared": _shared_tiles,
    "register_1d": _register_1d,
    "register_2d": _register_2d,
    "vectorised": _vectorised,
    "warp_tiled": _warp_tiled,
    "tensor": _tensor,
}
