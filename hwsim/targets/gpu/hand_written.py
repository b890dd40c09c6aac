"""The ladder of matrix products on a GPU: what every thread loads, multiplies and stores, rung by rung.

The rungs are those of S. Boehm, "How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance" (2022). Matrices are
row-major. Of the compiler two things are assumed: neighbouring words that a thread needs in the same iteration are
loaded together, up to four; and so are those of four iterations of an unrolled loop, where a thread has registers left.

In a step of the main loop, an SM is held by whichever is longest: multiply-adds on its lanes or tensor cores, memory
instructions on its load/store unit, or the issue of all instructions. Multiply-adds with operands from shared memory
reach no more of the peak than the best main loops that were measured on the machine (`lane_loop_share`): conflicts
between banks of registers cost a compiler at least what they cost the vendor. A block alone also waits: for its
operands to arrive, for its warps to meet at barriers, and for a sum before the next product is added to it. Other
blocks on the same SM hide that wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from hwsim.errors import InputError
from hwsim.spec.choices import ThreadSchedule
from hwsim.targets.gpu.agent import play_kernel, wave_grid
from hwsim.targets.gpu.device import (
    ISSUE,
    MATH,
    MEMORY_UNIT,
    Activity,
    BlockCost,
    ClosedForm,
    Device,
    Footprint,
    KernelCost,
    SmOccupancy,
    moved_bytes,
    occupancy,
    waves_of,
)
from hwsim.targets.gpu.gemm import lane_loop_share
from hwsim.targets.gpu.replay import (
    MOST_SECTORS,
    GlobalTraffic,
    Space,
    ThreadProgram,
    WarpAccess,
    WarpRequest,
    measure,
    replay,
)

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
class MatmulProblem:
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


def make_program(problem: MatmulProblem, schedule: ThreadSchedule) -> ThreadProgram:
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


def _grid(problem: MatmulProblem, tiles: Tiles, rows_first: bool) -> tuple[int, int]:
    down, across = -(-problem.m // tiles.bm), -(-problem.n // tiles.bn)
    return (down, across) if rows_first else (across, down)


def _plain(problem: MatmulProblem, tiles: Tiles, coalesced: bool) -> ThreadProgram:
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
        chain=tiles.bk,
        unrolled=UNROLL,
    )


def _shared_tiles(problem: MatmulProblem, tiles: Tiles) -> ThreadProgram:
    """Square tiles in shared memory, one result for each thread."""
    tid = _threads(tiles.threads)
    row, column = tid // tiles.bn, tid % tiles.bn
    loop = (
        *_load_tiles(problem, tiles, rows_first=True),
        _read("As", row * tiles.bk * WORD, WIDEST, tiles.bk // WIDEST, WIDEST * WORD),
        _read("Bs", column * WORD, 1, tiles.bk, tiles.bn * WORD),
    )
    return _tiled("shared", problem, tiles, loop, row * problem.n * WORD + column * WORD, rows_first=True)


def _register_1d(problem: MatmulProblem, tiles: Tiles) -> ThreadProgram:
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


def _register_2d(problem: MatmulProblem, tiles: Tiles) -> ThreadProgram:
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


def _vectorised(problem: MatmulProblem, tiles: Tiles) -> ThreadProgram:
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


def _warp_tiled(problem: MatmulProblem, tiles: Tiles) -> ThreadProgram:
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


def _tensor(problem: MatmulProblem, tiles: Tiles) -> ThreadProgram:
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
        fma=tiles.wm * tiles.wn * tiles.bk // WARP, other=tiles.wm // 16 * (tiles.wn // 8) * deep + 16, chain=deep,
        barriers=1,
        unit="tensor", overlapped=True, fmt=problem.fmt,
    )  # fmt: skip


def _tiled(
    name: str,
    problem: MatmulProblem,
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
        chain=tiles.bk,
        barriers=2,
    )


def _load_tiles(
    problem: MatmulProblem, tiles: Tiles, vectorised: bool = False, rows_first: bool = False
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


def _copy_tiles(problem: MatmulProblem, tiles: Tiles, size: int) -> tuple[WarpAccess, ...]:
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


_MAKERS: dict[str, Callable[[MatmulProblem, Tiles], ThreadProgram]] = {
    "naive": lambda problem, tiles: _plain(problem, tiles, coalesced=False),
    "coalesced": lambda problem, tiles: _plain(problem, tiles, coalesced=True),
    "shared": _shared_tiles,
    "register_1d": _register_1d,
    "register_2d": _register_2d,
    "vectorised": _vectorised,
    "warp_tiled": _warp_tiled,
    "tensor": _tensor,
}


# What a program costs -------------------------------------------------------------------------------------------------

BARRIER_CYCLES = 20
"""From the last warp's arrival at a barrier to the first instruction after it."""


@dataclass(frozen=True)
class StepParts:
    """Cycles of one step of a block, by what holds the SM."""

    fma: float
    memory: float
    issue: float
    wait: float
    """Cycles that a block alone on its SM adds to the longest of them."""

    @property
    def busy(self) -> float:
        return max(self.fma, self.memory, self.issue)

    @property
    def unit(self) -> str:
        """What holds the SM longest."""
        return max((self.fma, MATH), (self.memory, MEMORY_UNIT), (self.issue, ISSUE))[1]


@dataclass(frozen=True)
class ProgramCost:
    """A hand-written kernel on a GPU."""

    cost: KernelCost
    step: StepParts
    requests: tuple[tuple[WarpAccess, WarpRequest], ...]
    """Each access of the main loop with what one instruction of it asks for."""
    traffic: GlobalTraffic
    occupancy: SmOccupancy

    @property
    def sectors_per_request(self) -> float:
        """Sectors of a global load, on average; 4 is the least for 32 words."""
        pairs = [(r.sectors, a.times) for a, r in self.requests if a.space == "global" and not a.write]
        return sum(s * t for s, t in pairs) / max(1, sum(t for _, t in pairs))

    @property
    def bank_conflicts(self) -> float:
        """Passes through shared memory beyond those that the bytes need, as a share of all."""
        pairs = [(r.wavefronts, r.ideal_wavefronts, a.times) for a, r in self.requests if a.space == "shared"]
        total = sum(w * t for w, _, t in pairs)
        return sum((w - i) * t for w, i, t in pairs if w > i) / total if total else 0.0


def program_cost(device: Device, program: ThreadProgram, most_sectors: int = MOST_SECTORS) -> ProgramCost:
    """What a program costs, with its launch left out."""
    footprint = Footprint(program.threads, program.registers, program.shared_bytes)
    held = occupancy(device, footprint, program.name)
    resident = min(held.blocks, ceil(program.blocks / device.count))
    requests = tuple((access, measure(device, access)) for access in program.loop)
    traffic = replay(device, program, resident, most_sectors)
    step = _step(device, program, requests, traffic)
    stored = [(access, measure(device, access)) for access in program.last]
    written = float(sum(access.lanes.size * access.nbytes * access.times for access in program.last))
    after = sum(r.cycles * a.times for a, r in stored) * program.warps
    block = BlockCost(
        steps=program.steps,
        step_math=step.busy,
        step_latency=step.wait,
        l2_bytes=traffic.l2_bytes,
        dram_bytes=traffic.dram_bytes,
        write_bytes=written,
        start_cycles=device.memory_latency + after + device.drain(program.unit),
        flight_bytes=_flight_bytes(program),
    )
    waves = waves_of(device, block, program.blocks, held.blocks)
    cycles = sum(wave.total_cycles for wave in waves)
    grids = (wave_grid(device, block, program.blocks, held.blocks, unit=step.unit),)
    activity = Activity(program.fma_total, program.unit, program.fmt, moved_bytes(grids))
    closed = ClosedForm(cycles / device.clock_hz, program.blocks * (traffic.dram_bytes + written))
    cost = play_kernel(
        device, program.name, grids, activity, closed, program.blocks, held.blocks, traffic.walked, block,
        occupancy=held,
    )  # fmt: skip
    return ProgramCost(cost, step, requests, traffic, held)


def _step(
    device: Device, program: ThreadProgram, requests: tuple[tuple[WarpAccess, WarpRequest], ...], traffic: GlobalTraffic
) -> StepParts:
    sm, warps = device.sm, program.warps
    memory = warps * sum(request.cycles * access.times for access, request in requests)
    library = sm.library
    share = library.tensor_share if program.unit == "tensor" else lane_loop_share(library.lane_share)
    fma = warps * program.fma * sm.warp / (device.fma_rate(program.fmt, program.unit) * share)
    instructions = program.other + sum(access.times for access in program.loop)
    instructions += program.fma if program.unit == "lanes" else 0
    issue = warps * instructions / sm.schedulers
    latency = sm.latency.tensor if program.unit == "tensor" else sm.latency.fma
    chain = max(0.0, program.chain * latency - max(fma, memory, issue))
    return StepParts(fma, memory, issue, _wait(device, program, requests, traffic) + chain)


def _wait(
    device: Device, program: ThreadProgram, requests: tuple[tuple[WarpAccess, WarpRequest], ...], traffic: GlobalTraffic
) -> float:
    """Cycles that one block adds to its own work in a step: operands under way, barriers."""
    barriers = program.barriers * BARRIER_CYCLES
    if program.overlapped and device.shared.buffers > 1:
        return float(barriers)
    groups = max((ceil(a.times / program.unrolled) for a, _ in requests if a.space == "global"), default=0)
    far = _load_latency(device, traffic)
    if program.barriers:
        # The whole block waits for its operands once in a step, and then for the first of them from shared memory.
        near = device.latency_of(device.shared) if any(a.space == "shared" for a, _ in requests) else 0.0
        return far + barriers + near
    # Each warp waits by itself, and meanwhile the others of its block go on.
    return max(0.0, groups * far / max(1, program.warps))


def _load_latency(device: Device, traffic: GlobalTraffic) -> float:
    """Cycles until a load arrives, by where it is found."""
    near = device.latency_of(device.l1)
    middle = device.latency_of(device.l2)
    miss = 1 - traffic.l1_hit_rate
    deep = miss * (1 - traffic.l2_hit_rate)
    return near + miss * (middle - near) + deep * (device.memory_latency - middle)


def _flight_bytes(program: ThreadProgram) -> float:
    """Bytes of loads that a block can have under way."""
    loads = [access for access in program.accesses("global") if not access.write]
    together = program.unrolled if not program.barriers else max((a.times for a in loads), default=1)
    return float(sum(a.lanes.size * a.nbytes * min(a.times, together) for a in loads))
