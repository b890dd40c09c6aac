"""The kernels of the cache reference table as nests: the order of accesses that the table's counts belong to.

`n, m, k` and `T` are the sizes of a row, `a, b, c` the byte addresses of its arrays, `lda, ldb, ldc` their
leading dimensions in elements, `e` the bytes of an element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hwsim.trace.nest import Access, Nest


@dataclass(frozen=True)
class Sizes:
    """Sizes and places of one row of the table."""

    n: int
    m: int
    k: int
    T: int
    e: int
    a: int
    b: int
    c: int
    lda: int
    ldb: int
    ldc: int

    def load(self, base: int, *strides: int, after: bool = False) -> Access:
        return Access(base, tuple(s * self.e for s in strides), self.e, after=after)

    def store(self, base: int, *strides: int, after: bool = False) -> Access:
        return Access(base, tuple(s * self.e for s in strides), self.e, write=True, after=after)


def nests(kernel: str, sizes: Sizes) -> Iterator[Nest]:
    return KERNELS[kernel](sizes)


def _mm_ijk(s: Sizes) -> Iterator[Nest]:
    accesses = (s.load(s.a, s.lda, 0, 1), s.load(s.b, 0, 1, s.ldb), s.store(s.c, s.ldc, 1, after=True))
    yield Nest((s.n, s.m, s.k), accesses)


def _mm_ijk_rmw(s: Sizes) -> Iterator[Nest]:
    c = (s.ldc, 1, 0)
    yield Nest(
        (s.n, s.m, s.k),
        (s.load(s.c, *c), s.load(s.a, s.lda, 0, 1), s.load(s.b, 0, 1, s.ldb), s.store(s.c, *c)),
    )


def _mm_ijk_bt(s: Sizes) -> Iterator[Nest]:
    accesses = (s.load(s.a, s.lda, 0, 1), s.load(s.b, 0, s.ldb, 1), s.store(s.c, s.ldc, 1, after=True))
    yield Nest((s.n, s.m, s.k), accesses)


def _mm_ikj(s: Sizes) -> Iterator[Nest]:
    c = (s.ldc, 0, 1)
    yield Nest((s.n, s.k, s.m), (s.load(s.a, s.lda, 1), s.load(s.b, 0, s.ldb, 1), s.load(s.c, *c), s.store(s.c, *c)))


def _mm_jki(s: Sizes) -> Iterator[Nest]:
    c = (1, 0, s.ldc)
    yield Nest((s.m, s.k, s.n), (s.load(s.b, 1, s.ldb), s.load(s.a, 0, 1, s.lda), s.load(s.c, *c), s.store(s.c, *c)))


def _mm_tiled_ijk(s: Sizes) -> Iterator[Nest]:
    t = s.T

    def accesses(a: int, b: int, c: int, *tiles: tuple[int, int, int]) -> tuple[Access, ...]:
        (ca, cb, cc), (aa, ab, ac), (ba, bb, bc) = tiles
        return (
            s.load(c, ca, cb, cc, s.ldc, 1),
            s.load(a, aa, ab, ac, s.lda, 0, 1),
            s.load(b, ba, bb, bc, 0, 1, s.ldb),
            s.store(c, ca, cb, cc, s.ldc, 1, after=True),
        )

    if s.n % t == s.m % t == s.k % t == 0:
        outer = (t * s.ldc, t, 0), (t * s.lda, 0, t), (0, t, t * s.ldb)
        yield Nest((s.n // t, s.m // t, s.k // t, t, t, t), accesses(s.a, s.b, s.c, *outer))
        return
    for i, ti in _tiles(s.n, t):
        for j, tj in _tiles(s.m, t):
            for q, tq in _tiles(s.k, t):
                a, b, c = (
                    s.a + (i * s.lda + q) * s.e,
                    s.b + (q * s.ldb + j) * s.e,
                    s.c + (i * s.ldc + j) * s.e,
                )
                yield Nest((1, 1, 1, ti, tj, tq), accesses(a, b, c, (0, 0, 0), (0, 0, 0), (0, 0, 0)))


def _mm_tiled_ikj(s: Sizes) -> Iterator[Nest]:
    t = s.T

    def accesses(a: int, b: int, c: int, *tiles: tuple[int, int, int]) -> tuple[Access, ...]:
        (aa, ab, ac), (ba, bb, bc), (ca, cb, cc) = tiles
        return (
            s.load(a, aa, ab, ac, s.lda, 1),
            s.load(b, ba, bb, bc, 0, s.ldb, 1),
            s.load(c, ca, cb, cc, s.ldc, 0, 1),
            s.store(c, ca, cb, cc, s.ldc, 0, 1),
        )

    if s.n % t == s.m % t == s.k % t == 0:
        outer = (t * s.lda, t, 0), (0, t * s.ldb, t), (t * s.ldc, 0, t)
        yield Nest((s.n // t, s.k // t, s.m // t, t, t, t), accesses(s.a, s.b, s.c, *outer))
        return
    for i, ti in _tiles(s.n, t):
        for q, tq in _tiles(s.k, t):
            for j, tj in _tiles(s.m, t):
                a, b, c = (
                    s.a + (i * s.lda + q) * s.e,
                    s.b + (q * s.ldb + j) * s.e,
                    s.c + (i * s.ldc + j) * s.e,
                )
                yield Nest((1, 1, 1, ti, tq, tj), accesses(a, b, c, (0, 0, 0), (0, 0, 0), (0, 0, 0)))


def _add(s: Sizes) -> Iterator[Nest]:
    yield Nest((s.n,), (s.load(s.a, 1), s.load(s.b, 1), s.store(s.c, 1)))


def _rowsum(s: Sizes) -> Iterator[Nest]:
    yield Nest((s.n, s.m), (s.load(s.a, s.lda, 1), s.store(s.c, 1, after=True)))


def _colsum(s: Sizes) -> Iterator[Nest]:
    yield Nest((s.m, s.n), (s.load(s.a, 1, s.lda), s.store(s.c, 1, after=True)))


def _transpose(s: Sizes) -> Iterator[Nest]:
    yield Nest((s.n, s.m), (s.load(s.a, s.lda, 1), s.store(s.c, 1, s.ldc)))


def _conv3x3(s: Sizes) -> Iterator[Nest]:
    height, width, channels, filters = s.n, s.m, s.k, s.T
    rows, columns = height - 2, width - 2
    yield Nest(
        (filters, rows, columns, channels, 3, 3),
        (
            s.load(s.a, 0, width, 1, height * width, width, 1),
            s.load(s.b, channels * 9, 0, 0, 9, 3, 1),
            s.store(s.c, rows * columns, columns, 1, after=True),
        ),
    )


def _im2col(s: Sizes) -> Iterator[Nest]:
    height, width, channels = s.n, s.m, s.k
    rows, columns = height - 2, width - 2
    pixels = rows * columns
    yield Nest(
        (channels, 3, 3, rows, columns),
        (
            s.load(s.a, height * width, width, 1, width, 1),
            s.store(s.c, 9 * pixels, 3 * pixels, pixels, columns, 1),
        ),
    )


def _tiles(size: int, tile: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, tile):
        yield start, min(tile, size - start)


KERNELS: dict[str, Callable[[Sizes], Iterator[Nest]]] = {
    "mm_ijk": _mm_ijk,
    "mm_ijk_rmw": _mm_ijk_rmw,
    "mm_ijk_bt": _mm_ijk_bt,
    "mm_ikj": _mm_ikj,
    "mm_jki": _mm_jki,
    "mm_tiled_ijk": _mm_tiled_ijk,
    "mm_tiled_ikj": _mm_tiled_ikj,
    "add": _add,
    "rowsum": _rowsum,
    "colsum": _colsum,
    "transpose": _transpose,
    "conv3x3": _conv3x3,
    "im2col": _im2col,
}
