"""The tensors of a kernel: their storage in memory, their values, and the halo around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from hwsim.errors import InputError, ShapeError
from hwsim.numerics.format import Array, Format, IntFormat, find_format
from hwsim.numerics.quantize import PIECE, QuantizedArray, ScaledFormat, quantize
from hwsim.program.kernel import Kernel, Setting
from hwsim.trace.nest import Size
from hwsim.trace.view import TensorView

OUTLIER_GAIN = 32
"""How much larger the channels with outliers are: in large language models, some tens of times the rest."""
OUTLIER_SHARE = 128
"""One channel in so many has outliers, and at least one."""
INTEGER_RANGE, NARROW_RANGE = 8, 2
"""Unscaled integers lie between minus the first and one less; those of fewer than 8 bits are -1, 0 and 1, so that what
little a kernel computes with them element by element still has room."""


def make_input(
    seed: int,
    number: int,
    name: str,
    shape: Sequence[int],
    fmt: Format,
    given: Array | None = None,
    positive: bool = False,
    below: int = 0,
    distribution: str = "uniform",
    axis: int = -1,
) -> Array:
    """The user's values in a format or, without any, random ones; `number` tells the tensors of a kernel
    apart, `axis` is the one along which blocks with a common scale run.

    Random values are uniform in [-1, 1), or in [0, 1) where a sum must not cancel, if no other distribution is asked
    for; integers lie between -7 and 7, so that D + (A + B) * C fits 8 bits, or between -1 and 1 where they have fewer
    than 8 bits. Positions in a table are whole numbers from 0 to `below`.
    """
    if given is not None:
        array = check_shape(name, given, shape)
        if below and (array.min() < 0 or array.max() >= below):
            raise ShapeError(
                f"{name} holds positions from {array.min()} to {array.max()}; they must lie from 0 to {below - 1}"
            )
        return fmt.store(array, axis=axis)
    if below:
        return fmt.store(np.random.default_rng([seed, number]).integers(0, below, tuple(shape)))
    if isinstance(fmt, IntFormat):
        return fmt.store(_whole_numbers(seed, number, shape, positive, distribution, fmt))
    values = random_values(seed, number, shape, positive, distribution)
    return values if fmt.is_native and values.dtype == fmt.held else fmt.store(values, axis=axis)


def check_shape(name: str, given: Array, shape: Sequence[int]) -> Array:
    array = np.asarray(given)
    if array.shape != tuple(shape):
        raise ShapeError(f"{name} has shape {array.shape}; the sizes of the workload need {tuple(shape)}")
    return array


def random_values(
    seed: int, number: int, shape: Sequence[int], positive: bool = False, distribution: str = "uniform"
) -> Array:
    """Random numbers in float64."""
    random = np.random.default_rng([seed, number])
    if positive and distribution == "uniform":
        return random.random(tuple(shape))
    values = DISTRIBUTIONS[distribution](random, tuple(shape))
    return np.abs(values) if positive else values


def load_inputs(files: Mapping[str, str]) -> dict[str, Array]:
    """Tensors from `.npy` files, by name."""
    found = {}
    for name, file in files.items():
        try:
            array = np.load(Path(file), allow_pickle=False)
        except FileNotFoundError:
            raise InputError(f"inputs.{name}: there is no file {file}") from None
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"inputs.{name}: {file} is not a .npy file of numbers: {error}") from None
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise InputError(f"inputs.{name}: {file} must hold one array of real numbers")
        found[name] = array
    return found


def _whole_numbers(
    seed: int, number: int, shape: Sequence[int], positive: bool, distribution: str, fmt: IntFormat
) -> Array:
    narrow, nonnegative = fmt.bits < 8, positive or fmt.low == 0
    if distribution == "uniform":
        random = np.random.default_rng([seed, number])
        low, high = (-1, NARROW_RANGE) if narrow else (1 - INTEGER_RANGE, INTEGER_RANGE)
        return random.integers(0 if nonnegative else low, high, tuple(shape))
    values = random_values(seed, number, shape, nonnegative, distribution)
    return np.rint(values * (1 if narrow else INTEGER_RANGE / 4)).astype(np.int64)


def _uniform(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    values = np.empty(shape)
    flat = values.reshape(-1)
    for start in range(0, flat.size, PIECE):
        piece = flat[start : start + PIECE]
        random.random(out=piece)
        piece *= 2
        piece -= 1
    return values


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.standard_normal(shape)


def _activations(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    values = random.standard_normal(shape)
    channels = shape[-1] if shape else 1
    chosen = random.choice(channels, max(1, channels // OUTLIER_SHARE), replace=False)
    values[..., chosen] *= OUTLIER_GAIN
    return values


def _relu(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.maximum(random.standard_normal(shape), 0)


DISTRIBUTIONS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "uniform": _uniform,
    "normal": _normal,
    "activations": _activations,
    "relu": _relu,
}


@dataclass(frozen=True)
class Storage:
    """How a tensor lies in memory. What it means, and the shape of its values, does not depend on this."""

    axes: tuple[int, ...] = ()
    """Its axes from the outermost to the innermost; in their own order if not said."""
    ld: int | None = None
    """Elements from one row to the next, where rows are padded."""
    blocks: tuple[int, ...] = ()
    """Extents, along each axis, of blocks that are stored in one piece each; none if empty."""
    along: int = -1
    """The axis that products sum along: scales of rows, and blocks with a common scale, run along it."""
    apart: bool = False
    """Whether numbers and their scales are kept apart, for products that multiply the numbers alone."""

    def order(self, rank: int) -> tuple[int, ...]:
        return self.axes or tuple(range(rank))


PLAIN = Storage()


@dataclass(frozen=True)
class AxisStep:
    """How far one step along an axis of a tensor moves, and the blocks that it is stored in."""

    stride: Size
    block: int = 0
    """Elements of a block; 0 where it lies in one piece."""
    far: Size = 0
    """Bytes from one block to the next."""


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
        self.quantized: dict[str, QuantizedArray] = {}
        """Inputs whose numbers and scales are kept apart; `arrays` has what they stand for."""
        self.turned: dict[str, Array] = {}
        """Weights of a narrow format, turned into the format of the tensors before they are multiplied."""
        self._storage: dict[str, Storage] = {}
        self._given = dict(given or {})
        self._inputs: list[str] = []
        self._halos: dict[str, tuple[int, ...]] = {}
        self._views: dict[str, TensorView] = {}

    def drop_values(self, but_results: bool = False) -> None:
        for values in (self.arrays, self.stored, self.quantized, self.turned):
            for name in values.keys() - set(self.results if but_results else ()):
                del values[name]

    @property
    def input_names(self) -> Sequence[str]:
        return tuple(self._inputs)

    def input_format(self, name: str) -> Format:
        fmt = self.formats.get(name, self.fmt)
        return fmt.base if name in self.quantized and isinstance(fmt, ScaledFormat) else fmt

    def is_turned(self, name: str) -> bool:
        """Whether a tensor is stored in a narrower format than it is multiplied in: weights of their own format."""
        fmt = self.formats.get(name, self.fmt)
        return isinstance(fmt, ScaledFormat) and fmt.name != self.fmt.name

    def stored_input(self, name: str) -> Array | QuantizedArray:
        return self.quantized.get(name, self.arrays[name])

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
        positive: bool = False,
        fmt: Format | None = None,
        halo: Sequence[int] = (),
        below: int = 0,
        storage: Storage = PLAIN,
    ) -> TensorView:
        """Memory for an input, filled with the given values or with random ones; a halo around it is zero.

        With `below` it holds positions in a table, as whole numbers of 32 bits. They have values also without math:
        what is loaded depends on them.
        """
        fmt = find_format("int32") if below else fmt or self.fmt
        view = self._allocate(name, shape, fmt, halo, storage)
        if self.setting.math or below:
            values = self.draw(name, len(self._inputs), shape, fmt, positive, below, storage)
            if self.setting.math:
                self._fill(name, values)
            else:
                self.arrays[name] = values
        self._inputs.append(name)
        return view

    def _fill(self, name: str, values: Array) -> None:
        """Values of an input into its memory; an array made for it takes its place instead of being copied."""
        own = self.stored[name]
        if (
            values.flags.owndata
            and values.flags.c_contiguous
            and (values.shape, values.dtype) == (own.shape, own.dtype)
        ):
            self.stored[name] = self.arrays[name] = values
        else:
            self.arrays[name][...] = values

    def draw(
        self,
        name: str,
        number: int,
        shape: Sequence[int],
        fmt: Format,
        positive: bool = False,
        below: int = 0,
        storage: Storage = PLAIN,
    ) -> Array:
        """The values of an input, given or random; with scales that are kept apart, what they stand for together."""
        self.take(prod(shape))
        given, seed, kind = self._given.get(name), self.setting.seed, self.setting.numbers.distribution
        if not storage.apart or not isinstance(fmt, ScaledFormat):
            axis = storage.along
            return make_input(seed, number, name, shape, fmt, given, positive, below, distribution=kind, axis=axis)
        exact = random_values(seed, number, shape, positive, kind) if given is None else check_shape(name, given, shape)
        return self.quantize(name, exact, fmt, storage.along)

    def quantize(self, name: str, exact: Array, fmt: ScaledFormat, along: int) -> Array:
        """Keep numbers and scales of a tensor apart; gives what they stand for.

        A format other than that of the tensors is turned into theirs before it is multiplied.
        """
        found = quantize(exact, fmt.base, fmt.per, axis=along, block=fmt.block)
        values = found.dequantize()
        self.quantized[name] = found
        if self.is_turned(name):
            self.turned[name] = self.fmt.store(values, saturate=True)
        return values

    def add_result(
        self,
        name: str,
        *shape: int,
        fmt: Format | None = None,
        halo: Sequence[int] = (),
        storage: Storage = PLAIN,
    ) -> TensorView:
        """Memory for a result, filled with zeros."""
        view = self._allocate(name, shape, fmt or self.fmt, halo, storage)
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
        if name in self._storage:
            assert not any(halo), f"{name} is not stored row by row, and has no halo"
            return self.tensors[name], self.stored.get(name)
        whole, have = self.tensors[name], self._halos.get(name, (0,) * len(halo))
        if tuple(halo) == have:
            return whole, self.stored[name] if self.setting.math else None
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
        return self.padded(name, (0,) * len(whole.shape))[0] if any(self._halos.get(name, ())) else whole

    def steps(self, name: str, halo: Sequence[int] = (), shape: Sequence[int] = ()) -> tuple[Size, dict[int, AxisStep]]:
        """Where the first element of a tensor (or of its halo) begins, and what a step along each of its axes moves by,
        the outermost of them in memory first; seen in another shape where one is given."""
        storage = self._storage.get(name)
        if storage is None:
            view = self.padded(name, halo)[0] if halo else self.tensor(name)
            if shape and not halo and view.shape != tuple(shape):
                view = view.reshape(*shape)
            return view.start, {axis: AxisStep(view.byte_stride(axis)) for axis in range(len(view.shape))}
        view, found = self.tensors[name], {}
        rank = len(view.shape) // 2 if storage.blocks else len(view.shape)
        for place, axis in enumerate(storage.order(rank)):
            if storage.blocks:
                step = AxisStep(view.byte_stride(place + rank), storage.blocks[axis], view.byte_stride(place))
            else:
                step = AxisStep(view.byte_stride(place))
            found[axis] = step
        return view.start, found

    def _allocate(
        self,
        name: str,
        shape: Sequence[int],
        fmt: Format,
        halo: Sequence[int] = (),
        storage: Storage = PLAIN,
    ) -> TensorView:
        halo = tuple(halo) or (0,) * len(shape)
        full = [extent + 2 * border for extent, border in zip(shape, halo, strict=True)]
        order = storage.order(len(full))
        lying = [full[axis] for axis in order]
        if storage.blocks:
            blocks = [storage.blocks[axis] for axis in order]
            lying = [*(-(-extent // block) for extent, block in zip(lying, blocks, strict=True)), *blocks]
        if storage.blocks or order != tuple(range(len(full))):
            self._storage[name] = storage
        self.tensors[name] = self.space.allocate(name, lying, fmt, storage.ld)
        self._halos[name] = halo
        self.formats[name] = fmt
        if self.setting.math:
            self.take(prod(full))
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
