"""TensorView: shape, strides and offset over flat memory; the one source of addresses.

    address(index) = base + (offset + Σ index[axis] * strides[axis]) * element size

Elements of fewer than 8 bits are packed without gaps: the address is that of the byte in which an element begins.

Strides count elements. Transposing, slicing and broadcasting make a new view of the same memory and copy
nothing: swapped strides, a shifted offset, a stride of zero.

An `AddressSpace` says where the tensors of a kernel lie in memory.

A tensor's storage under a chain of views: which element of memory each index means, and which lines that touches.

    layout = start("4x5").then("slice", "0:3,1:3")
    layout.view.strides, layout.view.offset         # (5, 1), 1: nothing was copied
    layout.lines(64)                                # the lines of 64 bytes that it touches

A `contiguous` step copies: from then on the storage is another one, which remembers what was where before.

Labels for addresses: memory knows numbers alone, and which tensor and element one means follows from the views.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, Literal

from hwsim.errors import InputError, ShapeError
from hwsim.numerics.format import Format
from hwsim.spec.fields import did_you_mean
from hwsim.trace.nest import Access, Nest, Size, make_access


@dataclass(frozen=True)
class TensorView:
    """A way to look at a piece of memory as a tensor."""

    name: str
    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    element_bits: Size = 32
    """Bits from one element to the next; a fraction where a block of elements has a scale."""

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.strides):
            raise ShapeError(f"{self.name} has shape {self.shape} but strides {self.strides}: one stride for each axis")
        if any(extent < 1 for extent in self.shape):
            raise ShapeError(f"{self.name}: every extent must be at least 1, found shape {self.shape}")

    @classmethod
    def row_major(
        cls, name: str, base: int, shape: Sequence[int], element_bits: Size = 32, ld: int | None = None
    ) -> TensorView:
        """The last axis has stride 1. `ld` (leading dimension) is the distance between rows where rows are padded."""
        return cls(name, base, tuple(shape), _row_strides(name, shape, ld), 0, element_bits)

    @classmethod
    def column_major(cls, name: str, base: int, shape: Sequence[int], element_bits: Size = 32) -> TensorView:
        """The first axis has stride 1."""
        strides = tuple(prod(shape[:axis]) for axis in range(len(shape)))
        return cls(name, base, tuple(shape), strides, 0, element_bits)

    @property
    def size(self) -> int:
        """Number of elements seen through this view; a broadcast element counts each time."""
        return prod(self.shape)

    @cached_property
    def element_bytes(self) -> Size:
        """Bytes from one element to the next; a fraction where elements are packed."""
        bits = self.element_bits
        return bits // 8 if isinstance(bits, int) and bits % 8 == 0 else _whole(Fraction(bits) / 8)

    @property
    def start(self) -> Size:
        """Where the first element begins: a byte, or a place inside one."""
        return self.base + self.offset * self.element_bytes

    def address(self, index: Sequence[int]) -> int:
        """Address of the byte in which an element begins."""
        if len(index) != len(self.shape):
            raise ShapeError(f"{self.name} has shape {self.shape}; {tuple(index)} is not an index into it")
        for axis, (position, extent) in enumerate(zip(index, self.shape, strict=True)):
            if not 0 <= position < extent:
                raise ShapeError(f"{self.name}: index {position} is outside axis {axis} of shape {self.shape}")
        element = self.offset + sum(i * s for i, s in zip(index, self.strides, strict=True))
        return self.base + int(element * self.element_bits // 8)

    def permute(self, *axes: int) -> TensorView:
        """The same elements with the axes in another order; a transpose is ``permute(1, 0)``."""
        if sorted(axes) != list(range(len(self.shape))):
            raise ShapeError(f"{self.name}: {axes} is not an order of the {len(self.shape)} axes of {self.shape}")
        shape = tuple(self.shape[axis] for axis in axes)
        return replace(self, shape=shape, strides=tuple(self.strides[axis] for axis in axes))

    def slice(self, *parts: slice | int) -> TensorView:
        """As ``tensor[1:3, 2]``: a range keeps its axis, a number drops it; axes that are not named stay whole."""
        if len(parts) > len(self.shape):
            raise ShapeError(f"{self.name}: {len(parts)} ranges for the {len(self.shape)} axes of {self.shape}")
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        for axis, extent in enumerate(self.shape):
            part = parts[axis] if axis < len(parts) else slice(None)
            if isinstance(part, int):
                if not -extent <= part < extent:
                    raise ShapeError(f"{self.name}: index {part} is outside axis {axis} of shape {self.shape}")
                offset += part % extent * self.strides[axis]
                continue
            positions = range(extent)[part]
            if not positions:
                raise ShapeError(f"{self.name}: nothing of axis {axis} of shape {self.shape} is left by {part}")
            offset += positions.start * self.strides[axis]
            shape.append(len(positions))
            strides.append(positions.step * self.strides[axis])
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def broadcast_to(self, shape: Sequence[int]) -> TensorView:
        """Axes of length 1 (and new axes in front) repeat with stride 0: no element is copied."""
        missing = len(shape) - len(self.shape)
        own = (1,) * missing + self.shape
        if missing < 0 or any(mine not in (1, wanted) for mine, wanted in zip(own, shape, strict=True)):
            raise ShapeError(f"{self.name} of shape {self.shape} cannot be broadcast to {tuple(shape)}")
        strides = (0,) * missing + self.strides
        repeated = tuple(
            0 if mine == 1 and wanted != 1 else stride for mine, wanted, stride in zip(own, shape, strides, strict=True)
        )
        return replace(self, shape=tuple(shape), strides=repeated)

    def reshape(self, *shape: int) -> TensorView:
        """Another shape over the same elements in the same order, without a copy; one extent may be -1."""
        wanted = _fill_in(self, shape)
        strides = _strides_without_copy(self.shape, self.strides, wanted)
        if strides is None:
            raise ShapeError(
                f"{self.name} of shape {self.shape} and strides {self.strides} cannot be seen as {wanted} "
                "without a copy"
            )
        return replace(self, shape=wanted, strides=strides)

    def is_contiguous(self) -> bool:
        """Whether the elements lie in memory in row-major order with no gap; an axis of length 1 cannot break that."""
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent == 1:
                continue
            if stride != expected:
                return False
            expected *= extent
        return True

    def byte_stride(self, axis: int) -> Size:
        return _whole(self.strides[axis] * self.element_bytes)

    def access(
        self,
        *loops: int | tuple[int, int] | None,
        at: Sequence[int] | None = None,
        elements: int = 1,
        write: bool = False,
        after: bool = False,
    ) -> Access:
        """An access to this tensor in a nest: for each loop around it, outer to inner, the axis along which it moves.

        An axis may come with a step, ``(axis, step)``; ``None`` is a loop that does not move it. `at` is the element
        touched first, `elements` the number of neighbours that one (vector) access takes.
        """
        strides: list[Size] = []
        for loop in loops:
            axis, step = loop if isinstance(loop, tuple) else (loop, 1)
            strides.append(0 if axis is None else self.byte_stride(axis) * step)
        index = at if at is not None else (0,) * len(self.shape)
        self.address(index)  # inside?
        first = self.start + sum(i * s for i, s in zip(index, self.strides, strict=True)) * self.element_bytes
        return make_access(first, strides, elements * self.element_bytes, write, after, self.name)


def _whole(number: Size) -> Size:
    """An int where there is no fraction."""
    return int(number) if number.denominator == 1 else number


def _fill_in(view: TensorView, shape: Sequence[int]) -> tuple[int, ...]:
    known = prod(extent for extent in shape if extent != -1)
    if list(shape).count(-1) == 1 and known > 0 and view.size % known == 0:
        shape = [view.size // known if extent == -1 else extent for extent in shape]
    if any(extent < 1 for extent in shape) or prod(shape) != view.size:
        raise ShapeError(f"{view.name} of shape {view.shape} has {view.size} elements; {tuple(shape)} does not")
    return tuple(shape)


def _strides_without_copy(
    shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]
) -> tuple[int, ...] | None:
    """Match runs of old axes with runs of new axes of the same size; each run of old axes must be one even stride."""
    old = [(extent, stride) for extent, stride in zip(shape, strides, strict=True) if extent != 1]
    result: list[int] = []
    position = 0
    start = 0
    while start < len(wanted):
        if wanted[start] == 1:
            result.append(1)
            start += 1
            continue
        stop, size, first, covered = start + 1, wanted[start], position, old[position][0]
        position += 1
        while size != covered:
            if size < covered:
                size *= wanted[stop]
                stop += 1
            else:
                covered *= old[position][0]
                position += 1
        for axis in range(first, position - 1):
            if old[axis][1] != old[axis + 1][0] * old[axis + 1][1]:
                return None
        stride = old[position - 1][1]
        run: list[int] = []
        for extent in reversed(wanted[start:stop]):
            run.append(stride)
            stride *= extent
        result += reversed(run)
        start = stop
    return tuple(result)


def _row_strides(name: str, shape: Sequence[int], ld: int | None) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        row = shape[axis + 1]
        if axis == len(shape) - 2 and ld is not None:
            if ld < row:
                raise ShapeError(f"{name}: leading dimension {ld} is less than the {row} columns of {tuple(shape)}")
            row = ld
        strides[axis] = strides[axis + 1] * row
    return tuple(strides)


FIRST_ADDRESS = 64 * 1024
PAGE_BYTES = 4096
MAPPED_BYTES = 128 * 1024
"""From this size on an allocator maps memory of its own for each request (glibc: M_MMAP_THRESHOLD)."""
LINE_BYTES = 64
"""What numerical libraries align arrays to: a line, or the widest vector."""


class AddressSpace:
    """Hands out addresses in ascending order, as an allocator does. What is freed counts as free, but its addresses
    are not used again.

    Small tensors follow each other on a heap, with a header between them. Large ones begin at pages, and the header
    takes a page of its own: tensors of 4 MiB do not begin at multiples of 4 MiB. Lines at the same place in several
    tensors so lie in different sets of a cache, or in pages of different colours where its ways are larger than a page.
    With `align`, every tensor begins at a multiple of that instead.
    """

    def __init__(self, align: int | None = None) -> None:
        self._align = align
        self._next = FIRST_ADDRESS
        self._live: dict[str, int] = {}
        self.peak_bytes = 0

    @property
    def live_bytes(self) -> int:
        return sum(self._live.values())

    def allocate(self, name: str, shape: Sequence[int], fmt: Format, ld: int | None = None) -> TensorView:
        """A row-major tensor; `ld` is the distance between rows in elements where rows are padded."""
        if name in self._live:
            raise ValueError(f"a tensor {name!r} is already there")
        bits = fmt.stored_bits
        exact = int(bits) if bits.denominator == 1 else bits
        strides = _row_strides(name, shape, ld)
        elements = strides[0] * shape[0] if shape else 1
        size_bytes = -(-elements * exact // 8)
        align = self._align or (PAGE_BYTES if size_bytes >= MAPPED_BYTES else LINE_BYTES)
        header = align if self._next > FIRST_ADDRESS and not self._align else 0
        base = -(-(self._next + header) // align) * align
        view = TensorView(name, base, tuple(shape), strides, 0, exact)
        self._next = base + size_bytes
        self._live[name] = size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return view

    def free(self, name: str) -> None:
        del self._live[name]


MOST_ELEMENTS = 4096
"""More than this nobody wants to look at."""
NAME = "A"


@dataclass(frozen=True)
class Layout:
    """A view, what its storage holds, and how it came about."""

    view: TensorView
    values: tuple[int, ...]
    """For each element of the storage, the number that it had in the first one."""
    steps: tuple[str, ...] = ()
    copied: int = 0
    """Elements that were read and written by copies."""

    def then(self, word: str, value: str = "") -> Layout:
        """One more step; raises InputError, or ShapeError where it is not possible without a copy."""
        if word not in STEPS:
            raise InputError(f"'{word}' is no step{did_you_mean(word, STEPS)}; there are: {', '.join(STEPS)}")
        if bool(value) == (word in BARE):
            raise InputError(f"'{word}': write it {'without a value' if word in BARE else f'as {word}=…'}")
        made = STEPS[word](self, value)
        said = word if word in BARE else f"{word}={value}"
        return replace(made, steps=(*self.steps, said))

    def element(self, index: Sequence[int]) -> int:
        """Which element of the storage an index means."""
        return self.view.offset + sum(i * s for i, s in zip(index, self.view.strides, strict=True))

    def value(self, index: Sequence[int]) -> int:
        """What is there: its number in the first storage."""
        return self.values[self.element(index)]

    def indices(self) -> Iterator[tuple[int, ...]]:
        """All indices, the last axis fastest."""
        return product(*(range(extent) for extent in self.view.shape))

    def touched(self) -> set[int]:
        """Elements of the storage that the view reaches."""
        return {self.element(index) for index in self.indices()}

    def lines(self, line_bytes: int) -> dict[int, int]:
        """Lines that it touches, with the elements of each that are used."""
        per_line = max(1, int(line_bytes // self.view.element_bytes))
        found: dict[int, int] = {}
        for element in sorted(self.touched()):
            found[element // per_line] = found.get(element // per_line, 0) + 1
        return found

    def changes_of_line(self, line_bytes: int) -> int:
        """How often a walk in the order of the view goes to another line than the last."""
        per_line = max(1, int(line_bytes // self.view.element_bytes))
        lines = [self.element(index) // per_line for index in self.indices()]
        return sum(1 for now, last in zip(lines, [-1, *lines[:-1]], strict=True) if now != last)

    def formula(self) -> str:
        """``data[1 + 5*i + j]``."""
        letters = _letters(len(self.view.shape))
        parts = [str(self.view.offset)] if self.view.offset else []
        for letter, stride in zip(letters, self.view.strides, strict=True):
            parts += [letter if stride == 1 else f"{stride}*{letter}"] if stride else []
        return f"{NAME}[{', '.join(letters)}] = data[{' + '.join(parts) or '0'}]"

    def why_not_contiguous(self) -> str:
        """The first axis that breaks it; nothing where the view is contiguous."""
        expected = 1
        for axis in range(len(self.view.shape) - 1, -1, -1):
            extent, stride = self.view.shape[axis], self.view.strides[axis]
            if extent != 1 and stride != expected:
                return f"axis {axis} has stride {stride}, and {expected} would be needed"
            expected *= extent
        return ""


def start(text: str, bits: int = 32) -> Layout:
    """``4x5``: a row-major tensor in a storage of its own."""
    shape = _whole_numbers(text.replace("x", ","), "a shape is written as 4x5")
    if prod(shape) > MOST_ELEMENTS:
        raise InputError(f"{prod(shape):,} elements are too many to look at; up to {MOST_ELEMENTS:,}")
    return Layout(TensorView.row_major(NAME, 0, shape, bits), tuple(range(prod(shape))))


def _order(layout: Layout, value: str) -> Layout:
    if layout.steps:
        raise InputError("order comes first: it says how the tensor is stored")
    if value == "row":
        return layout
    if value != "column":
        raise InputError(f"order={value}: it is row or column")
    shape, bits = layout.view.shape, layout.view.element_bits
    return replace(layout, view=TensorView.column_major(NAME, 0, shape, bits))


def _permute(layout: Layout, value: str) -> Layout:
    return replace(layout, view=layout.view.permute(*_whole_numbers(value, "write permute=1,0")))


def _slice(layout: Layout, value: str) -> Layout:
    parts: list[slice | int] = []
    for text in value.split(","):
        numbers = [int(part) if part.strip() else None for part in text.split(":") if _is_number(part)]
        if len(numbers) != len(text.split(":")) or len(numbers) > 3 or (len(numbers) == 1 and numbers[0] is None):
            raise InputError(f"slice={value}: write a range or a number for each axis, such as slice=0:3,1")
        parts.append(slice(*numbers) if len(numbers) > 1 else int(numbers[0] or 0))
    if any(isinstance(part, slice) and part.step is not None and part.step < 1 for part in parts):
        raise InputError(f"slice={value}: a step is at least 1")
    return replace(layout, view=layout.view.slice(*parts))


def _broadcast(layout: Layout, value: str) -> Layout:
    shape = _whole_numbers(value.replace("x", ","), "write broadcast=4x3")
    if prod(shape) > MOST_ELEMENTS:
        raise InputError(f"{prod(shape):,} elements are too many to look at; up to {MOST_ELEMENTS:,}")
    return replace(layout, view=layout.view.broadcast_to(shape))


def _reshape(layout: Layout, value: str) -> Layout:
    shape = _whole_numbers(value.replace("x", ","), "write reshape=2,2,4 or reshape=-1,8", least=-1)
    try:
        return replace(layout, view=layout.view.reshape(*shape))
    except ShapeError as error:
        if "without a copy" in str(error):
            raise ShapeError(f"{error}; put contiguous before it") from error
        raise


def _strides(layout: Layout, value: str) -> Layout:
    """Any strides over the same storage."""
    strides = _whole_numbers(value, "write strides=5,1", least=0)
    view = TensorView(NAME, 0, layout.view.shape, tuple(strides), layout.view.offset, layout.view.element_bits)
    last = view.offset + sum((e - 1) * s for e, s in zip(view.shape, view.strides, strict=True))
    if last >= len(layout.values):
        raise ShapeError(f"strides={value}: element {last} is outside the storage of {len(layout.values)}")
    return replace(layout, view=view)


def _contiguous(layout: Layout, value: str) -> Layout:
    """A copy in row-major order; nothing where the view is contiguous from its first element on."""
    if layout.view.is_contiguous() and not layout.view.offset and layout.view.size == len(layout.values):
        return layout
    values = tuple(layout.value(index) for index in layout.indices())
    view = TensorView.row_major(NAME, 0, layout.view.shape, layout.view.element_bits)
    return replace(layout, view=view, values=values, copied=layout.copied + len(values))


STEPS: Mapping[str, Callable[[Layout, str], Layout]] = {
    "order": _order,
    "permute": _permute,
    "slice": _slice,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "strides": _strides,
    "contiguous": _contiguous,
}
"""What may follow a shape, in the order in which it is typed."""
BARE = frozenset({"contiguous"})


def _whole_numbers(text: str, how: str, least: int = 0) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(_is_number(part) and part.strip() for part in parts) or any(int(part) < least for part in parts):
        raise InputError(f"'{text}': {how}")
    return tuple(int(part) for part in parts)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*(-?\d{1,6})?\s*", text) is not None


def _letters(count: int) -> list[str]:
    return list("ijkl"[:count]) if count <= 4 else [f"i{number}" for number in range(count)]


@dataclass(frozen=True)
class LabelledAccess:
    """One load or store of a trace."""

    kind: Literal["load", "store"]
    address: int
    nbytes: int
    element: str
    """``A[0, 3]``, with how many neighbours a vector takes behind it: ``A[0, 0..7]``."""
    line: int
    """Number of the line that it begins on, the first of the trace being 0."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def label_accesses(nests: Iterable[Nest], views: Mapping[str, TensorView], line: int) -> Iterator[LabelledAccess]:
    """Every access of the nests in order; for looking at small ones."""
    lines: dict[int, int] = {}
    for nest in nests:
        for address, nbytes, write in nest.addresses():
            number = lines.setdefault(address // line, len(lines))
            yield LabelledAccess("store" if write else "load", address, nbytes, _label(address, nbytes, views), number)


def _label(address: int, nbytes: int, views: Mapping[str, TensorView]) -> str:
    """The tensor that begins last before the address, and the element of it."""
    name, view = max(views.items(), key=lambda item: (item[1].base <= address, item[1].base))
    place = int(Fraction(address - view.base) / view.element_bytes) - view.offset
    count = max(1, int(Fraction(nbytes) / view.element_bytes))
    index = index_of(view, place)
    if index is None:
        return f"{name} + {address - view.base} B"
    last = f"{index[-1]}..{index[-1] + count - 1}" if count > 1 else str(index[-1])
    return f"{name}[{', '.join([*map(str, index[:-1]), last])}]"


def index_of(view: TensorView, place: int) -> tuple[int, ...] | None:
    """The index whose element lies at a place of the storage; None where the view does not reach it."""
    index = [0] * len(view.shape)
    axes = sorted(range(len(view.shape)), key=lambda axis: -view.strides[axis])
    for axis in axes:
        stride = view.strides[axis]
        if stride > 0:
            index[axis] = min(place // stride, view.shape[axis] - 1)
            place -= index[axis] * stride
    return tuple(index) if place == 0 and index else None
