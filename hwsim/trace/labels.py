"""Labels for addresses: memory knows numbers alone, and which tensor and element one means follows from the views."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal

from hwsim.trace.nest import Nest
from hwsim.trace.view import TensorView


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
