"""How fast the cache walk is beside pycachesim on the same accesses; what run compression and warping add.

    pip install '.[compare]'           # pycachesim, which the comparison needs
    python benchmarks/cache.py         # about two minutes of processor time
    python benchmarks/cache.py --quick

Matrix products of float64, 256 x 256, through a 32 KiB 8-way L1 and a 256 KiB 8-way L2 with 64-byte lines
(lru, write-back, write-allocate). pycachesim gets prepared Python lists through `loadstore`, with as few
groups as the order of accesses allows: its fastest door. Lists of a whole product would take gigabytes, so they are
made and fed piece by piece; making them is not counted. Both simulators see every access of the product, and their L1
misses have to be equal. All times are processor time, so that a busy computer disturbs them less; figures of hwsim are
the best of several repeats, after a first run that compiles.

The bars are for what `hwsim run` does where nothing else is asked for: runs, passes and warping, all exact. What the
walk reaches without warping, and access by access, stands beside it. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hwsim.memory.hierarchy import Hierarchy, Traffic
from hwsim.spec.machine import CacheSpec
from hwsim.trace.nest import Nest, slice_outer
from hwsim.validation.cache import Sizes, nests

LINE, ELEMENT, TILE = 64, 8, 32
LEVELS = (("l1", 64, 8), ("l2", 512, 8))
WARP_SIZE = 1024
WARP_BAR = 50.0
QUICK_ROWS = 32
QUICK_SHARE = 8


@dataclass(frozen=True)
class Case:
    """A loop order, and how many times faster than pycachesim hwsim has to be, as a user has it."""

    kernel: str
    bar: float


CASES = (
    Case("mm_ijk", 8.0),
    Case("mm_tiled_ijk", 15.0),
    Case("mm_ikj", 100.0),
    Case("mm_tiled_ikj", 60.0),
)


def product(kernel: str, n: int) -> Nest:
    """The accesses of an n x n matrix product; its arrays begin at pages, one after the other."""
    size = n * n * ELEMENT
    a, b, c = (65536 + number * size for number in range(3))
    (nest,) = nests(kernel, Sizes(n, n, n, TILE, ELEMENT, a, b, c, n, n, n))
    return nest


def hierarchy(*, compress: bool, warp: bool) -> Hierarchy:
    specs = []
    for name, sets, ways in LEVELS:
        fields = {"name": name, "size": f"{sets * ways * LINE} B", "line": f"{LINE} B", "ways": ways}
        specs.append(CacheSpec.model_validate({"kind": "cache", **fields}))
    return Hierarchy(specs, compress=compress, warp=warp)


def time_hwsim(nest: Nest, repeats: int, *, compress: bool, warp: bool) -> tuple[float, Traffic]:
    """Seconds of the fastest replay into cold caches, and what it counted."""
    best = float("inf")
    for _ in range(repeats):
        caches = hierarchy(compress=compress, warp=warp)
        began = time.process_time()
        traffic = caches.replay(nest)
        best = min(best, time.process_time() - began)
    return best, traffic


def time_pycachesim(nest: Nest, caches: object) -> tuple[float, int]:
    """Seconds spent in pycachesim, and its L1 misses."""
    seconds = 0.0
    for start in range(nest.trips[0]):
        groups = list(load_store_groups(slice_outer(nest, start, 1)))
        began = time.process_time()
        caches.loadstore(groups, length=ELEMENT)  # type: ignore[attr-defined]
        seconds += time.process_time() - began
    return seconds, caches.first_level.stats()["MISS_count"]  # type: ignore[attr-defined]


def load_store_groups(nest: Nest) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The accesses as `loadstore` wants them: loads, then the stores that follow, in few groups."""
    addresses, numbers = listed(nest, 0)
    stores = np.array([access.write for access in nest.accesses])[numbers]
    turns = np.flatnonzero(np.diff(stores, prepend=False, append=not stores[-1])).tolist()  # loads end, stores end, …
    if len(turns) % 2:
        turns.append(len(addresses))
    pieces = [tuple(addresses[start:end].tolist()) for start, end in pairwise((0, *turns))]
    yield from zip(pieces[::2], pieces[1::2], strict=True)


def listed(nest: Nest, loop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Addresses of one iteration of the loops outside `loop`, in order, and the number of the access of each."""
    inner: tuple[NDArray[np.int64], NDArray[np.int64]] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    if loop < nest.depth:
        addresses, numbers = listed(nest, loop + 1)
        steps = np.array([(*access.strides, *(0,) * nest.depth)[loop] for access in nest.accesses])
        moved = addresses + np.arange(nest.trips[loop])[:, None] * steps[numbers]
        inner = moved.ravel(), np.tile(numbers, nest.trips[loop])
    before, after = (
        [number for number, access in enumerate(nest.accesses) if access.depth == loop and access.after == late]
        for late in (False, True)
    )
    bases = np.array([access.base for access in nest.accesses])
    return np.concatenate((bases[before], inner[0], bases[after])), np.concatenate((before, inner[1], after)).astype(
        int
    )


def pycachesim_simulator() -> Callable[[], object]:
    """Makes a cold simulator of the same hierarchy."""
    try:
        import cachesim
    except ImportError:
        sys.exit("pycachesim is not installed; install it with: pip install '.[compare]'")

    def make() -> object:
        memory = cachesim.MainMemory()
        levels: list[object] = []
        for name, sets, ways in reversed(LEVELS):
            below = levels[-1] if levels else None
            levels.append(cachesim.Cache(name, sets, ways, LINE, "LRU", load_from=below, store_to=below))
        memory.load_to(levels[0])
        memory.store_from(levels[0])
        return cachesim.CacheSimulator(levels[-1], memory)

    return make


def compare_walks(quick: bool) -> list[str]:
    """Print the table of rates; returns the bars that were missed."""
    make = pycachesim_simulator()
    missed = []
    print("M accesses/s, and how many times pycachesim's rate that is")
    print(f"{'order':<13}{'accesses':>11}{'pycachesim':>11}{'plain walk':>14}{'with runs':>15}{'warped':>16}{'bar':>6}")
    for case in CASES:
        whole = product(case.kernel, 256)
        nest = slice_outer(whole, 0, whole.trips[0] // QUICK_SHARE) if quick else whole
        reference_s, reference_misses = time_pycachesim(nest, make())
        plain_s, _ = time_hwsim(nest, 3, compress=False, warp=False)
        runs_s, traffic = time_hwsim(nest, 5, compress=True, warp=False)
        warped_s, warped_traffic = time_hwsim(whole, 5, compress=True, warp=True)
        found = traffic.levels["l1"].misses
        if found != reference_misses:
            missed.append(f"{case.kernel}: {found} L1 misses, pycachesim {reference_misses}")
        if not quick and warped_traffic.levels != traffic.levels:
            missed.append(f"{case.kernel}: warping changed a count")
        reference, plain, runs = (nest.length / s / 1e6 for s in (reference_s, plain_s, runs_s))
        warped = whole.length / warped_s / 1e6
        if warped / reference < case.bar:
            missed.append(f"{case.kernel}: {warped / reference:.1f}x pycachesim, the bar is {case.bar:.0f}x")
        print(f"{case.kernel:<13}{nest.length:>11,}{reference:>11.1f}{_with_ratio(plain, reference):>14}", end="")
        print(f"{_with_ratio(runs, reference):>15}{_with_ratio(warped, reference):>16}{case.bar:>5.0f}x", flush=True)
    return missed


def _with_ratio(rate: float, reference: float) -> str:
    return f"{rate:.0f} ({rate / reference:.1f}x)"


def compare_warping(quick: bool) -> list[str]:
    """Print what warping saves on large products; returns the bars that were missed."""
    missed = []
    print(f"\nwarping, n = {WARP_SIZE}, against our own walk with run compression")
    for kernel in ("mm_ijk", "mm_ikj"):
        nest = product(kernel, WARP_SIZE)
        walked = slice_outer(nest, 0, QUICK_ROWS) if quick else nest
        walk_s, plain = time_hwsim(walked, 1, compress=True, warp=False)
        walk_s *= nest.length / walked.length
        warp_s, warped = time_hwsim(nest, 3, compress=True, warp=True)
        if not quick and plain.levels != warped.levels:
            missed.append(f"{kernel}: warping changed a count")
        ratio = walk_s / warp_s
        if ratio < WARP_BAR:
            missed.append(f"{kernel}: warping is {ratio:.0f} times faster, the bar is {WARP_BAR:.0f}")
        share = warped.skipped / nest.length
        rate = nest.length / warp_s / 1e6
        print(f"{kernel:<8}{nest.length / 1e9:.2f} G accesses: walk {walk_s:.2f} s, ", end="")
        print(f"warped {warp_s:.3f} s ({rate:,.0f} M/s, {share:.1%} skipped): {ratio:.0f}x, bar {WARP_BAR:.0f}x")
    if quick:
        print(f"(--quick: the walk was timed on the first {QUICK_ROWS} rows)")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="walk an eighth of the products, and a part of the long ones"
    )
    options = parser.parse_args()
    for compress, warp in ((False, False), (True, False), (True, True)):
        time_hwsim(product("mm_ikj", 96), 1, compress=compress, warp=warp)  # compiles
    missed = compare_walks(options.quick)
    missed += compare_warping(options.quick)
    for bar in missed:
        print(f"missed: {bar}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
