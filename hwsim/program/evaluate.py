"""The NumPy math of statements over any ranges of their indices.

Every value is an array with one axis for each index of the loops, in their order, of length one where it does not
depend on an index. A sum of products of two tensors goes to BLAS, as the products of matrices that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from hwsim.errors import InputError
from hwsim.numerics.datapath import Operand as Factor
from hwsim.numerics.format import Array, find_format
from hwsim.program.bind import statement_indices
from hwsim.program.expression import FUNCTIONS, Affine, Apply, Element, Expr, IndexValue, Local, Number, is_cast
from hwsim.program.statement import Statement

Groups = Sequence[Sequence[str]]
"""The indices of each axis of a matrix that is put together from a tensor."""
Range = tuple[int, int]
Ranges = Mapping[str, Range]

_LARGEST = 1 << 22
"""Elements of a window that are laid out for BLAS at once."""


@dataclass
class Frame:
    """Where values come from while the statements of one loop are evaluated over a range."""

    indices: Sequence[str]
    """The loops, outermost first: the axes of every value."""
    ranges: Ranges
    load: Callable[[Element], Array]
    """The values of an element over the range, in the type that arithmetic runs in, with all axes."""
    dtype: np.dtype[Any]
    registers: dict[object, Array] = field(default_factory=dict)
    """What was computed in this pass: locals by name, elements of tensors as they were written."""

    def shape(self, indices: Sequence[str]) -> tuple[int, ...]:
        """Of a value that depends on some of the indices."""
        return tuple(self.ranges[index][1] if index in indices else 1 for index in self.indices)


def evaluate(expr: Expr, frame: Frame) -> Array:
    """The value of an expression at every point of a range."""
    match expr:
        case Number(value):
            return np.asarray(value, frame.dtype) if frame.dtype.kind == "f" else np.asarray(_whole(value))
        case Local(name):
            return frame.registers[name]
        case Element():
            kept = frame.registers.get(expr.key)
            return frame.load(expr) if kept is None else kept
        case IndexValue(position):
            return place(position, frame.indices, frame.ranges)
        case Apply(name, arguments) if is_cast(name):
            fmt, inner = find_format(name), evaluate(arguments[0], frame)
            return np.asarray(fmt.load(fmt.store(inner)).astype(inner.dtype, copy=False))
        case Apply(name, arguments):
            return np.asarray(FUNCTIONS[name].compute(*(evaluate(each, frame) for each in arguments)))
    raise AssertionError(f"{expr} is not bound")


def reduce_value(statement: Statement, value: Array, frame: Frame, kept: Sequence[str]) -> Array:
    """A value over the range, reduced along the indices that the target lacks; these axes stay, with length one."""
    own = statement_indices(statement)
    away = tuple(axis for axis, index in enumerate(frame.indices) if index in own and index not in kept)
    whole = np.broadcast_shapes(value.shape, frame.shape(own))
    value = np.broadcast_to(value, whole)
    if not away:
        return value
    match statement.sign:
        case "max=":
            return np.asarray(value.max(axis=away, keepdims=True))
        case "min=":
            return np.asarray(value.min(axis=away, keepdims=True))
    wide = np.int64 if value.dtype.kind in "iub" else value.dtype
    return np.asarray(value.sum(axis=away, keepdims=True, dtype=wide))


def run_recurrences(body: Sequence[Statement], frame: Frame, index: str, state: dict[str, Array]) -> None:
    """Statements that go from point to point along an index, over the whole range at once.

    A maximum is a running one, before its statement without the point at hand; ``s = s * a + b`` is the sum of each b
    times all later a. `state` has the values before the range, if any, and gets those after it.
    """
    axis = tuple(frame.indices).index(index)

    def part(values: Array, *ends: int | None) -> Array:
        return values[(*(slice(None),) * axis, slice(*ends))]

    after: dict[str, Array] = {}
    for statement in body:
        if statement.accumulates:
            assert isinstance(statement.target, Element)
            value = evaluate(statement.value, frame)
            better, first = (np.minimum, np.inf) if statement.sign == "min=" else (np.maximum, -np.inf)
            start = state.get(statement.name)
            if start is None:
                start = np.full_like(part(value, 0, 1), first)
            running = better.accumulate(np.concatenate([start, value], axis), axis)
            frame.registers[statement.target.key] = part(running, 0, -1)
            after[statement.name] = part(running, 1, None)
    for statement in body:
        target = statement.target
        if isinstance(target, Local):
            frame.registers[target.name] = evaluate(statement.value, frame)
        elif statement.accumulates:
            frame.registers[target.key] = after[target.tensor]
            state[target.tensor] = part(after[target.tensor], -1, None)
        else:
            factor, term = (np.broadcast_to(evaluate(e, frame), frame.shape(frame.indices)) for e in _linear(statement))
            later = np.flip(np.cumprod(np.flip(factor, axis), axis), axis)
            rest = np.ones_like(later)
            part(rest, 0, -1)[...] = part(later, 1, None)
            total = (term * rest).sum(axis=axis, keepdims=True, dtype=term.dtype)
            if target.tensor in state:
                total = total + state[target.tensor] * part(later, 0, 1)
            state[target.tensor] = frame.registers[target.key] = total


def _linear(statement: Statement) -> tuple[Expr, Expr]:
    """a and b of ``s = s * a + b``."""
    target = statement.target
    match statement.value:
        case Apply("+", (Apply("*", pair), term)) | Apply("+", (term, Apply("*", pair))):
            others = [each for each in pair if not (isinstance(each, Element) and each.same(target))]  # type: ignore[arg-type]
            if len(others) == 1:
                return others[0], term
    raise InputError(f"'{statement.text}' is no recurrence of the form s = s * a + b")


def place(position: Affine, indices: Sequence[str], ranges: Ranges) -> Array:
    """The value of an affine position at every point."""
    total: Array = np.full((1,) * len(indices), position.constant)
    for index, factor in position.factors:
        first, count = ranges[index]
        axis = [1] * len(indices)
        axis[indices.index(index)] = count
        total = total + factor * np.arange(first, first + count).reshape(axis)
    return total


def window(array: Array, origin: Sequence[int], element: Element, indices: Sequence[str], ranges: Ranges) -> Array:
    """The elements that a reference sees, one axis for each index: a view, never a copy.

    `origin` is where position zero lies along each axis of the array: behind its halo.
    """
    key = (element.key, tuple(indices))
    if key not in _SLICES:
        _SLICES[key] = _slices(element, indices)
    slices = _SLICES[key]
    if slices is not None:
        return slices.of(array, origin, ranges)
    strides = dict.fromkeys(indices, 0)
    first = []
    for axis, position in enumerate(element.positions):
        start = origin[axis] + position.constant
        for index, factor in position.factors:
            strides[index] += factor * array.strides[axis]
            start += factor * ranges[index][0]
        first.append(slice(start, None))
    own = element.indices
    shape = [ranges[index][1] if index in own else 1 for index in indices]
    return np.lib.stride_tricks.as_strided(array[tuple(first)], shape, [strides[index] for index in indices])


@dataclass(frozen=True)
class _Slices:
    """An element whose indices move along one axis each, one by one: slices, which are quicker than strides."""

    axes: tuple[tuple[str, int], ...]
    """The index along each axis ("": none), and the constant beside it."""
    order: tuple[int, ...]
    """Axes in the order of the loops; empty where they are."""
    spread: tuple[slice | None, ...]

    def of(self, array: Array, origin: Sequence[int], ranges: Ranges) -> Array:
        where: list[int | slice] = []
        for start, (index, constant) in zip(origin, self.axes, strict=True):
            if index:
                first, count = ranges[index]
                where.append(slice(first + start + constant, first + start + constant + count))
            else:
                where.append(start + constant)
        found = array[(*where, ...)]  # a view, also of a single element
        return (found.transpose(self.order) if self.order else found)[self.spread]


_SLICES: dict[tuple[str, tuple[str, ...]], _Slices | None] = {}
"""By element and loops; None where an element is no slice."""


def _slices(element: Element, indices: Sequence[str]) -> _Slices | None:
    axes = []
    for position in element.positions:
        if len(position.factors) > 1 or any(f != 1 for _, f in position.factors) or position.lookup is not None:
            return None
        axes.append((position.factors[0][0] if position.factors else "", position.constant))
    names = [index for index, _ in axes if index]
    if len(set(names)) != len(names):
        return None
    order = [names.index(index) for index in indices if index in names]
    spread = tuple(slice(None) if index in names else None for index in indices)
    return _Slices(tuple(axes), tuple(order) if order != sorted(order) else (), spread)


def gathered(
    array: Array, element: Element, indices: Sequence[str], ranges: Ranges, positions: Callable[[Element], Array]
) -> Array:
    """The elements that a reference through another tensor sees: a copy."""
    where = []
    for position in element.positions:
        along = place(position, indices, ranges)
        if position.lookup is not None:
            along = along + positions(position.lookup)
        where.append(along)
    return np.asarray(array[tuple(np.broadcast_arrays(*where))])


@dataclass(frozen=True)
class Product:
    """A sum of products of two elements as products of matrices: which indices are batch, rows, columns and inner
    ones."""

    left: Element
    right: Element
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    inner: tuple[str, ...]


@lru_cache(maxsize=4096)
def find_product(statement: Statement, indices: tuple[str, ...]) -> Product | None:
    """The statement as products of matrices; None where it is something else."""
    value, target = statement.value, statement.target
    if (
        statement.sign != "+="
        or not isinstance(value, Apply)
        or value.function != "*"
        or not isinstance(target, Element)
    ):
        return None
    left, right = value.arguments
    if not isinstance(left, Element) or not isinstance(right, Element):
        return None
    if any(position.lookup is not None for element in (left, right) for position in element.positions):
        return None
    first, second, output = set(left.indices), set(right.indices), set(target.indices)
    groups: dict[str, list[str]] = {"batch": [], "rows": [], "columns": [], "inner": []}
    for index in indices:
        where = (index in first, index in second, index in output)
        kinds = {
            (True, True, True): "batch",
            (True, False, True): "rows",
            (False, True, True): "columns",
            (True, True, False): "inner",
        }
        if where not in kinds:
            return None
        groups[kinds[where]].append(index)
    if not groups["inner"]:
        return None
    return Product(left, right, *(tuple(groups[name]) for name in ("batch", "rows", "columns", "inner")))


def multiply(
    product: Product,
    indices: Sequence[str],
    ranges: Ranges,
    stored: Callable[[Element, Groups, Ranges], Factor],
    dot: Callable[[Factor, Factor, Array | None], Array],
    onto: Array | None = None,
) -> Array:
    """The sum of products over a range, with all axes of the loops.

    `stored` gives elements as they lie in memory, put together to matrices, and `dot` multiplies these in the way of
    the datapath, added to the sums `onto` where there are some.
    """
    outer = product.inner[0]
    size = prod(ranges[index][1] for index in (*product.batch, *product.rows, *product.inner))
    if size > _LARGEST and len(product.inner) > 1 and ranges[outer][1] > 1:
        first, count = ranges[outer]
        assert onto is None, "sums over several indices begin anew"
        total: Array | None = None
        for step in range(first, first + count):
            part = multiply(product, indices, {**ranges, outer: (step, 1)}, stored, dot)
            total = part if total is None else total + part
        assert total is not None
        return total
    extents = {index: ranges[index][1] for index in indices}
    order = [*product.batch, *product.rows, *product.columns]
    if onto is not None:
        axes = [indices.index(index) for index in order]
        away = [axis for axis in range(len(indices)) if axis not in axes]
        groups = (product.batch, product.rows, product.columns)
        onto = onto.transpose(*axes, *away).reshape([prod(extents[index] for index in group) for group in groups])
    found = dot(
        stored(product.left, (product.batch, product.rows, product.inner), ranges),
        stored(product.right, (product.batch, product.inner, product.columns), ranges),
        onto,
    )
    spread = found.reshape([extents[index] for index in order])
    spread = spread.transpose([order.index(index) for index in indices if index in order])
    return spread.reshape([extents[index] if index in order else 1 for index in indices])


def _whole(value: float) -> int | float:
    return int(value) if value.is_integer() else value
