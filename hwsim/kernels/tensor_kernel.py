"""TensorKernel: a kernel's tensors: their memory, their values, and the halo around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hwsim.errors import ShapeError
from hwsim.kernels.data import make_input
from hwsim.kernels.kernel import Kernel, Setting
from hwsim.numerics.format import Array, Format, find_format
from hwsim.trace.view import TensorView


class TensorKernel(Kernel):
    """Tensors are allocated in the order in which they are added; without math they have addresses and no values."""

    def __init__(self, name: str, fmt: Format, setting: Setting, given: Mapping[str, Array] | None = None) -> None:
        super().__init__(name, fmt, setting)
        self.results: list[str] = []
        """The tensors that hold the answer, the main one last; the one added last if nothing else is said."""
        self.stored: dict[str, Array] = {}
        """Values of all tensors, with their halo where they have one; `arrays` has them without."""
        self.formats: dict[str, Format] = {}
        """The number format of each tensor."""
        self._given = dict(given or {})
        self._inputs: list[str] = []
        self._halos: dict[str, tuple[int, ...]] = {}
        self._views: dict[str, TensorView] = {}

    @property
    def input_names(self) -> Sequence[str]:
        return tuple(self._inputs)

    def input_format(self, name: str) -> Format:
        return self.formats.get(name, self.fmt)

    @property
    def output_format(self) -> Format:
        return self.formats.get(self.result, self.fmt)

    def answer_format(self, name: str) -> Format:
        return self.formats.get(name, self.output_format)

    @property
    def result(self) -> str:
        """The tensor that holds the main answer."""
        return self.results[-1] if self.results else ""

    def add_input(
        self,
        name: str,
        *shape: int,
        ld: int | None = None,
        positive: bool = False,
        fmt: Format | None = None,
        halo: Sequence[int] = (),
        below: int = 0,
    ) -> TensorView:
        """Memory for an input, filled with the given values or with random ones; a halo around it is zero.

        With `below` it holds positions in a table, as whole numbers of 32 bits. They have values also without math:
        what is loaded depends on them.
        """
        fmt = find_format("int32") if below else fmt or self.fmt
        view = self._allocate(name, shape, fmt, halo, ld)
        if self.setting.math or below:
            number = len(self._inputs)
            given = self._given.get(name)
            kind = self.setting.numbers.distribution
            values = make_input(self.setting.seed, number, name, shape, fmt, given, positive, below, distribution=kind)
            if self.setting.math:
                self.arrays[name][...] = values
            else:
                self.arrays[name] = values
        self._inputs.append(name)
        return view

    def add_result(self, name: str, *shape: int, fmt: Format | None = None, halo: Sequence[int] = ()) -> TensorView:
        """Memory for a result, filled with zeros."""
        view = self._allocate(name, shape, fmt or self.fmt, halo)
        self.results = [name]
        return view

    def add_scratch(self, name: str, *shape: int, fmt: Format | None = None, halo: Sequence[int] = ()) -> TensorView:
        """Memory for something between, filled with zeros; `at(…, tiles=…)` lets all tiles use the same piece of it."""
        return self._allocate(name, shape, fmt or self.fmt, halo)

    def add_view(self, name: str, view: TensorView, values: Array | None) -> None:
        """Another name for (a part of) a tensor that is already there, in the same memory; no values without math."""
        self._views[name] = view
        self.formats[name] = self.formats[view.name]
        if values is not None:
            self.arrays[name] = values

    def padded(self, name: str, halo: Sequence[int]) -> tuple[TensorView, Array | None]:
        """A tensor together with so many elements of its halo on each side of each axis."""
        if name in self._views:
            assert not any(halo), f"{name} is a view, which has no halo"
            return self._views[name], self.arrays.get(name)
        whole, have = self.tensors[name], self._halos.get(name, (0,) * len(halo))
        cuts = tuple(
            slice(own - asked, extent - (own - asked))
            for own, asked, extent in zip(have, halo, whole.shape, strict=True)
        )
        return whole.slice(*cuts), self.stored[name][cuts] if self.setting.math else None

    def tensor(self, name: str) -> TensorView:
        """A tensor without its halo."""
        if name in self._views:
            return self._views[name]
        whole = self.tensors[name]
        return self.padded(name, (0,) * len(whole.shape))[0]

    def _allocate(
        self, name: str, shape: Sequence[int], fmt: Format, halo: Sequence[int] = (), ld: int | None = None
    ) -> TensorView:
        halo = tuple(halo) or (0,) * len(shape)
        full = [extent + 2 * border for extent, border in zip(shape, halo, strict=True)]
        self.tensors[name] = self.space.allocate(name, full, fmt, ld)
        self._halos[name] = halo
        self.formats[name] = fmt
        if self.setting.math:
            self.stored[name] = np.zeros(full, fmt.held)
            inside = tuple(slice(border, border + extent) for border, extent in zip(halo, shape, strict=True))
            self.arrays[name] = self.stored[name][inside]
        return self.tensor(name)

    def _check_given(self) -> None:
        unknown = self._given.keys() - self.arrays.keys()
        if unknown and self.setting.math:
            names = ", ".join(sorted(unknown))
            raise ShapeError(f"{self.name} has no input {names}; its tensors are {', '.join(self.tensors)}")

    def _output(self) -> Array:
        return self.arrays[self.result]
