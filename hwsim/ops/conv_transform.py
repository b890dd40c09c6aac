"""Convolutions that multiply less: tiles of images and filters are transformed, multiplied point by point, and back.

Winograd's F(m x m, r x r) makes m x m outputs with (m + r - 1)^2 products instead of (m r)^2: with matrices B, G and A,
each applied along rows and along columns,

    Y = A^T [ (G w G^T) * (B^T x B) ] A

By Fourier transforms, tiles are longer: 16 or 32 a side, with complex points, half of which are enough for real images.

S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural
Networks, 2015. The matrices are those of the Cook-Toom construction; those of Fourier transforms are tensors that are
given, as a library has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, prod

import numpy as np

from hwsim.errors import InputError
from hwsim.numerics.format import Array
from hwsim.program.convolution import ConvShape

Matrix = tuple[tuple[float, ...], ...]

POINTS = (Fraction(0), Fraction(1), Fraction(-1), Fraction(2), Fraction(-2), Fraction(1, 2), Fraction(-1, 2))
"""Where polynomials are evaluated, and at infinity: those with the smallest errors first."""


@dataclass(frozen=True)
class Winograd:
    """F(m x m, r x r): a tile of images and a filter are polynomials, evaluated at m + r - 1 points each."""

    outputs: int
    """Rows and columns of a tile of results, m."""
    window: int
    """Rows and columns of a filter, r."""

    @property
    def side(self) -> int:
        """Rows and columns of a transformed tile."""
        return self.outputs + self.window - 1

    @property
    def points(self) -> int:
        """Numbers of a transformed tile, each a matrix product over the channels."""
        return self.side**2

    def tiles(self, shape: ConvShape) -> tuple[int, int]:
        """Down and across an image."""
        return ceil(shape.out[0] / self.outputs), ceil(shape.out[1] / self.outputs)

    @cached_property
    def images(self) -> Matrix:
        """B^T: the coefficients of the polynomials that are zero at all other points, and of the one zero at all."""
        finite = POINTS[: self.side - 1]
        others = [[each for each in finite if each != point] for point in finite]
        return tuple(tuple(map(float, _expanded(roots, self.side))) for roots in (*others, finite))

    @cached_property
    def filters(self) -> Matrix:
        """G: the values of a filter at the points, over those of the polynomials above."""
        finite = POINTS[: self.side - 1]
        rows = [
            [point**power / prod(point - each for each in finite if each != point) for power in range(self.window)]
            for point in finite
        ]
        infinity = (*[0.0] * (self.window - 1), 1.0)
        return (*(tuple(map(float, row)) for row in rows), infinity)

    @cached_property
    def results(self) -> Matrix:
        """A^T: powers of the points."""
        finite, last = POINTS[: self.side - 1], self.outputs - 1
        return tuple(
            (*(float(point**power) for point in finite), float(power == last)) for power in range(self.outputs)
        )

    @cached_property
    def growth(self) -> float:
        """By how much a rounding error of the transforms is larger in a result than one of a plain sum would be.

        Errors of the points are independent and as large as the points themselves; a result sums their squares, along
        rows and along columns.
        """
        images, filters = ([sum(c * c for c in row) for row in each] for each in (self.images, self.filters))
        return max(
            sum(c * c * b * g for c, b, g in zip(row, images, filters, strict=True)) / self.window
            for row in self.results
        )


def _expanded(roots: Sequence[Fraction], length: int) -> list[Fraction]:
    """The coefficients of a polynomial with these roots, lowest power first."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [each - root * below for each, below in zip(shifted, [*found, Fraction(0)], strict=True)]
    return [*found, *[Fraction(0)] * (length - len(found))]


@dataclass(frozen=True)
class Fourier:
    """Tiles of a power of two a side: the results that no window reaches beyond the tile for are those of an image."""

    side: int
    window: int

    @property
    def outputs(self) -> int:
        return self.side - self.window + 1

    @property
    def half(self) -> int:
        """Columns of the transform of a real tile; the others are their conjugates."""
        return self.side // 2 + 1

    @property
    def points(self) -> int:
        """Complex numbers of a transformed tile."""
        return self.side * self.half

    def tiles(self, shape: ConvShape) -> tuple[int, int]:
        return ceil(shape.out[0] / self.outputs), ceil(shape.out[1] / self.outputs)

    growth = 2.0
    """Transforms keep the length of a vector: errors stay as they are, and there are two more of them."""

    @cached_property
    def tensors(self) -> dict[str, Array]:
        """The transforms as real matrices; z is 0 for the real part and 1 for the imaginary one.

        Along a row, along a column, and back; filters become the 2 x 2 matrices that multiply by their conjugates.
        """
        n, m, r = self.side, self.outputs, self.window
        turn = np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n)
        row = turn[:, : self.half]
        column = np.array([turn, 1j * turn])  # of the real and of the imaginary part of what the rows have left
        conjugate = np.array([turn[:r], 1j * turn[:r]]).conj()
        weight = np.where((np.arange(self.half) == 0) | (np.arange(self.half) == n // 2), 1, 2) / n**2
        up = np.array([turn.conj()[:, :m], 1j * turn.conj()[:, :m]])
        across = weight[:, None] * row.conj().T[:, :m]
        return {
            "row_dft": np.stack([row.real, row.imag], axis=1),
            "column_dft": np.stack([column.real, column.imag], axis=2),
            "filter_dft": np.array([[conjugate.real, conjugate.imag], [-conjugate.imag, conjugate.real]]).transpose(
                2, 3, 0, 1, 4
            ),
            "column_back": np.stack([up.real, up.imag], axis=2),
            "row_back": np.array([across.real, -across.imag]),
        }


Transform = Winograd | Fourier

ALGORITHMS: Mapping[str, tuple[int, tuple[int, ...]]] = {"winograd": (2, (3,)), "winograd_nonfused": (4, (3, 5))}
"""By the names of algorithms of a convolution: outputs of a tile along a side, and the filters that they are for."""
FOURIER, SIDES = "fft", (16, 32)
"""Tiles of Fourier transforms, along a side."""

FILTERS, IMAGES, PRODUCTS, BACK = "transform_filters", "transform_images", "products", "transform_back"
"""The parts of such a convolution, by the names of their loops."""
BETWEEN = ("half_w", "half_x", "half_y", "grid")
"""What only one part of it knows of: transforms along rows alone, and whole tiles where an image ends inside of one."""


def find_transform(algorithm: str, shape: ConvShape) -> Transform | None:
    """The transforms of an algorithm; None for one that has none."""
    if algorithm not in (*ALGORITHMS, FOURIER):
        return None
    outputs, windows = ALGORITHMS.get(algorithm, (0, tuple(range(1, SIDES[0] // 2 + 1))))
    rows, columns = shape.window
    if rows != columns or rows not in windows or shape.stride != (1, 1) or shape.dilation != (1, 1):
        allowed = " or ".join(f"{side}x{side}" for side in windows)
        if algorithm == FOURIER:
            allowed = f"1x1 to {windows[-1]}x{windows[-1]}"
        raise InputError(
            f"schedule.algorithm: {algorithm} is for filters of {allowed} that move by one, found {rows}x{columns} "
            f"with stride {shape.stride[0]} and dilation {shape.dilation[0]}; take direct, im2col or implicit"
        )
    if outputs:
        return Winograd(outputs, rows)
    found = [Fourier(side, rows) for side in SIDES]
    return min(found, key=lambda each: each.points * prod(each.tiles(shape)))


def transform_statements(found: Transform, shape: ConvShape, at: Mapping[str, str]) -> Iterator[str]:
    """What is computed, one part after the other.

    `at` are the elements `x` of the images, `w` of the filters and `y` of the results with rows and columns left open,
    and the positions of an image (`n`), of a filter (`out`) and of a channel (`in`).
    """
    n, out = at["n"], at["out"]
    whole = tuple(found.outputs * tiles for tiles in found.tiles(shape)) == shape.out
    target = at["y"] if whole else f"grid[{n},{out},{{}},{{}}]"
    named = {**at, "y": target}
    yield from _winograd(found, shape, named) if isinstance(found, Winograd) else _fourier(found, shape, named)
    if not whole:
        yield f"{BACK}: {at['y'].format('h', 'w')} = grid[{n},{out},h,w]"


def _winograd(found: Winograd, shape: ConvShape, at: Mapping[str, str]) -> Iterator[str]:
    """Each row of a transform is a sum of a few elements, along the height and then along the width."""
    m, n, out, channel, (ph, pw) = found.outputs, at["n"], at["out"], at["in"], shape.padding
    for point, row in enumerate(found.filters):
        yield f"{FILTERS}: half_w[{point},{out},ci,kw] = {_sum(row, at['w'], ('{}', 'kw'))}"
    for point, row in enumerate(found.filters):
        yield f"{FILTERS}: U[pu,{point},{out},ci] = {_sum(row, f'half_w[pu,{out},ci,{{}}]')}"
    for point, row in enumerate(found.images):
        value = _sum(row, at["x"], (f"{m}*th+{{}}-{ph}", f"{m}*tw+q-{pw}"))
        yield f"{IMAGES}: half_x[{point},{channel},{n},th,tw,q] = {value}"
    for point, row in enumerate(found.images):
        value = _sum(row, f"half_x[pu,{channel},{n},th,tw,{{}}]")
        yield f"{IMAGES}: V[pu,{point},{channel},{n},th,tw] = {value}"
    yield f"{PRODUCTS}: M[pu,pv,{out},{n},th,tw] += U[pu,pv,{out},ci] * V[pu,pv,{channel},{n},th,tw]"
    for point, row in enumerate(found.results):
        yield f"{BACK}: half_y[{point},pv,{out},{n},th,tw] = {_sum(row, f'M[{{}},pv,{out},{n},th,tw]')}"
    for point, row in enumerate(found.results):
        value = _sum(row, f"half_y[pr,{{}},{out},{n},th,tw]")
        yield f"{BACK}: {at['y'].format(f'{m}*th+pr', f'{m}*tw+{point}')} = {value}"


def _fourier(found: Fourier, shape: ConvShape, at: Mapping[str, str]) -> Iterator[str]:
    """Real and imaginary parts (z) are one more index: each transform is a product with a matrix."""
    m, n, out, channel, (ph, pw) = found.outputs, at["n"], at["out"], at["in"], shape.padding
    x = at["x"].format(f"{m}*th+p-{ph}", f"{m}*tw+q-{pw}")
    yield f"{FILTERS}: half_w[{out},ci,kh,zr,pv] += {at['w'].format('kh', 'kw')} * row_dft[kw,zr,pv]"
    yield f"{FILTERS}: U[pu,pv,zc,zo,{out},ci] += half_w[{out},ci,kh,zr,pv] * filter_dft[zr,kh,zc,zo,pu]"
    yield f"{IMAGES}: half_x[{n},{channel},th,tw,p,zr,pv] += {x} * row_dft[q,zr,pv]"
    yield f"{IMAGES}: V[pu,pv,zc,{channel},{n},th,tw] += half_x[{n},{channel},th,tw,p,zr,pv] * column_dft[zr,p,zc,pu]"
    yield f"{PRODUCTS}: M[pu,pv,zo,{out},{n},th,tw] += U[pu,pv,zc,zo,{out},ci] * V[pu,pv,zc,{channel},{n},th,tw]"
    yield f"{BACK}: half_y[{out},{n},th,tw,pr,zb,pv] += M[pu,pv,zo,{out},{n},th,tw] * column_back[zo,pu,zb,pr]"
    yield (
        f"{BACK}: {at['y'].format(f'{m}*th+pr', f'{m}*tw+pc')} += half_y[{out},{n},th,tw,pr,zb,pv] * row_back[zb,pv,pc]"
    )


def transform_extents(found: Transform, shape: ConvShape) -> dict[str, int]:
    """How far the indices run that only the transforms have."""
    rows, columns = found.tiles(shape)
    shared = {"th": rows, "tw": columns, "pu": found.side, "pr": found.outputs}
    if isinstance(found, Winograd):
        return {**shared, "pv": found.side, "q": found.side}
    parts = dict.fromkeys(("zr", "zc", "zo", "zb"), 2)
    return {**shared, **parts, "pv": found.half, "pc": found.outputs, "p": found.side, "q": found.side}


def transformed_products(found: Transform, shape: ConvShape) -> int:
    """Multiplications of the transformed tiles: four for two complex numbers."""
    each = 1 if isinstance(found, Winograd) else 4
    return shape.batch * prod(found.tiles(shape)) * each * found.points * shape.co * shape.ci // shape.groups


def _sum(row: Sequence[float], element: str, positions: tuple[str, ...] = ("{}",)) -> str:
    """One row of a transform: a sum of elements with their factors, without those that are zero."""
    text = ""
    for place, factor in enumerate(row):
        if factor:
            sign = ("-" if factor < 0 else "") if not text else (" - " if factor < 0 else " + ")
            scale = "" if abs(factor) == 1 else f"{abs(factor)!r} * "
            text += sign + scale + element.format(*(each.format(place) for each in positions))
    return text
