"""Small loops that tell what a computer is made of: chains for latencies, independent operations for ports, streams for
bandwidth, lines in one set and in many pages for what misses cost. Compiled with Numba; no compiler, no rights needed.

Every probe is repeated and timed by the CPU time of its thread. Other programs can only make it slower, so the median
of the faster half counts; the spread is the distance from the fastest to that. A chain goes on where the repeat before
ended: gone through again and again, its first lines would lie in a cache. Memory is asked for in huge pages.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

REPEATS = 9
PAGE_BYTES = 4096
HUGE_PAGE = 1 << 21
FEW_PAGES = 60
"""So many pages every core knows at once."""
MOVED_BYTES = 1 << 26
"""What a measurement of bandwidth moves at least."""
VISITED = 4
"""Lines of a page that a chain visits one after the other."""
ZERO, ONE = np.uint64(0), np.uint64(1)


@dataclass(frozen=True)
class Reading:
    """A measured number: the median of the faster half, how many repeats, and how far the fastest was off, relative."""

    value: float
    repeats: int
    spread: float

    def scaled(self, factor: float) -> Reading:
        return Reading(self.value * factor, self.repeats, self.spread)

    def inverse(self, factor: float) -> Reading:
        """`factor` over it: a rate from a time."""
        return Reading(factor / self.value, self.repeats, self.spread)


def timed(function: Callable[..., Any], *arguments: Any, per: float, repeats: int = REPEATS) -> Reading:
    """Seconds per unit of work."""
    function(*arguments)
    found = []
    for _ in range(repeats):
        began = time.thread_time()
        function(*arguments)
        found.append((time.thread_time() - began) / per)
    return _reading(found)


def _reading(found: list[float]) -> Reading:
    faster = sorted(found)[: -(-len(found) // 2)]
    middle = median(faster)
    return Reading(middle, len(found), middle / max(faster[0], 1e-15) - 1)


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


# Memory ---------------------------------------------------------------------------------------------------------------


@numba.njit(nogil=True)
def _chase(next_place, count, place):  # type: ignore[no-untyped-def]
    for _ in range(count):
        place = next_place[place]
    return place


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


def _room(nbytes: int, kind: type = np.uint64) -> NDArray[Any]:
    """Memory that begins with a huge page, and consists of such where the system has any."""
    area = mmap.mmap(-1, nbytes + HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            area.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(area, np.uint8)
    raw[::PAGE_BYTES] = 0  # so that every page is there
    shift = -raw.ctypes.data % HUGE_PAGE
    return raw[shift : shift + nbytes].view(kind)


class Chase:
    """Dependent loads through a ring of places; every sample goes on where the one before ended.

    Places are written in the order in which they are read: of a long ring, the first ones have left all caches again.
    """

    def __init__(self, places: NDArray[np.uint64], nbytes: int, steps: int) -> None:
        self._ring, self._steps = _room(nbytes), steps
        self._ring[places] = np.roll(places, -1)
        self._place = np.uint64(_chase(self._ring, steps, places[0]))
        self._samples: list[float] = []

    def sample(self, count: int = REPEATS) -> Reading:
        """Seconds of a load, from all samples until now."""
        for _ in range(count):
            began = time.thread_time()
            self._place = np.uint64(_chase(self._ring, self._steps, self._place))
            self._samples.append((time.thread_time() - began) / self._steps)
        return _reading(self._samples)


class Probes:
    """Runs probes; what is asked in cycles needs the clock first."""

    def __init__(self) -> None:
        self.clock = timed(_two_cycles, 2_000_000, per=4_000_000).inverse(1.0)

    def cycles(self, reading: Reading) -> Reading:
        return reading.scaled(self.clock.value)

    def add_latency(self) -> Reading:
        return self.cycles(timed(_adds, 500_000, np.float32(1e-3), per=500_000))

    def mul_latency(self) -> Reading:
        return self.cycles(timed(_products, 500_000, np.float32(1.0), per=500_000))

    def fma_latency(self) -> Reading:
        return self.cycles(timed(_fused, 500_000, np.float32(0.5), np.float32(1.0), per=500_000))

    def fma_ports(self) -> Reading:
        """Scalar multiply-adds that start in a cycle."""
        each = self.cycles(timed(_eight_fused, 500_000, np.float32(0.5), np.float32(1.0), per=8 * 500_000))
        return each.inverse(1.0)

    def latency(self, nbytes: int, line: int) -> Reading:
        """Seconds of a dependent load somewhere in so many bytes: short samples, some of which nobody disturbs."""
        chase = self.chain(nbytes, line, 20_000)
        chase.sample(REPEATS)
        return chase.sample(9 * REPEATS)

    def chain(self, nbytes: int, line: int, steps: int) -> Chase:
        """A ring through all lines. While all pages are known at once, in any order; of more pages, some lines of each
        at a time, so that the caches are measured and not the TLB, and too few for a prefetcher to see the page."""
        random = np.random.default_rng(1)
        per_page = PAGE_BYTES // line
        pages = max(1, nbytes // PAGE_BYTES)
        lines = random.permutation(pages * per_page)
        if pages > FEW_PAGES:
            own = (
                random.permuted(np.tile(np.arange(per_page), (pages, 1)), axis=1) + np.arange(pages)[:, None] * per_page
            )
            visits = own.reshape(-1, min(VISITED, per_page))
            lines = visits[random.permutation(len(visits))].reshape(-1)
        return Chase(lines.astype(np.uint64) * np.uint64(line // 8), nbytes, steps)

    def page_latency(self, pages: int, line: int) -> Reading:
        """Seconds of a dependent load, each in another page and another set."""
        step = PAGE_BYTES + line
        places = np.random.default_rng(2).permutation(pages).astype(np.uint64) * np.uint64(step // 8)
        return Chase(places, pages * step + PAGE_BYTES, 100_000).sample()

    def set_refill(self, way_bytes: int, lines: int = 64) -> Reading:
        """Cycles of an independent load whose line falls into the same set as all others, of more than it has ways."""
        values = _room(way_bytes * lines)
        rounds = 100_000 // lines
        stride = np.uint64(way_bytes // 8)
        return self.cycles(timed(_strided, values, lines, stride, rounds, per=rounds * lines))

    def read_bandwidth(self, nbytes: int, *, near: bool = False) -> Reading:
        """Bytes per second of one core that sums: one stream or, of the nearest cache, several."""
        values = _room(nbytes)
        rounds = max(1, MOVED_BYTES // nbytes)
        return timed(_four_sums if near else _sum, values, rounds, per=rounds * nbytes).inverse(1.0)

    def write_bandwidth(self, nbytes: int) -> Reading:
        values = _room(nbytes, np.float32)
        rounds = max(1, MOVED_BYTES // nbytes)
        return timed(_fill, values, rounds, per=rounds * nbytes).inverse(1.0)

    def all_cores_bandwidth(self, cores: int, nbytes: int) -> Reading:
        """Bytes per second that all cores read at the same time from memory: what each got while it ran, together."""

        def seconds(share: NDArray[Any]) -> float:
            began = time.thread_time()
            _sum(share, 1)
            return time.thread_time() - began

        shares = [_room(nbytes) for _ in range(cores)]
        with ThreadPoolExecutor(cores) as pool:
            rounds = [list(pool.map(seconds, shares)) for _ in range(1 + REPEATS)][1:]
        return _reading([1 / sum(nbytes / took for took in each) for each in rounds]).inverse(1.0)
