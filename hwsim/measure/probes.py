"""Small loops that tell what a computer is made of: chains for latencies, independent operations for ports, streams for
bandwidth, lines in one set and in many pages for what misses cost. Compiled with Numba; no compiler, no rights needed.

Every probe is sampled at several moments and timed by the CPU time of its thread. Other programs can only make it
slower, and they come in bursts that last longer than a probe (a second thread of the same core halves its caches and
ports), so the median of the fastest eighth of all samples counts. The spread is how far that number moves: from the
fastest samples to it, or between every other moment and those between them, whichever is more.
A chain goes on where the sample before ended: gone through again and again, its first lines would lie in a cache.
Memory is asked for in huge pages.
"""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

REPEATS, MOMENT_S = 5, 0.005
"""Samples at one moment: so many at least, and as many as fill this time."""
PAGE_BYTES = 4096
HUGE_PAGE = 1 << 21
FASTEST = 8
"""One in so many samples counts."""
FEW_PAGES = 60
"""So many pages every core knows at once."""
MOVED_BYTES = 1 << 23
"""What a sample of bandwidth moves at least."""
VISITED = 4
"""Lines of a page that a chain visits one after the other."""
ZERO, ONE = np.uint64(0), np.uint64(1)


@dataclass(frozen=True)
class Reading:
    """A measured number: the median of the fastest eighth, how many samples there were, and how far it moves, relative:
    what another calibration may find instead."""

    value: float
    repeats: int
    spread: float

    def scaled(self, factor: float) -> Reading:
        return Reading(self.value * factor, self.repeats, self.spread)

    def inverse(self) -> Reading:
        """A rate from a time."""
        return Reading(1 / self.value, self.repeats, self.spread)


class Samples:
    """Something that is timed again and again: seconds for each unit of its work."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, per: float) -> None:
        self._function, self._arguments, self._per = function, arguments, per
        self._moments: list[list[float]] = []

    def once(self) -> float:
        return max(1e-15, _timed(self._function, *self._arguments) - _asking()) / self._per

    def sample(self) -> Reading:
        """All samples until now, with some more; the first of these does not count, since caches hold other things."""
        self.once()
        began, found = time.thread_time(), [self.once() for _ in range(REPEATS)]
        while time.thread_time() - began < MOMENT_S:
            found.append(self.once())
        self._moments.append(found)
        return reading_of(self._moments)


def _timed(function: Callable[..., Any], *arguments: Any) -> float:
    began = time.thread_time()
    function(*arguments)
    return time.thread_time() - began


@cache
def _asking() -> float:
    """What it takes to ask for the time and to call a function, which short samples would feel."""
    return min(_timed(_two_cycles, 0) for _ in range(1000))


def reading_of(moments: Sequence[Sequence[float]]) -> Reading:
    """What the samples of several moments say together, and by how much some of them say something else."""
    fastest = _fastest(moments)
    value = median(fastest)
    # Now and then a clock that leaves out what others took leaves out too much: not the very first one.
    off = value / fastest[min(1, len(fastest) - 1)] - 1
    if len(moments) > 1:
        halves = [median(_fastest(moments[first::2])) for first in (0, 1)]
        off = max(off, max(halves) / min(halves) - 1)
    return Reading(value, sum(map(len, moments)), off)


def _fastest(moments: Sequence[Sequence[float]]) -> list[float]:
    found = sorted(sample for moment in moments for sample in moment)
    return found[: -(-len(found) // FASTEST)]


# Chains and ports -----------------------------------------------------------------------------------------------------


@numba.njit(nogil=True)
def _two_cycles(count):  # type: ignore[no-untyped-def]
    """An exclusive or and an addition that wait for each other: one cycle each on every core."""
    x = ONE
    for i in range(count):
        x = (x ^ np.uint64(i)) + ONE
    return x


@numba.njit(nogil=True)
def _adds(count, step):  # type: ignore[no-untyped-def]
    x = step
    for _ in range(count):
        x = x + step
    return x


@numba.njit(nogil=True)
def _products(count, factor):  # type: ignore[no-untyped-def]
    x = factor
    for _ in range(count):
        x = x * factor
    return x


@numba.njit(nogil=True, fastmath={"contract"})
def _fused(count, factor, step):  # type: ignore[no-untyped-def]
    x = factor
    for _ in range(count):
        x = x * factor + step
    return x


@numba.njit(nogil=True, fastmath={"contract"})
def _eight_fused(count, factor, step):  # type: ignore[no-untyped-def]
    a = b = c = d = e = f = g = h = factor
    a, b, c, d = a + step, b - step, c + 2 * step, d - 2 * step
    e, f, g, h = e + 3 * step, f - 3 * step, g + 4 * step, h - 4 * step
    for _ in range(count):
        a = a * factor + step
        b = b * factor + step
        c = c * factor + step
        d = d * factor + step
        e = e * factor + step
        f = f * factor + step
        g = g * factor + step
        h = h * factor + step
    return a + b + c + d + e + f + g + h


@numba.njit(nogil=True, error_model="numpy")
def _exponentials(values, found):  # type: ignore[no-untyped-def]
    for i in range(np.uint64(len(values))):
        found[i] = math.exp(values[i])


# Memory ---------------------------------------------------------------------------------------------------------------


@intrinsic
def _load(typing_context, address):  # type: ignore[no-untyped-def]
    """What lies at an address: a load that adds nothing to it, as the latencies of data sheets mean it."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), typ=ir.IntType(64))

    return types.uint64(types.uint64), generate


@numba.njit(nogil=True)
def _chase(count, address):  # type: ignore[no-untyped-def]
    for _ in range(count):
        address = _load(address)
    return address


@numba.njit(nogil=True, fastmath=True)
def _sum(values, rounds):  # type: ignore[no-untyped-def]
    total = ZERO
    for _ in range(rounds):
        for i in range(np.uint64(len(values))):
            total += values[i]
    return total


@numba.njit(nogil=True, fastmath=True)
def _four_sums(values, rounds):  # type: ignore[no-untyped-def]
    """Four places side by side: as many loads in a cycle as there are ports."""
    quarter = np.uint64(len(values) // 4)
    a, b, c, d = (
        values[:quarter],
        values[quarter : 2 * quarter],
        values[2 * quarter : 3 * quarter],
        values[3 * quarter :],
    )
    s = t = u = v = ZERO
    for _ in range(rounds):
        for i in range(quarter):
            s += a[i]
            t += b[i]
            u += c[i]
            v += d[i]
    return s + t + u + v


@numba.njit(nogil=True)
def _fill(values, rounds):  # type: ignore[no-untyped-def]
    for r in range(rounds):
        value = np.float32(r)
        for i in range(np.uint64(len(values))):
            values[i] = value


@numba.njit(nogil=True)
def _strided(values, count, stride, rounds):  # type: ignore[no-untyped-def]
    """Loads that do not wait for each other, `stride` elements apart."""
    total = ZERO
    for _ in range(rounds):
        place = ZERO
        for _ in range(count):
            total += values[place]
            place += stride
    return total


def memory(nbytes: int, kind: type = np.uint64) -> NDArray[Any]:
    """Memory that begins with a huge page, and consists of such where the system has any."""
    area = mmap.mmap(-1, nbytes + HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            area.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(area, np.uint8)
    raw[::PAGE_BYTES] = 0  # so that every page is there
    shift = -raw.ctypes.data % HUGE_PAGE
    return raw[shift : shift + nbytes].view(kind)


class Chase(Samples):
    """Dependent loads through a ring of places; every sample goes on where the one before ended.

    Places are written in the order in which they are read: of a long ring, the first ones have left all caches again.
    """

    def __init__(self, places: NDArray[np.uint64], room: NDArray[np.uint64], steps: int) -> None:
        super().__init__(self._go, per=steps)
        addresses = np.uint64(room.ctypes.data) + places * np.uint64(room.itemsize)
        room[places] = np.roll(addresses, -1)
        self._room, self._steps, self._address = room, steps, addresses[0]

    def _go(self) -> None:
        self._address = np.uint64(_chase(self._steps, self._address))


class FarJumps(Samples):
    """Loads of memory that do not wait for each other, a page and a line apart; every sample takes other lines."""

    def __init__(self, room: NDArray[np.uint64], line: int) -> None:
        self._room, self._line = room, line // 8
        self._stride = np.uint64((PAGE_BYTES + line) // 8)
        self._lines = (len(room) - PAGE_BYTES // 8) // int(self._stride)
        self._begin = 0
        super().__init__(self._go, per=self._lines)

    def _go(self) -> None:
        self._begin = (self._begin + self._line) % (PAGE_BYTES // 8)
        _strided(self._room[self._begin :], self._lines, self._stride, 1)


class AllCores(Samples):
    """Bytes that all cores read at the same time from memory: what each got while it ran, together."""

    def __init__(self, shares: list[NDArray[Any]]) -> None:
        super().__init__(_four_sums, per=1)
        self._shares = shares

    def once(self) -> float:
        def rate(share: NDArray[Any]) -> float:
            began = time.thread_time()
            _four_sums(share, 1)
            return share.nbytes / (time.thread_time() - began)

        with ThreadPoolExecutor(len(self._shares)) as pool:
            return 1 / sum(pool.map(rate, self._shares))


# What is asked --------------------------------------------------------------------------------------------------------

COUNT = 500_000
STEPS = 20_000
"""Dependent loads in one sample: short ones, some of which nobody disturbs."""


def clock() -> Samples:
    """Seconds of a cycle."""
    return Samples(_two_cycles, 2_000_000, per=4_000_000)


def add_latency() -> Samples:
    return Samples(_adds, COUNT, np.float32(1e-3), per=COUNT)


def mul_latency() -> Samples:
    return Samples(_products, COUNT, np.float32(1.0), per=COUNT)


def fma_latency() -> Samples:
    return Samples(_fused, COUNT, np.float32(0.5), np.float32(1.0), per=COUNT)


def fma_interval() -> Samples:
    """Of scalar multiply-adds that do not wait for each other."""
    return Samples(_eight_fused, COUNT, np.float32(0.5), np.float32(1.0), per=8 * COUNT)


def exp_interval(count: int = 2048) -> Samples:
    """Of exponentials in a loop, as the compiler makes them: a call for each, or a vector of several."""
    return Samples(_exponentials, np.full(count, 0.5, np.float32), np.zeros(count, np.float32), per=count)


def chain(room: NDArray[np.uint64], line: int) -> Chase:
    """A ring through all lines. While all pages are known at once, in any order; of more pages, some lines of each at a
    time, so that the caches are measured and not the TLB, and too few for a prefetcher to see the page."""
    random = np.random.default_rng(1)
    per_page = PAGE_BYTES // line
    pages = max(1, room.nbytes // PAGE_BYTES)
    lines = random.permutation(pages * per_page)
    if pages > FEW_PAGES:
        own = random.permuted(np.tile(np.arange(per_page), (pages, 1)), axis=1) + np.arange(pages)[:, None] * per_page
        visits = own.reshape(-1, min(VISITED, per_page))
        lines = visits[random.permutation(len(visits))].reshape(-1)
    return Chase(lines.astype(np.uint64) * np.uint64(line // 8), room, STEPS)


def page_chain(pages: int, line: int) -> Chase:
    """Dependent loads, each in another page and another set."""
    step = PAGE_BYTES + line
    places = np.random.default_rng(2).permutation(pages).astype(np.uint64) * np.uint64(step // 8)
    return Chase(places, memory(pages * step + PAGE_BYTES), STEPS)


def strided_loads(stride: int, lines: int) -> Samples:
    """Loads that do not wait for each other, so many bytes apart: of one set, of one bank, or of neither."""
    rounds = max(1, STEPS // lines)
    return Samples(_strided, memory(stride * lines), lines, np.uint64(stride // 8), rounds, per=rounds * lines)


def reading(values: NDArray[Any], *, streams: bool = False) -> Samples:
    """Seconds of a byte of one core that sums: one stream, or several where one does not draw all there is."""
    rounds = max(1, MOVED_BYTES // values.nbytes)
    return Samples(_four_sums if streams else _sum, values, rounds, per=rounds * values.nbytes)


def writing(nbytes: int) -> Samples:
    rounds = max(1, MOVED_BYTES // nbytes)
    return Samples(_fill, memory(nbytes, np.float32), rounds, per=rounds * nbytes)
