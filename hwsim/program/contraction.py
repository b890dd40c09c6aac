"""Which loops are products of matrices, and how many different bytes a piece of an operand has.

Convolutions among products: what a statement tells about its windows, whatever it is called.

`Y[n,o,h,w] += X[n,c,2*h+u-1,2*w+v-1] * W[o,c,u,v]` is a sum of products in which an index of the result and one of the
sum move X along the same axis: a window. Strides, dilation, padding, window and groups are read off the positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, prod

import numpy as np

from hwsim.errors import ShapeError
from hwsim.numerics.format import Array
from hwsim.program.bind import Program, statement_indices
from hwsim.program.evaluate import Product, find_product
from hwsim.program.expression import Affine, Element
from hwsim.program.loops import Gather, Loop, Operand, Ranges
from hwsim.program.statement import Statement
from hwsim.trace.nest import Instructions, Size

ONE_FMA = Instructions(fma=1)


@dataclass(frozen=True)
class GemmShape:
    """C[m, n] += A[m, k] B[k, n], `batch` times."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def macs(self) -> int:
        return self.batch * self.m * self.n * self.k


@dataclass(frozen=True)
class GemmView:
    """A loop as `batch` products C[m, n] += A[m, k] B[k, n]; each group lists its indices from the outermost."""

    loop: Loop
    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]

    @property
    def input(self) -> Operand:
        return self.loop.operation.inputs[0]

    @property
    def weight(self) -> Operand:
        return self.loop.operation.inputs[1]

    @property
    def output(self) -> Operand:
        assert self.loop.operation.output is not None
        return self.loop.operation.output

    def shape(self, ranges: Ranges) -> tuple[int, GemmShape]:
        """How many products a range of the loop is, and of what shape."""
        m, n, k, batch = (prod(ranges[i][1] for i in group) for group in (self.m, self.n, self.k, self.batch))
        return batch, GemmShape(m, n, k)


def gemm_view(loop: Loop) -> GemmView | None:
    """The loop as products of matrices, or None: then it is work for the vector unit."""
    operation = loop.operation
    if loop.body != ONE_FMA or len(operation.inputs) != 2 or operation.output is None or not operation.accumulates:
        return None
    if operation.stores:
        return None
    first, second, output = (set(each.strides) for each in (*operation.inputs, operation.output))
    groups: dict[str, list[str]] = {"batch": [], "m": [], "n": [], "k": []}
    for index in loop.extents:
        kind = {
            (True, True, True): "batch",
            (True, False, True): "m",
            (False, True, True): "n",
            (True, True, False): "k",
            (True, False, False): "m" if loop.late_body.total else None,
        }.get((index in first, index in second, index in output))
        if kind is None:
            return None
        groups[kind].append(index)
    ordered = {
        kind: tuple(sorted(found, key=_reach(operation.inputs[1] if kind == "k" else operation.output)))
        for kind, found in groups.items()
    }
    return GemmView(loop, ordered["batch"], ordered["m"], ordered["n"], ordered["k"])


def _reach(operand: Operand) -> Callable[[str], Size]:
    """Sorts indices by how far a step of them moves an operand, the farthest first."""
    steps = {index: min(stride, -stride) for index, stride in operand.strides.items()}
    return lambda index: steps.get(index, 0)


Box = Mapping[str, int]
"""How many iterations of each index a tile covers."""

_POINTS = 1 << 20
"""Addresses that are listed at most; a larger cluster of overlapping indices counts from its first to its last."""


def footprint(operand: Operand, box: Box, bits: Size) -> int:
    """Distinct bytes of an operand over a box of indices."""
    return -(-distinct(operand, box) * bits // 8)


def distinct(operand: Operand, box: Box) -> int:
    """Distinct elements of an operand over a box of indices."""
    parts = operand.element_bytes.denominator  # packed elements are moved by parts of a byte
    steps = [(abs(int(stride * parts)), box.get(index, 1)) for index, stride in operand.strides.items() if stride]
    rows = _looked_up(operand.gather, box) if operand.gather is not None else 1
    if operand.far:  # stored block by block: each index has an axis of its own
        return rows * prod(extent for _, extent in steps)
    return rows * prod(_count(tuple(cluster)) for cluster in _clusters(steps))


def neighbours(operand: Operand, box: Box) -> tuple[int, int]:
    """Bytes along the innermost axis of a box of indices, side by side, and bytes from there to the next such run."""
    steps = []
    for index, stride in operand.strides.items():
        block, _ = operand.far.get(index, (0, 0))
        extent = box.get(index, 1)
        steps.append((abs(int(stride)), min(extent, block) if block else extent))
    element = ceil(operand.element_bytes)
    inner = [step for step in steps if step[0] == element]
    run = element * max((extent for _, extent in inner), default=1)
    return run, min((stride for stride, extent in steps if stride > element and extent > 1), default=run)


def _looked_up(places: Gather, box: Box) -> int:
    """Rows that a box of indices looks up: each once, and no more than the whole table names."""
    return min(box.get(places.index, 1), np.unique(places.offsets).size)


def slides(operand: Operand, box: Box) -> bool:
    """Whether some elements are met again over a box: two indices move along one axis."""
    return distinct(operand, box) < prod(box.get(index, 1) for index, stride in operand.strides.items() if stride)


def _clusters(steps: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Indices (stride, extent) in groups whose addresses mix: a step of the next group is longer than all of one."""
    clusters: list[list[tuple[int, int]]] = []
    reach = -1
    for stride, extent in sorted(step for step in steps if step[1] > 1):
        if stride <= reach:
            clusters[-1].append((stride, extent))
        else:
            clusters.append([(stride, extent)])
            reach = 0
        reach += stride * (extent - 1)
    return clusters


@lru_cache(maxsize=4096)
def _count(cluster: tuple[tuple[int, int], ...]) -> int:
    if len(cluster) == 1:
        return cluster[0][1]
    unit = int(np.gcd.reduce([stride for stride, _ in cluster]))
    reached = np.zeros(1, np.int64)
    for stride, extent in cluster:
        if reached.size * extent > _POINTS:
            return sum(stride // unit * (extent - 1) for stride, extent in cluster) + 1
        reached = np.unique(np.add.outer(reached, np.arange(extent) * (stride // unit)))
    return int(reached.size)


Pair = tuple[int, int]


@dataclass(frozen=True)
class ConvShape:
    """A convolution of images; pairs are along height and width, channels those of all groups together."""

    ci: int
    co: int
    image: Pair
    window: Pair
    batch: int = 1
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        problem = conv_problem(self.ci, self.co, self.groups, self.image, self.window, self.padding, self.dilation)
        if problem:
            raise ShapeError(problem)

    @cached_property
    def reach(self) -> Pair:
        """Rows and columns from the first to the last element of a filter."""
        return self.dilation[0] * (self.window[0] - 1) + 1, self.dilation[1] * (self.window[1] - 1) + 1

    @cached_property
    def padded(self) -> Pair:
        """Rows and columns of an image with its padding."""
        return self.image[0] + 2 * self.padding[0], self.image[1] + 2 * self.padding[1]

    @cached_property
    def out(self) -> Pair:
        """Rows and columns of the output."""
        (h, w), (reach_h, reach_w) = self.padded, self.reach
        return (h - reach_h) // self.stride[0] + 1, (w - reach_w) // self.stride[1] + 1

    @property
    def depth(self) -> int:
        """Products in a sum."""
        return self.ci // self.groups * prod(self.window)

    @property
    def outputs(self) -> int:
        return self.batch * self.co * prod(self.out)

    @property
    def macs(self) -> int:
        return self.outputs * self.depth


def conv_problem(ci: int, co: int, groups: int, image: Pair, window: Pair, padding: Pair, dilation: Pair) -> str:
    """What is wrong with the sizes of a convolution; nothing if they fit."""
    if ci % groups or co % groups:
        return f"groups {groups} must divide both ci {ci} and co {co}"
    for axis, extent, size, pad, step in zip(("height", "width"), image, window, padding, dilation, strict=True):
        reach = step * (size - 1) + 1
        if extent + 2 * pad < reach:
            return (
                f"a filter that reaches over {reach} elements does not fit a {axis} of {extent} with {pad} of padding "
                "on each side; take a larger image, more padding, or a smaller kernel or dilation"
            )
    return ""


@dataclass(frozen=True)
class ConvView:
    """A product that is a convolution: its sizes, and the tensors that are its images and its filters."""

    shape: ConvShape
    images: Element
    filters: Element
    axes: tuple[int, ...]
    """Axes of the images in the order batch, channels, height, width."""

    def as_images(self, array: Array) -> Array:
        """A tensor that lies as the images do, as [n, c, h, w]."""
        return array.transpose(self.axes).reshape(self.shape.batch, self.shape.ci, *self.shape.image)


def find_convolution(program: Program) -> ConvView | None:
    """The first product of a program as a convolution in two dimensions; None if it is none."""
    for statement in program.statements:
        product = find_product(statement, statement_indices(statement))
        if product is not None:
            every = (*product.left.positions, *product.right.positions)
            if all(position.is_plain for position in every):  # no window
                return None
            return _convolution(program, statement, product) or _convolution(program, statement, _swapped(product))
    return None


def _swapped(product: Product) -> Product:
    return Product(product.right, product.left, product.batch, product.columns, product.rows, product.inner)


def _convolution(program: Program, statement: Statement, product: Product) -> ConvView | None:
    images, filters, extents = product.left, product.right, program.extents
    if not all(position.is_plain or not set(position.indices) & set(product.inner) for position in filters.positions):
        return None
    sides = [axis for axis, position in enumerate(images.positions) if _is_window(position, product)]
    if len(sides) != 2:
        return None
    found = [_side(images.positions[axis], product, extents) for axis in sides]
    rows, columns = found
    if rows is None or columns is None:
        return None
    (stride_h, out_h, dilation_h, kernel_h), (stride_w, out_w, dilation_w, kernel_w) = rows, columns
    moved = {index for axis in sides for index in images.positions[axis].indices}
    shape = program.shapes[images.tensor]
    groups = prod(extents[index] for index in product.batch)
    ci = prod(extents[index] for index in product.inner if index not in moved)
    co = prod(extents[index] for index in product.columns)
    try:
        sizes = ConvShape(
            ci * groups,
            co * groups,
            (shape[sides[0]], shape[sides[1]]),
            (kernel_h, kernel_w),
            prod(extents[index] for index in product.rows if index not in moved),
            (stride_h, stride_w),
            (-images.positions[sides[0]].constant, -images.positions[sides[1]].constant),
            (dilation_h, dilation_w),
            groups,
        )
    except ShapeError:
        return None
    channels = [
        axis
        for axis, position in enumerate(images.positions)
        if axis not in sides and set(position.indices) & {*product.inner, *product.batch}
    ]
    batch = [axis for axis in range(len(shape)) if axis not in (*sides, *channels)]
    whole = prod(shape[axis] for axis in batch) == sizes.batch and prod(shape[axis] for axis in channels) == sizes.ci
    spare = tuple(out - seen for out, seen in zip(sizes.out, (out_h, out_w), strict=True))
    if not whole or min(sizes.padding) < 0 or min(spare) < 0 or (any(spare) and statement.name in program.outputs):
        return None
    return ConvView(sizes, images, filters, (*batch, *channels, *sides))


def _is_window(position: Affine, product: Product) -> bool:
    """Whether an index of the result and one of the sum move along the same axis."""
    return bool(set(position.indices) & set(product.rows)) and bool(set(position.indices) & set(product.inner))


def _side(position: Affine, product: Product, extents: Mapping[str, int]) -> tuple[int, int, int, int] | None:
    """Stride, outputs, dilation and window along one axis; squares of outputs may have an index of their own."""
    rows = sorted((factor, index) for index, factor in position.factors if index in product.rows)
    inner = [(factor, index) for index, factor in position.factors if index in product.inner]
    if len(inner) != 1 or len(rows) + 1 != len(position.factors) or rows[0][0] < 1 or inner[0][0] < 1:
        return None
    stride, outputs = rows[0][0], 1
    for factor, index in rows:
        if factor != stride * outputs:
            return None
        outputs *= extents[index]
    return stride, outputs, inner[0][0], extents[inner[0][1]]
