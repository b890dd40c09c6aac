"""A tensor's storage under a chain of views: which element of memory each index means, and which lines that touches.

    layout = start("4x5").then("slice", "0:3,1:3")
    layout.view.strides, layout.view.offset         # (5, 1), 1: nothing was copied
    layout.lines(64)                                # the lines of 64 bytes that it touches

A `contiguous` step copies: from then on the storage is another one, which remembers what was where before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from hwsim.errors import InputError, ShapeError
from hwsim.spec.fields import did_you_mean
from hwsim.trace.view import TensorView

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
