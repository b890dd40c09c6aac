"""TensorView: shape, strides and offset over flat memory; the one source of addresses.

    address(index) = base + (offset + Σ index[axis] * strides[axis]) * element size

Elements of fewer than 8 bits are packed without gaps: the address is that of the byte in which an element begins.

Strides count elements. Transposing, slicing and broadcasting make a new view of the same memory and copy
nothing: swapped strides, a shifted offset, a stride of zero.

An `AddressSpace` says where the tensors of a kernel lie in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, prod

from hwsim.errors import ShapeError
from hwsim.numerics.format import Format
from hwsim.trace.nest import Access, Size, make_access


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
        strides = [1] * len(shape)
        for axis in range(len(shape) - 2, -1, -1):
            row = shape[axis + 1]
            if axis == len(shape) - 2 and ld is not None:
                if ld < row:
                    raise ShapeError(f"{name}: leading dimension {ld} is less than the {row} columns of {tuple(shape)}")
                row = ld
            strides[axis] = strides[axis + 1] * row
        return cls(name, base, tuple(shape), tuple(strides), 0, element_bits)

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
        return _whole(Fraction(self.element_bits) / 8)

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

    def allocate(
        self,
        name: str,
        shape: Sequence[int],
        fmt: Format,
        ld: int | None = None,
        bits: Fraction | None = None,
    ) -> TensorView:
        """A row-major tensor; `ld` is the distance between rows in elements where rows are padded, `bits` the space
        that an element takes, where that is not what its format says."""
        if name in self._live:
            raise ValueError(f"a tensor {name!r} is already there")
        bits = fmt.stored_bits if bits is None else bits
        exact = int(bits) if bits.denominator == 1 else bits
        shaped = TensorView.row_major(name, 0, shape, exact, ld)
        size_bytes = ceil((shaped.strides[0] * shape[0] if shape else 1) * bits / 8)
        align = self._align or (PAGE_BYTES if size_bytes >= MAPPED_BYTES else LINE_BYTES)
        header = align if self._next > FIRST_ADDRESS and not self._align else 0
        base = -(-(self._next + header) // align) * align
        view = TensorView.row_major(name, base, shape, exact, ld)
        self._next = base + size_bytes
        self._live[name] = size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return view

    def free(self, name: str) -> None:
        del self._live[name]
