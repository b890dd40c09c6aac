"""Plain loops that touch memory as the conventions of the cache reference say; nothing of hwsim is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Touch = tuple[int, int, bool]


@dataclass(frozen=True)
class Matrix:
    """X[r, c] is at base + (r * ld + c) * elem."""

    base: int
    ld: int
    elem: int

    def load(self, row: int, column: int) -> Touch:
        return self.base + (row * self.ld + column) * self.elem, self.elem, False

    def store(self, row: int, column: int) -> Touch:
        return self.base + (row * self.ld + column) * self.elem, self.elem, True


Loop = Callable[..., Iterator[Touch]]


def mm_ijk(A: Matrix, B: Matrix, C: Matrix, n: int, m: int, k: int) -> Iterator[Touch]:
    for i in range(n):
        for j in range(m):
            for q in range(k):
                yield A.load(i, q)
                yield B.load(q, j)
            yield C.store(i, j)


def mm_jik(A: Matrix, B: Matrix, C: Matrix, n: int, m: int, k: int) -> Iterator[Touch]:
    for j in range(m):
        for i in range(n):
            for q in range(k):
                yield A.load(i, q)
                yield B.load(q, j)
            yield C.store(i, j)


def mm_ijk_rmw(A: Matrix, B: Matrix, C: Matrix, n: int, m: int, k: int) -> Iterator[Touch]:
    for i in range(n):
        for j in range(m):
            for q in range(k):
                yield C.load(i, j)
                yield A.load(i, q)
                yield B.load(q, j)
                yield C.store(i, j)


def mm_ijk_bt(A: Matrix, BT: Matrix, C: Matrix, n: int, m: int, k: int) -> Iterator[Touch]:
    for i in range(n):
        for j in range(m):
            for q in range(k):
                yield A.load(i, q)
                yield BT.load(j, q)
            yield C.store(i, j)


def mm_ikj(A: Matrix, B: Matrix, C: Matrix, n: int, m: int, k: int) -> Iterator[Touch]:
    for i in range(n):
        for q in range(k):
            yield A.load(i, q)
            for j in range(m):
                yield B.load(q, j)
                yield C.load(i, j)
                yield C.store(i, j)


def mm_kij(A: Matrix, B: Matrix, C: Matrix, n: int, m: int, k: int) -> Iterator[Touch]:
    for q in range(k):
        for i in range(n):
            yield A.load(i, q)
            for j in range(m):
                yield B.load(q, j)
                yield C.load(i, j)
                yield C.store(i, j)


def mm_jki(A: Matrix, B: Matrix, C: Matrix, n: int, m: int, k: int) -> Iterator[Touch]:
    for j in range(m):
        for q in range(k):
            yield B.load(q, j)
            for i in range(n):
                yield A.load(i, q)
                yield C.load(i, j)
                yield C.store(i, j)


def mm_kji(A: Matrix, B: Matrix, C: Matrix, n: int, m: int, k: int) -> Iterator[Touch]:
    for q in range(k):
        for j in range(m):
            yield B.load(q, j)
            for i in range(n):
                yield A.load(i, q)
                yield C.load(i, j)
                yield C.store(i, j)


def mm_tiled_ijk(A: Matrix, B: Matrix, C: Matrix, n: int, m: int, k: int, T: int) -> Iterator[Touch]:
    for ii in range(0, n, T):
        for jj in range(0, m, T):
            for kk in range(0, k, T):
                for i in range(ii, min(ii + T, n)):
                    for j in range(jj, min(jj + T, m)):
                        yield C.load(i, j)
                        for q in range(kk, min(kk + T, k)):
                            yield A.load(i, q)
                            yield B.load(q, j)
                        yield C.store(i, j)


def mm_tiled_ikj(A: Matrix, B: Matrix, C: Matrix, n: int, m: int, k: int, T: int) -> Iterator[Touch]:
    for ii in range(0, n, T):
        for kk in range(0, k, T):
            for jj in range(0, m, T):
                for i in range(ii, min(ii + T, n)):
                    for q in range(kk, min(kk + T, k)):
                        yield A.load(i, q)
                        for j in range(jj, min(jj + T, m)):
                            yield B.load(q, j)
                            yield C.load(i, j)
                            yield C.store(i, j)


def add(a: int, b: int, c: int, elem: int, n: int) -> Iterator[Touch]:
    for i in range(n):
        yield a + i * elem, elem, False
        yield b + i * elem, elem, False
        yield c + i * elem, elem, True


def rowsum(A: Matrix, c: int, n: int, m: int) -> Iterator[Touch]:
    for i in range(n):
        for j in range(m):
            yield A.load(i, j)
        yield c + i * A.elem, A.elem, True


def colsum(A: Matrix, c: int, n: int, m: int) -> Iterator[Touch]:
    for j in range(m):
        for i in range(n):
            yield A.load(i, j)
        yield c + j * A.elem, A.elem, True


def transpose(A: Matrix, C: Matrix, n: int, m: int) -> Iterator[Touch]:
    for i in range(n):
        for j in range(m):
            yield A.load(i, j)
            yield C.store(j, i)


def conv3x3(x: int, w: int, y: int, elem: int, height: int, width: int, cin: int, cout: int) -> Iterator[Touch]:
    high, wide = height - 2, width - 2
    for co in range(cout):
        for row in range(high):
            for column in range(wide):
                for ci in range(cin):
                    for ky in range(3):
                        for kx in range(3):
                            at = (ci * height + row + ky) * width + column + kx
                            yield x + at * elem, elem, False
                            yield w + (((co * cin + ci) * 3 + ky) * 3 + kx) * elem, elem, False
                yield y + ((co * high + row) * wide + column) * elem, elem, True
