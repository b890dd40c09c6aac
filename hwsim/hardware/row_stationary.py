"""Row-stationary mappings: how the seven loops of a convolution are laid over a grid of processing elements.

A set of R x e elements computes e rows of the output: each element keeps one row of a kernel, input rows run along the
diagonals of the set, and sums up its columns. Names as in Chen et al., JSSC 2017: `n` images and `m` output channels
whose sums stay in the buffer, `p` output and `q` input channels that an element interleaves, `t` output and `r` input
channels (of those) in sets of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hwsim.hardware.loopnest import Convolution, Store

_NEARLY_FULL = 2
"""How many of the largest numbers of interleaved channels are looked at."""


@dataclass(frozen=True)
class ConvShape:
    """A convolution layer; channels are those of all groups together."""

    batch: int
    c_in: int
    c_out: int
    h_in: int
    w_in: int
    r: int
    s: int
    stride: int = 1
    pad: int = 0
    groups: int = 1

    @property
    def rows_out(self) -> int:
        return (self.h_in + 2 * self.pad - self.r) // self.stride + 1

    @property
    def columns_out(self) -> int:
        return (self.w_in + 2 * self.pad - self.s) // self.stride + 1

    @property
    def macs(self) -> int:
        outputs = self.batch * self.c_out * self.rows_out * self.columns_out
        return outputs * (self.c_in // self.groups) * self.r * self.s


@dataclass(frozen=True)
class GridSizes:
    """What a mapping has to fit into; memories in values."""

    rows: int
    columns: int
    inputs: int
    weights: int
    sums: int
    buffer: int
    """Values of inputs and sums together."""


@dataclass(frozen=True)
class Mapping:
    """One choice, with the loops that it makes. Sizes that it does not divide are rounded up."""

    shape: ConvShape
    n: int
    m: int
    e: int
    p: int
    q: int
    r: int
    t: int

    @property
    def active(self) -> int:
        """Processing elements at work."""
        return self.shape.r * self.e * self.r * self.t

    @property
    def passes(self) -> int:
        """How often the grid is given other weights."""
        size = self.sizes
        return (
            size["g"] * _up(size["n"], self.n) * _up(size["m"], self.p * self.t)
            * _up(size["c"], self.q * self.r) * _up(size["p"], self.e)
        )  # fmt: skip

    @property
    def pass_weights(self) -> int:
        """Weights of one pass, each sent once."""
        return self.p * self.t * self.q * self.r * self.shape.r * self.shape.s

    @property
    def pass_steps(self) -> int:
        """Multiplications that each element does in one pass."""
        return self.n * self.shape.columns_out * self.q * self.shape.s * self.p

    @property
    def steps(self) -> int:
        """Multiplications that each element does in all."""
        return self.passes * self.pass_steps

    @property
    def sizes(self) -> dict[str, int]:
        shape = self.shape
        return {
            "g": shape.groups, "n": shape.batch, "m": shape.c_out // shape.groups, "c": shape.c_in // shape.groups,
            "p": shape.rows_out, "q": shape.columns_out, "r": shape.r, "s": shape.s,
        }  # fmt: skip

    def nest(self) -> tuple[Convolution, tuple[Store, ...]]:
        """The loops, level by level; the buffer's two parts are two levels of one name."""
        size, shape = self.sizes, self.shape
        images, groups = _up(size["n"], self.n), _up(size["m"], self.m)
        strips, depth = _up(size["p"], self.e), _up(size["c"], self.q * self.r)
        again = self.m // (self.p * self.t)
        stores = (
            Store(
                "dram", frozenset(("input", "weight", "output")),
                (("g", size["g"]), ("m", groups), ("n", images), ("p", strips)),
            ),
            Store("buffer", frozenset(("output",)), (("c", depth),)),
            Store(
                "buffer", frozenset(("input",)), (("m", again),),
                (("c", self.r), ("m", self.t), ("r", shape.r), ("p", self.e)),
            ),
            Store("weights", frozenset(("weight",)), (("n", self.n), ("q", size["q"]))),
            Store("inputs", frozenset(("input",)), slides=True),
            Store("sums", frozenset(("output",)), (("c", self.q), ("s", shape.s), ("m", self.p))),
        )  # fmt: skip
        whole = {
            "g": size["g"], "n": images * self.n, "m": groups * again * self.p * self.t, "c": depth * self.q * self.r,
            "p": strips * self.e, "q": size["q"], "r": shape.r, "s": shape.s,
        }  # fmt: skip
        return Convolution(whole, shape.stride), stores


def mappings(shape: ConvShape, sizes: GridSizes) -> Iterator[Mapping]:
    """The mappings worth a look: elements as full as they can be or nearly, and as many sets as the grid holds."""
    size = Mapping(shape, 1, 1, 1, 1, 1, 1, 1).sizes
    if shape.r > sizes.rows:
        return
    widths = _useful(size["p"], sizes.columns * (sizes.rows // shape.r))
    for e in [width for width in widths if 2 * width >= min(size["p"], sizes.columns)]:
        sets = _sets(shape.r, e, sizes)
        for q in _useful(size["c"], sizes.inputs // shape.s)[-_NEARLY_FULL:]:
            for r in _useful(_up(size["c"], q), sets):
                room = (sizes.buffer - q * r * _rows_in(shape, e) * (shape.w_in + 2 * shape.pad)) // (e * size["q"])
                for t in _useful(size["m"], sets // r)[-_NEARLY_FULL:]:
                    most = min(sizes.sums, sizes.weights // (q * shape.s), room // t)
                    for p in _useful(size["m"], most)[-_NEARLY_FULL:]:
                        yield from _in_buffer(Mapping(shape, 1, p * t, e, p, q, r, t), sizes)


def _in_buffer(one: Mapping, sizes: GridSizes) -> Iterator[Mapping]:
    """For each number of images, the most output channels whose sums the buffer holds."""
    shape, size = one.shape, one.sizes
    inputs = one.q * one.r * _rows_in(shape, one.e) * (shape.w_in + 2 * shape.pad)
    for n in sorted({1, size["n"]}):
        left = sizes.buffer - n * inputs
        most = left // (n * one.e * size["q"] * one.p * one.t) if left > 0 else 0
        if most:
            chunks = _up(size["m"], one.p * one.t)
            again = _up(chunks, _up(chunks, most))
            yield Mapping(shape, n, again * one.p * one.t, one.e, one.p, one.q, one.r, one.t)


def _rows_in(shape: ConvShape, e: int) -> int:
    """Input rows under so many output rows."""
    return min((e - 1) * shape.stride + shape.r, shape.h_in + 2 * shape.pad)


def _sets(kernel_rows: int, e: int, sizes: GridSizes) -> int:
    """Sets of R x e elements that the grid holds; a set wider than the grid is folded."""
    bands = sizes.rows // kernel_rows
    if e > sizes.columns:
        return bands // _up(e, sizes.columns)
    return bands * (sizes.columns // e)


def _useful(whole: int, most: int) -> list[int]:
    """Of all pieces that cut a whole into equally many, the smallest."""
    return sorted({_up(whole, _up(whole, piece)) for piece in range(1, min(whole, most) + 1)})


def _up(whole: int, piece: int) -> int:
    return -(-whole // piece)
